"""The pool without asyncio: each method drives that of the same name in `Pool`, on a loop in a thread of its own.

So it works in scripts, in threads, and where a loop is running already, as in a notebook.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, overload

from ..config import Config
from ..pool.jobs import Job, JobInfo, Output, PoolInfo, State
from .handle import Handle, Stream
from .mapping import Results
from .pool import Pool
from .programs import JobOptions, Program, StrPath
from .results import Result
from .thread import LoopThread, at_exit

T = TypeVar("T")
R = TypeVar("R", covariant=True)


class SyncPool:
    """`Pool` for programs without asyncio; arguments and errors are the same.

        with agentfw.SyncPool() as pool:
            result = pool.run("agent.py", ["--ticket", "17"])

    Ctrl-C in a method cancels what it waits for (`run` kills its job) and is raised as KeyboardInterrupt. May be used by several
    threads. Not in a process that was forked from the pool's: PoolError "unavailable".
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
        self._pool = Pool(config, plugins=plugins, workers=workers, size=size, idle=idle, **table)
        self._thread: LoopThread | None = None
        self._forget: Callable[[], None] | None = None

    @classmethod
    def connect(
        cls,
        socket: StrPath | None = None,
        *,
        url: str | None = None,
        token: str | None = None,
        token_file: StrPath | None = None,
    ) -> Self:
        """`Pool.connect()`."""
        return cls._around(Pool.connect(socket, url=url, token=token, token_file=token_file))

    @classmethod
    def over(cls, make: Callable[[], Any]) -> Self:
        """`Pool.over()`; `make` is called in the pool's own thread."""
        return cls._around(Pool.over(make))

    @classmethod
    def _around(cls, pool: Pool) -> Self:
        made = cls.__new__(cls)
        made._pool = pool
        made._thread = made._forget = None
        return made

    # -- life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> None:
        """As `with` does. Once."""
        if self._thread is None:
            self._thread = LoopThread("agentfw-pool")
            mine = weakref.ref(self)
            self._forget = at_exit(lambda: _close(mine()))
        try:
            self._call(self._pool.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """`Pool.close()`. Idempotent; the interpreter's exit does it, too. Nothing in a forked child."""
        thread = self._thread
        if thread is None or not thread.usable:
            return
        try:
            thread.call(self._pool.close())
        finally:
            thread.close()
            if self._forget is not None:
                self._forget()

    def _call(self, body: Coroutine[Any, Any, T]) -> T:
        if self._thread is None or not self._thread.usable:
            body.close()
            _ = self._pool.backend  # says what is wrong
            raise RuntimeError("a pool without its thread")
        return self._thread.call(body)

    # -- jobs

    def run(
        self, program: Program | Job, args: Sequence[StrPath] = (), *, check: bool = False, **options: Unpack[JobOptions]
    ) -> Result:
        """`Pool.run()`."""
        return self._call(self._pool.run(program, args, check=check, **options))

    def submit(
        self, program: Program | Job, args: Sequence[StrPath] = (), *, interactive: bool = False, **options: Unpack[JobOptions]
    ) -> SyncHandle:
        """`Pool.submit()`."""
        return SyncHandle(self, self._call(self._pool.submit(program, args, interactive=interactive, **options)))

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
    ) -> SyncResults[Result]: ...
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
    ) -> SyncResults[Result | Exception]: ...
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
    ) -> SyncResults[Any]:
        """`Pool.map()`: iterate over the results, or make a `list()` of them. `inputs` are taken in the pool's thread."""
        results: Results[Any] = self._pool.map(
            program, inputs, args, concurrency=concurrency, ordered=ordered, progress=progress, check=check,
            return_exceptions=return_exceptions, **options,
        )  # fmt: skip
        return SyncResults(self, results)

    def job(self, job_id: str) -> SyncHandle:
        """`Pool.job()`."""
        return SyncHandle(self, self._pool.job(job_id))

    def fork(self, job: SyncHandle | str, count: int = 1) -> list[SyncHandle]:
        """`Pool.fork()`."""
        return (job if isinstance(job, SyncHandle) else self.job(job)).fork(count)

    # -- the pool itself

    def jobs(
        self, *, state: State | None = None, tenant: str | None = None, labels: Mapping[str, str] | None = None, limit: int = 1000
    ) -> list[JobInfo]:
        """`Pool.jobs()`."""
        return self._call(self._pool.jobs(state=state, tenant=tenant, labels=labels, limit=limit))

    def describe(self) -> PoolInfo:
        """`Pool.describe()`."""
        return self._call(self._pool.describe())

    def metrics(self) -> dict[str, float]:
        """`Pool.metrics()`."""
        return self._call(self._pool.metrics())

    def drain(self) -> None:
        """`Pool.drain()`."""
        self._call(self._pool.drain())

    def reload(self) -> list[str]:
        """`Pool.reload()`."""
        return self._call(self._pool.reload())


class SyncResults(Generic[R]):
    """What `SyncPool.map()` returns: results one by one. Nothing runs before the first is asked for; what still runs when the
    iteration is given up is killed. For one use."""

    def __init__(self, pool: SyncPool, results: Results[R]) -> None:
        self._pool = pool
        self._results = results

    def __iter__(self) -> Iterator[R]:
        return _stepwise(self._pool, aiter(self._results))


class SyncHandle:
    """`Handle` for programs without asyncio."""

    def __init__(self, pool: SyncPool, handle: Handle) -> None:
        self._pool = pool
        self._handle = handle

    @property
    def id(self) -> str:
        return self._handle.id

    def info(self) -> JobInfo:
        """`Handle.info()`."""
        return self._pool._call(self._handle.info())

    def output(self, *, follow: bool = True, stdout: int = 0, stderr: int = 0) -> Iterator[Output]:
        """`Handle.output()`."""
        return _stepwise(self._pool, self._handle.output(follow=follow, stdout=stdout, stderr=stderr))

    def __iter__(self) -> Iterator[Output]:
        return self.output()

    def lines(self, stream: Stream = "stdout") -> Iterator[str]:
        """`Handle.lines()`."""
        return _stepwise(self._pool, self._handle.lines(stream))

    def wait(self, timeout: float | None = None, *, check: bool = False) -> Result:
        """`Handle.wait()`."""
        return self._pool._call(self._handle.wait(timeout, check=check))

    def feed(self, data: bytes | str, end: bool = False) -> None:
        """`Handle.feed()`."""
        self._pool._call(self._handle.feed(data, end))

    def signal(self, number: int) -> None:
        """`Handle.signal()`."""
        self._pool._call(self._handle.signal(number))

    def kill(self) -> None:
        """`Handle.kill()`."""
        self._pool._call(self._handle.kill())

    def fork(self, count: int = 1) -> list[SyncHandle]:
        """`Handle.fork()`."""
        return [SyncHandle(self._pool, each) for each in self._pool._call(self._handle.fork(count))]

    def __repr__(self) -> str:
        return f"<SyncHandle {self.id}>"


def _stepwise(pool: SyncPool, source: AsyncIterator[T]) -> Iterator[T]:
    """An asynchronous iterator, one step a call."""

    async def step() -> tuple[bool, T | None]:
        try:
            return True, await anext(source)
        except StopAsyncIteration:
            return False, None

    async def end() -> None:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()

    try:
        while True:
            more, item = pool._call(step())
            if not more:
                return
            yield item  # type: ignore[misc]  # None only if the source gives it
    finally:
        if pool._thread is not None and pool._thread.usable:
            pool._call(end())


def _close(pool: SyncPool | None) -> None:
    if pool is not None:
        pool.close()
