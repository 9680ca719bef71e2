"""The values of DNS caching, each with a test named after its rule. dnspython is the client side's oracle."""

from __future__ import annotations

import asyncio
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from agentfw.agents import ExitReport
from agentfw.hookspecs import hookimpl
from agentfw.mock_dns import MockDNS
from agentfw.relay import dns as relay
from agentfw.testing import make_agent, make_runtime
from agentfw_dns_cache import DnsConfig, Plugin, wire

from .support import ALICE, BOB, Bench, addresses, bench


@bench
async def test_answers_are_kept(b: Bench) -> None:
    first = await b.ask("api.test")
    second = await b.ask("api.test")
    assert addresses(first) == addresses(second) == ["192.0.2.1"]
    assert b.dns.asked("api.test") == 1
    assert b.statistics()["misses"] == 1
    assert b.statistics()["hits"] == 1


@bench
async def test_ttl_counts_down_and_ends(b: Bench) -> None:
    b.dns.set("short.test", "A", "192.0.2.2", ttl=3)
    for second in range(3):
        assert (await b.ask("short.test")).answer[0].ttl == 3 - second
        b.clock.now += 1
    assert b.dns.asked("short.test") == 1
    assert (await b.ask("short.test")).answer[0].ttl == 3
    assert b.dns.asked("short.test") == 2


@bench
async def test_ttl_is_clamped_and_the_clamped_one_reported(b: Bench) -> None:
    b.dns.set("long.test", "A", "192.0.2.2", ttl=999_999)
    b.dns.set("zero.test", "A", "192.0.2.3", ttl=0)
    assert (await b.ask("long.test")).answer[0].ttl == 3600
    assert (await b.ask("zero.test")).answer[0].ttl == 1
    b.clock.now += 0.9
    assert (await b.ask("zero.test")).answer[0].ttl == 1
    assert b.dns.asked("zero.test") == 1
    b.clock.now += 3599.5
    await b.ask("long.test")
    assert b.dns.asked("long.test") == 2


@bench
async def test_the_shortest_ttl_of_a_chain_counts(b: Bench) -> None:
    b.dns.set("www.test", "A", extra=("www.test. 100 IN CNAME edge.test.", "edge.test. 5 IN A 192.0.2.9"))
    reply = await b.ask("www.test")
    assert addresses(reply) == ["192.0.2.9"]
    assert sorted(rrset.ttl for rrset in reply.answer) == [5, 100]
    b.clock.now += 5
    await b.ask("www.test")
    assert b.dns.asked("www.test") == 2


@pytest.mark.parametrize(("soa", "kept"), [((60, 10), 10), ((10, 60), 10), ((9999, 9999), 300), ((0, 0), 1), (None, 0)])
@pytest.mark.parametrize("exists", [True, False])
def test_negative_answers(soa: tuple[int, int] | None, kept: int, exists: bool) -> None:
    @bench
    async def run(b: Bench) -> None:
        rcode = dns.rcode.NOERROR if exists else dns.rcode.NXDOMAIN
        b.dns.set("none.test", "A", rcode=int(rcode), soa=soa)
        reply = await b.ask("none.test")
        assert reply.rcode() == rcode
        assert [rrset.ttl for rrset in reply.authority] == ([] if soa is None else [max(1, min(300, *soa))])
        if kept:
            b.clock.now += kept - 0.1
            assert (await b.ask("none.test")).rcode() == rcode
            assert b.dns.asked("none.test") == 1
        b.clock.now += 0.2
        await b.ask("none.test")
        assert b.dns.asked("none.test") == 2

    run()


@bench(stale=False)
async def test_servfail_is_kept_five_seconds(b: Bench) -> None:
    b.dns.set("bad.test", "A", rcode=2)
    assert (await b.ask("bad.test")).rcode() == dns.rcode.SERVFAIL
    asked = b.dns.asked("bad.test")
    b.clock.now += 4.9
    assert (await b.ask("bad.test")).rcode() == dns.rcode.SERVFAIL
    assert b.dns.asked("bad.test") == asked
    b.dns.set("bad.test", "A", "192.0.2.4")
    b.clock.now += 0.2
    assert addresses(await b.ask("bad.test")) == ["192.0.2.4"]


