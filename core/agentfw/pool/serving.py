"""A worker's side of the link: an engine that is given jobs and tells what comes of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from importlib import import_module
from typing import Any

import msgspec

from ..config import Config
from ..errors import AgentfwError
from ..plugins import load_plugins
from ..relay.uses import recheck
from ..runtime import Runtime
from .authority import PoolLink, answer_query
from .config import PoolConfig
from .jobs import Job, JobResult, PoolError
from .link import Channel
from .messages import (
    MAX_NUMBERS,
    Apply,
    Changed,
    Check,
    Counts,
    Deal,
    Done,
    Ended,
    Failed,
    Feed,
    Fork,
    Keep,
    Look,
    Numbers,
    Ping,
    Query,
    Ready,
    Run,
    Setup,
    Signal,
    Spent,
    Started,
    Statistics,
    Stop,
    Used,
    Wrote,
)

ENGINE = "agentfw.pool.engine:Engine"
PIECE = 64 << 10
"""Bytes of output in a message."""
INPUT = 256 << 10
"""Bytes of standard input that wait for the program."""

FEEDERS = 16
"""Questions of a job that wait for its program to read."""

log = logging.getLogger("agentfw.pool")


class _Input:
    """Standard input of a job that stays open, after what it began with."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._ended = False
        self._waiting = 0
        self._more = asyncio.Event()
        self._room = asyncio.Event()

    async def feed(self, data: bytes, end: bool) -> None:
        """Returns when it has been taken."""
        if self._ended:
            raise PoolError("unsupported", "its standard input has ended")
        if self._waiting >= FEEDERS:  # of some of them nobody waits for the answer any more
            raise PoolError("unavailable", "its program does not read its standard input", "try again later")
        self._waiting += 1
        try:
            while sum(map(len, self._parts)) >= INPUT:
                self._room.clear()
                await self._room.wait()
        finally:
            self._waiting -= 1
        if self._ended:
            raise PoolError("unsupported", "its standard input has ended")
        if data:
            self._parts.append(data)
        self._ended = end
        self._more.set()

    def end(self) -> None:
        """Nobody reads any more."""
        self._ended = True
        self._parts.clear()
        self._more.set()
        self._room.set()

    async def read(self) -> AsyncIterator[bytes]:
        while True:
            while self._parts:
                part = self._parts.pop(0)
                self._room.set()
                yield part
            if self._ended:
                return
            self._more.clear()
            await self._more.wait()


class _Events:
    """`JobEvents` of one run."""

    def __init__(self, channel: Channel, run: str) -> None:
        self._channel = channel
        self._run = run

    def started(self, dispatch_seconds: float) -> None:
        self._channel.send(Started(self._run))

    def output(self, stream: int, data: bytes) -> Awaitable[None] | None:
        if len(data) > PIECE or self._channel.full:
            return self._put(stream, data)
        self._channel.send(Wrote(self._run, 1 if stream == 1 else 2, data))
        return None

    async def _put(self, stream: int, data: bytes) -> None:
        for begin in range(0, len(data), PIECE):
            await self._channel.put(Wrote(self._run, 1 if stream == 1 else 2, bytes(data[begin : begin + PIECE])))


