"""Plain HTTP connections are used again by the agent that had them, if nothing at all is left on them."""

from __future__ import annotations

import asyncio

import pytest
from agentfw import Agent, Destination, hookimpl
from agentfw.agents import ExitReport
from agentfw.errors import Denied
from agentfw.runtime import Runtime
from agentfw_native import Config, Plugin

from tests.core.support import Handler, Loopback, Recorder, async_test, guest, read_response, running, serving

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
A, B = Agent("a", "a"), Agent("b", "b")


async def get(runtime: Runtime, port: int, agent: Agent = A, head: bytes = b"GET / HTTP/1.1\r\n", status: int = 200) -> None:
    async with guest(runtime, "127.0.0.1", port, agent=agent) as flow:
        await flow.guest_send(head + b"Host: 127.0.0.1:%d\r\n\r\n" % port)
        assert (await read_response(flow))[0] == status


@async_test
async def test_the_same_agents_next_request() -> None:
    server, plugin = Recorder(OK), Plugin(Config())
    async with serving(server) as port, running(Loopback(), plugin) as runtime:
        for _ in range(5):
            await get(runtime, port)
        assert server.connections == 1 and plugin.statistics()["reused"] == 4
        await get(runtime, port, B)
        assert server.connections == 2, "never another agent's"
        await asyncio.gather(*(get(runtime, port) for _ in range(6)))
        assert 2 <= server.connections <= 8 and plugin.statistics()["idle"] >= 2
        before = server.connections
        runtime.agent_exited(A, ExitReport("code"))
        assert plugin.statistics()["idle"] == 1
        await plugin_reload(runtime)
        assert plugin.statistics()["idle"] == 0
        await get(runtime, port, B)
        assert server.connections == before + 1


async def plugin_reload(runtime: Runtime) -> None:
    plugin = runtime.plugins.get("native")
    assert isinstance(plugin, Plugin)
    plugin.reloaded(runtime)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"x",
        OK + OK,
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        OK.replace(b"1.1", b"1.0"),
    ],
)
@async_test
async def test_connections_that_are_not_clean_are_closed(answer: bytes) -> None:
    server, plugin = Recorder(answer), Plugin(Config())
    async with serving(server) as port, running(Loopback(), plugin) as runtime:
        for _ in range(3):
            await get(runtime, port)
    assert server.connections == 3 and plugin.statistics()["reused"] == 0


@pytest.mark.parametrize("late", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"x"])
@async_test
async def test_what_comes_while_nobody_asks(late: bytes) -> None:
    """b"": the server's end."""
    said = asyncio.Event()
    served = 0

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        await asyncio.sleep(0.05)
        if late:
            writer.write(late)
            await writer.drain()
        else:
            writer.write_eof()
        said.set()
        await reader.read()

    plugin = Plugin(Config())
    async with serving(server) as port, running(Loopback(), plugin) as runtime:
        await get(runtime, port)
        await said.wait()
        await get(runtime, port)
    assert served == 2 and plugin.statistics()["reused"] == 0 and plugin.statistics()["retired"] >= 1


@async_test
async def test_bounds() -> None:
    server, plugin = Recorder(OK), Plugin(Config(idle_connections=2, idle_timeout=0.01))
    async with serving(server) as port, running(Loopback(), plugin) as runtime:
        held = []
        for _ in range(4):
            held.append(await runtime.connect(A, Destination.make("http", "127.0.0.1", port), None))
        for upstream in held:
            upstream.release(reusable=True)
        assert plugin.statistics()["idle"] == 2
        await asyncio.sleep(0.02)
        plugin._idle.sweep()
        assert plugin.statistics()["idle"] == 0
        plugin.reconfigure(Config(idle_connections=0))()
        before = plugin.statistics()["retired"]
        await get(runtime, port)
        assert (plugin.statistics()["idle"], plugin.statistics()["retired"]) == (0, before)  # the peer did nothing


@async_test
async def test_an_address_that_is_denied_by_now() -> None:
    class Gate:
        name = "gate"
        closed = False

        @hookimpl
        def dial(self) -> bool:
            return not self.closed

    gate, server, plugin = Gate(), Recorder(OK), Plugin(Config())
    async with serving(server) as port, running(gate, plugin) as runtime:
        await get(runtime, port)
        assert plugin.statistics()["idle"] == 1
        gate.closed = True
        with pytest.raises(Denied):  # of the new connection's address: the kept one is gone
            await runtime.connect(A, Destination.make("http", "127.0.0.1", port), None)
        assert plugin.statistics()["idle"] == plugin.statistics()["reused"] == 0
        async with guest(runtime, "127.0.0.1", port, agent=A) as flow:
            assert await flow.guest_connected()
        assert server.connections == 1


def websocket_server(done: list[bytes]) -> Handler:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        done.append(head)
        if b"Upgrade: websocket" not in head:
            writer.write(OK)
            return
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                     b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n")  # fmt: skip
        while data := await reader.read(100):
            writer.write(data[::-1])

    return server


@async_test
async def test_websockets_have_their_own_connection() -> None:
    heads: list[bytes] = []
    plugin = Plugin(Config())
    upgrade = b"GET /ws HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"
    async with serving(websocket_server(heads)) as port, running(Loopback(), plugin) as runtime:
        async with guest(runtime, "127.0.0.1", port, agent=A) as flow:
            await flow.guest_send(upgrade + b"Host: 127.0.0.1:%d\r\n\r\nab" % port)
            head = await flow.guest_read_until(b"\r\n\r\n")
            assert b"permessage-deflate" in head and b"permessage-deflate" in heads[0], "extensions pass"
            assert await flow.guest_read_until(b"ba") == b"ba"
            flow.guest_send_eof()
            assert await flow.guest_read_all() == b""
        assert plugin.statistics()["idle"] == 0
        await get(runtime, port, A)
    assert len(heads) == 2 and plugin.statistics()["reused"] == 0