@bench
async def test_servfail_never_replaces_a_good_answer(b: Bench) -> None:
    b.dns.set("api.test", "A", "192.0.2.1", ttl=100)
    for _ in range(3):
        await b.ask("api.test")
    b.dns.set("api.test", "A", rcode=2)
    b.clock.now += 95  # in the last tenth: a prefetch starts and fails
    assert addresses(await b.ask("api.test")) == ["192.0.2.1"]
    await b.settled()
    assert b.dns.asked("api.test") == 2
    assert addresses(await b.ask("api.test")) == ["192.0.2.1"]
    b.clock.now += 10  # expired: stale, and told so
    stale = await b.ask("api.test", use_edns=0)
    assert addresses(stale) == ["192.0.2.1"]
    assert [rrset.ttl for rrset in stale.answer] == [30]
    assert [option.code for option in stale.options if isinstance(option, dns.edns.EDEOption)] == [3]
    b.clock.now += 3600
    assert (await b.ask("api.test")).rcode() == dns.rcode.SERVFAIL


@bench(stale_wait=0.05, timeout=5.0)
async def test_a_slow_upstream_gets_a_stale_answer_and_the_next_a_fresh_one(b: Bench) -> None:
    await b.ask("api.test")
    b.dns.set("api.test", "A", "192.0.2.2", delay=0.3)
    b.clock.now += 61
    assert addresses(await b.ask("api.test")) == ["192.0.2.1"]
    await b.settled()
    assert addresses(await b.ask("api.test")) == ["192.0.2.2"]
    assert b.dns.asked("api.test") == 2


@bench
async def test_prefetch_needs_two_hits_and_happens_once(b: Bench) -> None:
    b.dns.set("api.test", "A", "192.0.2.1", ttl=100)
    b.dns.set("rare.test", "A", "192.0.2.1", ttl=100)
    for _ in range(3):
        await b.ask("api.test")
    await b.ask("rare.test")
    b.clock.now += 91
    for _ in range(5):
        assert (await b.ask("api.test")).answer[0].ttl == 9
    await b.ask("rare.test")
    await b.settled()
    assert (b.dns.asked("api.test"), b.dns.asked("rare.test")) == (2, 1)
    assert (await b.ask("api.test")).answer[0].ttl == 100


@bench(agent_pending=2000)
async def test_many_askers_of_a_cold_name_make_one_query(b: Bench) -> None:
    b.dns.set("cold.test", "A", "192.0.2.7", delay=0.1)
    replies = await asyncio.gather(
        *(b.ask("CoLd.TeSt" if i % 2 else "cold.test", agent=BOB if i % 3 else ALICE) for i in range(1500))
    )
    assert all(addresses(reply) == ["192.0.2.7"] for reply in replies)
    assert {reply.question[0].name.to_text() for reply in replies} == {"cold.test.", "CoLd.TeSt."}
    assert b.dns.asked("cold.test") == 1
    assert b.statistics()["coalesced"] == 1499


@bench
async def test_a_leader_that_dies_takes_nobody_along(b: Bench) -> None:
    b.dns.set("cold.test", "A", "192.0.2.7")
    real, gate = b.plugin.exchange.ask, asyncio.Event()

    async def held(query: wire.Query) -> wire.Reply:
        await gate.wait()
        return await real(query)

    b.plugin.exchange.ask = held  # type: ignore[method-assign]
    leader = asyncio.ensure_future(b.ask("cold.test"))
    await asyncio.sleep(0.01)
    others = [asyncio.ensure_future(b.ask("cold.test", agent=BOB)) for _ in range(5)]
    await asyncio.sleep(0.01)
    leader.cancel()
    others[0].cancel()
    await asyncio.sleep(0)
    gate.set()
    assert [addresses(reply) for reply in await asyncio.gather(*others[1:])] == [["192.0.2.7"]] * 4
    assert b.dns.asked("cold.test") == 1
    with pytest.raises(asyncio.CancelledError):
        await leader


@bench
async def test_do_and_cd_and_types_are_apart(b: Bench) -> None:
    b.dns.set("api.test", "AAAA", "2001:db8::1")
    b.dns.set("api.test", "HTTPS", "1 . alpn=h2")
    for _ in range(2):
        await b.ask("api.test")
        await b.ask("api.test", "AAAA")
        await b.ask("api.test", "HTTPS")
        await b.ask("api.test", want_dnssec=True)
        await b.ask("api.test", flags=dns.flags.RD | dns.flags.CD)
    assert b.dns.asked("api.test") == 3
    assert b.dns.asked("api.test", "AAAA") == b.dns.asked("api.test", "HTTPS") == 1
    sent = [dns.message.from_wire(query) for query in b.dns.seen]
    assert sum(bool(query.ednsflags & dns.flags.DO) for query in sent) == 1
    assert sum(bool(query.flags & dns.flags.CD) for query in sent) == 1
    assert all(query.payload == 1232 for query in sent)


