"""The bodies of a call as they pass: what the request asks for, what the response says. They look, and change and delay nothing.

What is kept is bounded: REQUEST_MAX of a request, DOCUMENT_MAX of a plain response (and the end of a larger one, where usage
stands), one unfinished event of a stream.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Callable, Iterator

import msgspec
from agentfw.reports import shown

from .anthropic import Anthropic
from .gemini import Gemini
from .openai import OpenAI
from .reading import MAX_MODEL, Dialect, Reading
from .sse import ArrayStream, EventStream

REQUEST_MAX = 1 << 20
ROOM = 16 << 20
"""Bytes of one agent's unfinished requests that are kept; of those beyond, only the beginning is read."""
DOCUMENT_MAX = 1 << 20
TAIL = 16 << 10
EXPANSION, RATIO = 4 << 20, 64
"""Bytes that a compressed body may become, and so many more for each byte that came: what providers send becomes ten or thirty
times as long."""
UNREAD = 16 << 10
"""Bytes of a body that need not be read at once: not between other things that have to be done, but when all is over."""
MARKS = 1 << 17
"""Lines and objects, or brackets and quotes, in what a piece of one becomes: each takes its time, which all agents wait for.
(4 KB can become 4 million lines; what providers send has some 100 bytes a line.)"""
USAGES = 16
"""Places in the end of a large document that may be its usage; of more the last ones are tried."""
CHARACTERS_A_TOKEN = 4
"""Of an estimate: about what providers say of English."""
MEDIA_TOKENS = 1000
"""Of an estimate: for an image or a file in the request."""

_USAGE = re.compile(rb'(?<!\\)"usage(?:Metadata)?"\s*:\s*(?=\{)')
_BASE64 = re.compile(rb"[A-Za-z0-9+/=_\\-]+")
"""No marker's last character is one of these, so that no byte is found behind two of them. (Nor is a blank: no prompt is.)"""
_MODEL = re.compile(rb'\s*\{\s*(?:"[a-z_]{1,32}"\s*:\s*[\w.+-]{1,32}\s*,\s*){0,16}"model"\s*:\s*("[^"\\]{1,256}")')
"""At the beginning of a request, behind nothing but numbers and truth values."""


class _Generation(msgspec.Struct, rename="camel"):
    max_output_tokens: int | None = None


