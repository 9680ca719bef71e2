"""DNS messages as the cache has them: a question's key, replies read once and then only patched.

A reply is read whole, cut down to what was asked for and written anew (`agentfw.dns_reply`): what is kept is bytes of our own,
whatever a server sent. An answer is then a copy of them with the asker's ID and spelling and the TTLs of the moment.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from agentfw import dns_reply
from agentfw.dns_wire import (
    AAAA,
    BADVERS,
    CNAME,
    EDE_CACHED_ERROR,
    EDE_NETWORK,
    EDE_OTHER,
    EDE_STALE,
    FORMERR,
    HTTPS,
    IN,
    META_TYPES,
    NOERROR,
    NOTIMP,
    NS,
    NXDOMAIN,
    OPT,
    PTR,
    REFUSED,
    SERVFAIL,
    SOA,
    SVCB,
    A,
    Question,
    WireError,
    make_error,
    opt_for,
)
from agentfw.dns_wire import parse_query as _parse_query

__all__ = [
    "AAAA", "BADVERS", "CNAME", "EDE_CACHED_ERROR", "EDE_NETWORK", "EDE_OTHER", "EDE_STALE", "FORMERR", "HTTPS", "IN",
    "META_TYPES", "NOERROR", "NOTIMP", "NXDOMAIN", "OPT", "PTR", "REFUSED", "SERVFAIL", "SOA", "SVCB", "A", "Malformed",
    "Query", "Refused", "Reply", "error_reply", "made_reply", "parse_query", "parse_reply", "render", "upstream_query",
]  # fmt: skip

EDNS_SIZE = 1232
"""Bytes of a UDP reply that we take: what passes unfragmented (DNS flag day 2020). More comes over TCP."""

_TTL = struct.Struct("!I")

Malformed = WireError


class Refused(ValueError):
    """A question that gets `reply` at once."""

    def __init__(self, rcode: int, query: bytes, question: Question | None) -> None:
        self.rcode = rcode
        self.reply = make_error(query, question, rcode)
        super().__init__(rcode)


@dataclass(frozen=True, slots=True)
class Query:
    """A checked question. `key`: what makes two of them one (name in lower case, type, class, DO, CD)."""

    wire: bytes
    asked: Question
    key: bytes
    name: str
    cd: bool
    ad: bool

    @property
    def end(self) -> int:
        """Of the question section."""
        return self.asked.end

    @property
    def qtype(self) -> int:
        return self.asked.qtype

    @property
    def edns(self) -> bool:
        return self.asked.edns is not None

    @property
    def do(self) -> bool:
        return self.asked.dnssec

    @property
    def question(self) -> bytes:
        """As it came, upper-case letters and all."""
        return self.wire[12 : self.end]


def parse_query(wire: bytes) -> Query:
    """Raises Refused with the reply that the sender gets; Malformed if there is none for it to get (no header, or a reply)."""
    wire = bytes(wire)
    if len(wire) < 12 or wire[2] & 0x80:
        raise Malformed("not a query")
    try:
        asked = _parse_query(wire)
    except WireError as error:
        raise Refused(error.rcode, wire, error.question) from None
    if asked.qclass != IN or asked.qtype in META_TYPES:
        raise Refused(REFUSED, wire, asked)
    if any(b"." in label for label in asked.labels):  # would be another name as text
        raise Refused(REFUSED, wire, asked)
    cd, ad = bool(wire[3] & 0x10), bool(wire[3] & 0x20)
    # lower() must not touch the type: HTTPS is 65, which is "A".
    key = asked.key + wire[asked.end - 5 : asked.end] + bytes([asked.dnssec | cd << 1])
    name = b".".join(asked.labels).decode("latin-1").lower()
    return Query(wire, asked, key, name, cd, ad)


def upstream_query(query: Query, message_id: int, *, edns: bool = True) -> bytes:
    """Our own query for it: RD, CD as asked, EDNS with our size; not a byte of the agent's but the name."""
    header = struct.pack("!6H", message_id, 0x0100 | query.cd << 4, 1, 0, 0, int(edns))
    opt = b"\0" + struct.pack("!HHIH", OPT, EDNS_SIZE, 0x8000 if query.do else 0, 0)
    return header + query.key[:-1] + (opt if edns else b"")


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply to a `Query`, read and written anew. `ttls`: (offset, seconds) of each record's TTL."""

    wire: bytes
    """Without an OPT record, with ID 0 and no flags."""
    rcode: int
    truncated: bool
    ad: bool
    ttls: tuple[tuple[int, int], ...]
    answers: int
    """How many of `ttls`, from the front, are the answer section's."""
    has_type: bool
    """The answer section has a record of the type asked for."""
    negative_ttl: int | None
    """min(SOA's TTL, SOA's minimum) of the authority section (RFC 2308, 5), None if there is no SOA."""
    edns: bool
    foreign: int = 0
    """Records left out since nobody asked for them."""

    @property
    def failed(self) -> bool:
        return self.rcode not in (NOERROR, NXDOMAIN)

    @property
    def positive(self) -> bool:
        return self.rcode == NOERROR and self.has_type

    @property
    def no_name(self) -> bool:
        """It says that the very name asked for does not exist (with an alias in the answer, it is the alias's target)."""
        return self.rcode == NXDOMAIN and not self.answers

    def lifetime(self, low: int, high: int, negative_high: int) -> int | None:
        """Seconds that it may be kept, clamped; None: not at all."""
        if self.failed or self.truncated:
            return None
        answers = [ttl for _, ttl in self.ttls[: self.answers]]
        if self.positive:
            return min(max(min(answers), low), high)
        if self.negative_ttl is None:
            return None
        return min(max(min([self.negative_ttl, *answers]), low), negative_high)


