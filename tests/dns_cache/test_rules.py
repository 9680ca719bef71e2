"""The values of DNS caching, each with a test named after its rule. dnspython is the client side's oracle."""

from __future__ import annotations

import asyncio

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from agentfw.agents import ExitReport

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
    b.dns.set("cold.test", "A", "192.0.2.7", delay=0.1)
    leader = asyncio.ensure_future(b.ask("cold.test"))
    await asyncio.sleep(0.01)
    others = [asyncio.ensure_future(b.ask("cold.test", agent=BOB)) for _ in range(5)]
    await asyncio.sleep(0.01)
    leader.cancel()
    others[0].cancel()
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
