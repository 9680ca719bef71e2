"""Asking the upstream resolvers: UDP first, TCP when it must be, the next server when one fails."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from . import wire

log = logging.getLogger("agentfw.dns")

PLAIN = 3600.0
"""Seconds for which a server that does not understand EDNS is asked without."""
PENALTY = 10.0
"""Seconds for which a server that failed is asked last."""


class UpstreamFailed(Exception):
    """No server gave an answer. `timed_out`: silence rather than refusal."""

    def __init__(self, message: str, *, timed_out: bool) -> None:
        self.timed_out = timed_out
        super().__init__(message)


@dataclass(slots=True)
class Server:
    address: str
    port: int
    plain_until: float = float("-inf")
    """Loop time up to which it is asked without EDNS, since it did not understand it."""
    failed_at: float = float("-inf")

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class _UseTcp(Exception):
    pass


class Exchange:
    """`timeout`: seconds for one try. Every server is tried `rounds` times at most."""

    def __init__(self, servers: Sequence[Server], timeout: float, rounds: int, counters: Counter[str]) -> None:
        self.servers = list(servers)
        self.timeout = timeout
        self.rounds = rounds
        self.counters = counters

    async def ask(self, query: wire.Query) -> wire.Reply:
        """A reply with rcode NOERROR or NXDOMAIN, else the last failing one (SERVFAIL, ...). UpstreamFailed if there is none."""
        if not self.servers:
            raise UpstreamFailed("there is no upstream server", timed_out=False)
        loop = asyncio.get_running_loop()
        bad: wire.Reply | None = None
        silent = 0
        reason = ""
        for round_ in range(self.rounds):
            silent = 0
            now = loop.time()
            for server in sorted(self.servers, key=lambda each: now - each.failed_at < PENALTY):
                try:
                    async with asyncio.timeout(self.timeout * (1 + round_)):
                        reply = await self._ask_server(server, query)
                except TimeoutError:
                    silent += 1
                    reason = f"{server}: no answer"
                except (OSError, EOFError, wire.Malformed) as error:
                    reason = f"{server}: {error or type(error).__name__}"
                else:
                    self.counters["upstream_foreign"] += reply.foreign
                    if not reply.failed:
                        server.failed_at = float("-inf")
                        return reply
                    bad = reply
                    self.counters["upstream_refusals"] += 1
                    if reply.rcode == wire.REFUSED or len(self.servers) > 1:
                        server.failed_at = loop.time()
                    continue
                server.failed_at = loop.time()
                self.counters["upstream_failures"] += 1
                log.debug("upstream %s", reason)
            if bad is not None and not silent:
                break
        if bad is not None:
            return bad
        raise UpstreamFailed(reason, timed_out=bool(silent))

    async def _ask_server(self, server: Server, query: wire.Query) -> wire.Reply:
        message_id = secrets.randbits(16)
        now = asyncio.get_running_loop().time()
        edns = now >= server.plain_until or query.do
        message = wire.upstream_query(query, message_id, edns=edns)
        try:
            reply = await self._udp(server, message, query, message_id)
        except _UseTcp:
            reply = await self._tcp(server, message, query, message_id)
        if reply.rcode in (wire.FORMERR, wire.NOTIMP) and edns and not reply.edns and not query.do:
            server.plain_until = now + PLAIN  # from before RFC 2671, or somebody made it look so
            return await self._ask_server(server, query)
        return reply

    async def _udp(self, server: Server, message: bytes, query: wire.Query, message_id: int) -> wire.Reply:
        """A socket of its own for each question: the kernel picks a random port, and connected it hears this server only."""
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in server.address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sock:
            sock.connect((server.address, server.port))
            sock.send(message)
            self.counters["upstream_udp"] += 1
            data = await loop.sock_recv(sock, 65535)
        try:
            reply = wire.parse_reply(data, query, message_id)
        except wire.Malformed as error:
            # Somebody is guessing, or the server is odd. Over TCP guessing does not help.
            self.counters["upstream_mismatched"] += 1
            log.warning("upstream %s: UDP reply is not ours (%s), using TCP", server, error)
            raise _UseTcp from error
        if reply.truncated:
            self.counters["upstream_truncated"] += 1
            raise _UseTcp
        return reply

    async def _tcp(self, server: Server, message: bytes, query: wire.Query, message_id: int) -> wire.Reply:
        self.counters["upstream_tcp"] += 1
        reader, writer = await asyncio.open_connection(server.address, server.port)
        try:
            writer.write(struct.pack("!H", len(message)) + message)
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            reply = wire.parse_reply(await reader.readexactly(length), query, message_id)
        finally:
            writer.transport.abort()
        if reply.truncated:
            raise wire.Malformed("truncated over TCP")
        return reply
