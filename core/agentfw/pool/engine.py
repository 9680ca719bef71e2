"""Warm VMs, and jobs that run in them: what a worker process of a pool does, and a whole pool that is embedded in a program.

    engine = Engine(runtime, pool, run, size=64, idle=16)
    await engine.start()
    result = await engine.run(job, "17", events, None)
    await engine.close()

All of it belongs to the runtime's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from typing import cast

import msgspec
from agentfw_vmm import Cell, CellError, CellHandler
from agentfw_vmm.in_memory import in_memory

from ..agents import Agent, ExitReport, VmReport
from ..config import RunConfig
from ..dispatch import default_environment
from ..errors import AgentfwError
from ..runtime import Runtime
from ..serving import Serving
from ..sizes import parse_size
from ..snapshots import Progress, SnapshotStore, cell_config
from . import forks, pressure
from .cells import CellLike, PoolCell, StartCell
from .config import PoolConfig, TenantConfig
from .groups import SPARE, Group, GroupKey, Trouble
from .jobs import DEFAULT_TEMPLATE, DEFAULT_TENANT, Isolation, Job, JobResult, Limits, PoolError, Usage
from .runs import JobEvents, Run, Surroundings
from .shares import Shares
from .stock import Stock
from .templates import Prepared, Templates
from .traces import CellTrace

TICK_SECONDS = 1.0
CLOSE_SECONDS = 5.0
"""For runs whose output nobody takes, before they are cut off."""
RUNNERS = 4
AIM_SECONDS = 30.0
"""Between two times that VMs are kept of a template again whose snapshot was of no use."""
TRIM_PART = 0.25
"""Of the idle VMs that go each second in which memory is short ..."""
TRIM_LEAST = 8
"""... at least so many."""

log = logging.getLogger("agentfw.pool")


class EngineCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`idle`: VMs that wait for a job; `warming`: being made; `waiting`: jobs without a VM; `memory`: bytes that the cells have
    for themselves, as of the last second; `counters`: since the start, by name."""

    running: int
    idle: int
    warming: int
    waiting: int
    cells: int
    memory: int
    counters: dict[str, int | float]


