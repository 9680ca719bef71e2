"""DNS messages as bytes: questions parsed strictly, replies measured once and then only patched.

Both kinds come from strangers. A message is walked once, with every index checked; nothing here follows a compression pointer
except to see that it points backwards.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

A, NS, CNAME, SOA, PTR, AAAA, OPT, TSIG, SVCB, HTTPS = 1, 2, 5, 6, 12, 28, 41, 250, 64, 65
META_TYPES = frozenset({0, 41, *range(128, 256)})
"""OPT, TKEY, TSIG, IXFR, AXFR, MAILB, MAILA, ANY and what is reserved beside them: none is a question for a cache."""
IN = 1
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 2, 3, 4, 5, 16

EDNS_SIZE = 1232
QUERY_MAX = 4096
EDE_OTHER, EDE_STALE, EDE_CACHED_ERROR, EDE_PROHIBITED, EDE_NO_AUTHORITY, EDE_NETWORK = 0, 3, 13, 18, 22, 23

_HEADER = struct.Struct("!6H")
_TYPE_CLASS = struct.Struct("!HH")
_RECORD = struct.Struct("!HHIH")
_TTL = struct.Struct("!I")


class Malformed(ValueError):
    """Bytes that are not the message they should be."""


class Refused(ValueError):
    """A question that gets `rcode` at once; `id`, `flags` and `question` are what the reply repeats."""

    def __init__(self, rcode: int, query: bytes, end: int = 12, *, edns: bool = False) -> None:
        self.rcode = rcode
        self.reply = error_reply(query, end, rcode, edns=edns)
        super().__init__(rcode)


@dataclass(frozen=True, slots=True)
class Query:
    """A checked question. `key`: what makes two of them one (name in lower case, type, class, DO, CD)."""

    wire: bytes
    end: int
    """Of the question section."""
    key: bytes
    name: str
    qtype: int
    edns: bool
    do: bool
    cd: bool
    ad: bool

    @property
    def question(self) -> bytes:
        """As it came, upper-case letters and all."""
        return self.wire[12 : self.end]


def parse_query(wire: bytes) -> Query:
    """Raises Refused with the reply that the sender gets; Malformed if there is none for it to get (no header, or a reply)."""
    if not 12 <= len(wire) <= QUERY_MAX:
        raise Malformed("length")
    _, flags, questions, answers, authorities, additionals = _HEADER.unpack_from(wire)
    if flags & 0x8000:
        raise Malformed("a reply")
    if flags & 0x7800:
        raise Refused(NOTIMP, wire)
    if questions != 1 or answers or authorities or additionals > 1:
        raise Refused(FORMERR, wire)
    try:
        end, labels = _question_name(wire)
        qtype, qclass = _TYPE_CLASS.unpack_from(wire, end)
    except (Malformed, struct.error, IndexError):
        raise Refused(FORMERR, wire) from None
    name_end = end
    end += 4
    do = edns = False
    if additionals:
        edns = True
        if len(wire) < end + 11 or wire[end] or wire[end + 1 : end + 3] != b"\0\x29":
            raise Refused(FORMERR, wire, end)
        extended, length = struct.unpack_from("!IH", wire, end + 5)
        if len(wire) != end + 11 + length:
            raise Refused(FORMERR, wire, end)
        if extended >> 16 & 0xFF:
            raise Refused(BADVERS, wire, end, edns=True)
        do = bool(extended & 0x8000)
    elif len(wire) != end:
        raise Refused(FORMERR, wire, end)
    if qclass != IN or qtype in META_TYPES:
        raise Refused(REFUSED, wire, end, edns=edns)
    if any(b"." in label for label in labels):  # would be another name as text
        raise Refused(REFUSED, wire, end, edns=edns)
    cd = bool(flags & 0x10)
    # lower() must not touch the type: HTTPS is 65, which is "A".
    key = wire[12:name_end].lower() + wire[name_end:end] + bytes([do | cd << 1])
    name = b".".join(labels).decode("latin-1").lower()
    return Query(wire, end, key, name, qtype, edns, do, cd, bool(flags & 0x20))


def _question_name(wire: bytes) -> tuple[int, list[bytes]]:
    """(end, labels) of the name at 12; no compression."""
    at = 12
    labels = []
    while length := wire[at]:
        if length > 63 or at + length - 12 > 253:
            raise Malformed("name")
        labels.append(wire[at + 1 : at + 1 + length])
        at += 1 + length
    return at + 1, labels


def upstream_query(query: Query, message_id: int, *, edns: bool = True) -> bytes:
    """Our own query for it: RD, CD as asked, EDNS with our size; not a byte of the agent's but the name."""
    flags = 0x0100 | query.cd << 4
    header = _HEADER.pack(message_id, flags, 1, 0, 0, int(edns))
    wire = header + query.key[:-1]
    if edns:
        wire += b"\0" + struct.pack("!HHIH", OPT, EDNS_SIZE, 0x8000 if query.do else 0, 0)
    return wire


