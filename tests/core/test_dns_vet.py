"""What an agent gets to see of resolvers' replies: no address that may not be dialled, nothing that was not asked for."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.reversename
import dns.rrset
import pytest
from agentfw import Agent, Denied, Destination, addresses, dns_reply, hookimpl
from agentfw import dns_wire as wire
from agentfw.relay import dns as relay
from agentfw.runtime import Runtime
from agentfw.testing import make_agent, make_runtime
from hypothesis import given, settings
from hypothesis import strategies as st

from .support import async_test, guest

AGENT = make_agent()
PUBLIC, PUBLIC6 = "93.184.216.34", "2606:2800:220:1::1"
Reply = Callable[[dns.message.Message], bytes]


class Resolver:
    """Answers with what a test says. The policy: a.test and what is below it; 127.0.0.1 may be dialled."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.asked: list[tuple[str, int]] = []

    @hookimpl
    def allow(self, destination: Destination) -> None:
        if not destination.host.endswith("a.test"):
            raise Denied("only a.test", "")

    @hookimpl
    def resolve(self, name: str, qtype: int, query: bytes) -> bytes:
        self.asked.append((name, qtype))
        return self.reply(dns.message.from_wire(query))

    @hookimpl
    def dial(self, address: str) -> bool | None:
        return True if address in ("127.0.0.1", "::1") else None


def zone(*lines: str, authority: tuple[str, ...] = (), additional: tuple[str, ...] = (), rcode: int = 0) -> Reply:
    """A reply with these records ("owner type data")."""

    def make(query: dns.message.Message) -> bytes:
        message = dns.message.make_response(query, recursion_available=True)
        message.set_rcode(dns.rcode.Rcode(rcode))
        message.flags |= dns.flags.AD
        for section, texts in ((message.answer, lines), (message.authority, authority), (message.additional, additional)):
            for text in texts:
                owner, kind, data = text.split(" ", 2)
                section.append(dns.rrset.from_text(owner, 60, "IN", kind, data))
        return message.to_wire()

    return make


def ask(reply: Reply, qtype: str = "A", name: str = "a.test.", **options: object) -> tuple[dns.message.Message, Runtime]:
    async def run() -> tuple[dns.message.Message, Runtime]:
        runtime = make_runtime(Resolver(reply))
        query = dns.message.make_query(name, qtype, **options)  # type: ignore[arg-type]
        answer = await relay.answer(runtime, AGENT, query.to_wire(), udp=False)
        assert answer is not None
        message = dns.message.from_wire(answer, ignore_trailing=False)
        assert query.is_response(message)
        return message, runtime

    return asyncio.run(run())


def texts(message: dns.message.Message) -> list[str]:
    sections = (message.answer, message.authority, message.additional)
    return [
        f"{rrset.name} {dns.rdatatype.to_text(rrset.rdtype)} {item}"
        for section in sections
        for rrset in section
        for item in rrset
    ]


PRIVATE4 = [
    "10.0.0.1",
    "192.168.1.1",
    "172.16.0.1",
    "169.254.169.254",
    "100.100.100.200",
    "0.0.0.0",
    "224.0.0.1",
    "168.63.129.16",
]
PRIVATE6 = [
    "::ffff:10.0.0.1",  # mapped
    "::10.0.0.1",  # compatible
    "64:ff9b::a00:1",  # NAT64 of 10.0.0.1
    "64:ff9b:1::1",  # local NAT64
    "2002:a00:1::1",  # 6to4
    "2001:0:1234::1",  # Teredo
    "2606:2800:220:1:0:5efe:10.0.0.1",  # ISATAP
    "fd00::1",
    "fe80::1",
    "ff02::1",
    "::",
]


@pytest.mark.parametrize("address", PRIVATE4)
def test_rebinding_by_a_records_is_refused(address: str) -> None:
    message, runtime = ask(zone(f"a.test. A {address}"), use_edns=0)
    assert message.rcode() == dns.rcode.REFUSED and not message.answer
    assert [option.code for option in message.options if isinstance(option, dns.edns.EDEOption)] == [15]
    assert runtime.hosts(AGENT, address) == [address]
    both, runtime = ask(zone(f"a.test. A {address}", f"a.test. A {PUBLIC}"))
    assert texts(both) == [f"a.test. A {PUBLIC}"] and not both.flags & dns.flags.AD
    assert runtime.hosts(AGENT, address) == [address] and runtime.hosts(AGENT, PUBLIC) == ["a.test", PUBLIC]


