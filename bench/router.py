"""What router and worker processes cost a job, with an engine that runs nothing: latency, CPU time, output.

    python bench/router.py [--jobs 3000] [--at-once 200] [--megabytes 400]

`one at a time`: from submit() over the worker's engine, which has the job and writes a line, to that line being read from the
router, by the wall clock, with worker processes and within one process. Must: p50 1 ms.
`many`: CPU time of router and workers together a job, with so many under way. `output`: megabytes for each second of CPU time,
from the engine to a reader.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import msgspec
import uvloop
from agentfw.config import Config
from agentfw.pool.jobs import Job, JobResult
from agentfw.pool.router import Router


class Counts(msgspec.Struct):
    running: int
    idle: int
    cells: int


class Engine:
    """A job is over once it has written as many lines, or bytes, as its target says."""

    def __init__(self, runtime: Any, pool: Any, run: Any, *, size: int, idle: int, store: Any = None) -> None:
        self.counted: Counter[str] = Counter()

    async def start(self, progress: Any = None) -> None:
        pass

    async def run(self, job: Job, job_id: str, events: Any, stdin: Any) -> JobResult:
        events.started(0.0)
        left = int(job.target)
        pieces = [b"line\n"] if not left else [bytes(min(left - at, 65536)) for at in range(0, left, 65536)]
        for piece in pieces:
            await asyncio.sleep(0)  # a piece a turn of the loop, as from a VM
            waiting = events.output(1, piece)
            if waiting is not None:
                await waiting
        return JobResult(kind="code")

    def signal(self, job_id: str, number: int) -> None:
        pass

    async def fork(self, job_id: str, ids: Sequence[str], events: Sequence[Any]) -> list[Any]:
        return []

    def counts(self) -> Counts:
        return Counts(0, 0, 0)

    def deal(self, parts: dict[str, float]) -> dict[str, tuple[float, float]]:
        return {}

    def reload(self, pool: Any, run: Any) -> None:
        pass

    async def close(self) -> None:
        pass


def cpu(router: Router) -> float:
    """Seconds that this process and the workers have used."""
    ticks = 0
    for pid in {os.getpid(), *(worker.pid for worker in router.workers)}:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def one(router: Router, target: int = 0) -> tuple[float, int]:
    """Seconds to its first output, and bytes of it."""
    begun = time.perf_counter()
    info = await router.submit(Job(mode="code", target=str(target)))
    first, count = 0.0, 0
    async for piece in router.output(info.id):
        first = first or time.perf_counter() - begun
        count += len(piece.data)
    await router.wait(info.id)
    return first, count


async def measured(local: bool, options: Any) -> dict[str, Any]:
    config = Config({"pool": {"workers": 2, "size": max(2, options.at_once), "idle": 0, "keep_output": 64 << 20}})
    router = Router(config, (), load=lambda: config, local=local, engine="router:Engine")
    await router.start()
    try:
        for _ in range(50):
            await one(router)
        times = []
        for _ in range(options.jobs // 3):
            times.append((await one(router))[0])
            await asyncio.sleep(0.0005)
        before = cpu(router)
        left = options.jobs

        async def caller() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await one(router)

        await asyncio.gather(*(caller() for _ in range(options.at_once)))
        job = (cpu(router) - before) / options.jobs
        before = cpu(router)
        size = options.megabytes << 20
        _, count = await one(router, size)
        seconds = cpu(router) - before
        times.sort()
        return {
            "p50_ms": times[len(times) // 2] * 1e3,
            "p95_ms": times[len(times) * 95 // 100] * 1e3,
            "cpu_us_a_job": job * 1e6,
            "output_mb_a_cpu_second": size / 1e6 / max(seconds, 0.01),
            "read": count / size,
        }
    finally:
        await router.close()


async def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=400)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    for local in (False, True):
        found = await measured(local, options)
        print("within one process:" if local else "two worker processes:")
        print(f"  one at a time   to its output p50 {found['p50_ms']:.2f} ms, p95 {found['p95_ms']:.2f} ms")
        print(f"  many            {found['cpu_us_a_job']:.0f} us of CPU time a job")
        print(f"  output          {found['output_mb_a_cpu_second']:.0f} MB a second of CPU time; {found['read']:.0%} of it read")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
