"""DNS replies as bytes: read whole and checked, cut down to what was asked for, written anew.

What a resolver says is a stranger's word. `read()` walks a message once, in linear time; `sanitised()` leaves in it what answers
the question (RFC 2181, 5.4.1: the answer section's own data) and nothing about other names; `written()` packs records again.
`agentfw.relay.dns` does so with every plugin's reply before an agent sees it.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from . import dns_wire as wire

ANSWER, AUTHORITY, ADDITIONAL = range(3)
MAX_CHAIN = 16
"""Aliases (CNAME) one after the other; other resolvers end at about as many."""
MAX_POINTERS = 16
MAX_OFFSET = 0x3FFF

PROOFS = frozenset({wire.SOA, wire.RRSIG, wire.NSEC, wire.NSEC3})
"""All that the authority section is kept for: how long a "no" holds (RFC 2308, 5), and DNSSEC's proofs (RFC 4035, 3.1.3)."""
SERVICES = frozenset({wire.HTTPS, wire.SVCB})

# Where names are in record data that may be compressed (RFC 3597, 4): bytes before, how many names. All others are taken as
# they are.
_NAMES = {
    wire.NS: (0, 1),
    wire.CNAME: (0, 1),
    wire.PTR: (0, 1),
    wire.DNAME: (0, 1),
    wire.SOA: (0, 2),
    **dict.fromkeys((3, 4, 7, 8, 9), (0, 1)),  # MD, MF, MB, MG, MR
    **dict.fromkeys((14, 17), (0, 2)),  # MINFO, RP
    **dict.fromkeys((wire.MX, 18, 21, 36), (2, 1)),  # AFSDB, RT, KX
    26: (2, 2),  # PX
    wire.SRV: (6, 1),
}
_SIZES = {wire.A: 4, wire.AAAA: 16}
_HEADER = struct.Struct("!6H")
_RECORD = struct.Struct("!HHIH")

MANDATORY, IPV4HINT, ECH, IPV6HINT = 0, 4, 5, 6
"""Parameters of HTTPS and SVCB records (RFC 9460, 14.3.2)."""


@dataclass(frozen=True, slots=True)
class Record:
    """`owner` and the names in `data` (uncompressed) keep their letters; `key` is the owner in lower case. Names are labels with
    their length bytes, without the root's. `ttl` in seconds; with the top bit set it counts as 0 (RFC 2181, 8)."""

    section: int
    owner: bytes
    key: bytes
    rtype: int
    rclass: int
    ttl: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """`flags`: 16 bits of the header; `rcode` with the OPT record's part; `records` without the OPT."""

    flags: int
    rcode: int
    records: tuple[Record, ...]
    edns: bool

    @property
    def truncated(self) -> bool:
        return bool(self.flags & 0x0200)


def read(message: bytes, message_id: int, question: wire.Question) -> Reply:
    """WireError unless it is a whole reply to this query (ID, question in any case of letters), with nothing behind its end."""
    message = bytes(message)
    end = question.end
    if not end <= len(message) <= 65535:
        raise wire.WireError("cut short")
    got_id, flags, questions, *counts = _HEADER.unpack_from(message)
    if got_id != message_id or not flags & 0x8000 or flags & 0x7800 or questions != 1:
        raise wire.WireError("not a reply to this query")
    kind = question.qtype.to_bytes(2) + question.qclass.to_bytes(2)
    if message[12 : end - 4].lower() != question.key + b"\0" or message[end - 4 : end] != kind:
        raise wire.WireError("a reply to another question")
    names = _Names(message)
    records: list[Record] = []
    rcode = flags & 15
    edns = False
    at = end
    for section, count in enumerate(counts):
        for _ in range(count):
            owner, at = names.read(at)
            data = at + 10
            if data > len(message):
                raise wire.WireError("a record is cut off")
            rtype, rclass, ttl, length = _RECORD.unpack_from(message, at)
            at = data + length
            if at > len(message):
                raise wire.WireError("a record is cut off")
            if rtype == wire.OPT:
                if edns or owner or section != ADDITIONAL:
                    raise wire.WireError("a bad OPT record")
                edns = True
                rcode |= ttl >> 24 << 4
                continue
            body = _body(message, names, rtype, data, at)
            records.append(Record(section, owner, owner.lower(), rtype, rclass, 0 if ttl >> 31 else ttl, body))
    if at != len(message):
        raise wire.WireError("bytes behind the message")
    return Reply(flags, rcode, tuple(records), edns)


