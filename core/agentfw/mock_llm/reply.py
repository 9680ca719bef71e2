"""What both dialects give the server to send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from .usage import PromptCache, Usage


@dataclass(slots=True)
class Reply:
    """`events` None: a plain answer with `body`. Otherwise a server-sent event stream: (bytes, tokens they take the time of)."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    events: Sequence[tuple[bytes, int]] | None = None
    tokens: int = 0
    """Generated: time that the answer takes, and counted."""
    model: str = ""
    usage: Usage | None = None
    """What the call is billed for, told to the client or not."""
    cut_after: int | None = None
    """Break the connection off after so many events."""


@dataclass(slots=True)
class Call:
    """A request as the dialects see it. Header names are lower-case bytes; the last of a repeated one is kept."""

    number: int
    method: str
    path: str
    headers: Mapping[bytes, bytes]
    body: bytes
    cache: PromptCache
    """The server's."""


def json_reply(status: int, document: object, **headers: str) -> Reply:
    return Reply(status, msgspec.json.encode(document), {"content-type": "application/json", **headers})
