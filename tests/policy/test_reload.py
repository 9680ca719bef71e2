"""Another [policy] for agents that run: their open flows too, what they used so far, and nothing at all if it is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import agentfw_native
import pytest
from agentfw import ConfigError, Denied, Destination, hookimpl
from agentfw.config import Config, load_config
from agentfw.plugins import load_plugins
from agentfw.reports import AuditEvent
from agentfw.runtime import Runtime
from agentfw.testing import MemoryFlow, make_agent
from agentfw_policy import Plugin

from ..core.support import Names, Recorder, Stream, TlsOnce, async_test, guest, lookup, offload, read_response, serving
from .support import Clock, asked, policy, verdict

BASE = {"allow_addresses": ["127.0.0.1/32"]}
RED = make_agent("red", team="red")
BLUE = make_agent("blue", team="blue")


class Watch:
    name = "watch"

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        self.events.append(event)


@asynccontextmanager
async def serving_agents(**table: Any) -> AsyncIterator[tuple[Runtime, Watch]]:
    """The policy as it is loaded from a file, with stand-ins for names and TLS."""
    config = Config({"policy": BASE | table})
    manager = load_plugins(["policy"], config)
    watch = Watch()
    for plugin in (Names(**{"a.example": "127.0.0.1", "b.example": "127.0.0.1"}), TlsOnce(), watch):
        manager.add(getattr(plugin, "name", type(plugin).__name__), plugin)
    manager.add("native", agentfw_native.Plugin(agentfw_native.Config()))
    manager.compile()
    runtime = Runtime(asyncio.get_running_loop(), manager, config)
    await runtime.start()
    try:
        yield runtime, watch
    finally:
        await runtime.stop()


async def reload(runtime: Runtime, **table: Any) -> None:
    await runtime.reload(Config({"policy": BASE | table}))


@async_test
async def test_the_order_of_profiles_is_taken_over() -> None:
    """An agent's is the first that fits it; to Python, tables with other orders are the same."""
    strict = {"labels": {"team": "red"}, "deny": ["a.example"], "allow": ["b.example"]}
    lax = {"agents": ["red"], "allow": ["a.example"]}
    async with serving_agents(profile={"lax": lax, "strict": strict}) as (runtime, _):
        await runtime.plugins.allow(RED, Destination.make("https", "a.example"))
        assert (await runtime.reload(Config({"policy": BASE | {"profile": {"strict": strict, "lax": lax}}}))).tables == (
            "policy",
        )
        with pytest.raises(Denied):
            await runtime.plugins.allow(RED, Destination.make("https", "a.example"))
        again = Config({"policy": {"profile": {"strict": dict(reversed(strict.items())), "lax": lax}} | BASE})
        assert (await runtime.reload(again)).tables == (), "keys of a table that has its own have no order"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@async_test
async def test_a_raw_flow_is_reset() -> None:
    async with serving(echo) as port, serving_agents(allow=["a.example"]) as (runtime, _):
        await lookup(runtime, "a.example", RED)
        async with guest(runtime, "127.0.0.1", port, agent=RED) as flow:
            await flow.guest_send(b"\x01")
            assert await flow.guest_receive() == b"\x01"
            await reload(runtime, allow=["a.example", "b.example"])
            await flow.guest_send(b"\x02")
            assert await flow.guest_receive() == b"\x02", "still permitted: nothing happens to it"
            await reload(runtime, allow=["b.example"])
            with pytest.raises(ConnectionResetError):
                await flow.guest_receive()
        async with guest(runtime, "127.0.0.1", port, agent=RED) as flow:
            assert await flow.guest_connected() == 13


