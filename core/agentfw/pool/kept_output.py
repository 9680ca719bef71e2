"""What a job wrote: from its beginning as long as there is room, then the newest. Nobody who writes waits for a reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from .jobs import Output

SEGMENT = 64 << 10
"""Bytes of what is kept in one piece, and of an `Output`."""
OVERHEAD = 256
"""Bytes that a piece costs besides."""

Stream = Literal[1, 2]


class _Segment:
    __slots__ = ("data", "offset", "stream")

    def __init__(self, stream: Stream, offset: int) -> None:
        self.stream: Stream = stream
        self.offset = offset
        self.data = bytearray()


class KeptOutput:
    """Pieces in the order in which they came. `cost`: bytes of memory that they take; above `limit` the oldest go."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.cost = 0
        self.ended = False
        self.written: dict[int, int] = {1: 0, 2: 0}
        """By stream: the offset of what comes next."""
        self._segments: dict[int, _Segment] = {}
        self._first = 0
        self._next = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def add(self, stream: Stream, data: bytes) -> None:
        """More came."""
        rest = memoryview(data)
        while rest:
            last = self._segments.get(self._next - 1)
            if last is None or last.stream != stream or len(last.data) >= SEGMENT:
                last = self._segments[self._next] = _Segment(stream, self.written[stream])
                self._next += 1
                self.cost += OVERHEAD
            part = rest[: SEGMENT - len(last.data)]
            last.data += part
            self.cost += len(part)
            self.written[stream] += len(part)
            rest = rest[len(part) :]
        while self.cost > self.limit and self._first < self._next - 1:
            self.drop_oldest()
        self._wake()

    def again(self) -> None:
        """The job begins anew: what it wrote before is dropped. A gap of a byte tells those who have read all of that."""
        self.drop()
        for stream, written in self.written.items():
            self.written[stream] = written + (written > 0)
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = True
        self._wake()

    def drop_oldest(self) -> bool:
        """False: nothing is left."""
        segment = self._segments.pop(self._first, None)
        if segment is None:
            return False
        self._first += 1
        self.cost -= len(segment.data) + OVERHEAD
        return True

    def drop(self) -> None:
        self._segments.clear()
        self._first = self._next
        self.cost = 0

    async def read(self, *, follow: bool, stdout: int, stderr: int) -> AsyncIterator[Output]:
        """From these offsets on; `follow`: until `end()`, else what is there."""
        begin = {1: stdout, 2: stderr}
        place, position = self._place_of(begin), 0
        while True:
            if place < self._first:
                place, position = self._first, 0
            segment = self._segments.get(place)
            if segment is not None:
                position = max(position, min(begin[segment.stream] - segment.offset, len(segment.data)))
                if position < len(segment.data):
                    data = bytes(segment.data[position:])
                    offset, position = segment.offset + position, len(segment.data)
                    yield Output(stream=segment.stream, offset=offset, data=data)
                    continue
                if place + 1 < self._next:
                    place, position = place + 1, 0
                    continue
            if self.ended or not follow:
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def _place_of(self, begin: dict[int, int]) -> int:
        """Where the first piece is that has something from these offsets on. Looked for from the end, so that it costs no more
        than what there is to be read."""
        sought = {stream for stream, offset in begin.items() if offset < self.written[stream]}
        place = self._next
        while sought and place > self._first:
            place -= 1
            segment = self._segments[place]
            if segment.offset <= begin[segment.stream]:
                sought.discard(segment.stream)
        return max(min(place, self._next - 1), self._first)  # the last one may grow

    def last(self, size: int, pieces: int) -> tuple[list[Output], int]:
        """The newest, at most so many bytes in so many pieces, in the order in which they came; and how many bytes came before.
        Costs no more than what it gives: a job may have written its output in any number of pieces."""
        found: list[Output] = []
        place = self._next
        while place > self._first and size > 0 and len(found) < pieces:
            place -= 1
            segment = self._segments[place]
            data = bytes(segment.data[-size:])
            found.append(Output(stream=segment.stream, offset=segment.offset + len(segment.data) - len(data), data=data))
            size -= len(data)
        return found[::-1], sum(self.written.values()) - sum(len(each.data) for each in found)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
