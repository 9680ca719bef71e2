"""Taking streams apart as they come, in whatever pieces: server-sent events, and the elements of a JSON array.

Both look only: nothing is held back from the agent. Both keep at most one unfinished item, and of bounded size.
"""

from __future__ import annotations

import re

MAX_EVENT = 4 << 20
"""Bytes of an event's data, or of an element, that are kept. Larger ones are passed over and counted."""
_BOM = b"\xef\xbb\xbf"


class EventStream:
    """Server-sent events (HTML living standard, section 9.2.6: lines end with CRLF, LF or CR)."""

    __slots__ = ("_after_cr", "_data", "_event", "_held", "_size", "_skip_line", "_started", "oversize")

    def __init__(self) -> None:
        self._held = bytearray()
        """Of the line that has no end yet. (Not a list of pieces: a server may send two bytes at a time: each would take 43.)"""
        self._size = 0
        """Bytes of the event's lines so far."""
        self._data: list[bytes] = []
        self._event = b""
        self._skip_line = False
        """The rest of the line is passed over: the event has got too large."""
        self._after_cr = False
        """The last byte was a CR, which has ended its line; a LF now belongs to it."""
        self._started = False
        self.oversize = 0
        """Events that were passed over."""

    def feed(self, piece: bytes, last: bool) -> list[tuple[bytes, bytes]]:
        """The events (type, data) that are complete now. An event without the empty line at its end is none."""
        found: list[tuple[bytes, bytes]] = []
        if self._after_cr and piece:
            self._after_cr = False
            if piece[0] == 10:
                piece = piece[1:]
        if b"\r" in piece:
            self._after_cr = piece[-1] == 13
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not piece:
            return found
        lines = piece.split(b"\n")
        rest = lines.pop()
        for line in lines:
            if self._held:
                line = bytes(self._held + line)
                self._held.clear()
            if self._skip_line:
                self._skip_line = False
            elif line:
                self._line(line)
            else:
                self._dispatch(found)
        if rest and not self._skip_line:
            self._hold(rest)
        return found

    def _hold(self, rest: bytes) -> None:
        self._held += rest
        if len(self._held) + self._size > MAX_EVENT + len(_BOM):
            if not self._text(bytes(self._held)).startswith(b":"):  # a comment is no part of the event
                self._too_large()
            self._started = self._skip_line = True
            self._held.clear()

    def _too_large(self) -> None:
        self._data = []
        self._size = 2 * MAX_EVENT

    def _text(self, line: bytes) -> bytes:
        return line if self._started else line.removeprefix(_BOM)

    def _line(self, line: bytes) -> None:
        line = self._text(line)
        self._started = True
        if line.startswith(b":"):
            return
        self._size += len(line)
        if self._size > MAX_EVENT:
            self._too_large()
            return
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value[:64]

    def _dispatch(self, found: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        if self._size > MAX_EVENT:
            self.oversize += 1
        elif self._data:
            found.append((self._event, self._data[0] if len(self._data) == 1 else b"\n".join(self._data)))
        self._data = []
        self._event = b""
        self._size = 0


_OUTSIDE = re.compile(rb'["{}\[\]]')
_INSIDE = re.compile(rb'["\\]')


class ArrayStream:
    """The elements (objects) of a JSON array as they come: `[{...},\\n{...}]`."""

    __slots__ = ("_depth", "_escaped", "_kept", "_size", "_string", "oversize")

    def __init__(self) -> None:
        self._depth = 0
        self._string = False
        self._escaped = False
        self._kept = bytearray()
        self._size = 0
        self.oversize = 0

    def feed(self, piece: bytes, last: bool) -> list[tuple[bytes, bytes]]:
        """The elements that are complete now, as (b"", JSON)."""
        found: list[tuple[bytes, bytes]] = []
        at = start = 0
        if self._escaped and piece:
            self._escaped = False
            at = 1
        while match := (_INSIDE if self._string else _OUTSIDE).search(piece, at):
            mark = match[0]
            at = match.end()
            if self._string:
                if mark == b'"':
                    self._string = False
                elif at == len(piece):
                    self._escaped = True
                else:
                    at += 1
            elif mark == b'"':
                self._string = True
            elif mark in b"{[":
                if self._depth == 1:
                    start = at - 1
                    self._kept, self._size = bytearray(), 0
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 1:
                    self._keep(piece[start:at])
                    if self._size > MAX_EVENT:
                        self.oversize += 1
                    else:
                        found.append((b"", bytes(self._kept)))
                    self._kept, self._size = bytearray(), 0
        if self._depth > 1:
            self._keep(piece[start:])
        return found

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_EVENT:
            self._kept = bytearray()
        else:
            self._kept += part
