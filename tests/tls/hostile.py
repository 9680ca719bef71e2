"""What the tests with hostile upstreams share: agents that speak HTTP through the relay and the pool, and a judge of what they
get.

Two agents share the connections of one host. The server answers `/good/TOKEN` with TOKEN and `/slow/TOKEN` when it is told to;
to all else it does its worst. Whatever that is, the other agent gets its own answers, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import h11
from agentfw.agents import Agent
from agentfw.mock_llm import CertificateAuthority
from agentfw.testing import MemoryFlow

from ..core.support import offload
from .support import HOST, Bench, bench

Speak = Callable[["Line", bytes], Awaitable[None]]


class Line:
    """One connection as the server has it, TLS over a bare stream. `write` is plaintext, `raw` goes past the encryption."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.reader = reader
        self.writer = writer
        self.requests: list[bytes] = []
        self.over = False
        """The other side has closed it."""
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self.tls = server.context.wrap_bio(self._in, self._out, server_side=True)

    async def handshake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.flush()
                self._in.write(await self._more())
        self.flush()

    async def _more(self) -> bytes:
        data = await self.reader.read(65536)
        if not data:
            self.over = True
            raise EOFError
        return data

    def flush(self) -> None:
        self.writer.write(self._out.read())

    async def read(self) -> bytes:
        """b"" at the end."""
        while True:
            try:
                data = self.tls.read(65536)
                self.over = self.over or not data  # close_notify
                return data
            except ssl.SSLWantReadError:
                self.flush()
                try:
                    self._in.write(await self._more())
                except EOFError:
                    return b""
            except ssl.SSLError:
                self.over = True
                return b""

    async def head(self) -> bytes:
        """A request's head, b"" at the end."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = await self.read()
            if not piece:
                return b""
            data += piece
        self.requests.append(data)
        return data

    async def write(self, data: bytes) -> None:
        self.tls.write(data)
        self.flush()
        await self.writer.drain()

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def cut(self) -> None:
        """End of stream without close_notify."""
        self.writer.close()

    def reset(self) -> None:
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()

    async def notify(self) -> None:
        """close_notify."""
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLError):
            self.tls.unwrap()
        self.flush()
        await self.writer.drain()


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Server:
    """`speak(line, request)` answers what is not good."""

    def __init__(self, speak: Speak, context: ssl.SSLContext) -> None:
        self.speak = speak
        self.context = context
        self.port = 0
        self.lines: list[Line] = []
        self.go = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(self, reader, writer)
        self.lines.append(line)
        with contextlib.suppress(OSError, EOFError, ssl.SSLError, ssl.SSLEOFError):
            await line.handshake()
            while request := await line.head():
                path = request.split()[1]
                if path.startswith(b"/slow/"):
                    await self.go.wait()
                if path.startswith((b"/good/", b"/slow/")):
                    await line.write(answer(path[6:]))
                else:
                    await self.speak(line, request)
        writer.close()


class Client:
    """An agent's flow through the relay."""

    def __init__(self, bench: Bench, agent: Agent) -> None:
        self.bench = bench
        self.agent = agent
        self.flow = MemoryFlow("127.0.0.1", bench.port)
        bench.runtime.learn(agent, HOST, ["127.0.0.1"])
        self.task = asyncio.create_task(bench.runtime.handle_flow(agent, self.flow))

    async def open(self) -> dict[str, Any]:
        return await offload(self.flow, HOST)

    async def send(self, path: str, method: str = "GET") -> None:
        await self.flow.guest_send(f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{self.bench.port}\r\n\r\n".encode())

    async def good(self, token: str, kind: str = "good") -> None:
        """Its own answer, whole, and nothing more."""
        await self.send(f"/{kind}/{token}")
        outcome, body = await self.judge()
        assert (outcome, body) == ("200", token.encode())

    async def judge(self, method: str = "GET") -> tuple[str, bytes]:
        """What an HTTP client of good repute (h11) makes of the next response: ("200", body), ("reset", ...) or ("502", ...).

        AssertionError if it is none: a guest must never be left with half an answer that looks whole.
        """
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method=method, target="/", headers=[("Host", HOST)]))
        reader.send(h11.EndOfMessage())
        status, body = 0, b""
        while True:
            event = reader.next_event()
            if event is h11.NEED_DATA:
                try:
                    data = await self.flow.guest_receive()
                except ConnectionResetError:
                    return "reset", body
                reader.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert not reader.trailing_data[0], "bytes behind the response reached the agent"
                return str(status), body
            else:
                assert isinstance(event, h11.InformationalResponse), event

    async def close(self) -> None:
        self.flow.guest_close()
        async with asyncio.timeout(20):
            await self.task


@contextlib.contextmanager
def no_errors_in_the_loop() -> Iterator[None]:
    """What callbacks and forgotten tasks raise counts, too."""
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        yield
    finally:
        gc.collect()
        loop.set_exception_handler(None)
    assert not told


@contextlib.asynccontextmanager
async def hostile(
    speak: Speak, tmp_path: Path, context: ssl.SSLContext | None = None, *plugins: object, **config: Any
) -> AsyncIterator[Stage]:
    authority = CertificateAuthority()
    server = Server(speak, context or authority.server_context([HOST]))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        async with bench(server.port, authority.ca_pem, tmp_path, *plugins, **config) as b:
            with no_errors_in_the_loop():
                yield Stage(server, b)
    finally:
        listening.close()
        for line in server.lines:
            line.writer.transport.abort()


class Stage:
    def __init__(self, server: Server, bench: Bench) -> None:
        self.server = server
        self.bench = bench
