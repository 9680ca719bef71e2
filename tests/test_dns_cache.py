"""The `dns` plugin against a mock authority, with dnspython as the client side's oracle."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import dnslib
import pytest
from agentfw.agents import Agent, ExitReport
from agentfw.config import Config
from agentfw.errors import ConfigError
from agentfw.mock_dns import MockDNS
from agentfw.testing import make_agent, make_runtime
from agentfw_dns_cache import Cache, DnsConfig, Entry, Plugin, wire
from agentfw_dns_cache.plugin import system_servers
from hypothesis import given, settings
from hypothesis import strategies as st

ALICE, BOB = make_agent("alice"), make_agent("bob")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A mock authority, a plugin that asks it, a clock that the test moves."""

    def __init__(self, server: MockDNS, **config: Any) -> None:
        self.dns = server
        self.clock = Clock()
        defaults: dict[str, Any] = {"upstream": (server.address,), "timeout": 0.3}
        self.plugin = Plugin(DnsConfig(**{**defaults, **config}), self.clock)

    async def ask(self, name: str, qtype: str = "A", *, agent: Agent = ALICE, **options: Any) -> dns.message.Message:
        """As dnspython asks, checked as dnspython checks it (ID and question)."""
        query = dns.message.make_query(name, qtype, **options)
        reply = dns.message.from_wire(await self.raw(query.to_wire(), agent), ignore_trailing=False)
        assert query.is_response(reply)
        assert reply.flags & dns.flags.RA
        return reply

    async def raw(self, query: bytes, agent: Agent = ALICE, name: str | None = None) -> bytes:
        if name is None:
            name = str(dnslib.DNSRecord.parse(query).q.qname).rstrip(".").lower()
        result: Awaitable[bytes] | bytes = self.plugin.resolve(agent, name, 0, query)
        return result if isinstance(result, bytes) else await result

    async def settled(self) -> None:
        """No question to the upstream is open."""
        await asyncio.gather(*self.plugin._inflight.values())

    def statistics(self) -> dict[str, int | float]:
        return self.plugin.statistics()


