"""TLS that agents make themselves (rustls, BoringSSL, OpenSSL linked into a wheel): passed through, intercepted or refused.

Intercepting is being the server: the client is shown a leaf of the fleet's authority for the name it wants, and what it says goes
the way of offloaded TLS, so that hooks see its requests. Only after the real peer has been verified: a client must not be told
that all is well with a server that it would have refused.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ..agents import Agent
from ..destination import Destination, parse_host
from ..errors import AgentfwError, Denied, DestinationError, ProtocolError, TlsError
from ..upstream import TlsInfo, TlsRequest
from . import hello
from .session import Session, permitted
from .tls_flow import TlsFlow

if TYPE_CHECKING:
    from ..fleet_ca import FleetCa
    from ..runtime import Runtime

HANDSHAKE_SECONDS = 20.0
"""For the client's part; the real peer's comes before."""
RATE, BURST = 100.0, 200.0
"""Intercepted handshakes of one agent a second, and at once; more of them wait. Each costs about half a millisecond."""
MAX_WAITING = 1024
"""Agents whose handshakes are counted; far more than run at a time."""
MAX_NOTES = 64

NOT_SPOKEN = frozenset({"h2", "h2c", "h3"})
"""Application protocols that are not relayed; agents fall back to HTTP/1.1, where request hooks see what they say."""

# Alert descriptions, RFC 8446 section 6.
_HANDSHAKE_FAILURE, _BAD_CERTIFICATE, _EXPIRED, _UNKNOWN_CA = 40, 42, 45, 48
_ACCESS_DENIED, _PROTOCOL_VERSION, _INTERNAL_ERROR, _NO_APPLICATION_PROTOCOL = 49, 70, 80, 120
# X509_V_ERR_*: not yet valid and expired; no issuer that is trusted.
_TIMES, _ISSUERS = frozenset({9, 10}), frozenset({2, 18, 19, 20, 21, 27})

Verdict = Literal["passthrough", "intercept"]

log = logging.getLogger("agentfw.relay")


class Interceptor:
    """What intercepted connections of one runtime share: the authority, each agent's share of the worker's time, notes given."""

    def __init__(self) -> None:
        self._authority: FleetCa | None = None
        self._turns: OrderedDict[str, float] = OrderedDict()
        self._noted: set[str] = set()

    @property
    def authority(self) -> FleetCa:
        """Made when it is first asked for."""
        if self._authority is None:
            from ..fleet_ca import FleetCa  # 30 ms, and few fleets need it

            self._authority = FleetCa()
        return self._authority

    async def turn(self, agent: Agent) -> None:
        """Wait until this agent may have another handshake: a leaky bucket of BURST that runs out at RATE a second."""
        now = asyncio.get_running_loop().time()
        turn = max(self._turns.get(agent.id, 0.0), now - BURST / RATE) + 1 / RATE
        self._turns[agent.id] = turn
        self._turns.move_to_end(agent.id)
        if len(self._turns) > MAX_WAITING:
            self._turns.popitem(last=False)
        if turn > now:
            await asyncio.sleep(turn - now)

    def forget(self, agent: Agent) -> None:
        self._turns.pop(agent.id, None)

    def note(self, text: str, about: str) -> None:
        """A line for the operator, once for each destination."""
        if about not in self._noted and len(self._noted) < MAX_NOTES:
            self._noted.add(about)
            log.warning("%s", text)


def alert(error: AgentfwError) -> bytes:
    """A fatal alert record that says about `error` as much as TLS can."""
    code = _INTERNAL_ERROR
    if isinstance(error, (Denied, DestinationError, ProtocolError)):
        code = _ACCESS_DENIED
    elif isinstance(error, TlsError):
        if error.verify_code:
            code = _EXPIRED if error.verify_code in _TIMES else _UNKNOWN_CA if error.verify_code in _ISSUERS else _BAD_CERTIFICATE
        elif error.reason == "NO_APPLICATION_PROTOCOL":
            code = _NO_APPLICATION_PROTOCOL
        elif error.reason in ("NO_PROTOCOLS_AVAILABLE", "UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"):
            code = _PROTOCOL_VERSION
        else:
            code = _HANDSHAKE_FAILURE
    return b"\x15\x03\x03\0\2\2" + bytes([code])


async def read_hello(session: Session) -> bytes:
    """The ClientHello at the start of the session's bytes, which stay there. ProtocolError."""
    while (message := hello.client_hello(session.buffer)) is None:
        if not await session.fill():
            raise ProtocolError("the ClientHello was cut off")
    return message