class Serving:
    """The `Peer` of a worker's end. `channel` is set before the first message comes. `own_runtime`: the one to use instead of
    making one; `ended` is set when there is nothing more to do."""

    channel: Channel

    def __init__(self, runtime: Runtime | None = None) -> None:
        self.ended = asyncio.Event()
        self._given = runtime
        self._runtime: Runtime | None = None
        self._engine: Any = None
        self._inputs: dict[str, _Input] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Task[None] | None = None

    # -- Peer

    def event(self, message: Any) -> None:
        if isinstance(message, Run):
            source = _Input() if message.job.interactive else None
            if source is not None:
                self._inputs[message.run] = source  # it may be fed at once
            self._begin(self._run(message.run, message.job, source))
        elif isinstance(message, Signal):
            # In a later turn, as the run that it is for may have come just now, and begins in one.
            asyncio.get_running_loop().call_soon(self._signal, message.run, message.number)
        elif isinstance(message, Setup):
            self._starting = asyncio.get_running_loop().create_task(self._start(message))
        elif isinstance(message, Stop):
            self.ended.set()
        else:
            raise PoolError("internal", f"{type(message).__name__} is no event for a worker")

    async def request(self, message: Any) -> msgspec.Struct:
        if isinstance(message, Ping):
            return self._counts()
        if self._runtime is None or self._engine is None:
            raise PoolError("unavailable", "the worker has not started yet")
        if isinstance(message, Feed):
            found = self._inputs.get(message.run)
            if found is None:
                raise PoolError("unsupported", "it has ended, or its standard input is not open")
            await found.feed(message.data, message.end)
            return Done()
        if isinstance(message, Fork):
            return await self._fork(message.run, message.copies)
        if isinstance(message, Statistics):
            return Numbers(self._numbers())
        if isinstance(message, Look):
            return Used(self._engine.usage())
        if isinstance(message, Query):
            return await answer_query(self._runtime.plugins, message)
        if isinstance(message, Deal):
            return Spent(self._engine.deal(message.parts))
        if isinstance(message, Keep):
            await self._keep(message)
            return Done()
        if isinstance(message, Check):
            return Changed(await self._check(message.configuration.config()))
        if isinstance(message, Apply):
            return Changed(await self._apply(message))
        raise PoolError("internal", f"{type(message).__name__} is no question for a worker")

    def lost(self, reason: str) -> None:
        self.ended.set()

    def writable(self) -> None:
        pass

    # -- life

    async def _start(self, setup: Setup) -> None:
        try:
            config = setup.configuration.config()
            pool = engine_config(config)
            runtime = self._given
            if runtime is None:
                logging.getLogger("agentfw").setLevel(pool.log.upper())
                manager = load_plugins(setup.plugins, config)
                runtime = Runtime(asyncio.get_running_loop(), manager, config)
                runtime.pool = PoolLink(self.channel, setup.number)
                runtime.keep_from_agents("pool", setup.listeners)
                await runtime.start()
            self._runtime = runtime
            engine = engine_class(setup.engine)(runtime, pool, config.run, size=setup.size, idle=setup.idle)
            self._engine = engine
            await engine.start()
        except Exception as error:
            if not isinstance(error, AgentfwError):
                log.exception("worker %d cannot start", setup.number)
            text = str(error) if isinstance(error, AgentfwError) else f"{type(error).__name__}: {error}"
            code = "bad_config" if type(error).__name__ == "ConfigError" else getattr(error, "code", "internal")
            self.channel.send(Failed(code, text, getattr(error, "hint", "") or ""))
            return
        if self._given is None:  # this process is a worker, and stays one: what it has by now is not looked through again
            gc.collect()
            gc.freeze()
        self.channel.send(Ready())

    async def close(self) -> None:
        """End all that runs. Idempotent."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        runtime, self._runtime = self._runtime, None
        if runtime is not None and self._given is None:
            await runtime.stop()

    # -- jobs

    def _begin(self, what: Any) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _signal(self, run: str, number: int) -> None:
        if self._engine is not None:
            self._engine.signal(run, number)

    async def _run(self, run: str, job: Job, source: _Input | None) -> None:
        try:
            await self._tell_end(run, self._engine.run(job, run, _Events(self.channel, run), source and source.read()))
        finally:
            self._inputs.pop(run, None)
            if source is not None:
                source.end()

    async def _tell_end(self, run: str, running: Any) -> None:
        try:
            ended = Ended(run, await running)
        except PoolError as error:
            ended = Ended(run, JobResult(kind="internal", text=f"{error.code}: {error}"), lost=error.code == "worker_lost")
        except Exception as error:
            log.exception("the engine failed")
            ended = Ended(run, JobResult(kind="internal", text=f"the engine failed: {type(error).__name__}"))
        with contextlib.suppress(PoolError):  # the link is gone, and so are we
            await self.channel.put(ended)

    async def _fork(self, run: str, copies: Sequence[str]) -> Done:
        events = [_Events(self.channel, copy) for copy in copies]
        tasks = await self._engine.fork(run, copies, events)
        for copy, task in zip(copies, tasks, strict=True):
            self._begin(self._tell_end(copy, task))
        return Done()

    # -- the rest

    def _counts(self) -> Counts:
        if self._engine is None:
            return Counts()
        counts = self._engine.counts()
        return Counts(counts.running, counts.idle, counts.cells)

    def _numbers(self) -> dict[str, float]:
        assert self._runtime is not None
        found: dict[str, float] = dict(self._runtime.statistics()) if self._given is None else {}
        for name, value in msgspec.structs.asdict(self._engine.counts()).items():
            if isinstance(value, (int, float)):
                found[f"engine.{name}"] = value
            elif isinstance(value, dict):
                found.update({f"engine.{each}": number for each, number in value.items()})
        return dict(list(found.items())[:MAX_NUMBERS])

    async def _check(self, config: Config) -> list[str]:
        assert self._runtime is not None
        tables = self._runtime.plugins.check(config)
        await self._engine.check(engine_config(config), config.run)
        return tables

    async def _keep(self, message: Keep) -> None:
        assert self._runtime is not None
        if self._given is None:
            self._runtime.keep_from_agents("pool", message.listeners)
            await recheck(self._runtime.uses)

    async def _apply(self, message: Apply) -> list[str]:
        assert self._runtime is not None
        config = message.configuration.config()
        tables: list[str] = []
        if self._given is None:
            self._runtime.keep_from_agents("pool", message.listeners)
            tables = list((await self._runtime.reload(config)).tables)
        self._engine.reload(engine_config(config), config.run)
        return tables


def engine_config(config: Config) -> PoolConfig:
    """[pool] for an engine: how many jobs a tenant runs in the whole pool is for the router to count."""
    pool = config.plugin("pool", PoolConfig)
    tenants = {name: msgspec.structs.replace(tenant, running=None) for name, tenant in pool.tenants.items()}
    return msgspec.structs.replace(pool, tenants=tenants)


def engine_class(name: str) -> Any:
    """MODULE:CLASS; another one than ENGINE in tests."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
