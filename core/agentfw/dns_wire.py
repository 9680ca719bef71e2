"""DNS messages as bytes: reading a question and the addresses in a reply, writing queries, errors and short replies.

RFC 1035, 6891, 8914. Reads in linear time whatever it is given: questions have no compression, names elsewhere may point only
backwards and not often. What does not parse is a WireError with the rcode to answer.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

A, CNAME, AAAA, OPT = 1, 5, 28, 41
IN = 1
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = range(6)
RCODES = ("NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED")

# Extended DNS errors, RFC 8914
EDE_OTHER, EDE_BLOCKED, EDE_PROHIBITED, EDE_NO_REACHABLE = 0, 15, 18, 22

MAX_QUERY = 4096
MAX_UDP = 4096
"""What we say we take over UDP, and the most that is sent there."""
MAX_POINTERS = 16
MAX_EXTRA = 4
"""Records in the additional section of a query (OPT, and what nobody sends)."""


class WireError(ValueError):
    """Not a message of the expected shape."""

    def __init__(self, message: str, rcode: int = FORMERR) -> None:
        self.rcode = rcode
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Question:
    """The one question of a query. `end`: where it ends in the message; `edns`: UDP size in its OPT record, None without one."""

    labels: tuple[bytes, ...]
    qtype: int
    qclass: int
    end: int
    edns: int | None


def parse_query(query: bytes) -> Question:
    """A standard query with one question, no answers and nothing behind it."""
    if len(query) < 12 or query[2] & 0x80:
        raise WireError("not a query")
    if query[2] >> 3 & 15:
        raise WireError("not a standard query", NOTIMP)
    counts = [int.from_bytes(query[at : at + 2]) for at in (4, 6, 8, 10)]
    if len(query) > MAX_QUERY or counts[:3] != [1, 0, 0] or counts[3] > MAX_EXTRA or query[2] & 2:
        raise WireError("not one question")
    labels, at = _labels(query, 12)
    end = at + 4
    edns = None
    at = end
    for _ in range(counts[3]):
        _, kind, size, _, at = _record(query, at)
        if kind == OPT:
            if edns is not None:
                raise WireError("two OPT records")
            edns = max(size, 512)
    if at != len(query):
        raise WireError("bytes behind the message")
    return Question(labels, int.from_bytes(query[end - 4 : end - 2]), int.from_bytes(query[end - 2 : end]), end, edns)


@dataclass(frozen=True, slots=True)
class Addresses:
    """What a good reply holds for its question: (address, TTL in seconds), following CNAMEs. `rcode` not 0: none."""

    rcode: int
    found: tuple[tuple[str, int], ...]


def parse_addresses(reply: bytes, query: bytes, question: Question) -> Addresses:
    """Out of a reply to an A or AAAA query. WireError if it is not a whole reply to it."""
    end = question.end
    if len(reply) < end or reply[:2] != query[:2] or not reply[2] & 0x80 or reply[4:6] != b"\0\1":
        raise WireError("not a reply to this query")
    if reply[12:end].lower() != query[12:end].lower():
        raise WireError("a reply to another question")
    if reply[3] & 15:
        return Addresses(reply[3] & 15, ())
    size = 4 if question.qtype == A else 16
    found: list[tuple[bytes, str, int]] = []
    aliases: dict[bytes, bytes] = {}
    at = end
    for _ in range(int.from_bytes(reply[6:8])):
        owner, kind, cls, data, at = _record(reply, at)
        ttl = int.from_bytes(reply[data - 6 : data - 2])
        if cls != IN:
            continue
        if kind == CNAME:
            aliases[owner] = _name(reply, data)[0]
        elif kind == question.qtype:
            if at - data != size:
                raise WireError("an address of the wrong length")
            address = ipaddress.ip_address(reply[data:at])
            mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
            found.append((owner, str(mapped or address), 0 if ttl >> 31 else ttl))
    names = {_name(query, 12)[0]}
    for _ in aliases:  # the chain may come in any order
        more = {alias for name, alias in aliases.items() if name in names} - names
        if not more:
            break
        names |= more
    return Addresses(0, tuple(dict((address, ttl) for owner, address, ttl in found if owner in names).items()))


def make_query(name: str, qtype: int) -> bytes:
    """A query of our own for a normalised name: random ID, recursion desired, no EDNS."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return secrets.token_bytes(2) + b"\1\0\0\1\0\0\0\0\0\0" + labels + b"\0" + qtype.to_bytes(2) + b"\0\1"


