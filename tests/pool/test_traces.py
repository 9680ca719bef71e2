"""Jobs whose system calls are printed: which cells they run in, and what is left out of what they make of it."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Awaitable
from pathlib import Path

import pytest
from agentfw.pool import traces
from agentfw.pool.jobs import Job, PoolError, Trace
from agentfw.pool.traces import JobTrace

from .engines import Heard, engine, in_loop, run
from .routers import until

LINE = "a line that a call makes\n"


@pytest.fixture
def store(agentfw_environment: dict[str, str]) -> Path:
    return Path(agentfw_environment["XDG_CACHE_HOME"]) / "agentfw/snapshots"


class Taker:
    """Takes what it is given at once, or, `slow`, when it is told to."""

    def __init__(self, slow: bool = False) -> None:
        self.data = b""
        self.most = 0
        self.go = asyncio.Event()
        if not slow:
            self.go.set()

    def put(self, data: bytes) -> Awaitable[None] | None:
        self.most = max(self.most, len(data))
        self.data += data
        return None if self.go.is_set() else self._wait()

    async def _wait(self) -> None:
        await self.go.wait()


def test_who_reads_slowly_is_told_how_much_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "AHEAD", 10 * len(LINE))

    async def main() -> None:
        taker = Taker(slow=True)
        trace = JobTrace(Trace(), taker.put)
        trace.write(LINE)
        await asyncio.sleep(0)
        for _ in range(25):
            trace.write(LINE)
        taker.go.set()
        await until(lambda: len(taker.data) == 11 * len(LINE))
        trace.write(LINE)
        await trace.end()
        told = "(15 lines are left out here: they came faster than they were taken)\n"
        assert taker.data.decode() == 11 * LINE + told + LINE and taker.most <= 10 * len(LINE) + 100

    in_loop(main)


@pytest.mark.parametrize("last", [False, True])
def test_a_job_that_makes_too_many(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST", 5 * len(LINE))

    async def main() -> None:
        taker = Taker()
        trace = JobTrace(Trace(), taker.put)
        for _ in range(5 if last else 1_000):
            trace.write(LINE)
            await asyncio.sleep(0)
        await trace.end()
        told = "" if last else "(995 lines more are left out: of a job 0 MiB are printed)\n"
        assert taker.data.decode() == 5 * LINE + told

    in_loop(main)


def test_nothing_is_printed_of_a_job_that_is_over(recwarn: pytest.WarningsRecorder) -> None:
    """Closed in the turn of the loop in which lines came, or before who takes them has begun: nothing is left un-awaited."""

    async def main() -> None:
        taker = Taker(slow=True)
        trace = JobTrace(Trace(), taker.put)
        trace.write(LINE)
        trace.close()
        await asyncio.sleep(0.01)
        assert taker.data == b""
        trace = JobTrace(Trace(), taker.put)
        trace.write(LINE)
        asyncio.get_running_loop().call_soon(trace.close)  # behind what puts the line
        await asyncio.sleep(0.01)
        assert taker.data.decode() == LINE

    in_loop(main)
    gc.collect()
    assert not [str(each.message) for each in recwarn]


def test_who_cannot_take_it_is_heard_at_the_end() -> None:
    async def main() -> None:
        async def gone() -> None:
            raise BrokenPipeError

        trace = JobTrace(Trace(), lambda data: gone())
        trace.write(LINE)
        await asyncio.sleep(0.01)
        with pytest.raises(BrokenPipeError):
            await trace.end()

    in_loop(main)


def test_what_cannot_be_asked_for() -> None:
    for strace, word in ((Trace(calls="opne"), "opne"), (Trace(calls="x" * 300), "length"), (Trace(size=5000), "1024")):
        with pytest.raises(PoolError, match=word):
            Job(mode="code", target="pass", strace=strace).check()
    Job(mode="code", target="pass", strace=Trace(calls="open*,read", summary=True, size=0)).check()


@pytest.mark.kvm
@pytest.mark.usefixtures("nothing_left")
def test_one_job_is_traced_and_no_other(store: Path) -> None:
    """Not the one beside it, nor those before and after it, nor its copies; and again in the same cell."""
    code = "import os, sys; os.mkdir('/tmp/{}'); sys.stderr.write('err\\n'); os._exit(3)"

    async def main() -> None:
        async with engine(store, size=6, idle=1) as pool:
            found = await asyncio.gather(
                run(pool, code.format("plain")),
                run(pool, code.format("traced"), strace=Trace(calls="mkdir,write,exit*")),
                run(pool, code.format("other"), tenant="other"),
            )
            (_, plain), (result, traced), (_, other) = found
            assert plain.err == other.err == "err\n" and (result.kind, result.code) == ("code", 3)
            lines = [re.sub(r" \[(shim|host)]$", "", line) for line in traced.err.splitlines()]
            assert [line for line in lines if line != "err"] == [
                'mkdir("/tmp/traced", 0777) = 0',
                'write(2, "err\\n", 4) = 4',
                "exit_group(3) = ?",
                "+++ exited with 3 +++",
            ]
            assert result.usage.stderr == len("err\n")
            again, second = await run(pool, "import os; os.mkdir('/tmp/traced')", strace=Trace(summary=True, calls="mkdir"))
            assert again.code == 0 and re.search(r"^100.00 .* 1 +host +mkdir$", second.err, re.MULTILINE), second.err
            assert "mkdir(" not in second.err
            _, after = await run(pool, code.format("after"))
            assert after.err == "err\n"

    in_loop(main)


@pytest.mark.kvm
@pytest.mark.usefixtures("nothing_left")
def test_copies_of_a_traced_job_are_not(store: Path) -> None:
    code = """
import os, time
os.write(1, b"ready\\n")
while not open("/proc/agentfw").read(): time.sleep(0.01)
os.mkdir("/tmp/copy")
"""

    async def main() -> None:
        async with engine(store, size=3, idle=0) as pool:
            said = Heard()
            job = Job(mode="code", target=code, strace=Trace(calls="mkdir,openat"))
            parent = asyncio.create_task(pool.run(job, "parent", said, None))
            await asyncio.wait_for(said.began.wait(), 60)
            await asyncio.wait_for(said.line.wait(), 60)
            heard = Heard()
            (copy,) = await pool.fork("parent", ["copy"], [heard])
            assert (await copy).code == 0 and heard.err == ""
            pool.signal("parent", 9)
            assert (await parent).kind == "killed"
            assert 'openat(AT_FDCWD, "/proc/agentfw"' in said.err and said.err.endswith("+++ killed (killed) +++\n"), said.err[
                -400:
            ]

    in_loop(main)
