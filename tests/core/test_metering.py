"""Bytes and connections of agents are counted, and cut at their limits, in every protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from agentfw import Agent, Denied, Destination, ExitReport, hookimpl
from agentfw.metering import Meter, MeteredFlow, Traffic
from agentfw.testing import MemoryFlow, make_agent
from agentfw_native import Config as NativeConfig
from agentfw_native import Plugin as Native
from hypothesis import given, settings
from hypothesis import strategies as st

from .support import Names, Recorder, Stream, TlsOnce, async_test, guest, lookup, offload, read_response, running, serving

AGENT = make_agent()


def refuse(what: str) -> None:
    raise Denied(f"limit: {what}", "used up", "test")


class Allowed:
    """Lets agents reach loopback; meters for one destination's port."""

    name = "policy"

    def __init__(self, **metered: Meter) -> None:
        self.metered = metered

    @hookimpl
    def dial(self, address: str) -> bool:
        return True

    @hookimpl
    def meters(self, destination: Destination) -> list[Meter]:
        return [meter for name, meter in self.metered.items() if destination.host.startswith(name)]


def plugins(**metered: Meter) -> tuple[object, ...]:
    names = Names(**{"a.example": "127.0.0.1", "b.example": "127.0.0.1"})
    return names, Allowed(**metered), TlsOnce(), Native(NativeConfig())


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=30),
    *(st.one_of(st.none(), st.integers(0, 500)) for _ in range(3)),
)
@settings(deadline=None)
def test_limits_are_exact(pieces: list[tuple[bool, int]], max_up: int | None, max_down: int | None, both: int | None) -> None:
    """Nothing beyond a limit passes, and whatever is within all limits does."""

    async def run() -> None:
        meter = Meter(refuse, max_up=max_up, max_down=max_down, max_bytes=both)
        free = Meter(refuse)
        traffic = Traffic()
        traffic.attach(meter)
        traffic.attach(free)
        inner = MemoryFlow("192.0.2.1", 1, ring=1 << 20)
        flow = MeteredFlow(inner, traffic)
        flow.opened()
        up = down = 0
        for upward, size in pieces:
            up, down = (up + size, down) if upward else (up, down + size)
            counted = ((max_up, up), (max_down, down), (both, up + down))
            fits = not any(limit is not None and used > limit for limit, used in counted)
            if upward and size:
                await inner.guest_send(bytes(size))
            try:
                if upward and size:
                    assert len(await flow.receive()) == size
                elif not upward:
                    await flow.send(bytes(size))
                assert fits or not (size or not upward)
            except Denied:
                assert not fits
        for each in (meter, free, traffic, flow):
            assert (each.up, each.down) == (up, down)

    asyncio.run(run())


def test_connections_are_counted_by_those_attached() -> None:
    one, two, traffic = Meter(refuse, max_connections=1), Meter(refuse), Traffic()
    traffic.connect()
    traffic.attach(two)
    traffic.attach(one)
    traffic.attach(one)
    assert (one.connections, two.connections) == (1, 1)
    with pytest.raises(Denied):
        traffic.connect()
    assert (one.connections, two.connections, traffic.connections) == (1, 1, 1)
    traffic.detach(one)
    traffic.connect()
    assert (one.connections, two.connections, traffic.connections) == (0, 2, 2)
    traffic.disconnect()
    traffic.disconnect()
    assert (one.connections, two.connections, traffic.connections) == (0, 0, 0)


def test_who_only_reports_lets_it_pass() -> None:
    seen: list[str] = []
    meter = Meter(seen.append, max_bytes=1, max_connections=0)
    meter.connect()
    meter.up += 5
    meter.passed()
    meter.check()
    assert seen == ["connections", "bytes", "bytes"] and meter.connections == 1


@async_test
async def test_traffic_is_kept_until_the_agent_exits() -> None:
    async with running(*plugins()) as runtime:
        traffic = runtime.traffic(AGENT)
        traffic.up = 5
        assert runtime.traffic(AGENT) is traffic
        runtime.agent_exited(AGENT, ExitReport("code"))
        assert runtime.traffic(AGENT).up == 0 and runtime.traffic(AGENT) is not runtime.traffic(AGENT)
        assert runtime._traffic == {}


