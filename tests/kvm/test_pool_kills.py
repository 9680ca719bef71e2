"""kill -9 of any process of a pool: what it did is told or done again, and no process, VM, socket or file of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentfw.config import Config
from agentfw.pool.jobs import Job, JobInfo
from agentfw.pool.router import Router

from ..pool.routers import pool_test, stdout, until, until_running
from ..processes import alive, all_end

pytestmark = pytest.mark.kvm

POOL = {"pool": {"workers": 2, "size": 8, "idle": 2}}


@pytest.fixture(autouse=True)
def place(agentfw_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Snapshots of the session's, and temporary files in a directory of their own, of which nothing may be left."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    for name, value in {**agentfw_environment, "TMPDIR": str(directory), "XDG_RUNTIME_DIR": str(directory)}.items():
        monkeypatch.setenv(name, value)
    shared = set(os.listdir("/dev/shm"))  # noqa: PTH208
    yield directory
    assert not list(directory.iterdir())
    assert set(os.listdir("/dev/shm")) <= shared  # noqa: PTH208


def children(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.update(map(int, (task / "children").read_text().split()))
    return found


def sleeper(text: str = "", **more: object) -> Job:
    return Job(mode="code", target=f"import time\nprint({text!r}, flush=True)\ntime.sleep(100)", **more)  # type: ignore[arg-type]


async def started(router: Router, job: Job) -> JobInfo:
    info = await router.submit(job)
    await until_running(router, info.id)
    await anext(router.output(info.id))
    return await router.info(info.id)


def test_cells_and_workers_that_are_killed() -> None:
    @pool_test
    async def body() -> None:
        config = Config(POOL)
        router = Router(config, (), load=lambda: config)
        try:
            await router.start()
            one = await started(router, sleeper("x"))
            two = await started(router, sleeper("x", retries=1))
            assert {one.worker, two.worker} == {0, 1}
            assert one.worker is not None and two.worker is not None

            cells = children(router.workers[one.worker].pid)
            assert cells
            for pid in cells:
                os.kill(pid, signal.SIGKILL)
            ended = (await router.wait(one.id)).result
            assert ended is not None and ended.kind == "internal" and ended.text
            assert (await router.info(two.id)).state == "running", "another worker's"
            await until(lambda: not alive(cells))

            worker = router.workers[two.worker]
            cells = children(worker.pid)
            assert cells
            os.kill(worker.pid, signal.SIGKILL)
            await until(lambda: router.book.get(two.id).attempt == 2)
            await until_running(router, two.id)
            await until(lambda: not alive(cells))
            assert (await router.info(two.id)).attempt == 2
            await router.signal(two.id, 9)
            assert (await router.wait(two.id)).result.kind == "killed"  # type: ignore[union-attr]
            await until(lambda: worker.state == "ready")
            again = await router.submit(Job(mode="code", target="print(6 * 7)"))
            assert (await router.wait(again.id)).result.status == 0  # type: ignore[union-attr]
            assert await stdout(router, again.id) == b"42\n"
            below = {pid for each in router.workers for pid in children(each.pid)}
        finally:
            await router.close()
        assert all_end(below), "cells end with the pool"

    body()


ROUTER = """
import asyncio, json, os, sys
from agentfw.config import Config
from agentfw.pool.router import Router
from tests.kvm.test_pool_kills import POOL, children, sleeper, started

async def main():
    config = Config(POOL)
    router = Router(config, (), load=lambda: config)
    await router.start()
    for _ in range(4):
        await started(router, sleeper("x"))
    pids = [worker.pid for worker in router.workers]
    print(json.dumps([*pids, *(cell for pid in pids for cell in children(pid))]), flush=True)
    await asyncio.sleep(100)

asyncio.run(main())
"""


def test_a_router_that_is_killed(nothing_left: None) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", ROUTER], stdout=subprocess.PIPE, env=environment) as router:
        assert router.stdout is not None
        pids = set(json.loads(router.stdout.readline()))
        assert len(pids) >= 4 and alive(pids) == pids
        router.kill()
    asyncio.run(asyncio.wait_for(until(lambda: not alive(pids)), 30))
