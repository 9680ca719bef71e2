"""The router's side: asks the workers, puts together what they say with what the router knows of jobs, keeps a history.

    observatory = Observatory(runtime, collector)
    await observatory.start()
    await observatory.overview(); await observatory.agents(0); await observatory.agent("s0jk1cynd4"); await observatory.loaded()
    await observatory.stop()

In a pool's router the workers' collectors are asked; in `agentfw run` the own one is all there is. Workers are asked for their
totals once a second, always: it costs them little, and what they said last is not lost when one dies. For rows and stories they
are asked when somebody looks, at most once in FRESH seconds however many do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from agentfw.errors import AgentfwError
from agentfw.histograms import warmup_bars
from agentfw.pool.authority import RouterLink
from agentfw.pool.jobs import JobInfo, PoolError, PoolInfo, State, Usage
from agentfw.pool.physical import Physical
from agentfw.runtime import Runtime
from agentfw.views import AgentRow, AgentStory, AgentTable, Denial, Loaded, Overview, Step, dns_cache, failed_jobs
from msgspec.structs import replace

from . import loaded, merging, told
from .collector import Collector
from .history import History
from .rows import Rows, job_row
from .wire import Ask, AskStory, Refusal, Row, Told, encode, read_story, read_told

NAME = "dashboard"
TICK = 1.0
FRESH = 0.5
"""Seconds for which rows are not asked for again."""
GAUGES_SECONDS = 2.0
"""Seconds for which the pool's counters are not asked for again."""
ANSWER_SECONDS = 2.0
QUEUED_ROWS = 1000
"""Of jobs that wait, those that are shown: the newest."""
RUNNING_ROWS = 10_000

log = logging.getLogger("agentfw.dashboard")


