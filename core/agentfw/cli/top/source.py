"""Where `agentfw top` has its facts from: the plugin `dashboard` of a pool, over the control API; without that plugin, what any
pool tells."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...histograms import warmup_bars
from ...pool.jobs import JobInfo, PoolError, PoolInfo, Usage
from ...views import AgentRow, AgentStory, AgentTable, Loaded, Overview, dns_cache, failed_jobs, how_of

if TYPE_CHECKING:
    from ...pool.client import HttpBackend

PLUGIN = "dashboard"
MISSING = "no plugin `dashboard` in this pool: no model calls, denials and stories"
MOST = 2000
"""Jobs that are asked for where there is no dashboard."""
TAIL = 64 << 10
"""Bytes of the end of each stream that are shown."""


@dataclass(frozen=True)
class Seen:
    """A pool at one moment. `missing`: what it cannot tell, and why; "" if it can all."""

    overview: Overview
    table: AgentTable
    missing: str = ""
    pool: PoolInfo | None = None
    """With its workers."""
    here: bool = False
    """Its processes are on this machine."""


@dataclass(frozen=True)
class Tail:
    """The end of what an agent wrote, both streams in the order it came in; `before`: bytes that are left out."""

    data: bytes = b""
    before: int = 0


class Source(Protocol):
    """All methods may raise PoolError: "unavailable" when the pool is lost."""

    where: str
    """For people."""

    async def look(self, since: int) -> Seen: ...

    async def agent(self, id: str) -> AgentStory | None: ...

    async def loaded(self) -> Loaded | None:
        """None: it cannot be told."""

    async def output(self, id: str) -> Tail: ...

    async def reconnect(self) -> None:
        """Forget the connection; the next question makes one."""


class PoolSource:
    """A pool behind its control API."""

    def __init__(self, pool: HttpBackend) -> None:
        self._pool = pool
        self.where = pool.where
        self.has_dashboard: bool | None = None
        """None: it was not asked yet."""
        self._read: tuple[str, dict[int, int], Tail] = "", {}, Tail()
        """Whose output was read last, to where, and its end."""

    async def reconnect(self) -> None:
        self.has_dashboard = None
        self._read = "", {}, Tail()
        await self._pool.close()

    async def look(self, since: int) -> Seen:
        here = self._pool.socket is not None
        if self.has_dashboard is not False:
            try:
                overview, table, info = await asyncio.gather(
                    self._pool.plugin(PLUGIN, "overview", kind=Overview),
                    self._pool.plugin(PLUGIN, "agents", {"since": str(since)}, kind=AgentTable),
                    self._pool.describe(),
                )
                self.has_dashboard = True
                return Seen(overview, table, pool=info, here=here)
            except PoolError as error:
                if error.code != "not_found":
                    raise
                self.has_dashboard = False
        info, jobs, usage, metrics = await asyncio.gather(
            self._pool.describe(), self._pool.jobs(limit=MOST), self._pool.usage(), self._pool.metrics()
        )
        rows = [row_of(job, usage.get(job.id)) for job in jobs]
        now = info.started + metrics.get("pool.uptime_seconds", 0.0)
        total = info.queued + info.running + int(metrics.get("pool.kept", 0))
        table = AgentTable(time=now, since=0, whole=True, rows=rows, total=max(total, len(rows)))
        return Seen(overview_of(info, metrics, now), table, MISSING, info, here)

    async def agent(self, id: str) -> AgentStory | None:
        try:
            if self.has_dashboard:
                story: AgentStory | None = await self._pool.plugin(PLUGIN, "agent", {"id": id}, kind=AgentStory | None)
                return story
            job, usage = await asyncio.gather(self._pool.info(id), self._pool.usage())
        except PoolError as error:
            if error.code not in ("not_found", "no_such_job"):
                raise
            return None
        result = job.result
        row = row_of(job, usage.get(id))
        if result is None:
            return AgentStory(row=row)
        return AgentStory(row=row, exit_text=result.text, exit_kind=result.kind, exit_code=result.code, exit_signal=result.signal)

    async def loaded(self) -> Loaded | None:
        if not self.has_dashboard:
            return None
        try:
            loaded: Loaded = await self._pool.plugin(PLUGIN, "loaded", kind=Loaded)
            return loaded
        except PoolError as error:
            if error.code != "not_found":
                raise
            return None

    async def output(self, id: str) -> Tail:
        try:
            job, usage = await asyncio.gather(self._pool.info(id), self._pool.usage())
            used = job.result.usage if job.result is not None else usage.get(id, Usage())
            if self._read[:2] == (id, {1: used.stdout, 2: used.stderr}):
                return self._read[2]  # each reading is a line in the pool's audit log
            ends = {1: max(used.stdout - TAIL, 0), 2: max(used.stderr - TAIL, 0)}
            data = bytearray()
            async for piece in self._pool.output(id, follow=False, stdout=ends[1], stderr=ends[2]):
                ends[piece.stream] = piece.offset + len(piece.data)
                data += piece.data
                if len(data) > 8 * TAIL:  # it wrote more since it was measured
                    del data[: -2 * TAIL]
        except PoolError as error:
            if error.code not in ("not_found", "no_such_job"):
                raise
            return Tail()
        data = data[-2 * TAIL :]
        tail = Tail(bytes(data), max(sum(ends.values()) - len(data), 0))
        self._read = id, ends, tail
        return tail


def row_of(job: JobInfo, usage: Usage | None) -> AgentRow:
    """As far as any pool knows it."""
    result = job.result
    used = usage if usage is not None else result.usage if result is not None else Usage()
    return AgentRow(
        id=job.id,
        name=job.name,
        tenant=job.tenant,
        template=job.template,
        labels=job.labels,
        state=job.state,
        worker=job.worker,
        submitted=job.submitted,
        started=job.started,
        ended=job.ended,
        cpu_seconds=used.cpu_seconds,
        memory=used.memory if job.state != "done" else 0,
        bytes_up=used.bytes_up,
        bytes_down=used.bytes_down,
        how="" if result is None else how_of(result.kind, result.code, result.signal),
    )


def overview_of(info: PoolInfo, metrics: dict[str, float], now: float) -> Overview:
    """The numbers that counters of the other plugins make."""

    def whole(*names: str) -> int:
        return int(sum(metrics.get(name, 0) for name in names))

    hits, misses = dns_cache(metrics)
    idle, memory = sum(worker.idle for worker in info.workers), whole("pool.physical_memory")
    there = info.running + idle
    return Overview(
        time=now,
        started=info.started,
        state=info.state,
        workers=len(info.workers),
        workers_missing=whole("pool.workers_silent"),
        running=info.running,
        idle=idle,
        warming=whole("engine.warming"),
        queued=info.queued,
        done=info.done,
        failed=failed_jobs(metrics),
        warmup=warmup_bars(metrics),
        memory=memory,
        agents_per_gb=there / (memory / (1 << 30)) if memory and there else None,
        dns_questions=whole("core.dns_queries"),
        dns_hits=hits,
        dns_misses=misses,
        dns_hit_rate=hits / (hits + misses) if hits + misses else None,
        tls_sessions=whole("tls.held", "tls.leased"),
        bytes_up=whole("core.bytes_up"),
        bytes_down=whole("core.bytes_down"),
        requests=whole("core.http_requests"),
        model_calls=whole("inspect.calls"),
        model_calls_failed=whole("inspect.calls_failed"),
        input_tokens=whole("inspect.input_tokens"),
        output_tokens=whole("inspect.output_tokens"),
        cost=metrics.get("inspect.cost"),
        denials=whole("core.flows_denied", "core.dns_denied", "core.http_denied"),
    )
