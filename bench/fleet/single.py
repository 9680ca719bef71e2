"""One VM at a time: a warm dispatch to the first print beside fork(), and a VM that is used again."""

from __future__ import annotations

import asyncio
import time

from agentfw import Code, Pool

from .book import Book
from .numbers import percentile, percentiles
from .peers import Forker
from .warmed import idle_vms
from .world import GUEST, World

PRINT = Code("print('hi')")
CLOCK = Code("import time; print(time.monotonic_ns())")


async def first_print(world: World, book: Book, forker: Forker, rounds: int) -> None:
    """In turn, so that a noisy neighbour hits all: fork(), the embedded pool, the pool with worker processes."""
    async with world.pool(workers=None, size=16, idle=8) as embedded, world.pool(workers=1, size=16, idle=8) as pool:
        forks: list[float] = []
        local: list[float] = []
        remote: list[float] = []
        for each in (embedded, pool):
            for _ in range(5):
                await _printed(each)
        for _ in range(rounds):
            for target in (embedded, pool):
                await idle_vms(target, 4, 10)
            await asyncio.sleep(0.01)
            forks.append(await forker.first_print())
            local.append(await _printed(embedded))
            remote.append(await _printed(pool))
    book.note(f"at best: fork {min(forks):.2f} ms, embedded {min(local):.2f}, by a worker process {min(remote):.2f}")
    a, b, c = percentiles(forks), percentiles(local), percentiles(remote)
    book.figures["first_print"] = {"fork_ms": forks, "embedded_ms": local, "workers_ms": remote}
    book.row(
        "warm dispatch to the script's first print, beside fork() of a warmed Python",
        "fork 4.3 ms",
        "faster than the fork",
        f"embedded {b['p50']:.2f} ms p50 ({b['p95']:.2f} p95), by a worker process {c['p50']:.2f} ({c['p95']:.2f}); "
        f"fork {a['p50']:.2f} ({a['p95']:.2f})",
        b["p50"] < a["p50"],
    )


async def _printed(pool: Pool) -> float:
    """ms from submit() to its first byte here."""
    at = time.monotonic()
    handle = await pool.submit(PRINT)
    took = 0.0
    async for _ in handle:
        took = took or (time.monotonic() - at) * 1e3
    if not took:
        raise RuntimeError(f"it printed nothing: {await handle.info()}")
    return took


async def recycle(world: World, book: Book, rounds: int, pages: int) -> None:
    """A pool of one VM: a job writes to that many pages; from its last act to the next one's first bytecode, which has waited for
    the VM. Once more without recycling."""
    medians: dict[bool, float] = {}
    counters: dict[str, float] = {}
    for again in (True, False):
        times: list[float] = []
        async with world.pool(workers=None, size=1, idle=1, recycle=again) as pool:
            for number in range(rounds + 2):
                dirty = await pool.submit(GUEST / "fleet_dirty.py", [str(pages)])  # it has the only VM from here on
                following = await pool.submit(CLOCK)
                ended, begun = await dirty.wait(check=True), await following.wait(check=True)
                took = (int(begun.stdout) - int(ended.stdout)) / 1e6
                if took <= 0:
                    raise RuntimeError(f"the job that followed began {-took:.1f} ms before the first had ended")
                if number >= 2:
                    times.append(took)
            if again:
                counters = {name: value for name, value in (await pool.metrics()).items() if "recycl" in name or "reset" in name}
        medians[again] = percentile(times, 0.5)
        book.figures[f"recycle {again}"] = {"pages": pages, "ms": times}
    if counters:
        book.note(", ".join(f"{name} {value:g}" for name, value in sorted(counters.items())))
    book.row(
        f"recycle a VM that dirtied {pages:,} pages, to the next first bytecode",
        "",
        "<= 5 ms",
        f"{medians[True]:.2f} ms p50 from the first's last act; {medians[False]:.2f} with a VM made anew",
        medians[True] <= 5,
    )
