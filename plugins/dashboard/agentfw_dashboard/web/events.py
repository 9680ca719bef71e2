"""Server-sent events (WHATWG HTML, 9.2): each second the overview and what changed in the table of agents, made once for all
viewers and not at all while nobody looks.

A viewer that takes its events too slowly skips what it missed and gets the whole table; one that takes nothing for a while is
dropped.

    id: INSTANCE-SINCE          what `Last-Event-ID` says after a break; another instance's counts for nothing
    event: overview             data: an Overview
    event: agents               data: an AgentTable: those that changed, or all (`whole`)
    event: trouble              data: {"message": ...}; the next second may be better
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec
from agentfw.pool.jobs import PoolError

from .shared import Answer, Shared

PERIOD = 1.0
MAX_VIEWERS = 64
KEPT = 8
"""Seconds that a viewer may be behind without missing anything."""
_ID = re.compile(r"([0-9a-f]{8})-([0-9]{1,18})\Z")

log = logging.getLogger("agentfw.dashboard")


@dataclass(frozen=True, slots=True)
class _Frame:
    """One second. With the table of the moment `begin` it makes that of `end`."""

    number: int
    begin: int
    end: int
    data: bytes


class Events:
    """`period`: seconds between two frames."""

    def __init__(self, shared: Shared, *, period: float = PERIOD, viewers: int = MAX_VIEWERS) -> None:
        self.viewers = 0
        self.skipped = 0
        """So often a viewer was so far behind that it got the whole table."""
        self.frames = 0
        self._shared = shared
        self._period = period
        self._most = viewers
        self._instance = secrets.token_hex(4)
        self._since = 0
        self._ring: deque[_Frame] = deque(maxlen=KEPT)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def view(self, last_id: str = "") -> AsyncGenerator[bytes, None]:
        """Frames for one viewer, until `close()`. PoolError "unavailable": too many look."""
        if self.viewers >= self._most or self._closed:
            raise PoolError("unavailable", f"{self.viewers} viewers look already" if not self._closed else "it is being closed")
        self.viewers += 1
        try:
            if self._task is None:
                self._since = 0
                self._ring.clear()
                self._task = asyncio.get_running_loop().create_task(self._run())
            async for data in self._view(self._from(last_id)):
                yield data
        finally:
            self.viewers -= 1
            if not self.viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def close(self) -> None:
        """All views end. Idempotent."""
        self._closed = True
        self._changed.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _view(self, since: int | None) -> AsyncGenerator[bytes, None]:
        yield b"retry: 2000\n\n"
        if since is None and not self._ring:
            since = 0  # the first frame has all
        following = self._next(since or 0)
        while not self._closed:
            if since is not None and following >= self.frames:
                await self._changed.wait()
            elif since is not None and following >= (first := self._ring[0].number):
                frame = self._ring[following - first]
                following += 1
                if frame.begin > since:  # something in between is missing
                    since = None
                    continue
                since = max(since, frame.end)
                yield frame.data
            else:
                self.skipped += since is not None
                try:
                    data, since = await self._whole()
                except PoolError as error:
                    yield _trouble(error)
                    await asyncio.sleep(self._period)
                    continue
                following = self._next(since)
                yield data

    def _next(self, since: int) -> int:
        """The number of the first frame that has something which this moment's table has not."""
        return next((frame.number for frame in self._ring if frame.end > since), self.frames)

    def _from(self, last_id: str) -> int | None:
        """The moment that a viewer has seen, if one of the frames that are kept goes on from there."""
        found = _ID.match(last_id)
        if found is None or found[1] != self._instance:
            return None
        since = int(found[2])
        known = any(frame.begin <= since <= frame.end for frame in self._ring)
        return since if known else None

    async def _whole(self) -> tuple[bytes, int]:
        overview = await self._shared.overview()
        table = await self._shared.agents(0)
        if self._ring and table.since < self._ring[0].begin:
            table = await self._shared.agents(0, fresh=True)
        return self._encoded(overview, table), table.since

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                overview, table = await self._shared.overview(), await self._shared.agents(self._since, fresh=True)
                self._add(self._since, table.since, self._encoded(overview, table))
                self._since = table.since
            except PoolError as error:
                self._add(self._since, self._since, _trouble(error))
            except Exception as error:  # the source's
                log.exception("what is shown cannot be collected")
                text = f"an internal error: {type(error).__name__}"
                self._add(self._since, self._since, _trouble(PoolError("internal", text)))
            await asyncio.sleep(max(begun + self._period - loop.time(), self._period / 4))

    def _add(self, begin: int, end: int, data: bytes) -> None:
        self._ring.append(_Frame(self.frames, begin, end, data))
        self.frames += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _encoded(self, overview: Answer, table: Answer) -> bytes:
        """JSON has no line ends of its own, so each is one `data` line."""
        mark = f"id: {self._instance}-{table.since}\n".encode()
        return b"event: overview\ndata: " + overview.data + b"\n\n" + mark + b"event: agents\ndata: " + table.data + b"\n\n"


def _trouble(error: PoolError) -> bytes:
    with contextlib.suppress(UnicodeError):
        return b"event: trouble\ndata: " + msgspec.json.encode({"message": str(error)}) + b"\n\n"
    return b"event: trouble\ndata: {}\n\n"