class _Request(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    contents: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()
    requests: msgspec.Raw = msgspec.Raw()
    systemInstruction: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    generationConfig: _Generation | None = None


_request = msgspec.json.Decoder(_Request)


class Room:
    """One agent's for the bodies that it has not sent to their end."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ROOM


class RequestWatch:
    """A BodyTransform that changes nothing. `done` is called when all is known that will be."""

    same_length = True
    __slots__ = ("_done", "_kept", "_max_tokens", "_model", "_request", "_room", "_size", "_streamed", "_text", "_unread")

    def __init__(self, readable: bool, done: Callable[[], None] | None, room: Room | None = None) -> None:
        """`readable`: not compressed. `done` None: nobody waits for what it says. `release()` must follow."""
        self._kept: bytearray | None = bytearray() if readable else None
        self._room = room or Room()
        self._size = 0
        self._text: int | None = None
        self._done = done
        self._unread = b""
        """Whole, and yet to be read."""
        self._request: _Request | None = None
        """That, read, but for what only estimates need."""
        self._model = ""
        self._max_tokens: int | None = None
        self._streamed = False

    @property
    def model(self) -> str:
        if self._unread:
            self._settle()
        return self._model

    @property
    def max_tokens(self) -> int | None:
        self._estimate()
        return self._max_tokens

    @property
    def streamed(self) -> bool:
        if self._unread:
            self._settle()
        return self._streamed

    def __call__(self, piece: bytes, last: bool) -> bytes:
        size = len(piece)
        kept = self._kept
        if last and self._done is None and not self._size and size <= UNREAD and kept is not None and size <= self._room.left:
            self._size = size  # PERF: what comes at once and can wait, as nearly all does, by the shortest way
            self._kept = None
            self._unread = piece
            self._room.left -= size
            return piece
        self._size += size
        if kept is not None:
            if last or self._size > REQUEST_MAX or len(piece) > self._room.left:
                self.release()
                if kept:
                    kept += piece
                self._take(bytes(kept) if kept else piece, whole=last)
            else:
                kept += piece  # not a list of pieces: an agent may send one byte at a time, and each would take 42
                self._room.left -= len(piece)
        return piece

    def _take(self, data: bytes, whole: bool) -> None:
        if self._done is not None:
            self._read(data, whole)
            self._done()
        elif whole and len(data) <= min(UNREAD, self._room.left):
            self._unread = data
            self._room.left -= len(data)
        else:
            self._read(data, whole)

    def _settle(self) -> None:
        """Read what has not been."""
        data = self._unread
        if data:
            self._unread = b""
            self._room.left += len(data)
            self._decode(data)

    def _estimate(self) -> None:
        """Also what only estimates need."""
        self._settle()
        request, self._request = self._request, None
        if request is not None:
            self._measure(request)

    def release(self) -> None:
        """Nothing more is kept. Idempotent."""
        self._request = None
        if self._unread:
            self._room.left += len(self._unread)
            self._unread = b""
        if self._kept is not None:
            self._room.left += len(self._kept)
            self._kept = None

    @property
    def tokens(self) -> int:
        """An estimate of the prompt's."""
        self._estimate()
        text = self._size if self._text is None else self._text
        return -(-text // CHARACTERS_A_TOKEN)

    def _read(self, data: bytes, whole: bool) -> None:
        if not whole:  # the model stands at the beginning, or the response will say it
            found = _MODEL.match(data, 0, 4096)
            if found is not None:
                with contextlib.suppress(msgspec.DecodeError):  # control characters, or no UTF-8
                    self._model = shown(msgspec.json.decode(found[1], type=str), MAX_MODEL)
            return
        self._decode(data)
        request, self._request = self._request, None
        if request is not None:
            self._measure(request)

    def _decode(self, data: bytes) -> None:
        try:
            self._request = request = _request.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return
        self._model = shown(request.model or "", MAX_MODEL)
        self._streamed = bool(request.stream)

    def _measure(self, request: _Request) -> None:
        limits = [request.max_tokens, request.max_completion_tokens, request.max_output_tokens]
        if request.generationConfig is not None:
            limits.append(request.generationConfig.max_output_tokens)
        given = [limit for limit in limits if limit is not None and limit > 0]
        self._max_tokens = max(given) if given else None
        prompts = (request.messages, request.input, request.prompt, request.contents, request.content, request.requests)
        parts = (*prompts, request.system, request.systemInstruction, request.instructions, request.tools)
        self._text = sum(_text_size(part) for part in parts if part)


def _text_size(part: msgspec.Raw) -> int:
    """Bytes that count as text: encoded images and files count for MEDIA_TOKENS each."""
    size, most = len(part), MEDIA_TOKENS * CHARACTERS_A_TOKEN
    if size <= most:
        return size
    data = bytes(part)
    for marker in (b";base64,", b'"data":"', b'"data": "'):
        at = 0
        while (start := data.find(marker, at)) >= 0:
            start += len(marker)
            encoded = _BASE64.match(data, start)
            at = start if encoded is None else encoded.end()
            size -= max(at - start - most, 0)
    return size


Events = EventStream | ArrayStream


class ResponseWatch:
    """An observer of a response's body. `clock` gives loop.time(); nothing that a server sends makes it raise."""

    __slots__ = (
        "_clock", "_dialect", "_document", "_inflate", "_reading", "_size", "_stream", "_unread", "_unreadable",
        "first_token",
    )  # fmt: skip

    def __init__(self, provider: str, operation: str, pieces: bool, reading: Reading, clock: Callable[[], float]) -> None:
        self._reading = reading
        self.first_token: float | None = None
        """clock() at the first piece of content of a stream."""
        self._unreadable = 0
        self._clock = clock
        self._dialect: Dialect | None = _dialect(provider, operation)
        self._stream: Events | None = ArrayStream() if pieces else None
        self._document = bytearray()
        self._size = 0
        self._inflate: Inflate | None = None
        self._unread = b""
        """A whole document that has yet to be read."""

    @property
    def reading(self) -> Reading:
        """What it says."""
        self.settle()
        return self._reading

    @property
    def unreadable(self) -> int:
        """Documents, events and bodies that were not what they should be."""
        self.settle()
        return self._unreadable

    def settle(self) -> None:
        """Read what has not been: it is over."""
        data, self._unread = self._unread, b""
        if data:
            self._read(data)

    def begin(self, content_type: str, encodings: list[str]) -> None:
        """By the head's `Content-Type` and `Content-Encoding`."""
        kind = content_type.partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            self._stream = EventStream()
        elif self._stream is not None and kind != "application/json":
            self._stream = None
        encodings = [encoding for encoding in encodings if encoding != "identity"]
        if len(encodings) == 1 and encodings[0] in ("gzip", "x-gzip", "deflate"):
            self._inflate = Inflate()
        elif encodings:
            self._give_up()

    @property
    def streamed(self) -> bool:
        return self._stream is not None

    @property
    def oversize(self) -> int:
        return 0 if self._stream is None else self._stream.oversize

    def _give_up(self) -> None:
        self._unreadable += 1
        self._dialect = None
        self._document = bytearray()
        self._stream = None if self._stream is None else type(self._stream)()

    def __call__(self, piece: bytes, last: bool) -> None:
        if self._dialect is None:
            return
        if self._inflate is None:
            self._see(piece, last)
            return
        try:
            for part in self._inflate(piece):
                if len(part) > MARKS and self._stream is not None and _marks(part, self._stream) > MARKS:
                    raise ValueError("a piece of the body has too much in it")
                self._see(part, False)
        except (zlib.error, ValueError):
            self._give_up()
        else:
            self._see(b"", last)

    def _see(self, piece: bytes, last: bool) -> None:
        if self._stream is not None:
            for kind, data in self._stream.feed(piece, last):
                self._event(kind, data)
            if last and self._dialect is not None:
                self._dialect.end(self._reading)
        else:
            self._gather(piece, last)

    def _event(self, kind: bytes, data: bytes) -> None:
        assert self._dialect is not None
        try:
            self._dialect.event(kind, data, self._reading)
        except (msgspec.DecodeError, RecursionError):
            self._unreadable += 1
        if self.first_token is None and self._reading.content_events:
            self.first_token = self._clock()

    def _gather(self, piece: bytes, last: bool) -> None:
        assert self._dialect is not None
        self._size += len(piece)
        if not last:
            self._document += piece if self._size <= DOCUMENT_MAX else piece[-TAIL:]
            if self._size > DOCUMENT_MAX:
                del self._document[:-TAIL]
            return
        data = piece
        if self._document:
            self._document += piece
            data = bytes(self._document)
            self._document = bytearray()
        if len(data) <= UNREAD:
            self._unread = data
        else:
            self._read(data)

    def _read(self, data: bytes) -> None:
        assert self._dialect is not None
        try:
            if self._size <= DOCUMENT_MAX:
                self._dialect.document(data, self._reading)
            else:
                self._tail(data[-TAIL:])
        except (msgspec.DecodeError, RecursionError):
            self._unreadable += 1

    def _tail(self, data: bytes) -> None:
        """Quotes inside text are escaped, so this is a key; the last one is the document's."""
        assert self._dialect is not None
        self._reading.complete = True
        for found in reversed(list(_USAGE.finditer(data))[-USAGES:]):
            end = _object_end(data, found.end())
            if end:
                self._dialect.tail(data[found.end() : end], self._reading)
                return
        self._unreadable += 1


def _marks(data: bytes, stream: Events) -> int:
    """How many times taking it apart will have to stop."""
    marks = (b"\n", b"\r", b"{") if isinstance(stream, EventStream) else (b'"', b"{", b"}", b"[", b"]", b"\\")
    return sum(map(data.count, marks))


def _object_end(data: bytes, at: int) -> int:
    """Behind the object that begins at `at` and has no braces in its text; 0: it does not end."""
    depth = 0
    for i in range(at, len(data)):
        depth += (data[i] == 123) - (data[i] == 125)
        if not depth:
            return i + 1
    return 0


def read_document(provider: str, operation: str, data: bytes, reading: Reading) -> int:
    """A plain response's whole body, if there is something in it; 1: it was not what it should be."""
    try:
        if data:
            _dialect(provider, operation).document(data, reading)
    except (msgspec.DecodeError, RecursionError):
        return 1
    return 0


def _dialect(provider: str, operation: str) -> Dialect:
    if provider == "openai":
        return OpenAI(operation == "response")
    return Anthropic() if provider == "anthropic" else Gemini()


class Inflate:
    """gzip or deflate undone, of a copy. zlib.error, or ValueError for a bomb."""

    __slots__ = ("_head", "_room", "_stream")

    def __init__(self) -> None:
        self._head = b""
        self._room = EXPANSION
        self._stream: zlib._Decompress | None = None

    def __call__(self, piece: bytes) -> Iterator[bytes]:
        if self._stream is None:
            piece = self._head + piece
            if len(piece) < 2:
                self._head = piece
                return
            # gzip, zlib or, as some send "deflate", neither's head (RFC 1950 2.2: a zlib head is a multiple of 31)
            zlib_head = piece[0] & 15 == 8 and int.from_bytes(piece[:2]) % 31 == 0
            self._stream = zlib.decompressobj(wbits=47 if zlib_head or piece.startswith(b"\x1f\x8b") else -15)
        if self._stream.eof:
            return  # as clients do with what comes behind the end; zlib would keep all of it
        self._room = min(self._room, EXPANSION) + len(piece) * RATIO
        out = self._stream.decompress(piece, self._room)
        self._room -= len(out)
        if self._stream.unconsumed_tail or not self._room:  # (of 0 decompress() would take that there is no limit)
            raise ValueError("the body becomes too much")
        yield out
