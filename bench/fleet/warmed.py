"""The pool with all its VMs warm: what that took, what they take while they wait, and jobs sent to them at a given rate."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from agentfw import Code, Handle, Pool, PoolError

from . import machine
from .book import Book
from .numbers import percentile, percentiles
from .world import World, paced, settled

FIRST = Code("import time; t = time.monotonic_ns()\nprint(t)")


@dataclass(frozen=True)
class Start:
    """The machine before a pool was started."""

    at: float
    memory: int
    cpu: machine.Cpu

    @staticmethod
    def now() -> Start:
        return Start(time.monotonic(), machine.available(), machine.cpu())


async def idle_vms(pool: Pool, wanted: int, seconds: float) -> int:
    """Wait until so many wait for a job. -> how many do."""
    end = time.monotonic() + seconds
    while True:
        idle = sum(worker.idle for worker in (await pool.describe()).workers)
        if idle >= wanted or time.monotonic() > end:
            return idle
        await asyncio.sleep(0.02)


async def empty(world: World, agents: int) -> float:
    """CPU seconds of a pool of that size that warms nothing: starting and stopping workers; its first job makes the template."""
    async with world.pool(size=agents, idle=1) as pool:
        (await pool.run(FIRST)).check()
        (await pool.run(FIRST, template="sdk")).check()
    begun = machine.cpu()
    async with world.pool(size=agents, idle=0) as pool:
        await settled(0.3)
        spent = machine.cpu() - begun
    return spent.ours


async def warm_up(world: World, book: Book, pool: Pool, agents: int, nothing: float, start: Start) -> None:
    """`nothing`: CPU seconds of an empty pool."""
    idle = await idle_vms(pool, agents, 120)
    spent = machine.cpu() - start.cpu
    seconds = time.monotonic() - start.at
    if idle < agents:
        raise RuntimeError(f"{idle} of {agents} VMs were warm after {seconds:.0f} s")
    await settled(2)
    free = start.memory - machine.available()
    each = (spent.ours - nothing) / agents * 1e3
    book.figures["pool_warm"] = {
        "agents": agents,
        "each_ms": each,
        "gross_ms": spent.ours / agents * 1e3,
        "memory": free / agents,
    }
    book.row(
        f"{agents} VMs warm, core-ms of all processes each",
        "35.8",
        "<= 1.5",
        f"{each:.2f} ({spent.ours / agents * 1e3:.2f} with the start of router and workers); all of it in {seconds:.2f} s",
        each <= 1.5,
    )
    book.row(
        "idle warm VM, MemAvailable difference / N", "3 MB", "<= 1 MB", f"{free / agents / 1e6:.2f} MB", free / agents <= 1e6
    )


async def dispatch(world: World, book: Book, pool: Pool, agents: int, rate: float, jobs: int) -> None:
    """Short jobs at a rate; from the call of submit() to the clock that the program reads first."""
    first: list[float] = []
    inside: list[float] = []
    late: list[float] = []

    async def one() -> None:
        at = time.monotonic_ns()
        result = (await pool.run(FIRST)).check()
        first.append((int(result.stdout) - at) / 1e6)
        if result.usage.dispatch_seconds is not None:
            inside.append(result.usage.dispatch_seconds * 1e3)
        late.append((time.monotonic_ns() - at) / 1e6)

    begun, start = machine.cpu(), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        async for _ in paced(rate, jobs):
            tasks.create_task(one())
    reached = jobs / (time.monotonic() - start)
    spent = machine.cpu() - begun
    found = percentiles(first)
    book.figures["dispatch"] = {"rate": rate, "reached": reached, "first_ms": first, "inside_ms": inside, "result_ms": late}
    within = [percentile(inside, part) for part in (0.5, 0.95, 0.99)] if inside else []
    met = found["p50"] <= 2 and found["p95"] <= 5 and found["p99"] <= 10
    book.row(
        f"dispatch to first syscall, {agents} warm, {reached:.0f} a second",
        "44/86/105 ms",
        "<= 2/5/10 ms",
        f"{found['p50']:.2f}/{found['p95']:.2f}/{found['p99']:.2f} ms p50/p95/p99 from submit()"
        + (f"; {within[0]:.2f}/{within[1]:.2f}/{within[2]:.2f} by the pool's own clock" if within else ""),
        met,
    )
    book.note(f"a whole job, submit() to result: p50 {percentile(late, 0.5):.1f} ms; {spent.ours / jobs * 1e3:.1f} core-ms each")


async def held(pool: Pool, count: int, rate: float, submit: Any) -> tuple[list[Handle], list[dict[str, Any]]]:
    """So many jobs begun at a rate; -> them and each one's first line, once all have written it. RuntimeError names who ended."""
    import json

    handles: list[Handle] = []
    lines: list[dict[str, Any]] = []

    async def line(handle: Handle) -> None:
        async for text in handle.lines():
            lines.append(json.loads(text))
            return
        result = await handle.wait()
        raise RuntimeError(f"{result!r}: {result.ended.text} {result.stderr[-300:]}")

    async def one() -> None:
        handle = await submit()
        handles.append(handle)
        await line(handle)

    try:
        async with asyncio.TaskGroup() as tasks:
            async for _ in paced(rate, count):
                tasks.create_task(one())
    except ExceptionGroup as group:
        await dismiss(handles)
        raise RuntimeError(f"{len(group.exceptions)} of {count} failed, as: {group.exceptions[0]}") from None
    return handles, lines


async def dismiss(handles: list[Handle]) -> None:
    async def kill(handle: Handle) -> None:
        try:
            await handle.kill()
        except PoolError:
            return

    await asyncio.gather(*(kill(handle) for handle in handles))