def bench(test: Callable[[Bench], Coroutine[Any, Any, None]] | None = None, **config: Any) -> Any:
    """Run the coroutine with a Bench; keywords are [dns]'s."""

    def wrap(function: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def run() -> None:
            async with MockDNS({"api.test": "192.0.2.1"}) as server:
                made = Bench(server, **config)
                await asyncio.wait_for(function(made), 30)
                await made.plugin.stop()

        def test_function() -> None:
            asyncio.run(run())

        test_function.__name__ = function.__name__
        test_function.__doc__ = function.__doc__
        return test_function

    return wrap if test is None else wrap(test)


def addresses(reply: dns.message.Message) -> list[str]:
    return [item.to_text() for rrset in reply.answer if rrset.rdtype in (1, 28) for item in rrset]


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
        assert [rrset.ttl for rrset in reply.authority] == ([] if soa is None else [max(1, min(300, soa[0]))])
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


@bench
async def test_truncated_goes_to_tcp(b: Bench) -> None:
    b.dns.set("big.test", "A", *(f"192.0.2.{i}" for i in range(200)), truncate=True)
    assert len(addresses(await b.ask("big.test"))) == 200
    assert (b.dns.udp_queries, b.dns.tcp_queries) == (1, 1)


@pytest.mark.parametrize("fault", ["wrong_id", "other_question", "garbage"])
def test_a_reply_that_is_not_ours_is_not_believed_and_tcp_decides(fault: str) -> None:
    @bench
    async def run(b: Bench) -> None:
        b.dns.set("api.test", "A", "192.0.2.1", **{fault: True})
        assert addresses(await b.ask("api.test")) == ["192.0.2.1"]
        assert b.dns.tcp_queries == 1
        assert b.statistics()["upstream_mismatched"] == 1

    run()


@bench
async def test_ids_and_ports_are_random(b: Bench) -> None:
    for i in range(40):
        b.dns.set(f"n{i}.test", "A", "192.0.2.1")
        await b.ask(f"n{i}.test", id=7)
    assert len({query[:2] for query in b.dns.seen}) > 35
    assert len(set(b.dns.ports)) > 30


@bench
async def test_a_lost_datagram_is_sent_again(b: Bench) -> None:
    b.dns.set("api.test", "A", "192.0.2.1", drop=1)
    assert addresses(await b.ask("api.test")) == ["192.0.2.1"]
    assert b.dns.asked("api.test") == 2


@bench
async def test_without_edns_for_old_servers(b: Bench) -> None:
    b.dns.set("api.test", "A", "192.0.2.1", no_edns=True)
    assert addresses(await b.ask("api.test")) == ["192.0.2.1"]
    assert b.dns.asked("api.test") == 2


def test_the_next_server_is_asked() -> None:
    async def run() -> None:
        async with MockDNS() as broken, MockDNS({"api.test": "192.0.2.5"}) as good:
            broken.set("api.test", "A", rcode=2)
            broken.set("api.test", "AAAA", rcode=5)
            b = Bench(good, upstream=("127.0.0.1:1", broken.address, good.address))
            assert addresses(await b.ask("api.test")) == ["192.0.2.5"]
            assert (await b.ask("api.test", "AAAA")).rcode() == dns.rcode.NOERROR
            assert (broken.asked("api.test"), broken.asked("api.test", "AAAA")) == (1, 0)  # once it failed it is asked last

    asyncio.run(run())


def test_no_server_answers() -> None:
    async def run() -> None:
        async with MockDNS() as server:
            server.set("api.test", "A", "192.0.2.1", drop=99)
            b = Bench(server, upstream=("127.0.0.1:1", server.address), timeout=0.05)
            reply = await b.ask("api.test", use_edns=0)
            assert reply.rcode() == dns.rcode.SERVFAIL
            assert b.statistics()["upstream_failures"] == 4
            none = Bench(server, upstream=())
            assert (await none.ask("api.test")).rcode() == dns.rcode.SERVFAIL

    asyncio.run(run())


@bench(hosts={"Api.Test": "127.0.0.1", "two.test": ["192.0.2.1", "2001:db8::1", "192.0.2.2"]})
async def test_overrides_ask_nobody(b: Bench) -> None:
    assert addresses(await b.ask("API.test")) == ["127.0.0.1"]
    assert (await b.ask("api.test", "AAAA")).answer == []
    assert (await b.ask("api.test", "HTTPS")).rcode() == dns.rcode.NOERROR
    assert addresses(await b.ask("two.test")) == ["192.0.2.1", "192.0.2.2"]
    assert addresses(await b.ask("two.test", "AAAA")) == ["2001:db8::1"]
    assert addresses(await b.ask("localhost")) == ["127.0.0.1"]
    assert b.dns.seen == []


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
    assert (await b.ask("n20.test")).rcode() == dns.rcode.REFUSED
    assert (await b.ask("n0.test")).rcode() == dns.rcode.NXDOMAIN  # what is in the cache costs nothing
    assert (await b.ask("api.test", agent=BOB)).rcode() == dns.rcode.NOERROR
    b.clock.now += 1
    assert (await b.ask("n21.test")).rcode() == dns.rcode.NXDOMAIN
    assert (await b.ask("x" * 63 + ".test", agent=BOB)).rcode() == dns.rcode.REFUSED
    assert sum(b.dns.queries.values()) == 22


@bench(agent_pending=4)
async def test_one_agent_waits_for_a_bounded_number(b: Bench) -> None:
    for i in range(6):
        b.dns.set(f"slow{i}.test", "A", "192.0.2.1", delay=0.1)
    replies = await asyncio.gather(*(b.ask(f"slow{i}.test") for i in range(6)))
    assert sorted(reply.rcode() for reply in replies) == [0, 0, 0, 0, 2, 2]


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


def test_through_the_runtime() -> None:
    """`Runtime.resolve_addresses()` gets its addresses from the plugin, twice from one upstream query."""

    class Anywhere:
        name = "anywhere"

        from agentfw.hookspecs import hookimpl

        @hookimpl
        def dial(self) -> bool:
            return True

    async def run() -> None:
        from agentfw.destination import Destination

        async with MockDNS({"api.test": "192.0.2.1"}) as server:
            plugin = Plugin(DnsConfig(upstream=(server.address,)))
            runtime = make_runtime(plugin, Anywhere())
            await runtime.start()
            for _ in range(2):
                assert await runtime.resolve_addresses(ALICE, Destination.make("https", "API.test")) == ["192.0.2.1"]
            assert server.asked("api.test") == 1
            assert runtime.statistics()["dns.upstream_queries"] == 2  # A and AAAA
            await runtime.stop()

    asyncio.run(run())


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
    ],
)
def test_bad_configuration_names_the_key(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config({"dns": table}).plugin("dns", DnsConfig)
    assert caught.value.key == key


def test_system_servers(tmp_path: Any) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text("# x\nnameserver 192.0.2.1\nsearch a b\nnameserver fe80::1%eth0\nnameserver bad\nnameserver\n")
    assert [(server.address, server.port) for server in system_servers(file)] == [("192.0.2.1", 53), ("fe80::1%eth0", 53)]
    assert system_servers(tmp_path / "none") == []


# ---- the wire, on its own ----

LABEL = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_", min_size=1, max_size=20)
NAME = st.lists(LABEL, min_size=1, max_size=5).map(".".join)


@settings(max_examples=200, deadline=None)
@given(
    name=NAME,
    swap=st.booleans(),
    ttls=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6),
    age=st.integers(0, 5000),
    edns=st.booleans(),
    opt_first=st.booleans(),
    client_id=st.integers(0, 65535),
)
def test_patching_agrees_with_dnspython(
    name: str, swap: bool, ttls: list[int], age: int, edns: bool, opt_first: bool, client_id: int
) -> None:
    """Rendered from the measured wire = what dnspython builds from the parts, whatever the name's case, the TTLs and the age."""
    upstream = wire.parse_query(dnslib.DNSRecord.question(name, "A").pack())
    sent = dns.message.from_wire(wire.upstream_query(upstream, 77))
    reply = dns.message.make_response(sent, recursion_available=True)
    for number, ttl in enumerate(ttls):
        owner = f"x{number}.{name}" if number else name
        reply.answer.append(dns.rrset.from_text(owner.lower() + ".", 60, "IN", "A", f"192.0.2.{number}"))
        reply.answer[-1].ttl = min(ttl, 2**31 - 1)
    reply.additional.append(dns.rrset.from_text("glue.test.", 60, "IN", "A", "192.0.2.99"))
    packed = bytearray(reply.to_wire(origin=None))
    if opt_first:
        packed = swap_last_two(bytes(packed), len(reply.answer))
    measured = wire.parse_reply(bytes(packed), upstream, 77)
    asked = name.swapcase() if swap else name
    query = dns.message.make_query(asked, "A", id=client_id, use_edns=0 if edns else False)
    query.flags |= dns.flags.CD
    client = wire.parse_query(query.to_wire())
    got = dns.message.from_wire(wire.render(measured, client, age, 1, 3600), ignore_trailing=False)
    assert query.is_response(got)
    assert got.question[0].name.to_text() == asked + "."
    assert (got.edns >= 0) == edns
    assert got.flags & dns.flags.CD
    assert not got.flags & dns.flags.TC
    want = [(r.name, r.rdtype, max(1, min(max(r.ttl, 1), 3600) - age)) for r in reply.answer]
    assert [(r.name, r.rdtype, r.ttl) for r in got.answer] == want
    assert len(got.additional) == (0 if opt_first else 1)


