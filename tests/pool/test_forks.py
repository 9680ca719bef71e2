"""Running jobs that branch: copies with output, pid, limits and an end of their own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from agentfw.pool.engine import Engine
from agentfw.pool.jobs import Job, JobResult, Limits, PoolError

from .engines import Heard, engine, in_loop, run

pytestmark = [pytest.mark.kvm, pytest.mark.usefixtures("nothing_left")]

BRANCHING = """
import json, os, random, sys, time
first = random.random()
print("ready", flush=True)
while not (told := open("/proc/agentfw").read()):
    time.sleep(0.01)
me = json.loads(told)
print(json.dumps({**me, "pid": os.getpid(), "first": first, "next": os.urandom(8).hex(), "in": sys.stdin.read()}), flush=True)
sys.exit(me["index"])
"""


@pytest.fixture
def store(agentfw_environment: dict[str, str]) -> Path:
    return Path(agentfw_environment["XDG_CACHE_HOME"]) / "agentfw/snapshots"


async def started(pool: Engine, job: Job, job_id: str) -> tuple[asyncio.Task[JobResult], Heard]:
    heard = Heard()
    task = asyncio.create_task(pool.run(job, job_id, heard, None))
    await asyncio.wait_for(heard.line.wait(), 60)
    return task, heard


@pytest.mark.parametrize("isolation", ["cell", "process"])
def test_each_copy_goes_on_as_itself(store: Path, isolation: str) -> None:
    async def main() -> None:
        async with engine(store, size=4, idle=1, isolation=isolation) as pool:
            parent, said = await started(pool, Job(mode="code", target=BRANCHING, labels={"a": "b"}), "parent")
            heard = [Heard() for _ in range(5)]
            copies = await pool.fork("parent", [f"copy{index}" for index in range(5)], heard)
            results = await asyncio.wait_for(asyncio.gather(*copies), 60)
            assert [(result.kind, result.code) for result in results] == [("code", index) for index in range(5)], heard[0].err
            told = [json.loads(each.out) for each in heard]
            assert [each["job"] for each in told] == [f"copy{index}" for index in range(5)]
            assert {each["parent"] for each in told} == {"parent"} and {each["count"] for each in told} == {5}
            assert len({each["pid"] for each in told}) == 5 and len({each["next"] for each in told}) == 5
            assert len({each["first"] for each in told}) == 1 and {each["in"] for each in told} == {""}
            assert all(result.usage.dispatch_seconds is not None for result in results)
            pool.signal("parent", 9)
            assert (await parent).kind == "killed" and said.out == "ready\n"
            result, other = await run(pool, "print('after')")
            assert other.out == "after\n", result

    in_loop(main)


def test_copies_have_limits_and_can_be_killed(store: Path) -> None:
    async def main() -> None:
        async with engine(store, size=3, idle=0) as pool:
            code = "import time\nprint('on', flush=True)\nwhile True: time.sleep(0.01)"
            parent, _ = await started(pool, Job(mode="code", target=code, limits=Limits(seconds=30)), "p")
            copies = await pool.fork("p", ["a", "b", "c", "d"], [Heard() for _ in range(4)])
            pool.signal("d", 9)  # waits for a VM
            pool.signal("a", 9)
            pool.signal("b", 15)
            ends = [await asyncio.wait_for(copy, 60) for copy in (copies[0], copies[1], copies[3])]
            assert [(end.kind, end.signal) for end in ends] == [("killed", 0), ("signal", 15), ("killed", 0)]
            with pytest.raises(PoolError, match="taken"):
                await pool.fork("p", ["p"], [Heard()])
            with pytest.raises(PoolError, match="no job"):
                await pool.fork("a", ["x"], [Heard()])
            copies[2].cancel()
            with pytest.raises(asyncio.CancelledError):
                await copies[2]
            second = await pool.fork("p", ["e"], [Heard()])
            pool.signal("p", 9)
            await parent
            pool.signal("e", 9)
            assert (await second[0]).kind == "killed"

    in_loop(main)


def test_what_lies_in_memory_files_is_counted(store: Path) -> None:
    """Private files, and what copies share, are no process's own: the pool's limit of memory is to see them."""

    async def main() -> None:
        async with engine(store, size=3, idle=0) as pool:
            code = "open('/tmp/f', 'wb').write(b'x' * (20 << 20))\nprint('on', flush=True)\nwhile True: pass"
            pool._look_at_memory()
            before = pool.counts().memory
            parent, _ = await started(pool, Job(mode="code", target=code), "p")
            pool._look_at_memory()
            one = pool.counts().memory
            assert one - before > 20 << 20
            heard = Heard()
            copies = await pool.fork("p", ["a"], [heard])
            await asyncio.wait_for(heard.began.wait(), 60)
            pool._look_at_memory()
            assert pool.counts().memory - one > 20 << 20
            pool.signal("p", 9)
            pool.signal("a", 9)
            await asyncio.gather(parent, *copies)

    in_loop(main)
