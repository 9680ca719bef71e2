"""Workers that exit, are killed, or hang: they are replaced, their jobs told or run again, and nothing is left of anybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from agentfw.config import Config
from agentfw.pool.jobs import PoolError
from agentfw.pool.router import Router
from agentfw.pool.workers import MOMENT

from .routers import ENGINE, QUICK, finish, job, pool_test, running, stdout, until


@pool_test
async def test_a_worker_that_dies_is_replaced_and_its_jobs_are_told() -> None:
    async with running(workers=2) as router:
        before = {worker.number: worker.pid for worker in (await router.describe()).workers}
        bystander = await router.submit(job(["cat"], interactive=True))
        for how, status in (["die", 5], "exit status 5"), (["kill"], "killed by signal 9"):
            info = await finish(router, ["out", "last words"], ["sleep", 0.05], how)
            assert info.result is not None and info.result.kind == "internal" and info.result.status == 125
            assert info.result.text.startswith("worker_lost: worker 1: ") and status in info.result.text
            assert await stdout(router, info.id) == b"last words"
            await until(lambda: all(worker.state == "ready" for worker in router.workers))
        await router.feed(bystander.id, b"", end=True)
        assert (await router.wait(bystander.id)).result.status == 0  # type: ignore[union-attr]
        after = {worker.number: worker.pid for worker in (await router.describe()).workers}
        assert after[0] == before[0] and after[1] != before[1]
        numbers = await router.metrics()
        assert numbers["pool.worker_restarts"] == numbers["pool.lost"] == 2 and numbers["pool.retried"] == 0
        infos = [await router.submit(job(["sleep", 0.05])) for _ in range(4)]
        assert {info.worker for info in infos} == {0, 1}
        for pid in after.values():  # what agents said is in their memory
            limits = Path(f"/proc/{pid}/limits").read_text().splitlines()  # noqa: ASYNC240
            assert next(line for line in limits if line.startswith("Max core file size")).split()[4] == "0"


@pool_test
async def test_a_worker_that_hangs_is_killed() -> None:
    async with running(workers=1, patience=replace(QUICK, heartbeat=0.2, hang=2.0)) as router:
        (worker,) = (await router.describe()).workers
        info = await finish(router, ["hang", 50])
        assert info.result is not None and "did not answer" in info.result.text and "signal 9" in info.result.text
        assert not os.path.exists(f"/proc/{worker.pid}")  # noqa: ASYNC240, PTH110
        assert (await finish(router)).result.status == 0  # type: ignore[union-attr]


@pool_test
async def test_one_that_stands_still_is_named_and_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who looks at the pool meanwhile would wait for it at each look: the page stood still."""
    monkeypatch.setattr("agentfw.pool.router.LOOK_SECONDS", 3.0)
    async with running(workers=2, patience=replace(QUICK, heartbeat=60.0)) as router:
        stopped = router.workers[0]
        assert stopped.patience(7.0) == 7.0 and not any(worker.silent for worker in (await router.describe()).workers)
        os.kill(stopped.pid, signal.SIGSTOP)
        assert [worker.silent for worker in (await router.describe()).workers] == [True, False]
        assert stopped.patience(7.0) == MOMENT and router.workers[1].patience(7.0) == 7.0
        await router.describe()
        assert [record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()] == [
            f"worker 0 (process {stopped.pid}) does not answer: what it counts is told as it was before"
        ]
        os.kill(stopped.pid, signal.SIGCONT)
        await until(lambda: not stopped.silent)  # its late answers come
        assert not any(worker.silent for worker in (await router.describe()).workers) and stopped.patience(7.0) == 7.0


