"""Cost of a DNS cache hit, called directly, as the runtime calls it, and beside dnslib's re-packing. Medians of 7 runs."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

import dnslib
from agentfw.mock_dns import MockDNS
from agentfw.testing import make_agent, make_runtime
from agentfw_dns_cache import DnsConfig, Plugin

NAMES = [f"host{i}.example.test" for i in range(1000)]
CALLS = 100_000


def nanoseconds(function: Callable[[], object], calls: int) -> float:
    """Median over 7 runs of one call's time."""
    runs = []
    for _ in range(7):
        start = time.perf_counter_ns()
        function()
        runs.append((time.perf_counter_ns() - start) / calls)
    return statistics.median(runs)


async def main() -> None:
    agent = make_agent("bench")
    async with MockDNS({name: "192.0.2.1" for name in NAMES}) as server:
        for name in NAMES:
            server.set(name, "A", "192.0.2.1", ttl=3600)
        plugin = Plugin(DnsConfig(upstream=(server.address,), agent_burst=10_000))
        runtime = make_runtime(plugin)
        await runtime.start()
        queries = [bytes(dnslib.DNSRecord.question(name).pack()) for name in NAMES]
        for name, query in zip(NAMES, queries, strict=True):
            await runtime.plugins.resolve(agent, name, 1, query)
        packed = dnslib.DNSRecord.parse(await runtime.plugins.resolve(agent, NAMES[0], 1, queries[0]) or b"")

        get, clock, query = plugin.cache.get, time.monotonic, queries[0]
        resolve, name = plugin.resolve, NAMES[0]

        def one() -> None:
            for _ in range(CALLS):
                get(query, clock())

        def hook() -> None:
            for _ in range(CALLS):
                resolve(agent, name, 1, query)

        def spread() -> None:
            for _ in range(CALLS // len(NAMES)):
                for each in queries:
                    get(each, clock())

        def empty() -> None:
            for _ in range(CALLS):
                pass

        def repack() -> None:
            for _ in range(500):
                packed.pack()

        loop = nanoseconds(empty, CALLS)
        lookup = nanoseconds(one, CALLS) - loop
        print(f"cache look-up                {lookup:8.0f} ns")
        print(f"  over 1,000 names           {nanoseconds(spread, CALLS) - loop:8.0f} ns")
        print(f"resolve hook, direct call    {nanoseconds(hook, CALLS) - loop:8.0f} ns")
        runs = []
        for _ in range(7):
            start = time.perf_counter_ns()
            for _ in range(20_000):
                await runtime.plugins.resolve(agent, name, 1, query)
            runs.append((time.perf_counter_ns() - start) / 20_000)
        print(f"through the plugin manager   {statistics.median(runs):8.0f} ns")
        again = nanoseconds(repack, 500)
        print(f"dnslib pack() for comparison {again:8.0f} ns  ({again / lookup:.0f} x the look-up)")
        print(f"upstream queries             {plugin.statistics()['upstream_queries']:8.0f}")
        await runtime.stop()


if __name__ == "__main__":
    asyncio.run(main())
