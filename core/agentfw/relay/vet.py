"""What of a resolver's reply an agent gets to see: what it asked for, and no address that may not be dialled.

Rebinding (a permitted name that leads to a private address) is met here and again before each connect. Addresses are looked at in
A and AAAA records and in the hints of HTTPS and SVCB records (RFC 9460, 7.3); all others (glue, other names) are left out.
"""

from __future__ import annotations

import functools
import ipaddress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import dns_reply
from .. import dns_wire as wire
from ..agents import Agent
from ..destination import Destination
from ..dns_reply import ECH, IPV4HINT, IPV6HINT, MANDATORY, Record, Reply
from ..errors import Denied

if TYPE_CHECKING:
    from ..runtime import Runtime

HOST = {wire.A: "10.0.2.2", wire.AAAA: "fec0::2"}
"""What an agent is told instead of a loopback address, which in the guest would be the guest itself. It is learnt for the name
like any other; the name is what will be dialled."""
MAX_ADDRESSES = 256
"""Of one reply that are looked at and told; of more, the first. Each is held against the policy whenever it is told."""
_HINTS = {IPV4HINT: (4, wire.A), IPV6HINT: (16, wire.AAAA)}
_KEPT = 1232
"""Bytes of the longest reply of which it is remembered what is in it."""


@dataclass(slots=True)
class _Vetting:
    """Of one reply."""

    runtime: Runtime
    agent: Agent
    destination: Destination
    learnt: dict[str, None]
    denied: Denied | None = None
    looked_at: int = 0
    removed: int = 0

    def shown(self, data: bytes, rtype: int) -> bytes | None:
        """The address as the agent is told it; None: it is not."""
        if self.looked_at >= MAX_ADDRESSES:
            self.removed += 1
            return None
        self.looked_at += 1
        address = dns_reply.canonical(data)
        try:
            self.runtime.check_address(self.agent, self.destination, address)
        except Denied as error:
            self.denied = error
            self.removed += 1
            return None
        self.learnt[address] = None
        if address == "::1" or address.startswith("127."):
            self.learnt[HOST[rtype]] = None
            return ipaddress.ip_address(HOST[rtype]).packed
        return data

    def service(self, record: Record) -> Record | None:
        """Without hints that may not be dialled, and without the key for encrypted ClientHellos: with one of those, what name an
        agent's own TLS is for could not be seen."""
        try:
            priority, target, parameters = dns_reply.service_parameters(record.data)
        except wire.WireError:
            return None
        kept = []
        gone = set()
        for key, value in parameters:
            if key in _HINTS:
                size, rtype = _HINTS[key]
                pieces = [self.shown(value[at : at + size], rtype) for at in range(0, len(value), size)]
                value = b"".join(dict.fromkeys(piece for piece in pieces if piece is not None))
            if key == ECH or (key in _HINTS and not value):
                gone.add(key)
            else:
                kept.append((key, value))
        mandatory = dict(kept).get(MANDATORY, b"")
        if any(int.from_bytes(mandatory[at : at + 2]) in gone for at in range(0, len(mandatory), 2)):
            return None
        data = dns_reply.service_data(priority, target, kept)
        return record if data == record.data else replace(record, data=data)


def vetted(
    runtime: Runtime, agent: Agent, destination: Destination, query: bytes, question: wire.Question, reply: bytes
) -> bytes:
    """The reply as the agent gets it: as it came, if nothing in it is amiss. The addresses in it are remembered for the name.

    WireError if it is no reply to this query; Denied if the policy leaves none of the addresses.
    """
    if reply[:2] != query[:2]:
        raise wire.WireError("another ID")
    tail = bytes(reply[2:])
    whole, clean = (_read_and_kept if len(tail) <= _KEPT else _read)(tail, question)
    vetting = _Vetting(runtime, agent, destination, {})
    records: list[Record] = []
    changed: set[int] = set()
    addresses = 0
    shown: set[bytes] = set()
    for record in clean.records:
        now: Record | None = record
        if record.rtype in HOST:
            data = vetting.shown(record.data, record.rtype)
            now = None if data is None or data in shown else record if data == record.data else replace(record, data=data)
            if data is not None:
                addresses += 1
                shown.add(data)
        elif record.rtype in dns_reply.SERVICES:
            now = vetting.service(record)
        if now is not record:
            changed.add(record.rtype)
        if now is not None:
            records.append(now)
    if vetting.learnt:
        runtime.learn(agent, destination.host, vetting.learnt)
    runtime.counters["dns_addresses_removed"] += vetting.removed
    if vetting.denied is not None and question.qtype in HOST and not addresses:
        raise vetting.denied
    if clean is whole and not changed:
        return reply
    runtime.counters["dns_records_removed"] += len(whole.records) - len(clean.records)
    records = [each for each in records if each.rtype != wire.RRSIG or int.from_bytes(each.data[:2]) not in changed]
    flags = whole.flags & (~0x0020 if changed else 0xFFFF)  # AD: it is not what was signed
    opt = wire.opt_for(question, rcode=whole.rcode)
    return dns_reply.written(query[:2], flags, query[12 : question.end], records, opt)[0]


def _read(tail: bytes, question: wire.Question) -> tuple[Reply, Reply]:
    """(the reply with this behind its ID, what of it answers the question)"""
    whole = dns_reply.read(b"\0\0" + tail, 0, question)
    return whole, dns_reply.sanitised(whole, question, dnssec=question.dnssec)


_read_and_kept = functools.lru_cache(maxsize=1024)(_read)  # a cache's answers are the same ones again and again
