"""Gemini's dialect: generateContent, streamGenerateContent (as events, or as a JSON array), embedContent,
batchEmbedContents (which is what Google's own SDK calls, for one text, too).

Each piece has `usageMetadata`, growing: the last wins. `promptTokenCount` counts the cached ones, too; what was thought is not
among `candidatesTokenCount`.
"""

from __future__ import annotations

import msgspec

from .reading import Reading, count, crowded, size


class _Usage(msgspec.Struct, rename="camel"):
    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None


class _Content(msgspec.Struct, gc=False):
    parts: msgspec.Raw = msgspec.Raw()


class _Candidate(msgspec.Struct, rename="camel", gc=False):
    content: _Content | None = None
    finish_reason: str | None = None


class _Error(msgspec.Struct):
    status: str | None = None
    message: str | None = None
    code: int | str | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None


class _Facts(msgspec.Struct, rename="camel"):
    """What a piece says of itself."""

    usage_metadata: _Usage | None = None
    model_version: str | None = None
    prompt_feedback: _Feedback | None = None
    error: _Error | None = None


class _Piece(_Facts, rename="camel"):
    candidates: list[_Candidate] | None = None


_facts = msgspec.json.Decoder(_Facts)
_piece = msgspec.json.Decoder(_Piece)
_pieces = msgspec.json.Decoder(list[_Piece])
_usage = msgspec.json.Decoder(_Usage)


class Gemini:
    """A Dialect."""

    __slots__ = ()

    def document(self, data: bytes, reading: Reading) -> None:
        if data.lstrip()[:1] == b"[":  # a stream's error is in a list
            if crowded(data):
                raise msgspec.DecodeError("too many pieces")
            for piece in _pieces.decode(data):
                self._add(piece, reading)
        else:
            self.event(b"", data, reading)
        reading.complete = True

    def tail(self, data: bytes, reading: Reading) -> None:
        self._count(_usage.decode(data), reading)

    def event(self, kind: bytes, data: bytes, reading: Reading) -> None:
        if crowded(data):
            self._facts(_facts.decode(data), reading)
        else:
            self._add(_piece.decode(data), reading)

    def end(self, reading: Reading) -> None:
        """Only a finish reason is one."""

    def _add(self, piece: _Piece, reading: Reading) -> None:
        for candidate in piece.candidates or ():
            if candidate.content is not None:
                reading.content(size(candidate.content.parts))
            if candidate.finish_reason:
                reading.complete = True
        self._facts(piece, reading)

    def _facts(self, facts: _Facts, reading: Reading) -> None:
        reading.named(facts.model_version)
        if facts.prompt_feedback is not None and facts.prompt_feedback.block_reason:
            reading.complete = True
            reading.failed(facts.prompt_feedback.block_reason, "the prompt was blocked")
        if facts.usage_metadata is not None:
            self._count(facts.usage_metadata, reading)
        if facts.error is not None:
            reading.failed(facts.error.status or facts.error.code, facts.error.message)

    @staticmethod
    def _count(usage: _Usage, reading: Reading) -> None:
        if usage.prompt_token_count is not None:
            reading.input = count(usage.prompt_token_count + (usage.tool_use_prompt_token_count or 0))
            reading.output = reading.output or 0
        if usage.candidates_token_count is not None or usage.thoughts_token_count is not None:
            reading.output = count((usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0))
        if usage.thoughts_token_count is not None:
            reading.reasoning = count(usage.thoughts_token_count)
        if usage.cached_content_token_count is not None:
            reading.cache_read = count(usage.cached_content_token_count)
