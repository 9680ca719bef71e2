"""The host's own network stack, behind the same policy: plain TCP and UDP, and names that no other plugin resolves.

Names go to the host's getaddrinfo(), so /etc/hosts and whatever the host's resolver does count. Addresses are vetted by the core
(`Runtime.dial`) right before each connect().
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import dnslib
import msgspec
from agentfw import hookimpl
from agentfw.errors import ResolveError

from .connections import connect_datagram, connect_stream

if TYPE_CHECKING:
    from agentfw import Agent, Destination, TlsRequest, Upstream
    from agentfw.runtime import Runtime

_FAMILIES = {dnslib.QTYPE.A: socket.AF_INET, dnslib.QTYPE.AAAA: socket.AF_INET6}
_NO_SUCH_NAME = {socket.EAI_NONAME}
_NO_ADDRESS = {getattr(socket, "EAI_NODATA", -5), getattr(socket, "EAI_ADDRFAMILY", -9)}


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [native]."""

    resolve: bool = True
    """Resolve names with the host's getaddrinfo() when no other plugin has."""
    ttl: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 30
    """Seconds that an agent may keep such an answer: getaddrinfo() does not tell the real one."""
    connect_timeout: Annotated[float, msgspec.Meta(gt=0)] = 30.0


class Plugin:
    """See the module."""

    name = "native"
    config_type = Config

    def __init__(self, config: Config) -> None:
        self._config = config
        self._runtime: Runtime | None = None
        self._counters: Counter[str] = Counter(connections=0, datagram_sockets=0, names_resolved=0)

    @hookimpl
    def start(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @hookimpl(trylast=True)
    async def resolve(self, name: str, qtype: int, query: bytes) -> bytes | None:
        if not self._config.resolve:
            return None
        family = _FAMILIES.get(qtype)
        if family is None:
            raise ResolveError(name, "getaddrinfo() knows only A and AAAA", dnslib.RCODE.NOTIMP)
        self._counters["names_resolved"] += 1
        reply = dnslib.DNSRecord.parse(query).reply(ra=1, aa=0)
        for address in await self._addresses(name, family):
            data = dnslib.A(address) if family == socket.AF_INET else dnslib.AAAA(address)
            reply.add_answer(dnslib.RR(reply.q.qname, qtype, ttl=self._config.ttl, rdata=data))
        return bytes(reply.pack())

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
        sock = await self._runtime.dial(agent, destination, self._config.connect_timeout)
        if destination.scheme == "udp":
            self._counters["datagram_sockets"] += 1
            return await connect_datagram(sock, destination)
        self._counters["connections"] += 1
        return await connect_stream(sock, destination)

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return dict(self._counters)
