"""agentfw.Pool over a pool in memory: results and errors, what cancelling and leaving do, handles."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
from pathlib import Path
from typing import Any, get_args, get_type_hints

import agentfw
import pytest
from agentfw import Code, Pool, PoolError
from agentfw.pool.jobs import Job, JobInfo, JobResult, Usage
from hypothesis import given
from hypothesis import strategies as st

from tests.core.support import async_test

from .memory_pool import Body, MemoryPool, Running, echo


def over(body: Body = echo, **more: Any) -> tuple[Pool, MemoryPool]:
    memory = MemoryPool(body, **more)
    return Pool.over(lambda: memory), memory


async def forever(run: Running) -> None:
    await run.write(b"begun\n")
    await asyncio.Event().wait()


async def reached(memory: MemoryPool, active: int) -> None:
    async with asyncio.timeout(10):
        while memory.active < active:  # noqa: ASYNC110  # it is the jobs' number, whichever they are
            await asyncio.sleep(0)


@async_test
async def test_a_run_has_its_output_and_its_end() -> None:
    async def body(run: Running) -> int:
        await run.write(b"out \xc3")
        await run.write(b"first\nerror: nothing\n", 2)
        await run.write(b"\xbc\xff\n")
        return 3

    pool, memory = over(body)
    async with pool:
        result = await pool.run(Code("x"), ["a"], name="it", labels={"team": "red"}, stdin="in", timeout=5)
    job = memory.runs[result.id].job
    assert (job.args, job.labels, job.stdin, job.limits.seconds) == (("a",), {"team": "red"}, b"in", 5)
    assert (result.name, result.exit_code, result.returncode, result.ok, result.truncated) == ("it", 3, 3, False, False)
    assert (result.stdout, result.stdout_bytes) == ("out ü\ufffd\n", b"out \xc3\xbc\xff\n")
    assert result.stderr.endswith("nothing\n") and result.usage.stdout == 8
    with pytest.raises(agentfw.JobFailed, match=r"job it \(job-1\) exited with 3: error: nothing\Z") as raised:
        result.check()
    assert raised.value.result is result
    assert (memory.started, memory.closed) == (1, 1)


KINDS = {
    "signal": agentfw.JobSignaled,
    "killed": agentfw.JobKilled,
    "memory": agentfw.OutOfMemory,
    "timeout": agentfw.JobTimeout,
    "output": agentfw.TooMuchOutput,
    "hostile": agentfw.JobHostile,
    "internal": agentfw.JobBroken,
}


@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_ends_have_errors_of_their_own(kind: Any) -> None:
    async def body(run: Running) -> JobResult:
        return JobResult(kind=kind, signal=11 if kind == "signal" else 0, text="why\nit was")

    pool, _ = over(body)
    async with pool:
        assert not (await pool.run(Code("x"))).ok
        with pytest.raises(KINDS[kind], match=r"why\\nit was") as raised:
            await pool.run(Code("x"), check=True)
    assert type(raised.value) is KINDS[kind] and isinstance(raised.value, agentfw.JobFailed | agentfw.AgentfwError)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (
        type(again) is KINDS[kind] and str(again) == str(raised.value) and again.result.exit_code == raised.value.result.exit_code
    )


def test_every_kind_of_end_has_an_error() -> None:
    assert set(get_args(get_type_hints(JobResult)["kind"])) == {*KINDS, "code"}


def test_a_time_out_is_a_timeouterror() -> None:
    assert issubclass(agentfw.JobTimeout, TimeoutError)


@async_test
async def test_cancelling_a_run_kills_its_job() -> None:
    pool, memory = over(forever)
    async with pool:
        task = asyncio.ensure_future(pool.run(Code("x")))
        await reached(memory, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await memory.wait("job-1")).result == JobResult(kind="killed", text="by signal 9", usage=Usage(stdout=6))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.run(Code("x")), 0.01)
        assert (await memory.wait("job-2")).state == "done"


@async_test
async def test_a_job_that_was_taken_while_its_caller_was_cancelled_is_killed() -> None:
    pool, memory = over(forever)
    memory.submit_delay = 0.05
    async with pool:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.run(Code("x")), 0.01)
        assert memory.runs["job-1"].signals == [9]


@async_test
async def test_what_runs_ends_with_the_pool() -> None:
    pool, memory = over(forever)
    async with pool:
        task = asyncio.ensure_future(pool.run(Code("x")))
        many = asyncio.ensure_future(pool.map(Code("x"), "abc")._all())
        submitted = await pool.submit(Code("x"))
        await reached(memory, 5)
    for each in (task, many):
        with pytest.raises(PoolError, match="closed before"):
            await each
    assert all(run.signals == [9] for job_id, run in memory.runs.items() if job_id != submitted.id)
    assert memory.runs[submitted.id].signals == [] and memory.closed == 1
    with pytest.raises(PoolError, match="is closed"):
        await pool.run(Code("x"))
    with pytest.raises(PoolError, match="started once"):
        await pool.start()
    await pool.close()
    assert memory.closed == 1


@async_test
async def test_a_pool_that_does_not_start_is_closed() -> None:
    class Broken(MemoryPool):
        async def start(self) -> None:
            raise PoolError("internal", "no KVM")

    memory = Broken()
    with pytest.raises(PoolError, match="no KVM"):
        async with Pool.over(lambda: memory):
            raise AssertionError
    assert memory.closed == 1


@async_test
async def test_a_pool_that_was_not_started_says_so(tmp_path: Any) -> None:
    with pytest.raises(PoolError, match="not started") as raised:
        await Pool.over(MemoryPool).run(tmp_path / "missing.py")
    assert "async with" in raised.value.hint


@async_test
async def test_a_forked_child_leaves_the_pool_alone() -> None:
    pool, memory = over()
    async with pool:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            told = b"nothing"
            try:
                pool.close().send(None)
            except StopIteration:
                try:
                    pool.backend  # noqa: B018
                except PoolError as error:
                    told = error.code.encode()
            finally:
                os.write(write, told)
                os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert os.read(read, 100) == b"unavailable"
        os.close(read)
        os.close(write)
        assert (await pool.run(Code("x"), ["still"])).stdout == "still\n"
    assert memory.closed == 1


@async_test
async def test_output_that_the_pool_no_longer_has_is_told() -> None:
    pool, memory = over(forget_output=True)
    async with pool:
        job = await pool.submit(Code("x"), ["lost"])
        await memory.wait(job.id)
        result = await job.wait()
    assert result.truncated and result.stdout == "" and result.usage.stdout == 5


@async_test
async def test_a_handle() -> None:
    async def body(run: Running) -> int:
        await run.write(b"ready\n")
        while (data := await run.fed.get()) is not None:
            await run.write(data.upper())
            await run.write(b"e", 2)
        return 0

    pool, memory = over(body)
    async with pool:
        job = await pool.submit(Code("x"), interactive=True)
        assert (await job.info()).state in ("queued", "running")
        with pytest.raises(TimeoutError):
            await job.wait(0.01)
        await job.feed("one\n")
        await job.feed(b"two", end=True)
        assert [line async for line in job.lines()] == ["ready", "ONE", "TWO"]
        assert [piece.data async for piece in job] == [b"ready\n", b"ONE\n", b"e", b"TWO", b"e"]
        assert [piece.data async for piece in job.output(stdout=7, stderr=1)] == [b"NE\n", b"TWO", b"e"]
        assert [line async for line in job.lines("stderr")] == ["ee"]
        result = await job.wait(check=True)
        assert result.stdout == "ready\nONE\nTWO"
        await job.signal(2)
        assert memory.runs[job.id].signals == [2]
        copies = await pool.fork(job, 2)
        assert len({job.id, *(copy.id for copy in copies)}) == 3
        for copy in copies:
            await copy.kill()
            with pytest.raises(agentfw.JobKilled):
                await pool.job(copy.id).wait(check=True)
        with pytest.raises(PoolError) as raised:
            await pool.job("job-77").info()
        assert raised.value.code == "no_such_job"
        assert [info.id for info in await pool.jobs()][-1] == job.id and len(await pool.jobs(limit=2)) == 2
        assert (await pool.describe()).state == "ready" and await pool.metrics() == {"pool.submitted": 3.0}
        await pool.drain()
        assert await pool.reload() == []


@given(st.text(), st.lists(st.integers(0, 60)), st.sampled_from(["\n", "\r\n"]))
def test_lines_do_not_depend_on_how_they_came(text: str, cuts: list[int], end: str) -> None:
    data = text.replace("\r", "").replace("\n", end).encode("utf-8", "surrogatepass")
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})

    async def body(run: Running) -> None:
        for begin, stop in itertools.pairwise(places):
            await run.write(data[begin:stop])

    async def main() -> list[str]:
        async with over(body)[0] as pool:
            return [line async for line in (await pool.submit(Code("x"))).lines()]

    expected = data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    assert asyncio.run(main()) == (expected if expected[-1] else expected[:-1])


@async_test
async def test_a_job_as_it_is() -> None:
    async with over()[0] as pool:
        assert (await pool.run(Job(mode="code", target="x", args=("a",)))).stdout == "a\n"
        with pytest.raises(TypeError, match="has its arguments"):
            await pool.run(Job(mode="code", target="x"), name="other")
        with pytest.raises(PoolError, match="needs a target"):
            await pool.run(Job(mode="script", target=""))


def test_a_result_of_a_job_that_has_not_ended_is_none() -> None:
    info = JobInfo(id="1", name="n", tenant="t", template="t", labels={}, state="running", submitted=0.0)
    with pytest.raises(ValueError, match="has not ended"):
        _ = agentfw.Result(info).exit_code


def test_own_keys_go_before_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from agentfw.config import Config
    from agentfw.pool.config import PoolConfig

    file = Config({"pool": {"size": 9, "idle": 3}, "run": {"memory": "1G"}}, tmp_path / "agentfw.toml")
    table = file.with_keys("pool", {"size": 5}).plugin("pool", PoolConfig)
    assert (table.size, table.idle) == (5, 3) and file.plugin("pool", PoolConfig).size == 9


def test_own_keys_reach_worker_processes(tmp_path: Any) -> None:
    """A file goes to them as its text, and the keys are not in that."""
    import msgspec
    from agentfw.config import load_config
    from agentfw.pool.config import PoolConfig
    from agentfw.pool.messages import Configuration

    file = tmp_path / "agentfw.toml"
    file.write_text("[pool]\nsize = 9\nidle = 3\n[run]\nmemory = '1G'\n")
    keys = {"size": 5, "templates": {"t": {"preload": ["x"]}}}
    for config in (load_config(file), load_config(file).with_keys("pool", {"size": 7, "idle": 2}).with_keys("pool", keys)):
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(Configuration.of(config)), type=Configuration).config()
        assert sent.tables == config.tables and sent.run.memory == "1G"
        assert sent.plugin("pool", PoolConfig) == config.plugin("pool", PoolConfig)
    assert sent.plugin("pool", PoolConfig).size == 5 and sent.plugin("pool", PoolConfig).idle == 2


def test_a_mistake_is_told_where_it_was_made(tmp_path: Path) -> None:
    from agentfw.config import load_config
    from agentfw.pool.config import PoolConfig

    def said(text: str, **keys: object) -> str:
        file = tmp_path / "agentfw.toml"
        file.write_text(text)
        with pytest.raises(agentfw.ConfigError) as caught:
            load_config(file).with_keys("pool", keys).plugin("pool", PoolConfig)
        return str(caught.value).replace(str(tmp_path), "").removeprefix("/")

    assert said("[pool]\nsize = 4\n", sise=3) == "pool.sise: unknown key"
    assert said("[pool]\nsize = 4\n", idle=9) == "pool.idle: 9 idle VMs in a pool of 4"
    assert said("[pool]\nidle = 9\n", size=4) == "agentfw.toml:2: pool.idle: 9 idle VMs in a pool of 4"
    assert said("[run]\nmemory = '20G'\n") == "agentfw.toml:2: run.memory: `20G` must be from 96M to 14G"
    output = said("[pool.limits]\noutput = '1M'\n")
    assert output == "agentfw.toml:2: pool.limits.output: expected integer >= 0 and <= 1099511627776, got text"
