"""Secrets that a server sends back: masked by as many asterisks, in heads and in bodies as they stream.

What could be the beginning of one is held back until it is decided, so it does not matter how a body is cut into pieces. gzip and
deflate are undone first (requests on such routes ask for identity, but a server may not care).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

from agentfw.errors import ProtocolError

from .search import AGAIN, Needles, in_parts

INFLATED = 65536
"""Bytes of a part of what was compressed."""
EXPANSION = 16 << 20
"""Bytes that one piece of a compressed body may become."""


class EncodedBody(ProtocolError):
    """A body that cannot be looked into: its compression is broken, or a bomb. Ends the response (502 if it has not begun)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 502)


class Redactor:
    """A BodyTransform. `needles()`: what to mask, asked for each piece since secrets change; `count` is told how many were."""

    __slots__ = ("_again", "_count", "_held", "_needles", "_over")
    same_length = True

    def __init__(self, needles: Callable[[], Needles], count: Callable[[int], None]) -> None:
        self._needles = needles
        self._count = count
        self._held = b""
        self._again = 0
        """With fewer held and new bytes together nothing is decided, unless the new ones cannot go on with those held."""
        self._over = 0
        """So many bytes of those held belong to a secret that has begun before them."""

    def parts(self, piece: bytes, last: bool) -> Iterator[bytes]:
        return (self(part, end) for part, end in in_parts(piece, last))

    def __call__(self, piece: bytes, last: bool) -> bytes:
        data = self._held + piece if self._held else piece
        if not data:
            return data
        needles = self._needles()
        if len(data) < self._again and not last and needles.may_go_on(piece):
            self._held = data
            return b""
        found, begun = needles.scan(data, last)
        cut = len(data) - begun
        self._held = data[cut:]
        self._again = 2 * begun if begun > AGAIN else 0
        if not found and not self._over:
            return data[:cut] if begun else data
        out = bytearray(data[:cut])
        over = self._over
        out[: min(over, cut)] = b"*" * min(over, cut)
        masked = 0
        for start, end, _ in found:
            if start < cut:  # the others will be found again
                out[start : min(end, cut)] = b"*" * (min(end, cut) - start)
                over = max(over, end)
                masked += 1
        self._over = max(0, over - cut)
        if masked:
            self._count(masked)
        return bytes(out)


class Inflate:
    """A BodyTransform that undoes gzip (one member or several) or deflate. EncodedBody if the data is not that."""

    __slots__ = ("_head", "_members", "_stream")

    def __init__(self) -> None:
        self._head = b""
        self._stream: zlib._Decompress | None = None
        self._members = False

    def __call__(self, piece: bytes, last: bool) -> bytes:
        return b"".join(self.parts(piece, last))

    def parts(self, piece: bytes, last: bool) -> Iterator[bytes]:
        """As they come out, so that a bomb is not all in memory at once, and stops as soon as the agent takes no more."""
        size = 0
        while True:
            if self._stream is None or self._stream.eof:
                piece = self._head + piece
                self._head = b""
                if not piece or (len(piece) < 2 and not last):
                    self._head = piece
                    return
                self._begin(piece)
            assert self._stream is not None
            try:
                part = self._stream.decompress(piece, INFLATED)
            except zlib.error as error:
                raise EncodedBody(f"broken compression: {error}") from None
            size += len(part)
            if size > EXPANSION:
                raise EncodedBody(f"a piece of the body becomes more than {EXPANSION >> 20} MiB")
            if part:
                yield part
            piece = self._stream.unused_data or self._stream.unconsumed_tail
            if not piece and len(part) < INFLATED:
                return

    def _begin(self, piece: bytes) -> None:
        gzip = piece.startswith(b"\x1f\x8b")
        if self._stream is not None and not (self._members and gzip):
            raise EncodedBody("data behind the compressed body")
        # gzip, zlib or, as some send "deflate", neither's head (RFC 1950 2.2: a zlib head is a multiple of 31)
        zlib_head = len(piece) >= 2 and piece[0] & 15 == 8 and int.from_bytes(piece[:2]) % 31 == 0
        self._stream = zlib.decompressobj(wbits=47 if zlib_head or gzip else -15)
        self._members = gzip
