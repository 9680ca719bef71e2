"""Questions that go nowhere, and how many go anywhere; configuration."""

from __future__ import annotations

import asyncio
from math import inf, nan
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from agentfw.agents import ExitReport
from agentfw.config import Config
from agentfw.errors import ConfigError
from agentfw.hookspecs import hookimpl
from agentfw.mock_dns import MockDNS
from agentfw.relay import dns as relay
from agentfw.reports import AuditEvent
from agentfw.testing import make_agent, make_runtime
from agentfw_dns_cache import DnsConfig, Plugin, wire

from .support import ALICE, BOB, Bench, bench


@pytest.mark.parametrize(
    ("raw", "rcode"),
    [
        (b"\0\1\x28\0\0\1\0\0\0\0\0\0\3api\4test\0\0\1\0\1", 4),  # UPDATE
        (b"\0\1\1\0\0\2\0\0\0\0\0\0\3api\4test\0\0\1\0\1\3api\4test\0\0\1\0\1", 1),
        (b"\0\1\1\0\0\0\0\0\0\0\0\0", 1),
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\4test", 1),
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\4test\0\0\1\0\1junk", 1),
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1", 1),
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\4test\0\0\1\0\3", 5),  # CHAOS
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\4test\0\0\xff\0\1", 5),  # ANY
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\4test\0\0\xfc\0\1", 5),  # AXFR
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\x08api.test\0\0\1\0\1", 5),  # a dot inside a label
        (b"\0\1\1\0\0\1\0\0\0\0\0\1\3api\4test\0\0\1\0\1\0\0\x29\4\xd0\0\1\0\0\0\0", 16),  # EDNS version 1
        (b"\0\1\1\0\0\1\0\0\0\0\0\1\3api\4test\0\0\1\0\1\0\0\x10\0\1\0\0\0\0\0\0", 1),  # a record that is not OPT
    ],
)
def test_odd_questions_go_nowhere(raw: bytes, rcode: int) -> None:
    @bench
    async def run(b: Bench) -> None:
        reply = dns.message.from_wire(await b.raw(raw, name="api.test"))
        assert reply.rcode() == rcode
        assert reply.id == 1
        assert b.dns.seen == []

    run()


@bench
async def test_the_judged_name_is_the_one_that_is_asked(b: Bench) -> None:
    query = dns.message.make_query("secret.evil.test", "A").to_wire()
    with pytest.raises(ValueError, match="another name"):
        await b.raw(query, name="api.test")
    api = dns.message.make_query("api.test", "A").to_wire()
    await b.raw(api, name="api.test")
    await b.raw(api, name="api.test")
    with pytest.raises(ValueError, match="another name"):
        await b.raw(api, name="other.test")
    assert b.dns.asked("secret.evil.test") == 0


@bench(agent_burst=20, agent_rate=1.0, name_length=60)
async def test_floods_and_long_names_are_limited(b: Bench) -> None:
    for i in range(20):
        await b.ask(f"n{i}.test")
    denied = await b.denied("n20.test")
    assert (denied.rule, denied.status, denied.retry_after) == ("dns.agent_rate", 429, 1.0)
    assert (await b.ask("n0.test")).rcode() == dns.rcode.NXDOMAIN  # what is in the cache costs nothing
    assert (await b.ask("api.test", agent=BOB)).rcode() == dns.rcode.NOERROR
    b.clock.now += 1
    assert (await b.ask("n21.test")).rcode() == dns.rcode.NXDOMAIN
    assert (await b.denied("x" * 63 + ".test", agent=BOB)).rule == "dns.name_length"
    assert sum(b.dns.queries.values()) == 22


