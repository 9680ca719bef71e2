"""What the tests of the `tls` plugin share: a runtime with it, and TLS servers that do as they are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from agentfw.agents import Agent
from agentfw.destination import Destination
from agentfw.hookspecs import hookimpl
from agentfw.mock_llm import CertificateAuthority
from agentfw.runtime import Runtime
from agentfw.testing import make_agent, make_runtime
from agentfw.upstream import TlsRequest, Upstream
from agentfw_dns_cache import DnsConfig
from agentfw_dns_cache import Plugin as Dns
from agentfw_tls_pool import Plugin, TlsConfig

ALICE, BOB = make_agent("alice"), make_agent("bob")
HOST = "api.openai.com"
HTTP = TlsRequest(HOST, ("http/1.1",))


class Loopback:
    """Lets everything be dialled that is not in `denied`, as (agent's name, address) or address."""

    name = "loopback"

    def __init__(self) -> None:
        self.denied: set[str | tuple[str, str]] = set()

    @hookimpl
    def dial(self, agent: Agent, address: str) -> bool:
        return not {address, (agent.name, address)} & self.denied


class Bench:
    """A runtime with dns (overrides only) and tls, trusting `ca_pem`."""

    def __init__(self, runtime: Runtime, plugin: Plugin, loopback: Loopback, port: int) -> None:
        self.runtime = runtime
        self.plugin = plugin
        self.loopback = loopback
        self.port = port

    async def lease(self, agent: Agent = ALICE, tls: TlsRequest = HTTP, host: str = HOST) -> Upstream:
        return await self.runtime.connect(agent, Destination.make("https", host, self.port), tls)

    def __getattr__(self, name: str) -> int | float:
        return self.plugin.statistics()[name]


@contextlib.asynccontextmanager
async def bench(port: int, ca_pem: str, tmp_path: Path, *more: object, **config: Any) -> AsyncIterator[Bench]:
    """`more`: further plugins, asked before the others."""
    ca = tmp_path / "ca.pem"
    ca.write_text(ca_pem or CertificateAuthority().ca_pem)
    config.setdefault("shared", (HOST,))
    config.setdefault("system_ca", False)
    plugin = Plugin(TlsConfig(ca_files=(str(ca),), **config))
    loopback = Loopback()
    hosts = {HOST: "127.0.0.1", "api.anthropic.com": "127.0.0.1", "other.test": "127.0.0.1"}
    runtime = make_runtime(*more, Dns(DnsConfig(upstream=(), hosts=hosts)), plugin, loopback)
    await runtime.start()
    try:
        async with asyncio.timeout(60):
            yield Bench(runtime, plugin, loopback, port)
    finally:
        await runtime.stop()
        assert not plugin.pool or not plugin.pool.groups


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """A TLS server that does what `handler` says and notes what came to it."""

    def __init__(self) -> None:
        self.authority = CertificateAuthority()
        self.port = 0
        self.connections = 0
        self.plaintext = b""
        self.writers: list[asyncio.StreamWriter] = []


@contextlib.asynccontextmanager
async def serve(
    handler: Handler,
    context: ssl.SSLContext | None = None,
    *,
    names: tuple[str, ...] = (HOST,),
    addresses: str | list[str] = "127.0.0.1",
) -> AsyncIterator[Peer]:
    peer = Peer()
    if context is None:
        context = peer.authority.server_context(names)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer.connections += 1
        peer.writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        if not writer.is_closing():
            writer.close()

    server = await asyncio.start_server(client, addresses if isinstance(addresses, str) else addresses[0], 0, ssl=context)
    peer.port = server.sockets[0].getsockname()[1]
    others = [] if isinstance(addresses, str) else addresses[1:]
    servers = [server, *[await asyncio.start_server(client, address, peer.port, ssl=context) for address in others]]
    try:
        yield peer
    finally:
        for each in servers:
            each.close()
        for writer in peer.writers:
            writer.transport.abort()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serve_blocking(
    handler: Callable[[ssl.SSLSocket], None], context: ssl.SSLContext | None = None, *, connections: int = 1
) -> AsyncIterator[Peer]:
    """A server of so many connections, one after the other, in a thread: asyncio's TLS knows no half-close and sends no
    alerts."""
    peer = Peer()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    peer.port = listener.getsockname()[1]
    context = context or peer.authority.server_context([HOST])

    def work() -> None:
        for _ in range(connections):
            with contextlib.suppress(OSError), listener.accept()[0] as raw:
                peer.connections += 1
                raw.settimeout(20)
                with context.wrap_socket(raw, server_side=True, suppress_ragged_eofs=False) as tls:
                    handler(tls)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield peer
    finally:
        for _ in range(connections):  # if it still waits for some
            with contextlib.suppress(OSError):
                socket.create_connection(listener.getsockname(), timeout=1).close()
        await asyncio.to_thread(thread.join)
        listener.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)


async def exchange(upstream: Upstream, line: bytes) -> bytes:
    """Send a line, get a line; nothing else may come with it."""
    await upstream.send(line + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):
        piece = await upstream.receive()
        assert piece
        answer += piece
    return answer[:-1]


async def eventually(condition: Callable[[], bool]) -> None:
    """Other tasks and threads get to run until it holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (what is waited for is in the kernel)
            await asyncio.sleep(0.005)


async def chat(upstream: Upstream, text: str, **more: Any) -> tuple[int, Any]:
    """A chat completion over a leased connection: (status, document). The connection is clean after it."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer k\r\ncontent-length: {len(body)}\r\n\r\n"
    await upstream.send(head.encode() + body)
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await upstream.receive()
        assert piece
        data += piece
    head_bytes, _, rest = data.partition(b"\r\n\r\n")
    match = re.search(rb"content-length: (\d+)", head_bytes)
    assert match
    while len(rest) < int(match[1]):
        piece = await upstream.receive()
        assert piece
        rest += piece
    assert len(rest) == int(match[1])
    return int(head_bytes[9:12]), json.loads(rest)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def wrapped() -> None:
        await main()

    asyncio.run(wrapped())
