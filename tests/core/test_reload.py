"""Another agentfw.toml for a runtime that serves flows: all of it or nothing, and open flows that it refuses end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import agentfw.runtime as runtime_module
import agentfw_native
import agentfw_policy
import msgspec
import pytest
from agentfw import Agent, ConfigError, Denied, Destination, RequestHead, TlsRequest, Upstream, hookimpl
from agentfw.config import Config, load_config
from agentfw.errors import AgentfwError, HookError, PluginError
from agentfw.plugins import PluginManager, load_plugins
from agentfw.reports import AuditEvent, ExchangeReport, FlowReport
from agentfw.runtime import Runtime
from agentfw.testing import MemoryFlow, make_agent, make_runtime

from .support import Loopback, Names, TlsOnce, async_test, exactly, guest, lookup, offload, running, serving

HOST = "api.example"
AGENT = make_agent()


class GateConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    closed: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class Gate:
    """Denies what its table says, from then on."""

    name = "gate"
    config_type = GateConfig

    def __init__(self, config: GateConfig | None = None) -> None:
        self.config = config or GateConfig()
        self.waiting: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.log: list[str] = []
        self.events: list[AuditEvent] = []
        self.flows: list[FlowReport] = []
        self.exchanges: list[ExchangeReport] = []

    def reconfigure(self, config: GateConfig) -> Callable[[], None]:
        self.log.append("prepare")
        if "bad" in config.closed:
            raise ConfigError(f"closed.{config.closed.index('bad')}", "is bad")

        def commit() -> None:
            self.log.append("commit")
            self.config = config

        return commit

    @hookimpl
    async def reloaded(self, runtime: Runtime) -> None:
        self.log.append("reloaded")

    @hookimpl
    async def allow(self, agent: Agent, destination: Destination) -> None:
        if destination.host in self.config.closed or str(destination) in self.config.closed:
            raise Denied(f"gate: {destination.host}", "it is closed")

    @hookimpl
    def dial(self, address: str) -> bool | None:
        return False if address in self.config.addresses else None

    @hookimpl
    async def connect(self) -> None:
        if self.waiting is not None:
            self.entered.set()
            await self.waiting.wait()

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        self.events.append(event)

    @hookimpl
    def flow_end(self, flow: FlowReport) -> None:
        self.flows.append(flow)

    @hookimpl
    def exchange_end(self, exchange: ExchangeReport) -> None:
        self.exchanges.append(exchange)


def closing(*hosts: str, addresses: tuple[str, ...] = ()) -> Config:
    return Config({"gate": {"closed": list(hosts), "addresses": list(addresses)}})


@asynccontextmanager
async def gated(*plugins: object) -> AsyncIterator[tuple[Runtime, Gate]]:
    gate = Gate()
    native = agentfw_native.Plugin(agentfw_native.Config(resolve=False))
    async with running(gate, Names(**{HOST: "127.0.0.1", "b.example": "127.0.0.1"}), Loopback(), *plugins, native) as runtime:
        yield runtime, gate


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request by a stream that does not end."""
    while True:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        while True:
            await asyncio.sleep(0.01)
            writer.write(b"5\r\nmore.\r\n")
            await writer.drain()


# -- what happens to flows


@async_test
async def test_raw_flows_to_what_is_now_denied_are_reset_and_others_go_on() -> None:
    async with serving(echo) as port, gated() as (runtime, gate):
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as mine:
            await mine.guest_send(b"\x00hello")
            assert await exactly(mine, 6) == b"\x00hello"
            await lookup(runtime, "b.example")
            async with guest(runtime, "127.0.0.1", port) as other:
                await other.guest_send(b"\x00again")
                assert await exactly(other, 6) == b"\x00again"
                assert len(runtime.uses) == 2
                done = await runtime.reload(closing(HOST))
                assert (done.tables, done.flows_cut, done.run_changed) == (("gate",), 1, False)
                with pytest.raises(ConnectionResetError):
                    await mine.guest_receive()
                await other.guest_send(b"\x00more")
                assert await exactly(other, 5) == b"\x00more"
        assert not runtime.uses
    assert [(flow.denied_rule, flow.kind) for flow in gate.flows if flow.error] == [(f"gate: {HOST}", "tcp")]
    assert [event.rule for event in gate.events if event.kind == "denied"] == [f"gate: {HOST}"]
    assert runtime.counters["flows_cut"] == 1


