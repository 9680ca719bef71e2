"""What a response says of its call, whatever the dialect: filled in piece by piece, by `openai`, `anthropic` or `gemini`."""

from __future__ import annotations

from typing import Protocol

import msgspec
from agentfw.reports import shown

MAX_COUNT = 10**12
"""A server's counts are taken up to this."""
MAX_ERROR = 200
"""Characters of an error's message that are kept."""
MAX_MODEL = 128
DENSE, OBJECTS = 8, 1 << 14
"""A document with more than one object in so many bytes, or with more than so many, is read without lists of objects."""
SMALL = 1 << 16
"""Bytes that need not be looked at for that: they take some milliseconds at most."""


class Reading(msgspec.Struct, eq=False, gc=False):
    """The sum of what was read. Counts are None until the server says them; the last word counts."""

    model: str = ""
    input: int | None = None
    """All that went in, the cache's part too."""
    output: int | None = None
    """All that came out, reasoning too."""
    cache_read: int | None = None
    cache_write: int | None = None
    cache_write_1h: int = 0
    """Those of `cache_write` that are kept for an hour, which has another price."""
    reasoning: int | None = None
    content_events: int = 0
    """Pieces of generated content seen."""
    content_size: int = 0
    """Their bytes, about."""
    complete: bool = False
    error_type: str = ""
    error: str = ""

    def named(self, model: str | None) -> None:
        if model and model != self.model:
            self.model = shown(model, MAX_MODEL)

    def content(self, size: int) -> None:
        if size > 0:
            self.content_events += 1
            self.content_size += size

    def failed(self, kind: object, message: object) -> None:
        """The first error is kept."""
        if not self.error_type:
            self.error_type = shown(str(kind or "error"), 64)
            self.error = shown(str(message or ""), MAX_ERROR)


class Dialect(Protocol):
    """One response's reader. What it is given may be anything; msgspec.DecodeError (and so ValidationError) if it is not what it
    should be."""

    def document(self, data: bytes, reading: Reading) -> None:
        """A whole JSON body."""

    def event(self, kind: bytes, data: bytes, reading: Reading) -> None:
        """One event of a stream."""

    def tail(self, data: bytes, reading: Reading) -> None:
        """The usage object of a document that was too large to be kept."""

    def end(self, reading: Reading) -> None:
        """The stream has ended as HTTP has it."""


def count(value: int) -> int:
    """A server's number, made harmless."""
    return value if 0 <= value <= MAX_COUNT else MAX_COUNT if value > 0 else 0


def crowded(data: bytes) -> bool:
    """It may have so many objects in lists that to make them would take long, which all agents wait for: a second and more for
    4 MB of `{},`."""
    return len(data) > SMALL and data.count(b"{") > min(len(data) // DENSE, OBJECTS)


def size(raw: msgspec.Raw) -> int:
    """Bytes in a JSON value that is content: 0 for null, "", [], {}; without the quotes."""
    length = len(raw)
    return 0 if length <= 2 or (length == 4 and bytes(raw) == b"null") else length - 2
