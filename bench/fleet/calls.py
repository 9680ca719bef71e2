"""Model calls: how many a second a core, and whether a call takes longer where there are more agents."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from agentfw import Pool

from . import machine
from .book import Book
from .numbers import percentile
from .warmed import held
from .world import GUEST, World


async def throughput(world: World, book: Book, pool: Pool, agents: int, seconds: float) -> None:
    """Agents that call one after the other, without a pause; CPU time of the pool's processes and VMs, and of this one."""

    async def submit() -> Any:
        return await pool.submit(GUEST / "fleet_agent.py", world.agent(True, seconds), env=world.env, interactive=True)

    handles, _ = await held(pool, agents, 100.0, submit)
    begun, served = _without(world), world.served()["requests"]
    at = time.monotonic()
    await asyncio.gather(*(handle.feed("go on\n", end=True) for handle in handles))
    await asyncio.sleep(seconds)
    spent, wall = _without(world) - begun, time.monotonic() - at
    calls = world.served()["requests"] - served - 1
    results = await asyncio.gather(*(handle.wait(check=True) for handle in handles))
    times = [each / 1e6 for result in results for each in json.loads(result.stdout.splitlines()[-1])]
    each = calls / spent
    book.figures["throughput"] = {"agents": agents, "calls": calls, "cpu": spent, "seconds": wall, "per_core_second": each}
    book.row(
        "model calls a second a core",
        "11.7",
        ">= 200",
        f"{each:.0f} ({agents} agents; {calls / wall:.0f} a second beside the model server; p50 {percentile(times, 0.5):.1f} ms)",
        each >= 200,
    )


def _without(world: World) -> float:
    """CPU seconds of all but the model server."""
    return machine.cpu(os.getpid()).ours - machine.cpu(world.server.pid).ours


async def flat(world: World, book: Book, pool: Pool, counts: list[int], rate: float, seconds: float) -> None:
    """The same calls a second in all, by few agents and by many."""
    medians: dict[int, float] = {}
    figures: dict[str, Any] = {}
    for count in counts:
        args = world.agent(True, seconds, count / rate)

        async def submit(args: list[str] = args) -> Any:
            return await pool.submit(GUEST / "fleet_agent.py", args, env=world.env, interactive=True)

        handles, _ = await held(pool, count, 100.0, submit)
        await asyncio.gather(*(handle.feed("go on\n", end=True) for handle in handles))
        results = await asyncio.gather(*(handle.wait(check=True) for handle in handles))
        times = [each / 1e6 for result in results for each in json.loads(result.stdout.splitlines()[-1])]
        if not times:
            raise RuntimeError(f"{count} agents made no call in {seconds} s")
        medians[count] = percentile(times, 0.5)
        figures[str(count)] = {"ms": times, "rate": len(times) / seconds}
    ratio = medians[counts[-1]] / medians[counts[0]]
    book.figures["flat"] = figures
    told = [f"{count} agents {median:.2f} ms ({figures[str(count)]['rate']:.0f} a second)" for count, median in medians.items()]
    book.row(
        f"p50 of a call with {counts[-1]} agents against {counts[0]}, same rate",
        "flat",
        "<= 1.2 times",
        f"{ratio:.2f} times: {', '.join(told)}",
        ratio <= 1.2,
    )