@async_test
async def test_an_address_that_is_now_denied_ends_what_is_connected_to_it() -> None:
    async with serving(echo) as port, gated() as (runtime, _):
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await flow.guest_send(b"\x00hello")
            assert await exactly(flow, 6) == b"\x00hello"
            assert (await runtime.reload(closing(addresses=("127.0.0.2",)))).flows_cut == 0
            assert (await runtime.reload(closing(addresses=("127.0.0.1",)))).flows_cut == 1
            with pytest.raises(ConnectionResetError):
                await flow.guest_receive()


@async_test
async def test_a_response_that_streams_is_cut() -> None:
    async with serving(endless, HOST) as port, gated(TlsOnce()) as (runtime, gate):
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            assert (await offload(flow, HOST))["ok"]
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            await flow.guest_read_until(b"more.")
            assert (await runtime.reload(closing("elsewhere.example"))).flows_cut == 0
            await flow.guest_read_until(b"more.")
            assert (await runtime.reload(closing(HOST))).flows_cut == 1
            with pytest.raises(ConnectionResetError):
                while True:
                    await flow.guest_receive()
    (exchange,) = gate.exchanges
    assert exchange.status == 200 and exchange.denied_rule == f"gate: {HOST}"


@async_test
async def test_a_response_is_cut_by_what_its_request_was() -> None:
    heads: list[RequestHead] = []

    class Paths:
        closed = ""

        @hookimpl
        def request(self, head: RequestHead) -> None:
            head.target = "/elsewhere"

        @hookimpl
        async def recheck(self, head: RequestHead) -> None:
            heads.append(head)
            if head.target == self.closed:
                raise Denied("paths", "closed")

    plugin = Paths()
    async with serving(endless, HOST) as port, gated(plugin, TlsOnce()) as (runtime, gate):
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow, guest(runtime, "127.0.0.1", port) as other:
            for each, target in ((flow, b"/mine"), (other, b"/other")):
                assert (await offload(each, HOST))["ok"]
                assert (await runtime.reload(closing())).flows_cut == 0, "nothing is being answered"
                await each.guest_send(b"GET %s HTTP/1.1\r\nHost: api.example\r\n\r\n" % target)
                await each.guest_read_until(b"more.")
            plugin.closed = "/mine"
            assert (await runtime.reload(closing())).flows_cut == 1
            with pytest.raises(ConnectionResetError):
                while True:
                    await flow.guest_receive()
            await other.guest_read_until(b"more.")
    assert {head.target for head in heads} == {"/mine", "/other"}, "as the agent wrote them"
    assert [exchange.denied_rule for exchange in gate.exchanges] == ["paths", ""]


@async_test
async def test_policy_looks_at_what_is_being_answered() -> None:
    policy = agentfw_policy.Plugin(Config({"policy": {"allow": [HOST]}}).plugin("policy", agentfw_policy.Config))
    async with serving(endless, HOST) as port, gated(policy, TlsOnce()) as (runtime, _):
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow, guest(runtime, "127.0.0.1", port) as other:
            for each, target in ((flow, b"/admin/x"), (other, b"/v1")):
                assert (await offload(each, HOST))["ok"]
                await each.guest_send(b"GET %s HTTP/1.1\r\nHost: api.example\r\n\r\n" % target)
                await each.guest_read_until(b"more.")
            rule = {"action": "deny", "host": HOST, "paths": ["/admin"]}
            before = runtime.statistics()["policy.requests"]
            assert (await runtime.reload(Config({"policy": {"allow": [HOST], "rule": [rule]}}))).flows_cut == 1
            assert runtime.statistics()["policy.requests"] == before
            with pytest.raises(ConnectionResetError):
                while True:
                    await flow.guest_receive()
            await other.guest_read_until(b"more.")


