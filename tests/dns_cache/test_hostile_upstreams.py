"""Upstreams that attack: nothing raises, nothing hangs, the cache never holds what was not asked."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from agentfw.testing import make_agent
from agentfw_dns_cache import DnsConfig, Plugin, wire
from hypothesis import given, settings
from hypothesis import strategies as st

from .support import Clock, addresses

AGENT = make_agent()
Answer = Callable[[bytes, bool], list[bytes]]
GOOD = "192.0.2.1"


class Hostile:
    """A server at one port, UDP and TCP, that sends what a function says (over TCP: raw bytes)."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[bytes, bool]] = []
        self.other = socket.socket(type=socket.SOCK_DGRAM)
        """Another port, to answer from."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        hostile = self

        class Udp(asyncio.DatagramProtocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def datagram_received(self, data: bytes, addr: Any) -> None:
                hostile.asked.append((data, True))
                hostile.peer = addr
                for reply in hostile.answer(data, True):
                    self.transport.sendto(reply, addr)

        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                data = await reader.readexactly(struct.unpack("!H", await reader.readexactly(2))[0])
                hostile.asked.append((data, False))
                for piece in hostile.answer(data, False):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
            writer.close()

        self.other.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(client, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Udp, local_addr=("127.0.0.1", port))
        try:
            yield f"127.0.0.1:{port}"
        finally:
            transport.close()
            server.close()
            self.other.close()


def reply_to(
    query: bytes, *lines: str, rcode: int = 0, authority: tuple[str, ...] = (), additional: tuple[str, ...] = ()
) -> bytes:
    """`lines`: "owner TTL type data"."""
    asked = dns.message.from_wire(query)
    message = dns.message.make_response(asked, recursion_available=True)
    message.set_rcode(dns.rcode.Rcode(rcode))
    for section, texts in ((message.answer, lines), (message.authority, authority), (message.additional, additional)):
        for text in texts:
            owner, ttl, kind, data = text.split(" ", 3)
            section.append(dns.rrset.from_text(owner, int(ttl), "IN", kind, data))
    return message.to_wire(max_size=65535)


def framed(reply: bytes) -> bytes:
    return struct.pack("!H", len(reply)) + reply


def always(make: Callable[[bytes], bytes]) -> Answer:
    return lambda query, udp: [make(query) if udp else framed(make(query))]


class Asker:
    def __init__(self, upstream: str, **config: Any) -> None:
        self.clock = Clock()
        self.plugin = Plugin(DnsConfig(upstream=(upstream,), **{"timeout": 0.25, "rounds": 1, **config}), self.clock)

    async def ask(self, name: str, qtype: str = "A", **options: Any) -> dns.message.Message:
        query = dns.message.make_query(name, qtype, **options)
        result: Any = self.plugin.resolve(AGENT, name, 0, query.to_wire())
        reply = dns.message.from_wire(result if isinstance(result, bytes) else await result)
        assert query.is_response(reply)
        return reply

    def check(self, *asked: str) -> None:
        """Only these names are in the cache, and every record there is of their chains."""
        for entry in self.plugin.cache.entries.values():
            name = dns.name.from_wire(entry.key, 0)[0].to_text(omit_final_dot=True)
            assert name in asked
            kept = dns.message.from_wire(entry.reply.wire[:2] + b"\x80\0" + entry.reply.wire[4:])
            assert not kept.additional
            assert all(rrset.rdtype == dns.rdatatype.SOA for rrset in kept.authority)
        assert self.plugin.cache.bytes <= 100_000


def attack(answer: Answer, **config: Any) -> tuple[dns.message.Message, Asker, Hostile]:
    async def run() -> tuple[dns.message.Message, Asker, Hostile]:
        hostile = Hostile(answer)
        async with asyncio.timeout(20), hostile.running() as address:
            asker = Asker(address, **config)
            reply = await asker.ask("a.test", use_edns=0)
            asker.check("a.test")
            hostile.answer = always(lambda query: reply_to(query, f"b.test. 60 A {GOOD}"))
            assert addresses(await asker.ask("b.test")) == [GOOD], "the next question is answered as if nothing had been"
            asker.check("a.test", "b.test")
            await asker.plugin.stop()
        return reply, asker, hostile

    return asyncio.run(run())


A = f"a.test. 60 A {GOOD}"
PIECE = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\1"
"""The record of A in a reply."""


def broken(change: Callable[[bytes], bytes]) -> Answer:
    return always(lambda query: change(reply_to(query, A)))


BROKEN: dict[str, Answer] = {
    "an owner that points to itself": broken(lambda r: r.replace(PIECE, struct.pack("!H", 0xC000 | r.index(PIECE)) + PIECE[2:])),
    "an owner that points forward": broken(lambda r: r.replace(PIECE, b"\xc0\xff" + PIECE[2:])),
    "an owner that points into the header": broken(lambda r: r.replace(PIECE, b"\xc0\x02" + PIECE[2:])),
    "two pointers in a circle": broken(
        lambda r: r.replace(PIECE, b"\1x" + struct.pack("!H", 0xC000 | r.index(PIECE)) + PIECE[2:])
    ),
    "an alias that points to itself": broken(
        lambda r: r.replace(PIECE, b"\xc0\x0c\0\5\0\1\0\0\0\x3c\0\2" + struct.pack("!H", 0xC000 | (r.index(PIECE) + 12)))
    ),
    "a label type that is no more": broken(lambda r: r.replace(PIECE, b"\x80" + PIECE[1:])),
    "a name of 300 bytes": broken(lambda r: r.replace(PIECE, (b"\x3f" + b"x" * 63) * 5 + b"\0" + PIECE[2:])),
    "data longer than the message": broken(lambda r: r.replace(PIECE, PIECE[:10] + b"\xff\xff" + PIECE[12:])),
    "an address of three bytes": broken(lambda r: r.replace(PIECE, PIECE[:10] + b"\0\3" + PIECE[12:15])),
    "counts of 65,535": broken(lambda r: r[:6] + b"\xff\xff" * 3 + r[12:]),
    "one record too few": broken(lambda r: r[:6] + b"\0\0" + r[8:]),
    "cut in the middle": broken(lambda r: r[: len(r) // 2]),
    "only a header": broken(lambda r: r[:12]),
    "one byte": broken(lambda r: r[:1]),
    "bytes behind the end": broken(lambda r: r + b"extra"),
    "another question": broken(lambda r: r.replace(b"\1a\4test", b"\1z\4test", 1)),
    "another type": broken(lambda r: r.replace(b"\0\1\0\1", b"\0\x1c\0\1", 1)),
    "another class": broken(lambda r: r.replace(b"\0\1\0\1", b"\0\1\0\3", 1)),
    "two questions": broken(lambda r: r[:4] + b"\0\2" + r[6:]),
    "no question": broken(lambda r: r[:4] + b"\0\0" + r[6:12] + r[24:]),
    "a query": broken(lambda r: r[:2] + bytes([r[2] & 0x7F]) + r[3:]),
    "the query itself": always(lambda query: query),
    "another opcode": broken(lambda r: r[:2] + bytes([r[2] | 0x28]) + r[3:]),
    "another ID": broken(lambda r: bytes([r[0] ^ 0x55]) + r[1:]),
    "two OPT records": always(lambda q: (r := reply_to(q, A))[:10] + b"\0\2" + r[12:] + b"\0\0\x29\x04\xd0" + bytes(6)),
    "an OPT record with a name": broken(lambda r: r.replace(b"\0\0\x29", b"\1x\0\0\x29", 1)),
    "aliases in a circle": always(lambda q: reply_to(q, "a.test. 60 CNAME c.test.", "c.test. 60 CNAME a.test.")),
    "an alias of itself": always(lambda q: reply_to(q, "a.test. 60 CNAME a.test.")),
    "endless aliases": always(
        lambda q: reply_to(q, *(f"{'a' if not i else f'n{i}'}.test. 60 CNAME n{i + 1}.test." for i in range(100)))
    ),
    "a referral": always(
        lambda q: reply_to(q, authority=("test. 60 NS evil.test.",), additional=("evil.test. 60 A 192.0.2.66",))
    ),
    "an SOA that is too short": always(
        lambda q: reply_to(q, authority=("test. 60 SOA a. b. 1 2 3 4 5",)).replace(b"\0\0\0\5", b"", 1)
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_reply_is_servfail_and_not_kept(name: str) -> None:
    reply, asker, hostile = attack(BROKEN[name])
    assert reply.rcode() == dns.rcode.SERVFAIL and not reply.answer
    assert len(asker.plugin.cache) == 1  # b.test
    assert {udp for data, udp in hostile.asked if b"\1a\4test" in data} == {True, False}, "TCP decides when UDP is odd"


POISON = (
    "b.test. 9999 A 192.0.2.66",
    "test. 9999 NS evil.test.",
    "evil.test. 9999 A 192.0.2.66",
    "a.test. 9999 AAAA 2001:db8::66",
)


def test_records_about_other_names_do_no_harm_wherever_they_are() -> None:
    """In the answer, as authority, as glue; of the name's other types; parents, children, aliases of what is asked next."""
    lines = (POISON[0], "b.test. 60 CNAME a.test.", A, *POISON, "c.a.test. 60 A 192.0.2.66", "test. 60 A 192.0.2.66")
    reply, asker, hostile = attack(always(lambda query: reply_to(query, *lines, authority=POISON, additional=POISON)))
    assert addresses(reply) == [GOOD]
    assert (len(reply.answer), reply.authority, reply.additional) == (1, [], [])
    assert sum(b"\1b\4test" in data for data, _ in hostile.asked) == 1, "b.test was asked, not believed"
    assert asker.plugin.statistics()["upstream_foreign"] == 16


