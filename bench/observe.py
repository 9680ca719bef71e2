"""What seeing everything costs: a fleet's model calls with `inspect`, all of `audit`, and the dashboard, beside the same without.

    python bench/observe.py [--agents 32] [--seconds 4] [--rounds 8] [--variants off,inspect,all,watched]

Pools of each variant stand side by side; in each round agents make calls without a pause in one after the other, first one first,
then the other. CPU time of a call is that of the pool's workers, cells and router (this process), without the model server.
Variants: off, dashboard, audit, inspect, or several with `+`; all: all three; watched: that, and somebody looks at the overview
and at all agents each second. Ratios are to the first, medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import uvloop
from agentfw import Pool
from agentfw_audit.config import Kind
from fleet import machine
from fleet.warmed import held
from fleet.world import GUEST, World, settled, world

PLUGINS = ("dns", "tls", "policy", "credentials", "native")
EXTRAS = ("inspect", "audit", "dashboard")
TABLES = {
    "inspect": '\n[inspect]\ncurrency = "USD"\n\n[[inspect.route]]\nhost = "{place}"\nprovider = "openai"\n\n'
    "[inspect.prices.m]\ninput = 1.0\noutput = 2.0\n",
    "audit": '\n[audit]\nfile = "{file}"\nevents = {events}\n',
    "dashboard": '\n[dashboard]\nlisten = ""\n',
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--agents", type=int, default=32, metavar="N", help="that call without a pause")
    add("--seconds", type=float, default=4, help="for so long, in each round")
    add("--rounds", type=int, default=8)
    add("--workers", type=int, default=2)
    add("--variants", default="off,inspect,all,watched", help="comma-separated; the first is what the others are compared with")
    add("--json", type=Path, metavar="OUT.json", help="write all figures")
    return parser.parse_args()


def configured(place: World, folder: Path, variant: str) -> Path:
    """An agentfw.toml of its own."""
    chosen = EXTRAS if variant in ("all", "watched") else [name for name in EXTRAS if name in variant.split("+")]
    text = (place.directory / "agentfw.toml").read_text()
    more = "".join(
        TABLES[name].format(place=f"api.openai.com:{place.port}", file=folder / "audit.jsonl", events=json.dumps(get_args(Kind)))
        for name in chosen
    )
    folder.mkdir()
    file = folder / "agentfw.toml"
    file.write_text(f"[run]\nplugins = {json.dumps([*PLUGINS, *chosen])}\n\n{text}{more}")
    return file


async def watching(pool: Pool) -> None:
    """One who looks at the overview and at all agents, each second."""
    since = 0
    while True:
        await pool.backend.plugin("dashboard", "overview")
        table = await pool.backend.plugin("dashboard", "agents", {"since": str(since)})
        since = table.since
        await asyncio.sleep(1.0)


@contextlib.asynccontextmanager
async def watched(pool: Pool, variant: str) -> AsyncIterator[None]:
    if variant != "watched":
        yield
        return
    task = asyncio.create_task(watching(pool))
    try:
        yield
    finally:
        task.cancel()
        for result in await asyncio.gather(task, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


async def one_round(place: World, pool: Pool, variant: str, agents: int, seconds: float) -> tuple[float, float]:
    """-> CPU ms a call, calls a second."""

    async def submit() -> Any:
        return await pool.submit(GUEST / "fleet_agent.py", place.agent(True, seconds + 1), env=place.env, interactive=True)

    handles, _ = await held(pool, agents, 100.0, submit)
    await asyncio.gather(*(handle.feed("go on\n", end=True) for handle in handles))
    await asyncio.sleep(0.3)
    workers = [worker.pid for worker in (await pool.describe()).workers]
    async with watched(pool, variant):
        served, begun, at = place.served()["requests"], spent(workers), time.monotonic()
        await asyncio.sleep(seconds)
        cpu, wall = spent(workers) - begun, time.monotonic() - at
        calls = place.served()["requests"] - served - 1
    await asyncio.gather(*(handle.wait(check=True) for handle in handles))
    return cpu / calls * 1e3, calls / wall


def spent(workers: list[int]) -> float:
    """CPU seconds of a pool's workers with their cells, and of this process, its router."""
    own = machine._schedstat(machine.tree()[0]) or 0.0
    return own + sum(machine.cpu(pid).ours for pid in workers)


async def compare(place: World, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    variants = options.variants.split(",")
    found: dict[str, list[tuple[float, float]]] = {variant: [] for variant in variants}
    async with contextlib.AsyncExitStack() as stack:
        pools = {}
        for number, variant in enumerate(variants):
            file = configured(place, folder / str(number), variant)
            pool = Pool(file, workers=options.workers, size=options.agents, idle=options.agents)
            pools[variant] = await stack.enter_async_context(pool)
        for turn in range(options.rounds + 1):
            for variant in variants if turn % 2 else variants[::-1]:
                result = await one_round(place, pools[variant], variant, options.agents, options.seconds)
                if turn:  # the first is for warming up
                    found[variant].append(result)
                await settled(0.3)
    return {name: {"cpu_ms": [each[0] for each in rows], "rate": [each[1] for each in rows]} for name, rows in found.items()}


def report(figures: dict[str, Any]) -> None:
    first = next(iter(figures))
    for variant, found in figures.items():
        ratios = [one / other for one, other in zip(found["cpu_ms"], figures[first]["cpu_ms"], strict=True)]
        rates = [one / other for one, other in zip(found["rate"], figures[first]["rate"], strict=True)]
        cpu, rate = statistics.median(found["cpu_ms"]), statistics.median(found["rate"])
        print(
            f"{variant:24} {cpu:.3f} core-ms a call ({statistics.median(ratios):.3f} times {first}; "
            f"{min(ratios):.3f} to {max(ratios):.3f}), {rate:.0f} calls a second ({statistics.median(rates):.3f} times)"
        )


def main() -> None:
    options = arguments()
    with (
        tempfile.TemporaryDirectory(prefix="agentfw-observe-") as name,
        world(Path(name), options.workers, 0) as place,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        figures = runner.run(compare(place, Path(name), options))
    report(figures)
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