async def decide(session: Session, message: bytes) -> tuple[Verdict, Destination]:
    """Whom the client means, and what to do with its TLS. Denied, ProtocolError, DestinationError, HookError.

    Without a server name: the newest permitted name that the address was given for, else the address.
    """
    name = hello.server_name(message)
    denied: Denied | None = None
    for host in session.hosts if name is None else [parse_host(name)]:
        destination = session.record.destination = Destination.make("tls", host, session.flow.port)
        try:
            verdict = await session.runtime.plugins.own_tls(session.agent, destination)
            if verdict == "passthrough":
                hello.check_open(message)  # whom we intercept means its outer name: we have no key for an inner one
            scheme = "https" if verdict == "intercept" else "tls"
            destination = await permitted(session.runtime, session.agent, scheme, [host], session.flow.port)
            session.record.destination = destination
            return verdict, destination
        except Denied as error:
            denied = denied or error
    assert denied is not None
    raise denied


async def intercept(session: Session, message: bytes, destination: Destination) -> TlsRequest | None:
    """Become the server of the client's TLS: `session` reads and writes plaintext from here on.

    None: the client did not like the handshake; its flow is at its end. TlsError, ConnectError, Denied, ...: before a byte of
    ours went out, so that an alert can be sent.
    """
    runtime, agent = session.runtime, session.agent
    offered = hello.alpn(message)
    request = wanted(runtime, agent, destination, offered)
    async with session.until_closed():
        await runtime.interceptor.turn(agent)
    session.aim(destination)
    upstream = await session.connect(destination, replace(request, probe=True))
    info = upstream.tls
    upstream.release(reusable=True)
    assert info is not None  # Runtime.connect() saw to it
    flow = TlsFlow(session.flow.flow, runtime.interceptor.authority.context(destination, _alpn(info, request)))
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):  # not until it closes: its alert may be the last that it says
            await flow.handshake(session.take(len(session.buffer)))
    except (ssl.SSLError, TimeoutError, EOFError, BrokenPipeError) as error:
        session.count("tls_interception_failed")
        session.record.failed(error)
        _explain(runtime, agent, destination, error)
        await flow.finish()
        return None
    session.count("tls_intercepted")
    session.flow.flow = flow  # what is inside is metered, as where the host makes the TLS
    return request


def wanted(runtime: Runtime, agent: Agent, destination: Destination, offered: tuple[str, ...]) -> TlsRequest:
    """What to ask of the real peer on the client's behalf. TlsError if it speaks HTTP/2 only."""
    alpn = tuple(name for name in offered if name not in NOT_SPOKEN)
    if offered and not alpn:
        text = f"offers only {', '.join(dict.fromkeys(offered))} over TLS of its own, and what is intercepted is HTTP/1.1"
        hint = "switch HTTP/2 off in it, or let it pass through"
        runtime.interceptor.note(f"{agent.name}: a client for {destination.host} {text}: {hint}", f"alpn {destination}")
        raise TlsError(f"the client {text}", reason="NO_APPLICATION_PROTOCOL")
    return TlsRequest(server_name=None if destination.is_address else destination.host, alpn=alpn)


def _alpn(info: TlsInfo, request: TlsRequest) -> str | None:
    """As the real peer chose."""
    return info.alpn if info.alpn in request.alpn else None


def _explain(runtime: Runtime, agent: Agent, destination: Destination, error: Exception) -> None:
    reason = str(getattr(error, "reason", None) or "") or type(error).__name__
    if "ALERT" in reason and ("UNKNOWN_CA" in reason or "CERTIFICATE" in reason):
        text = f"{agent.name}: a client for {destination.host} does not trust the fleet's authority ({reason.lower()})"
        runtime.interceptor.note(
            f"{text}: it brings roots of its own, or pins a certificate; let it pass through", f"trust {destination}"
        )
    else:
        log.info("%s: own TLS to %s: %s", agent.name, destination, reason.lower().replace("_", " "))
