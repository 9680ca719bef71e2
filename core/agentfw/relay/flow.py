"""One flow from its opening to its end: which protocol it speaks, and the relay for that."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ..agents import Agent
from ..destination import Destination, parse_address, parse_port
from ..errors import AgentfwError, Denied, DestinationError, HookError, ProtocolError, TlsError
from ..flows import errno_of
from ..metering import MeteredFlow
from ..upstream import TlsRequest, Upstream
from . import dns, own_tls, preface
from .http import HttpRelay
from .raw import relay_raw
from .record import FlowRecord
from .session import LINGER, GuestGone, Session
from .tls_flow import BrokenTls, TlsFlow
from .udp import UdpRelay

if TYPE_CHECKING:
    from ..runtime import Runtime

log = logging.getLogger("agentfw.relay")

SPEAKS_FIRST = 1.0
"""Seconds after which the server is connected to though the guest has said nothing: it may be the server's turn. A busy guest
can be as slow to begin its TLS, and then the connection was in vain; so at the SERVER_FIRST ports, where it never is, nobody
waits."""
SERVER_FIRST = frozenset({21, 22, 25, 110, 119, 143, 587, 2525, 3306, 5900})
HTTP_PORTS = frozenset({80, 443})
"""Here everything that is not TLS must be HTTP."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PRI")
_VERSION = re.compile(rb"HTTP/[0-9]")
_WORD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]*")
_BLANKS = b"\r\n\t "
_NOT_TEXT = re.compile(rb"[^\t\n\r -~]")
_LONGEST_LINE = 40000

Speaks = Literal["preface", "hello", "http", "raw"]


async def relay(runtime: Runtime, agent: Agent, flow: MeteredFlow) -> None:
    """Serve a flow until it ends. Cancelling resets it; nothing else is raised."""
    runtime.counters[f"flows_{flow.kind}"] += 1
    record = FlowRecord(flow.kind, flow.port, runtime.loop.time())
    try:
        await (_udp if flow.kind == "udp" else _tcp)(runtime, agent, flow, record)
    except asyncio.CancelledError as error:
        record.failed(error)
        flow.reset()
        raise
    except (GuestGone, BrokenPipeError):
        pass
    except (AgentfwError, OSError) as error:
        _note(runtime, agent, flow, record, error)
        flow.reset(errno_of(error))
    except Exception as error:  # ours or a plugin's mistake costs this flow only
        runtime.counters["flows_broken"] += 1
        runtime.plugins.failures.tell(log, error, "%s: %s port %s", agent.name, flow.address, flow.port)
        record.error = record.error or type(error).__name__  # its message may quote a header
        runtime.note(agent, record.destination, error, address=flow.address, port=str(flow.port))
        flow.reset()
    finally:
        flow.close()
        flow.end()
        record.end(runtime, agent)


def _note(runtime: Runtime, agent: Agent, flow: MeteredFlow, record: FlowRecord, error: AgentfwError | OSError) -> None:
    """Count, log and report what a flow failed of."""
    record.failed(error)
    runtime.note(agent, record.destination, error, address=flow.address, port=str(flow.port))
    if isinstance(error, HookError):
        runtime.counters["flows_broken"] += 1
        runtime.plugins.failures.tell(log, error, "%s: %s port %s: %s", agent.name, flow.address, flow.port, error)
    elif isinstance(error, Denied):
        runtime.counters["flows_denied"] += 1
        log.info("%s: %s port %s: %s [%s]", agent.name, flow.address, flow.port, error, error.plugin, extra={"denied": True})
    else:
        runtime.counters["flows_failed"] += 1
        log.info("%s: %s port %s: %s", agent.name, flow.address, flow.port, error)


async def _udp(runtime: Runtime, agent: Agent, flow: MeteredFlow, record: FlowRecord) -> None:
    flow.opened()
    await UdpRelay(runtime, agent, flow, record).run()


async def _tcp(runtime: Runtime, agent: Agent, flow: MeteredFlow, record: FlowRecord) -> None:
    try:
        address, _ = parse_address(flow.address), parse_port(flow.port)
    except DestinationError:
        flow.failed(errno.EADDRNOTAVAIL)
        return
    if address == dns.RESOLVER:
        if flow.port != dns.PORT:
            flow.failed(errno.ECONNREFUSED)
            return
        flow.enforcing = False
        flow.opened()
        record.kind = "dns"
        await dns.relay_tcp(runtime, agent, flow, record)
        return
    session = Session(runtime, agent, flow, address, record)
    try:
        await _anything_permitted(session)
        flow.traffic.connect()
    except AgentfwError as error:
        _note(runtime, agent, flow, record, error)
        flow.failed(errno.EACCES if isinstance(error, Denied) else errno.ECONNREFUSED)
        return
    try:
        flow.opened()
        session.watch()
        with session.use:
            await _speak(session)
    finally:
        flow.traffic.disconnect()
        session.end()


