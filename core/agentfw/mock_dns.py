"""A DNS authority on this machine for tests and examples: UDP and TCP, settable answers, counters, every kind of bad behaviour.

    async with MockDNS({"api.openai.com": "127.0.0.1"}) as dns:
        dns.set("slow.test", "A", "192.0.2.1", delay=0.5)
        ... ask 127.0.0.1:{dns.port} ...
        dns.asked("api.openai.com", "A")

Names it does not know are NXDOMAIN, types it does not know NODATA, both with a SOA.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import dnslib

from .mock_llm.thread import ServerThread


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a (name, type) is answered. `values`: record data as in a zone file."""

    values: tuple[str, ...] = ()
    ttl: int = 60
    rcode: int = 0
    delay: float = 0.0
    """Seconds."""
    truncate: bool = False
    """Over UDP: TC and no records."""
    wrong_id: bool = False
    """Over UDP: a reply with another ID comes first (and the right one right after it)."""
    other_question: bool = False
    """Over UDP: a reply to another question with the right ID comes, nothing else."""
    drop: int = 0
    """Leave this many UDP queries without an answer."""
    garbage: bool = False
    """Over UDP: bytes that are no DNS message (but begin with the right ID)."""
    no_edns: bool = False
    """FORMERR to a query with EDNS."""
    soa: tuple[int, int] | None = (60, 60)
    """(TTL, minimum) of the SOA (the top-level domain's) in a negative answer; None: no SOA."""
    extra: tuple[str, ...] = ()
    """Further answer records, whole lines of a zone file."""


