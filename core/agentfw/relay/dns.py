"""A guest's resolver: questions out of UDP or TCP flows to the `resolve` hooks, their replies back as they are.

An agent's question is checked (one question, a host name that policy allows) before any plugin sees it; the addresses in its
answer are vetted and remembered before the agent sees them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import time
from typing import TYPE_CHECKING

from .. import dns_reply
from .. import dns_wire as wire
from ..agents import Agent
from ..destination import Destination, is_address, parse_host
from ..errors import AgentfwError, Denied, DestinationError, HookError, ResolveError
from ..flows import Flow
from ..reports import QuestionReport, shown
from .record import FlowRecord, describe
from .vet import HOST, vetted

if TYPE_CHECKING:
    from ..runtime import Runtime

RESOLVER = "10.0.2.3"
"""The resolver's address in every guest (/etc/resolv.conf)."""
PORT = 53
MAX_QUESTIONS = 64
"""Of one TCP connection that are being answered at once; the next are not read before."""
REVERSE_TTL = 60
STAND_IN_TTL = 300

log = logging.getLogger("agentfw.relay")


async def relay_tcp(runtime: Runtime, agent: Agent, flow: Flow, record: FlowRecord) -> None:
    """Questions with two bytes of length before each (RFC 1035, 4.2.2), answered as the answers come (RFC 7766, 6.2.1.1): a
    slow one holds up no other."""
    buffer = bytearray()
    tasks: set[asyncio.Task[None]] = set()
    sending = asyncio.Lock()
    lost = False

    async def serve(query: bytes) -> None:
        nonlocal lost
        reply = await answer(runtime, agent, query, udp=False)
        if not reply:  # whoever sends what is no question has lost its place in the stream
            lost = True
            return
        with contextlib.suppress(BrokenPipeError):
            async with sending:
                await flow.send(len(reply).to_bytes(2) + reply)
                record.bytes_down += 2 + len(reply)

    try:
        while not lost and (query := await _next(flow, buffer, record)) is not None:
            if len(tasks) >= MAX_QUESTIONS:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.get_running_loop().create_task(serve(query))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(0)  # what is there is answered in order, and nothing read behind what is no question
        if not lost and tasks:
            await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if lost:
        flow.reset()
    else:
        flow.send_eof()
        flow.close()


async def _next(flow: Flow, buffer: bytearray, record: FlowRecord) -> bytes | None:
    """A message out of the stream; None: it has ended."""
    while len(buffer) < 2 or len(buffer) < 2 + int.from_bytes(buffer[:2]):
        data = await flow.receive()
        if not data:
            return None
        buffer += data
        record.bytes_up += len(data)
    end = 2 + int.from_bytes(buffer[:2])
    query = bytes(buffer[2:end])
    del buffer[:end]
    return query


async def answer(runtime: Runtime, agent: Agent, query: bytes, *, udp: bool) -> bytes | None:
    """The wire reply to one wire query; None: not a query, say nothing. Does not raise but for cancellation."""
    runtime.counters["dns_queries"] += 1
    if len(query) < 12 or query[2] & 0x80:
        return None
    began = time.perf_counter()
    try:
        question = (_read_and_kept if len(query) <= MAX_KEPT else _read)(bytes(query[2:]))
    except wire.WireError as error:
        return wire.make_error(query, error.question, error.rcode)
    reply, failure = await _answered(runtime, agent, query, question)
    if udp and failure is None:
        reply = wire.truncated(reply, question)
    seconds = time.perf_counter() - began
    runtime.durations.dns.observe(seconds)
    if runtime.plugins.implemented("question_end"):
        _tell(runtime, agent, question, reply, failure, began, seconds)
    return reply


def _tell(
    runtime: Runtime, agent: Agent, question: wire.Question, reply: bytes, failure: Exception | None, began: float, seconds: float
) -> None:
    report = QuestionReport(
        name=shown_name(question),
        qtype=question.qtype,
        rcode=reply[3] & 15,
        reply=reply,
        began=began,
        seconds=seconds,
        error="" if failure is None else describe(failure) if isinstance(failure, AgentfwError) else type(failure).__name__,
        denied_rule=shown(failure.rule) if isinstance(failure, Denied) else "",
    )
    runtime.plugins.question_end(agent, report)


@functools.lru_cache(maxsize=4096)
def shown_name(question: wire.Question) -> str:
    """The question's name as people read it, whatever is in it."""
    return shown(b".".join(question.labels).decode("ascii", "backslashreplace").lower() or ".", 300)