@bench
async def test_each_gets_edns_back_only_if_it_spoke_it(b: Bench) -> None:
    assert (await b.ask("api.test", use_edns=False)).edns == -1
    assert (await b.ask("api.test", use_edns=0)).edns == 0
    assert (await b.ask("api.test", use_edns=False)).edns == -1


@bench
async def test_other_types_pass_and_are_not_kept(b: Bench) -> None:
    b.dns.set("api.test", "TXT", '"hello"')
    for _ in range(2):
        assert (await b.ask("api.test", "TXT")).answer[0][0].to_text() == '"hello"'
    assert b.dns.asked("api.test", "TXT") == 2


@bench(entries=200, agent_entries=50, agent_burst=2000)
async def test_a_flood_pushes_out_its_own_names_only(b: Bench) -> None:
    for i in range(30):
        b.dns.set(f"bob{i}.test", "A", "192.0.2.1", ttl=1000)
        await b.ask(f"bob{i}.test", agent=BOB)
    b.dns.set("shared.test", "A", "192.0.2.1", ttl=1000)
    await b.ask("shared.test")
    await b.ask("shared.test", agent=BOB)
    b.clock.now += 1.5
    await b.ask("shared.test", agent=BOB)  # from here on it is everybody's
    for i in range(400):
        await b.ask(f"flood{i}.test")
    for i in range(30):
        await b.ask(f"bob{i}.test", agent=BOB)
        assert b.dns.asked(f"bob{i}.test") == 1
    await b.ask("shared.test", agent=BOB)
    assert b.dns.asked("shared.test") == 1
    assert b.statistics()["evicted"] == 350


@bench
async def test_what_an_agent_leaves_behind_serves_the_next(b: Bench) -> None:
    await b.ask("api.test")
    b.plugin.exit(ALICE, ExitReport("code"))
    await b.ask("api.test", agent=BOB)
    assert b.dns.asked("api.test") == 1


def test_fifteen_hundred_agents_ask_for_a_cold_name_and_one_query_leaves() -> None:
    """Through the relay: each gets its own ID, spelling and size."""

    async def run() -> None:
        async with MockDNS() as server:
            server.set("cold.test", "A", *(f"192.0.2.{i}" for i in range(1, 60)), delay=0.3)
            runtime = make_runtime(Plugin(DnsConfig(upstream=(server.address,))), Anywhere())

            async def ask(number: int) -> None:
                name = "".join(c.upper() if number >> i & 1 else c for i, c in enumerate("cold.test"))
                query = dns.message.make_query(name, "A", use_edns=0 if number % 2 else False, payload=1232)
                raw = await relay.answer(runtime, make_agent(f"agent{number}"), query.to_wire(), udp=True)
                reply = dns.message.from_wire(raw or b"")
                assert query.is_response(reply) and reply.question[0].name.to_text() == name + "."
                assert bool(reply.flags & dns.flags.TC) == (number % 2 == 0) and len(addresses(reply)) == 59 * (number % 2)

            await asyncio.gather(*map(ask, range(1500)))
            assert server.asked("cold.test") == 1
            statistics = runtime.statistics()
            assert (statistics["dns.misses"], statistics["dns.coalesced"], statistics["dns.upstream_queries"]) == (1, 1499, 1)
            await runtime.stop()

    asyncio.run(run())


class Anywhere:
    name = "anywhere"

    @hookimpl
    def dial(self) -> bool:
        return True


@bench
async def test_upstreams_are_asked_with_edns_1232(b: Bench) -> None:
    await b.ask("api.test", use_edns=0, payload=4096)
    (query,) = (dns.message.from_wire(sent) for sent in b.dns.seen)
    assert (query.edns, query.payload, query.options) == (0, 1232, ())


@bench
async def test_hits_are_copies_of_the_wire_and_not_packed_anew(b: Bench) -> None:
    """At most one rendering a second for each spelling."""
    await b.ask("api.test")
    rendered = 0
    real = wire.render

    def render(*args: Any, **more: Any) -> bytes:
        nonlocal rendered
        rendered += 1
        return real(*args, **more)

    wire.render = render  # type: ignore[assignment]
    try:
        for _ in range(3):
            for _ in range(50):
                await b.ask("api.test")
                await b.ask("API.test")
            b.clock.now += 1
    finally:
        wire.render = real
    assert rendered <= 6
    assert b.dns.asked("api.test") == 1