def test_an_answer_only_about_another_name_is_no_answer() -> None:
    reply, asker, _ = attack(always(lambda query: reply_to(query, "evil.test. 60 A 192.0.2.66")))
    assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])
    assert len(asker.plugin.cache) == 1


def test_a_no_in_the_name_of_another_zone_is_not_kept() -> None:
    """RFC 2308, 5: the SOA must be of a zone that the name is in."""
    soa = "other.example. 300 SOA a. b. 1 2 3 4 300"
    reply, asker, _ = attack(always(lambda query: reply_to(query, rcode=3, authority=(soa,))))
    assert (reply.rcode(), reply.authority) == (dns.rcode.NXDOMAIN, [])
    assert len(asker.plugin.cache) == 1


@pytest.mark.parametrize(("ttl", "told"), [(0x7FFFFFFF, 3600), (0x80000000, 1), (0xFFFFFFFF, 1), (0, 1)])
def test_giant_and_negative_ttls(ttl: int, told: int) -> None:
    """RFC 2181, 8: with the top bit set it is zero."""
    reply, _, _ = attack(broken(lambda r: r.replace(b"\0\0\0\x3c", struct.pack("!I", ttl), 1)))
    assert addresses(reply) == [GOOD] and reply.answer[0].ttl == told


def test_replies_from_another_port_are_not_heard() -> None:
    """The socket is connected: RFC 5452, 9.1."""

    async def run() -> None:
        hostile = Hostile(lambda query, udp: [])

        def answer(query: bytes, udp: bool) -> list[bytes]:
            if not udp:
                return [framed(reply_to(query, A))]
            hostile.other.sendto(reply_to(query, "a.test. 60 A 192.0.2.66"), hostile.peer)
            return []

        hostile.answer = answer
        async with hostile.running() as address:
            asker = Asker(address)
            assert (await asker.ask("a.test")).rcode() == dns.rcode.SERVFAIL
            assert asker.plugin.statistics()["upstream_mismatched"] == 0
            asker.check()

    asyncio.run(run())