async def _answered(runtime: Runtime, agent: Agent, query: bytes, question: wire.Question) -> tuple[bytes, Exception | None]:
    """-> the reply, and why it is none that was asked for."""
    try:
        runtime.traffic(agent).check()
        reply = await _resolve(runtime, agent, query, question)
    except Denied as error:
        runtime.counters["dns_denied"] += 1
        _note(runtime, agent, question, error)
        log.info("%s: dns: %s", agent.name, error, extra={"denied": True})
        return wire.make_error(query, question, wire.REFUSED, wire.EDE_BLOCKED, f"{error} [{error.plugin}]"), error
    except DestinationError as error:
        runtime.counters["dns_denied"] += 1
        return wire.make_error(query, question, wire.REFUSED, wire.EDE_PROHIBITED, error.reason), error
    except ResolveError as error:
        ede = wire.EDE_NO_REACHABLE if error.rcode == wire.SERVFAIL else None
        return wire.make_error(query, question, error.rcode, ede, error.reason), error
    except HookError as error:
        _note(runtime, agent, question, error)
        runtime.plugins.failures.tell(log, error, "%s: dns: %s", agent.name, error)
        text = f"plugin {error.plugin} failed in {error.hook}"
        return wire.make_error(query, question, wire.SERVFAIL, wire.EDE_OTHER, text), error
    except AgentfwError as error:
        return wire.make_error(query, question, wire.SERVFAIL, wire.EDE_OTHER, str(error)), error
    except Exception as error:
        _note(runtime, agent, question, error)
        runtime.plugins.failures.tell(log, error, "%s: dns", agent.name)
        return wire.make_error(query, question, wire.SERVFAIL, wire.EDE_OTHER, "internal error"), error
    return reply, None


def _read(tail: bytes) -> wire.Question:
    """What is behind the ID."""
    return wire.parse_query(b"\0\0" + tail)


_read_and_kept = functools.lru_cache(maxsize=4096)(_read)  # resolvers ask the same again and again
MAX_KEPT = 512


def _note(runtime: Runtime, agent: Agent, question: wire.Question, error: Exception) -> None:
    with contextlib.suppress(DestinationError):
        runtime.note(agent, Destination("dns", question_name(question), PORT), error, qtype=str(question.qtype))


async def _resolve(runtime: Runtime, agent: Agent, query: bytes, question: wire.Question) -> bytes:
    name = question_name(question)
    if question.qclass != wire.IN:
        raise DestinationError("class", question.qclass, "only class IN is answered")
    if question.qtype in wire.META_TYPES:
        raise DestinationError("type", question.qtype, "it asks for no data of a name (transfers, ANY, ...)")
    if question.qtype == wire.PTR:
        known = await _told(runtime, agent, name)
        if known is not None:
            return _pointer(query, question, known)
    destination = Destination("dns", name, PORT)
    await runtime.plugins.allow(agent, destination)
    if question.qtype in HOST:
        told = runtime.plugins.stand_in(agent, name, question.qtype)
        if told is not None:
            return _stood_in(runtime, agent, name, query, question, told)
    reply = await runtime.plugins.resolve(agent, name, question.qtype, query)
    if reply is None:
        raise ResolveError(name, "no plugin resolves names")
    try:
        return vetted(runtime, agent, destination, query, question, reply)
    except wire.WireError as error:
        runtime.counters["dns_bad_replies"] += 1
        raise ResolveError(name, f"a malformed reply: {error}") from None


def _stood_in(runtime: Runtime, agent: Agent, name: str, query: bytes, question: wire.Question, told: tuple[str, ...]) -> bytes:
    version = 4 if question.qtype == wire.A else 6
    for address in told:
        if ipaddress.ip_address(address).version != version or not runtime.is_reserved(address):
            raise ValueError(f"{address} cannot stand for a name: it is not in a reserved network, or of the wrong kind")
    runtime.learn(agent, name, told)
    runtime.counters["dns_stand_ins"] += 1
    return wire.make_reply(query, question, [(address, STAND_IN_TTL) for address in told])


async def _told(runtime: Runtime, agent: Agent, name: str) -> str | None:
    """The (still permitted) name that the agent was given this address for, if `name` is an address's reverse. Nothing that it
    does not know already, and nobody else is asked."""
    address = reversed_address(name)
    for known in runtime.hosts(agent, address)[:-1] if address else ():
        with contextlib.suppress(Denied):
            await runtime.plugins.allow(agent, Destination("dns", known, PORT))
            return known
    return None


def reversed_address(name: str) -> str | None:
    """The canonical address that a name under in-addr.arpa or ip6.arpa stands for (RFC 1035, 3.5; RFC 3596, 2.5)."""
    with contextlib.suppress(ValueError):
        if name.endswith(".in-addr.arpa"):
            return str(ipaddress.IPv4Address(".".join(reversed(name.split(".")[:-2]))))
        digits = name.removesuffix(".ip6.arpa")
        if digits != name and len(digits) == 63 and set(digits[1::2]) == {"."}:
            return str(ipaddress.IPv6Address(int(digits[::-2], 16).to_bytes(16)))
    return None


def _pointer(query: bytes, question: wire.Question, name: str) -> bytes:
    data = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    record = dns_reply.Record(dns_reply.ANSWER, question.key, question.key, wire.PTR, wire.IN, REVERSE_TTL, data)
    flags = 0x8080 | int.from_bytes(query[2:4]) & 0x0110
    return dns_reply.written(query[:2], flags, query[12 : question.end], [record], wire.opt_for(question))[0]


@functools.lru_cache(maxsize=4096)
def question_name(question: wire.Question) -> str:
    """The question's name, normalised. DestinationError if it is not a host name."""
    try:
        parts = [label.decode("ascii") for label in question.labels]
    except UnicodeDecodeError:
        raise DestinationError("host", b".".join(question.labels), "not ASCII") from None
    if any("." in part for part in parts):  # a dot inside a label would read as another name
        raise DestinationError("host", parts, "a dot inside a label")
    host = parse_host(".".join(parts))
    if is_address(host):
        raise DestinationError("host", host, "an address, not a name")
    return host