class MockDNS:
    """`zone`: A records to begin with."""

    def __init__(self, zone: Mapping[str, str] | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self._port = port
        self._zone: dict[str, dict[int, Behaviour]] = {}
        self._servers: list[asyncio.Server] = []
        self._udp: asyncio.DatagramTransport | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.queries: Counter[tuple[str, str]] = Counter()
        """By (name as asked, in lower case; type)."""
        self.udp_queries = 0
        self.tcp_queries = 0
        self.seen: list[bytes] = []
        """The newest 1,000 queries, on the wire."""
        self.ports: list[int] = []
        """Their source ports."""
        for name, address in (zone or {}).items():
            self.set(name, "A", address)

    @property
    def port(self) -> int:
        if not self._servers:
            raise RuntimeError("the mock DNS server has not been started")
        return self._port

    @property
    def address(self) -> str:
        """ "host:port", as `[dns] upstream` takes it."""
        return f"{self.host}:{self.port}"

    def set(self, name: str, qtype: str, *values: str, **behaviour: Any) -> None:
        """Answer `name`/`qtype` so from now on; keywords are `Behaviour`'s fields. Raises dnslib's DNSError for bad data."""
        by_type = self._zone.setdefault(name.lower().rstrip("."), {})
        made = Behaviour(values, **behaviour)
        for line in (*(f"{name} 1 IN {qtype} {value}" for value in made.values), *made.extra):
            dnslib.RR.fromZone(line)  # a mistake is the caller's, and better told here
        by_type[dnslib.QTYPE.reverse[qtype]] = made

    def remove(self, name: str) -> None:
        del self._zone[name.lower().rstrip(".")]

    def asked(self, name: str, qtype: str = "A") -> int:
        """How often this question came, in any case of letters."""
        return self.queries[name.lower().rstrip("."), qtype]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(50):  # a port that is free for both
            server = await asyncio.start_server(self._tcp_client, self.host, self._port)
            port: int = server.sockets[0].getsockname()[1]
            try:
                transport, _protocol = await loop.create_datagram_endpoint(lambda: _Udp(self), local_addr=(self.host, port))
            except OSError:
                server.close()
                if self._port:
                    raise
                continue
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            self._udp = transport
            self._servers = [server]
            self._port = port
            return
        raise OSError("no port is free for both UDP and TCP")

    async def close(self) -> None:
        """Idempotent."""
        for server in self._servers:
            server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        if self._udp:
            self._udp.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_udp(self, data: bytes, peer: Any) -> None:
        self.udp_queries += 1
        self._note(data, peer)
        assert self._udp
        for reply in await self._replies(data, udp=True):
            self._udp.sendto(reply, peer)

    async def _tcp_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                (length,) = struct.unpack("!H", await reader.readexactly(2))
                data = await reader.readexactly(length)
                self.tcp_queries += 1
                self._note(data, writer.get_extra_info("peername"))
                for reply in await self._replies(data, udp=False):
                    writer.write(struct.pack("!H", len(reply)) + reply)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    def _note(self, data: bytes, peer: Any) -> None:
        self.seen = [*self.seen[-999:], data]
        self.ports = [*self.ports[-999:], peer[1]]

    async def _replies(self, data: bytes, *, udp: bool) -> list[bytes]:
        try:
            query = dnslib.DNSRecord.parse(data)
        except dnslib.DNSError:
            return []
        name = str(query.q.qname).rstrip(".").lower()
        qtype: str = dnslib.QTYPE[query.q.qtype]
        self.queries[name, qtype] += 1
        by_type = self._zone.get(name)
        behaviour = None if by_type is None else by_type.get(query.q.qtype)
        if behaviour and behaviour.drop and udp:
            assert by_type is not None
            by_type[query.q.qtype] = replace(behaviour, drop=behaviour.drop - 1)
            return []
        if behaviour and behaviour.delay:
            await asyncio.sleep(behaviour.delay)
        reply = self._reply(query, name, qtype, behaviour, known=by_type is not None)
        if behaviour is None or not udp:
            return [reply]
        if behaviour.truncate:
            short = query.reply()
            short.header.tc = 1
            return [bytes(short.pack())]
        if behaviour.wrong_id:
            forged = bytes([reply[0] ^ 0xFF, reply[1]]) + reply[2:]
            return [forged, reply]
        if behaviour.other_question:
            other = dnslib.DNSRecord.question("other.test")
            other.header.id = query.header.id
            answer = other.reply()
            answer.add_answer(*dnslib.RR.fromZone("other.test. 60 IN A 192.0.2.66"))
            return [bytes(answer.pack())]
        if behaviour.garbage:
            return [data[:2] + b"\xff" * 40]
        return [reply]

    def _reply(self, query: dnslib.DNSRecord, name: str, qtype: str, behaviour: Behaviour | None, *, known: bool) -> bytes:
        reply = query.reply()
        reply.header.ra = 1
        has_edns = any(record.rtype == dnslib.QTYPE.OPT for record in query.ar)
        if behaviour and behaviour.no_edns and has_edns:
            reply.header.rcode = dnslib.RCODE.FORMERR
            return bytes(reply.pack())
        owner = f"{name}."
        lines: Iterable[str] = ()
        if behaviour:
            lines = [f"{owner} {behaviour.ttl} IN {qtype} {value}" for value in behaviour.values]
            lines = [*lines, *behaviour.extra]
            reply.header.rcode = behaviour.rcode
        else:
            aliases = self._zone.get(name, {}).get(dnslib.QTYPE.CNAME)
            if aliases:
                lines = [f"{owner} {aliases.ttl} IN CNAME {value}" for value in aliases.values]
                lines = [*lines, *aliases.extra]
        for line in lines:
            reply.add_answer(*dnslib.RR.fromZone(line))
        if not known:
            reply.header.rcode = dnslib.RCODE.NXDOMAIN
        soa = behaviour.soa if behaviour else (60, 60)
        if not reply.rr and reply.header.rcode in (dnslib.RCODE.NOERROR, dnslib.RCODE.NXDOMAIN) and soa:
            zone = f"{name.rpartition('.')[2]}. {soa[0]} IN SOA ns.test. host.test. 1 3600 600 86400 {soa[1]}"
            reply.add_auth(*dnslib.RR.fromZone(zone))
        if has_edns:
            reply.add_ar(dnslib.EDNS0(udp_len=1232))
        return bytes(reply.pack())


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: MockDNS) -> None:
        self._server = server

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._server._spawn(self._server._answer_udp(data, addr))


class MockDNSThread(ServerThread[MockDNS]):
    """The same for callers without a loop: `with MockDNSThread({"api.openai.com": "127.0.0.1"}) as dns`."""

    def __init__(self, zone: Mapping[str, str] | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(MockDNS(zone, host=host, port=port))

    @property
    def address(self) -> str:
        return self.server.address

    def set(self, name: str, qtype: str, *values: str, **behaviour: Any) -> None:
        """As `MockDNS.set()`."""
        self.call(lambda: self.server.set(name, qtype, *values, **behaviour))

    def asked(self, name: str, qtype: str = "A") -> int:
        """As `MockDNS.asked()`."""
        return self.call(self.server.asked, name, qtype)
