"""Server-sent events (WHATWG HTML, 9.2): each second the overview and what changed in the table of agents, made once for all
viewers and not at all while nobody looks.

A viewer that takes its events too slowly skips what it missed and gets the whole table; one that takes nothing for a while is
dropped.

    id: INSTANCE-SINCE          what `Last-Event-ID` says after a break; another instance's counts for nothing
    event: overview             data: an Overview; the first with its whole history, later ones with what is new of it
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
from agentfw.views import Sample

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
    newest: Sample | None
    """Of the samples that whoever has this frame knows."""


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
        if since is not None:  # it goes on with the table; of the history it may have missed more than the frames have
            try:
                yield _overview(await self._shared.overview(), None)
            except PoolError as error:
                yield _trouble(error)
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
                known = self._ring[0].newest if len(self._ring) == KEPT else None  # nobody is further behind than that
                history = overview.overview.history if overview.overview is not None else []
                data = self._encoded(overview, table, known)
                self._add(self._since, table.since, data, history[-1] if history else None)
                self._since = table.since
            except PoolError as error:
                self._add_trouble(error)
            except Exception as error:  # ours
                log.exception("what is shown cannot be told")
                self._add_trouble(PoolError("internal", f"an internal error: {type(error).__name__}"))
            await asyncio.sleep(max(begun + self._period - loop.time(), self._period / 4))

    def _add_trouble(self, error: PoolError) -> None:
        self._add(self._since, self._since, _trouble(error), self._ring[-1].newest if self._ring else None)

    def _add(self, begin: int, end: int, data: bytes, newest: Sample | None) -> None:
        self._ring.append(_Frame(self.frames, begin, end, data, newest))
        self.frames += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _encoded(self, overview: Answer, table: Answer, known: Sample | None = None) -> bytes:
        """`known`: a sample that all who get this have, with those before it."""
        mark = f"id: {self._instance}-{table.since}\n".encode()
        return _overview(overview, known) + mark + b"event: agents\ndata: " + table.data + b"\n\n"


def _overview(answer: Answer, known: Sample | None) -> bytes:
    """JSON has no line ends of its own, so each is one `data` line."""
    data = answer.data
    if known is not None and answer.overview is not None:
        new: list[Sample] = []
        for sample in reversed(answer.overview.history):  # (times may go back: clocks are set)
            if sample == known:
                data = msgspec.json.encode(msgspec.structs.replace(answer.overview, history=new[::-1]))
                break
            new.append(sample)
    return b"event: overview\ndata: " + data + b"\n\n"


def _trouble(error: PoolError) -> bytes:
    with contextlib.suppress(UnicodeError):
        return b"event: trouble\ndata: " + msgspec.json.encode({"message": str(error)}) + b"\n\n"
    return b"event: trouble\ndata: {}\n\n"
