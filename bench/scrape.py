"""What a scrape of /metrics costs a pool whose agents run: `python bench/scrape.py [--agents 1500]`.

Core-ms a scrape of the router's process (which asks here, too) and of its workers, what they take anyhow taken off; what making
the text of it takes; and what the histograms cost that it tells of, each time that something is counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import common
from agentfw.config import Config
from agentfw.histograms import SHORT, Histogram
from agentfw.metrics import expose
from agentfw.pool.api import ApiServer
from agentfw.pool.client import HttpBackend
from agentfw.pool.jobs import Job
from agentfw.pool.places import SocketPlace
from agentfw.pool.router import Router

PLUGINS = ("dns", "tls", "policy", "credentials", "native", "inspect", "audit", "dashboard")
AGENT = """import socket, time
try:
    socket.getaddrinfo("denied.example", 443)
except OSError:
    pass
print("up", flush=True)
time.sleep(600)
"""
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def spent(pids: Sequence[int]) -> float:
    """CPU seconds of these processes' threads so far, proc_pid_schedstat(5)."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


async def measured(agents: int, scrapes: int, every: float) -> None:
    with tempfile.TemporaryDirectory(prefix="agentfw-scrape-") as directory:
        tables = {
            "pool": {"size": agents, "idle": min(agents, 64), "workers": 2, "queue": agents, "log": "error"},
            "audit": {"file": f"{directory}/audit.jsonl"},
            "dashboard": {"listen": ""},
        }
        config = Config(tables)
        router = Router(config, PLUGINS, load=lambda: config)
        await router.start()
        place = SocketPlace.take(Path(directory) / "s")
        server = ApiServer(router, lambda seconds: None)
        try:
            await server.start()
            await server.listen_unix(place.bind())
            jobs = [(await router.submit(Job(mode="code", target=AGENT))).id for _ in range(agents)]
            for job in jobs:
                async for _ in router.output(job):
                    break
            async with HttpBackend(socket=Path(directory) / "s") as client:
                await scraped(client, router, agents, scrapes, every)
        finally:
            await server.close()
            place.close()
            await router.close()


async def scraped(client: HttpBackend, router: Router, agents: int, scrapes: int, every: float) -> None:
    begun = time.process_time()
    text = await client.prometheus()
    first = time.process_time() - begun
    workers = [worker.pid for worker in router.workers]
    sides = {"router": [os.getpid()], "workers": workers}
    idle = await used(sides, scrapes * every)
    before = {side: spent(pids) for side, pids in sides.items()}
    start = time.perf_counter()
    for _ in range(scrapes):
        text = await client.prometheus()
        await asyncio.sleep(every)
    seconds = time.perf_counter() - start
    series = sum(not line.startswith("#") for line in text.splitlines())
    print(f"{agents} agents run: {series} series, {len(text) / 1e3:.0f} kB")
    print(f"the first scrape        {first * 1e3:6.1f} core-ms of the router")
    for side, pids in sides.items():
        rate = (spent(pids) - before[side] - idle[side] * seconds) / scrapes
        print(f"a scrape, {side:13} {rate * 1e3:6.1f} core-ms")
    values = await router.metrics()
    for name, accept in (("text 0.0.4", ""), ("OpenMetrics", OPEN_METRICS)):
        begun = time.process_time()
        for _ in range(common.RUNS):
            expose(values, accept)
        print(f"making {name:16} {(time.process_time() - begun) / common.RUNS * 1e3:6.1f} core-ms")
    histogram = Histogram(SHORT)
    print(f"an observation          {common.per_call(lambda: [histogram.observe(0.003) for _ in range(10_000)], 10_000):6.0f} ns")


async def used(sides: dict[str, list[int]], seconds: float) -> dict[str, float]:
    """Cores that they take with nobody asking."""
    before = {side: spent(pids) for side, pids in sides.items()}
    start = time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - start
    return {side: (spent(pids) - before[side]) / took for side, pids in sides.items()}


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--scrapes", type=int, default=15)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two")
    given = parser.parse_args()
    logging.getLogger("agentfw").setLevel(logging.ERROR)  # of a thousand refusals
    asyncio.run(measured(given.agents, given.scrapes, given.every))


if __name__ == "__main__":
    main()