@async_test
async def test_an_idle_http_flow_is_reset() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with serving(answer, HOST) as port, gated(TlsOnce()) as (runtime, _):
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            assert (await offload(flow, HOST))["ok"]
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            await flow.guest_read_until(b"ok")
            assert (await runtime.reload(closing(HOST))).flows_cut == 1
            with pytest.raises(ConnectionResetError):
                await flow.guest_receive()


@async_test
async def test_what_was_refused_before_a_reload_is_not_held_against_a_flow() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with serving(answer, HOST) as port, gated(TlsOnce()) as (runtime, _):
        await runtime.reload(closing(f"tcp://127.0.0.1:{port}"))
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            assert (await offload(flow, HOST))["ok"]
            await runtime.reload(closing(f"tcp://{HOST}:{port}"))
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            assert (await flow.guest_read_until(b"ok")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("verdict", ["deny", "intercept"])
@async_test
async def test_tls_passed_through_ends_when_it_may_not_be_any_more(verdict: str) -> None:
    class OwnTls:
        verdict = "passthrough"

        @hookimpl
        def own_tls(self) -> str:
            return self.verdict

    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=HOST)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello, plugin = outgoing.read(), OwnTls()
    async with serving(echo) as port, gated(plugin) as (runtime, _):
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await flow.guest_send(hello)
            assert await exactly(flow, len(hello)) == hello
            assert (await runtime.reload(closing())).flows_cut == 0
            plugin.verdict = verdict
            assert (await runtime.reload(closing())).flows_cut == 1
            with pytest.raises(ConnectionResetError):
                await flow.guest_receive()


@async_test
async def test_a_connection_made_while_rules_change_is_vetted_again() -> None:
    """The flow's `allow` was asked before, its connection is there after."""

    class Late(agentfw_native.Plugin):
        name = "late"
        connected = asyncio.Event()
        go_on = asyncio.Event()

        @hookimpl
        async def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> Upstream | None:
            upstream = await super().connect(agent, destination, tls)
            self.connected.set()
            await self.go_on.wait()
            return upstream

    late = Late(agentfw_native.Config(resolve=False))
    async with serving(echo) as port, gated(late) as (runtime, _):
        for config in (closing(addresses=("127.0.0.1",)), closing(HOST)):
            await runtime.reload(closing())
            late.connected.clear()
            late.go_on.clear()
            connecting = asyncio.create_task(runtime.connect(AGENT, Destination("tcp", HOST, port), None))
            await late.connected.wait()
            await runtime.reload(config)
            late.go_on.set()
            with pytest.raises(Denied):
                await connecting


@async_test
async def test_a_flow_that_is_connecting_is_cut() -> None:
    async with serving(echo) as port, gated() as (runtime, gate):
        await lookup(runtime, HOST)
        gate.waiting = asyncio.Event()  # never set
        async with guest(runtime, "127.0.0.1", port) as flow:
            await flow.guest_send(b"\x00hello")
            await gate.entered.wait()
            assert (await runtime.reload(closing(HOST))).flows_cut == 1
            with pytest.raises(ConnectionResetError):
                await flow.guest_receive()


