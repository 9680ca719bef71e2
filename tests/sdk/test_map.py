"""`Pool.map`: order, bounds, errors, and that nothing goes on once nobody listens."""

from __future__ import annotations

import asyncio
import io
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import agentfw
import pytest
from agentfw import Code, Input, Pool, PoolError, Result
from agentfw.pool.config import PoolConfig
from agentfw.sdk import progress
from agentfw.sdk.mapping import AHEAD
from hypothesis import given
from hypothesis import strategies as st

from tests.core.support import async_test

from .memory_pool import MemoryPool, Running, echo


async def nap(run: Running) -> int:
    """Its last argument: so many turns of the loop before it ends; 13 fails."""
    for _ in range(int(run.job.args[-1])):
        await asyncio.sleep(0)
    await run.write(run.job.args[-1].encode())
    return int(run.job.args[-1]) == 13


def over(memory: MemoryPool) -> Pool:
    return Pool.over(lambda: memory)


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 7), st.booleans())
def test_each_input_has_one_result(turns: list[int], concurrency: int, ordered: bool) -> None:
    async def main() -> tuple[list[Result], MemoryPool]:
        memory = MemoryPool(nap)
        async with over(memory) as pool:
            return await pool.map(Code("x"), map(str, turns), concurrency=concurrency, ordered=ordered), memory

    results, memory = asyncio.run(main())
    told = [int(result.stdout) for result in results]
    assert told == turns if ordered else sorted(told) == sorted(turns)
    assert all(result.input == result.stdout and result.ok == (result.input != "13") for result in results)
    assert memory.most <= concurrency


@async_test
async def test_results_as_they_come() -> None:
    async with over(MemoryPool(nap)) as pool:
        results = [result.input async for result in pool.map(Code("x"), ["9000", "1", "2"], ordered=False)]
    assert results[-1] == "9000"


@async_test
async def test_inputs_without_end_are_taken_as_there_is_room() -> None:
    memory, taken = MemoryPool(nap), itertools.count()
    async with over(memory) as pool:
        results = pool.map(Code("x"), (str(n % 3) for n in taken), concurrency=2)
        seen = []
        async for result in results:
            seen.append(result.input)
            if len(seen) == 10:
                break
            await asyncio.sleep(0.001)
        assert seen == [str(n % 3) for n in range(10)]
        await asyncio.sleep(0.02)
        assert next(taken) <= 10 + 2 * (1 + AHEAD) + 2
        with pytest.raises(RuntimeError, match="once"):
            aiter(results)
    assert memory.active == 0


@async_test
async def test_an_input_that_does_not_come_holds_up_no_result() -> None:
    never = asyncio.Event()

    async def inputs() -> AsyncIterator[str]:
        yield "1"
        await never.wait()

    async with over(MemoryPool(nap)) as pool:
        async with asyncio.timeout(5):
            async for result in pool.map(Code("x"), inputs()):
                assert result.input == "1"
                break


@async_test
async def test_what_runs_when_the_iteration_is_given_up_is_killed() -> None:
    memory = MemoryPool(nap)
    async with over(memory) as pool:
        async for _ in pool.map(Code("x"), ["0", "1000000000", "1000000000"]):
            break
        for _ in range(500):
            if not memory.active:
                break
            await asyncio.sleep(0.01)
        assert [run.signals for run in memory.runs.values()] == [[], [9], [9]]


@async_test
async def test_one_that_fails_with_check_ends_the_rest() -> None:
    memory = MemoryPool(nap)
    async with over(memory) as pool:
        with pytest.raises(agentfw.JobFailed) as raised:
            await pool.map(Code("x"), ["1000000000", "13"], check=True)
        assert raised.value.result.input == "13"
        assert memory.runs["job-1"].signals == [9]
        found = await pool.map(Code("x"), ["13", "1", "\0"], check=True, return_exceptions=True)
        assert [type(each) for each in found] == [agentfw.JobFailed, Result, PoolError]
        assert [each.ok for each in await pool.map(Code("x"), ["13", "1"])] == [False, True]


@async_test
async def test_what_taking_an_input_raises_is_raised() -> None:
    def inputs() -> Iterator[str]:
        yield "1000000000"
        raise LookupError("no more")

    memory = MemoryPool(nap)
    async with over(memory) as pool:
        with pytest.raises(LookupError):
            await pool.map(Code("x"), inputs())
        with pytest.raises(TypeError, match="no input of a job: int"):
            await pool.map(Code("x"), [5])
        with pytest.raises(ValueError, match="concurrency"):
            pool.map(Code("x"), [], concurrency=0)
        with pytest.raises(FileNotFoundError):
            await pool.map("not/there.py", ["a"])
        assert await pool.map(Code("x"), []) == []


@async_test
async def test_a_full_pool_is_tried_again() -> None:
    memory = MemoryPool(nap, slots=1, queue=1)
    async with over(memory) as pool:
        results = await pool.map(Code("x"), [str(n) for n in range(6)], concurrency=6)
        assert [result.input for result in results] == [str(n) for n in range(6)]
        with pytest.raises(PoolError, match="too many"):
            await asyncio.gather(*(pool.run(Code("x"), ["50"]) for _ in range(6)))


@async_test
async def test_as_many_at_once_as_the_pool_has_vms() -> None:
    memory = MemoryPool(nap)
    memory.pool = PoolConfig(size=3, idle=0)
    async with over(memory) as pool:
        await pool.map(Code("x"), ["5"] * 20)
    assert memory.most == 3


@async_test
async def test_inputs_of_each_kind() -> None:
    inputs: list[Any] = [
        "text",
        ("a", "b"),
        b"stdin",
        {"n": 1},
        Input(args=("z",), env={"B": "2"}, files={"g": b"G"}, labels={"l": "2"}, name="named", stdin="own"),
    ]
    memory = MemoryPool(echo)
    async with over(memory) as pool:
        results = await pool.map(
            Code("x"), inputs, ["first"], env={"A": "1", "B": "1"}, files={"f": "F"}, labels={"k": "1"}, stdin="all", name="many"
        )
    out = [result.stdout for result in results]
    assert out == ["first\ntext\nall", "first\na\nb\nall", "first\nstdin", 'first\n{"n": 1}', "first\nz\nown"]
    job, last = memory.runs["job-1"].job, memory.runs["job-5"].job
    assert (job.env, job.files, job.labels, job.name) == ({"A": "1", "B": "1"}, {"f": b"F"}, {"k": "1"}, "many")
    assert (last.env, last.files, last.labels) == ({"A": "1", "B": "2"}, {"f": b"F", "g": b"G"}, {"k": "1", "l": "2"})
    assert last.name == "named"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTFW_NO_PROGRESS", raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(progress.bar(True, "x", 3), progress.NoBar)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(progress.bar(True, "x", 3), progress.Bar)
    assert isinstance(progress.bar(False, "x", 3), progress.NoBar)
    monkeypatch.setenv("AGENTFW_NO_PROGRESS", "1")
    assert isinstance(progress.bar(True, "x", 3), progress.NoBar)


@async_test
async def test_the_bar_counts() -> None:
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        terminal = Terminal()
        context.delenv("AGENTFW_NO_PROGRESS", raising=False)
        context.setenv("TERM", "xterm")
        context.setenv("COLUMNS", "120")
        context.setattr(sys, "stderr", terminal)
        context.setattr(progress, "AFTER_SECONDS", -1.0)
        async with over(MemoryPool(nap)) as pool:
            await pool.map(Code("x"), ["13", "1", "2"], name="agent.py")
    text = terminal.getvalue()
    assert "jobs" in text and "3/3" in text and "1 failed" in text