@pytest.mark.parametrize("address", PRIVATE6)
def test_rebinding_by_aaaa_records_in_every_embedding_is_refused(address: str) -> None:
    message, _ = ask(zone(f"a.test. AAAA {address}"), "AAAA")
    assert message.rcode() == dns.rcode.REFUSED and not message.answer
    both, _ = ask(zone(f"a.test. AAAA {address}", f"a.test. AAAA {PUBLIC6}"), "AAAA")
    assert texts(both) == [f"a.test. AAAA {PUBLIC6}"]


@pytest.mark.parametrize("address", ["64:ff9b::5db8:d822", "2606:2800:220:1:0:5efe:5db8:d822"])
def test_the_hosts_own_public_address_is_met_in_every_embedding(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    assert texts(ask(zone(f"a.test. AAAA {address}"), "AAAA")[0]) == [f"a.test. AAAA {address}"]
    monkeypatch.setattr(addresses, "is_own", lambda each: each == PUBLIC)
    assert ask(zone(f"a.test. AAAA {address}"), "AAAA")[0].rcode() == dns.rcode.REFUSED


@async_test
async def test_a_denied_question_for_one_kind_of_address_leaves_the_other() -> None:
    class Half(Resolver):
        @hookimpl
        def resolve(self, name: str, qtype: int, query: bytes) -> bytes:
            if qtype == wire.AAAA:
                raise Denied("a rate", "")
            return self.reply(dns.message.from_wire(query))

    runtime = make_runtime(Half(zone(f"a.test. A {PUBLIC}")))
    assert await runtime.resolve_addresses(AGENT, Destination("tcp", "a.test", 80)) == [PUBLIC]
    runtime = make_runtime(Half(zone()))
    with pytest.raises(Denied, match="a rate"):
        await runtime.resolve_addresses(AGENT, Destination("tcp", "a.test", 80))


def test_rebinding_at_the_end_of_a_chain_of_aliases_is_refused() -> None:
    chain = ("a.test. CNAME b.elsewhere.", "b.elsewhere. CNAME c.elsewhere.")
    message, _ = ask(zone(*chain, "c.elsewhere. A 10.0.0.1"))
    assert message.rcode() == dns.rcode.REFUSED
    mixed, runtime = ask(zone(*chain, "c.elsewhere. A 10.0.0.1", f"c.elsewhere. A {PUBLIC}"))
    assert texts(mixed) == ["a.test. CNAME b.elsewhere.", "b.elsewhere. CNAME c.elsewhere.", f"c.elsewhere. A {PUBLIC}"]
    assert runtime.hosts(AGENT, PUBLIC) == ["a.test", PUBLIC]


@pytest.mark.parametrize("qtype", ["HTTPS", "SVCB"])
def test_rebinding_by_hints_of_service_records_is_left_out(qtype: str) -> None:
    record = f'a.test. {qtype} 1 . alpn="h2" ipv4hint="10.0.0.1,{PUBLIC},169.254.169.254" ipv6hint="64:ff9b::a00:1,{PUBLIC6}"'
    message, runtime = ask(zone(record, f'a.test. {qtype} 2 . ipv4hint="10.0.0.1"'), qtype)
    assert texts(message) == [
        f'a.test. {qtype} 1 . alpn="h2" ipv4hint="{PUBLIC}" ipv6hint="{PUBLIC6}"',
        f"a.test. {qtype} 2 .",
    ]
    assert runtime.hosts(AGENT, PUBLIC) == ["a.test", PUBLIC] and runtime.hosts(AGENT, PUBLIC6) == ["a.test", PUBLIC6]
    assert runtime.counters["dns_addresses_removed"] == 4


def test_a_loopback_that_is_permitted_is_shown_as_the_host_in_hints_too() -> None:
    message, runtime = ask(zone('a.test. HTTPS 1 . ipv4hint="127.0.0.1" ipv6hint="::1"'), "HTTPS")
    assert texts(message) == ['a.test. HTTPS 1 . ipv4hint="10.0.2.2" ipv6hint="fec0::2"']
    assert runtime.hosts(AGENT, "10.0.2.2") == ["a.test", "10.0.2.2"]
    message, _ = ask(zone("a.test. A 127.0.0.1", f"a.test. A {PUBLIC}"))
    assert texts(message) == ["a.test. A 10.0.2.2", f"a.test. A {PUBLIC}"]


def test_keys_for_encrypted_hellos_and_records_that_need_what_was_removed_are_left_out() -> None:
    """Else the name that an agent's own TLS is for could not be seen (draft-ietf-tls-esni)."""
    message, _ = ask(zone(f'a.test. HTTPS 1 . alpn="h2" ech="AAj+DQAEAAAAAA==" ipv4hint="{PUBLIC}"'), "HTTPS")
    assert texts(message) == [f'a.test. HTTPS 1 . alpn="h2" ipv4hint="{PUBLIC}"']
    needs, _ = ask(zone('a.test. HTTPS 1 . mandatory="ipv4hint" ipv4hint="10.0.0.1"', "a.test. HTTPS 2 ."), "HTTPS")
    assert texts(needs) == ["a.test. HTTPS 2 ."]
    good = zone('a.test. HTTPS 1 . ipv4hint="10.0.0.1"')
    broken, _ = ask(lambda query: good(query).replace(b"\0\4\0\4\x0a", b"\0\4\0\3\x0a"), "HTTPS")
    assert texts(broken) == []


@pytest.mark.parametrize("qtype", ["A", "HTTPS", "MX", "TXT"])
def test_nothing_that_was_not_asked_for_gets_through(qtype: str) -> None:
    """Addresses as glue, other names' records in any section, whatever the type of the question."""
    asked = {"A": f"a.test. A {PUBLIC}", "HTTPS": "a.test. HTTPS 1 .", "MX": "a.test. MX 5 m.a.test.", "TXT": 'a.test. TXT "x"'}
    foreign = (
        "b.test. A 10.0.0.1",
        f"c.test. A {PUBLIC}",
        "a.test. NS ns.test.",
        "b.test. CNAME a.test.",
        "a.test. AAAA fd00::1",
    )
    reply = zone(foreign[3], asked[qtype], *foreign, authority=foreign, additional=(*foreign, "m.a.test. A 10.0.0.1"))
    message, runtime = ask(reply, qtype)
    assert texts(message) == [asked[qtype]]
    assert runtime.hosts(AGENT, "10.0.0.1") == ["10.0.0.1"]
    assert runtime.counters["dns_records_removed"] == 17


def test_what_is_in_order_passes_byte_for_byte() -> None:
    sent: list[bytes] = []

    def reply(query: dns.message.Message) -> bytes:
        sent.append(zone("A.test. CNAME b.test.", f"b.test. A {PUBLIC}")(query))
        return sent[0]

    async def run() -> None:
        runtime = make_runtime(Resolver(reply))
        assert await relay.answer(runtime, AGENT, dns.message.make_query("a.test", "A").to_wire(), udp=True) == sent[0]

    asyncio.run(run())


@pytest.mark.parametrize("qtype", ["A", "HTTPS"])
def test_of_thousands_of_addresses_the_first_are_looked_at_and_told(qtype: str) -> None:
    """What is told from the cache is looked at each time, while everybody waits."""
    many = [f"93.184.{number >> 8}.{number & 255}" for number in range(3000)]
    lines = [f"a.test. A {address}" for address in many] if qtype == "A" else [f"a.test. HTTPS 1 . ipv4hint={','.join(many)}"]
    looked = 0

    class Counted(Resolver):
        @hookimpl
        def dial(self, address: str) -> None:
            nonlocal looked
            looked += 1

    async def run() -> None:
        runtime = make_runtime(Counted(zone(*lines)))
        query = dns.message.make_query("a.test", qtype)
        message = dns.message.from_wire(await relay.answer(runtime, AGENT, query.to_wire(), udp=False) or b"")
        first = many[:256]
        told = [f"a.test. A {each}" for each in first] if qtype == "A" else [f'a.test. HTTPS 1 . ipv4hint="{",".join(first)}"']
        assert texts(message) == told and looked == 256
        assert runtime.counters["dns_addresses_removed"] == 3000 - 256

    asyncio.run(run())


def test_a_no_keeps_the_soa_of_its_zone_only() -> None:
    soa = "ns. host. 1 2 3 4 60"
    reply = zone(authority=(f"test. SOA {soa}", f"other. SOA {soa}", "test. NS ns.test."), rcode=3)
    message, _ = ask(reply)
    assert message.rcode() == dns.rcode.NXDOMAIN and [str(rrset.name) for rrset in message.authority] == ["test."]
    assert message.authority[0].rdtype == dns.rdatatype.SOA


@pytest.mark.parametrize(
    "lines",
    [
        ("a.test. CNAME a.test.",),
        ("a.test. CNAME b.test.", "b.test. CNAME a.test."),
        tuple(f"{'a' if not i else f'n{i}'}.test. CNAME n{i + 1}.test." for i in range(40)),
    ],
)
def test_circles_and_endless_chains_of_aliases_are_servfail(lines: tuple[str, ...]) -> None:
    assert ask(zone(*lines))[0].rcode() == dns.rcode.SERVFAIL
    assert not ask(zone(*lines))[0].answer


BREAKS: list[Callable[[bytes], bytes]] = [
    lambda reply: reply[:20],
    lambda reply: reply[:-1],
    lambda reply: reply + b"x",
    lambda reply: bytes([reply[0] ^ 1]) + reply[1:],  # another ID
    lambda reply: reply[:2] + bytes([reply[2] & 0x7F]) + reply[3:],  # a question
    lambda reply: reply[:4] + b"\0\2" + reply[6:],
    lambda reply: reply[:6] + b"\xff\xff" + reply[8:],
    lambda reply: reply.replace(b"\1a\4test\0\0\1\0\1", b"\1b\4test\0\0\1\0\1", 1),
    lambda reply: reply.replace(b"\xc0\x0c", b"\xc0\x1a", 1),  # to itself or forward
    lambda reply: reply.replace(b"\xc0\x0c", b"\xff\xff", 1),
    lambda reply: reply.replace(b"\0\1\0\1\0\0\0\x3c\0\4", b"\0\1\0\1\0\0\0\x3c\0\5", 1) + b"\0",
    lambda reply: b"",
]


@pytest.mark.parametrize("number", range(len(BREAKS)))
def test_broken_replies_are_servfail(number: int) -> None:
    message, runtime = ask(lambda query: BREAKS[number](zone(f"a.test. A {PUBLIC}")(query)))
    assert message.rcode() == dns.rcode.SERVFAIL and not message.answer
    assert runtime.counters["dns_bad_replies"] == 1


@pytest.mark.parametrize("qtype", ["ANY", "AXFR", "IXFR", "MAILA", "TKEY", "TSIG", "OPT", "TYPE0", "TYPE200"])
def test_questions_for_no_data_go_nowhere(qtype: str) -> None:
    resolver = Resolver(zone())

    async def run() -> None:
        query = dns.message.make_query("a.test", "A", use_edns=0).to_wire()
        query = query.replace(b"\0\1\0\1", struct.pack("!HH", int(dns.rdatatype.from_text(qtype)), 1), 1)
        reply = await relay.answer(make_runtime(resolver), AGENT, query, udp=True)
        assert reply is not None and reply[3] & 15 == wire.REFUSED

    asyncio.run(run())
    assert resolver.asked == []


QUERY = dns.message.make_query("a.test", "A", id=7).to_wire()
OPT = b"\0\0\x29\x10\0\0\0\0\0"


@pytest.mark.parametrize(
    ("query", "rcode"),
    [
        (QUERY[:10] + b"\0\2" + QUERY[12:] + (OPT + b"\0\0") * 2, 1),
        (QUERY[:10] + b"\0\1" + QUERY[12:] + OPT + b"\0\4\0\x0a", 1),  # truncated
        (QUERY[:10] + b"\0\1" + QUERY[12:] + OPT + b"\0\4\0\x0a\0\1", 1),  # an option longer than the record
        (QUERY[:10] + b"\0\1" + QUERY[12:] + OPT + b"\0\3\0\x0a\0", 1),  # half an option
        (QUERY[:10] + b"\0\1" + QUERY[12:] + b"\1x" + OPT + b"\0\0", 1),  # not the root's
        (QUERY[:10] + b"\0\1" + QUERY[12:] + b"\0\0\1\0\1" + bytes(6), 1),  # not an OPT
        (QUERY[:10] + b"\0\1" + QUERY[12:] + b"\0\0\x29\x10\0\0\1\0\0\0\0", 16),  # version 1
        (QUERY[:4] + b"\0\2" + QUERY[6:] + QUERY[12:], 1),  # RFC 9619
        (QUERY[:6] + b"\0\1" + QUERY[8:], 1),
        (QUERY[:2] + b"\3" + QUERY[3:], 1),  # TC
        (QUERY[:2] + b"\x11" + QUERY[3:], 4),  # STATUS
        (QUERY[:12] + b"\x40a" + QUERY[14:], 1),  # a label type that is no more
        (QUERY[:12] + (b"\x3f" + b"a" * 63) * 4 + b"\0\0\1\0\1", 1),  # 257 bytes
        (QUERY[:12] + b"\x31.2.3.4"[:1] + b"", 1),
        (QUERY[:12] + b"\7\x31\x32\x37.\x30.\x31\0\0\1\0\1", 5),
        (QUERY[:12] + b"\x03127\x010\x010\x011\0\0\1\0\1", 5),  # an address is no name
        (QUERY[:-2] + b"\0\xff", 5),  # class ANY
        (QUERY[:-2] + b"\0\4", 5),  # HESIOD
    ],
)
def test_hostile_queries_never_reach_a_plugin(query: bytes, rcode: int) -> None:
    resolver = Resolver(zone())

    async def run() -> bytes | None:
        return await relay.answer(make_runtime(resolver), AGENT, query, udp=True)

    reply = asyncio.run(run())
    assert reply is not None
    assert dns.message.from_wire(reply).rcode() == rcode
    assert resolver.asked == []


def test_a_reply_is_no_question() -> None:
    async def run() -> None:
        runtime = make_runtime(Resolver(zone()))
        assert await relay.answer(runtime, AGENT, QUERY[:2] + b"\x81" + QUERY[3:], udp=True) is None
        assert await relay.answer(runtime, AGENT, QUERY[:11], udp=True) is None

    asyncio.run(run())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120), st.integers(0, 3), st.sampled_from(["A", "AAAA", "HTTPS", "MX", "SOA", "TXT"]))