class _Names:
    """Reads names; what a pointer led to once is not read again."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._known: dict[int, tuple[bytes, int]] = {}

    def read(self, at: int, pointers: int = 0) -> tuple[bytes, int]:
        """A name, perhaps compressed, without the root's byte, and where it ends at its first place. A pointer must lead back
        (RFC 1035, 4.1.4: to a prior occurrence)."""
        start = at
        known = self._known.get(start)
        if known is not None:
            return known
        message = self._message
        pieces = bytearray()
        while True:
            if at >= len(message):
                raise wire.WireError("a name is cut off")
            length = message[at]
            if length >= 0xC0:
                target = int.from_bytes(message[at : at + 2]) & MAX_OFFSET
                if at + 2 > len(message) or not 12 <= target < start or pointers >= MAX_POINTERS:
                    raise wire.WireError("a bad pointer in a name")
                pieces += self.read(target, pointers + 1)[0]
                end = at + 2
                break
            if length > 63:
                raise wire.WireError("a bad label")
            if not length:
                end = at + 1
                break
            if at + 1 + length > len(message):
                raise wire.WireError("a name is cut off")
            pieces += message[at : at + 1 + length]
            if len(pieces) > 254:
                raise wire.WireError("a name is too long")
            at += 1 + length
        if len(pieces) > 254:
            raise wire.WireError("a name is too long")
        result = self._known[start] = (bytes(pieces), end)
        return result


def _body(message: bytes, names: _Names, rtype: int, at: int, end: int) -> bytes:
    """Record data with the names in it written out."""
    if rtype in _SIZES and end - at != _SIZES[rtype]:
        raise wire.WireError("an address of the wrong length")
    layout = _NAMES.get(rtype)
    if layout is None:
        return message[at:end]
    before, count = layout
    pieces = [message[at : at + before]]
    at += before
    for _ in range(count):
        name, at = names.read(at)
        pieces += (name, b"\0")
    if at > end or end - at != (20 if rtype == wire.SOA else 0):
        raise wire.WireError("a record of the wrong length")
    pieces.append(message[at:end])
    return b"".join(pieces)


def chain(reply: Reply, question: wire.Question) -> list[bytes]:
    """The name asked for and what its aliases lead to, in order, lower case. WireError for a circle or more than MAX_CHAIN.

    Records may come in any order; of two aliases of one name (RFC 2181, 10.1: a mistake) the first counts.
    """
    here = question.key
    names = [here]
    if question.qtype == wire.CNAME:
        return names
    aliases: dict[bytes, bytes] = {}
    for record in reply.records:
        if record.section == ANSWER and record.rtype == wire.CNAME and record.rclass == wire.IN:
            aliases.setdefault(record.key, record.data[:-1].lower())
    while (target := aliases.get(here)) is not None:
        if target in names or len(names) > MAX_CHAIN:
            raise wire.WireError("its aliases go in circles" if target in names else "it has too many aliases")
        names.append(target)
        here = target
    return names


def zones(names: Iterable[bytes]) -> set[bytes]:
    """The names, and all that they are under, the root ("") too; as in `Record.key`."""
    found = {b""}
    for name in names:
        while name not in found:
            found.add(name)
            name = name[1 + name[0] :]
    return found


def sanitised(reply: Reply, question: wire.Question, *, dnssec: bool) -> Reply:
    """Without what was not asked for: the very same object if there is no such thing.

    Kept are: in the answer, records of the type asked for and aliases, with signatures, of names in the chain; in the authority
    section the SOA of a zone that the chain's end is in, and with `dnssec` the proofs. Nothing of the additional section: glue
    is for resolvers, and other names' addresses are for questions of their own. WireError: see `chain()`.
    """
    names = chain(reply, question)
    found = set(names)
    above, last = zones(names), zones(names[-1:])
    seen: set[bytes] = set()
    kept = []
    for record in reply.records:
        if record.rclass != wire.IN or record.section == ADDITIONAL:
            continue
        if record.section == ANSWER:
            if record.rtype == wire.DNAME and question.qtype != wire.DNAME:
                keep = record.key in above
            elif record.rtype == wire.CNAME:
                keep = record.key in found and record.key not in seen
                seen.add(record.key)
            elif record.rtype == wire.RRSIG:
                keep = record.key in above
            else:
                keep = record.key in found and record.rtype == question.qtype
        elif record.rtype == wire.SOA:
            keep = record.key in last
        else:
            keep = dnssec and record.rtype in PROOFS
        if keep:
            kept.append(record)
    return reply if len(kept) == len(reply.records) else replace(reply, records=tuple(kept))


@dataclass(frozen=True, slots=True)
class Addresses:
    """What a reply holds for its question: (canonical address, TTL in seconds), following aliases. `rcode` not 0: none."""

    rcode: int
    found: tuple[tuple[str, int], ...]


def parse_addresses(reply: bytes, query: bytes, question: wire.Question) -> Addresses:
    """Out of a reply to an A or AAAA query. WireError if it is not a whole reply to it."""
    whole = read(reply, int.from_bytes(query[:2]), question)
    if whole.rcode:
        return Addresses(whole.rcode, ())
    clean = sanitised(whole, question, dnssec=False)
    found = {canonical(record.data): record.ttl for record in clean.records if record.rtype == question.qtype}
    return Addresses(0, tuple(found.items()))


def addresses_of(reply: bytes) -> tuple[str, ...]:
    """Out of a reply whose question is its own, as agents are given them. WireError if it is not a whole one."""
    end = 12
    while end < len(reply) and reply[end]:
        end += 1 + reply[end]
    query = reply[:2] + b"\1\0\0\1" + bytes(6) + reply[12 : end + 5]
    return tuple(address for address, _ in parse_addresses(reply, query, wire.parse_query(query)).found)


@functools.lru_cache(maxsize=4096)
def canonical(data: bytes) -> str:
    """The address in A or AAAA data; an IPv4-mapped one is the IPv4 address that the host's stack would connect to."""
    address = ipaddress.ip_address(data)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def written(
    message_id: bytes, flags: int, question: bytes, records: Sequence[Record], opt: bytes = b""
) -> tuple[bytes, list[int]]:
    """(message, where each record's TTL is). `question`: name, type and class as in the query; owners are compressed, names in
    data are not. `flags`: 16 bits, the rcode's lower four in them; `opt`: a whole OPT record to end with. WireError if it is
    more than 65,535 bytes."""
    counts = [sum(record.section == section for record in records) for section in range(3)]
    counts[ADDITIONAL] += bool(opt)
    message = bytearray(message_id + struct.pack("!5H", flags, 1, *counts) + question)
    places: dict[bytes, int] = {}
    _remember(places, question[:-5].lower(), 12)
    ttls = []
    for record in sorted(records, key=lambda each: each.section):  # stable
        _put_name(message, places, record.owner)
        ttls.append(len(message) + 4)
        message += _RECORD.pack(record.rtype, record.rclass, record.ttl, len(record.data)) + record.data
    message += opt
    if len(message) > 65535:
        raise wire.WireError("longer than a message can be")
    return bytes(message), ttls


