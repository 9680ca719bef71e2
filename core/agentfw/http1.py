"""HTTP/1 heads: strict parsing, and writing them anew. No I/O; bodies are `agentfw.relay`'s.

A head is parsed from one private copy and never forwarded as it came: what goes out is written by `RequestHead.encode()`.
Anything that two parsers could read differently is a ProtocolError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from .errors import ProtocolError  # noqa: F401

MAX_HEAD = 65536
"""Bytes of a head, up to and with the empty line."""
MAX_HEADERS = 200

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*\Z")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*\Z")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([\x21-\x7e]{1,32768}) HTTP/([0-9]\.[0-9])\Z")
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?\Z")
_LENGTH = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z")

BodyTransform = Callable[[bytes, bool], bytes]
"""(piece, it is the last) -> what to pass on; may hold bytes back until the next piece, must give all at the last."""


class Headers:
    """Header fields in the order they came; names compare without case. Values are text (latin-1 on the wire).

    `repr()` shows names only: values may be secret.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        self._items: list[tuple[str, str]] = []
        for name, value in items:
            self.add(name, value)

    @classmethod
    def _trusted(cls, items: list[tuple[str, str]]) -> Headers:
        self = cls.__new__(cls)
        self._items = items
        return self

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of that name."""
        name = name.lower()
        for key, value in self._items:
            if key.lower() == name:
                return value
        return default

    def get_all(self, name: str) -> list[str]:
        name = name.lower()
        return [value for key, value in self._items if key.lower() == name]

    def tokens(self, name: str) -> list[str]:
        """The comma-separated elements of all fields of that name, lower case."""
        return [part for value in self.get_all(name) for part in (p.strip(" \t").lower() for p in value.split(",")) if part]

    def add(self, name: str, value: str) -> None:
        """Append a field. ValueError if it could not be sent as one line (the message does not show the value)."""
        if not _TOKEN.match(name):
            raise ValueError(f"not a header name: {ascii(name)[:80]}")
        if not _VALUE.match(value) or not _latin1(value):
            raise ValueError(f"the value of header {name} has characters that a header cannot carry")
        self._items.append((name, value.strip(" \t")))

    def set(self, name: str, value: str) -> None:
        """Replace the first field of that name in place and remove the others; append if there is none."""
        lower = name.lower()
        place = next((i for i, (key, _) in enumerate(self._items) if key.lower() == lower), None)
        self.add(name, value)
        if place is not None:
            self._items[place] = self._items.pop()
            self._items[place + 1 :] = [item for item in self._items[place + 1 :] if item[0].lower() != lower]

    def remove(self, name: str) -> None:
        name = name.lower()
        self._items = [item for item in self._items if item[0].lower() != name]

    def copy(self) -> Headers:
        return Headers._trusted(list(self._items))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(tuple(self._items))

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self._items == other._items

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"<Headers {', '.join(name for name, _ in self._items)}>"


def _latin1(value: str) -> bool:
    return value.isascii() or max(value) <= "\xff"


@dataclass(slots=True, repr=False)
class RequestHead:
    """`target` is origin-form ("/path?query") or "*" for OPTIONS; the host is the Destination's, not here."""

    method: str
    target: str
    headers: Headers
    version: str = "1.1"

    def __repr__(self) -> str:
        return f"<RequestHead {self.method} {ascii(self.target.partition('?')[0])[:200]}>"


@dataclass(slots=True, repr=False)
class ResponseHead:
    """`transforms` are applied to the decoded (unchunked) body in order; when there are any, the relay frames the body itself."""

    status: int
    reason: str
    headers: Headers
    version: str = "1.1"
    transforms: list[BodyTransform] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status}>"