def swap_last_two(packed: bytes, answers: int) -> bytearray:
    """The additional section's glue and OPT in the other order: the OPT is not the last record then."""
    record = dnslib.DNSRecord.parse(packed)
    record.ar.sort(key=lambda each: each.rtype != dnslib.QTYPE.OPT)
    assert record.ar[0].rtype == dnslib.QTYPE.OPT
    assert len(record.rr) == answers
    return bytearray(record.pack())


@settings(max_examples=500, deadline=None)
@given(data=st.binary(max_size=80), cut=st.integers(0, 200), flip=st.integers(0, 2000))
def test_hostile_replies_never_surprise(data: bytes, cut: int, flip: int) -> None:
    """Random bytes, cut messages, flipped bits: Malformed, or a reply that renders."""
    query = wire.parse_query(dnslib.DNSRecord.question("api.test", "A").pack())
    good = dnslib.DNSRecord.parse(wire.upstream_query(query, 5)).reply()
    good.add_answer(*dnslib.RR.fromZone("api.test. 60 IN A 192.0.2.1\nwww.api.test. 5 IN CNAME api.test."))
    good.add_ar(dnslib.EDNS0(udp_len=1232))
    packed = bytearray(good.pack())
    packed[flip // 8 % len(packed)] ^= 1 << flip % 8
    for candidate in (b"\0\5\x81\x80\0\1" + data, bytes(good.pack())[:cut], bytes(packed), bytes(good.pack()) + data):
        try:
            reply = wire.parse_reply(candidate, query, 5)
        except wire.Malformed:
            continue
        rendered = wire.render(reply, query, 0, 1, 3600)
        assert rendered[:2] == query.wire[:2]
        assert rendered[12 : query.end] == query.question


@settings(max_examples=500, deadline=None)
@given(data=st.binary(max_size=60))
def test_hostile_queries_never_surprise(data: bytes) -> None:
    for candidate in (data, b"\0\1\1\0\0\1\0\0\0\0\0\0" + data, b"\0\1\1\0\0\1\0\0\0\0\0\1\3api\4test\0\0\1\0\1" + data):
        try:
            query = wire.parse_query(candidate)
        except wire.Malformed:
            continue
        except wire.Refused as refusal:
            assert refusal.reply[:2] == candidate[:2]
            assert refusal.reply[2] & 0x80
            continue
        again = dnslib.DNSRecord.parse(candidate)
        assert again.q.qtype == query.qtype
        assert len(query.question) == len(query.key) - 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60), st.integers(1, 9), st.booleans()), max_size=300))
