"""A guest's resolver: questions out of UDP or TCP flows to the `resolve` hooks, their replies back as they are.

An agent's question is checked (one question, a host name that policy allows) before any plugin sees it; the addresses in its
answer are vetted and remembered before the agent sees them.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING

import dnslib

from ..agents import Agent
from ..destination import Destination, parse_address, parse_host
from ..errors import AgentfwError, Denied, DestinationError, HookError, ResolveError
from ..flows import Flow

if TYPE_CHECKING:
    from ..runtime import Runtime

RESOLVER = "10.0.2.3"
"""The resolver's address in every guest (/etc/resolv.conf)."""
PORT = 53
HOST = {"A": "10.0.2.2", "AAAA": "fec0::2"}
"""What an agent is told instead of a loopback address, which in the guest would be the guest itself. It is learnt for the name
like any other; the name is what will be dialled."""
MAX_QUERY = 4096
MAX_UDP_REPLY = 4096

# Extended DNS errors, RFC 8914
EDE_OTHER, EDE_BLOCKED, EDE_PROHIBITED, EDE_NO_REACHABLE = 0, 15, 18, 22

log = logging.getLogger("agentfw.relay")


async def relay_tcp(runtime: Runtime, agent: Agent, flow: Flow) -> None:
    """Questions one after the other, each with its two bytes of length (RFC 1035, 4.2.2)."""
    buffer = bytearray()
    while True:
        while len(buffer) < 2 or len(buffer) < 2 + int.from_bytes(buffer[:2]):
            data = await flow.receive()
            if not data:
                flow.send_eof()
                flow.close()
                return
            buffer += data
        end = 2 + int.from_bytes(buffer[:2])
        query = bytes(buffer[2:end])
        del buffer[:end]
        reply = await answer(runtime, agent, query, udp=False)
        if not reply:
            flow.reset()
            return
        await flow.send(len(reply).to_bytes(2) + reply)


async def answer(runtime: Runtime, agent: Agent, query: bytes, *, udp: bool) -> bytes | None:
    """The wire reply to one wire query; None: not a query, say nothing. Does not raise but for cancellation."""
    runtime.counters["dns_queries"] += 1
    if len(query) < 12 or query[2] & 0x80:
        return None
    if len(query) > MAX_QUERY:
        return _error(query, None, dnslib.RCODE.FORMERR)
    try:
        record = dnslib.DNSRecord.parse(query)
    except (dnslib.DNSError, ValueError, IndexError):
        return _error(query, None, dnslib.RCODE.FORMERR)
    if record.header.opcode != 0:
        return _error(query, None, dnslib.RCODE.NOTIMP)
    if len(record.questions) != 1 or record.rr or record.auth or record.header.tc:
        return _error(query, None, dnslib.RCODE.FORMERR)
    try:
        reply = await _resolve(runtime, agent, query, record)
    except Denied as error:
        runtime.counters["dns_denied"] += 1
        log.info("%s: dns: %s", agent.name, error)
        return _error(query, record, dnslib.RCODE.REFUSED, EDE_BLOCKED, f"{error} [{error.plugin}]")
    except DestinationError as error:
        runtime.counters["dns_denied"] += 1
        return _error(query, record, dnslib.RCODE.REFUSED, EDE_PROHIBITED, error.reason)
    except ResolveError as error:
        return _error(
            query, record, error.rcode, EDE_NO_REACHABLE if error.rcode == dnslib.RCODE.SERVFAIL else None, error.reason
        )
    except HookError as error:
        log.error("%s: dns: %s", agent.name, error, exc_info=error.__cause__)
        return _error(query, record, dnslib.RCODE.SERVFAIL, EDE_OTHER, f"plugin {error.plugin} failed in {error.hook}")
    except AgentfwError as error:
        return _error(query, record, dnslib.RCODE.SERVFAIL, EDE_OTHER, str(error))
    except Exception:
        log.exception("%s: dns", agent.name)
        return _error(query, record, dnslib.RCODE.SERVFAIL, EDE_OTHER, "internal error")
    return _truncated(reply, record) if udp else reply


async def _resolve(runtime: Runtime, agent: Agent, query: bytes, record: dnslib.DNSRecord) -> bytes:
    name = question_name(record)
    if record.q.qclass != dnslib.CLASS.IN:
        raise DestinationError("class", record.q.qclass, "only class IN is answered")
    destination = Destination("dns", name, PORT)
    await runtime.plugins.allow(agent, destination)
    reply = await runtime.plugins.resolve(agent, name, record.q.qtype, query)
    if reply is None:
        raise ResolveError(name, "no plugin resolves names")
    if len(reply) < 12 or len(reply) > 65535 or reply[:2] != query[:2] or not reply[2] & 0x80:
        raise ResolveError(name, "the reply is malformed")
    if record.q.qtype not in (dnslib.QTYPE.A, dnslib.QTYPE.AAAA) or reply[3] & 15:
        return reply
    return _vetted(runtime, agent, destination, record, reply)


