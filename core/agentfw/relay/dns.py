"""A guest's resolver: questions out of UDP or TCP flows to the `resolve` hooks, their replies back as they are.

An agent's question is checked (one question, a host name that policy allows) before any plugin sees it; the addresses in its
answer are vetted and remembered before the agent sees them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from typing import TYPE_CHECKING

from .. import dns_wire as wire
from ..agents import Agent
from ..destination import Destination, parse_host
from ..errors import AgentfwError, Denied, DestinationError, HookError, ResolveError
from ..flows import Flow
from .record import FlowRecord

if TYPE_CHECKING:
    from ..runtime import Runtime

RESOLVER = "10.0.2.3"
"""The resolver's address in every guest (/etc/resolv.conf)."""
PORT = 53
HOST = {wire.A: "10.0.2.2", wire.AAAA: "fec0::2"}
"""What an agent is told instead of a loopback address, which in the guest would be the guest itself. It is learnt for the name
like any other; the name is what will be dialled."""

log = logging.getLogger("agentfw.relay")


async def relay_tcp(runtime: Runtime, agent: Agent, flow: Flow, record: FlowRecord) -> None:
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
            record.bytes_up += len(data)
        end = 2 + int.from_bytes(buffer[:2])
        query = bytes(buffer[2:end])
        del buffer[:end]
        reply = await answer(runtime, agent, query, udp=False)
        if not reply:
            flow.reset()
            return
        await flow.send(len(reply).to_bytes(2) + reply)
        record.bytes_down += 2 + len(reply)


async def answer(runtime: Runtime, agent: Agent, query: bytes, *, udp: bool) -> bytes | None:
    """The wire reply to one wire query; None: not a query, say nothing. Does not raise but for cancellation."""
    runtime.counters["dns_queries"] += 1
    if len(query) < 12 or query[2] & 0x80:
        return None
    try:
        question = wire.parse_query(query)
    except wire.WireError as error:
        return wire.make_error(query, None, error.rcode)
    try:
        runtime.traffic(agent).check()
        reply = await _resolve(runtime, agent, query, question)
    except Denied as error:
        runtime.counters["dns_denied"] += 1
        _note(runtime, agent, question, error)
        log.info("%s: dns: %s", agent.name, error, extra={"denied": True})
        return wire.make_error(query, question, wire.REFUSED, wire.EDE_BLOCKED, f"{error} [{error.plugin}]")
    except DestinationError as error:
        runtime.counters["dns_denied"] += 1
        return wire.make_error(query, question, wire.REFUSED, wire.EDE_PROHIBITED, error.reason)
    except ResolveError as error:
        ede = wire.EDE_NO_REACHABLE if error.rcode == wire.SERVFAIL else None
        return wire.make_error(query, question, error.rcode, ede, error.reason)
    except HookError as error:
        _note(runtime, agent, question, error)
        log.error("%s: dns: %s", agent.name, error, exc_info=error.__cause__)
        text = f"plugin {error.plugin} failed in {error.hook}"
        return wire.make_error(query, question, wire.SERVFAIL, wire.EDE_OTHER, text)
    except AgentfwError as error:
        return wire.make_error(query, question, wire.SERVFAIL, wire.EDE_OTHER, str(error))
    except Exception as error:
        _note(runtime, agent, question, error)
        log.exception("%s: dns", agent.name)
        return wire.make_error(query, question, wire.SERVFAIL, wire.EDE_OTHER, "internal error")
    return wire.truncated(reply, question) if udp else reply


def _note(runtime: Runtime, agent: Agent, question: wire.Question, error: Exception) -> None:
    with contextlib.suppress(DestinationError):
        runtime.note(agent, Destination("dns", question_name(question), PORT), error, qtype=str(question.qtype))


async def _resolve(runtime: Runtime, agent: Agent, query: bytes, question: wire.Question) -> bytes:
    name = question_name(question)
    if question.qclass != wire.IN:
        raise DestinationError("class", question.qclass, "only class IN is answered")
    destination = Destination("dns", name, PORT)
    await runtime.plugins.allow(agent, destination)
    reply = await runtime.plugins.resolve(agent, name, question.qtype, query)
    if reply is None:
        raise ResolveError(name, "no plugin resolves names")
    if len(reply) < question.end or len(reply) > 65535 or reply[:2] != query[:2] or not reply[2] & 0x80:
        raise ResolveError(name, "the reply is malformed")
    if question.qtype not in HOST or reply[3] & 15:
        return reply
    return _vetted(runtime, agent, destination, query, question, reply)


def _vetted(
    runtime: Runtime, agent: Agent, destination: Destination, query: bytes, question: wire.Question, reply: bytes
) -> bytes:
    """The reply, without the addresses that may not be dialled; Denied if that leaves none."""
    try:
        found = wire.parse_addresses(reply, query, question).found
    except wire.WireError as error:
        raise ResolveError(destination.host, str(error)) from None
    denied: Denied | None = None
    shown: list[tuple[str, int]] = []
    permitted: list[str] = []
    for address, ttl in found:
        try:
            runtime.check_address(agent, destination, address)
        except Denied as error:
            denied = error
            continue
        permitted.append(address)
        shown.append((HOST[question.qtype] if ipaddress.ip_address(address).is_loopback else address, ttl))
    shown = list(dict(shown).items())
    runtime.learn(agent, destination.host, dict.fromkeys((*permitted, *(address for address, _ in shown))))
    if denied is not None and not permitted:
        raise denied
    if denied is None and [address for address, _ in shown] == permitted:
        return reply
    runtime.counters["dns_addresses_removed"] += len(found) - len(permitted)
    return wire.make_reply(query, question, shown)


def question_name(question: wire.Question) -> str:
    """The question's name, normalised. DestinationError if it is not a host name."""
    try:
        parts = [label.decode("ascii") for label in question.labels]
    except UnicodeDecodeError:
        raise DestinationError("host", b".".join(question.labels), "not ASCII") from None
    if any("." in part for part in parts):  # a dot inside a label would read as another name
        raise DestinationError("host", parts, "a dot inside a label")
    host = parse_host(".".join(parts))
    if ":" in host:
        raise DestinationError("host", host, "an address, not a name")
    return host