def test_no_reply_gets_an_address_past_the_vetting(data: bytes, mode: int, qtype: str) -> None:
    """Whatever comes: an error, or a message whose addresses are public and that dnspython reads."""

    def reply(query: dns.message.Message) -> bytes:
        record = f"a.test. {qtype} \\# {len(data) % 40} {data[: len(data) % 40].hex()}"
        good = zone(record)(query) if mode == 0 else query.to_wire()
        if mode == 1:
            return good[:2] + b"\x81\x80\0\1\0\2\0\1\0\1" + good[12:] + data
        return good if mode == 0 else bytes(a ^ b for a, b in zip(good, data.ljust(len(good), b"\0"), strict=False))

    try:
        message, _ = ask(reply, qtype)
    except dns.exception.DNSException:  # in data that are not the vetting's to judge, a TXT record's say
        return
    for text in texts(message):
        assert " A " not in text or not text.rpartition(" ")[2].startswith(("10.", "127.", "192.168."))
    assert not message.additional


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_written_replies_are_those_read(data: st.DataObject) -> None:
    """dnspython's packing, read and written again, is the same to dnspython."""
    label = st.from_regex(r"[a-zA-Z0-9_-]{1,12}", fullmatch=True)
    name = st.lists(label, min_size=1, max_size=5).map(lambda labels: ".".join(labels) + ".")
    query = dns.message.make_query(data.draw(name), "TXT", use_edns=False)
    message = dns.message.make_response(query)
    made = {
        "A": lambda: PUBLIC,
        "AAAA": lambda: PUBLIC6,
        "CNAME": lambda: data.draw(name),
        "NS": lambda: data.draw(name),
        "MX": lambda: f"5 {data.draw(name)}",
        "SRV": lambda: f"1 2 3 {data.draw(name)}",
        "SOA": lambda: f"{data.draw(name)} {data.draw(name)} 1 2 3 4 5",
        "TXT": lambda: '"text"',
        "HTTPS": lambda: f'1 {data.draw(name)} alpn="h2" ipv4hint="{PUBLIC}"',
    }
    for section in (message.answer, message.authority, message.additional):
        for _ in range(data.draw(st.integers(0, 4))):
            kind = data.draw(st.sampled_from(sorted(made)))
            section.append(dns.rrset.from_text(data.draw(name), data.draw(st.integers(0, 2**31 - 1)), "IN", kind, made[kind]()))
    packed = message.to_wire()
    question = wire.parse_query(query.to_wire())
    read = dns_reply.read(packed, query.id, question)
    again, ttls = dns_reply.written(packed[:2], read.flags, packed[12 : question.end], read.records)
    assert dns.message.from_wire(again, one_rr_per_rrset=True) == dns.message.from_wire(packed, one_rr_per_rrset=True)
    assert [int.from_bytes(again[at : at + 4]) for at in ttls] == [record.ttl for record in read.records]


