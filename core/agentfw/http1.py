"""HTTP/1 heads: strict parsing, and writing them anew. No I/O; bodies are `agentfw.relay`'s.

A head is parsed from one private copy and never forwarded as it came: what goes out is written by `RequestHead.encode()`.
Anything that two parsers could read differently is a ProtocolError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import ProtocolError

MAX_HEAD = 65536
"""Bytes of a head, up to and with the empty line."""
MAX_HEADERS = 200
MAX_LINE = 4096
"""Bytes of a chunk's size line or a trailer field."""
MAX_TRAILER = 8192

HOP_BY_HOP = frozenset({"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
"trailer",
                        "transfer-encoding", "upgrade"})  # fmt: skip

_ALIKE = frozenset(name.replace("-", "_") for name in HOP_BY_HOP | {"content-length", "content-encoding"} if "-" in name)
"""Servers behind CGI and WSGI take `Transfer_Encoding` for `Transfer-Encoding`."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\x00-\x08\x0a-\x1f\x7f]*)\Z")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*\Z")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([\x21-\x7e]{1,32768}) HTTP/([0-9]\.[0-9])\Z")
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?\Z")
_TARGET = re.compile(r"[\x21-\x7e]+\Z")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e]{0,256})?\Z")
_LENGTH = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z")

BodyTransform = Callable[[bytes, bool], bytes]
"""(piece, it is the last) -> what to pass on; may hold bytes back until the next piece, must give all at the last.

One that may make much out of little, or take long over it, has a method `parts(piece, last)` besides, an iterator of the same in
parts: other agents have their turns between them, and each waits until the agent has taken the one before. The
parts of a piece of a request's body are sent together."""


def transformed(transforms: Sequence[BodyTransform], piece: bytes, last: bool) -> Iterator[tuple[bytes, bool]]:
    """(part, it is the last) of what the transforms, one after the other, make of a piece: one, unless one has `parts`."""
    for number, transform in enumerate(transforms):
        parts = getattr(transform, "parts", None)
        if parts is None:
            piece = transform(piece, last)
            continue
        held: bytes | None = None  # only the last part is the last
        for part in parts(piece, last):
            if held is not None:
                yield from transformed(transforms[number + 1 :], held, False)
            held = part
        yield from transformed(transforms[number + 1 :], held or b"", last)
        return
    yield piece, last


BodyObserver = Callable[[bytes, bool], None]
"""(piece, it is the last): told each piece, the last one too if it is empty."""


class Headers:
    """Header fields in the order they came; names compare without case. Values are text (latin-1 on the wire).

    `repr()` shows names only: values may be secret.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        self._items: list[tuple[str, str, str]] = []
        """(name in lower case, name, value)"""
        for name, value in items:
            self.add(name, value)

    @classmethod
    def _trusted(cls, items: list[tuple[str, str, str]]) -> Headers:
        self = cls.__new__(cls)
        self._items = items
        return self

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of that name."""
        name = name.lower()
        for lower, _, value in self._items:
            if lower == name:
                return value
        return default

    def get_all(self, name: str) -> list[str]:
        name = name.lower()
        return [value for lower, _, value in self._items if lower == name]

    def among(self, names: frozenset[str]) -> list[tuple[str, str]]:
        """(name, value) of all fields that have one of these names, in lower case."""
        return [(lower, value) for lower, _, value in self._items if lower in names]

    def picked(self, wanted: Mapping[str, object]) -> list[tuple[str, str]]:
        """(name, value) of all fields for whose name, in lower case, `wanted[name]` is something that counts as true."""
        return [(lower, value) for lower, _, value in self._items if wanted[lower]]

    def tokens(self, name: str) -> list[str]:
        """The comma-separated elements of all fields of that name, lower case."""
        return [part for value in self.get_all(name) for part in (p.strip(" \t").lower() for p in value.split(",")) if part]

    def add(self, name: str, value: str) -> None:
        """Append a field. ValueError if it could not be sent as one line (the message does not show the value)."""
        self._items.append(_field(name, value))

    def set(self, name: str, value: str) -> None:
        """Replace the first field of that name in place and remove the others; append if there is none."""
        made = _field(name, value)
        lower, place, items = made[0], -1, self._items
        for at, item in enumerate(items):
            if item[0] != lower:
                continue
            if place >= 0:  # a second one
                items[at:] = [item for item in items[at:] if item[0] != lower]
                return
            items[at] = made
            place = at
        if place < 0:
            items.append(made)

    def remove(self, *names: str) -> None:
        gone = {name.lower() for name in names}
        self._items = [item for item in self._items if item[0] not in gone]

    def copy(self) -> Headers:
        return Headers._trusted(list(self._items))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter([(name, value) for _, name, value in self._items])

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and list(self) == list(other)

    def strip_hop_by_hop(self) -> None:
        """Remove what concerns one connection only: HOP_BY_HOP and whatever `Connection` names."""
        gone = HOP_BY_HOP.union(self.tokens("connection"))
        self._items = [item for item in self._items if item[0] not in gone]

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"<Headers {', '.join(name for _, name, _ in self._items)}>"