def make_reply(query: bytes, question: Question, addresses: Sequence[tuple[str, int]]) -> bytes:
    """A good reply with just these addresses (of the type asked for) and TTLs."""
    records = b""
    for address, ttl in addresses:
        data = ipaddress.ip_address(address).packed
        if question.qtype == AAAA and len(data) == 4:
            data = bytes(10) + b"\xff\xff" + data  # an IPv4-mapped one, as parse_addresses() gives it
        records += b"\xc0\x0c" + question.qtype.to_bytes(2) + b"\0\1" + ttl.to_bytes(4) + len(data).to_bytes(2) + data
    head = query[:2] + bytes([0x80 | query[2] & 0x01, 0x80]) + b"\0\1" + len(addresses).to_bytes(2) + b"\0\0"
    opt = b"" if question.edns is None else _opt(b"")
    return head + (b"\0\1" if opt else b"\0\0") + query[12 : question.end] + records + opt


def make_error(query: bytes, question: Question | None, rcode: int, ede: int | None = None, text: str = "") -> bytes:
    """An error reply, extended if the query spoke EDNS. `question` None: it could not be read; header only."""
    head = query[:2] + bytes([0x80 | query[2] & 0x79, 0x80 | rcode & 15])
    if question is None:
        return head + bytes(8)
    body = query[12 : question.end]
    if question.edns is None:
        return head + b"\0\1" + bytes(6) + body
    data = b""
    if ede is not None:
        extra = ede.to_bytes(2) + text.encode("utf-8", "replace")[:200].decode("utf-8", "ignore").encode()
        data = b"\0\x0f" + len(extra).to_bytes(2) + extra
    return head + b"\0\1" + bytes(4) + b"\0\1" + body + _opt(data)


def truncated(reply: bytes, question: Question) -> bytes:
    """The reply if it fits what the client takes over UDP; else header and question with TC set: it asks again over TCP."""
    if len(reply) <= min(question.edns or 512, MAX_UDP):
        return reply
    return reply[:2] + bytes([reply[2] | 2, reply[3]]) + b"\0\1" + bytes(6) + reply[12 : question.end]


def _opt(data: bytes) -> bytes:
    return b"\0\0\x29" + MAX_UDP.to_bytes(2) + bytes(4) + len(data).to_bytes(2) + data


def _labels(message: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    """An uncompressed name and where it ends."""
    labels = []
    start = at
    while True:
        if at >= len(message):
            raise WireError("a name is cut off")
        length = message[at]
        at += 1
        if not length:
            break
        if length > 63 or at + length - start > 254:
            raise WireError("not a plain name")
        labels.append(message[at : at + length])
        at += length
    if at + 4 > len(message):
        raise WireError("the question is cut off")
    return tuple(labels), at


def _name(message: bytes, at: int) -> tuple[bytes, int]:
    """A name that may be compressed, in lower case with its length bytes, and where it ends at its first place."""
    pieces: list[bytes] = []
    total = 0
    end = 0
    start = at
    pointers = 0
    while True:
        if at >= len(message):
            raise WireError("a name is cut off")
        length = message[at]
        if length >= 0xC0:
            target = int.from_bytes(message[at : at + 2]) & 0x3FFF
            end = end or at + 2
            pointers += 1
            if at + 2 > len(message) or target >= start or pointers > MAX_POINTERS:
                raise WireError("a bad pointer in a name")
            at = start = target
            continue
        if length > 63:
            raise WireError("a bad label")
        total += length + 1
        if total > 255 or at + 1 + length > len(message):
            raise WireError("a name is too long")
        if not length:
            return b"".join(pieces), end or at + 1
        pieces.append(message[at : at + 1 + length].lower())
        at += 1 + length


def _record(message: bytes, at: int) -> tuple[bytes, int, int, int, int]:
    """(owner, type, class, where its data begin, where they end)"""
    owner, at = _name(message, at)
    data = at + 10
    if data > len(message):
        raise WireError("a record is cut off")
    end = data + int.from_bytes(message[at + 8 : data])
    if end > len(message):
        raise WireError("a record is cut off")
    return owner, int.from_bytes(message[at : at + 2]), int.from_bytes(message[at + 2 : at + 4]), data, end
