"""Secrets that a server sends back: masked, in heads and in bodies as they stream.

A secret is masked by as many asterisks, however the body is cut into pieces: what could be the beginning of one is held back
until it is decided. gzip and deflate are undone first (requests on such routes ask for identity, but a server may not care).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable

from agentfw.errors import ProtocolError

EXPANSION = 16 << 20
"""Bytes that one piece of a compressed body may become."""


class EncodedBody(ProtocolError):
    """A body that cannot be looked into: its compression is broken, or a bomb. Ends the response (502 if it has not begun)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 502)


class Redactor:
    """A BodyTransform. `pattern`: an alternation of `values`, longest first; `count` is told how many were masked."""

    __slots__ = ("_count", "_held", "_pattern", "_values")
    same_length = True

    def __init__(self, pattern: re.Pattern[bytes], values: tuple[bytes, ...], count: Callable[[int], None]) -> None:
        self._pattern = pattern
        self._values = values
        self._count = count
        self._held = b""

    def __call__(self, piece: bytes, last: bool) -> bytes:
        data = self._held + piece if self._held else piece
        cut = len(data) if last else len(data) - self._undecided(data)
        if cut < len(data):
            for match in self._pattern.finditer(data):  # one that reaches into what would be held is decided, too
                if match.start() < cut:
                    cut = max(cut, match.end())
        self._held = data[cut:]
        out, masked = self._pattern.subn(_mask, data[:cut])
        if masked:
            self._count(masked)
        return out

    def _undecided(self, data: bytes) -> int:
        """Length of the longest end of `data` that some value begins with, but for whole values."""
        longest = max(map(len, self._values)) - 1
        for size in range(min(longest, len(data)), 0, -1):
            end = data[-size:]
            if any(len(value) > size and value.startswith(end) for value in self._values):
                return size
        return 0


def _mask(match: re.Match[bytes]) -> bytes:
    return b"*" * len(match[0])


class Inflate:
    """A BodyTransform that undoes gzip or deflate. EncodedBody if the data is not that."""

    __slots__ = ("_head", "_stream")

    def __init__(self) -> None:
        self._head = b""
        self._stream: zlib._Decompress | None = None

    def __call__(self, piece: bytes, last: bool) -> bytes:
        if self._stream is None:
            piece = self._head + piece
            if len(piece) < 2 and not last:
                self._head = piece
                return b""
            # gzip, zlib or, as some send "deflate", neither's head (RFC 1950 2.2: a zlib head is a multiple of 31)
            zlib_head = len(piece) >= 2 and piece[0] & 15 == 8 and int.from_bytes(piece[:2]) % 31 == 0
            self._stream = zlib.decompressobj(wbits=47 if zlib_head or piece.startswith(b"\x1f\x8b") else -15)
        try:
            out = self._stream.decompress(piece, EXPANSION)
        except zlib.error as error:
            raise EncodedBody(f"broken compression: {error}") from None
        if self._stream.unconsumed_tail:
            raise EncodedBody(f"a piece of the body becomes more than {EXPANSION >> 20} MiB")
        if self._stream.unused_data:
            raise EncodedBody("data behind the compressed body")
        return out