@async_test
async def test_a_kept_connection_and_a_stream() -> None:
    server, streaming = Recorder(), Stream()
    async with (
        serving(server, "a.example") as port,
        serving(streaming) as stream_port,
        serving_agents(allow=["a.example"]) as (runtime, _),
    ):
        for agent in (RED, BLUE):
            await lookup(runtime, "a.example", agent)
        async with (
            guest(runtime, "127.0.0.1", port, agent=RED) as kept,
            guest(runtime, "127.0.0.1", port, agent=BLUE) as untouched,
            guest(runtime, "127.0.0.1", stream_port, agent=RED) as stream,
        ):
            request = f"GET / HTTP/1.1\r\nHost: a.example:{port}\r\n\r\n".encode()
            for flow in (kept, untouched):
                assert (await offload(flow, "a.example"))["ok"]
                await flow.guest_send(request)
                assert (await read_response(flow))[0] == 200
            await stream.guest_send(f"GET / HTTP/1.1\r\nHost: a.example:{stream_port}\r\n\r\n".encode())
            await stream.guest_read_until(b"hello\r\n")
            await reload(runtime, allow=["a.example"], rule=[{"action": "deny", "host": "a.example", "labels": {"team": "red"}}])
            with pytest.raises(ConnectionResetError):
                await stream.guest_receive()
            with pytest.raises((ConnectionResetError, EOFError, BrokenPipeError)):
                await kept.guest_send(request)
                await read_response(kept)
            await untouched.guest_send(request)
            assert (await read_response(untouched))[0] == 200
            streaming.more.set()
        assert len(server.requests) == 3, "not a byte more went out"


@async_test
async def test_new_rules_for_requests_hold_on_a_kept_connection() -> None:
    server = Recorder()
    async with serving(server, "a.example") as port, serving_agents(allow=["a.example"]) as (runtime, _):
        await lookup(runtime, "a.example", RED)
        async with guest(runtime, "127.0.0.1", port, agent=RED) as flow:
            assert (await offload(flow, "a.example"))["ok"]
            for table, expected in (
                ({"allow": ["a.example"]}, 200),
                ({"rule": [{"action": "allow", "host": "a.example", "methods": ["PUT"]}]}, 403),
                ({"allow": ["a.example"], "limits": {"requests": 1}}, 403),
                ({"allow": ["a.example"], "limits": {"requests": 2}}, 200),
                ({"allow": ["a.example"], "limits": {"requests": 9}, "mode": "report"}, 200),
            ):
                await reload(runtime, **table)  # type: ignore[arg-type]
                await flow.guest_send(f"GET / HTTP/1.1\r\nHost: a.example:{port}\r\n\r\n".encode())
                assert (await read_response(flow))[0] == expected, table


