"""What the tests of the core share: names, a TLS plugin without a pool, and servers on 127.0.0.1. No KVM."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import dnslib
import msgspec
import trustme
from agentfw import Agent, Destination, TlsInfo, TlsRequest, hookimpl
from agentfw.errors import ConnectError, ResolveError, TlsError
from agentfw.relay.preface import MAGIC
from agentfw.runtime import Runtime
from agentfw.testing import MemoryFlow, make_agent, make_runtime

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CA = trustme.CA()
RESOLVER = ("10.0.2.3", 53)


def async_test(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in a loop of its own; tasks left over are an error."""

    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> None:
        async def body() -> None:
            async with asyncio.timeout(60):
                await function(*args, **keywords)
                for _ in range(2000):
                    left = asyncio.all_tasks() - {asyncio.current_task()}
                    if not left:
                        break
                    await asyncio.sleep(0.01)
                assert not left, f"tasks left behind: {left}"

        asyncio.run(body())

    return run


class Names:
    """A `resolve` hook with fixed answers; names that are not there do not exist."""

    name = "names"

    def __init__(self, **names: str | list[str]) -> None:
        self.names = {name.replace("_", "."): [a] if isinstance(a, str) else a for name, a in names.items()}
        self.asked: list[str] = []

    @hookimpl
    def resolve(self, name: str, qtype: int, query: bytes) -> bytes:
        self.asked.append(name)
        if name not in self.names:
            raise ResolveError(name, "no such name", 3)
        reply = dnslib.DNSRecord.parse(query).reply()
        for address in self.names[name]:
            if (":" in address) == (qtype == dnslib.QTYPE.AAAA) and qtype in (dnslib.QTYPE.A, dnslib.QTYPE.AAAA):
                data = dnslib.AAAA(address) if ":" in address else dnslib.A(address)
                reply.add_answer(dnslib.RR(reply.q.qname, qtype, ttl=60, rdata=data))
        return bytes(reply.pack())


class Loopback:
    """A `dial` hook that lets the tests' servers be reached."""

    name = "loopback"

    @hookimpl
    def dial(self, address: str) -> bool | None:
        return True if address.startswith("127.") else None


class Lease:
    """One TLS connection; `log` of the plugin tells how it was released."""

    def __init__(
        self, plugin: TlsOnce, destination: Destination, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.plugin = plugin
        self.destination = destination
        self.reader = reader
        self.writer = writer
        self.address = "127.0.0.1"
        self.reused = False
        self.released = False
        channel: ssl.SSLObject = writer.get_extra_info("ssl_object")
        certificate = channel.getpeercert(True)
        cipher = channel.cipher()
        version = channel.version()
        assert certificate is not None and cipher is not None and version is not None
        self.tls = TlsInfo(version, cipher, channel.selected_alpn_protocol(), certificate, plugin.verified)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self, limit: int = 65536) -> bytes:
        return await self.reader.read(limit)

    async def send_eof(self) -> None:
        self.writer.close()

    def release(self, *, reusable: bool = False) -> None:
        if not self.released:
            self.released = True
            self.plugin.releases.append(reusable)
            if reusable and self.plugin.pooled:
                self.reused = True
                self.plugin.idle.append(self)
            else:
                self.writer.close()