@async_test
async def test_udp_peers_are_cut() -> None:
    got: list[bytes] = []

    class Server(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            got.append(data)
            transport.sendto(data, addr)

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Server, ("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    async with gated() as (runtime, _):
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port, "udp") as flow:
            await flow.guest_send_datagram(b"one", "127.0.0.1", port)
            assert (await flow.guest_receive_datagram())[0] == b"one"
            assert (await runtime.reload(closing(HOST, "127.0.0.1"))).flows_cut == 1
            await asyncio.sleep(0.01)
            await flow.guest_send_datagram(b"two", "127.0.0.1", port)
            await asyncio.sleep(0.05)
    transport.close()
    assert got == [b"one"]


class Unsure:
    name = "unsure"
    reloads = 0

    @hookimpl
    def reloaded(self) -> None:
        self.reloads += 1

    @hookimpl
    def allow(self) -> None:
        if self.reloads:
            raise RuntimeError("secret")


@async_test
async def test_a_plugin_that_fails_to_answer_does_not_permit() -> None:
    async with serving(echo) as port, gated(Unsure()) as (runtime, _):
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await flow.guest_send(b"\x00hello")
            assert await exactly(flow, 6) == b"\x00hello"
            assert (await runtime.reload(closing())).flows_cut == 1
            with pytest.raises(ConnectionResetError):
                await flow.guest_receive()


@async_test
async def test_a_plugin_that_takes_its_time_keeps_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "RELOADED_PATIENCE", 0.01)

    class Slow:
        go_on = asyncio.Event()
        strict = False

        @hookimpl
        async def reloaded(self) -> None:
            await self.go_on.wait()
            self.strict = True

        @hookimpl
        def allow(self, destination: Destination) -> None:
            if self.strict and destination.host == "b.example":
                raise Denied("slow", "closed")

    plugin = Slow()
    async with serving(echo) as port, gated(plugin) as (runtime, _):
        flows: list[MemoryFlow] = []
        async with contextlib.AsyncExitStack() as stack:
            for name in (HOST, "b.example"):
                await lookup(runtime, name)
                flows.append(await stack.enter_async_context(guest(runtime, "127.0.0.1", port)))
                await flows[-1].guest_send(b"\x00hello")
                assert await exactly(flows[-1], 6) == b"\x00hello"
            reloading = asyncio.create_task(runtime.reload(closing(HOST)))
            with pytest.raises(ConnectionResetError):
                await flows[0].guest_receive()
            assert not reloading.done()
            plugin.go_on.set()
            assert (await reloading).flows_cut == 2, "it is asked again once it is ready"
            with pytest.raises(ConnectionResetError):
                await flows[1].guest_receive()


# -- all or nothing


class Second(Gate):
    name = "second"


@async_test
async def test_a_bad_table_changes_nothing(tmp_path: Path) -> None:
    first, second = Gate(), Second()
    runtime = make_runtime(first, second)
    file = tmp_path / "agentfw.toml"
    file.write_text('[gate]\nclosed = ["a.example"]\n\n[second]\nclosed = ["fine.example", "bad"]\n')
    before = runtime.config
    with pytest.raises(ConfigError) as caught:
        await runtime.reload(load_config(file))
    assert str(caught.value) == f"{file}:5: second.closed.1: is bad"
    assert first.log == second.log == ["prepare"] and first.config == GateConfig() and runtime.config is before
    assert runtime.counters["reloads_refused"] == 1 and not runtime.counters["reloads"]
    assert [(event.kind, event.reason) for event in first.events] == [("reload", f"refused: {caught.value}")]

    file.write_text('[gate]\nclosed = ["a.example"]\n')
    assert (await runtime.reload(load_config(file))).tables == ("gate",)
    assert first.log == ["prepare", "prepare", "commit", "reloaded"] and second.log == ["prepare", "reloaded"]
    assert (await runtime.reload(load_config(file))).tables == (), "nothing changed"


