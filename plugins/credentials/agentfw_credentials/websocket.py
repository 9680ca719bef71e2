"""Secrets in what a WebSocket server sends (RFC 6455): masked in the payloads, whose length does not change.

A message that comes in several frames is looked at as one text; its end decides what was held back, so nothing waits longer than
its message. Frames of extensions, which nobody asked for on these routes, and masked ones, which servers must not send, end the
connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from .redact import EncodedBody, Redactor
from .search import PART, Needles

MAX_CONTROL = 125
MAX_AHEAD = 65536
"""Bytes of frame heads and control frames kept while the text of a message is undecided."""


class WebSocketRedactor:
    """A transform for a switched connection. EncodedBody for what cannot be looked into."""

    __slots__ = ("_ahead", "_buffer", "_control", "_count", "_fed", "_final", "_inserts", "_left", "_message", "_needles", "_out")
    same_length = True

    def __init__(self, needles: Callable[[], Needles], count: Callable[[int], None]) -> None:
        self._needles = needles
        self._count = count
        self._buffer = b""  # of a frame's head, or of a control frame
        self._left = 0
        """Bytes of the current frame's payload still to come."""
        self._final = True
        self._control = b""
        """The head of a control frame whose payload is being collected in `_buffer`."""
        self._message = Redactor(needles, count)
        self._fed = 0
        self._out = 0
        """Bytes of text that went into and came out of `_message`."""
        self._inserts: deque[tuple[int, bytes]] = deque()
        """Heads and control frames, and behind how many bytes of text they stand."""
        self._ahead = 0

    def parts(self, piece: bytes, last: bool) -> Iterator[bytes]:
        """Thousands of frames, and text in escapes, take long: they must not keep other agents waiting."""
        for at in range(0, max(len(piece), 1), PART):
            yield self(piece[at : at + PART], last and at + PART >= len(piece))

    def __call__(self, piece: bytes, last: bool) -> bytes:
        out: list[bytes] = []
        data = self._buffer + piece if self._buffer else piece
        self._buffer = b""
        at = 0
        while at < len(data):
            if self._control:
                if len(data) - at < self._left:
                    break
                self._insert(self._control + Redactor(self._needles, self._count)(data[at : at + self._left], True), out)
                at += self._left
                self._control, self._left = b"", 0
            elif self._left:
                text = data[at : at + self._left]
                at += len(text)
                self._left -= len(text)
                self._text(text, out)
            else:
                end = self._head(data, at, out)
                if end == at:
                    break
                at = end
        self._buffer = data[at:]
        if last:  # the stream ends amid a frame: what there is of it
            self._final, self._left = True, 0
            self._text(b"", out)
            out.append(Redactor(self._needles, self._count)(self._control + self._buffer, True))
            self._buffer = self._control = b""
        return b"".join(out)

    def _head(self, data: bytes, at: int, out: list[bytes]) -> int:
        """Take a frame's head; -> where it ends, `at` if it is not all there."""
        if len(data) - at < 2:
            return at
        first, second = data[at], data[at + 1]
        if first & 0x70:
            raise EncodedBody("a WebSocket frame of an extension that was not asked for")
        if second & 0x80:
            raise EncodedBody("a masked WebSocket frame from a server")
        size = {126: 2, 127: 8}.get(second, 0)
        end = at + 2 + size
        if len(data) < end:
            return at
        self._left = int.from_bytes(data[at + 2 : end]) if size else second
        if first & 8:
            if self._left > MAX_CONTROL or not first & 0x80:
                raise EncodedBody("a WebSocket control frame that is too long or in parts")
            if self._left:
                self._control = data[at:end]
            else:
                self._insert(data[at:end], out)
            return end
        if first & 15 and not self._final:
            raise EncodedBody("a WebSocket message inside another one")
        self._final = bool(first & 0x80)
        self._insert(data[at:end], out)
        if not self._left:
            self._text(b"", out)
        return end

    def _insert(self, data: bytes, out: list[bytes]) -> None:
        if self._fed == self._out:
            out.append(data)
            return
        self._ahead += len(data)
        if self._ahead > MAX_AHEAD:
            raise EncodedBody("too many WebSocket frames without text")
        self._inserts.append((self._fed, data))

    def _text(self, text: bytes, out: list[bytes]) -> None:
        end = self._final and not self._left  # of the message
        self._fed += len(text)
        text = self._message(text, end)
        while self._inserts and self._inserts[0][0] <= self._out + len(text):
            place, data = self._inserts.popleft()
            out += (text[: place - self._out], data)
            text = text[place - self._out :]
            self._out = place
            self._ahead -= len(data)
        out.append(text)
        self._out += len(text)