@bench
async def test_prefetch_sees_the_second_hit_though_it_comes_in_the_same_second(b: Bench) -> None:
    b.dns.set("api.test", "A", "192.0.2.1", ttl=5)
    await b.ask("api.test")
    b.clock.now += 4.6
    await b.ask("api.test")
    await b.settled()
    assert b.dns.asked("api.test") == 1
    await b.ask("api.test")
    await b.settled()
    assert b.dns.asked("api.test") == 2


@bench(agent_burst=3, agent_rate=0.001)
async def test_prefetching_costs_the_agent_whose_hits_it_is_for(b: Bench) -> None:
    """Else a name with a short TTL would be a way past the limit."""
    b.dns.set("api.test", "A", "192.0.2.1", ttl=10)
    for _ in range(20):
        for _ in range(3):
            await b.ask("api.test")
        b.clock.now += 9.5
        await b.ask("api.test")
        await b.settled()
        if b.dns.asked("api.test") == 3:
            break
    b.clock.now += 10.5
    assert (await b.denied("api.test")).rule == "dns.agent_rate"
    assert b.dns.asked("api.test") == 3


@bench
async def test_an_answer_that_cannot_be_kept_still_ends_the_older_one(b: Bench) -> None:
    """RFC 8767, 5: an authoritative no is news, and what it denies is not served stale."""
    await b.ask("api.test")
    b.dns.set("api.test", "A", rcode=3, soa=None)
    b.clock.now += 61
    assert (await b.ask("api.test")).rcode() == dns.rcode.NXDOMAIN
    b.dns.set("api.test", "A", rcode=2)
    assert (await b.ask("api.test")).rcode() == dns.rcode.SERVFAIL


@pytest.mark.parametrize("rcode", [1, 4, 5])
def test_stale_is_for_silence_and_servfail_only(rcode: int) -> None:
    @bench
    async def run(b: Bench) -> None:
        await b.ask("api.test")
        b.dns.set("api.test", "A", rcode=rcode)
        b.clock.now += 61
        for _ in range(2):
            assert (await b.ask("api.test")).rcode() == rcode

    run()


@bench
async def test_the_no_is_told_with_the_ttl_that_it_has_and_counts_down(b: Bench) -> None:
    b.dns.set("none.test", "A", soa=(500, 100))
    for age in (0, 40, 59):
        b.clock.now += age
        assert [rrset.ttl for rrset in (await b.ask("none.test")).authority] == [{0: 100, 40: 60, 59: 1}[age]]
    assert b.dns.asked("none.test") == 1


@bench
async def test_a_name_that_does_not_exist_has_no_other_types_either(b: Bench) -> None:
    """RFC 2308, 5: an NXDOMAIN is for the name. An alias's target that does not exist says nothing about the alias."""
    assert (await b.ask("none.test")).rcode() == dns.rcode.NXDOMAIN
    for qtype in ("AAAA", "HTTPS", "TXT", "AAAA"):
        reply = await b.ask("NONE.test", qtype)
        assert reply.rcode() == dns.rcode.NXDOMAIN and reply.authority[0].ttl == 60
    assert sum(b.dns.queries.values()) == 1
    await b.ask("none.test", want_dnssec=True)
    await b.ask("below.none.test")
    assert sum(b.dns.queries.values()) == 3
    b.clock.now += 61
    b.dns.set("none.test", "AAAA", "2001:db8::1")
    assert addresses(await b.ask("none.test", "AAAA")) == ["2001:db8::1"]
    b.dns.set("alias.test", "A", rcode=3, extra=("alias.test. 60 IN CNAME gone.test.",))
    b.dns.set("alias.test", "CNAME", "gone.test.")
    assert (await b.ask("alias.test")).rcode() == dns.rcode.NXDOMAIN
    assert (await b.ask("alias.test", "CNAME")).rcode() == dns.rcode.NOERROR


@bench
async def test_news_of_a_name_ends_that_it_does_not_exist(b: Bench) -> None:
    await b.ask("new.test", "A")
    b.clock.now += 30
    b.dns.set("new.test", "AAAA", "2001:db8::1")
    assert (await b.ask("new.test", "AAAA")).rcode() == dns.rcode.NXDOMAIN
    b.clock.now += 31
    assert addresses(await b.ask("new.test", "AAAA")) == ["2001:db8::1"]
    assert (await b.ask("new.test", "A")).rcode() == dns.rcode.NOERROR
    assert b.dns.asked("new.test", "A") == 2
