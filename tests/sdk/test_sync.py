"""agentfw.SyncPool: in scripts, threads and running loops; interrupted; in forked children; forgotten."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import agentfw
import pytest
from agentfw import Code, Pool, PoolError, SyncPool
from agentfw.sdk.handle import Handle
from agentfw.sdk.sync import SyncHandle
from agentfw.sdk.thread import LoopThread

from .memory_pool import Body, MemoryPool, Running, echo

ROOT = Path(__file__).parents[2]


def over(body: Body = echo) -> tuple[SyncPool, list[MemoryPool]]:
    made: list[MemoryPool] = []

    def make() -> MemoryPool:
        made.append(MemoryPool(body))
        return made[0]

    return SyncPool.over(make), made


async def forever(run: Running) -> None:
    await run.write(b"begun\n")
    await asyncio.Event().wait()


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name == "agentfw-pool"}


def test_a_call_that_comes_while_another_thread_closes_the_pool_ends() -> None:
    loop = LoopThread("agentfw-pool")

    async def busy() -> None:
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.5)

    loop.call(busy())
    closing = threading.Thread(target=loop.close)
    closing.start()
    time.sleep(0.2)
    told: list[str] = []

    def wait() -> None:
        try:
            loop.call(asyncio.Event().wait())
        except PoolError as error:
            told.append(error.code)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    closing.join(10)
    waiting.join(10)
    assert told == ["unavailable"] and not threads()


def test_all_of_it() -> None:
    async def body(run: Running) -> int:
        while run.job.interactive and (data := await run.fed.get()) is not None:
            await run.write(data)
        await echo(run)
        return len(run.job.args)

    pool, made = over(body)
    with pool:
        assert threads() == {"agentfw-pool"}
        assert pool.run(Code("x"), ["a"]).stdout == "a\n"
        with pytest.raises(agentfw.JobFailed):
            pool.run(Code("x"), ["a"], check=True)
        assert [result.input for result in pool.map(Code("x"), "abc")] == ["a", "b", "c"]
        found = list(pool.map(Code("x"), ["a", b""], check=True, return_exceptions=True))
        assert [type(each) for each in found] == [agentfw.JobFailed, agentfw.Result]
        job = pool.submit(Code("x"), interactive=True, stdin="end")
        job.feed("one\ntwo\n", end=True)
        assert list(job.lines()) == ["one", "two", "end"]
        assert b"".join(piece.data for piece in job) == b"one\ntwo\nend" and next(job.output(stdout=4)).data == b"two\n"
        assert job.wait(5).ok and job.info().state == "done"
        copies = pool.fork(job, 2)
        copies[0].signal(2)
        copies[0].kill()
        assert copies[0].wait().ended.kind == "killed" and pool.job(copies[0].id).info().state == "done"
        assert pool.describe().state == "ready" and len(pool.jobs()) == pool.metrics()["pool.submitted"] == 10
        assert pool.reload() == []
        copies[1].kill()
        pool.drain()
    assert not threads() and (made[0].started, made[0].closed) == (1, 1)
    pool.close()
    with pytest.raises(PoolError, match="is closed"):
        pool.run(Code("x"))


@pytest.mark.parametrize(("ours", "theirs"), [(SyncPool, Pool), (SyncHandle, Handle)])
def test_it_has_what_the_other_has(ours: type, theirs: type) -> None:
    import inspect

    def public(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(value).parameters) for name, value in found if not name.startswith("_")}

    assert public(ours) == public(theirs)


def test_while_a_loop_runs() -> None:
    async def cell_of_a_notebook() -> str:
        with over()[0] as pool:
            return pool.run(Code("x"), ["a"]).stdout

    assert asyncio.run(cell_of_a_notebook()) == "a\n"


def test_many_threads() -> None:
    with over()[0] as pool:
        told: list[str] = []
        workers = [
            threading.Thread(target=lambda n=n: told.append(pool.run(Code("x"), [str(n)]).stdout)) for n in range(20)  # type: ignore[misc]
        ]  # fmt: skip
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert sorted(told) == sorted(f"{n}\n" for n in range(20))


def test_in_its_own_loop_it_refuses() -> None:
    inside: list[Any] = []

    async def body(run: Running) -> None:
        try:
            pool.run(Code("x"))
        except PoolError as error:
            inside.append(error.code)

    pool = over(body)[0]
    with pool:
        pool.run(Code("y"))
    assert inside == ["unavailable"]


def test_giving_up_an_iteration_kills() -> None:
    pool, made = over(forever)
    with pool:
        lines = pool.submit(Code("x")).lines()
        assert next(lines) == "begun"
        results = iter(pool.map(Code("x"), "ab"))
        told: list[str] = []

        def reader() -> None:
            with pytest.raises(PoolError, match="closed"):  # before it ended, or before it was asked for
                next(results)
            told.append("closed")

        worker = threading.Thread(target=reader, daemon=True)
        worker.start()
        while made[0].active < 3:
            time.sleep(0.001)
    worker.join(5)
    assert told == ["closed"] and [run.signals for run in made[0].runs.values()] == [[], [9], [9]]


def test_ctrl_c_kills_the_job_and_is_raised() -> None:
    pool, made = over(forever)

    def interrupt() -> None:
        while not (made and made[0].active):
            time.sleep(0.001)
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    with pool:
        worker = threading.Thread(target=interrupt)
        worker.start()
        with pytest.raises(KeyboardInterrupt):
            pool.run(Code("x"))
        worker.join()
        assert made[0].runs["job-1"].signals == [9]
        assert pool.job("job-1").wait(5).ended.kind == "killed"


def test_a_forked_child_leaves_it_alone() -> None:
    pool, made = over()
    with pool:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            told = b"nothing"
            try:
                pool.close()
                pool.run(Code("x"))
            except PoolError as error:
                told = error.code.encode()
            finally:
                os.write(write, told)
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 100) == b"unavailable"
        os.close(read)
        os.close(write)
        assert pool.run(Code("x"), ["still"]).stdout == "still\n"
    assert made[0].closed == 1


FORGOTTEN = """
import sys; sys.path.insert(0, {root!r})
import agentfw
from tests.sdk.memory_pool import MemoryPool
class Told(MemoryPool):
    async def close(self):
        await super().close()
        print("closed", flush=True)
pool = agentfw.SyncPool.over(Told)
pool.start()
print(pool.run(agentfw.Code("x"), ["a"]).stdout, end="", flush=True)
{more}
"""


@pytest.mark.parametrize(
    ("more", "status"), [("", 0), ("raise KeyboardInterrupt", -signal.SIGINT), ("import sys; sys.exit(3)", 3)]
)
def test_the_interpreters_exit_closes_it(more: str, status: int) -> None:
    code = FORGOTTEN.format(root=str(ROOT), more=more)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("a\nclosed\n", status), done.stderr


def test_a_pool_that_does_not_start_leaves_no_thread() -> None:
    class Broken(MemoryPool):
        async def start(self) -> None:
            raise PoolError("internal", "no KVM")

    with pytest.raises(PoolError, match="no KVM"), SyncPool.over(Broken):
        raise AssertionError
    assert not threads()
    with pytest.raises(PoolError, match="not started"):
        SyncPool.over(MemoryPool).jobs()