@async_test
async def test_reverse_questions_about_addresses_that_it_was_told_are_answered_with_the_name() -> None:
    resolver = Resolver(zone(f"a.test. A {PUBLIC}"))
    runtime = make_runtime(resolver)

    async def pointer(address: str, agent: Agent) -> dns.message.Message:
        query = dns.message.make_query(dns.reversename.from_address(address), "PTR")
        reply = await relay.answer(runtime, agent, query.to_wire(), udp=True)
        return dns.message.from_wire(reply or b"")

    assert (await pointer(PUBLIC, AGENT)).rcode() == dns.rcode.REFUSED
    await relay.answer(runtime, AGENT, dns.message.make_query("a.test", "A").to_wire(), udp=True)
    runtime.learn(AGENT, "v6.a.test", [PUBLIC6])
    runtime.learn(AGENT, "now-denied.test", ["1.2.3.4"])
    assert [str(item) for item in (await pointer(PUBLIC, AGENT)).answer[0]] == ["a.test."]
    assert [str(item) for item in (await pointer(PUBLIC6, AGENT)).answer[0]] == ["v6.a.test."]
    assert (await pointer("1.2.3.4", AGENT)).rcode() == dns.rcode.REFUSED
    assert (await pointer(PUBLIC, make_agent("another"))).rcode() == dns.rcode.REFUSED
    assert resolver.asked == [("a.test", 1)]