def parse_reply(wire: bytes, query: Query, message_id: int) -> Reply:
    """Raises Malformed for bytes that are no reply to `query` with this ID, and for what a resolver does not say: a referral to
    other servers, aliases in circles."""
    if len(wire) == 12 and wire[:2] == message_id.to_bytes(2) and wire[2] & 0xF8 == 0x80 and wire[4:] == bytes(8):
        # From servers older than EDNS (RFC 6891, 7): no question, no records. Nothing but a refusal is taken so.
        rcode = wire[3] & 15
        if rcode in (FORMERR, NOTIMP):
            return Reply(b"", rcode, False, False, (), 0, False, None, False)
    if len(wire) >= query.end and wire[2] & 2:  # cut anywhere: only the question is looked at
        dns_reply.read(wire[:6] + bytes(6) + wire[12 : query.end], message_id, query.asked)
        return Reply(b"", wire[3] & 15, True, False, (), 0, False, None, False)
    whole = dns_reply.read(wire, message_id, query.asked)
    clean = dns_reply.sanitised(whole, query.asked, dnssec=query.do)
    answers = [record for record in clean.records if record.section == dns_reply.ANSWER]
    has_type = any(record.rtype == query.qtype for record in answers)
    soas = [record for record in clean.records if record.section == dns_reply.AUTHORITY and record.rtype == SOA]
    if whole.rcode == NOERROR and not answers and not soas and any(record.rtype == NS for record in whole.records):
        raise Malformed("a referral to other servers")
    negative: int | None = None
    records = list(clean.records)
    if soas and not (has_type and whole.rcode == NOERROR):
        negative = min(min(soa.ttl, _TTL.unpack(soa.data[-4:])[0]) for soa in soas)
        # It is told with the TTL that the "no" has: RFC 2308, 3.
        records = [
            replace(each, ttl=negative) if each.section == dns_reply.AUTHORITY and each.rtype == SOA else each for each in records
        ]
    packed, places = dns_reply.written(b"\0\0", 0, query.key[:-1], records)
    return Reply(
        packed,
        whole.rcode,
        False,
        bool(whole.flags & 0x20),
        tuple((place, record.ttl) for place, record in zip(places, records, strict=True)),
        len(answers),
        has_type,
        negative,
        whole.edns,
        len(whole.records) - len(clean.records),
    )


def render(
    reply: Reply, query: Query, age: int, low: int, high: int, *, ttl: int | None = None, ede: tuple[int, str] | None = None
) -> bytes:
    """`reply` as the answer to `query`: its ID, its spelling of the name, TTLs clamped to low..high less `age` (at least 1), or
    all of them `ttl`."""
    wire = bytearray(reply.wire)
    flags = 0x8080 | (int.from_bytes(query.wire[2:4]) & 0x0110) | (reply.rcode & 15)
    if reply.ad and (query.ad or query.do):
        flags |= 0x20
    wire[0:2] = query.wire[0:2]
    wire[2:4] = flags.to_bytes(2)
    wire[12 : query.end] = query.wire[12 : query.end]
    for offset, seconds in reply.ttls:
        if ttl is None:
            left = min(max(seconds, low), high) - age
            _TTL.pack_into(wire, offset, left if left > 1 else 1)
        else:
            _TTL.pack_into(wire, offset, ttl)
    if query.edns:
        wire[11] = 1  # the additional section is empty but for this
        wire += opt_for(query.asked, _extended(ede), reply.rcode)
    return bytes(wire)


def _extended(ede: tuple[int, str] | None) -> bytes:
    """The option of an extended error (code, text), RFC 8914."""
    if ede is None:
        return b""
    text = ede[1].encode()[:120]
    return struct.pack("!HHH", 15, 2 + len(text), ede[0]) + text


def error_reply(query: Query, rcode: int, ede: tuple[int, str] | None = None) -> bytes:
    """A reply without records."""
    return make_error(query.wire, query.asked, rcode, *(ede or ()))


def made_reply(query: Query, records: list[tuple[int, bytes]], ttl: int, rcode: int = NOERROR) -> bytes:
    """A reply of our own: records (type, data) of the name asked for; none is NODATA."""
    name = query.asked.key
    made = [dns_reply.Record(dns_reply.ANSWER, name, name, rtype, IN, ttl, data) for rtype, data in records]
    flags = 0x8080 | (int.from_bytes(query.wire[2:4]) & 0x0110) | rcode
    return dns_reply.written(query.wire[:2], flags, query.question, made, opt_for(query.asked))[0]
