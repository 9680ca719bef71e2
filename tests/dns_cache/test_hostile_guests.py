"""Agents that attack the resolver: bytes that are no questions, floods of every kind, connections that do not read."""

from __future__ import annotations

import asyncio
import functools

import dns.edns
import dns.exception
import dns.message
import dns.rcode
import pytest
from agentfw import hookimpl
from agentfw.agents import ExitReport
from agentfw.relay import dns as relay
from agentfw.testing import make_agent, make_runtime
from agentfw_dns_cache import DnsConfig, Plugin
from hypothesis import given, settings
from hypothesis import strategies as st

from ..core.support import guest
from .support import ALICE, Bench, bench

QUERY = dns.message.make_query("api.test", "A", id=0x1234, use_edns=0).to_wire()
TYPES = ["A", "AAAA", "HTTPS", "TXT", "ANY", "PTR", "TYPE65400"]


def answered(data: bytes, udp: bool, plugin: object) -> bytes | None:
    async def run() -> bytes | None:
        return await relay.answer(make_runtime(plugin), ALICE, data, udp=udp)

    return asyncio.run(run())


@settings(max_examples=250, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=8),
    st.integers(0, 60),
    st.binary(max_size=40),
    st.booleans(),
)
def test_whatever_is_sent_gets_silence_or_a_reply_of_its_own(
    changes: list[tuple[int, int]], cut: int, tail: bytes, udp: bool
) -> None:
    """Damaged questions, cut ones, ones with something behind them: what comes back has the ID, says that it is a reply, and
    dnspython can read it."""
    query = bytearray(QUERY)
    for place, value in changes:
        query[place % len(query)] = value
    data = bytes(query[: len(query) - (cut if cut < len(query) else 0)]) + tail

    reply = answered(data, udp, Plugin(DnsConfig(upstream=(), hosts={"api.test": "93.184.216.34"})))
    if reply is None:
        assert len(data) < 12 or data[2] & 0x80
        return
    assert reply[:2] == data[:2]
    message = dns.message.from_wire(reply, ignore_trailing=False)
    assert message.flags & 0x8000
    if message.rcode() == dns.rcode.NOERROR and message.question:
        assert dns.message.from_wire(data).question[0].name == message.question[0].name


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=63), min_size=1, max_size=4), st.sampled_from(TYPES))
def test_labels_of_any_bytes(labels: list[bytes], qtype: str) -> None:
    """Names that are not host names get REFUSED, whatever is in them, and reach nobody."""
    asked: list[str] = []

    class Seen:
        @hookimpl
        def resolve(self, name: str) -> None:
            asked.append(name)

    query = dns.message.make_query(dns.name.Name([*labels, b""]), qtype)
    reply = answered(query.to_wire(), True, Seen())
    message = dns.message.from_wire(reply or b"")
    assert query.is_response(message) and message.rcode() in (dns.rcode.REFUSED, dns.rcode.SERVFAIL)
    for name in asked:
        assert name.isascii() and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.") and name == name.lower()
        assert name.encode() == b".".join(labels).lower()


@bench(agent_burst=100, agent_rate=0.001, entries=500, agent_entries=50)
async def test_a_flood_of_random_names_is_bounded_everywhere(b: Bench) -> None:
    """RFC 8482's relative, the water torture: what it costs upstream, in the cache, and in what is remembered of failures."""
    runtime = make_runtime(b.plugin)
    rcodes: dict[int, int] = {}
    for number in range(1000):
        query = dns.message.make_query(f"{number * 7919:x}.flood.test", "A").to_wire()
        reply = await relay.answer(runtime, ALICE, query, udp=True)
        assert reply is not None
        rcodes[reply[3] & 15] = rcodes.get(reply[3] & 15, 0) + 1
    assert rcodes == {dns.rcode.NXDOMAIN: 100, dns.rcode.REFUSED: 900}
    statistics = b.statistics()
    assert (statistics["upstream_queries"], statistics["limited"], statistics["entries"]) == (100, 900, 50)
    assert statistics["bytes"] < 50 * 512 and statistics["failures"] == statistics["pending"] == 0


