"""DNS messages as bytes, with dnspython as the oracle."""

from __future__ import annotations

import contextlib
import ipaddress
import time

import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset
import pytest
from agentfw import dns_reply
from agentfw import dns_wire as wire
from agentfw.destination import parse_address
from hypothesis import given
from hypothesis import strategies as st

LABEL = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
NAME = st.lists(LABEL, min_size=1, max_size=6).map(".".join)
V4 = st.integers(0, 2**32 - 1).map(lambda n: str(ipaddress.IPv4Address(n)))
V6 = st.integers(0, 2**128 - 1).map(lambda n: str(ipaddress.IPv6Address(n)))
KIND = st.sampled_from(["A", "AAAA"])


@given(NAME, KIND, st.sampled_from([None, 0, 512, 1232, 4096, 65535]))
def test_queries_are_read_as_dnspython_writes_them(name: str, kind: str, size: int | None) -> None:
    query = dns.message.make_query(name + ".", kind, use_edns=size is not None, payload=size or 0)
    question = wire.parse_query(query.to_wire())
    assert b".".join(question.labels).decode() == name
    assert (question.qtype, question.qclass) == (dns.rdatatype.from_text(kind), 1)
    assert question.edns == (None if size is None else max(size, 512))


@given(st.lists(LABEL.map(str.lower), min_size=1, max_size=6).map(".".join), KIND)
def test_dnspython_reads_our_queries(name: str, kind: str) -> None:
    qtype = int(dns.rdatatype.from_text(kind))
    query = wire.make_query(name, qtype)
    message = dns.message.from_wire(query)
    assert str(message.question[0].name) == name + "." and message.question[0].rdtype == qtype and message.flags == dns.flags.RD
    assert wire.parse_query(query).end == len(query)


@given(NAME, st.lists(NAME, max_size=4, unique_by=str.lower), st.data(), KIND, st.integers(0, 2**31 - 1))
def test_addresses_are_those_of_the_name_and_its_aliases(
    name: str, chain: list[str], data: st.DataObject, kind: str, ttl: int
) -> None:
    chain = [alias for alias in chain if alias.lower() != name.lower()]
    addresses = data.draw(st.lists(V4 if kind == "A" else V6, max_size=5, unique=True))
    query = dns.message.make_query(name + ".", kind)
    reply = dns.message.make_response(query)
    here = name
    records = []
    for alias in chain:
        records.append(dns.rrset.from_text(here + ".", ttl, "IN", "CNAME", alias + "."))
        here = alias
    if addresses:
        records.append(dns.rrset.from_text(here + ".", ttl, "IN", kind, *addresses))
    records.append(dns.rrset.from_text("not-in-the-chain.somewhere.else.", ttl, "IN", "A", "192.0.2.66"))
    reply.answer.extend(data.draw(st.permutations(records)))
    told = reply.to_wire()  # in another order each time
    wanted = dns_reply.parse_addresses(told, query.to_wire(), wire.parse_query(query.to_wire()))
    assert dict(wanted.found) == {parse_address(address): ttl for address in addresses} and wanted.rcode == 0
    assert dns_reply.addresses_of(told) == tuple(address for address, _ in wanted.found)


@given(NAME, KIND, st.data(), st.booleans())
def test_dnspython_reads_our_replies(name: str, kind: str, data: st.DataObject, edns: bool) -> None:
    addresses = data.draw(st.lists(V4 if kind == "A" else V6, max_size=5, unique=True))
    query = dns.message.make_query(name + ".", kind, use_edns=edns)
    question = wire.parse_query(query.to_wire())
    message = dns.message.from_wire(wire.make_reply(query.to_wire(), question, [(parse_address(a), 60) for a in addresses]))
    assert query.is_response(message) and (message.edns == 0) == edns
    assert {parse_address(str(rdata)) for rrset in message.answer for rdata in rrset} == {parse_address(a) for a in addresses}
    for ede in (None, wire.EDE_BLOCKED):
        error = dns.message.from_wire(wire.make_error(query.to_wire(), question, wire.REFUSED, ede, "why \u20ac" * 60))
        assert query.is_response(error) and error.rcode() == 5
        assert [option.otype for option in error.options] == ([15] if edns and ede is not None else [])
    assert dns.message.from_wire(wire.make_error(query.to_wire(), None, wire.FORMERR)).rcode() == 1


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_garbage_is_a_wire_error_or_a_message(query: bytes, reply: bytes) -> None:
    good = wire.make_query("a.example", wire.A)
    for message in (query, good[:12] + query, good + query):
        try:
            question = wire.parse_query(message)
        except wire.WireError:
            continue
        assert question.end <= len(message)
    for message in (reply, good[:2] + b"\x81\x80" + good[4:] + reply, good[:2] + b"\x81\x80\0\1\0\3" + good[8:] + reply):
        try:
            addresses = dns_reply.parse_addresses(message, good, wire.parse_query(good))
        except wire.WireError:
            continue
        assert all(parse_address(address) for address, _ in addresses.found)
        assert dns_reply.addresses_of(message) == tuple(address for address, _ in addresses.found)
    for message in (query, reply, good[:12] + query):
        with contextlib.suppress(wire.WireError):
            dns_reply.addresses_of(message)


@pytest.mark.parametrize("pointers", [b"\xc0\x0c", b"\xc0\xff", b"\xff\xff", b"\xc0"])
def test_pointers_in_questions_and_forward_pointers_are_refused(pointers: bytes) -> None:
    head = b"\0\1\1\0\0\1" + bytes(6)
    with pytest.raises(wire.WireError):
        wire.parse_query(head + pointers + b"\0\1\0\1")
    good = wire.make_query("a", wire.A)
    with pytest.raises(wire.WireError):
        at = len(good)
        forward = bytes([0xC0 | (at + 4) >> 8, (at + 4) & 255])
        dns_reply.parse_addresses(
            good[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + good[12:] + forward + bytes(10), good, wire.parse_query(good)
        )


def test_chains_of_pointers_cost_little() -> None:
    good = wire.make_query("a", wire.A)
    blocks = bytearray(good[:2] + b"\x81\x80\0\1" + b"\xff\xff" + b"\0\0\0\0" + good[12:])
    previous = 12
    while len(blocks) < 60000:
        here = len(blocks)
        blocks += bytes([0xC0 | previous >> 8, previous & 255]) + b"\0\x10\0\1\0\0\0\0\0\0"
        previous = here if here < 0x3FFF else previous
    start = time.process_time()
    with pytest.raises(wire.WireError):
        dns_reply.parse_addresses(bytes(blocks), good, wire.parse_query(good))
    assert time.process_time() - start < 5, "generous: it is some milliseconds"
