"""An engine for tests, and what its jobs say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from agentfw.config import RunConfig
from agentfw.pool.config import PoolConfig
from agentfw.pool.engine import Engine
from agentfw.pool.jobs import Job, JobResult
from agentfw.snapshots import SnapshotStore
from agentfw.testing import make_runtime

T = TypeVar("T")


class Heard:
    """JobEvents that keeps all."""

    def __init__(self) -> None:
        self.dispatch: float | None = None
        self.streams: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self.began = asyncio.Event()
        self.line = asyncio.Event()

    def started(self, dispatch_seconds: float) -> None:
        self.dispatch = dispatch_seconds
        self.began.set()

    async def output(self, stream: int, data: bytes) -> None:
        self.streams[stream] += data
        if b"\n" in data:
            self.line.set()

    @property
    def out(self) -> str:
        return self.streams[1].decode("utf-8", "replace")

    @property
    def err(self) -> str:
        return self.streams[2].decode("utf-8", "replace")


@asynccontextmanager
async def engine(
    store: Path, *plugins: object, size: int = 4, idle: int = 1, run: Mapping[str, Any] | None = None, **pool: Any
) -> AsyncIterator[Engine]:
    runtime = make_runtime(*plugins)
    await runtime.start()
    try:
        found = Engine(
            runtime,
            PoolConfig(size=size, idle=idle, **pool),
            RunConfig(**(run or {})),
            size=size,
            idle=idle,
            store=SnapshotStore(store),
        )
        await found.start()
        try:
            yield found
        finally:
            await found.close()
    finally:
        await runtime.stop()


_numbers = iter(range(1, 1 << 30))


async def run(engine: Engine, code: str = "", **job: Any) -> tuple[JobResult, Heard]:
    """Run code (or what `job` says otherwise) to its end."""
    heard = Heard()
    fields: dict[str, Any] = {"mode": "code", "target": code, **job}
    return await asyncio.wait_for(engine.run(Job(**fields), str(next(_numbers)), heard, None), 60), heard


def in_loop(body: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(body(), 120))
