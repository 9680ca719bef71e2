"""Plain TCP over the host's stack: backpressure, half-close, errors as they are, racing addresses."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest
from agentfw import Destination, hookimpl
from agentfw.agents import ExitReport
from agentfw.errors import ConnectError
from agentfw.runtime import Runtime
from agentfw.testing import make_agent
from agentfw_native import Config, Plugin

from tests.core.support import Loopback, Names, async_test, guest, lookup, running, serving

AGENT = make_agent()


def where(port: int, scheme: str = "tcp", host: str = "127.0.0.1") -> Destination:
    return Destination.make(scheme, host, port)


@async_test
async def test_a_slow_reader_holds_up_its_own_flow_only() -> None:
    """What it does not take stays in the kernel: neither the server's bytes nor another flow wait in our memory."""
    sent = 0
    piece = b"x" * 65536

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        if await reader.readexactly(1) == b"q":
            writer.write(b"quick")
            return
        writer.transport.set_write_buffer_limits(high=0)  # type: ignore[attr-defined]
        for _ in range(1024):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)

    async with serving(flood) as port, running(Loopback(), Plugin(Config())) as runtime:
        async with guest(runtime, "127.0.0.1", port) as slow:
            await slow.guest_send(b"s\0")
            assert await slow.guest_receive(1) == b"x"
            previous = -1
            while previous != sent:  # until it cannot send any more
                previous = sent
                await asyncio.sleep(0.3)
            assert sent < 24 << 20, "two kernel buffers and one ring"
            async with guest(runtime, "127.0.0.1", port) as quick:
                await quick.guest_send(b"q\0")
                assert await quick.guest_read_all() == b"quick"
            total = 1
            while total < previous + (1 << 20):
                total += len(await slow.guest_receive())
        assert sent > previous, "it goes on when it is read"


@async_test
async def test_each_half_ends_on_its_own() -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = await reader.read()
        writer.write(b"after your end: " + got)

    async def ends_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.write_eof()
        got.append(await reader.read())

    got: list[bytes] = []
    async with serving(server) as port, serving(ends_first) as other, running(Loopback(), Plugin(Config())) as runtime:
        async with guest(runtime, "127.0.0.1", port) as flow:
            await flow.guest_send(b"\0mine")
            flow.guest_send_eof()
            assert await flow.guest_read_all() == b"after your end: \0mine"
        async with guest(runtime, "127.0.0.1", other) as flow:
            assert await flow.guest_read_all() == b"hello"
            await flow.guest_send(b"still")
            flow.guest_send_eof()
            for _ in range(500):
                if got:
                    break
                await asyncio.sleep(0.01)
    assert got == [b"still"]