async def _anything_permitted(session: Session) -> None:
    """Denied if whatever the flow turns out to be, none of the hosts it can mean is permitted."""
    denied: Denied | None = None
    for scheme in ("https", "http", "tls", "tcp"):
        try:
            await session.permitted(scheme)
            return
        except Denied as error:
            denied = denied or error
    assert denied is not None
    raise denied


async def _speak(session: Session, destination: Destination | None = None, tls: TlsRequest | None = None) -> None:
    """Find out what the guest says (inside its offloaded TLS, if `tls` is given) and relay it."""
    http_only = session.flow.port in HTTP_PORTS or (tls is not None and any(name.startswith("http/") for name in tls.alpn))
    upstream: Upstream | None = None
    answer: asyncio.Task[bytes] | None = None
    try:
        if not http_only and not session.buffer and not await _guest_speaks(session):
            try:
                upstream = await _connect_raw(session, destination, tls)
            except AgentfwError as error:  # it may be about to say something that is permitted
                log.debug("%s: port %s: %s", session.agent.name, session.flow.port, error)
            else:
                answer = asyncio.get_running_loop().create_task(upstream.receive())
                await asyncio.wait([answer, session.begin_fill()], return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    await relay_raw(session, upstream, answer)
                    return
                session.take_fill()
        speaks = await _classify(session, http_only, tls is not None)
        if speaks == "raw":
            upstream = upstream or await _connect_raw(session, destination, tls)
            await relay_raw(session, upstream, answer)
            return
    finally:
        if answer is not None:
            answer.cancel()
        if upstream is not None:
            upstream.release()
    if speaks == "preface":
        await _offloaded(session)
    elif speaks == "hello":
        await _own_tls(session)
    else:
        session.record.kind = "http"
        await HttpRelay(session, destination, tls).run()


async def _guest_speaks(session: Session) -> bool:
    """The guest's first bytes, or its end, come soon."""
    filling = session.begin_fill()
    await asyncio.wait([filling], timeout=0.02 if session.flow.port in SERVER_FIRST else SPEAKS_FIRST)
    if filling.done():
        session.take_fill()
        return True
    return False


async def _connect_raw(session: Session, destination: Destination | None, tls: TlsRequest | None) -> Upstream:
    """For bytes that nobody will look at; inside TLS that needs the same permission as TLS passed through."""
    if destination is None:
        destination = session.record.destination = await session.permitted("tcp")
        session.aim(destination)
        return await session.connect(destination, None, linger=LINGER)
    as_passed = Destination("tls", destination.host, destination.port)
    await session.runtime.plugins.allow(session.agent, as_passed)
    return await session.connect(destination, tls, as_passed, linger=LINGER)


async def _classify(session: Session, http_only: bool, inside_tls: bool) -> Speaks:
    while True:
        speaks = classify(session.buffer, session.ended, http_only, inside_tls)
        if speaks is not None:
            return speaks
        try:
            await session.fill()
        except Denied as error:
            if not http_only:
                raise
            session.refused = error
            return "http"  # which can tell


def classify(buffer: bytes | bytearray, ended: bool, http_only: bool, inside_tls: bool) -> Speaks | None:
    """What a stream that begins with `buffer` is; None: more bytes are needed.

    Anything that a server might take for HTTP is "http", so that it meets the strict parser there and not a raw relay.
    """
    unclear: Speaks | None = None if not ended else "http" if http_only else "raw"
    if not buffer:
        return unclear
    if not inside_tls:
        if preface.MAGIC.startswith(buffer[: len(preface.MAGIC)]):
            return "preface" if len(buffer) >= len(preface.MAGIC) else unclear
        if buffer[0] == 0x16 and buffer[1:2] in (b"", b"\x03"):
            return "hello" if len(buffer) > 1 else unclear
    if http_only:
        return "http"
    if not inside_tls and buffer[0] & 0x80 and (old := _old_hello(buffer)) is not False:
        return "hello" if old else unclear
    text = bytes(buffer.lstrip(_BLANKS))
    match = _WORD.match(text)
    word = match[0].decode().upper() if match else ""
    if len(word) == len(text) and not any(method.startswith(word) for method in _METHODS):
        return unclear if len(text) < _LONGEST_LINE else "raw"  # no end of the word yet
    if word in _METHODS and len(text) > len(word):
        return "http"
    if len(word) == len(text):  # nothing but blanks, or a method and no more
        return unclear if len(buffer) < _LONGEST_LINE else "raw"
    if not word:
        return "raw"
    line, newline, _ = text.partition(b"\n")
    if _VERSION.search(line):
        return "http"
    if newline or len(text) > _LONGEST_LINE or _NOT_TEXT.search(line):
        return "raw"
    return unclear


def _old_hello(buffer: bytes | bytearray) -> bool | None:
    """It is a ClientHello in the form of SSL 2.0 (RFC 5246, E.2), in which OpenSSL's servers still take TLS 1.2: no server name
    can be read there, so it must not pass as bytes that are no TLS. None: more bytes are needed."""
    size = int.from_bytes(buffer[:2]) & 0x7FFF if len(buffer) > 1 else 0x7FFF
    if size < 12 or buffer[2:3] not in (b"", b"\x01") or buffer[3:4] not in (b"", b"\x03"):
        return False
    if len(buffer) < 11:
        return None
    ciphers, session, challenge = (int.from_bytes(buffer[at : at + 2]) for at in (5, 7, 9))
    return ciphers % 3 == 0 and 9 + ciphers + session + challenge == size


async def _offloaded(session: Session) -> None:
    """The TLS of the guest's `_ssl`: preface, real handshake, answer, then plaintext."""
    while (length := preface.preface_length(session.buffer)) is None or len(session.buffer) < length:
        if not await session.fill():
            raise ProtocolError("the TLS preface was cut off")
    hello_ = preface.parse_preface(session.take(length))
    try:
        destination, tls = await _tls_wanted(session, hello_)
        session.record.kind, session.record.destination = "tls", destination
        session.aim(destination)
        upstream = await session.connect(destination, replace(tls, probe=True))
        info, reused = upstream.tls, upstream.reused
        upstream.release(reusable=True)
        assert info is not None  # Runtime.connect() saw to it
    except AgentfwError as error:
        session.count("tls_refused")
        _note(session.runtime, session.agent, session.flow, session.record, error)
        await session.tell(preface.refused(error))
        session.flow.send_eof()
        return
    session.count("tls_offloaded")
    await session.send(preface.accepted(info, resumed=reused or info.resumed))
    await _speak(session, destination, tls)


async def _tls_wanted(session: Session, wish: preface.Preface) -> tuple[Destination, TlsRequest]:
    alpn = tuple(name for name in wish.alpn if name not in own_tls.NOT_SPOKEN)
    if wish.alpn and not alpn:
        raise TlsError("none of the application protocols offered is spoken here", reason="NO_APPLICATION_PROTOCOL")
    if wish.server_name is None:
        destination = await session.permitted("https")
    else:
        destination = Destination.make("https", wish.server_name, session.flow.port)
    return destination, TlsRequest(
        server_name=None if destination.is_address else destination.host,
        alpn=alpn,
        verify=wish.verify,
        check_hostname=wish.check_hostname,
        cas=wish.certificates(),
        public=wish.public,
        minimum=max(wish.min, 0),
        maximum=max(wish.max, 0),
    )


async def _own_tls(session: Session) -> None:
    """The agent's own TLS, as the `own_tls` hooks say. A refusal is an alert that its library can show."""
    upstream: Upstream | None = None
    request: TlsRequest | None = None
    session.record.kind = "tls"
    try:
        message = await own_tls.read_hello(session)
        verdict, destination = await own_tls.decide(session, message)
        session.use.own_tls = verdict
        if verdict == "intercept":
            request = await own_tls.intercept(session, message, destination)
        else:
            session.aim(destination)
            upstream = await session.connect(destination, None)
    except AgentfwError as error:
        session.count("tls_refused")
        _note(session.runtime, session.agent, session.flow, session.record, error)
        await session.tell(own_tls.alert(error))
        session.flow.send_eof()
        return
    if upstream is not None:
        session.count("tls_passed_through")
        await relay_raw(session, upstream)
    elif request is not None:
        await _intercepted(session, destination, request)


async def _intercepted(session: Session, destination: Destination, request: TlsRequest) -> None:
    """What the agent says inside TLS that ends here."""
    inside = session.flow.flow
    assert isinstance(inside, TlsFlow)
    try:
        await _speak(session, destination, request)
    except (GuestGone, BrokenTls) as error:
        if isinstance(error, BrokenTls):
            session.count("tls_broken")
            session.record.failed(error)
            log.info("%s: %s: %s", session.agent.name, destination, error)
    except BaseException:
        inside.reset()
        raise
    await inside.finish()
