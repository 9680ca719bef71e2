"""The host's own network stack, behind the same policy: plain TCP, HTTP and UDP, and names that no other plugin resolves.

Names go to the host's getaddrinfo(), so /etc/hosts and whatever the host's resolver does count. Addresses are vetted by the core
(`Runtime.dial`) right before each connect(). Plain HTTP connections are used again, by the same agent.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import dnslib
import msgspec
from agentfw import dns_wire, hookimpl
from agentfw.errors import AgentfwError, ConnectError, ResolveError

from .connections import DatagramUpstream, StreamUpstream, connect_stream
from .idle import IdleConnections

if TYPE_CHECKING:
    from agentfw import Agent, Destination, TlsRequest, Upstream
    from agentfw.agents import ExitReport
    from agentfw.runtime import Runtime

__all__ = ["Config", "Plugin", "connect_stream"]

_FAMILIES = {dnslib.QTYPE.A: socket.AF_INET, dnslib.QTYPE.AAAA: socket.AF_INET6}
_NO_SUCH_NAME = {socket.EAI_NONAME}
_NO_ADDRESS = {getattr(socket, "EAI_NODATA", -5), getattr(socket, "EAI_ADDRFAMILY", -9)}
SWEEP = 5.0
AGENT_LOOKUPS, AGENT_WAITING = 2, 256
"""getaddrinfo() calls of one agent at a time (the event loop has four threads for them, and each may take as long as the host's
resolver is patient), and how many of its questions may wait for that."""
ADDRESSES = 256
"""Of a name, that an agent is told."""

Count = Annotated[int, msgspec.Meta(ge=0, le=65_536)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [native]: plain TCP and UDP, and names that the host resolves."""

    resolve: bool = True
    """Give names to the host's getaddrinfo() when no other plugin answered."""
    ttl: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 30
    """Seconds that an agent may keep such an answer: getaddrinfo() does not tell the real one."""
    connect_timeout: Seconds = 30.0
    """Seconds that a connect() may take."""
    agent_connections: Count = 256
    """Open TCP connections of one agent."""
    agent_datagram_sockets: Count = 256
    """UDP peers that one agent's sockets talk to."""
    idle_connections: Count = 8
    """Plain HTTP connections kept open for one agent's next request; 0: none."""
    idle_timeout: Seconds = 30.0
    """Seconds that they are kept."""


class _Lookups:
    """One agent's."""

    __slots__ = ("pending", "slots")

    def __init__(self) -> None:
        self.pending = 0
        self.slots = asyncio.Semaphore(AGENT_LOOKUPS)