def _field(name: str, value: str) -> tuple[str, str, str]:
    """As `Headers` keeps it, checked."""
    if not _TOKEN.match(name):
        raise ValueError(f"not a header name: {ascii(name)[:80]}")
    if not _VALUE.match(value) or not _latin1(value):
        raise ValueError(f"the value of header {name} has characters that a header cannot carry")
    return name.lower(), name, value.strip(" \t")


def _latin1(value: str) -> bool:
    return value.isascii() or max(value) <= "\xff"


@dataclass(slots=True, repr=False)
class RequestHead:
    """`target` is origin-form ("/path?query"), or "*" for OPTIONS, once the relay has it; the host is the Destination's, not
    here.

    `version` is the agent's ("1.0", "1.1"); 1.1 is sent on. `transforms`: as a response's, for the request's body; a request
    without a body calls none.
    """

    method: str
    target: str
    headers: Headers
    version: str = "1.1"
    transforms: list[BodyTransform] = field(default_factory=list)
    exchange: int = 0
    """Number of the exchange, unique in the process: `ExchangeReport.exchange`."""
    upgrade: str | None = None
    """The protocol that the agent wants to switch to ("websocket"). A hook may set None: then it is not asked for."""

    def __repr__(self) -> str:
        return f"<RequestHead {self.method} {ascii(self.target.partition('?')[0])[:200]}>"

    def encode(self) -> bytes:
        """The wire form, HTTP/1.1. ValueError if a hook put something there that is not one line."""
        if not _TOKEN.match(self.method) or not _TARGET.match(self.target):
            raise ValueError("method or target cannot be sent")
        return _encode(f"{self.method} {self.target} HTTP/1.1", self.headers)


@dataclass(slots=True, repr=False)
class ResponseHead:
    """`transforms` are applied to the decoded (unchunked) body in order; when there are any, the relay frames the body itself,
    but keeps its Content-Length if all of them have a true attribute `same_length`: as many bytes out as in, in the end. After a
    switch of protocols (status 101) they get what the server sends from then on.

    `observers` are shown the body as it leaves for the agent, after all transforms; what they raise is logged, and ends their
    watch only. By then the head is as the agent gets it, but for its framing."""

    status: int
    reason: str
    headers: Headers
    version: str = "1.1"
    transforms: list[BodyTransform] = field(default_factory=list)
    observers: list[BodyObserver] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status}>"

    def encode(self) -> bytes:
        """The wire form, HTTP/1.1. ValueError as for requests."""
        if not 100 <= self.status <= 999 or not _VALUE.match(self.reason) or not _latin1(self.reason):
            raise ValueError("status or reason cannot be sent")
        return _encode(f"HTTP/1.1 {self.status} {self.reason}", self.headers)


