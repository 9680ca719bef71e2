"""What goes wrong around jobs: cells that die, templates that cannot be made, no KVM, no memory; and what a reload changes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agentfw.config import RunConfig
from agentfw.plugins import failures
from agentfw.pool import engine as engine_module
from agentfw.pool import pressure
from agentfw.pool.config import PoolConfig, TemplateConfig, TenantConfig
from agentfw.pool.engine import Engine
from agentfw.pool.groups import Trouble
from agentfw.pool.jobs import Job, JobResult, PoolError
from agentfw.snapshots import SnapshotStore

from ..descriptors import left, opened
from .engines import Heard, engine, in_loop, run

pytestmark = [pytest.mark.kvm, pytest.mark.usefixtures("nothing_left")]

WAITS = "import time\nprint('on', flush=True)\nwhile True: time.sleep(0.01)"


@pytest.fixture
def store(agentfw_environment: dict[str, str]) -> Path:
    return Path(agentfw_environment["XDG_CACHE_HOME"]) / "agentfw/snapshots"


async def started(pool: Engine, job_id: str, **fields: Any) -> asyncio.Task[JobResult]:
    heard = Heard()
    task = asyncio.create_task(pool.run(Job(mode="code", target=WAITS, **fields), job_id, heard, None))
    await asyncio.wait_for(heard.line.wait(), 60)
    return task


def cells(pool: Engine) -> dict[int, int]:
    """Process id -> VMs that run in it."""
    found = [cell for group in pool._stock.groups.values() for cell in group.cells if cell.up]
    return {cell.pid: cell.count["running"] for cell in found}


async def crash(pid: int) -> None:
    """Its handler takes the first for a page that is gone, the next one ends it."""
    with contextlib.suppress(ProcessLookupError):
        for _ in range(100):
            os.kill(pid, signal.SIGSEGV)
            await asyncio.sleep(0.01)


async def until(what: Any) -> None:
    async with asyncio.timeout(60):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_cell_that_is_killed(store: Path) -> None:
    async def main() -> None:
        async with engine(store, size=6, idle=1) as pool:
            jobs = [await started(pool, str(number)) for number in range(2)]
            [pid] = cells(pool)
            os.kill(pid, signal.SIGKILL)
            for job in jobs:
                with pytest.raises(PoolError) as caught:
                    await asyncio.wait_for(job, 60)
                assert caught.value.code == "worker_lost"
            result, heard = await run(pool, "print(1)")
            assert heard.out == "1\n", result
            await until(lambda: pool.counts().idle == 1)

    in_loop(main)


def test_a_cell_that_breaks_with_one_or_with_several_jobs(store: Path) -> None:
    async def main() -> None:
        async with engine(store, size=6, idle=0) as pool:
            alone = await started(pool, "alone")
            [pid] = cells(pool)
            await crash(pid)
            result = await asyncio.wait_for(alone, 60)
            assert result.kind == "internal" and result.status == 125, "it may be the reason"
            both = [await started(pool, name) for name in ("one", "two")]
            [pid] = cells(pool)
            await crash(pid)
            for job in both:
                with pytest.raises(PoolError, match="lost"):
                    await asyncio.wait_for(job, 60)
            own = await started(pool, "own", isolation="process")
            for pid in cells(pool):
                os.kill(pid, signal.SIGKILL)
            assert (await asyncio.wait_for(own, 60)).kind == "internal", "a cell of its own: it is not run again"

    in_loop(main)


def test_templates_that_cannot_be_made(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        templates = {"bad": TemplateConfig(preload=("no_such_module",)), "none": TemplateConfig(python="/nowhere/python")}
        async with engine(store, size=2, idle=1, templates=templates) as pool:
            logged = len([record for record in caplog.records if "template `bad`" in record.message])
            for _ in range(20):
                result, _ = await run(pool, "print(1)", template="bad")
                assert result.kind == "internal" and "cannot preload `no_such_module`" in result.text
            assert len([record for record in caplog.records if "template `bad`" in record.message]) <= logged + 1
            result, _ = await run(pool, "print(1)", template="none")
            assert "cannot run the interpreter `/nowhere/python`" in result.text
            with pytest.raises(PoolError, match="no template `other`") as caught:
                await run(pool, "print(1)", template="other")
            assert caught.value.code == "bad_job" and "bad, default, none" in caught.value.hint
            result, heard = await run(pool, "print(1)")
            assert heard.out == "1\n", result

    in_loop(main)


def damage(store: Path) -> None:
    [snapshot] = store.glob("*.snapshot")
    snapshot.chmod(0o600)
    with snapshot.open("r+b") as file:
        file.seek(40)
        file.write(b"damaged!")


def test_a_snapshot_that_is_damaged_is_made_anew(store: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with engine(tmp_path, size=2, idle=0) as pool:
            damage(tmp_path)
            result, heard = await run(pool, "print(1)")
            assert heard.out == "1\n", result

    in_loop(main)


def test_a_snapshot_that_is_gone_is_made_anew(store: Path, tmp_path: Path) -> None:
    """As after `agentfw cache clear`, and when newer ones have taken its place in the cache. Beside jobs that run on."""

    async def main() -> None:
        async with engine(tmp_path, size=4, idle=1) as pool:
            first = await started(pool, "first")
            SnapshotStore(tmp_path).clear()
            result, heard = await run(pool, "print(1)", tenant="b", isolation="process")
            assert heard.out == "1\n", result
            await until(lambda: pool.counts().idle)
            result, heard = await run(pool, "print(2)")
            assert heard.out == "2\n", result
            pool.signal("first", 9)
            assert (await first).kind == "killed"

    in_loop(main)


def test_a_kill_comes_at_the_moment_in_which_a_vm_does(store: Path) -> None:
    async def main() -> None:
        async with engine(store, size=1, idle=1) as pool:
            first = await started(pool, "first")
            heard = Heard()
            second = asyncio.create_task(pool.run(Job(mode="code", target="print(1)"), "second", heard, None))
            await until(lambda: pool.counts().waiting == 1)
            balance, [wait] = pool._stock.balance, pool._stock._waits.values()

            def given() -> None:
                balance()
                if wait.future.done():
                    pool.signal("second", 9)

            pool._stock.balance = given  # type: ignore[method-assign]
            pool.signal("first", 9)
            assert (await first).kind == (await second).kind == "killed"
            assert not heard.out and not heard.began.is_set()

    in_loop(main)


def test_several_templates_whose_vms_cannot_be_made_do_not_hold_up_the_start(store: Path) -> None:
    async def main() -> None:
        async with engine(store, size=2, idle=0) as pool:
            others = [
                SimpleNamespace(
                    key=SimpleNamespace(template=SimpleNamespace(name=name)),
                    target=1,
                    trouble=Trouble("broken"),
                    count={"idle": 0},
                    coming=0,
                )
                for name in "ab"
            ]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(pool._stock, "groups", dict(enumerate(others)))
                await asyncio.wait_for(pool._warmed(), 5)

    in_loop(main)


def test_without_kvm_there_is_one_clear_error(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refused(path: Any, *arguments: Any, **named: Any) -> int:
        if path == "/dev/kvm":
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **named)

    async def main() -> None:
        monkeypatch.setattr(os, "open", refused)
        with pytest.raises(PoolError, match="/dev/kvm: Permission denied") as caught:
            async with engine(store, size=2, idle=1):
                pass
        assert caught.value.code == "unavailable" and "doctor" in caught.value.hint + str(caught.value)

    in_loop(main)


def test_memory_that_is_short(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level: list[pressure.Level] = ["fine"]
    monkeypatch.setattr(pressure, "host", lambda: level[0])

    async def main() -> None:
        async with engine(store, size=6, idle=4) as pool:
            assert pool.counts().idle == 4
            level[0] = "tight"
            await until(lambda: pool.counts().idle == 0)
            assert pool.counts().counters["trimmed"] >= 4
            result, heard = await run(pool, "print(1)")
            assert heard.out == "1\n", result
            level[0] = "exhausted"
            await until(lambda: pool._stock.exhausted)
            first = await started(pool, "first")
            second = asyncio.create_task(run(pool, "print(2)"))
            await until(lambda: pool.counts().waiting == 1)
            await asyncio.sleep(0.2)
            assert not second.done(), "one at a time is all that goes on"
            pool.signal("first", 9)
            await first
            assert (await second)[1].out == "2\n"

    in_loop(main)


def test_house_keeping_that_fails_does_not_fill_the_log(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = 0

    def broken() -> pressure.Level:
        nonlocal asked
        asked += 1
        raise OSError("no /proc here")

    monkeypatch.setattr(engine_module, "TICK_SECONDS", 0.002)
    monkeypatch.setattr(pressure, "host", broken)

    async def main() -> None:
        async with engine(store, size=1, idle=0):
            await until(lambda: asked > 3 * failures.MOST)

    in_loop(main)
    told = [record for record in caplog.records if "house-keeping" in record.getMessage() and record.levelname == "ERROR"]
    assert len(told) == failures.MOST


def test_a_reload_counts_for_the_next(store: Path) -> None:
    async def main() -> None:
        async with engine(store, size=4, idle=1, run={"env": {"A": "1"}}) as pool:
            old = await started(pool, "old")
            more = {"small": TemplateConfig(memory="128M", env={"A": "3"}, idle=1)}
            tenants = {"t": TenantConfig(running=1)}
            pool.reload(PoolConfig(size=6, idle=2, templates=more, tenants=tenants), RunConfig(env={"A": "2"}))
            code = "import os; print(os.environ['A'])"
            for template, said in (("default", "2\n"), ("small", "3\n")):
                result, heard = await run(pool, code, template=template)
                assert heard.out == said, (result, heard.err)
            await until(lambda: pool.counts().idle >= 3 and not pool.counts().warming)
            assert not old.done()
            pool.signal("old", 15)
            assert (await old).signal == 15
            first = await started(pool, "first", tenant="t")
            second = asyncio.create_task(run(pool, "print(2)", tenant="t"))
            await until(lambda: pool.counts().waiting == 1)
            assert (await run(pool, "print(3)"))[1].out == "3\n", "others do not wait for it"
            assert pool.counts().waiting == 1
            pool.signal("first", 9)
            await first
            assert (await second)[1].out == "2\n"

    in_loop(main)


def test_the_end_of_an_engine(store: Path) -> None:
    """Nothing is left, whatever ran. (`nothing_left` looks for processes.)"""

    async def once() -> None:
        async with engine(store, size=5, idle=2, isolation="process") as pool:
            running = [await started(pool, str(number)) for number in range(3)]
            drained = asyncio.create_task(pool.drain())
            await asyncio.sleep(0)
            with pytest.raises(PoolError, match="no more jobs"):
                await run(pool, "print(1)")
            pool.signal("0", 9)
            await running[0]
            assert not drained.done()
            running[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await running[1]
            await pool.close()
            assert (await running[2]).kind == "killed" and drained.done()
            assert not [task for task in asyncio.all_tasks() if "pool" in repr(task.get_coro()) and task is not drained]

    in_loop(once)
    before = opened()
    in_loop(once)
    assert not left(before)
