"""OpenAI's dialect: chat completions, completions, embeddings and responses, plain and streamed.

Usage comes in the last chunk, if the request asked for it (`stream_options.include_usage`); some servers say it in every chunk,
growing. Responses say it in their last event. `prompt_tokens` and `input_tokens` count the cached ones, too.
"""

from __future__ import annotations

import msgspec

from .reading import Reading, count, crowded, size

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's."""


class _Content(msgspec.Struct, gc=False):
    """A message or the delta of one."""

    content: msgspec.Raw = msgspec.Raw()
    refusal: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()
    function_call: msgspec.Raw = msgspec.Raw()
    audio: msgspec.Raw = msgspec.Raw()

    @property
    def size(self) -> int:
        found = size(self.content)
        if found:
            return found
        reasoning = self.reasoning_content or self.reasoning
        parts = (self.refusal, reasoning, self.tool_calls, self.function_call, self.audio)
        return sum(size(part) for part in parts if part)


class _Choice(msgspec.Struct, gc=False):
    delta: _Content | None = None
    message: _Content | None = None
    text: msgspec.Raw = msgspec.Raw()
    finish_reason: str | None = None


class _Error(msgspec.Struct):
    type: str | None = None
    code: str | int | None = None
    message: str | None = None


class _Facts(msgspec.Struct):
    """What a chunk, or a document, says of itself."""

    model: str | None = None
    usage: _Usage | None = None
    error: _Error | str | None = None


class _Chunk(_Facts):
    choices: list[_Choice] | None = None
    output: msgspec.Raw = msgspec.Raw()
    """Of a response."""


class _Event(msgspec.Struct):
    """Of a streamed response."""

    type: str = ""
    delta: msgspec.Raw = msgspec.Raw()
    response: _Facts | None = None
    code: str | int | None = None
    message: str | None = None
    error: _Error | None = None


_chunk = msgspec.json.Decoder(_Chunk)
_facts = msgspec.json.Decoder(_Facts)
_event = msgspec.json.Decoder(_Event)
_usage = msgspec.json.Decoder(_Usage)


class OpenAI:
    """A Dialect. `responses`: of the newer interface."""

    __slots__ = ("_finished", "_responses")

    def __init__(self, responses: bool) -> None:
        self._responses = responses
        self._finished = False
        """A choice has given the reason of its end."""

    def document(self, data: bytes, reading: Reading) -> None:
        self._chunk(data, reading)
        reading.complete = True

    def tail(self, data: bytes, reading: Reading) -> None:
        self._add(_usage.decode(data), reading)

    def event(self, kind: bytes, data: bytes, reading: Reading) -> None:
        if self._responses:
            self._response_event(data, reading)
        elif data.startswith(b"[DONE]"):
            reading.complete = True
        else:
            self._chunk(data, reading)

    def end(self, reading: Reading) -> None:
        """Some compatible servers do not say [DONE]."""
        reading.complete = reading.complete or self._finished

    def _chunk(self, data: bytes, reading: Reading) -> None:
        if crowded(data):
            self._facts(_facts.decode(data), reading)
            return
        chunk = _chunk.decode(data)
        for choice in chunk.choices or ():
            content = choice.delta or choice.message
            if choice.finish_reason:
                self._finished = True
            reading.content((content is not None and content.size) or size(choice.text))
        reading.content(size(chunk.output))
        self._facts(chunk, reading)

    def _facts(self, facts: _Facts, reading: Reading) -> None:
        reading.named(facts.model)
        if facts.usage is not None:
            self._add(facts.usage, reading)
        error = facts.error
        if isinstance(error, _Error):
            reading.failed(error.type or error.code, error.message)
        elif error is not None:
            reading.failed("error", error)

    def _response_event(self, data: bytes, reading: Reading) -> None:
        event = _event.decode(data)
        if event.type.endswith(".delta"):
            reading.content(size(event.delta))
            return
        if event.response is not None:
            response = event.response
            reading.named(response.model)
            if response.usage is not None:
                self._add(response.usage, reading)
            if isinstance(response.error, _Error):
                reading.failed(response.error.code or response.error.type, response.error.message)
        if event.type in _ENDS:
            reading.complete = True
        elif event.type == "error":
            error = event.error or _Error(None, event.code, event.message)
            reading.failed(error.code or error.type, error.message)

    @staticmethod
    def _add(usage: _Usage, reading: Reading) -> None:
        inputs = usage.prompt_tokens if usage.input_tokens is None else usage.input_tokens
        outputs = usage.completion_tokens if usage.output_tokens is None else usage.output_tokens
        if inputs is not None:
            reading.input = count(inputs)
            if outputs is None:  # embeddings
                reading.output = reading.output or 0
        if outputs is not None:
            reading.output = count(outputs)
        cached = usage.prompt_cache_hit_tokens
        details = usage.prompt_tokens_details or usage.input_tokens_details
        if details is not None:
            if details.cached_tokens is not None:
                cached = details.cached_tokens
            if details.cache_write_tokens is not None:
                reading.cache_write = count(details.cache_write_tokens)
        if cached is not None:
            reading.cache_read = count(cached)
        details = usage.completion_tokens_details or usage.output_tokens_details
        if details is not None and details.reasoning_tokens is not None:
            reading.reasoning = count(details.reasoning_tokens)
