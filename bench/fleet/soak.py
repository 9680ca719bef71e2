"""Turnover for a long time: memory and descriptors must be flat."""

from __future__ import annotations

import asyncio
import time

from agentfw import AgentfwError, Pool

from . import machine
from .book import Book
from .numbers import slope
from .world import GUEST, World


async def soak(world: World, book: Book, pool: Pool, seconds: float, at_once: int, every: float) -> None:
    """Agents with a TLS call each, so many at once, one after the other; every so often what the pool's processes have."""
    counts = {"done": 0, "failed": 0}
    problems: list[str] = []
    end = time.monotonic() + seconds

    async def turn() -> None:
        while time.monotonic() < end:
            try:
                result = await pool.run(GUEST / "fleet_agent.py", world.agent(False), env=world.env, timeout=60)
            except AgentfwError as error:
                counts["failed"] += 1
                problems.append(str(error))
                await asyncio.sleep(0.1)
                continue
            counts["done"] += 1
            if not result.ok:
                counts["failed"] += 1
                problems.append(f"{result!r} {result.ended.text} {result.stderr[-200:]}")

    points: list[dict[str, float]] = []

    async def watch() -> None:
        start = time.monotonic()
        while True:
            pids = [pid for pid in machine.tree() if pid != world.server.pid]
            points.append(
                {
                    "seconds": time.monotonic() - start,
                    "available": float(machine.available()),
                    "pss": float(await asyncio.to_thread(machine.proportional, pids)),
                    "descriptors": float(machine.descriptors()),
                    "processes": float(len(pids)),
                    "done": float(counts["done"]),
                }
            )
            last = points[-1]
            book.note(
                f"{last['seconds']:6.0f} s: {counts['done']} jobs, {counts['failed']} failed, PSS {last['pss'] / 1e6:.0f} MB, "
                f"available {last['available'] / 1e9:.2f} GB, {last['descriptors']:.0f} descriptors, {len(pids)} processes"
            )
            await asyncio.sleep(every)

    watcher = asyncio.ensure_future(watch())
    try:
        await asyncio.gather(*(turn() for _ in range(at_once)))
    finally:
        watcher.cancel()
    later = [point for point in points if point["seconds"] > seconds * 0.5] or points  # what is filled once, is by then
    slopes = {
        name: slope([(each["seconds"] / 3600, each[name]) for each in later]) for name in ("pss", "available", "descriptors")
    }
    book.figures["soak"] = {"points": points, "slopes_an_hour": slopes, **counts}
    for problem in problems[:3]:
        book.note(f"failed: {problem}")
    thousand = max(counts["done"], 1) / 1000
    hours = seconds / 3600
    book.row(
        f"soak: {seconds:.0f} s of turnover, {at_once} at once",
        "",
        "memory flat, descriptors flat",
        f"{counts['done']} jobs, {counts['failed']} failed; PSS {slopes['pss'] / 1e6:+.1f} MB an hour "
        f"({slopes['pss'] * hours / 1e3 / thousand:+.1f} KB a thousand jobs), descriptors {slopes['descriptors']:+.1f} an hour",
    )
