"""Pools with the fake engine: routers with worker processes or within this one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentfw.config import Config
from agentfw.pool.jobs import Job, JobInfo
from agentfw.pool.router import Router
from agentfw.pool.workers import Patience

from ..core.support import async_test

ENGINE = "fake_engine:Engine"
QUICK = Patience(heartbeat=0.5, hang=30.0, start=60.0, stop=20.0, first_delay=0.05, longest_delay=0.4)


def pool_test(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in a loop of its own; tasks and processes left over are an error."""

    alone = async_test(function)

    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> None:
        with _fake_engine_importable():
            alone(*args, **keywords)
        assert not children(), "processes left behind"

    return run


@contextlib.contextmanager
def _fake_engine_importable() -> Any:
    import sys

    here = str(Path(__file__).parent)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = here
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def children() -> list[int]:
    """Processes of ours that are workers."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for pid in map(int, (task / "children").read_text().split()):
                if b"agentfw.pool.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
    return found


@asynccontextmanager
async def running(
    *,
    local: bool = False,
    plugins: tuple[str, ...] = (),
    tables: dict[str, Any] | None = None,
    patience: Patience = QUICK,
    **pool: Any,
) -> AsyncIterator[Router]:
    """A pool of one worker with eight VMs, unless `pool` says otherwise."""
    config = Config({**(tables or {}), "pool": {"workers": 1, "size": 8, "idle": 2, **pool}})
    router = Router(config, plugins, load=lambda: config, local=local, patience=patience, engine=ENGINE)
    await router.start()
    try:
        yield router
    finally:
        await router.close()


def job(*steps: list[Any], **keywords: Any) -> Job:
    return Job(mode="code", target=json.dumps(steps), **keywords)


async def until(what: Callable[[], bool | Awaitable[bool]]) -> None:
    """Looks every 10 ms; the test's own time is the limit."""
    while True:
        found = what()
        if found if isinstance(found, bool) else await found:
            return
        await asyncio.sleep(0.01)


async def until_running(router: Router, *ids: str) -> None:
    for job_id in ids:
        await until(lambda: router.book.get(job_id).state == "running")  # noqa: B023 (awaited here)


async def finish(router: Router, *steps: list[Any], **keywords: Any) -> JobInfo:
    """Submit it and wait for its end."""
    info = await router.submit(job(*steps, **keywords))
    return await router.wait(info.id)


async def stdout(router: Router, job_id: str, stream: int = 1) -> bytes:
    return b"".join([piece.data async for piece in router.output(job_id) if piece.stream == stream])