@bench(agent_pending=4)
async def test_one_agent_waits_for_a_bounded_number(b: Bench) -> None:
    for i in range(6):
        b.dns.set(f"slow{i}.test", "A", "192.0.2.1", delay=0.1)
    replies = await asyncio.gather(*(b.ask(f"slow{i}.test") for i in range(6)))
    assert sorted(reply.rcode() for reply in replies) == [0, 0, 0, 0, 2, 2]


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"upstream": ["example.com"]}, "dns.upstream.0"),
        ({"upstream": ["[::1]x"]}, "dns.upstream.0"),
        ({"hosts": {"a b": "127.0.0.1"}}, "dns.hosts.a b"),
        ({"hosts": {"a": "localhost"}}, "dns.hosts.a"),
        ({"nonsense": 1}, "dns.nonsense"),
        ({"entries": 0}, "dns.entries"),
        ({"entries": 10}, "dns.agent_entries"),
        *(({name: 2**63 - 1}, f"dns.{name}") for name in ("entries", "agent_entries", "pending", "agent_pending")),
        *(({name: 2**63 - 1}, f"dns.{name}") for name in ("agent_burst", "synthetic_names")),
        *(({name: value}, f"dns.{name}") for name in ("timeout", "agent_rate") for value in (inf, nan, 1e300, 5e-324, 0.0, -1.0)),
    ],
)
def test_bad_configuration_names_the_key(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config({"dns": table}).plugin("dns", DnsConfig)
    assert caught.value.key == key


def test_limits_hold_for_all_types_are_told_and_audited() -> None:
    """Fall-through obeys policy and limits first: what the cache does not keep is no way around them."""
    events: list[AuditEvent] = []

    class Audit:
        @hookimpl
        def dial(self) -> bool:
            return True

        @hookimpl
        def audit(self, event: AuditEvent) -> None:
            events.append(event)

    async def run() -> None:
        async with MockDNS({"api.test": "192.0.2.1"}) as server:
            config = DnsConfig(upstream=(server.address,), agent_burst=4, agent_rate=0.001, name_length=30)
            runtime = make_runtime(Plugin(config), Audit())

            async def ask(name: str, qtype: str) -> dns.message.Message:
                query = dns.message.make_query(name, qtype, use_edns=0)
                return dns.message.from_wire(await relay.answer(runtime, ALICE, query.to_wire(), udp=True) or b"")

            for qtype in ("A", "TXT", "TYPE65400", "DNSKEY", "MX"):
                long = await ask(f"{'secret' * 5}.api.test", qtype)
                assert (long.rcode(), long.options[0].to_text()[:7]) == (dns.rcode.REFUSED, "EDE 15 ")
            assert [await ask("api.test", qtype) for qtype in ("A", "TXT", "DNSKEY", "MX")]
            for qtype in ("AAAA", "TXT", "TYPE65400", "SRV"):
                denied = await ask("api.test", qtype)
                assert denied.rcode() == dns.rcode.REFUSED and "dns.agent_rate" in denied.options[0].to_text()
            assert (await ask("api.test", "A")).rcode() == dns.rcode.NOERROR  # it is in the cache
            assert sum(server.queries.values()) == 4
            statistics = runtime.statistics()
            assert (statistics["dns.limited"], statistics["dns.refused"], statistics["core.dns_denied"]) == (4, 5, 9)
        assert [event.rule for event in events] == ["dns.name_length"] * 5 + ["dns.agent_rate"] * 4
        assert {(event.kind, event.plugin, event.agent_id) for event in events} == {("denied", "dns", ALICE.id)}

    asyncio.run(run())


@bench(agent_burst=1000)
async def test_nothing_is_kept_of_agents_that_have_ended(b: Bench) -> None:
    for number in range(50):
        agent = make_agent(f"agent{number}")
        await b.ask(f"n{number}.test", agent=agent)
        b.plugin.exit(agent, ExitReport("code"))
        await b.ask(f"late{number}.test", agent=agent)
    assert b.plugin._agents == {}


@bench(pending=2, agent_pending=10)
async def test_all_questions_under_way_are_bounded(b: Bench) -> None:
    for number in range(4):
        b.dns.set(f"slow{number}.test", "A", "192.0.2.1", delay=0.2)
    replies = await asyncio.gather(*(b.ask(f"slow{number}.test") for number in range(4)))
    assert sorted(int(reply.rcode()) for reply in replies) == [0, 0, 2, 2]


@bench
async def test_an_agent_with_many_slow_questions_leaves_room_for_others(b: Bench) -> None:
    """Two hundred names at once, as an asynchronous resolver asks them: all are answered, 64 at a time; others need not wait."""
    gate = asyncio.Event()
    under_way = 0
    real = b.plugin.exchange.ask

    async def ask(query: wire.Query) -> wire.Reply:
        nonlocal under_way
        under_way += 1
        if query.name.startswith("slow"):
            await gate.wait()
        reply = await real(query)
        under_way -= 1
        return reply

    b.plugin.exchange.ask = ask  # type: ignore[method-assign]
    flood = [asyncio.ensure_future(b.ask(f"slow{number}.test")) for number in range(200)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert under_way == 64
    assert (await b.ask("api.test", agent=BOB)).rcode() == dns.rcode.NOERROR
    assert under_way == 64 and not any(each.done() for each in flood)
    gate.set()
    assert {reply.rcode() for reply in await asyncio.gather(*flood)} == {dns.rcode.NXDOMAIN}
    assert b.statistics()["limited"] == 0
