"""DNS messages as bytes: reading a question, writing queries, errors and short replies.

RFC 1035, 6891, 8914, 9619. Reads in linear time; what does not parse is a WireError with the rcode to answer.
Replies are `agentfw.dns_reply`'s.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

A, NS, CNAME, SOA, PTR, MX, AAAA, SRV, DNAME, OPT, RRSIG, NSEC, NSEC3, SVCB, HTTPS = (
    1, 2, 5, 6, 12, 15, 28, 33, 39, 41, 46, 47, 50, 64, 65
)  # fmt: skip
META_TYPES = frozenset({0, OPT, *range(128, 256)})
"""OPT, TKEY, TSIG, IXFR, AXFR, MAILB, MAILA, ANY and what is reserved beside them (RFC 6895, 3.1): none asks for data of a name.
ANY may be refused (RFC 8482, 4: what is given is up to who answers)."""
IN = 1
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = range(6)
BADVERS = 16
RCODES = ("NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED")

# Extended DNS errors, RFC 8914
EDE_OTHER, EDE_STALE, EDE_CACHED_ERROR, EDE_BLOCKED, EDE_PROHIBITED, EDE_NO_REACHABLE, EDE_NETWORK = 0, 3, 13, 15, 18, 22, 23

MAX_QUERY = 4096
MAX_UDP = 4096
"""What we say we take over UDP, and the most that is sent there."""


class WireError(ValueError):
    """Not a message of the expected shape. `rcode`: what a query gets for it; `question`: its, where it could be read."""

    def __init__(self, message: str, rcode: int = FORMERR, question: Question | None = None) -> None:
        self.rcode = rcode
        self.question = question
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Question:
    """The one question of a query. `end`: where it ends in the message; `edns`: UDP size in its OPT record, None without one;
    `dnssec`: the DO bit; `key`: the name in lower case, labels with their length bytes."""

    labels: tuple[bytes, ...]
    qtype: int
    qclass: int
    end: int
    edns: int | None
    dnssec: bool
    key: bytes


def parse_query(query: bytes) -> Question:
    """A standard query with one question (RFC 9619), at most an OPT record of version 0 (RFC 6891), and nothing behind it."""
    query = bytes(query)
    if len(query) < 12 or query[2] & 0x80:
        raise WireError("not a query")
    if query[2] >> 3 & 15:
        raise WireError("not a standard query", NOTIMP)
    counts = [int.from_bytes(query[at : at + 2]) for at in (4, 6, 8, 10)]
    if len(query) > MAX_QUERY or counts[:3] != [1, 0, 0] or counts[3] > 1 or query[2] & 2:
        raise WireError("not one question")
    labels, at = _labels(query, 12)
    end = at + 4
    qtype, qclass = int.from_bytes(query[at : at + 2]), int.from_bytes(query[at + 2 : end])
    key = query[12 : at - 1].lower()
    if not counts[3]:
        question, last = Question(labels, qtype, qclass, end, None, False, key), end
    else:
        size, flags, last = _opt_in(query, end)
        question = Question(labels, qtype, qclass, end, max(size, 512), bool(flags & 0x8000), key)
        if flags >> 16 & 0xFF:
            raise WireError("another version of EDNS", BADVERS, question)
    if last != len(query):
        raise WireError("bytes behind the message")
    return question


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
    head = query[:2] + bytes([0x80 | query[2] & 0x01, 0x80 | query[3] & 0x10]) + b"\0\1" + len(addresses).to_bytes(2) + b"\0\0"
    opt = opt_for(question)
    return head + (b"\0\1" if opt else b"\0\0") + query[12 : question.end] + records + opt


def make_error(query: bytes, question: Question | None, rcode: int, ede: int | None = None, text: str = "") -> bytes:
    """An error reply, extended if the query spoke EDNS. `question` None: it could not be read; header only."""
    head = query[:2] + bytes([0x80 | query[2] & 0x79, 0x80 | query[3] & 0x10 | rcode & 15])
    if question is None:
        return head + bytes(8)
    body = query[12 : question.end]
    if question.edns is None:
        return head + b"\0\1" + bytes(6) + body
    data = b""
    if ede is not None:
        extra = ede.to_bytes(2) + text.encode("utf-8", "replace")[:200].decode("utf-8", "ignore").encode()
        data = b"\0\x0f" + len(extra).to_bytes(2) + extra
    return head + b"\0\1" + bytes(4) + b"\0\1" + body + opt_for(question, data, rcode)


def truncated(reply: bytes, question: Question) -> bytes:
    """The reply if it fits what the client takes over UDP; else header and question with TC set: it asks again over TCP."""
    if len(reply) <= min(question.edns or 512, MAX_UDP):
        return reply
    opt = opt_for(question)
    return reply[:2] + bytes([reply[2] | 2, reply[3]]) + b"\0\1" + bytes(5) + bytes([bool(opt)]) + reply[12 : question.end] + opt


def opt_for(question: Question, data: bytes = b"", rcode: int = 0) -> bytes:
    """The OPT record of a reply: none to a query without one (RFC 6891, 7), else with the same DO bit."""
    if question.edns is None:
        return b""
    flags = rcode >> 4 << 24 | question.dnssec << 15
    return b"\0\0\x29" + MAX_UDP.to_bytes(2) + flags.to_bytes(4) + len(data).to_bytes(2) + data


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


def _opt_in(query: bytes, at: int) -> tuple[int, int, int]:
    """(UDP size, extended flags, where it ends) of the one record that may follow the question: OPT, of the root."""
    data = at + 11
    if data > len(query) or query[at : at + 3] != b"\0\0\x29":
        raise WireError("a record other than OPT in a query")
    end = data + int.from_bytes(query[data - 2 : data])
    if end > len(query):
        raise WireError("a record is cut off")
    at = data
    while at < end:  # options: code, length, data (RFC 6891, 6.1.2)
        at += 4 + int.from_bytes(query[at + 2 : at + 4])
    if at != end:
        raise WireError("an EDNS option is cut off")
    return int.from_bytes(query[data - 8 : data - 6]), int.from_bytes(query[data - 6 : data - 2]), end