class Plugin:
    """See the module."""

    name = "native"
    config_type = Config

    def __init__(self, config: Config) -> None:
        self._config = config
        self._runtime: Runtime | None = None
        self._counters: Counter[str] = Counter(
            connections=0, datagram_sockets=0, names_resolved=0, reused=0, retired=0, overflow=0
        )
        self._open: dict[str, Counter[str]] = {"streams": Counter(), "datagrams": Counter()}
        """By agent's id."""
        self._lookups: dict[str, _Lookups] = {}
        """By agent's id, of those that have some under way."""
        self._idle = IdleConnections(self._counters)
        self._timer: asyncio.TimerHandle | None = None
        self._configure(config)

    def _configure(self, config: Config) -> None:
        self._config = config
        self._idle.per_agent = config.idle_connections
        self._idle.seconds = config.idle_timeout

    def reconfigure(self, config: Config) -> Callable[[], None]:
        return lambda: self._configure(config)

    @hookimpl
    def start(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._timer = runtime.loop.call_later(SWEEP, self._sweep)

    @hookimpl
    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._idle.drop()

    @hookimpl
    def reloaded(self, runtime: Runtime) -> None:
        """They are vetted again when they are lent; those that nobody asks for would stay."""
        self._idle.drop()

    def _sweep(self) -> None:
        assert self._runtime is not None
        self._idle.sweep()
        self._timer = self._runtime.loop.call_later(SWEEP, self._sweep)

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        self._idle.drop(agent.id)

    @hookimpl(trylast=True)
    async def resolve(self, agent: Agent, name: str, qtype: int, query: bytes) -> bytes | None:
        if not self._config.resolve:
            return None
        family = _FAMILIES.get(qtype)
        if family is None:
            raise ResolveError(name, "getaddrinfo() knows only A and AAAA", dnslib.RCODE.NOTIMP)
        self._counters["names_resolved"] += 1
        found = await self._in_turn(agent, name, family)
        addresses = [(address, self._config.ttl) for address in found[:ADDRESSES]]
        return dns_wire.make_reply(query, dns_wire.parse_query(query), addresses)

    async def _in_turn(self, agent: Agent, name: str, family: int) -> list[str]:
        lookups = self._lookups.setdefault(agent.id, _Lookups())
        if lookups.pending >= AGENT_WAITING:
            self._counters["overflow"] += 1
            raise ResolveError(name, "too many questions of this agent are waiting", dnslib.RCODE.SERVFAIL)
        lookups.pending += 1
        try:
            await lookups.slots.acquire()
        except BaseException:
            self._looked_up(agent.id, lookups)
            raise

        def done(task: asyncio.Task[list[str]]) -> None:
            lookups.slots.release()
            self._looked_up(agent.id, lookups)
            if not task.cancelled():
                task.exception()  # nobody may wait for it any more

        task = asyncio.get_running_loop().create_task(self._addresses(name, family))
        task.add_done_callback(done)
        return await asyncio.shield(task)  # whoever gives up frees no thread

    def _looked_up(self, agent: str, lookups: _Lookups) -> None:
        lookups.pending -= 1
        if not lookups.pending:
            self._lookups.pop(agent, None)

    async def _addresses(self, name: str, family: int) -> list[str]:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, None, family=family, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in _NO_ADDRESS:
                return []
            if error.errno in _NO_SUCH_NAME:
                raise ResolveError(name, "no such name", dnslib.RCODE.NXDOMAIN) from None
            raise ResolveError(name, f"the host's resolver failed: {error.strerror}", dnslib.RCODE.SERVFAIL) from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    @hookimpl(trylast=True)
    async def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> Upstream | None:
        if tls is not None:
            return None
        assert self._runtime is not None, "start() has not been called"
        datagrams = destination.scheme == "udp"
        held = self._open["datagrams" if datagrams else "streams"]
        limit = self._config.agent_datagram_sockets if datagrams else self._config.agent_connections
        if held[agent.id] >= limit:
            self._counters["overflow"] += 1
            raise ConnectError(destination, errno.EAGAIN, "this agent has too many connections open")
        held[agent.id] += 1
        try:
            return await self._lease(agent, destination, held)
        except BaseException:
            _less(held, agent.id)
            raise

    async def _lease(self, agent: Agent, destination: Destination, held: Counter[str]) -> Upstream:
        runtime = self._runtime
        assert runtime is not None
        kept = self._take(runtime, agent, destination) if destination.scheme == "http" else None
        if kept is not None:
            self._counters["reused"] += 1
        else:
            self._counters["datagram_sockets" if destination.scheme == "udp" else "connections"] += 1
        sock = kept or await runtime.dial(agent, destination, self._config.connect_timeout)

        def released(reusable: bool) -> bool:
            _less(held, agent.id)
            if not reusable or destination.scheme != "http" or self._timer is None or self._timer.cancelled():
                return False
            return self._idle.put(sock, agent.id, destination, upstream.address)

        kind = DatagramUpstream if destination.scheme == "udp" else StreamUpstream
        try:
            upstream = kind(sock, destination, released, reused=kept is not None)
        except OSError as error:  # it was closed at once
            sock.close()
            raise ConnectError(destination, error.errno or errno.ECONNRESET) from None
        return upstream

    def _take(self, runtime: Runtime, agent: Agent, destination: Destination) -> socket.socket | None:
        while (found := self._idle.take(agent.id, destination)) is not None:
            sock, address = found
            try:
                runtime.check_address(agent, destination, address)
            except AgentfwError:
                sock.close()
                continue
            return sock
        return None

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return {
            **self._counters,
            "idle": len(self._idle),
            "open": sum(self._open["streams"].values()),
            "open_datagram_sockets": sum(self._open["datagrams"].values()),
        }


def _less(held: Counter[str], agent: str) -> None:
    held[agent] -= 1
    if held[agent] <= 0:
        del held[agent]