class Engine:
    """`size`: VMs at once; `idle`: kept warm. `pool` is the whole pool's: of its sizes this engine has `size / pool.size`."""

    def __init__(
        self, runtime: Runtime, pool: PoolConfig, run: RunConfig, *, size: int, idle: int, store: SnapshotStore | None = None
    ) -> None:
        self.runtime = runtime
        self._pool = pool
        self._part = size / pool.size
        self._templates = Templates(runtime, store or SnapshotStore(), pool, run)
        self._cpus = len(os.sched_getaffinity(0))
        self._stock = Stock(
            size,
            self._start_cell,
            terms=self._terms,
            runners=self._runners,
            recycle=pool.recycle,
            spoiled=self._spoiled,
            begins=self._begins,
        )
        self._stock.idle_most = idle
        self._serving = Serving(runtime)
        self._around = Surroundings(runtime, self._serving, self._stock)
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._numbers = itertools.count(1)
        self._draining = False
        self._closed = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._house: list[asyncio.Task[None]] = []
        self._aiming: asyncio.TimerHandle | None = None
        self._aimed = -math.inf
        """When it was last done for a snapshot that was of no use."""
        self._memory = 0
        self._shares = Shares(self._by_tenant, self._cpus * self._part)

    # -- life

    async def start(self, progress: Progress | None = None) -> None:
        """Make or find the templates of [pool], and the VMs that shall wait. PoolError "unavailable": the default template or its
        VMs cannot be made; what is wrong with other templates is in the log, and in the answer to their jobs."""
        if progress is not None:
            self._templates.progress = progress
        self._house = [self.runtime.loop.create_task(body) for body in (self._tick_always(), self._shares.run())]
        try:
            for name in sorted({DEFAULT_TEMPLATE, *self._pool.templates}, key=lambda name: name != DEFAULT_TEMPLATE):
                try:
                    prepared = await self._templates.get(name)
                except AgentfwError as error:
                    if name == DEFAULT_TEMPLATE:
                        raise _unavailable(error) from None
                    continue
                self._aim(prepared)
            await self._warmed()
        except BaseException:
            await self.close()
            raise

    def _aim(self, prepared: Prepared) -> None:
        """The group that shall have VMs of this template wait."""
        table = self._pool.template(prepared.name)
        if table is None:
            return
        if table.idle is not None:
            target = math.ceil(table.idle * self._part)
        else:
            target = self._stock.idle_most if prepared.name == DEFAULT_TEMPLATE else 0
        key = GroupKey(DEFAULT_TENANT, prepared, self._pool.isolation)
        if target or key in self._stock.groups:
            group = self._stock.group(key)
            group.target = min(target, self._stock.size)
            self._stock.soon(group)

    async def _warmed(self) -> None:
        """Until all that shall wait do, or cannot be made."""
        while True:
            missing = [group for group in self._stock.groups.values() if group.count["idle"] < group.target]
            for group in missing[:]:
                if group.trouble is not None and not group.count["idle"] and not group.coming:
                    if group.key.template.name == DEFAULT_TEMPLATE:
                        raise PoolError("unavailable", str(group.trouble), group.trouble.hint)
                    missing.remove(group)
            full = self._stock.room() <= 0 and not self._stock.count["warming"]
            if full or self._stock.tight or not missing:
                return
            await asyncio.sleep(0.005)

    async def drain(self) -> None:
        """Take no more jobs; returns when the last has ended."""
        self._draining = True
        await self._quiet.wait()

    async def close(self) -> None:
        """Kill what runs, end the cells, wait for the last network bytes. Idempotent."""
        self._draining = self._closed = True
        for run in list(self._runs.values()):
            run.end("killed", "the pool was closed")
        for task in self._house:
            task.cancel()
        if self._aiming is not None:
            self._aiming.cancel()
        await asyncio.gather(*self._house, return_exceptions=True)
        await self._stock.close()
        await self._templates.close()
        mine = asyncio.current_task()
        left = [task for task in self._tasks if task is not mine]
        if left:
            await asyncio.wait(left, timeout=CLOSE_SECONDS)
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        await self._serving.close()

    # -- jobs

    async def run(self, job: Job, job_id: str, events: JobEvents, stdin: AsyncIterator[bytes] | None) -> JobResult:
        """Run `job` to its end; all its output has been taken when this returns. Never raises for what the agent does.

        `stdin`: what follows `job.stdin`; None: its end does. PoolError: "draining", "bad_job", "worker_lost" (its cell died, and
        it need not be the reason: it may be run again). What `events.output` raises ends the job and is raised.
        """
        if self._draining:
            raise PoolError("draining", "the pool takes no more jobs")
        job.check()
        if job_id in self._runs:
            raise PoolError("bad_job", f"a job `{job_id}` is running")
        if self._pool.template(job.template) is None:
            await self._templates.get(job.template)  # says which there are
        agent = self._agent(job_id, job)
        run = Run(self._around, agent, job, self._limits(job), events)
        return await self._registered(run, job_id, self._perform(run, job, stdin))

    def _agent(self, job_id: str, job: Job) -> Agent:
        """Of this run of the job."""
        return Agent(f"{job_id}-{next(self._numbers)}", _name(job.name or job_id), _labels(job), job=job_id, capture=job.capture)

    async def _registered(self, run: Run, job_id: str, body: Coroutine[None, None, JobResult]) -> JobResult:
        """While it runs it is known by its id."""
        self._runs[job_id] = run
        self._quiet.clear()
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await body
        finally:
            run.dropped()
            self._tasks.discard(task)
            self._runs.pop(job_id, None)
            if not self._runs:
                self._quiet.set()

    async def _perform(self, run: Run, job: Job, stdin: AsyncIterator[bytes] | None) -> JobResult:
        try:
            await self.runtime.admit(run.agent)
        except AgentfwError as error:
            self.runtime.note(run.agent, None, error)
            return run.over(ExitReport("internal", text=str(error)))
        traced = job.strace is not None
        isolation: Isolation = "process" if traced else job.isolation or self._pool.isolation
        again = 1
        while True:
            try:
                template = self._templates.peek(job.template) or await self._templates.get(job.template)
                environment = {**default_environment(), **template.environment, **job.env}
                return await run.perform(GroupKey(job.tenant, template, isolation, traced), environment, stdin)
            except PoolError:
                raise
            except Trouble as error:
                if error.spoiled and again:
                    again -= 1
                    continue
                text = str(error)
                return run.over(ExitReport("internal", text=f"{text} ({error.hint})" if error.hint else text))
            except AgentfwError as error:
                hint = getattr(error, "hint", "")
                text = f"template `{job.template}`: {error}"
                return run.over(ExitReport("internal", text=f"{text} ({hint})" if hint else text))

    def _limits(self, job: Job) -> Limits:
        """What it asks for, the pool's as maxima."""
        most, own = self._pool.limits, job.limits
        return Limits(
            seconds=_least(own.seconds, most.seconds),
            cpu_seconds=_least(own.cpu_seconds, most.cpu_seconds),
            cpu=_least(own.cpu, most.cpu),
            output=most.output if own.output is None else min(own.output, most.output),
        )

    async def fork(self, job_id: str, ids: Sequence[str], events: Sequence[JobEvents]) -> list[asyncio.Task[JobResult]]:
        """Copies of a running job, each from where it stands, with these ids; -> their runs. They wait for VMs as other jobs do.

        A copy's memory is the job's, copied when one writes; pid, seed and streams are its own (its stdin is at its end), and
        connections report a reset. /proc/agentfw says which it is. PoolError: "no_such_job", "bad_job" (it does not run),
        "unsupported", "draining".
        """
        if self._draining:
            raise PoolError("draining", "the pool takes no more jobs")
        run = self._runs.get(job_id)
        if run is None:
            raise PoolError("no_such_job", f"no job `{job_id}` runs here")
        if not 0 < len(ids) <= forks.MOST or len(events) != len(ids):
            raise PoolError("bad_job", f"{len(ids)} copies at once (1 to {forks.MOST})")
        if len({*ids, *self._runs}) < len(ids) + len(self._runs):
            raise PoolError("bad_job", "an id of a copy is taken")
        old = run.key
        saved = await forks.save(run, old)
        assert old is not None
        key = forks.forked(old, saved)
        job = msgspec.structs.replace(run.job, stdin=b"", interactive=False, strace=None)  # the job has had that, or has it
        tasks = []
        for index, (copy, each) in enumerate(zip(ids, events, strict=True)):
            agent = self._agent(copy, job)
            child = forks.ForkedRun(self._around, agent, job, self._limits(job), each)
            self._runs[copy] = child
            child.parent = run.agent.job
            child.told = {"job": copy, "parent": job_id, "index": index, "count": len(ids)}
            tasks.append(self.runtime.loop.create_task(self._registered(child, copy, self._copied(child, key))))
        left = len(tasks)

        def ended(task: asyncio.Task[JobResult]) -> None:
            nonlocal left
            left -= 1
            if not left:
                saved.close()
                for copy in ids:  # those that were cancelled before they began
                    self._runs.pop(copy, None)

        for task in tasks:
            task.add_done_callback(ended)
        return tasks

    async def _copied(self, run: Run, key: GroupKey) -> JobResult:
        try:
            await self.runtime.admit(run.agent)
            return await run.perform(key, {}, None)
        except PoolError:
            raise
        except Trouble as error:
            return run.over(ExitReport("internal", text=str(error)))
        except AgentfwError as error:
            self.runtime.note(run.agent, None, error)
            return run.over(ExitReport("internal", text=str(error)))

    def signal(self, job_id: str, number: int) -> None:
        """A signal (1..64) to a job's process; 9 kills, also one that waits for a VM. Nothing if it is not here."""
        if not 1 <= number <= 64:
            raise PoolError("bad_job", f"there is no signal {number}")
        run = self._runs.get(job_id)
        if run is not None:
            run.signal(number)

    # -- what there is

    def usage(self) -> dict[str, Usage]:
        """What each job whose program runs has used so far."""
        found = ((job_id, run.usage()) for job_id, run in self._runs.items())
        return {job_id: usage for job_id, usage in found if usage is not None}

    async def look(self, job_id: str) -> VmReport | None:
        """What a job's VM did so far, its system calls and files; it goes on meanwhile. None: no such job runs here."""
        run = self._runs.get(job_id)
        return None if run is None else await run.look()

    def counts(self) -> EngineCounts:
        stock = self._stock
        return EngineCounts(
            running=stock.count["running"],
            idle=stock.count["idle"],
            warming=stock.count["warming"],
            waiting=len(stock.queue),
            cells=stock.cells,
            memory=self._memory,
            counters={**stock.counted, **stock.warmups.statistics("warmup_seconds")},
        )

    async def trim(self, vms: int) -> int:
        """Give up to so many idle VMs back to the host; -> how many it were. For a while only jobs get new ones."""
        return self._stock.trim(vms)

    async def check(self, pool: PoolConfig, run: RunConfig) -> None:
        """PoolError "bad_config" if it could not go on with another configuration. Makes the snapshots that it would want."""
        await self._templates.check(pool, run)

    def reload(self, pool: PoolConfig, run: RunConfig) -> None:
        """Go on with another configuration: it counts for the next VMs and jobs. Running jobs are left alone."""
        self._pool = pool
        changed = self._templates.configure(pool, run)
        self._stock.recycle = pool.recycle
        self._stock.idle_most = math.ceil(pool.warm * self._part)
        self._stock.resize(max(1, round(pool.size * self._part)))
        for group in list(self._stock.groups.values()):
            if group.key.template.name in changed:
                self._stock.retire(group)
            elif not group.retired:
                group.target = 0
        self._aim_soon()

    def _aim_soon(self) -> None:
        task = self.runtime.loop.create_task(self._aim_all())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _aim_all(self) -> None:
        for name in sorted({DEFAULT_TEMPLATE, *self._pool.templates}):
            with contextlib.suppress(AgentfwError):  # it is in the log, and its jobs are told
                self._aim(await self._templates.get(name))

    def _spoiled(self, group: Group) -> None:
        """A snapshot that is gone or of no use: it is made anew, by the next job or for the VMs that shall wait for one."""
        prepared = group.key.template
        self._templates.spoiled(prepared)
        for each in self._stock.groups.values():
            if each.key.template is prepared:
                self._stock.retire(each)

        def again() -> None:
            self._aiming = None
            self._aimed = self.runtime.loop.time()
            self._aim_soon()

        if self._aiming is None and not self._closed:
            self._aiming = self.runtime.loop.call_at(max(self.runtime.loop.time(), self._aimed + AIM_SECONDS), again)

    # -- cells

    def _runners(self, vms: int) -> int:
        """Threads of a cell: as many as there are cores for it when the pool is full."""
        cells = math.ceil(self._stock.size / max(1, vms) / self._part)
        return max(1, min(RUNNERS, self._cpus // cells))

    def _terms(self, tenant: str) -> tuple[float, int | None]:
        found = self._pool.tenants.get(tenant) or TenantConfig()
        running = found.running
        return found.share, None if running is None else max(1, math.ceil(running * self._part))

    def _start_cell(self, group: Group) -> StartCell:
        prepared, traced = group.key.template, group.key.traced
        recycle = self._stock.recycle and not traced

        def start(handler: CellHandler, vms: int) -> Awaitable[CellLike]:
            if isinstance(prepared, forks.Forked):
                return Cell.start(prepared.saved.config(vms, min(self._runners(vms), vms)), handler)
            if not prepared.snapshot.exists():  # the cache was cleared, or newer ones took its place
                raise CellError("snapshot: it is gone")
            config = cell_config(
                prepared.template,
                vms=vms,
                runners=min(self._runners(vms), vms),
                snapshot_in=in_memory(prepared.snapshot),
                hot_in=self._templates.hot(prepared),
                key=prepared.key,
                recycle=recycle,
                trace=CellTrace(cast(PoolCell, handler)) if traced else None,
                **prepared.trust,
            )
            return Cell.start(config, handler)

        return start

    def deal(self, parts: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        """Of a pool's engines together: what tenants' VMs may use here (cores; who is not named: as much as there is), until it
        is said again or a second has passed. -> by tenant, seconds of CPU time that its cells used and waited for so far."""
        self._shares.dealt(parts)
        return dict(self._shares.totals)

    # -- each second

    async def _tick_always(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                self._stock.tick()
                self._look_at_memory()
            except Exception as error:
                self.runtime.plugins.failures.tell(log, error, "the pool's house-keeping failed")

    def _look_at_memory(self) -> None:
        groups = self._stock.groups.values()
        cells = [cell for group in groups for cell in group.cells if cell.pid]
        count = self._stock.count
        self._memory = pressure.used([cell.pid for cell in cells], sum(count.values()) - count["empty"])
        self._memory += sum(cell.native.other_memory() for cell in cells)
        self._memory += sum(group.key.template.shared_memory for group in groups if group.cells)
        limit = parse_size(self._pool.memory) if self._pool.memory else None
        own = pressure.of_limit(self._memory, None if limit is None else int(limit * self._part))
        level = pressure.worse(own, pressure.host())
        if level != "fine":
            idle = self._stock.count["idle"]
            given = self._stock.trim(max(TRIM_LEAST, math.ceil(idle * TRIM_PART)))
            if not self._stock.tight or given:
                log.warning("memory is short: %d of %d idle VMs are given up", given, idle)
        self._stock.tight = level != "fine"
        self._stock.exhausted = level == "exhausted" and not self._stock.count["idle"]

    def _begins(self, group: Group, cell: PoolCell) -> None:
        tenant = group.key.tenant
        if tenant != SPARE:
            there = [each for each in self._stock.groups.values() if each.key.tenant == tenant]
            self._shares.begins(tenant, cell.native, sum(each.up for group in there for each in group.cells))

    def _by_tenant(self) -> dict[str, tuple[float, list[CellLike]]]:
        """For `Shares`."""
        found: dict[str, tuple[float, list[CellLike]]] = {}
        for group in self._stock.groups.values():
            tenant = group.key.tenant
            if tenant == SPARE:
                continue
            entry = found.setdefault(tenant, (self._terms(tenant)[0], []))
            entry[1].extend(cell.native for cell in group.cells if cell.up)
        return found


def _unavailable(error: AgentfwError) -> PoolError:
    return error if isinstance(error, PoolError) else PoolError("unavailable", str(error), getattr(error, "hint", ""))


def _least(one: float | None, other: float | None) -> float | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _name(text: str) -> str:
    """As an agent may be called."""
    return text.encode("utf-8", "replace")[:128].decode("utf-8", "ignore")


def _labels(job: Job) -> dict[str, str]:
    return {**job.labels, "tenant": job.tenant, **({"policy": job.policy} if job.policy else {})}


__all__ = ["Engine", "EngineCounts", "JobEvents"]