@async_test
async def test_a_peer_of_a_datagram_socket_and_a_name_that_was_answered() -> None:
    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, address: object) -> None:
            got.append(data)
            self.transport.sendto(data, address)  # type: ignore[attr-defined]

    got: list[bytes] = []
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Echo, ("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    try:
        async with serving_agents(allow=["a.example"]) as (runtime, _):
            assert (await lookup(runtime, "a.example", RED)).header.rcode == 0
            async with guest(runtime, "127.0.0.1", port, "udp", RED) as flow:
                await flow.guest_send_datagram(b"1")
                assert (await flow.guest_receive_datagram())[0] == b"1"
                await reload(runtime, allow=["b.example"])
                await flow.guest_send_datagram(b"2")
                assert (await lookup(runtime, "a.example", RED)).header.rcode == 5, "answered or cached before, refused now"
                await flow.guest_send_datagram(b"3")
                assert (await lookup(runtime, "b.example", BLUE)).header.rcode == 0
        assert got == [b"1"]
    finally:
        transport.close()


@async_test
async def test_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    async with serving_agents(allow=["a.example"], profile={"p": {"allow": ["b.example"]}}) as (runtime, watch):
        named = make_agent("named", policy="p")
        await runtime.admit(named)
        plugin = runtime.plugins.get("policy")
        assert isinstance(plugin, Plugin)
        before = plugin._policy
        for table, key in (
            ({"allow": ["a b"]}, "policy.allow.0"),
            ({"allow": ["x.example"]}, "policy.profile"),  # an agent runs with a profile that is not there any more
            ({"allwo": ["x.example"]}, "policy.allwo"),
        ):
            with pytest.raises(ConfigError) as caught:
                await reload(runtime, **table)
            assert caught.value.key == key and plugin._policy is before
        assert "named runs with label policy=p" in [event.reason for event in watch.events if event.kind == "reload"][1]
        assert verdict(plugin, "tcp://b.example:1", named) == verdict(plugin, "tcp://a.example:1", RED) == "allowed"
        file = tmp_path / "agentfw.toml"
        file.write_text(
            '[policy]\nallow_addresses = ["127.0.0.1/32"]\n# moved\nallow = ["a.example"]\n'
            '[policy.profile.p]\ndeny = ["b.example"]\n'
        )
        await runtime.reload(load_config(file))
        assert verdict(plugin, "tcp://b.example:1", named) == "policy.profile.p.deny: b.example (agentfw.toml:6)"


def test_what_was_used_counts_on() -> None:
    clock = Clock()
    table: dict[str, Any] = {
        "allow": ["*"],
        "rule": [{"action": "allow", "host": "r.example", "name": "r", "limits": {"requests": 2}}],
    }
    plugin = policy(clock, **table, limits={"requests": 3, "requests_per_minute": 60})

    def change(**more: Any) -> None:
        plugin.reconfigure(policy(**(table | more))._policy.config)()

    assert [asked(plugin, "GET /", "https://a.example:443", RED) for _ in range(2)] == ["allowed"] * 2
    assert asked(plugin, "GET /", "https://r.example:443", RED) == "allowed"
    change(limits={"requests": 4, "requests_per_minute": 60})
    assert asked(plugin, "GET /", "https://r.example:443", RED) == "allowed"
    change(limits={"requests": 9})
    assert asked(plugin, "GET /", "https://r.example:443", RED) == "policy.rule: r, limits.requests: 2"
    change(limits={})
    assert [asked(plugin, "GET /", "https://a.example:443", RED) for _ in range(6)] == ["allowed"] * 6
    change(limits={"requests": 10}, profile={"p": {"labels": {"team": "red"}, "extends": "default", "limits": {"requests": 11}}})
    assert asked(plugin, "GET /", "https://a.example:443", RED) == "allowed"
    assert asked(plugin, "GET /", "https://a.example:443", RED) == "policy.profile.p.limits.requests: 11"
    plugin = policy(clock, allow=["*"])
    assert [asked(plugin, "GET /", "https://a.example:443", RED) for _ in range(3)] == ["allowed"] * 3
    change(limits={"requests": 4}, shared_limits={"requests": 4})
    assert [asked(plugin, "GET /", "https://a.example:443", RED) for _ in range(2)] == ["allowed", "policy.limits.requests: 4"]
    assert asked(plugin, "GET /", "https://a.example:443", BLUE) == "policy.shared_limits.requests: 4"


@async_test
async def test_bytes_that_were_used_count_on() -> None:
    async with serving(echo) as port, serving_agents(allow=["a.example"]) as (runtime, _):
        await lookup(runtime, "a.example", RED)
        async with guest(runtime, "127.0.0.1", port, agent=RED) as flow:
            await flow.guest_send(b"\x01" * 5000)
            received = 0
            while received < 5000:
                received += len(await flow.guest_receive())
            await reload(runtime, allow=["a.example"], limits={"bytes": "100K", "connections": 1})
            async with guest(runtime, "127.0.0.1", port, agent=RED) as second:
                assert await second.guest_connected() == 13, "the one that was open before is the one"
            await reload(runtime, allow=["a.example"], limits={"bytes": 10_100})
            await flow.guest_send(b"\x01" * 300)
            with pytest.raises(ConnectionResetError):
                while True:
                    await flow.guest_receive()


@async_test
async def test_limits_of_a_rule_come_and_go_for_open_flows() -> None:
    def table(**limits: Any) -> dict[str, Any]:
        return {"allow": ["a.example"], "rule": [{"action": "allow", "host": "a.example", "name": "a", "limits": limits}]}

    async with serving(echo) as port, serving_agents(**table()) as (runtime, _):
        await lookup(runtime, "a.example", RED)

        async def carries(flow: MemoryFlow) -> bool:
            try:
                await flow.guest_send(b"\x01" * 100)
                return bool(await flow.guest_receive())
            except (ConnectionResetError, BrokenPipeError):
                return False

        async with guest(runtime, "127.0.0.1", port, agent=RED) as flow:
            assert await carries(flow)
            await reload(runtime, **table(bytes=1000, connections=1))
            assert await carries(flow)
            async with guest(runtime, "127.0.0.1", port, agent=RED) as second:
                assert not await carries(second), "the one that was open counts"
            await reload(runtime, allow=["a.example"])
            for _ in range(10):
                assert await carries(flow), "the rule is gone, and its limits with it"
            await reload(runtime, **table(bytes=1000))
            assert not await carries(flow), "what it carried before is too much"