def _vetted(runtime: Runtime, agent: Agent, destination: Destination, query: dnslib.DNSRecord, reply: bytes) -> bytes:
    """The reply, without the addresses that may not be dialled; Denied if that leaves none."""
    found = reply_addresses(reply, query, destination.host, query.q.qtype)
    denied: Denied | None = None
    permitted = []
    for address in found:
        try:
            runtime.check_address(agent, destination, address)
            permitted.append(address)
        except Denied as error:
            denied = error
    stand_in = HOST["A" if query.q.qtype == dnslib.QTYPE.A else "AAAA"]
    shown = {address: stand_in if ipaddress.ip_address(address).is_loopback else address for address in permitted}
    runtime.learn(agent, destination.host, dict.fromkeys((*shown, *shown.values())))
    if denied is None and all(address == told for address, told in shown.items()):
        return reply
    if denied is not None and not permitted:
        raise denied
    runtime.counters["dns_addresses_removed"] += len(found) - len(permitted)
    record = dnslib.DNSRecord.parse(reply)
    record.rr = [r for r in record.rr if r.rtype != query.q.qtype or parse_address(str(r.rdata)) in shown]
    for r in record.rr:
        if r.rtype == query.q.qtype:
            r.rdata = type(r.rdata)(shown[parse_address(str(r.rdata))])
    record.ar = [r for r in record.ar if r.rtype == dnslib.QTYPE.OPT]
    record.set_header_qa()
    return bytes(record.pack())


def reply_addresses(reply: bytes, query: dnslib.DNSRecord, name: str, qtype: int) -> list[str]:
    """Addresses of type `qtype` that a wire reply gives for `name`, following its CNAMEs. ResolveError if it is an error or not
    the reply to `query`."""
    try:
        record = dnslib.DNSRecord.parse(reply)
        fits = record.header.id == query.header.id and record.header.qr and len(record.questions) == 1
        fits = fits and record.q.qtype == qtype and record.q.qname == query.q.qname
    except (dnslib.DNSError, ValueError, IndexError) as error:
        raise ResolveError(name, "the reply is malformed") from error
    if not fits:
        raise ResolveError(name, "the reply is to another question")
    if record.header.rcode:
        raise ResolveError(name, dnslib.RCODE.forward.get(record.header.rcode, str(record.header.rcode)), record.header.rcode)
    names = {name}
    found = []
    for _ in range(len(record.rr) + 1):  # the chain may come in any order
        more = {str(r.rdata.label).rstrip(".").lower() for r in record.rr if r.rtype == dnslib.QTYPE.CNAME and _owner(r) in names}
        if more <= names:
            break
        names |= more
    for r in record.rr:
        if r.rtype == qtype and _owner(r) in names:
            try:
                found.append(parse_address(str(r.rdata)))
            except DestinationError as error:
                raise ResolveError(name, "the reply is malformed") from error
    return list(dict.fromkeys(found))


def _owner(record: dnslib.RR) -> str:
    return str(record.rname).rstrip(".").lower()


def question_name(record: dnslib.DNSRecord) -> str:
    """The (one) question's name, normalised. DestinationError if it is not a host name."""
    labels = [bytes(label) for label in record.q.qname.label]
    try:
        parts = [label.decode("ascii") for label in labels]
    except UnicodeDecodeError:
        raise DestinationError("host", b".".join(labels), "not ASCII") from None
    if any("." in part for part in parts):  # a dot inside a label would read as another name
        raise DestinationError("host", parts, "a dot inside a label")
    host = parse_host(".".join(parts))
    if ":" in host:
        raise DestinationError("host", host, "an address, not a name")
    return host


def _error(query: bytes, record: dnslib.DNSRecord | None, rcode: int, ede: int | None = None, text: str = "") -> bytes:
    """An error reply; extended (RFC 8914) if the query spoke EDNS. `record` None: the question could not be read, header only."""
    header = query[:2] + bytes([0x80 | query[2] & 0x79, 0x80 | rcode & 15])
    if record is None:
        return header + bytes(8)
    end = _question_end(query)
    options = [r for r in record.ar if r.rtype == dnslib.QTYPE.OPT]
    reply = header + b"\0\1" + bytes(4) + (b"\0\1" if options else b"\0\0") + query[12:end]
    if options:
        data = b""
        if ede is not None:
            extra = ede.to_bytes(2) + text.encode("utf-8", "replace")[:200].decode("utf-8", "ignore").encode()
            data = b"\0\x0f" + len(extra).to_bytes(2) + extra
        reply += b"\0" + b"\0\x29" + MAX_UDP_REPLY.to_bytes(2) + bytes(4) + len(data).to_bytes(2) + data
    return reply


def _question_end(query: bytes) -> int:
    """Where the first question ends; dnslib has parsed it. A compression pointer cannot be there but to itself."""
    at = 12
    while query[at] and query[at] < 0xC0:
        at += 1 + query[at]
    return at + (1 if not query[at] else 2) + 4


def _truncated(reply: bytes, query: dnslib.DNSRecord) -> bytes:
    """What fits the client's UDP size; else header and question with TC set, so that it asks again over TCP."""
    sizes = [r.rclass for r in query.ar if r.rtype == dnslib.QTYPE.OPT]
    if len(reply) <= min(max(512, *sizes, 512), MAX_UDP_REPLY):
        return reply
    return reply[:2] + bytes([reply[2] | 2, reply[3]]) + b"\0\1" + bytes(6) + reply[12 : _question_end(reply)]