@bench
async def test_a_flood_of_spellings_is_one_entry(b: Bench) -> None:
    """0x20 and EDNS options: each question differs in its bytes, and none costs anything that lasts."""
    runtime = make_runtime(b.plugin)
    for number in range(600):
        name = "".join(c.upper() if number >> i & 1 else c for i, c in enumerate("apimountain.test"))
        option = dns.edns.GenericOption(65001, number.to_bytes(4, "big") * 50)
        query = dns.message.make_query(name, "A", use_edns=0, options=[option] if number % 2 else [])
        assert await relay.answer(runtime, ALICE, query.to_wire(), udp=True)
    statistics = b.statistics()
    assert (statistics["upstream_queries"], statistics["entries"], len(b.plugin.cache.shapes)) == (1, 1, 4)


def test_what_is_remembered_of_messages_is_bounded() -> None:
    for cached in (relay._read_and_kept, relay.question_name):
        assert isinstance(cached, functools._lru_cache_wrapper) and cached.cache_info().maxsize == 4096


@pytest.mark.parametrize("data", [b"\0\0", b"\0\x01x", b"\xff\xff" + bytes(65535), b"\0\x0c" + QUERY[:2] + b"\x81" + QUERY[3:12]])
def test_tcp_that_carries_no_questions_ends(data: bytes) -> None:
    async def run() -> None:
        async with guest(make_runtime(), "10.0.2.3", 53) as flow:
            assert await flow.guest_connected() == 0
            await flow.guest_send(data)
            flow.guest_send_eof()
            if data[:2] == b"\xff\xff":  # a query by its bits, of 65,535 bytes
                reply = await flow.guest_read_all()
                assert reply[5] & 15 == dns.rcode.FORMERR
            else:
                with pytest.raises(ConnectionResetError):
                    await flow.guest_read_all()

    asyncio.run(run())


def test_tcp_that_never_reads_holds_a_bounded_number_of_questions() -> None:
    answering = most = 0

    class Slow:
        @hookimpl
        async def resolve(self, query: bytes) -> bytes:
            nonlocal answering, most
            answering += 1
            most = max(most, answering)
            await asyncio.sleep(0.01)
            answering -= 1
            return dns.message.make_response(dns.message.from_wire(query)).to_wire()

    async def run() -> None:
        runtime = make_runtime(Slow())
        async with guest(runtime, "10.0.2.3", 53, ring=4096) as flow:
            assert await flow.guest_connected() == 0
            message = len(QUERY).to_bytes(2, "big") + QUERY

            async def send() -> None:
                with pytest.raises(BrokenPipeError):
                    while True:
                        await flow.guest_send(message)

            sending = asyncio.create_task(send())
            before = -1  # until the guest's ring is full of answers, and our hands are
            while before < 100 or before != runtime.counters["dns_queries"]:
                before = runtime.counters["dns_queries"]
                await asyncio.sleep(0.2)
            assert before <= 4096 // len(message) + 2 * relay.MAX_QUESTIONS + 8
            flow.guest_close()
            await asyncio.sleep(0.05)
            flow.close()
            await asyncio.wait_for(sending, 10)
        assert most <= relay.MAX_QUESTIONS

    asyncio.run(run())


@bench(agent_burst=1000)
async def test_agents_that_come_and_go_leave_nothing(b: Bench) -> None:
    for number in range(1200):
        agent = make_agent(f"agent{number}")
        await b.ask("api.test", agent=agent)
        b.clock.now += 1.01
        b.plugin.exit(agent, ExitReport("code"))
    assert b.plugin._agents == {} and len(b.plugin._gone) <= 1024 and len(b.plugin.cache._shares) == 1
