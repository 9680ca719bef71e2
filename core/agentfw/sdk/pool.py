"""The pool: of this process's own (embedded), or one that `agentfw pool start` runs (connected)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from ..config import Config, load_config
from ..plugins import chosen_plugins
from ..pool.backend import Backend
from ..pool.jobs import Job, JobInfo, PoolError, PoolInfo, State
from . import progress as bars
from .errors import JobFailed
from .handle import Handle, collect
from .mapping import Results, mapped
from .programs import JobOptions, Loaded, Program, StrPath, as_input, load, make_job, reads
from .results import Result

T = TypeVar("T")

KILL_SECONDS = 5.0
FULL_SECONDS = (0.05, 2.0)
"""Pauses, first and longest, of `map` before it tries a pool again that has as many waiting jobs as it takes."""
AT_ONCE = 256
"""Jobs of `map` at once, where the pool does not tell its size."""


class Pool:
    """A pool of VMs, and the way to run programs in them.

        async with agentfw.Pool() as pool:
            result = await pool.run("agent.py", ["--ticket", "17"])

    Embedded: it begins with `async with` and ends with it, and so do all its jobs. `config`: an agentfw.toml's path, its tables,
    or None for the nearest agentfw.toml from here upward; `plugins`: names or files, in calling order, instead of that file's;
    `workers`: so many processes share the work, None: it is done in this one, on the running loop; `size`, `idle`, `template`
    and whatever else [pool] has: keys of that table, instead of the file's.

    Connected: `Pool.connect()`.

    May raise PoolError, ConfigError, PluginError, FleetError and TemplateError at the start; all are AgentfwError.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | StrPath | None = None,
        *,
        plugins: Sequence[str] | None = None,
        workers: int | None = None,
        size: int | None = None,
        idle: int | None = None,
        **table: Any,
    ) -> None:
        keys = {**table, **{k: v for k, v in (("workers", workers), ("size", size), ("idle", idle)) if v is not None}}
        self._make: Callable[[], Any] = lambda: _embedded(config, plugins, workers is None, keys)
        self._begin()

    @classmethod
    def connect(
        cls,
        socket: StrPath | None = None,
        *,
        url: str | None = None,
        token: str | None = None,
        token_file: StrPath | None = None,
    ) -> Self:
        """A pool that runs already: by its socket, or by `url` ("http://HOST:PORT") with its token or the file of it; without
        either the one that `agentfw submit` would find. PoolError at the start if nobody answers. Leaving the context leaves
        jobs of `submit` to it, and kills those that `run` and `map` wait for."""

        def make() -> Any:
            from .connecting import backend

            place, file = (None if each is None else os.fspath(each) for each in (socket, token_file))
            return backend(place, url, token, file)

        pool = cls.over(make)
        pool._ask = True
        return pool

    @classmethod
    def over(cls, make: Callable[[], Any]) -> Self:
        """Any other Backend: `make()` is called at the start; its `start()` and `close()`, if it has them, with the context."""
        pool = cls.__new__(cls)
        pool._make = make
        pool._begin()
        return pool

    def _begin(self) -> None:
        self._backend: Any = None
        self._ask = False
        self._pid = os.getpid()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    # -- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def start(self) -> None:
        """As `async with` does. Once."""
        if self._backend is not None or self._closed:
            raise PoolError("unsupported", "a pool is started once", "make another `agentfw.Pool()`")
        self._pid = os.getpid()
        backend = self._make()
        try:
            start = getattr(backend, "start", None)
            if start is not None:
                await start()
            if self._ask:
                await backend.describe()
        except BaseException:
            self._closed = True
            await _close(backend)
            raise
        self._backend = backend

    async def close(self) -> None:
        """End what `run` and `map` wait for, and the pool if it is ours, with all its jobs. Idempotent; nothing in a process
        that was forked from the pool's."""
        if os.getpid() != self._pid:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=KILL_SECONDS)
        backend, self._backend = self._backend, None
        if backend is not None:
            await _close(backend)

    @property
    def backend(self) -> Backend:
        """What does the work. PoolError "unavailable" before the start, after the end, and in a forked child."""
        if os.getpid() != self._pid:
            raise PoolError(
                "unavailable",
                f"this pool is that of process {self._pid}, which this one was forked from",
                "make a pool after the fork, or let both connect to one: `agentfw.Pool.connect()`",
            )
        if self._backend is None:
            what = "the pool is closed" if self._closed else "the pool is not started"
            raise PoolError("unavailable", what, "use it inside `async with agentfw.Pool() as pool`")
        backend: Backend = self._backend
        return backend

    # -- jobs

    async def run(
        self, program: Program | Job, args: Sequence[StrPath] = (), *, check: bool = False, **options: Unpack[JobOptions]
    ) -> Result:
        """Run it to its end. `check`: raise JobFailed if that is a bad one. Cancelling this kills the job.

        `program`: a script's path (it is read here and sent), `Code("...")`, `Module("name")`, `Mounted("/path")`, or a Job.
        """
        job = await self._job(program, args, options)
        return await self._tracked(self._finished(job, None, check, patient=False))

    async def submit(
        self, program: Program | Job, args: Sequence[StrPath] = (), *, interactive: bool = False, **options: Unpack[JobOptions]
    ) -> Handle:
        """Begin it, and return at once. `interactive`: its standard input stays open for `Handle.feed()`."""
        job = await self._job(program, args, options, interactive)
        info = await self._submitted(job)
        return Handle(self, info.id, info)

    @overload
    def map(
        self,
        program: Program,
        inputs: Iterable[Any] | AsyncIterable[Any],
        args: Sequence[StrPath] = (),
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        progress: bool = True,
        check: bool = False,
        return_exceptions: Literal[False] = False,
        **options: Unpack[JobOptions],
    ) -> Results[Result]: ...
    @overload
    def map(
        self,
        program: Program,
        inputs: Iterable[Any] | AsyncIterable[Any],
        args: Sequence[StrPath] = (),
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        progress: bool = True,
        check: bool = False,
        return_exceptions: Literal[True],
        **options: Unpack[JobOptions],
    ) -> Results[Result | Exception]: ...
    @overload
    def map(
        self,
        program: Program,
        inputs: Iterable[Any] | AsyncIterable[Any],
        args: Sequence[StrPath] = (),
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        progress: bool = True,
        check: bool = False,
        return_exceptions: bool,
        **options: Unpack[JobOptions],
    ) -> Results[Any]: ...
    def map(
        self,
        program: Program,
        inputs: Iterable[Any] | AsyncIterable[Any],
        args: Sequence[StrPath] = (),
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        progress: bool = True,
        check: bool = False,
        return_exceptions: bool = False,
        **options: Unpack[JobOptions],
    ) -> Results[Any]:
        """One job an input; `async for` over the results, or `await` a list of them. `Result.input` says which input it was.

        An input: text (one more argument), texts (more arguments), bytes (standard input), a mapping (one JSON document on
        standard input) or an `Input`. `concurrency`: jobs at once, None: as many as the pool has VMs; `ordered`: results in the
        order of the inputs, else as they come; `progress`: a bar, if stderr is a terminal; `check`: a job that ends badly raises
        JobFailed, and the rest is killed; `return_exceptions`: it, or a job that the pool refused, is given as a result instead.
        A pool that takes no more waiting jobs is tried again.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError("concurrency: at least 1")

        async def one(loaded: Loaded, given: Any) -> Any:
            try:
                job = make_job(loaded, args, options, as_input(given))
                return await self._finished(job, given, check, patient=True)
            except (JobFailed, PoolError) as error:
                if not return_exceptions:
                    raise
                return error

        async def results() -> AsyncIterator[Any]:
            backend = self.backend
            loaded = await self._loaded(program, options)
            most = concurrency or _size(backend)
            bar = bars.bar(progress, loaded.name or "jobs", _length(inputs))
            done = mapped(
                inputs,
                lambda _, given: self._tracked(one(loaded, given)),
                concurrency=most,
                ordered=ordered,
                progress=bar,
                ok=lambda result: isinstance(result, Result) and result.ok,
            )
            async with contextlib.aclosing(done) as every:  # type: ignore[type-var]  # it is a generator
                async for result in every:
                    yield result

        return Results(results)

    def job(self, job_id: str) -> Handle:
        """A job of the pool by its id."""
        return Handle(self, job_id)

    async def fork(self, job: Handle | str, count: int = 1) -> list[Handle]:
        """`Handle.fork()`."""
        return await (job if isinstance(job, Handle) else self.job(job)).fork(count)

    # -- the pool itself

    async def jobs(
        self, *, state: State | None = None, tenant: str | None = None, labels: Mapping[str, str] | None = None, limit: int = 1000
    ) -> list[JobInfo]:
        """Newest first."""
        return await self.backend.jobs(state=state, tenant=tenant, labels=labels, limit=limit)

    async def describe(self) -> PoolInfo:
        """Its state, its workers and what they have."""
        return await self.backend.describe()

    async def metrics(self) -> dict[str, float]:
        """Counters and gauges by dotted name, summed over the workers."""
        return await self.backend.metrics()

    async def drain(self) -> None:
        """Take no more jobs; returns when the last has ended."""
        await self.backend.drain()

    async def reload(self) -> list[str]:
        """Read agentfw.toml again; -> the tables that changed."""
        return await self.backend.reload()

    # -- inside

    async def _job(self, program: Program | Job, args: Sequence[StrPath], options: JobOptions, interactive: bool = False) -> Job:
        _ = self.backend  # before anything is read
        if isinstance(program, Job):
            if args or options or interactive:
                raise TypeError("a Job has its arguments and options already")
            program.check()
            return program
        return make_job(await self._loaded(program, options), args, options, None, interactive)

    @staticmethod
    async def _loaded(program: Program, options: JobOptions) -> Loaded:
        """A thread is for what is read from files: to go there and back takes longer than what is between."""
        files = options.get("files")
        return await asyncio.to_thread(load, program, files) if reads(program, files) else load(program, None)

    async def _tracked(self, body: Coroutine[Any, Any, T]) -> T:
        """`close()` ends it, too."""
        task = asyncio.ensure_future(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self._closed and not (me is not None and me.cancelling()):
                raise PoolError("unavailable", "the pool was closed before the job had ended") from None
            raise

    async def _finished(self, job: Job, given: Any, check: bool, patient: bool) -> Result:
        backend = self.backend
        info = await self._submitted(job, patient)
        try:
            result = await collect(backend, info.id, given)
        except BaseException:
            await _unhurried(_killed(backend, info.id))
            raise
        return result.check() if check else result

    async def _submitted(self, job: Job, patient: bool = False) -> JobInfo:
        pause, longest = FULL_SECONDS
        while True:
            try:
                return await _taken(self.backend, job)
            except PoolError as error:
                if not patient or error.code != "pool_full":
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)


async def _taken(backend: Backend, job: Job) -> JobInfo:
    """A job that was taken while its caller was cancelled is killed: nobody would know its id."""
    take: Callable[[Job], JobInfo] | None = getattr(backend, "take", None)
    if take is None:
        request = asyncio.ensure_future(backend.submit(job))
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            await _unhurried(_taken_back(backend, request))
            raise
    info = take(job)  # a pool in this process: no task, no turns of the loop
    try:
        await asyncio.sleep(0)  # but the one that others on this loop may count on
    except asyncio.CancelledError:
        await _unhurried(_killed(backend, info.id))
        raise
    return info


def _embedded(
    config: Config | Mapping[str, Any] | StrPath | None, plugins: Sequence[str] | None, local: bool, keys: Mapping[str, Any]
) -> Any:
    from ..pool.router import Router

    def read() -> Config:
        if isinstance(config, Config):
            found = config
        elif isinstance(config, Mapping):
            found = Config(config)
        else:
            found = load_config(None if config is None else Path(os.fspath(config)))
        return found.with_keys("pool", keys) if keys else found

    first = read()
    return Router(first, chosen_plugins(first) if plugins is None else tuple(plugins), load=read, local=local)


async def _close(backend: Any) -> None:
    close = getattr(backend, "close", None)
    if close is not None:
        await close()


async def _killed(backend: Backend, job_id: str) -> None:
    with contextlib.suppress(PoolError):
        await backend.signal(job_id, signal.SIGKILL)


async def _taken_back(backend: Backend, request: asyncio.Future[JobInfo]) -> None:
    with contextlib.suppress(PoolError):
        await _killed(backend, (await request).id)


async def _unhurried(body: Awaitable[None]) -> None:
    """Done to its end, within bounds, though we are being cancelled again."""
    task = asyncio.ensure_future(body)
    end = asyncio.get_running_loop().time() + KILL_SECONDS
    while not task.done() and (left := end - asyncio.get_running_loop().time()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task], timeout=left)
    if not task.done():
        task.cancel()


def _length(inputs: object) -> int | None:
    try:
        return len(inputs)  # type: ignore[arg-type]
    except TypeError:
        return None


def _size(backend: Backend) -> int:
    """The router tells its table [pool]."""
    size = getattr(getattr(backend, "pool", None), "size", None)
    return size if isinstance(size, int) and size > 0 else AT_ONCE
