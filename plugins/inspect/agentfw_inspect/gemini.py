"""Gemini's dialect: generateContent, streamGenerateContent (as events, or as a JSON array), embedContent.

Each piece has `usageMetadata`, growing: the last wins. `promptTokenCount` counts the cached ones, too; what was thought is not
among `candidatesTokenCount`.
"""

from __future__ import annotations

import msgspec

from .reading import Reading, count, size


class _Usage(msgspec.Struct, rename="camel"):
    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None


class _Content(msgspec.Struct):
    parts: msgspec.Raw = msgspec.Raw()


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None


class _Error(msgspec.Struct):
    status: str | None = None
    message: str | None = None
    code: int | str | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None


class _Piece(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: _Usage | None = None
    model_version: str | None = None
    prompt_feedback: _Feedback | None = None
    error: _Error | None = None


_piece = msgspec.json.Decoder(_Piece)
_pieces = msgspec.json.Decoder(list[_Piece])
_usage = msgspec.json.Decoder(_Usage)


class Gemini:
    """A Dialect."""

    __slots__ = ()

    def document(self, data: bytes, reading: Reading) -> None:
        pieces = _pieces.decode(data) if data.lstrip()[:1] == b"[" else [_piece.decode(data)]  # a stream's error is in a list
        for piece in pieces:
            self._add(piece, reading)
        reading.complete = True

    def tail(self, data: bytes, reading: Reading) -> None:
        self._count(_usage.decode(data), reading)

    def event(self, kind: bytes, data: bytes, reading: Reading) -> None:
        self._add(_piece.decode(data), reading)

    def end(self, reading: Reading) -> None:
        """Only a finish reason is one."""

    def _add(self, piece: _Piece, reading: Reading) -> None:
        reading.named(piece.model_version)
        for candidate in piece.candidates or ():
            if candidate.content is not None:
                reading.content(size(candidate.content.parts))
            if candidate.finish_reason:
                reading.complete = True
        if piece.prompt_feedback is not None and piece.prompt_feedback.block_reason:
            reading.complete = True
            reading.failed(piece.prompt_feedback.block_reason, "the prompt was blocked")
        if piece.usage_metadata is not None:
            self._count(piece.usage_metadata, reading)
        if piece.error is not None:
            reading.failed(piece.error.status or piece.error.code, piece.error.message)

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