@pool_test
async def test_a_job_that_may_is_run_again_from_its_beginning() -> None:
    async with running(workers=1, size=2) as router:
        info = await router.submit(job(["out", "abc"], ["sleep", 0.8], ["agent"], retries=2))
        waiting = [await router.submit(job(["sleep", 5], retries=1)) for _ in range(1)]
        read: list[tuple[int, bytes]] = []

        async def follow() -> None:
            async for piece in router.output(info.id):
                read.append((piece.offset, piece.data))

        following = asyncio.ensure_future(follow())
        await until(lambda: bool(read))
        os.kill(router.workers[0].pid, signal.SIGKILL)
        await until(lambda: router.book.get(info.id).state == "queued")
        assert (await router.info(info.id)).attempt == 2
        await router.signal(waiting[0].id, 9)
        done = await router.wait(info.id)
        assert (done.attempt, done.result.status) == (2, 0)  # type: ignore[union-attr]
        await following
        second = f"{info.id}.2".encode()
        assert read == [(0, b"abc"), (4, b"abc"), (7, second)], "a gap says that it began again"
        late = [(piece.offset, piece.data) async for piece in router.output(info.id)]
        assert late == [(4, b"abc" + second)], "what the first attempt wrote is not kept"
        assert (await router.metrics())["pool.retried"] == 2


@pool_test
async def test_a_cell_that_dies_costs_an_attempt_and_no_worker() -> None:
    async with running(workers=1) as router:
        info = await finish(router, ["out", "x"], ["cell"], retries=2)
        assert (info.attempt, info.result.kind) == (3, "internal")  # type: ignore[union-attr]
        assert "worker_lost" in info.result.text  # type: ignore[union-attr]
        assert (await router.metrics())["pool.worker_restarts"] == 0


@pool_test
async def test_a_job_that_kills_workers_is_not_run_for_ever() -> None:
    async with running(workers=1) as router:
        info = await finish(router, ["die", 1], retries=10)
        assert info.attempt == 3 and "3 workers ended under it" in info.result.text  # type: ignore[union-attr]
        info = await router.submit(job(["cat"], ["die", 1], retries=10, interactive=True))
        await router.feed(info.id, b"x", end=True)
        assert (await router.wait(info.id)).attempt == 1, "what it was fed is not kept"


@pytest.mark.parametrize(("how", "text"), [("broken", "there is no /dev/kvm"), ("dies", "exit status 3")])
def test_a_pool_whose_workers_cannot_start_says_so(how: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", how)

    @pool_test
    async def body() -> None:
        with pytest.raises(PoolError, match=text):
            async with running():
                pass

    body()


ROUTER = """
import asyncio, json, os, sys
from tests.pool.routers import ENGINE, QUICK, job
from agentfw.config import Config
from agentfw.pool.router import Router

async def main():
    config = Config({"pool": {"workers": 2, "size": 8, "idle": 0}})
    router = Router(config, ("dns",), load=lambda: config, patience=QUICK, engine=ENGINE)
    await router.start()
    for _ in range(4):
        await router.submit(job(["sleep", 60]))
    await router.submit(job(["flood", 1 << 40]))
    print(json.dumps([worker.pid for worker in router.workers]), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_nothing_is_left_of_a_router_that_is_killed(nothing_left: None, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}:{Path(__file__).parent}", "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", ROUTER], stdout=subprocess.PIPE, env=environment, cwd=tmp_path) as router:
        assert router.stdout is not None
        pids = json.loads(router.stdout.readline())
        assert len(pids) == 2
        router.kill()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # they are ours now, and ended
            os.waitpid(pid, 0)
        assert not Path(f"/proc/{pid}").exists()
    assert not list(tmp_path.iterdir())


@pool_test
async def test_a_pool_that_is_closed_while_it_starts() -> None:
    for delay in (0, 0.02, 0.2):
        config = Config({"pool": {"workers": 2, "size": 2, "idle": 0}})
        router = Router(config, (), load=lambda config=config: config, patience=QUICK, engine=ENGINE)  # type: ignore[misc]
        starting = asyncio.ensure_future(router.start())
        await asyncio.sleep(delay)
        await router.close()
        try:
            await starting
        except PoolError as error:
            assert "stopped" in str(error)
        else:
            assert delay > 0.1, "it cannot have been so quick"
