"""Anthropic's dialect: messages, plain and streamed.

`message_start` has the input and cache counts, each `message_delta` the counts so far: the last wins. `input_tokens` leaves out
what the cache read and wrote, so that the sum of the three is what went in.
"""

from __future__ import annotations

import msgspec

from .reading import Reading, count, size


class _Created(msgspec.Struct):
    ephemeral_1h_input_tokens: int | None = None


class _Details(msgspec.Struct):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: _Created | None = None
    """Of the start of a message only."""
    output_tokens: int | None = None
    output_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    type: str | None = None
    message: str | None = None


class _Message(msgspec.Struct):
    model: str | None = None
    usage: _Usage | None = None
    content: msgspec.Raw = msgspec.Raw()
    error: _Error | None = None


class _Delta(msgspec.Struct):
    text: msgspec.Raw = msgspec.Raw()
    partial_json: msgspec.Raw = msgspec.Raw()
    thinking: msgspec.Raw = msgspec.Raw()
    citation: msgspec.Raw = msgspec.Raw()


class _Event(msgspec.Struct):
    type: str = ""
    message: _Message | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: _Error | None = None


_message = msgspec.json.Decoder(_Message)
_event = msgspec.json.Decoder(_Event)
_usage = msgspec.json.Decoder(_Usage)


class Anthropic:
    """A Dialect."""

    __slots__ = ("_plain",)

    def __init__(self) -> None:
        self._plain: int | None = None
        """Input tokens that are not the cache's."""

    def document(self, data: bytes, reading: Reading) -> None:
        message = _message.decode(data)
        reading.named(message.model)
        reading.content(size(message.content))
        self._add(message.usage, reading)
        self._failed(message.error, reading)
        reading.complete = True

    def tail(self, data: bytes, reading: Reading) -> None:
        self._add(_usage.decode(data), reading)

    def event(self, kind: bytes, data: bytes, reading: Reading) -> None:
        if kind == b"ping":
            return
        event = _event.decode(data)
        if event.message is not None:
            reading.named(event.message.model)
            self._add(event.message.usage, reading)
        elif event.type == "content_block_delta" and event.delta is not None:
            delta = event.delta
            reading.content(size(delta.text) + size(delta.partial_json) + size(delta.thinking) + size(delta.citation))
        elif event.type == "message_stop":
            reading.complete = True
        self._add(event.usage, reading)
        self._failed(event.error, reading)

    def end(self, reading: Reading) -> None:
        """Only `message_stop` is one."""

    def _add(self, usage: _Usage | None, reading: Reading) -> None:
        if usage is None:
            return
        if usage.input_tokens is not None:
            self._plain = count(usage.input_tokens)
        if usage.cache_read_input_tokens is not None:
            reading.cache_read = count(usage.cache_read_input_tokens)
        if usage.cache_creation_input_tokens is not None:
            reading.cache_write = count(usage.cache_creation_input_tokens)
        if usage.cache_creation is not None and usage.cache_creation.ephemeral_1h_input_tokens is not None:
            reading.cache_write_1h = count(usage.cache_creation.ephemeral_1h_input_tokens)
        if usage.output_tokens is not None:
            reading.output = count(usage.output_tokens)
        if usage.output_tokens_details is not None and usage.output_tokens_details.thinking_tokens is not None:
            reading.reasoning = count(usage.output_tokens_details.thinking_tokens)
        if self._plain is not None:
            reading.input = self._plain + (reading.cache_read or 0) + (reading.cache_write or 0)

    @staticmethod
    def _failed(error: _Error | None, reading: Reading) -> None:
        if error is not None:
            reading.failed(error.type, error.message)