def test_a_guesser_is_not_believed_and_the_answer_comes_by_tcp() -> None:
    """A thousand forged replies with wrong IDs before the right one: the first already sends us to TCP (RFC 5452, 9.2)."""

    def answer(query: bytes, udp: bool) -> list[bytes]:
        good = reply_to(query, A)
        if not udp:
            return [framed(good)]
        forged = reply_to(query, "a.test. 60 A 192.0.2.66")
        return [bytes([(forged[0] + 1) & 255, guess & 255]) + forged[2:] for guess in range(1000)] + [good]

    reply, asker, hostile = attack(answer)
    assert addresses(reply) == [GOOD]
    assert [udp for data, udp in hostile.asked if b"\1a\4test" in data] == [True, False]
    assert asker.plugin.statistics()["upstream_mismatched"] == 1


TC = b"\x83\x80"
TCP: dict[str, Answer] = {
    "closes at once": lambda query, udp: [],
    "a length and nothing": lambda query, udp: [b"\xff\xff"],
    "half a length": lambda query, udp: [b"\0"],
    "length zero": lambda query, udp: [b"\0\0"],
    "less than it said": lambda query, udp: [struct.pack("!H", 500) + reply_to(query, A)],
    "garbage": lambda query, udp: [framed(b"\xff" * 300)],
    "truncated again": lambda query, udp: [framed(query[:2] + TC + query[4:])],
    "another ID": lambda query, udp: [framed(b"\0\0" + reply_to(query, A)[2:])],
}


