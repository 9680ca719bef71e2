"""What there is to see, collected once for all who ask within a second: how many look costs the pool nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from agentfw.pool.jobs import PoolError
from agentfw.views import AgentStory, AgentTable, Loaded, OutputTail, Overview

FRESH = 0.9
"""Seconds for which an answer is given again."""
COLLECT_SECONDS = 15.0
"""For one to come."""
MAX_KEPT = 64
"""Answers: a table that one viewer wants from another moment on, an agent's story."""
AT_ONCE = 8
"""Collections that run at one time; more wait."""
MAX_WAITING = 256
LONGEST_ACCEPT = 256
"""Characters of an `Accept` field that tell two questions apart."""


log = logging.getLogger("agentfw.dashboard")


class Source(Protocol):
    """What the server shows (`agentfw_dashboard.observatory.Observatory`, a test's fake)."""

    async def overview(self) -> Overview: ...

    async def agents(self, since: int) -> AgentTable: ...

    async def agent(self, id: str) -> AgentStory | None: ...

    async def loaded(self) -> Loaded: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """As JSON, or of another `kind`. `since`: a table's."""

    data: bytes
    since: int = 0
    kind: str = "application/json"
    overview: Overview | None = None
    """Which it is, for those who send a part of it."""


@dataclass(slots=True)
class _Kept:
    task: asyncio.Task[Answer | None]
    ended: float | None = None
    """When it came."""


class Shared:
    """Around a source. PoolError "unavailable" if nothing comes in time, or too many ask."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: dict[tuple[str, Any], _Kept] = {}
        """Oldest first."""
        self._running: set[asyncio.Task[Answer | None]] = set()
        """Those that nobody will be given any more, as there is a fresher one, too."""
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.collections = 0
        """So often the source was asked."""

    async def overview(self) -> Answer:
        async def ask() -> Answer:
            overview = await self._source.overview()
            return Answer(msgspec.json.encode(overview), overview=overview)

        return await self._one("overview", None, ask)

    async def agents(self, since: int, *, fresh: bool = False) -> Answer:
        """`fresh`: begun after this was called."""

        async def ask() -> Answer:
            table = await self._source.agents(since)
            return Answer(msgspec.json.encode(table), table.since)

        return await self._one("agents", since, ask, fresh)

    async def agent(self, agent_id: str) -> Answer:
        """PoolError "no_such_job"."""

        async def ask() -> Answer | None:
            story = await self._source.agent(agent_id)
            return None if story is None else Answer(msgspec.json.encode(story))

        found = await self._get("agent", agent_id, ask)
        if found is None:
            raise PoolError("no_such_job", "no such agent: it was never there, or was forgotten")
        return found

    async def loaded(self) -> Answer:
        async def ask() -> Answer:
            return Answer(msgspec.json.encode(await self._source.loaded()))

        return await self._one("loaded", None, ask)

    async def output(self, output: Callable[[str], Awaitable[OutputTail]], agent_id: str) -> Answer:
        """The end of what it wrote. PoolError "no_such_job"."""

        async def ask() -> Answer:
            return Answer(msgspec.json.encode(await output(agent_id)))

        return await self._one("output", agent_id, ask)

    async def metrics(self, metrics: Callable[[str], Awaitable[tuple[bytes, str]]], accept: str) -> Answer:
        """In the format that an `Accept` field wants."""

        async def ask() -> Answer:
            data, kind = await metrics(accept)
            return Answer(data, kind=kind)

        return await self._one("metrics", accept[:LONGEST_ACCEPT], ask)

    async def close(self) -> None:
        """Idempotent."""
        self._kept.clear()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _one(self, kind: str, key: Any, ask: Callable[[], Awaitable[Answer]], fresh: bool = False) -> Answer:
        found = await self._get(kind, key, ask, fresh)
        assert found is not None
        return found

    async def _get(self, kind: str, key: Any, ask: Callable[[], Awaitable[Answer | None]], fresh: bool = False) -> Answer | None:
        now = asyncio.get_running_loop().time()
        kept = self._kept.get((kind, key))
        if kept is None or fresh or (kept.ended is not None and now - kept.ended > FRESH):
            kept = self._begin(kind, key, ask)
        try:
            return await asyncio.shield(kept.task)  # whoever asked first may go; the others still wait
        except asyncio.CancelledError:
            if kept.task.cancelled():
                raise PoolError("unavailable", "the dashboard is being closed") from None
            raise

    def _begin(self, kind: str, key: Any, ask: Callable[[], Awaitable[Answer | None]]) -> _Kept:
        if len(self._running) >= MAX_WAITING:
            raise PoolError("unavailable", "too many questions at once", "try again in a moment")
        self._kept.pop((kind, key), None)
        loop = asyncio.get_running_loop()
        stale = loop.time() - FRESH
        ended = [(each, kept.ended) for each, kept in self._kept.items() if kept.ended is not None]
        surplus = len(self._kept) - MAX_KEPT + 1
        for place, (each, at) in enumerate(ended):
            if at < stale or place < surplus:
                del self._kept[each]
        kept = _Kept(loop.create_task(self._collect(ask)))
        self._running.add(kept.task)
        kept.task.add_done_callback(lambda task: self._ended(kept, task))
        self._kept[kind, key] = kept
        return kept

    async def _collect(self, ask: Callable[[], Awaitable[Answer | None]]) -> Answer | None:
        try:
            async with asyncio.timeout(COLLECT_SECONDS), self._turns:
                self.collections += 1
                return await ask()
        except TimeoutError:
            raise PoolError("unavailable", f"the pool did not answer within {COLLECT_SECONDS:g} s") from None
        except PoolError:
            raise
        except Exception as error:  # the source's: whoever watches already cannot be told by a status any more
            log.exception("what is shown cannot be collected")
            raise PoolError("internal", f"an internal error: {type(error).__name__}", "see the pool's log") from None

    def _ended(self, kept: _Kept, task: asyncio.Task[Answer | None]) -> None:
        self._running.discard(task)
        kept.ended = task.get_loop().time()
        if not task.cancelled():
            task.exception()  # whether anybody waits for it or not