@given(st.ip_addresses().filter(lambda address: getattr(address, "ipv4_mapped", None) is None))
def test_reversed_addresses(address: object) -> None:
    name = dns.reversename.from_address(str(address)).to_text(omit_final_dot=True)
    assert relay.reversed_address(name) == str(address)
    assert relay.reversed_address("x" + name) is None


@async_test
async def test_questions_over_tcp_do_not_wait_for_one_another() -> None:
    """RFC 7766, 6.2.1.1; the replies' IDs tell which is which. At the guest's half-close the rest still comes."""
    gate = asyncio.Event()

    class Slow:
        @hookimpl
        def resolve(self, name: str, query: bytes) -> Awaitable[bytes]:
            async def answer() -> bytes:
                if name == "slow.a.test":
                    await gate.wait()
                return zone(f"{name}. A {PUBLIC}")(dns.message.from_wire(query))

            return answer()

    async with guest(make_runtime(Slow()), "10.0.2.3", 53) as flow:
        assert await flow.guest_connected() == 0
        for number, name in ((1, "slow.a.test"), (2, "b.a.test"), (3, "c.a.test")):
            query = dns.message.make_query(name, "A", id=number).to_wire()
            await flow.guest_send(len(query).to_bytes(2) + query)
        data = b""
        ids = []
        while len(ids) < 3:
            if len(ids) == 2:
                flow.guest_send_eof()
                gate.set()
            data += await flow.guest_receive()
            while len(data) >= 2 and len(data) >= 2 + int.from_bytes(data[:2]):
                ids.append(int.from_bytes(data[2:4]))
                data = data[2 + int.from_bytes(data[:2]) :]
        assert ids == [2, 3, 1]
        assert await flow.guest_receive() == b""