class TlsOnce:
    """A `connect` hook for TLS. `pooled`: keeps reusable connections, without looking whether they still live."""

    name = "tls"

    def __init__(self, pooled: bool = False, verified: bool = True) -> None:
        self.pooled = pooled
        self.verified = verified
        self.releases: list[bool] = []
        self.idle: list[Lease] = []
        self.runtime: Runtime | None = None
        self.requests: list[TlsRequest] = []
        self.context = ssl.create_default_context()
        CA.configure_trust(self.context)

    @hookimpl
    def start(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @hookimpl
    def stop(self) -> None:
        for lease in self.idle:
            lease.writer.close()

    @hookimpl
    async def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> Lease | None:
        if tls is None:
            return None
        self.requests.append(tls)
        assert self.runtime is not None
        for lease in self.idle:
            if lease.destination == destination:
                self.idle.remove(lease)
                lease.released = False
                return lease
        sock = await self.runtime.dial(agent, destination)
        try:
            reader, writer = await asyncio.open_connection(sock=sock, ssl=self.context, server_hostname=destination.host)
        except ssl.SSLCertVerificationError as error:
            raise TlsError(str(error), reason="CERTIFICATE_VERIFY_FAILED", verify_code=error.verify_code,
                           verify_message=error.verify_message) from None  # fmt: skip
        except OSError as error:
            raise ConnectError(destination, error.errno or 0) from None
        return Lease(self, destination, reader, writer)


@asynccontextmanager
async def serving(handler: Handler, *names: str) -> AsyncIterator[int]:
    """A server on 127.0.0.1; with `names` it speaks TLS with a certificate for them. -> its port"""
    context = None
    if names:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        CA.issue_cert(*names).configure_cert(context)
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        with contextlib.suppress(ConnectionError, OSError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def running(*plugins: object) -> AsyncIterator[Runtime]:
    """A started runtime."""
    runtime = make_runtime(*plugins)
    await runtime.start()
    runtime.plugins.later.end()  # all at once, as tests look
    try:
        yield runtime
    finally:
        await runtime.stop()


@asynccontextmanager
async def guest(
    runtime: Runtime, address: str, port: int, kind: str = "tcp", agent: Agent | None = None, ring: int = 65536
) -> AsyncIterator[MemoryFlow]:
    """A flow that is being served; closed at the end."""
    flow = MemoryFlow(address, port, kind, ring)
    task = asyncio.create_task(runtime.handle_flow(agent or make_agent(), flow))
    try:
        yield flow
    finally:
        flow.guest_close()
        try:
            async with asyncio.timeout(10):
                await task
        except TimeoutError:
            raise AssertionError("the relay did not end after the guest closed") from None


async def lookup(runtime: Runtime, name: str, agent: Agent | None = None, qtype: str = "A") -> dnslib.DNSRecord:
    """Ask as an agent does, over UDP."""
    async with guest(runtime, *RESOLVER, "udp", agent) as flow:
        await flow.guest_send_datagram(bytes(dnslib.DNSRecord.question(name, qtype).pack()))
        data, address, port = await flow.guest_receive_datagram()
        assert (address, port) == RESOLVER
        return dnslib.DNSRecord.parse(data)


async def offload(flow: MemoryFlow, server_name: str | None, **more: Any) -> dict[str, Any]:
    """Send the TLS preface, read the answer."""
    body = msgspec.json.encode({"server_name": server_name, "alpn": ["http/1.1"], "verify": 2, "check_hostname": True, "cas": [],
                                "min": 0, "max": 0, **more})  # fmt: skip
    await flow.guest_send(MAGIC + len(body).to_bytes(4, "big") + body)
    head = await exactly(flow, len(MAGIC) + 4)
    assert head.startswith(MAGIC)
    answer: dict[str, Any] = msgspec.json.decode(await exactly(flow, int.from_bytes(head[len(MAGIC) :], "big")))
    if answer["ok"]:
        assert base64.b64decode(answer["cert"])
    return answer


async def exactly(flow: MemoryFlow, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = await flow.guest_receive(length - len(data))
        if not piece:
            raise EOFError(bytes(data))
        data += piece
    return bytes(data)


async def read_response(flow: MemoryFlow) -> tuple[int, dict[str, str], bytes]:
    """One response with Content-Length or chunks: (status, fields in lower case, body)."""
    head = (await flow.guest_read_until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = b""
    if "content-length" in fields:
        body = await exactly(flow, int(fields["content-length"]))
    elif "transfer-encoding" in fields:
        while size := int((await flow.guest_read_until(b"\r\n")).strip(), 16):
            body += await exactly(flow, size)
            assert await exactly(flow, 2) == b"\r\n"
        assert await exactly(flow, 2) == b"\r\n"
    return int(head[0].split()[1]), fields, body


class Stream:
    """A server's handler whose answer is a stream: its first piece, and once `more` is set one after the other, without end."""

    def __init__(self) -> None:
        self.more = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"5\r\nhello\r\n")
            await writer.drain()
            await self.more.wait()


class Recorder:
    """A server's handler that keeps the requests it gets, whole, and answers each with `answer` (or what it returns)."""

    def __init__(
        self, answer: bytes | Callable[[bytes], bytes] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", close: bool = False
    ) -> None:
        self.answer = answer
        self.close = close
        self.requests: list[bytes] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lower = head.lower()
            body = b""
            if b"content-length:" in lower:
                body = await reader.readexactly(int(lower.split(b"content-length:")[1].split(b"\r\n")[0]))
            elif b"transfer-encoding: chunked" in lower:
                while (piece := await reader.readuntil(b"\r\n")) != b"0\r\n":
                    body += piece + await reader.readexactly(int(piece, 16) + 2)
                body += piece + await reader.readexactly(2)
            self.requests.append(head + body)
            writer.write(self.answer if isinstance(self.answer, bytes) else self.answer(head))
            await writer.drain()
            if self.close:
                return