@async_test
async def test_a_reset_is_a_reset() -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async with (
        serving(server) as port,
        running(Loopback(), Plugin(Config())) as runtime,
        guest(runtime, "127.0.0.1", port) as flow,
    ):
        await flow.guest_send(b"\0x")
        with pytest.raises(ConnectionResetError):
            await flow.guest_read_all()


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (None, errno.ECONNREFUSED), (errno.EHOSTUNREACH, errno.EHOSTUNREACH), (errno.ENETUNREACH, errno.ENETUNREACH),
        (errno.ETIMEDOUT, errno.ETIMEDOUT), (errno.EADDRNOTAVAIL, errno.ECONNRESET), (errno.EMFILE, errno.ECONNRESET),
        ("never", errno.ETIMEDOUT),
    ],
)  # fmt: skip
@async_test
async def test_errors_of_connecting_are_told(number: Any, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(Loopback(), Plugin(Config(connect_timeout=0.3 if number == "never" else 30.0))) as runtime:
        if number is not None:

            async def connect(sock: object, address: object) -> None:
                if number == "never":
                    await asyncio.sleep(30)
                raise OSError(number, "no")

            monkeypatch.setattr(runtime.loop, "sock_connect", connect)
        async with guest(runtime, "127.0.0.1", closed_port()) as flow:
            assert await flow.guest_connected() == 0
            await flow.guest_send(b"\0x")
            with pytest.raises(OSError) as caught:
                await flow.guest_read_all()
            assert caught.value.errno == told


LAST = -1.0
"""Of a connection: it takes as long as it takes until all others have been tried."""


class Way:
    """How long connecting to each address takes, and what comes of it."""

    def __init__(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, **ways: tuple[float, int]) -> None:
        self.tried: list[str] = []
        real: Callable[..., Any] = runtime.loop.sock_connect

        async def connect(sock: socket.socket, address: tuple[str, int]) -> None:
            self.tried.append(address[0])
            seconds, number = ways[address[0].replace("127.0.0.", "a")]
            await asyncio.sleep(seconds if seconds != LAST else 0)
            while seconds == LAST and len(self.tried) < len(ways):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for _ in range(20 if seconds == LAST else 0):  # what became of the others is known
                await asyncio.sleep(0)
            if number:
                raise OSError(number, "no")
            await real(sock, address)

        monkeypatch.setattr(runtime.loop, "sock_connect", connect)


@pytest.mark.parametrize(
    ("ways", "taken", "tried"),
    [
        ({"a1": (0, 0), "a2": (0, 0)}, "127.0.0.1", 1),
        ({"a1": (60, 0), "a2": (0, 0)}, "127.0.0.2", 2),
        ({"a1": (0, errno.ECONNREFUSED), "a2": (0, 0), "a3": (0, 0)}, "127.0.0.2", 2),
        ({"a1": (60, 0), "a2": (60, 0), "a3": (0.1, 0)}, "127.0.0.3", 3),
        ({"a1": (LAST, 0), "a2": (60, 0)}, "127.0.0.1", 2),
        ({"a1": (LAST, errno.EHOSTUNREACH), "a2": (0, errno.ECONNREFUSED)}, errno.EHOSTUNREACH, 2),
        ({"a1": (0, errno.EHOSTUNREACH), "a2": (0, errno.ECONNREFUSED)}, errno.ECONNREFUSED, 2),
    ],
)
@async_test
async def test_addresses_race(
    ways: dict[str, tuple[float, int]], taken: str | int, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(**{"many.example": [f"127.0.0.{name[1]}" for name in ways]})
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        async with running(names, Loopback()) as runtime:
            way = Way(runtime, monkeypatch, **ways)
            if isinstance(taken, int):
                with pytest.raises(ConnectError) as caught:
                    await runtime.dial(AGENT, where(port, host="many.example"))
                assert caught.value.errno == taken
            else:
                with await runtime.dial(AGENT, where(port, host="many.example")) as sock:
                    assert sock.getpeername()[0] == taken
            assert len(way.tried) == tried


@async_test
async def test_both_that_connect_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is taken, the other one closed."""
    names = Names(**{"many.example": ["127.0.0.1", "127.0.0.2"]})
    gate = asyncio.Event()
    peers: list[asyncio.StreamReader] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(reader)
        await reader.read()

    server = await asyncio.start_server(accept, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    async with running(names, Loopback()) as runtime:
        real: Callable[..., Any] = runtime.loop.sock_connect

        async def connect(sock: socket.socket, address: Any) -> None:
            await real(sock, address)
            await gate.wait()

        monkeypatch.setattr(runtime.loop, "sock_connect", connect)
        dialling = asyncio.create_task(runtime.dial(AGENT, where(port, host="many.example")))
        while len(peers) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        gate.set()
        with await dialling:
            for _ in range(500):
                if sum(peer.at_eof() for peer in peers) == 1:
                    break
                await asyncio.sleep(0.01)
            assert sum(peer.at_eof() for peer in peers) == 1
    server.close()


@async_test
async def test_limits_for_each_agent() -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    plugin = Plugin(Config(agent_connections=2, agent_datagram_sockets=1))
    async with serving(server) as port, running(Loopback(), plugin) as runtime:
        held = [await runtime.connect(AGENT, where(port), None) for _ in range(2)]
        with pytest.raises(ConnectError, match="too many"):
            await runtime.connect(AGENT, where(port), None)
        held.append(await runtime.connect(make_agent("other"), where(port), None))
        held.append(await runtime.connect(AGENT, where(port, "udp"), None))
        with pytest.raises(ConnectError, match="too many"):
            await runtime.connect(AGENT, where(port, "udp"), None)
        held.pop(0).release()
        held.append(await runtime.connect(AGENT, where(port), None))
        plugin.reconfigure(Config(agent_connections=3))()
        held.append(await runtime.connect(AGENT, where(port), None))
        for each in held:
            each.release()
            each.release()
        assert plugin.statistics()["open"] == 0 == plugin.statistics()["open_datagram_sockets"]
        assert plugin.statistics()["overflow"] == 2
        with pytest.raises(ConnectError):
            await runtime.connect(AGENT, where(closed_port()), None)
        assert plugin.statistics()["open"] == 0


@async_test
async def test_after_a_release_nothing_works() -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(server) as port, running(Loopback(), Plugin(Config())) as runtime:
        for scheme in ("tcp", "udp"):
            upstream = await runtime.connect(AGENT, where(port, scheme), None)
            waiting = asyncio.create_task(upstream.receive())
            await asyncio.sleep(0.01)
            upstream.release()
            with pytest.raises(ConnectionError):
                await waiting
            for call in (upstream.send(b"x"), upstream.receive()):
                with pytest.raises(ConnectionError):
                    await call


@async_test
async def test_ipv6() -> None:
    class Six:
        name = "six"

        @hookimpl
        def dial(self, address: str) -> bool | None:
            return True if address in ("::1", "127.0.0.1") else None

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(2))
        writer.close()

    try:
        listening = await asyncio.start_server(server, "::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    port = listening.sockets[0].getsockname()[1]
    async with running(Names(**{"six.example": ["::1"]}), Six(), Plugin(Config())) as runtime:
        await lookup(runtime, "six.example", qtype="AAAA")
        async with guest(runtime, "fec0::2", port) as flow:
            await flow.guest_send(b"\0x")
            assert await flow.guest_read_all() == b"\0x"
    listening.close()


def test_exit_and_stop_are_quiet() -> None:
    plugin = Plugin(Config())
    plugin.exit(AGENT, ExitReport("code"))
    plugin.stop()
