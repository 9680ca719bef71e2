"""The router: takes jobs, keeps their book, deals them out to workers and tells what comes of them. A `backend.Backend`.

    router = Router(config, plugins, load=lambda: load_config(...))
    await router.start()
    info = await router.submit(Job(...)); ...
    await router.close()

All of it belongs to one event loop, and worker processes to its thread: they die with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import msgspec

from ..config import Config
from ..errors import AgentfwError
from ..metrics.catalog import STATES
from ..plugins import load_plugins, without_effect
from ..runtime import Runtime
from . import authority, changes, dealing, templates
from .book import Book, Entry
from .config import PoolConfig, TenantConfig
from .copies import Copies
from .counting import LOOK_SECONDS, Counting
from .diary import Diary
from .jobs import DEFAULT_TEMPLATE, DEFAULT_TENANT, Job, JobInfo, JobResult, Output, PoolError, PoolInfo, State, Usage
from .messages import (
    Apply,
    Ask,
    Changed,
    Check,
    Configuration,
    Done,
    Ended,
    Feed,
    Look,
    Run,
    Setup,
    Signal,
    Started,
    Used,
    Wrote,
)
from .serving import ENGINE
from .sharding import choose, divided
from .waiting import Waiting
from .workers import LocalWorker, Patience, ProcessWorker, Worker

API = "v1"
MAX_PAYLOAD_WAITING = 1 << 30
"""Bytes of files, code and stdin of all jobs that have not ended."""
MAX_LOSSES = 3
"""Workers that a job may take with it; then it is not run again, whatever its `retries`."""
MAX_SIGNALS = 64
"""Kept for a job that waits."""
MAX_FORK = 256
FEED = 128 << 10
"""Bytes of standard input in a message."""
RELOAD_SECONDS = 60.0
CHECK_SECONDS = 600.0
"""Snapshots of templates that changed are made meanwhile."""

log = logging.getLogger("agentfw.pool")


class Router:
    """`plugins`: names, as for `load_plugins()`; `load`: reads the configuration again; `local`: one engine in this process
    instead of worker processes; `engine`: MODULE:CLASS of another engine, for tests; `place`: the socket that its control API is
    served at; `listeners`: numeric addresses and ports that it is served at besides, which agents must not reach."""

    def __init__(
        self,
        config: Config,
        plugins: Sequence[str],
        *,
        load: Callable[[], Config],
        local: bool = False,
        patience: Patience | None = None,
        engine: str = ENGINE,
        place: Path | None = None,
        listeners: Sequence[tuple[str, int]] = (),
    ) -> None:
        self.config = config
        self.pool = config.plugin("pool", PoolConfig)
        self.runtime: Runtime | None = None
        """Of the router's own plugins; with `local` it is the agents'."""
        self.numbers: Counter[str] = Counter()
        self._counting = Counting()
        self._plugins = tuple(plugins)
        self._load = load
        self._local = local
        self.place = place
        self._listeners = tuple(listeners)
        self._patience = patience or Patience()
        self._engine = engine
        self._started, self._began = time.time(), time.monotonic()
        self._state: Literal["starting", "ready", "draining", "stopping"] = "starting"
        self.diary = Diary()
        self.book = Book(self.pool.keep_jobs, self.pool.keep_output, tell=self.diary.job)
        self._waiting = Waiting(self._tenant)
        self.workers: list[Worker] = []
        self._copies = Copies(self._no_copies, lambda number: self.workers[number].channel)
        self._feeding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By job: one feeds at a time. Each is kept by those who do."""
        self._reloading = asyncio.Lock()
        self._generation = 0
        """Of the configuration."""
        self._dealing: asyncio.Task[None] | None = None
        self._empty: set[asyncio.Future[None]] = set()
        """For the end of the last job."""

    # -- life

    async def start(self) -> None:
        """Returns when all workers are ready. PoolError, ConfigError and what else the plugins raise; then nothing is left."""
        try:
            manager = load_plugins(self._plugins, self.config)
            for note in without_effect(self.config, manager.names):
                log.warning("%s", note)
            runtime = Runtime(asyncio.get_running_loop(), manager, self.config)
            runtime.pool = authority.RouterLink(self, lambda: self.workers)
            runtime.keep_from_agents("control API", self._listeners)
            await runtime.start()
            self.runtime, self.diary.plugins = runtime, manager
            self._check_not_closed()
            if self._local:
                self.workers = [LocalWorker(self, runtime, self._patience)]
            else:
                count = min(self.pool.workers or len(os.sched_getaffinity(0)), self.pool.size)
                self.workers = [ProcessWorker(self, number, self._patience) for number in range(count)]
            starts = [asyncio.ensure_future(worker.start()) for worker in self.workers]
            try:
                await asyncio.gather(*starts)
            finally:
                for start in starts:
                    start.cancel()
                await asyncio.gather(*starts, return_exceptions=True)
            self._check_not_closed()
        except BaseException:
            await self.close()
            raise
        self._state = "ready"
        self.diary.pool("started", f"{len(self.workers)} workers, {self.pool.size} VMs; plugins: {', '.join(self._plugins)}")
        if len(self.workers) > 1:
            self._dealing = asyncio.create_task(dealing.deal_always(lambda: self.workers, lambda name: self._tenant(name).share))
        self._pump()

    async def close(self) -> None:
        """Kill what runs, end the workers. Jobs that have not ended are told to have been killed. Idempotent."""
        if self._state != "stopping":
            self._state = "stopping"
            self.diary.pool("stopping")
        if self._dealing is not None:
            self._dealing.cancel()
            await asyncio.gather(self._dealing, return_exceptions=True)
        for entry in [entry for entry in self.book if entry.state == "queued"]:
            self._waiting.remove(entry)
            self._end(entry, JobResult(kind="killed", text="the pool was stopped"))
        results = await asyncio.gather(*(worker.close() for worker in self.workers), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                log.error("a worker did not close: %s", result)
        for worker in self.workers:
            for entry in list(worker.runs.values()):
                self._release(worker, entry)
                self._end(entry, JobResult(kind="killed", text="the pool was stopped"))
        runtime, self.runtime = self.runtime, None
        if runtime is not None:
            self.diary.pool("stopped")
            self.diary.plugins = None
            await runtime.stop()

    async def drain(self) -> None:
        """Take no more jobs; returns when the last has ended."""
        if self._state in ("starting", "ready"):
            self._state = "draining"
            self.diary.pool("draining")
        while self.book.counts["done"] < len(self.book):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._empty.add(waiter)
            try:
                await waiter
            finally:
                self._empty.discard(waiter)

    # -- jobs

    async def submit(self, job: Job) -> JobInfo:
        """Take a job; returns at once, with its id. PoolError "bad_job", "pool_full", "draining"."""
        job.check()
        return self.take(job)

    def take(self, job: Job) -> JobInfo:
        """`submit()`, for who is in this process: a job that was checked, and nothing to wait for."""
        self._check_open()
        if self.pool.template(job.template) is None:
            known = ", ".join(sorted({DEFAULT_TEMPLATE, *self.pool.templates}))
            raise PoolError("bad_job", f"there is no template `{job.template[:64]}` (there are: {known})")
        if job.capture and self.runtime is not None and not self.runtime.plugins.captures:
            hint = "give its agentfw.toml a table [capture] with a `directory`"
            raise PoolError("bad_job", "this pool captures no traffic", hint)
        most = self._tenant(job.tenant).queued
        if len(self._waiting) >= self.pool.queue and not self._at_once(job.tenant):
            self._full(f"{len(self._waiting)} jobs wait (`queue`)")
        if most is not None and self._waiting.waiting(job.tenant) >= most and not self._at_once(job.tenant):
            self._full(f"{self._waiting.waiting(job.tenant)} jobs of tenant `{job.tenant}` wait (its `queued`)")
        entry = self.book.add(job, self._output_limit(job))
        if self.book.payload > MAX_PAYLOAD_WAITING:
            self.book.remove(entry)
            self._full(f"jobs that have not ended take {MAX_PAYLOAD_WAITING >> 20} MiB")
        self.numbers["submitted"] += 1
        self.diary.job("submitted", entry)
        self._waiting.add(entry)
        self._pump()
        return entry.info()

    async def info(self, job_id: str) -> JobInfo:
        return self.book.get(job_id).info()

    async def jobs(
        self, *, state: State | None = None, tenant: str | None = None, labels: Mapping[str, str] | None = None, limit: int = 1000
    ) -> list[JobInfo]:
        """Newest first."""
        return self.book.select(state, tenant, labels, limit)

    async def wait(self, job_id: str, seconds: float | None = None) -> JobInfo:
        """Its end, or where it stands after `seconds`. All its output has been taken in when it is "done"."""
        entry = self.book.get(job_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while entry.state != "done":
                    await entry.change()
        return entry.info()

    async def output(self, job_id: str, *, follow: bool = True, stdout: int = 0, stderr: int = 0) -> AsyncIterator[Output]:
        """What it wrote from these offsets on, in the order it came in; `follow`: until its end."""
        async for piece in self.book.get(job_id).output.read(follow=follow, stdout=stdout, stderr=stderr):
            yield piece

    async def last_output(self, job_id: str, size: int, pieces: int) -> tuple[list[Output], int]:
        """The end of what it wrote, at most so many bytes in so many pieces; and how many bytes of both streams came before."""
        return self.book.get(job_id).output.last(size, pieces)

    async def feed(self, job_id: str, data: bytes, end: bool = False) -> None:
        """More standard input of an interactive job; waits while the pool has enough of it, or it has not begun. PoolError
        "unsupported"."""
        entry = self.book.get(job_id)
        if not entry.job.interactive:
            raise PoolError("unsupported", f"job `{job_id}` has no open standard input", "submit it with `interactive`")
        if entry.state == "done":
            raise PoolError("unsupported", f"job `{job_id}` has ended")
        lock = self._feeding.setdefault(job_id, asyncio.Lock())  # until its end
        async with lock:
            while entry.state == "queued":
                await entry.change()
            if not entry.fed:
                entry.fed = True
                self.diary.job("fed", entry)
            pieces = [data[begin : begin + FEED] for begin in range(0, len(data), FEED)] or [b""]
            for number, piece in enumerate(pieces, 1):
                if entry.ended is not None or entry.worker is None:
                    raise PoolError("unsupported", f"job `{job_id}` has ended")
                channel = self.workers[entry.worker].link()
                await channel.ask(Feed(entry.run, piece, end and number == len(pieces)), Done)

    async def signal(self, job_id: str, number: int) -> None:
        """A signal to its process; 9 kills, also one that is still queued. Nothing if it has ended."""
        if not 1 <= number <= 64:
            raise PoolError("unsupported", f"there is no signal {number}")
        entry = self.book.get(job_id)
        if entry.state != "done":
            self.diary.job("signalled", entry, signal=number)
        if entry.state == "queued":
            if number == 9:
                self._waiting.remove(entry)
                self._end(entry, JobResult(kind="killed", text="killed before it began"))
            elif len(entry.signals) < MAX_SIGNALS:
                entry.signals.append(number)
        elif entry.run in self._copies.runs:
            if number == 9 or len(entry.signals) < MAX_SIGNALS:
                entry.signals.append(number)
        elif entry.state != "done" and entry.worker is not None:
            await self.workers[entry.worker].link().put(Signal(entry.run, number))

    async def fork(self, job_id: str, count: int) -> list[JobInfo]:
        """`count` copies of a running job, each from where it stands, with output, pid, seed and clock of its own."""
        entry = self.book.get(job_id)
        self._check_open()
        if not 1 <= count <= MAX_FORK:
            raise PoolError("unsupported", f"{count} copies (1 to {MAX_FORK} at a time)")
        if entry.state != "running" or entry.worker is None:
            raise PoolError("unsupported", f"job `{job_id}` does not run: it is {entry.state}")
        worker = self.workers[entry.worker]
        channel = worker.link()
        if worker.load + count > worker.slots + self.pool.queue:  # they wait for VMs there: what was saved is in that worker
            self._full(f"worker {worker.number}, which has the job, has {worker.load} (`queue`)")
        if not self._waiting.may_run(entry.job.tenant, count):
            self._full(f"tenant `{entry.job.tenant}` may not run {count} more (its `running`)")
        # What it was made of is in its memory, and counts once however many copies there are.
        job = msgspec.structs.replace(
            entry.job, target="", args=(), env={}, files={}, stdin=b"", interactive=False, strace=None, retries=0
        )
        copies = [self.book.add(job, self._output_limit(job), entry.id) for _ in range(count)]
        for copy in copies:
            self._waiting.run(copy)
            self.book.sent(copy, worker.number)
            worker.runs[copy.run] = copy
        for copy in copies:
            self.diary.job("forked", copy)
        await self._copies.make(worker, channel, entry, copies)
        return [copy.info() for copy in copies]

    def _no_copies(self, worker: Worker, copies: Sequence[Entry]) -> None:
        for copy in copies:
            if copy.state != "done":
                self.diary.job("ended", copy, how="internal", text="it could not be made")
                self._release(worker, copy)
                self.book.remove(copy)
        self._look_whether_empty()
        self._pump()

    # -- what there is

    async def describe(self) -> PoolInfo:
        await asyncio.gather(*(worker.look(worker.patience(LOOK_SECONDS)) for worker in self.workers), return_exceptions=True)
        counts = self.book.counts
        return PoolInfo(
            version=version("agentfw"),
            api=API,
            pid=os.getpid(),
            state=self._state,
            started=self._started,
            queued=counts["queued"],
            running=counts["starting"] + counts["running"],
            done=self.book.finished,
            templates=sorted({DEFAULT_TEMPLATE, *self.pool.templates}),
            workers=[worker.info() for worker in self.workers],
        )

    async def metrics(self) -> dict[str, float]:
        """Counters and gauges by dotted name, summed over the workers and the router's own plugins ("longest": the longest)."""
        own = self.runtime.statistics() if self.runtime is not None else {}
        return await self._counting.statistics(own, self.workers, self._own_numbers())

    def _own_numbers(self) -> dict[str, float]:
        counts, waiting = self.book.counts, self._waiting
        running = counts["starting"] + counts["running"]
        return {
            **{f"pool.{name}": counts[name] for name in ("queued", "starting", "running")},
            **{f"pool.state.{name}": float(name == self._state) for name in STATES},  # true and false are no numbers in JSON
            **self._counting.tenants(self.pool.tenants, len(waiting), running, waiting.waiting, waiting.running),
            "pool.kept": counts["done"],
            "pool.done": self.book.finished,
            "pool.output_bytes": self.book.output_bytes,
            "pool.payload_bytes": self.book.payload,
            "pool.started": self._started,
            "pool.uptime_seconds": time.monotonic() - self._began,
            **{f"pool.{name}": self.numbers[name] for name in ("submitted", "refused", "retried", "lost", "reloads")},
            "pool.forked": self._copies.made,
        }

    async def usage(self) -> dict[str, Usage]:
        asked = [worker for worker in self.workers if worker.state in ("ready", "draining") and worker.channel is not None]
        looks = ((each.channel, each.patience(LOOK_SECONDS)) for each in asked if each.channel is not None)
        asking = (channel.ask(Look(), Used, seconds) for channel, seconds in looks)
        answers = await asyncio.gather(*asking, return_exceptions=True)
        found: dict[str, Usage] = {}
        for worker, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Used):
                found |= {worker.runs[run].id: usage for run, usage in answer.runs.items() if run in worker.runs}
        return found

    async def plugin(self, plugin: str, what: str, query: Mapping[str, str] | None = None, *, local: bool = True) -> Any:
        """What the router's plugin of this name tells of `what` (its `answer_api()`). `local`: whoever asks is this user."""
        if self.runtime is None:
            raise PoolError("unavailable", "the pool does not run")
        return await authority.answer_api(self.runtime.plugins, plugin, what, query or {}, local)

    # -- the configuration

    async def reload(self) -> list[str]:
        """Read the configuration again; -> the tables that changed. PoolError "bad_config": all goes on as before.

        The router and all workers check it first; it takes effect if none of them refuses. A worker that cannot go on with what
        it had agreed to is replaced at once, since its agents must not go on under rules that are no longer in force.
        """
        try:
            tables = await self._reload()
        except AgentfwError as error:
            self.diary.pool("reloaded", str(error), how="refused")
            raise
        self.diary.pool("reloaded", f"tables: {', '.join(tables) or 'none'}")
        return tables

    async def _reload(self) -> list[str]:
        async with self._reloading:
            runtime = self.runtime
            if runtime is None or self._state == "stopping":
                raise PoolError("unavailable", "the pool does not run")
            config, pool = changes.read_again(self._load, self.pool, len(self.workers), runtime.plugins)
            await templates.check(pool, config.run, (self.pool, self.config.run))
            configuration = Configuration.of(config)
            ready = [worker for worker in self.workers if worker.state == "ready"]
            await asyncio.gather(*(worker.link().ask(Check(configuration), Changed, CHECK_SECONDS) for worker in ready))
            tables = [name for name in ("run", "pool") if config.tables.get(name) != self.config.tables.get(name)]
            try:
                tables += (await runtime.reload(config)).tables
            finally:
                self._adopt(config, pool)
                ready = [worker for worker in self.workers if worker.state == "ready"]  # by now; the others will be set up so
                await asyncio.gather(*(self._apply(worker, configuration) for worker in ready))
            self.numbers["reloads"] += 1
            return tables

    def _adopt(self, config: Config, pool: PoolConfig) -> None:
        self.config, self.pool = config, pool
        self._generation += 1
        self.book.keep(pool.keep_jobs, pool.keep_output)
        self._waiting.changed()
        self._pump()

    async def _apply(self, worker: Worker, configuration: Configuration) -> None:
        setup = self.setup(worker)
        try:
            await worker.link().ask(Apply(configuration, setup.size, setup.idle, setup.listeners), Changed, RELOAD_SECONDS)
            worker.slots = setup.size
        except PoolError as error:
            worker.replace(f"it did not take the configuration that it had agreed to: {error}")

    # -- Owner (of workers)

    def setup(self, worker: Worker) -> Setup:
        count = len(self.workers)
        worker.generation = self._generation
        for template in (DEFAULT_TEMPLATE, *self.pool.templates):
            worker.known[DEFAULT_TENANT, template] = None
        return Setup(
            worker.number,
            count,
            divided(self.pool.size, count)[worker.number],
            divided(self.pool.warm, count)[worker.number],
            self._plugins,
            Configuration.of(self.config),
            self._engine,
            self.runtime.listeners if self.runtime is not None else (),
        )

    def ready(self, worker: Worker) -> None:
        self.diary.pool("worker_ready", f"process {worker.pid}", by="", worker=worker.number)
        if worker.generation != self._generation:
            worker.replace("it was started before the configuration changed")
        else:
            self._pump()

    def changed(self, worker: Worker) -> None:
        self._pump()

    def from_worker(self, worker: Worker, message: Any) -> None:
        entry = worker.runs.get(message.run)
        if entry is None:
            return  # of a copy that did not come to be, or of one that was given up
        if isinstance(message, Wrote):
            self.book.wrote(entry, message.stream, message.data)
        elif isinstance(message, Started):
            self.book.started(entry)
        elif isinstance(message, Ended):
            self._release(worker, entry)
            if message.lost and self._may_again(entry):
                # Its cell broke, and one of those in it is the reason: it does so alone, if it does it again.
                entry.job = msgspec.structs.replace(entry.job, isolation="process")
                self._again(entry)
            else:
                self._end(entry, message.result)
            self._pump()
        else:
            raise PoolError("internal", f"{type(message).__name__} is no event for a router")

    async def asked(self, worker: Worker, message: Any) -> msgspec.Struct:
        if isinstance(message, Ask) and self.runtime is not None:
            return await authority.answer(self.runtime.plugins, message)
        raise PoolError("unavailable", "the router does not answer this")

    def worker_lost(self, worker: Worker, reason: str) -> None:
        worker.known.clear()
        if not worker.went:
            self.diary.pool("worker_lost", reason, by="", worker=worker.number)
        for entry in list(worker.runs.values()):
            self._release(worker, entry)
            entry.workers_lost += 1
            if self._state == "stopping":
                self._end(entry, JobResult(kind="killed", text="the pool was stopped"))
            elif self._may_again(entry):
                self._again(entry)
            else:
                self.numbers["lost"] += 1
                more = f"; {entry.workers_lost} workers ended under it" if entry.workers_lost > 1 else ""
                self._end(entry, JobResult(kind="internal", text=f"worker_lost: worker {worker.number}: {reason}{more}"))
        self._pump()

    # -- how jobs go

    def _pump(self) -> None:
        """Deal out what waits, as long as somebody is free."""
        if self._state == "starting" or self._state == "stopping":
            return
        while len(self._waiting) and any(worker.free for worker in self.workers):
            entry = self._waiting.take()
            if entry is None:
                return  # all that wait may not run now
            worker = choose(self.workers, entry.place)
            assert worker is not None and worker.channel is not None
            self.book.sent(entry, worker.number)
            worker.runs[entry.run] = entry
            try:
                worker.channel.send(Run(entry.run, entry.job))
            except Exception as error:  # it is this job's fault, and nobody else's
                log.exception("job %s cannot be sent to a worker", entry.id)
                self._release(worker, entry)
                self._end(entry, JobResult(kind="internal", text=f"it cannot be sent to a worker: {type(error).__name__}"))
                continue
            for number in entry.signals:
                worker.channel.send(Signal(entry.run, number))
            entry.signals.clear()

    def _release(self, worker: Worker, entry: Entry) -> None:
        """The worker has it no more."""
        del worker.runs[entry.run]
        self._waiting.ended(entry)

    def _may_again(self, entry: Entry) -> bool:
        return (
            entry.attempt <= entry.job.retries
            and entry.workers_lost < MAX_LOSSES
            and not entry.fed
            and self._state in ("ready", "draining")
        )

    def _again(self, entry: Entry) -> None:
        self.numbers["retried"] += 1
        self.book.again(entry)
        self._waiting.add(entry)

    def _end(self, entry: Entry, result: JobResult) -> None:
        self.book.done(entry, result)
        self._counting.ended(entry.job.tenant, result)
        self._look_whether_empty()

    def _look_whether_empty(self) -> None:
        """Has the last job ended?"""
        if self._empty and self.book.counts["done"] == len(self.book):
            for waiter in self._empty:
                if not waiter.done():
                    waiter.set_result(None)

    # -- small things

    def _tenant(self, name: str) -> TenantConfig:
        return self.pool.tenants.get(name) or _NO_TENANT

    def _at_once(self, tenant: str) -> bool:
        """A job of this tenant would not wait."""
        return not len(self._waiting) and self._waiting.may_run(tenant) and any(worker.free for worker in self.workers)

    def _output_limit(self, job: Job) -> int:
        most = self.pool.limits.output
        return most if job.limits.output is None else min(most, job.limits.output)

    def _check_not_closed(self) -> None:
        if self._state == "stopping":
            raise PoolError("unavailable", "the pool was stopped while it started")

    def _check_open(self) -> None:
        if self._state in ("draining", "stopping"):
            raise PoolError("draining", "the pool takes no more jobs: it was told to drain, or to stop")

    def _full(self, why: str) -> None:
        self.numbers["refused"] += 1
        self.diary.pool("refused", why, how="pool_full")
        raise PoolError("pool_full", f"the pool is full: {why}", "try again later, or make it larger")


_NO_TENANT = TenantConfig()
