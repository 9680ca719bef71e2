"""HTTP through the whole path without a network: an internet that is one function, and an agent that fetches from it."""

from __future__ import annotations

import asyncio
import base64
import errno
import inspect
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import dnslib
import msgspec
from cryptography.hazmat.primitives.serialization import Encoding

from ..agents import Agent
from ..destination import Destination
from ..fleet_ca import FleetCa
from ..hookspecs import hookimpl
from ..http1 import (
    LAST_CHUNK,
    BodyReader,
    Headers,
    RequestHead,
    encode_chunk,
    find_head_end,
    parse_request,
    parse_response,
    request_framing,
    response_framing,
)
from ..relay.preface import MAGIC
from ..runtime import Runtime
from ..upstream import TlsInfo, TlsRequest
from .flows import MemoryFlow
from .runtimes import make_agent

_RESOLVER = ("10.0.2.3", 53)
_NETWORK = ipaddress.ip_network("198.18.0.0/15")  # for benchmarks of devices (RFC 2544): nobody's
_NO_BODY = frozenset({204, 304})


@dataclass(frozen=True)
class Request:
    """What a server got: after all hooks, with secrets set."""

    destination: Destination
    method: str
    target: str
    headers: Headers
    body: bytes


@dataclass(frozen=True)
class Response:
    """What a server answers. `body` bytes: with Content-Length; pieces: chunked, each sent by itself."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Iterable[bytes] | AsyncIterator[bytes] = b""


Answer = Response | bytes
Handler = Callable[[Request], Answer | Awaitable[Answer]]


def _ok(request: Request) -> bytes:
    return b"ok"


class FakeServer:
    """A plugin that is the internet: every name exists (or those in `hosts`), and each request is answered by `handler`.

    Nothing leaves the process. `requests` keeps what came. `verified` False: as if only an authority of the agent's own vouched
    for the peer (`TlsInfo.verified`). Give it last: it answers what no other plugin did.
    """

    name = "fake_server"

    def __init__(self, handler: Handler = _ok, *, hosts: Iterable[str] | None = None, verified: bool = True) -> None:
        self.handler = handler
        self.hosts = None if hosts is None else frozenset(hosts)
        self.verified = verified
        self.requests: list[Request] = []
        self._addresses: dict[str, str] = {}
        self._authority = FleetCa()

    @hookimpl(trylast=True)
    def resolve(self, name: str, query: bytes) -> bytes:
        reply = dnslib.DNSRecord.parse(query).reply()
        if self.hosts is not None and name not in self.hosts:
            reply.header.rcode = dnslib.RCODE.NXDOMAIN
        elif reply.q.qtype == dnslib.QTYPE.A:
            address = self._addresses.setdefault(name, str(_NETWORK[len(self._addresses) + 1]))
            reply.add_answer(dnslib.RR(reply.q.qname, dnslib.QTYPE.A, ttl=60, rdata=dnslib.A(address)))
        return bytes(reply.pack())

    @hookimpl(trylast=True)
    def dial(self, address: str) -> bool | None:
        return True if ipaddress.ip_address(address) in _NETWORK else None

    @hookimpl(trylast=True)
    async def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> _Lease | None:
        if destination.scheme not in ("http", "https"):
            return None
        return _Lease(self, destination, None if tls is None else self._info(destination, tls))

    def _info(self, destination: Destination, tls: TlsRequest) -> TlsInfo:
        now = datetime.now(UTC)
        leaf = self._authority.leaf(destination, now, now + timedelta(days=1))
        alpn = "http/1.1" if "http/1.1" in tls.alpn else None
        cipher = ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
        return TlsInfo("TLSv1.3", cipher, alpn, leaf.public_bytes(Encoding.DER), self.verified)


class _Lease:
    """One exchange with the FakeServer: `agentfw.Upstream`."""

    def __init__(self, server: FakeServer, destination: Destination, tls: TlsInfo | None) -> None:
        self.destination = destination
        self.tls = tls
        self.address = str(_NETWORK[1])
        self.reused = False
        self._server = server
        self._buffer = b""
        self._head: RequestHead | None = None
        self._reader: BodyReader | None = None
        self._body = b""
        self._complete = asyncio.Event()
        self._output: AsyncIterator[bytes] | None = None
        self._rest = b""

    async def send(self, data: bytes) -> None:
        self._buffer += data
        if self._head is None:
            end = find_head_end(self._buffer)
            if end < 0:
                return
            self._head = parse_request(self._buffer[:end])
            self._reader = BodyReader(request_framing(self._head))
            self._buffer = self._buffer[end:]
        assert self._reader is not None
        self._body += self._reader.feed(self._buffer)
        self._buffer = b""
        if self._reader.done:
            self._complete.set()

    async def receive(self, limit: int = 65536) -> bytes:
        if not self._rest:
            await self._complete.wait()
            if self._output is None:
                self._output = self._answer()
            self._rest = await anext(self._output, b"")
        data, self._rest = self._rest[:limit], self._rest[limit:]
        return data

    async def send_eof(self) -> None:
        self._complete.set()

    def release(self, *, reusable: bool = False) -> None:
        pass

    async def _answer(self) -> AsyncIterator[bytes]:
        if self._head is None:
            return
        head = self._head
        request = Request(self.destination, head.method, head.target, head.headers, self._body)
        self._server.requests.append(request)
        given = self._server.handler(request)
        answer = await given if inspect.isawaitable(given) else given
        response = answer if isinstance(answer, Response) else Response(body=answer)
        body = response.body
        lines = [f"HTTP/1.1 {response.status} Fake", *(f"{name}: {value}" for name, value in response.headers.items())]
        if response.status not in _NO_BODY:
            lines.append(f"Content-Length: {len(body)}" if isinstance(body, bytes) else "Transfer-Encoding: chunked")
        yield ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        if head.method == "HEAD" or response.status in _NO_BODY:
            return
        if isinstance(body, bytes):
            yield body
            return
        if isinstance(body, AsyncIterator):
            async for piece in body:
                yield encode_chunk(piece)
        else:
            for piece in body:
                yield encode_chunk(piece)
        yield LAST_CHUNK


class PathError(Exception):
    """There was no response. `where`: "dns", "connect" or "tls"; `detail`: what an agent is told, with rule and plugin if it was
    refused."""

    def __init__(self, where: str, detail: str) -> None:
        self.where = where
        self.detail = detail
        super().__init__(f"{where}: {detail}")


@dataclass(frozen=True)
class Fetched:
    """A response as the agent sees it."""

    status: int
    headers: Headers
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """Of one that agentfw made itself: its "type", "message", "rule", "plugin"."""
        return dict(msgspec.json.decode(self.body)["error"])


async def fetch(
    runtime: Runtime,
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    agent: Agent | None = None,
) -> Fetched:
    """An agent's request, the way a guest makes it: the name is asked for, its address connected to, TLS offloaded.

    Raises PathError if it does not come to a response; ConnectionResetError or EOFError if that breaks off.
    """
    agent = agent or make_agent()
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    async with _guest(runtime, agent, await _resolve(runtime, agent, host), port) as flow:
        code = await flow.guest_connected()
        if code:
            raise PathError("connect", errno.errorcode.get(code, str(code)))
        if secure:
            await _offload(flow, host)
        fields = Headers([("Host", parts.netloc), *(headers or {}).items()])
        if body or method in ("POST", "PUT", "PATCH"):
            fields.set("Content-Length", str(len(body)))
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        await flow.guest_send(RequestHead(method, target, fields).encode() + body)
        return await _response(flow, method)


@asynccontextmanager
async def _guest(runtime: Runtime, agent: Agent, address: str, port: int, kind: str = "tcp") -> AsyncIterator[MemoryFlow]:
    flow = MemoryFlow(address, port, kind)
    task = asyncio.get_running_loop().create_task(runtime.handle_flow(agent, flow))
    try:
        yield flow
        flow.guest_close()
        await asyncio.wait([task], timeout=10)
    finally:
        flow.guest_close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _resolve(runtime: Runtime, agent: Agent, host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    query = dnslib.DNSRecord.question(host)
    query.add_ar(dnslib.EDNS0(udp_len=1232))
    async with _guest(runtime, agent, *_RESOLVER, "udp") as flow:
        await flow.guest_send_datagram(bytes(query.pack()), *_RESOLVER)
        reply = dnslib.DNSRecord.parse((await flow.guest_receive_datagram())[0])
    if reply.header.rcode:
        options = [option for record in reply.ar if record.rtype == dnslib.QTYPE.OPT for option in record.rdata]
        texts = [bytes(option.data[2:]).decode() for option in options if option.code == 15]  # extended errors, RFC 8914
        raise PathError("dns", ": ".join([dnslib.RCODE[reply.header.rcode], *texts]))
    addresses = [str(record.rdata) for record in reply.rr if record.rtype == dnslib.QTYPE.A]
    if not addresses:
        raise PathError("dns", "no address")
    return addresses[0]


async def _offload(flow: MemoryFlow, host: str) -> None:
    wish = {"server_name": host, "alpn": ["http/1.1"], "verify": 2, "check_hostname": True, "cas": [], "min": 0, "max": 0}
    frame = msgspec.json.encode(wish)
    await flow.guest_send(MAGIC + len(frame).to_bytes(4) + frame)
    length = int.from_bytes((await _exactly(flow, len(MAGIC) + 4))[len(MAGIC) :])
    answer = msgspec.json.decode(await _exactly(flow, length))
    if not answer["ok"]:
        raise PathError("tls", f"{answer['reason']}: {answer['message']}")
    assert base64.b64decode(answer["cert"])


async def _response(flow: MemoryFlow, method: str) -> Fetched:
    head = parse_response(await flow.guest_read_until(b"\r\n\r\n"))
    while head.status < 200:
        head = parse_response(await flow.guest_read_until(b"\r\n\r\n"))
    reader = BodyReader(response_framing(head, method))
    body = b""
    while not reader.done:
        data = await flow.guest_receive()
        if not data:
            reader.end()
            break
        body += reader.feed(data)
    return Fetched(head.status, head.headers, body)


async def _exactly(flow: MemoryFlow, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = await flow.guest_receive(length - len(data))
        if not piece:
            raise EOFError(data)
        data += piece
    return data