class Observatory:
    """`ended`: of ended agents, those that are shown at most."""

    def __init__(self, runtime: Runtime, collector: Collector, ended: int = 2000) -> None:
        self.runtime = runtime
        self.ended = ended
        self.history = History()
        self._collector = collector
        self._link = runtime.pool if isinstance(runtime.pool, RouterLink) else None
        self._started = time.time()
        self._workers = merging.Workers()
        self._processes: dict[int, int] = {}
        """By worker: which of its processes spoke last."""
        self._silent: list[int] = []
        """Workers that did not answer the last question."""
        self._told: dict[int, dict[str, Row]] = {}
        """By worker: what it knows of its agents, by key."""
        self._heard: dict[int, tuple[str, int]] = {}
        """By worker: epoch and version of the last answer that was put in there."""
        self._rows = Rows()
        self._usage: dict[str, Usage] = {}
        self._lock = asyncio.Lock()
        self._asked = self._gauges_at = -1e9
        self._gauges: dict[str, float] = {}
        self._physical = Physical()
        """Without a pool; else its router measures."""
        self._info: PoolInfo | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._ticking = asyncio.get_running_loop().create_task(self._tick_always(), name="dashboard history")

    async def stop(self) -> None:
        """Idempotent."""
        ticking, self._ticking = self._ticking, None
        if ticking is not None:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)

    # -- what is told

    async def overview(self) -> Overview:
        await self._look_at_pool()
        totals = self._workers.totals()
        statistics, gauges, info = totals.statistics, self._gauges, self._info
        running = info.running if info is not None else totals.agents
        idle = sum(worker.idle for worker in info.workers) if info is not None else 0
        memory = int(gauges.get("pool.physical_memory", 0))
        hits, misses = dns_cache({**statistics, "dns.pool_hits": gauges.get("dns.pool_hits", 0)})
        sessions = int(statistics.get("tls.held", 0) + statistics.get("tls.leased", 0))
        return Overview(
            time=time.time(),
            started=info.started if info is not None else self._started,
            state=info.state if info is not None else "ready",
            workers=self._link.workers if self._link is not None else 1,
            workers_missing=len(self._silent),
            silent=self._silent,
            running=running,
            idle=idle,
            warming=int(gauges.get("engine.warming", 0)),
            queued=info.queued if info is not None else 0,
            done=info.done if info is not None else totals.done,
            failed=failed_jobs(gauges) if self._link is not None else totals.failed,
            warmup=warmup_bars(gauges),
            memory=memory,
            agents_per_gb=(running + idle) / (memory / (1 << 30)) if memory and running + idle else None,
            dns_questions=totals.questions,
            dns_hits=hits,
            dns_misses=misses,
            dns_hit_rate=hits / (hits + misses) if hits + misses else None,
            dispatch=merging.durations(totals.dispatch).spread(),
            connect=merging.durations(totals.connect).spread(),
            first_call=merging.durations(totals.first_call).spread(),
            tls_sessions=sessions,
            tls_agents=totals.tls_agents,
            agents_per_session=totals.tls_agents / sessions if sessions else None,
            bytes_up=totals.bytes_up,
            bytes_down=totals.bytes_down,
            requests=totals.requests,
            model_calls=totals.model_calls,
            model_calls_failed=totals.model_calls_failed,
            input_tokens=totals.input_tokens,
            output_tokens=totals.output_tokens,
            cost=totals.cost if totals.priced else None,
            currency=totals.currency,
            denials=totals.denials,
            recent_denials=self._denials(),
            history=list(self.history.samples),
        )

    async def agents(self, since: int = 0) -> AgentTable:
        """Rows that changed since a table's `since`; 0: all."""
        await self._look_at_rows()
        return self._rows.table(since)

    async def agent(self, agent_id: str) -> AgentStory | None:
        """A job's, or without a pool an agent's. None: it is not known (any more)."""
        if self._link is None:
            return await self._collector.story(agent_id)
        try:
            info = await self._link.backend.info(agent_id)
        except PoolError:
            return None
        story = await self._story(info)
        row = await self._row(info)
        if story is None:
            return _ended(AgentStory(row=row, timeline=_queued(info)), info)
        later = max(0.0, story.row.submitted - info.submitted)
        steps = [replace(step, at=step.at + later) for step in story.timeline if step.kind != "queued"]
        first = min((step.at for step in steps), default=later)
        found = replace(
            story,
            row=replace(row, **{name: getattr(story.row, name) for name in _WORKERS}),
            timeline=[Step(at=0.0, kind="queued", seconds=first), *steps],
            model_calls=[replace(call, at=call.at + later) for call in story.model_calls],
            denials=[replace(denial, agent_id=info.id) for denial in story.denials],
        )
        return _ended(found, info)

    async def loaded(self) -> Loaded:
        """Which plugins there are, and the configuration in force."""
        counters = self.runtime.statistics() if self._link is None else await self._link.backend.metrics()
        return loaded.loaded(self.runtime, counters)

    # -- asking

    async def _ask(self, rows: bool) -> dict[int, Told]:
        """Ask the workers; -> what those said that answered. One question at a time."""
        ask = Ask(rows=rows, heard=dict(self._heard.values()) if rows else {})
        if self._link is None:
            answer = self._collector.answer(ask, self.runtime.plugins.statistics())
            self._workers.take(0, answer)
            return {0: answer}
        found: dict[int, Told] = {}
        asked = self._link.processes
        for number, data in (await self._link.ask_workers(NAME, encode(ask), ANSWER_SECONDS)).items():
            answer_ = read_told(data)
            if answer_ is None:
                log.warning("worker %d said what is no answer", number)
                continue
            self._workers.take(number, answer_)
            self._processes[number] = asked[number]
            found[number] = answer_
        for number, process in self._link.processes.items():
            if number in self._workers.latest and number not in found and process != self._processes[number]:
                self._workers.lost(number)
        self._silent = [number for number in self._link.processes if number not in found]
        return found

    async def _look_at_pool(self) -> None:
        """Have totals and gauges of now."""
        async with self._lock:
            now = time.monotonic()
            if now - self._gauges_at < GAUGES_SECONDS:
                return
            self._gauges_at = now
            if self._link is not None:
                # At once: each waits its seconds for a worker that hangs, and those who look would take the page for dead.
                await asyncio.gather(self._ask(rows=False), self._describe(self._link), self._count(self._link))
            else:
                await self._ask(rows=False)
                memory = await self._physical.look([], self._workers.totals().agents)
                self._gauges = {**self.runtime.statistics(), "pool.physical_memory": memory}

    async def _describe(self, link: RouterLink) -> None:
        with contextlib.suppress(AgentfwError):
            self._info = await link.backend.describe()

    async def _count(self, link: RouterLink) -> None:
        with contextlib.suppress(AgentfwError):
            self._gauges = await link.backend.metrics()

    async def _measure(self, link: RouterLink) -> None:
        with contextlib.suppress(AgentfwError):
            self._usage = await link.backend.usage()

    async def _look_at_rows(self) -> None:
        """Have rows of now."""
        async with self._lock:
            now = time.monotonic()
            if now - self._asked < FRESH:
                return
            self._asked = now
            asking = self._ask(rows=True)
            answers = await asking if self._link is None else (await asyncio.gather(asking, self._measure(self._link)))[0]
            for number, answer in answers.items():
                known = {} if answer.whole else self._told.get(number, {})
                known.update((row.key, row) for row in answer.rows)
                for key in answer.gone:
                    known.pop(key, None)
                self._told[number] = known
                self._heard[number] = answer.epoch, answer.version
            if self._link is None:
                self._rows.set(told.agent_row(row) for row in self._told.get(0, {}).values())
                return
            backend = self._link.backend
            limits: dict[State, int] = {
                "running": RUNNING_ROWS,
                "starting": RUNNING_ROWS,
                "queued": QUEUED_ROWS,
                "done": self.ended,
            }
            jobs = [info for state, limit in limits.items() for info in await backend.jobs(state=state, limit=limit)]
            self._rows.set(job_row(info, self._row_told(info), self._usage.get(info.id)) for info in jobs)

    def _row_told(self, info: JobInfo) -> Row | None:
        known = self._told.get(info.worker) if info.worker is not None else None
        return None if known is None else known.get(run_of(info))

    async def _row(self, info: JobInfo) -> AgentRow:
        await self._look_at_rows()
        return job_row(info, self._row_told(info), self._usage.get(info.id))

    async def _story(self, info: JobInfo) -> AgentStory | None:
        """What its worker knows of it."""
        assert self._link is not None
        if info.worker is None:
            return None
        question = encode(AskStory(key=run_of(info)))
        data = (await self._link.ask_workers(NAME, question, ANSWER_SECONDS, only=info.worker)).get(info.worker, b"")
        return read_story(data)

    async def _tick_always(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                async with self._lock:
                    await self._ask(rows=False)
                totals = self._workers.totals()
                now = time.monotonic()
                measured = now - self._gauges_at < GAUGES_SECONDS + 2 * TICK  # it is while somebody looks
                memory = int(self._gauges.get("pool.physical_memory", 0)) if measured else 0
                self.history.note(time.time(), now, totals, totals.agents, memory)
            except Exception:
                log.exception("the dashboard's history failed")

    def _denials(self) -> list[Denial]:
        """Newest first."""
        found = [each for answer in self._workers.latest.values() for each in answer.denials]
        found.sort(key=lambda each: each.time, reverse=True)
        return [_denial(each) for each in found[:100]]


_WORKERS = ("exits", "questions", "connections", "requests", "model_calls", "input_tokens", "output_tokens", "cost", "denials",
            "last", "last_at")  # fmt: skip
"""Fields of a row that a story knows as of now."""


def run_of(info: JobInfo) -> str:
    """What its agent is known by in its worker (`Agent.job`)."""
    return info.id if info.attempt == 1 else f"{info.id}.{info.attempt}"


def _denial(told: Refusal) -> Denial:
    return Denial(
        time=told.time, agent_id=told.key.partition(".")[0], agent=told.agent, destination=told.destination, rule=told.rule,
        plugin=told.plugin, reason=told.reason, count=told.count,
    )  # fmt: skip


def _queued(info: JobInfo) -> list[Step]:
    """All that is known of the life of one whose worker knows nothing."""
    until = info.started or info.ended
    steps = [Step(at=0.0, kind="queued", seconds=None if until is None else max(0.0, until - info.submitted))]
    if info.ended is not None and info.result is not None:
        good = info.result.kind == "code" and not info.result.code
        steps.append(Step(at=info.ended - info.submitted, kind="exit", text=info.result.text[:256], ok=good))
    return steps


def _ended(story: AgentStory, info: JobInfo) -> AgentStory:
    """With the job's own end."""
    result = info.result
    if result is None:
        return story
    text = result.text[:1024]
    return replace(story, exit_text=text, exit_kind=result.kind, exit_code=result.code, exit_signal=result.signal)
