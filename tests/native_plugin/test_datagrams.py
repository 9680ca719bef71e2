"""UDP over the host's stack: several peers, what ICMP says, sizes and bounds."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from agentfw import Destination, hookimpl
from agentfw.errors import Denied
from agentfw.relay import udp
from agentfw_native import Config, Plugin

from tests.core.support import Loopback, async_test, guest, running


class Echo(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.got: list[tuple[bytes, Any]] = []
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.got.append((data, addr))
        assert self.transport is not None
        self.transport.sendto(data, addr)


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[int, Echo]]:
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(Echo, ("127.0.0.1", 0))
    try:
        yield transport.get_extra_info("sockname")[1], protocol
    finally:
        transport.close()


def unused_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@async_test
async def test_several_peers_of_one_socket() -> None:
    async with echo() as (one, first), echo() as (two, second), running(Loopback(), Plugin(Config())) as runtime:
        async with guest(runtime, "127.0.0.1", one, "udp") as flow:
            for number in range(20):
                for port in (one, two):
                    await flow.guest_send_datagram(b"%d to %d" % (number, port), "127.0.0.1", port)
                    assert await flow.guest_receive_datagram() == (b"%d to %d" % (number, port), "127.0.0.1", port)
        assert len({address for _, address in first.got}) == 1 == len({address for _, address in second.got}), "one port each"


@pytest.mark.parametrize("size", [0, 1, 1472, 9000, 65507])
@async_test
async def test_sizes(size: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        port = server.getsockname()[1]
        async with (
            running(Loopback(), Plugin(Config())) as runtime,
            guest(runtime, "127.0.0.1", port, "udp", ring=1 << 20) as flow,
        ):
            await flow.guest_send_datagram(b"x" * size)
            data, peer = await loop.sock_recvfrom(server, 70_000)
            assert data == b"x" * size
            await loop.sock_sendto(server, data, peer)
            assert (await flow.guest_receive_datagram())[0] == data


@async_test
async def test_too_long_is_told() -> None:
    async with (
        echo() as (port, server),
        running(Loopback(), Plugin(Config())) as runtime,
        guest(runtime, "127.0.0.1", port, "udp", ring=1 << 20) as flow,
    ):
        await flow.guest_send_datagram(b"x" * 65508)
        await flow._until(lambda: bool(flow.datagram_errors))
        assert flow.datagram_errors == [(errno.EMSGSIZE, "127.0.0.1", port)] and not server.got


@async_test
async def test_a_port_where_nobody_listens() -> None:
    port = unused_port()
    async with (
        echo() as (good, _),
        running(Loopback(), Plugin(Config())) as runtime,
        guest(runtime, "127.0.0.1", port, "udp") as flow,
    ):
        await flow.guest_send_datagram(b"anybody?")
        await flow._until(lambda: bool(flow.datagram_errors))
        assert flow.datagram_errors[0] == (errno.ECONNREFUSED, "127.0.0.1", port)
        await flow.guest_send_datagram(b"you?", "127.0.0.1", good)
        assert (await flow.guest_receive_datagram())[0] == b"you?", "the others are not concerned"


@async_test
async def test_a_peer_that_is_denied() -> None:
    class Deny:
        name = "deny"

        @hookimpl
        def allow(self, destination: Destination) -> None:
            if destination.scheme == "udp":
                raise Denied("no udp", "not here")

    async with running(Loopback(), Deny(), Plugin(Config())) as runtime, guest(runtime, "127.0.0.1", 9, "udp") as flow:
        await flow.guest_send_datagram(b"x")
        await flow._until(lambda: bool(flow.datagram_errors))
        assert flow.datagram_errors == [(errno.EACCES, "127.0.0.1", 9)]


@async_test
async def test_a_peer_goes_after_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp, "PEER_IDLE", 0.05)
    plugin = Plugin(Config())
    async with echo() as (port, server), running(Loopback(), plugin) as runtime:
        async with guest(runtime, "127.0.0.1", port, "udp") as flow:
            for _ in range(2):
                await flow.guest_send_datagram(b"x")
                assert (await flow.guest_receive_datagram())[0] == b"x"
                for _ in range(500):
                    if not plugin.statistics()["open_datagram_sockets"]:
                        break
                    await asyncio.sleep(0.01)
                assert plugin.statistics()["open_datagram_sockets"] == 0
        assert len({address for _, address in server.got}) == 2


@async_test
async def test_a_flood_is_bounded() -> None:
    """A guest that reads nothing and sends to everybody."""
    plugin = Plugin(Config(agent_datagram_sockets=20))
    async with running(Loopback(), plugin) as runtime:
        async with guest(runtime, "127.0.0.1", 9, "udp") as flow:
            for number in range(3000):
                await flow.guest_send_datagram(b"x" * 100, "127.0.0.1", 20_000 + number)
            for _ in range(500):
                if not flow._datagrams_in:
                    break
                await asyncio.sleep(0.01)
            assert plugin.statistics()["open_datagram_sockets"] <= 20
            assert len(asyncio.all_tasks()) < 400
        assert plugin.statistics()["open_datagram_sockets"] == 0 and not runtime.udp_peers