def _remember(places: dict[bytes, int], key: bytes, at: int) -> None:
    while key and at <= MAX_OFFSET:
        places.setdefault(key, at)
        at += 1 + key[0]
        key = key[1 + key[0] :]


def _put_name(message: bytearray, places: dict[bytes, int], owner: bytes) -> None:
    """The longest part at the end of it that is there already becomes a pointer."""
    start = len(message)
    key = owner.lower()
    rest = key
    while rest and rest not in places:
        rest = rest[1 + rest[0] :]
    message += owner[: len(owner) - len(rest)]
    message += (0xC000 | places[rest]).to_bytes(2) if rest else b"\0"
    _remember(places, key, start)


def service_parameters(data: bytes) -> tuple[int, bytes, list[tuple[int, bytes]]]:
    """(priority, target with its root byte, parameters) of HTTPS or SVCB data (RFC 9460, 2.2). WireError if it is malformed."""
    at = 2
    while True:
        if at >= len(data) or data[at] > 63:
            raise wire.WireError("a bad service record")
        length = data[at]
        at += 1 + length
        if not length:
            break
    if at > 257:
        raise wire.WireError("a bad service record")
    target = data[2:at]
    parameters: list[tuple[int, bytes]] = []
    while at < len(data):
        key, length = int.from_bytes(data[at : at + 2]), int.from_bytes(data[at + 2 : at + 4])
        value = data[at + 4 : at + 4 + length]
        if at + 4 + length > len(data) or (parameters and parameters[-1][0] >= key):
            raise wire.WireError("a bad service record")
        size = {IPV4HINT: 4, IPV6HINT: 16, MANDATORY: 2}.get(key)
        if size and (not value or len(value) % size):
            raise wire.WireError("a bad service record")
        parameters.append((key, value))
        at += 4 + length
    return int.from_bytes(data[:2]), target, parameters


def service_data(priority: int, target: bytes, parameters: Iterable[tuple[int, bytes]]) -> bytes:
    """The reverse. A record whose `mandatory` names a parameter that is not there means nothing to anyone: see RFC 9460, 8."""
    packed = b"".join(key.to_bytes(2) + len(value).to_bytes(2) + value for key, value in parameters)
    return priority.to_bytes(2) + target + packed