def fixed() -> object:
    class Fixed:
        name = "fixed"
        config_type = GateConfig

    return Fixed()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[fixed]\nclosed = ['x']", r":2: fixed.closed: .*restart"),
        ("[fixed]\nclosed = 5", r":2: fixed.closed: expected list of text, got integer"),
        ("[fixed]\nclsed = []", r":2: fixed.clsed: unknown key"),
        ("[bare]\nx = 1", r":1: bare: this plugin has no configuration"),
        ("[nobody]", r":1: nobody: unknown table"),
        ("[plugins.limits]\nalow = 1", r":2: plugins.limits.alow: no such hook"),
        ("[plugins.limits]\nother.allow = 1", r":2: plugins.limits.other: no such hook or plugin"),
        ("[plugins.limits]\ngate.alow = 1", r":2: plugins.limits.gate.alow: no such hook"),
        ("[plugins.limits]\ndial = 1", r":2: plugins.limits.dial: `dial` is never awaited"),
        ("[plugins.limits]\ngate.exchange_end = 1", r":2: plugins.limits.gate.exchange_end: `exchange_end` is never awaited"),
        ("[plugins.limits]\nallow = 0", r":2: plugins.limits.allow: must be more than 0"),
        ("[plugins.limits]\nallow = inf", r":2: plugins.limits.allow: must be more than 0"),
        ("[plugins.limits]\nallow = nan", r":2: plugins.limits.allow: must be more than 0"),
        ("[plugins]\nblocking = -1", r":2: plugins.blocking: must be more than 0"),
        ("[plugins]\nlimit = {}", r":2: plugins.limit: unknown key"),
        ("[run]\nmemory = 5", r":2: run.memory: expected text, got integer"),
    ],
)
@async_test
async def test_refusals_say_where(tmp_path: Path, table: str, message: str) -> None:
    class Bare:
        name = "bare"

    gate = Gate()
    runtime = make_runtime(gate, fixed(), Bare())
    file = tmp_path / "agentfw.toml"
    file.write_text(table + "\n")
    with pytest.raises(ConfigError, match=message):
        await runtime.reload(load_config(file))
    assert "commit" not in gate.log


@async_test
async def test_a_table_that_says_the_same_needs_no_restart() -> None:
    runtime = make_runtime(fixed())
    assert (await runtime.reload(Config({"fixed": {"closed": []}}))).tables == ()


@async_test
async def test_limits_take_effect() -> None:
    class Slow:
        name = "slow"

        @hookimpl
        async def resolve(self) -> bytes:
            await asyncio.sleep(60)
            return b""

    runtime = make_runtime(Slow())
    assert (await runtime.reload(Config({"plugins": {"limits": {"slow": {"resolve": 0.02}}}}))).tables == ("plugins",)
    with pytest.raises(HookError, match=r"no answer within 0\.02 s"):
        await runtime.plugins.resolve(AGENT, "x", 1, b"")
    await runtime.reload(Config({"plugins": {"limits": {"policy": {"allow": 5}}}}))  # installed, not in use


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('secret')", "`odd` failed in `reconfigure`: KeyError"),
        ("raise SystemExit(3)", "`odd` failed in `reconfigure`: SystemExit"),
        ("raise asyncio.CancelledError", "`odd` failed in `reconfigure`: CancelledError"),
        ("return None", "`odd` failed in `reconfigure`: returned NoneType"),
        ("return 5", "`odd` failed in `reconfigure`: returned int"),
        ("return asyncio.sleep", "`odd` failed in `reconfigure`: returned an `async` function"),
    ],
)
@pytest.mark.parametrize("form", ["def", "async def"])
@async_test
async def test_a_plugin_that_prepares_badly_changes_nothing(body: str, message: str, form: str) -> None:
    space: dict[str, Any] = {"asyncio": asyncio}
    exec(f"class Odd:\n    name = 'odd'\n    {form} reconfigure(self, config): {body}\n", space)
    plugin = space["Odd"]()
    plugin.config_type = GateConfig
    gate = Gate()
    runtime = make_runtime(gate, plugin)
    with pytest.raises(PluginError) as caught:
        await runtime.reload(Config({"gate": {"closed": ["x"]}, "odd": {"closed": ["x"]}}))
    expected = message if form == "def" else "`odd` failed in `reconfigure`: returned coroutine"
    assert expected in str(caught.value) and "secret" not in str(caught.value)
    assert gate.log == ["prepare"] and gate.config == GateConfig()