@dataclass(frozen=True, slots=True)
class Reply:
    """A measured reply to a `Query`. `ttls`: (offset, seconds) of each record's TTL, 0 for what has the top bit set."""

    wire: bytes
    """Without the OPT record."""
    end: int
    """Of the question section."""
    rcode: int
    truncated: bool
    ad: bool
    ttls: tuple[tuple[int, int], ...]
    answers: int
    """How many of `ttls`, from the front, are the answer section's."""
    has_type: bool
    """The answer section has a record of the type asked for."""
    negative_ttl: int | None
    """min(SOA's TTL, SOA's minimum) of the authority section, None if there is no SOA."""
    edns: bool

    @property
    def failed(self) -> bool:
        return self.rcode not in (NOERROR, NXDOMAIN)

    @property
    def positive(self) -> bool:
        return self.rcode == NOERROR and self.has_type

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
    """Raises Malformed for bytes that are no reply to `query` with this ID."""
    if not 12 <= len(wire) <= 65535:
        raise Malformed("length")
    got_id, flags, questions, n_answers, n_authorities, n_additionals = _HEADER.unpack_from(wire)
    if got_id != message_id:
        raise Malformed("another ID")
    if not flags & 0x8000 or flags & 0x7800:
        raise Malformed("not a reply")
    end = query.end
    question = wire[12:end]
    name_length = end - 16
    same = questions == 1 and question[name_length:] == query.key[name_length:-1]
    if not same or question[:name_length].lower() != query.key[:name_length]:
        raise Malformed("another question")
    rcode = flags & 15
    at = end
    ttls: list[tuple[int, int]] = []
    has_type = edns = False
    negative: int | None = None
    opt: tuple[int, int] | None = None
    last = 0
    try:
        for index in range(n_answers + n_authorities + n_additionals):
            start = at
            at = _skip_name(wire, at)
            rtype, rclass, ttl, length = _RECORD.unpack_from(wire, at)
            at += 10
            if at + length > len(wire):
                raise Malformed("record")
            if rtype == OPT:
                if opt or index < n_answers + n_authorities or wire[start]:
                    raise Malformed("OPT")
                opt = (start, at + length)
                rcode |= ttl >> 24 << 4
            else:
                ttl = 0 if ttl >> 31 else ttl
                ttls.append((at - 6, ttl))
                if index < n_answers:
                    has_type |= rtype == query.qtype and rclass == IN
                elif index < n_answers + n_authorities and rtype == SOA and length >= 22:
                    (minimum,) = _TTL.unpack_from(wire, at + length - 4)
                    negative = min(ttl, minimum & 0x7FFFFFFF)
            at += length
            last = start
    except (struct.error, IndexError):
        raise Malformed("cut short") from None
    edns = opt is not None
    body = wire[:at]
    if opt:
        if opt[0] == last:
            body = wire[: opt[0]]
            n_additionals -= 1
        else:  # records behind it would move, and pointers with them: they are optional, so leave them all out
            first = n_answers + n_authorities
            cut = _start_of(wire, end, first)
            body = wire[:cut]
            ttls = ttls[:first]
            n_additionals = 0
    body = _HEADER.pack(0, 0, 1, n_answers, n_authorities, n_additionals) + query.key[:-1] + body[end:]
    truncated = bool(flags & 0x0200)
    ad = bool(flags & 0x20)
    return Reply(body, end, rcode, truncated, ad, tuple(ttls), n_answers, has_type, negative, edns)