def test_the_cache_keeps_its_books(steps: list[tuple[int, int, int, bool]]) -> None:
    """Whatever is put, used and left: sums agree, and no bound is passed."""
    cache = Cache(capacity=40, share=12)
    queries = [wire.parse_query(bytes(dnslib.DNSRecord.question(f"n{number}.test").pack())) for number in range(61)]
    reply = wire.Reply(b"\0" * 40, 28, 0, False, False, (), 0, True, None, False)
    for owner, number, cost, used in steps:
        key = struct.pack("!I", number)
        if used and key in cache.entries:
            cache.used_by(cache.entries[key], f"agent{owner}")
            cache.remember_shape(cache.entries[key], queries[number], b"\0\0" + key, 5.0)
        elif number == 60:
            cache.owner_gone(f"agent{owner}")
        else:
            cache.put(Entry(key, reply, 0.0, 9.0, 8.0, f"agent{owner}", cost))
        costs: dict[str, int] = {}
        for entry in cache.entries.values():
            costs[entry.owner] = costs.get(entry.owner, 0) + entry.cost
        assert cache.cost == sum(costs.values()) <= 40
        assert all(cost <= 12 for name, cost in costs.items() if name)
        assert {name: share.cost for name, share in cache._shares.items()} == costs
        assert {id(shape.entry) for shape in cache.shapes.values()} <= {id(entry) for entry in cache.entries.values()}
        assert sum(len(entry.shapes) for entry in cache.entries.values()) == len(cache.shapes)