@pytest.mark.parametrize("name", TCP)
def test_tcp_that_is_no_answer(name: str) -> None:
    def answer(query: bytes, udp: bool) -> list[bytes]:
        return [query[:2] + TC + query[4:]] if udp else TCP[name](query, udp)

    reply, _, hostile = attack(answer)
    assert reply.rcode() == dns.rcode.SERVFAIL
    assert (hostile.asked[0][1], hostile.asked[1][1]) == (True, False)


def test_tcp_in_small_pieces_is_an_answer_and_one_that_drips_for_ever_is_not() -> None:
    def pieces(query: bytes, udp: bool) -> list[bytes]:
        if udp:
            return [query[:2] + TC + query[4:]]
        return [bytes([byte]) for byte in framed(reply_to(query, A))]

    assert addresses(attack(pieces)[0]) == [GOOD]

    async def drip() -> None:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while True:
                    writer.write(b"\xff")
                    await writer.drain()
                    await asyncio.sleep(0.02)

        hostile = Hostile(lambda query, udp: [query[:2] + TC + query[4:]])
        async with hostile.running() as address:
            dripping = await asyncio.start_server(client, "127.0.0.1", 0)
            asker = Asker(address)
            (server,) = asker.plugin.exchange.servers
            udp_port, server.port = server.port, dripping.sockets[0].getsockname()[1]
            assert udp_port != server.port
            assert (await asker.ask("a.test")).rcode() == dns.rcode.SERVFAIL
            dripping.close()

    asyncio.run(asyncio.wait_for(drip(), 20))


def steps(function: Callable[[], object]) -> int:
    """Lines and calls of Python that it takes."""
    count = 0

    def trace(*_: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def records(section: int, *pieces: bytes) -> bytes:
    counts = [0, 0, 0]
    counts[section] = len(pieces)
    return struct.pack("!6H", 5, 0x8180, 1, *counts) + b"\1a\4test\0\0\1\0\1" + b"".join(pieces)


def record(owner: bytes, kind: int, data: bytes = b"") -> bytes:
    return owner + struct.pack("!HHIH", kind, 1, 60, len(data)) + data


LONG = [b"\1a\4test\0", *(bytes([1, 98 + i]) + b"\1x" * 126 + b"\0" for i in range(16))]
CHAIN = [record(one, 5, two) for one, two in itertools.pairwise(LONG)]


@pytest.mark.parametrize(
    "message",
    [
        records(0, *CHAIN, *[record(b"\1z\0", 46)] * 1000),  # signatures of no name in the chain
        records(0, *CHAIN, *[record(b"\1z\0", 39, b"\1y\0")] * 1000),  # DNAME
        records(1, *(record(b"\xc0\x0e", 6, b"\0\0" + struct.pack("!5I", n, 0, 0, 0, 60)) for n in range(1000))),  # SOA
        records(1, *[record(b"\1z\0", 6, b"\0\0" + bytes(20))] * 1000),
        records(0, *(record(b"\xc0\x0c", 1, struct.pack("!I", n)) for n in range(1000))),
    ],
)
def test_the_work_for_a_reply_grows_with_its_records_and_no_faster(message: bytes) -> None:
    """Long aliases and thousands of records beside them: everybody waits while a reply is read."""
    query = wire.parse_query(dns.message.make_query("a.test", "A", want_dnssec=True).to_wire())
    assert steps(lambda: wire.parse_reply(message, query, 5)) < 400 * 1000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, 200))
def test_damaged_replies_never_put_other_names_into_the_cache(changes: list[tuple[int, int]], cut: int) -> None:
    def damage(query: bytes) -> bytes:
        reply = bytearray(
            reply_to(query, "a.test. 60 CNAME x.test.", f"x.test. 60 A {GOOD}", authority=POISON, additional=POISON)
        )
        for place, value in changes:
            reply[place % len(reply)] = value
        return bytes(reply[: len(reply) - (cut if cut < 20 else 0)])

    attack(always(damage), timeout=0.1)
