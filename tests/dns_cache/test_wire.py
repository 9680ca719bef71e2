"""Messages as the cache has them, and its books: properties, with dnspython as the oracle."""

from __future__ import annotations

import struct

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import dnslib
from agentfw_dns_cache import Cache, Entry, wire
from hypothesis import given, settings
from hypothesis import strategies as st

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
    owners = [name.lower() + ".", *(f"x{number}.elsewhere." for number in range(1, len(ttls)))]
    for number, ttl in enumerate(ttls):  # aliases, and the address that they lead to
        kind, data = ("CNAME", owners[number + 1]) if number + 1 < len(ttls) else ("A", "192.0.2.1")
        reply.answer.append(dns.rrset.from_text(owners[number], 60, "IN", kind, data))
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
    assert not got.additional and measured.foreign == 1


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
        if reply.truncated or reply.failed:  # never rendered
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
    there = wire.Reply(b"\0" * 40, 0, False, False, (), 0, True, None, False)
    gone = wire.Reply(b"\0" * 40, 3, False, False, (), 0, False, 5, False)
    for owner, number, cost, used in steps:
        key = queries[number // 2].key[:-5] + struct.pack("!HHB", number % 2, 1, 0)  # two types of each name
        if used and key in cache.entries:
            cache.used_by(cache.entries[key], f"agent{owner}")
            cache.remember_shape(cache.entries[key], queries[number], b"\0\0" + key, 5.0)
        elif number == 60:
            cache.owner_gone(f"agent{owner}")
        else:
            cache.put(Entry(key, gone if cost % 3 == 0 else there, 0.0, 9.0, 8.0, f"agent{owner}", cost))
        costs: dict[str, int] = {}
        for entry in cache.entries.values():
            costs[entry.owner] = costs.get(entry.owner, 0) + entry.cost
        assert cache.cost == sum(costs.values()) <= 40
        assert all(cost <= 12 for name, cost in costs.items() if name)
        assert {name: share.cost for name, share in cache._shares.items()} == costs
        assert {id(shape.entry) for shape in cache.shapes.values()} <= {id(entry) for entry in cache.entries.values()}
        assert all(entry.reply.no_name and cache.entries[entry.key] is entry for entry in cache._no_names.values())
        assert cache.bytes == 40 * len(cache) + sum(len(shape.answer) for shape in cache.shapes.values())
        assert sum(len(entry.shapes) for entry in cache.entries.values()) == len(cache.shapes)