def _encode(line: str, headers: Headers) -> bytes:
    lines = [line, *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def find_head_end(data: bytes | bytearray, limit: int = MAX_HEAD, seen: int = 0) -> int:
    """Bytes of the head at the start of `data`, its empty line included, or -1 if it is not complete yet.

    ProtocolError as soon as it can never become one: a line feed without its carriage return, an empty first line, too long.
    `seen`: so many bytes of it were looked at before, and gave -1: a head that comes byte by byte is not to be read from its
    beginning each time.
    """
    end = data.find(b"\r\n\r\n", max(seen - 3, 0))
    stop = len(data) if end < 0 else end + 4
    begin = seen - 1 if seen and data[seen - 1] == 13 else seen
    if data.count(b"\n", begin, stop) != data.count(b"\r\n", begin, stop):
        raise ProtocolError("a line feed without a carriage return in the head")
    if data[:2] == b"\r\n":
        raise ProtocolError("an empty line where a head should begin")
    if stop > limit:
        raise ProtocolError("the head is too long", 431)
    return stop if end >= 0 else -1


def parse_request(data: bytes) -> RequestHead:
    """A whole request head (from `find_head_end`). ProtocolError with the status to answer with."""
    lines = data[:-4].split(b"\r\n")
    match = _REQUEST_LINE.match(lines[0])
    if match is None:
        raise ProtocolError("bad request line")
    version = match[3].decode()
    if version not in ("1.0", "1.1"):
        raise ProtocolError(f"HTTP/{version} is not spoken here", 505)
    headers = _parse_fields(lines)
    if any("_" in lower and lower.replace("-", "_") in _ALIKE for lower, _, _ in headers._items):
        raise ProtocolError("a header that servers may take for one that frames the message")
    return RequestHead(match[1].decode(), match[2].decode(), headers, version)


def parse_response(data: bytes) -> ResponseHead:
    """A whole response head. ProtocolError (502)."""
    lines = data[:-4].split(b"\r\n")
    match = _STATUS_LINE.match(lines[0])
    if match is None:
        raise ProtocolError("bad status line", 502)
    try:
        headers = _parse_fields(lines)
    except ProtocolError as error:
        raise ProtocolError(str(error), 502) from None
    return ResponseHead(int(match[2]), (match[3] or b"").decode("latin-1"), headers, match[1].decode())


def _parse_fields(lines: list[bytes]) -> Headers:
    if len(lines) - 1 > MAX_HEADERS:
        raise ProtocolError("too many header fields", 431)
    items = []
    for line in lines[1:]:
        match = _FIELD.match(line)
        if match is None:  # folded lines, blanks before the colon, control characters, bare CR
            raise ProtocolError("bad header field")
        name = match[1].decode()
        items.append((name.lower(), name, match[2].strip(b" \t").decode("latin-1")))
    return Headers._trusted(items)


@dataclass(frozen=True, slots=True)
class Framing:
    """How a body is delimited. `length` None with `chunked` False: until the end of the stream (responses only)."""

    chunked: bool
    length: int | None

    @property
    def empty(self) -> bool:
        return self.length == 0 and not self.chunked


NO_BODY = Framing(False, 0)


def request_framing(head: RequestHead) -> Framing:
    """ProtocolError if two readers could disagree."""
    return _framing(head.headers, head.version, 400) or NO_BODY


def response_framing(head: ResponseHead, method: str) -> Framing:
    """Of a final response to `method`. Framing that makes no sense is refused where there is no body, too."""
    framing = _framing(head.headers, head.version, 502)
    if method == "HEAD" or head.status in (204, 304):
        return NO_BODY
    return framing or Framing(False, None)


def _framing(headers: Headers, version: str, status: int) -> Framing | None:
    codings = headers.get_all("transfer-encoding")
    lengths = headers.get_all("content-length")
    if codings:
        if lengths:
            raise ProtocolError("both Transfer-Encoding and Content-Length", status)
        if version != "1.1":
            raise ProtocolError("Transfer-Encoding in HTTP/1.0", status)
        if len(codings) > 1 or codings[0].lower() != "chunked":
            raise ProtocolError("a transfer coding other than chunked", 501 if status == 400 else status)
        return Framing(True, None)
    if lengths:
        if len(lengths) > 1 or not _LENGTH.match(lengths[0]):
            raise ProtocolError("bad Content-Length", status)
        return Framing(False, int(lengths[0]))
    return None


class BodyReader:
    """Takes a body off the bytes that carry it.

    `feed()` gives the decoded bytes; then `done` may be set, and `leftover` holds what came behind the body. Trailer fields are
    checked and dropped.
    """

    __slots__ = ("_buffer", "_left", "_state", "_status", "_trailer", "done", "framing", "leftover")

    def __init__(self, framing: Framing, status: int = 400) -> None:
        self.framing = framing
        self.done = framing.empty
        self.leftover = b""
        self._status = status
        self._left = framing.length or 0
        self._buffer = b""
        self._state = "size"
        self._trailer = 0

    def feed(self, data: bytes) -> bytes:
        """ProtocolError for bad chunks. Everything fed after `done` is leftover."""
        if self.done:
            self.leftover += data
            return b""
        if self.framing.chunked:
            return self._feed_chunked(data)
        if self.framing.length is None:
            return data
        body = data[: self._left]
        self._left -= len(body)
        if not self._left:
            self.done = True
            self.leftover = data[len(body) :]
        return body

    def end(self) -> None:
        """The stream ended. ProtocolError if the body did not."""
        if not self.done:
            if self.framing.chunked or self.framing.length is not None:
                raise ProtocolError("the body was cut off", self._status)
            self.done = True

    def _feed_chunked(self, data: bytes) -> bytes:
        buffer = self._buffer + data if self._buffer else data
        pieces = []
        at = 0
        while not self.done:
            if self._state == "data":
                piece = buffer[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._state = "end"
            if self._state == "end":
                if len(buffer) - at < 2:
                    if buffer[at:] not in (b"", b"\r"):
                        raise ProtocolError("a chunk is longer than its size", self._status)
                    break
                if buffer[at : at + 2] != b"\r\n":
                    raise ProtocolError("a chunk is longer than its size", self._status)
                at += 2
                self._state = "size"
            line = self._line(buffer, at)
            if line is None:
                break
            at += len(line) + 2
            if self._state == "size":
                match = _CHUNK.match(line)
                if match is None:
                    raise ProtocolError("bad chunk size", self._status)
                self._left = int(match[1], 16)
                self._state = "data" if self._left else "trailer"
            elif line:
                self._trailer += len(line)
                if _FIELD.match(line) is None or self._trailer > MAX_TRAILER:
                    raise ProtocolError("bad trailer", self._status)
            else:
                self.done = True
                self.leftover = buffer[at:]
                at = len(buffer)
        self._buffer = buffer[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _line(self, buffer: bytes, at: int) -> bytes | None:
        end = buffer.find(b"\n", at)
        if end < 0:
            if len(buffer) - at > MAX_LINE:
                raise ProtocolError("a line in a chunked body is too long", self._status)
            return None
        if end == at or buffer[end - 1] != 13 or end - at > MAX_LINE:
            raise ProtocolError("bad line in a chunked body", self._status)
        return buffer[at : end - 1]


def encode_chunk(data: bytes) -> bytes:
    """One chunk; b"" for no bytes (the last chunk is LAST_CHUNK)."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


LAST_CHUNK = b"0\r\n\r\n"