def _skip_name(wire: bytes, at: int) -> int:
    start = at
    while True:
        length = wire[at]
        if length == 0:
            return at + 1
        if length >= 0xC0:
            if not 12 <= (length & 0x3F) << 8 | wire[at + 1] < start:
                raise Malformed("pointer")
            return at + 2
        if length > 63 or at - start > 255:
            raise Malformed("name")
        at += 1 + length


def _start_of(wire: bytes, at: int, index: int) -> int:
    for _ in range(index):
        at = _skip_name(wire, at)
        at += 10 + int.from_bytes(wire[at + 8 : at + 10], "big")
    return at


def render(
    reply: Reply, query: Query, age: int, low: int, high: int, *, ttl: int | None = None, ede: tuple[int, str] | None = None
) -> bytes:
    """`reply` as the answer to `query`: its ID, its spelling of the name, TTLs clamped to low..high less `age` (at least 1), or
    all of them `ttl`."""
    wire = bytearray(reply.wire)
    flags = 0x8080 | (int.from_bytes(query.wire[2:4], "big") & 0x0110) | (reply.rcode & 15)
    if reply.ad and (query.ad or query.do):
        flags |= 0x20
    wire[0:2] = query.wire[0:2]
    wire[2:4] = flags.to_bytes(2, "big")
    wire[12 : query.end] = query.wire[12 : query.end]
    for offset, seconds in reply.ttls:
        if ttl is None:
            left = min(max(seconds, low), high) - age
            _TTL.pack_into(wire, offset, left if left > 1 else 1)
        else:
            _TTL.pack_into(wire, offset, ttl)
    if query.edns:
        additionals = int.from_bytes(wire[10:12], "big") + 1
        wire[10:12] = additionals.to_bytes(2, "big")
        wire += opt_record(reply.rcode, query.do, ede)
    return bytes(wire)


def opt_record(rcode: int, do: bool, ede: tuple[int, str] | None = None) -> bytes:
    """With an extended error (code, text) if there is one (RFC 8914)."""
    data = b""
    if ede:
        text = ede[1].encode()[:120]
        data = struct.pack("!HHH", 15, 2 + len(text), ede[0]) + text
    return b"\0" + struct.pack("!HHIH", OPT, EDNS_SIZE, rcode >> 4 << 24 | (0x8000 if do else 0), len(data)) + data


def error_reply(
    wire: bytes, end: int, rcode: int, *, edns: bool = False, do: bool = False, ede: tuple[int, str] | None = None
) -> bytes:
    """A reply without records to the query `wire`, whose question section ends at `end` (12: it is not repeated)."""
    flags = 0x8080 | (int.from_bytes(wire[2:4], "big") & 0x7910) | (rcode & 15)
    header = wire[0:2] + struct.pack("!5H", flags, int(end > 12), 0, 0, int(edns))
    return header + wire[12:end] + (opt_record(rcode, do, ede) if edns else b"")


def made_reply(query: Query, records: list[tuple[int, bytes]], ttl: int) -> bytes:
    """A reply of our own: records (type, data) of the name asked for; none is NODATA."""
    flags = 0x8080 | (int.from_bytes(query.wire[2:4], "big") & 0x0110)
    header = query.wire[0:2] + struct.pack("!5H", flags, 1, len(records), 0, int(query.edns))
    body = b"".join(b"\xc0\x0c" + _RECORD.pack(rtype, IN, ttl, len(data)) + data for rtype, data in records)
    return header + query.question + body + (opt_record(NOERROR, query.do) if query.edns else b"")
