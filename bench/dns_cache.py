"""The DNS cache: cost of a hit (called directly, as the runtime calls it, and for an agent's whole question), beside dnslib's
re-packing; and 1,500 agents that ask for one cold name at once. Medians of 7 runs.

    python bench/dns_cache.py [--json]
"""

from __future__ import annotations

import asyncio
import json
import time

import common
import dnslib
from agentfw import hookimpl
from agentfw.mock_dns import MockDNS
from agentfw.relay import dns as relay
from agentfw.testing import make_agent, make_runtime
from agentfw_dns_cache import DnsConfig, Plugin, wire

NAMES = [f"host{i}.example.test" for i in range(1000)]
CALLS = 100_000
ASKERS = 1500


class Anywhere:
    """A policy that allows everything, and the address of these names."""

    name = "policy"

    @hookimpl
    def allow(self) -> None:
        return None

    @hookimpl
    def dial(self) -> bool:
        return True


async def hits(found: dict[str, float]) -> None:
    agent = make_agent("bench")
    async with MockDNS() as server:
        for name in NAMES:
            server.set(name, "A", "192.0.2.1", ttl=3600)
        plugin = Plugin(DnsConfig(upstream=(server.address,), agent_burst=10_000))
        runtime = make_runtime(plugin, Anywhere())
        await runtime.start()
        queries = [bytes(dnslib.DNSRecord.question(name).pack()) for name in NAMES]
        for name, query in zip(NAMES, queries, strict=True):
            await runtime.plugins.resolve(agent, name, 1, query)
        get, query = plugin.cache.get, queries[0]
        resolve, name = plugin.resolve, NAMES[0]
        now = min(shape.until for shape in plugin.cache.shapes.values()) - 0.001  # when all of them were ready
        assert all(get(each, now) is not None for each in queries)

        def one() -> None:
            for _ in range(CALLS):
                get(query, now)

        def spread() -> None:
            for _ in range(CALLS // len(NAMES)):
                for each in queries:
                    get(each, now)

        def hook() -> None:
            for _ in range(CALLS):
                resolve(agent, name, 1, query)

        def empty() -> None:
            for _ in range(CALLS):
                pass

        asked = wire.parse_query(query)
        entry = plugin.cache.entries[asked.key]

        def patch() -> None:
            for age in range(5000):
                wire.render(entry.reply, asked, age % 3600, 1, 3600)

        reply = await runtime.plugins.resolve(agent, name, 1, query) or b""

        def repack() -> None:
            for age in range(500):
                record = dnslib.DNSRecord.parse(reply)
                record.header.id = age
                for each in record.rr:
                    each.ttl = age
                record.pack()

        loop = common.per_call(empty, CALLS)
        found["lookup_ns"] = common.per_call(one, CALLS) - loop
        found["lookup_1000_names_ns"] = common.per_call(spread, CALLS) - loop
        found["hook_ns"] = common.per_call(hook, CALLS) - loop
        found["manager_ns"] = await common.per_await(lambda: runtime.plugins.resolve(agent, name, 1, query), 20_000)
        found["question_ns"] = await common.per_await(lambda: relay.answer(runtime, agent, query, udp=True), 10_000)
        found["patch_ns"] = common.per_call(patch, 5000)
        found["repack_ns"] = common.per_call(repack, 500)
        found["upstream_queries"] = plugin.statistics()["upstream_queries"]
        await runtime.stop()


async def cold(found: dict[str, float]) -> None:
    """All agents' questions are there before the authority has answered (it takes 50 ms). The answer's time is counted from when
    all were asked."""
    waits: list[float] = []
    async with MockDNS() as server:
        plugin = Plugin(DnsConfig(upstream=(server.address,)))
        runtime = make_runtime(plugin, Anywhere())
        await runtime.start()
        agents = [make_agent(f"agent{i}") for i in range(ASKERS)]
        for run in range(common.RUNS):
            name = f"cold{run}.example.test"
            server.set(name, "A", "192.0.2.1", delay=0.05)
            query = bytes(dnslib.DNSRecord.question(name).pack())
            start = time.perf_counter()

            async def ask(number: int, query: bytes = query, start: float = start) -> None:
                reply = await relay.answer(runtime, agents[number], number.to_bytes(2) + query[2:], udp=True)
                assert reply and reply[:2] == number.to_bytes(2) and reply[7] == 1
                waits.append(time.perf_counter() - start)

            await asyncio.gather(*map(ask, range(ASKERS)))
            assert server.asked(name) == 1, server.asked(name)
        found["cold_queries_upstream"] = server.udp_queries / common.RUNS
        found["cold_coalesced"] = plugin.statistics()["coalesced"] / common.RUNS
        waits.sort()
        found["cold_p50_ms"] = waits[len(waits) // 2] * 1e3
        found["cold_p99_ms"] = waits[len(waits) * 99 // 100] * 1e3
        await runtime.stop()


async def main() -> None:
    options = common.parser(__doc__, "--json: one object instead of the table").parse_args()
    found: dict[str, float] = {}
    await hits(found)
    await cold(found)
    if options.json:
        print(json.dumps(found))
        return
    look_up, repack, question = found["lookup_ns"], found["repack_ns"], found["question_ns"]
    rows = [
        ("cache look-up", look_up),
        ("  over 1,000 names", found["lookup_1000_names_ns"]),
        ("resolve hook, called directly", found["hook_ns"]),
        ("  through the plugin manager", found["manager_ns"]),
        ("an agent's question, answered", question),
        ("the kept wire patched anew (ID, name, TTLs)", found["patch_ns"]),
        ("dnslib instead: parsed, changed, packed", repack),
    ]
    for text, each in rows:
        print(f"{text:44} {each:9,.0f} ns  {1e9 / each:11,.0f}/s a core")
    print(f"re-packing costs {repack / look_up:.0f} look-ups, or {repack / found['patch_ns']:.1f} patchings")
    print(f"upstream queries for {len(NAMES):,} names and all of these: {found['upstream_queries']:,.0f}")
    print(
        f"{ASKERS:,} agents ask for a cold name at once: {found['cold_queries_upstream']:g} query upstream, the others joined it"
    )
    print(f"  answered in p50 {found['cold_p50_ms']:.0f} ms, p99 {found['cold_p99_ms']:.0f} ms, 50 of them the authority's")


if __name__ == "__main__":
    asyncio.run(main())