@async_test
async def test_http_is_answered_before_and_reset_amid() -> None:
    server = Recorder(lambda head: b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + bytes(5000))
    async with serving(server, "a.example") as port, running(*plugins()) as runtime:
        traffic = runtime.traffic(AGENT)
        await lookup(runtime, "a.example", AGENT)
        meter = Meter(refuse)
        traffic.attach(meter)
        async with guest(runtime, "127.0.0.1", port, agent=AGENT) as flow:
            assert (await offload(flow, "a.example"))["ok"]
            request = f"GET / HTTP/1.1\r\nHost: a.example:{port}\r\n\r\n".encode()
            await flow.guest_send(request)
            assert (await read_response(flow))[0] == 200
            assert meter.down > 5000 and meter.up > len(request)
            meter.limit(max_down=meter.down + 10)
            await flow.guest_send(request)  # not a byte of the answer fits
            status, _, body = await read_response(flow)
            assert status == 403 and json.loads(body)["error"]["rule"] == "limit: bytes_down"
        meter.limit()
        async with guest(runtime, "127.0.0.1", port, agent=AGENT) as flow:
            assert (await offload(flow, "a.example"))["ok"]
            meter.limit(max_up=meter.up + 10)
            await flow.guest_send(request)
            assert (await read_response(flow))[0] == 403
        async with guest(runtime, "127.0.0.1", port, agent=AGENT) as flow:
            meter.limit(max_up=meter.up)
            assert await flow.guest_connected() == 13  # EACCES
        assert len(server.requests) == 2


@async_test
async def test_a_streaming_answer_is_cut() -> None:
    stream = Stream()
    async with serving(stream) as port, running(*plugins()) as runtime:
        meter = Meter(refuse, max_down=1000)
        runtime.traffic(AGENT).attach(meter)
        async with guest(runtime, "127.0.0.1", port, agent=AGENT) as flow:
            await flow.guest_send(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert b"200 OK" in await flow.guest_read_until(b"hello\r\n")
            assert meter.connections == 1
            stream.more.set()
            with pytest.raises(ConnectionResetError):
                while await flow.guest_receive():
                    pass
        assert meter.connections == 0


@async_test
async def test_an_upload_is_cut() -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass

    async with serving(swallow) as port, running(*plugins()) as runtime:
        meter = Meter(refuse, max_up=100_000)
        runtime.traffic(AGENT).attach(meter)
        async with guest(runtime, "127.0.0.1", port, agent=AGENT) as flow:
            head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 1000000\r\n\r\n".encode()
            with pytest.raises(BrokenPipeError):
                await flow.guest_send(head)
                while True:
                    await flow.guest_send(bytes(10_000))
            assert (await read_response(flow))[0] == 403


@async_test
async def test_raw_flows_are_reset_by_the_meters_of_their_destination() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    meter = Meter(refuse, max_bytes=10)
    async with serving(echo) as port, running(*plugins(a=meter)) as runtime:
        await lookup(runtime, "b.example", AGENT)
        async with guest(runtime, "127.0.0.1", port, agent=AGENT) as flow:
            await flow.guest_send(b"\x01" * 100)
            assert len(await flow.guest_receive()) == 100, "not its destination"
        await lookup(runtime, "a.example", AGENT)
        async with guest(runtime, "127.0.0.1", port, agent=AGENT) as flow:
            await flow.guest_send(b"\x01\x02\x03\x04\x05")
            assert len(await flow.guest_receive()) == 5
            await flow.guest_send(b"\x01")
            with pytest.raises(ConnectionResetError):
                await flow.guest_receive()
        assert (meter.up, meter.down) == (6, 5)
        async with guest(runtime, "127.0.0.1", port, agent=AGENT) as flow:
            await flow.guest_send(b"\x01")  # the bytes that told what it is count, too
            with pytest.raises(ConnectionResetError):
                await flow.guest_receive()


@async_test
async def test_datagrams_are_dropped_and_the_resolver_says_why() -> None:
    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, address: object) -> None:
            self.transport.sendto(data, address)  # type: ignore[attr-defined]

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Echo, ("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    meter, total = Meter(refuse, max_bytes=32), Meter(refuse, max_connections=1)
    agent = Agent("udp", "udp")
    try:
        async with running(*plugins(**{"127": meter})) as runtime:
            runtime.traffic(agent).attach(total)
            async with guest(runtime, "127.0.0.1", port, "udp", agent) as flow:
                for _ in range(2):
                    await flow.guest_send_datagram(bytes(8))
                    assert (await flow.guest_receive_datagram())[0] == bytes(8)
                assert total.connections == 1 and (meter.up, meter.down) == (16, 16)
                async with guest(runtime, "127.0.0.1", port, "udp", agent) as other:
                    await other.guest_send_datagram(b"a connection too many")
                    await until(lambda: runtime.counters["udp_refused"] == 1)
                await flow.guest_send_datagram(b"x")
                await until(lambda: runtime.counters["udp_dropped"] == 1)
                assert runtime.counters["flows_denied"] == 1
                assert (await lookup(runtime, "a.example", agent)).header.rcode == 0
                total.limit(max_up=total.up)
                answer = await lookup(runtime, "a.example", agent)
                assert answer.header.rcode == 5
                await flow.guest_send_datagram(b"x")
                await until(lambda: runtime.counters["udp_dropped"] == 2)
        assert total.connections == 0
    finally:
        transport.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