@pytest.mark.parametrize("raised", [KeyError, SystemExit, asyncio.CancelledError, KeyboardInterrupt])
@async_test
async def test_a_commit_that_fails_is_told_and_the_others_stand(raised: type[BaseException]) -> None:
    class Liar(Gate):
        name = "liar"

        def reconfigure(self, config: GateConfig) -> Callable[[], None]:
            def commit() -> None:
                raise raised("secret")

            return commit

    gate = Gate()
    runtime = make_runtime(Liar(), gate)
    with pytest.raises(HookError, match=f"`liar` failed in `reconfigure`: {raised.__name__}"):
        await runtime.reload(Config({"gate": {"closed": ["x"]}, "liar": {"closed": ["x"]}}))
    assert gate.config.closed == ("x",) and gate.log == ["prepare", "commit", "reloaded"]
    assert runtime.config.tables["gate"] == {"closed": ["x"]}


@async_test
async def test_a_commit_that_only_promises_has_failed() -> None:
    class Liar(Gate):
        name = "liar"

        def reconfigure(self, config: GateConfig) -> Callable[[], Any]:
            return lambda: asyncio.sleep(0)

    with pytest.raises(HookError, match="`liar` failed in `reconfigure`: TypeError after it had agreed"):
        await make_runtime(Liar()).reload(Config({"liar": {"closed": ["x"]}}))


@async_test
async def test_a_reloaded_hook_that_fails_is_logged_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Fails:
        name = "fails"

        @hookimpl
        async def reloaded(self) -> None:
            raise RuntimeError("secret")

    gate = Gate()
    runtime = make_runtime(Fails(), gate)
    await runtime.reload(closing("x"))
    assert gate.log[-1] == "reloaded" and "plugin `fails` failed in `reloaded`: RuntimeError" in caplog.messages


@async_test
async def test_other_plugins_need_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "agentfw.toml"
    file.write_text("[run]\nplugins = ['policy', 'native']\ntimeout = 5\n")
    config = load_config(file)
    runtime = Runtime(asyncio.get_running_loop(), load_plugins(config.run.plugins or (), config), config)
    file.write_text("[run]\nplugins = ['native', 'policy']\n")
    with pytest.raises(ConfigError, match=r":2: run\.plugins: .*restart"):
        await runtime.reload(load_config(file))
    file.write_text("[run]\nplugins = ['policy', 'native']\ntimeout = 6\n")
    assert (await runtime.reload(load_config(file))).run_changed
    named = load_plugins(["native"], load_config(file))  # by `--plugins`: what the file says is not in force
    file.write_text("[run]\nplugins = ['policy']\n")
    assert named.reload(load_config(file)) == []


@async_test
async def test_reloads_wait_for_each_other() -> None:
    class Slow(Gate):
        @hookimpl
        async def reloaded(self, runtime: Runtime) -> None:
            self.log.append("begin")
            await asyncio.sleep(0.01)
            self.log.append("end")

    gate = Slow()
    runtime = make_runtime(gate)
    await asyncio.gather(runtime.reload(closing("a")), runtime.reload(closing("b")))
    assert gate.log == ["prepare", "commit", "begin", "end"] * 2 and gate.config.closed == ("b",)


def test_a_manager_alone_reloads() -> None:
    manager = PluginManager()
    gate = Gate()
    manager.add("gate", gate)
    manager.compile()
    assert manager.reload(closing("a")) == ["gate"] and gate.config.closed == ("a",)
    with pytest.raises(AgentfwError):
        manager.reload(closing("bad"))
    assert manager.config.tables["gate"]["closed"] == ["a"]
