"""The plugin in the path: guests in memory, the mock model server behind real TLS."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import agentfw_credentials
import msgspec
import pytest
from agentfw import Agent, ConfigError, Denied, Destination, ExitReport, Headers, RequestHead, ResponseHead, hookimpl
from agentfw.config import Config as File
from agentfw.mock_llm import MockLLM, MockOptions
from agentfw.model_calls import ModelCall
from agentfw.reports import AuditEvent
from agentfw.runtime import Runtime
from agentfw.testing import MemoryFlow, make_agent
from agentfw_inspect import BudgetConfig, Config, Plugin, PriceConfig

from tests.core.support import (
    CA,
    Handler,
    Loopback,
    Names,
    TlsOnce,
    async_test,
    guest,
    lookup,
    offload,
    read_response,
    running,
    serving,
)

from . import bodies as b

OPENAI, ANTHROPIC = "api.openai.com", "api.anthropic.com"
PRICES = {"gpt-4o": PriceConfig(2.0, 10.0, 1.0), "claude-*": PriceConfig(3.0, 15.0, 0.3, 3.75)}


class Third:
    """A third party: model calls, audit events, and refusals of its own."""

    name = "third"

    def __init__(self, refuse: str = "") -> None:
        self.calls: list[tuple[Agent, ModelCall]] = []
        self.events: list[AuditEvent] = []
        self.refuse = refuse

    @hookimpl(trylast=True)
    def request(self, head: RequestHead) -> None:
        if self.refuse == "request":
            raise Denied("third: no", "")

    @hookimpl(tryfirst=True)
    def response(self, head: ResponseHead) -> None:
        if self.refuse == "response":
            raise Denied("third: no answers", "")

    @hookimpl
    def model_call(self, agent: Agent, call: ModelCall) -> None:
        self.calls.append((agent, call))

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        self.events.append(event)


@dataclasses.dataclass
class Setup:
    """A runtime with the plugin and somewhere to call."""

    runtime: Runtime
    plugin: Plugin
    third: Third
    port: int
    mock: MockLLM | None = None

    @property
    def call(self) -> ModelCall:
        """The only one so far."""
        ((_, call),) = self.third.calls
        return call

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        return {table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in self.plugin.tables()}


def names() -> Names:
    return Names(**{OPENAI: "127.0.0.1", ANTHROPIC: "127.0.0.1"})


def context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CA.issue_cert(OPENAI, ANTHROPIC).configure_cert(made)
    return made


@asynccontextmanager
async def model(config: Config = Config(), third: Third | None = None, **options: Any) -> AsyncIterator[Setup]:  # noqa: B008
    plugin, third = Plugin(config), third or Third()
    async with (
        MockLLM(MockOptions(**options), ssl_context=context()) as mock,
        running(names(), Loopback(), TlsOnce(pooled=True), plugin, third) as runtime,
    ):
        yield Setup(runtime, plugin, third, mock.port, mock)
    assert not plugin._live and plugin._run.in_flight == 0 and plugin._run.reserved_output == plugin._run.reserved_input == 0


@asynccontextmanager
async def server(handler: Handler, config: Config = Config(), *plugins: object) -> AsyncIterator[Setup]:  # noqa: B008
    plugin, third = Plugin(config), Third()
    async with (
        serving(handler, OPENAI, ANTHROPIC) as port,
        running(names(), Loopback(), TlsOnce(), plugin, *plugins, third) as runtime,
    ):
        yield Setup(runtime, plugin, third, port)
    assert not plugin._live and plugin._run.in_flight == 0


@asynccontextmanager
async def connected(setup: Setup, host: str = OPENAI, agent: Agent | None = None) -> AsyncIterator[MemoryFlow]:
    await lookup(setup.runtime, host, agent)
    async with guest(setup.runtime, "127.0.0.1", setup.port, agent=agent) as flow:
        assert (await offload(flow, host))["ok"]
        yield flow


def head(body: object, path: str = "/v1/chat/completions", host: str = OPENAI, **more: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": host, "Content-Length": str(len(data))}
    fields |= {"x-api-key": "k", "anthropic-version": "1"} if host == ANTHROPIC else {"Authorization": "Bearer k"}
    text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in {**fields, **more}.items())
    return f"POST {path} HTTP/1.1\r\n{text}\r\n".encode() + data


async def ask(
    setup: Setup, body: object, path: str = "/v1/chat/completions", host: str = OPENAI, agent: Agent | None = None
) -> tuple[int, bytes]:
    """Status and body; (0, b"") if it was cut off."""
    async with connected(setup, host, agent) as flow:
        await flow.guest_send(head(body, path, host))
        with contextlib.suppress(ConnectionResetError, EOFError):
            status, _, data = await read_response(flow)
            return status, data
        return 0, b""


def chat(text: str = "hello there", **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **more}


def message(**more: Any) -> dict[str, Any]:
    return {"model": "claude-x", "max_tokens": 50, "messages": [{"role": "user", "content": "hello there"}], **more}


WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("body", "path", "host", "operation", "streamed"),
    [
        (chat(), "/v1/chat/completions", OPENAI, "chat", False),
        (chat(**WITH_USAGE), "/v1/chat/completions", OPENAI, "chat", True),
        ({"model": "gpt-4o", "prompt": "x", **WITH_USAGE}, "/v1/completions", OPENAI, "completion", True),
        ({"model": "gpt-4o", "input": "x"}, "/v1/responses", OPENAI, "response", False),
        ({"model": "gpt-4o", "input": "x", "stream": True}, "/v1/responses", OPENAI, "response", True),
        ({"model": "gpt-4o", "input": ["x", "y z"]}, "/v1/embeddings", OPENAI, "embedding", False),
        (message(), "/v1/messages", ANTHROPIC, "message", False),
        (message(stream=True), "/v1/messages", ANTHROPIC, "message", True),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" in value else "",
)
@async_test
async def test_counts_equal_the_servers(body: object, path: str, host: str, operation: str, streamed: bool) -> None:
    async with model(Config(prices=PRICES), cache_minimum=1) as setup:
        for _ in range(2):  # the second finds the prompt cached
            assert (await ask(setup, body, path, host))[0] == 200
        assert setup.mock is not None
        billed = setup.mock.stats()["usage"]
    for _, call in setup.third.calls:
        assert (call.operation, call.streamed, call.status) == (operation, streamed, 200)
        assert call.complete and not call.estimated
        assert call.requested_model == call.model == json.loads(json.dumps(body))["model"] and not call.failed
        assert (call.first_token is not None) == streamed and (call.first_token or 0) <= call.seconds
        assert call.rate_limits and call.cost is not None and call.currency == "USD"
    told = setup.plugin.statistics()
    assert {name: told[name] for name in billed} == billed
    assert told["calls"] == 2 and told["calls_failed"] == told["calls_estimated"] == told["calls_unpriced"] == 0
    plain = billed["input_tokens"] - billed["cache_read_tokens"]
    price = PRICES["claude-*" if host == ANTHROPIC else "gpt-4o"]
    cost = plain * price.input + billed["cache_read_tokens"] * (price.cache_read or 0) + billed["output_tokens"] * price.output
    assert told["cost"] == pytest.approx(cost / 1e6)


@async_test
async def test_cache_writes_and_reads_of_anthropic() -> None:
    part = {"type": "text", "text": "some long context here", "cache_control": {"type": "ephemeral"}}
    async with model(Config(prices=PRICES), cache_minimum=1) as setup:
        for _ in range(2):
            await ask(setup, message(system=[part], stream=True), "/v1/messages", ANTHROPIC)
        first, second = (call for _, call in setup.third.calls)
    assert first.cache_write_tokens == second.cache_read_tokens > 0 == first.cache_read_tokens
    assert first.input_tokens == second.input_tokens and (first.cost or 0) > (second.cost or 0)


@async_test
async def test_a_stream_that_does_not_tell_is_estimated() -> None:
    async with model() as setup:
        await ask(setup, chat(stream=True))
        assert setup.mock is not None
        billed = setup.mock.stats()["usage"]
        call = setup.call
    assert call.estimated and call.complete and call.input_tokens
    assert billed["output_tokens"] == 3 <= (call.output_tokens or 0) <= 6
    assert setup.plugin.statistics()["calls_estimated"] == 1 and call.cost is None


@pytest.mark.parametrize(("body", "path", "host"), [(chat(stream=True), "/v1/chat/completions", OPENAI),
                                                    (message(stream=True), "/v1/messages", ANTHROPIC)])  # fmt: skip
@async_test
async def test_a_cut_stream_is_an_estimate_and_says_so(body: object, path: str, host: str) -> None:
    async with model(cut_every=1, reply_tokens=40, latency=0.001) as setup:
        await ask(setup, body, path, host)
        call = setup.call
    assert call.estimated and not call.complete and call.error_type == "cut" and call.failed
    assert 5 < (call.output_tokens or 0) <= 40 and (call.input_tokens or 0) > 0
    assert setup.plugin.statistics()["calls_cut"] == 1


@async_test
async def test_an_agent_that_stops_listening_pays_for_what_came() -> None:
    async with model(tokens_per_second=200, reply_tokens=4000) as setup:
        async with connected(setup, ANTHROPIC) as flow:
            await flow.guest_send(head(message(stream=True, max_tokens=4000), "/v1/messages", ANTHROPIC))
            for _ in range(5):
                await flow.guest_read_until(b"text_delta")
        call = setup.call
    assert call.estimated and call.error_type == "cut" and 4 <= (call.output_tokens or 0) < 3000


@async_test
async def test_errors_are_the_providers_and_cost_nothing() -> None:
    async with model(Config(prices=PRICES), fail_every=1) as setup:
        status, _ = await ask(setup, chat())
        call = setup.call
        assert (status, call.status, call.error_type, call.failed) == (429, 429, "requests", True)
        assert call.error == "Rate limit reached for requests." and call.cost is None and not call.estimated
        assert call.rate_limits["retry-after"] == "1" and call.rate_limits["retry-after-ms"] == "20"
        assert "x-ratelimit-remaining-requests" in call.rate_limits
        assert {row["header"] for row in setup.tables()["rate_limits"]} == set(call.rate_limits)
        await ask(setup, chat())
    told = setup.plugin.statistics()
    assert told["calls"] == told["calls_failed"] == 2 and told["input_tokens"] == 0


@async_test
async def test_an_error_that_comes_as_an_answer_costs_nothing() -> None:
    handler, _, go = replying("application/json", b'{"error":{"type":"overloaded","message":"later"}}')
    go.put_nowait(None)
    async with server(handler, Config(prices=PRICES)) as setup:
        await ask(setup, chat())
        call = setup.call
    assert (call.status, call.error_type, call.input_tokens, call.cost, call.estimated) == (200, "overloaded", None, None, False)


@async_test
async def test_what_others_refuse_is_no_call() -> None:
    async with model(third=Third("request")) as setup:
        assert (await ask(setup, chat()))[0] == 403
        assert setup.third.calls == [] and setup.plugin.statistics()["calls"] == 0
    async with model(third=Third("response")) as setup:
        assert (await ask(setup, chat()))[0] == 403
        assert setup.call.error_type == "withheld" and setup.call.estimated and (setup.call.input_tokens or 0) > 0


@async_test
async def test_a_server_that_does_not_answer() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with server(silent) as setup:
        assert (await ask(setup, chat()))[0] == 502
        call = setup.call
    assert (call.status, call.error_type, call.output_tokens, call.estimated) == (0, "no_response", 0, True)


def replying(kind: str, *parts: bytes, extra: str = "") -> tuple[Handler, list[bytes], asyncio.Queue[None]]:
    """A server that sends `parts` as chunks, each after a `go`."""
    requests: list[bytes] = []
    go: asyncio.Queue[None] = asyncio.Queue()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{extra}Transfer-Encoding: chunked\r\n\r\n".encode())
        for part in parts:
            await go.get()
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await reader.read()

    return handler, requests, go


@pytest.mark.parametrize(
    ("stream", "path", "host"),
    [(b.CHAT_STREAM, "/v1/chat/completions", OPENAI), (b.MESSAGE_STREAM, "/v1/messages", ANTHROPIC)],
)
@async_test
async def test_each_event_passes_at_once(stream: bytes, path: str, host: str) -> None:
    """The server does not send the next one before the guest has the last, nor its second half before the first."""
    events = [event + b"\n\n" for event in stream.split(b"\n\n")[:-1]]
    halves = [half for event in events for half in (event[: len(event) // 2], event[len(event) // 2 :])]
    handler, _, go = replying("text/event-stream", *halves)
    async with server(handler) as setup, connected(setup, host) as flow:
        await flow.guest_send(head(chat(stream=True), path, host))
        await flow.guest_read_until(b"\r\n\r\n")
        for half in halves:
            go.put_nowait(None)
            assert (await flow.guest_read_until(half + b"\r\n")).endswith(half + b"\r\n")
        await flow.guest_read_until(b"0\r\n\r\n")
    assert (setup.call.input_tokens, setup.call.output_tokens, setup.call.estimated) == (100, 7, False)


@async_test
async def test_encodings_that_cannot_be_read_are_not_asked_for() -> None:
    for given, asked in [("gzip, deflate, br", b"identity"), ("gzip, deflate", b"gzip, deflate"), ("zstd;q=1", b"identity")]:
        handler, requests, go = replying("application/json", b.CHAT)
        go.put_nowait(None)
        async with server(handler) as setup, connected(setup) as flow:
            await flow.guest_send(head(chat(), Accept_Encoding=given))
            await flow.guest_read_until(b"0\r\n\r\n")
            assert b"Accept-Encoding: " + asked + b"\r\n" in requests[0]
    handler, requests, go = replying("application/json", b.CHAT)
    go.put_nowait(None)
    async with server(handler) as setup, connected(setup) as flow:
        await flow.guest_send(head(chat(), "/v1/models", Accept_Encoding="br"))
        await flow.guest_read_until(b"0\r\n\r\n")
    assert b"Accept-Encoding: br\r\n" in requests[0] and not setup.third.calls


@async_test
async def test_what_comes_in_an_unknown_encoding_passes_and_is_estimated() -> None:
    handler, _, go = replying("application/json", b"\x8b\x01", b"\x02", extra="Content-Encoding: br\r\n")
    go.put_nowait(None)
    go.put_nowait(None)
    async with server(handler) as setup:
        status, body = await ask(setup, chat())
    assert status == 200 and setup.call.estimated and setup.plugin.statistics()["unreadable"] == 1 and b"\x8b\x01" in body
    assert setup.call.output_tokens == 1


@async_test
async def test_an_agent_that_hangs_up_amid_a_document_pays_for_what_came() -> None:
    """It had read nearly all of its answer, for nothing."""
    body = json.dumps({"model": "gpt-4o", "choices": [{"message": {"content": "x" * 4000}}], "usage": b.USAGE}).encode()
    handler, _, go = replying("application/json", body[:-1], body[-1:])
    async with server(handler) as setup:
        async with connected(setup) as flow:
            await flow.guest_send(head(chat()))
            go.put_nowait(None)
            await flow.guest_read_until(b"xxxx")
        call = setup.call
        go.put_nowait(None)
    assert call.estimated and call.error_type == "cut" and 1000 <= (call.output_tokens or 0) < 1200


SECRET = "sk-real-77777777"


@async_test
async def test_no_secret_in_what_is_told() -> None:
    """The server quotes the key in its error, its headers and its model's name: what is read is what the agent gets, masked."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        assert SECRET.encode() in request
        body = json.dumps({"model": SECRET, "error": {"type": SECRET, "message": f"bad key {SECRET}"}}).encode()
        writer.write(f"HTTP/1.1 401 No\r\nx-ratelimit-for: {SECRET}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    class Refuses:
        name = "refuses"

        @hookimpl
        def response(self) -> None:
            raise Denied("refuses: it", "before anybody has masked it")

    async with serving(echo, OPENAI, ANTHROPIC) as port:
        rule = agentfw_credentials.RuleConfig(host=f"{OPENAI}:{port}", header="authorization", value="Bearer ${env:KEY}")
        credentials = agentfw_credentials.Plugin(agentfw_credentials.Config((rule,)), {"KEY": SECRET})
        for first, second in ((0, 1), (1, 0)):
            plugin, third = Plugin(Config()), Third()
            both = (plugin, credentials)
            async with running(names(), Loopback(), TlsOnce(), both[first], both[second], third) as runtime:
                setup = Setup(runtime, plugin, third, port)
                async with connected(setup) as flow:
                    await flow.guest_send(head(chat(), Authorization="Bearer sk-agentfw-placeholder"))
                    assert (await read_response(flow))[0] == 401
                assert setup.call.error.startswith("bad key ***")
                assert SECRET not in repr((third.calls, third.events, plugin.tables(), plugin.statistics()))
        plugin, third = Plugin(Config()), Third()
        async with running(names(), Loopback(), TlsOnce(), plugin, Refuses(), credentials, third) as runtime:
            setup = Setup(runtime, plugin, third, port)
            async with connected(setup) as flow:
                await flow.guest_send(head(chat(), Authorization="Bearer sk-agentfw-placeholder"))
                assert (await read_response(flow))[0] == 403
            assert (setup.call.error_type, setup.call.status, setup.call.input_tokens) == ("withheld", 403, None)
            assert SECRET not in repr((third.calls, third.events, plugin.tables(), plugin.statistics()))


# ---- whose


@async_test
async def test_calls_of_twenty_agents_are_told_apart() -> None:
    agents = [Agent(f"id-{n}", f"agent-{n}", {"team": "red" if n % 2 else "blue"}) for n in range(20)]
    async with model() as setup:

        async def work(n: int) -> None:
            for turn in range(n % 3 + 1):
                streamed = WITH_USAGE if turn % 2 else {}
                assert (await ask(setup, chat("word " * n, **streamed), agent=agents[n]))[0] == 200

        await asyncio.gather(*map(work, range(20)))
        assert setup.mock is not None
        billed = setup.mock.stats()
        tables = setup.tables()
        rows = {row["agent"]: row for row in tables["model_calls_by_agent"]}
        for n in range(20):
            mine = [call for agent, call in setup.third.calls if agent is agents[n]]
            row = rows[f"agent-{n}"]
            assert row["calls"] == len(mine) == n % 3 + 1
            assert row["input"] == sum(call.input_tokens or 0 for call in mine) > 0
        labels = {row["label"]: row["calls"] for row in tables["model_calls_by_label"]}
        assert labels == {
            "team=red": sum(n % 3 + 1 for n in range(1, 20, 2)),
            "team=blue": sum(n % 3 + 1 for n in range(0, 20, 2)),
        }
        total = tables["model_calls"][-1]
    assert (total["model"], total["calls"]) == ("all", billed["model_calls"])
    assert (total["input"], total["output"]) == (billed["usage"]["input_tokens"], billed["usage"]["output_tokens"])


@async_test
async def test_names_that_agents_make_up_are_bounded() -> None:
    async with model(fail_every=1, fail_status=400) as setup:
        async with connected(setup) as flow:
            for n in range(30):
                await flow.guest_send(head(chat() | {"model": f"made-up-{n}"}))
                await read_response(flow)
        assert [row["model"] for row in setup.tables()["model_calls"]] == ["(other)", "all"]
    async with model() as setup:
        setup.plugin._models._limit = 8
        async with connected(setup) as flow:
            for n in range(30):
                await flow.guest_send(head(chat() | {"model": f"made-up-{n}"}))
                await read_response(flow)
        assert len(setup.tables()["model_calls"]) == 8 + 1 + 1


@async_test
async def test_agents_that_ended_are_folded_and_others_are_not() -> None:
    async with model() as setup:
        setup.plugin._agents._limit = 4
        for n in range(10):
            agent = make_agent(f"a{n}")
            await ask(setup, chat(), agent=agent)
            if n:
                setup.runtime.agent_exited(agent, ExitReport("code"))
        rows = {row["agent"]: row["calls"] for row in setup.tables()["model_calls_by_agent"]}
    assert rows["a0"] == 1 and sum(rows.values()) == 10 and "(other)" in rows and len(rows) <= 5


@async_test
async def test_a_budget_counts_on_however_many_agents_and_labels_there_are() -> None:
    """An agent's row was folded while its budget still counted by it: of what it used from then on, nothing was seen."""
    async with model(Config(budget=(BudgetConfig(calls=2),))) as setup:
        setup.plugin._agents._limit = setup.plugin._labels._limit = 4
        agent = make_agent("old")
        assert (await ask(setup, chat(), agent=agent))[0] == 200
        for n in range(10):
            other = make_agent(f"a{n}", task=str(n))
            await ask(setup, chat(), agent=other)
            setup.runtime.agent_exited(other, ExitReport("code"))
        assert [(await ask(setup, chat(), agent=agent))[0] for _ in range(3)] == [200, 403, 403]


# ---- budgets


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def refusal(body: bytes) -> str:
    error = msgspec.json.decode(body)["error"]
    assert error["type"] == "agentfw_denied" and error["plugin"] == "inspect"
    return str(error["rule"])


@pytest.mark.parametrize(
    ("budget", "calls", "rule"),
    [
        (BudgetConfig(calls=3), 3, "inspect: 3 calls per agent"),
        (BudgetConfig(output_tokens=7), 3, "inspect: 7 output tokens per agent"),
        (BudgetConfig(tokens=1_000_000, input_tokens=1), 1, "inspect: 1 input tokens per agent"),
        (BudgetConfig(per="run", tokens=20), 3, "inspect: 20 tokens per run"),
        (BudgetConfig(per="label:team", calls=2), 2, "inspect: 2 calls per label:team"),
        (BudgetConfig(labels={"team": "red"}, cost=0.0001), 3, "inspect: 0.0001 USD per agent"),
        (BudgetConfig(calls=0), 0, "inspect: 0 calls per agent"),
    ],
)  # fmt: skip
@async_test
async def test_a_budget_ends_calls(budget: BudgetConfig, calls: int, rule: str) -> None:
    """A call of these uses 5 tokens of input, 3 of output and 40 millionths of a dollar."""
    agent = make_agent(team="red")
    async with model(Config(budget=(budget,), prices=PRICES)) as setup:
        for _ in range(calls):
            assert (await ask(setup, chat(), agent=agent))[0] == 200
        for _ in range(2):
            status, body = await ask(setup, chat(), agent=agent)
            assert status == 403 and refusal(body) == rule
        status, body = await ask(setup, {"anything": 1}, "/v1/batches", agent=agent)
        assert status == 403, "no other way to have a model work"
        other = make_agent("other", team="blue")
        assert (await ask(setup, chat(), agent=other))[0] == (403 if budget.per == "run" or budget.calls == 0 else 200)
        assert setup.mock is not None and setup.mock.stats()["requests"] == len(setup.third.calls)
    kinds = [(event.kind, event.rule) for event in setup.third.events if event.agent == "test"]
    assert kinds.count(("budget_used_up", rule)) == (1 if calls else 0) and ("denied", rule) in kinds
    assert setup.plugin.statistics()["calls_refused"] >= 3


@async_test
async def test_most_of_a_budget_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with model(Config(budget=(BudgetConfig(calls=10),))) as setup:
        for _ in range(10):
            await ask(setup, chat())
    told = [event for event in setup.third.events if event.plugin == "inspect" and event.kind != "denied"]
    assert [(event.kind, event.reason) for event in told] == [
        ("budget_warning", "8 of 10 calls"),
        ("budget_used_up", "10 of 10 calls"),
    ]
    assert [record.getMessage() for record in caplog.records if record.name == "agentfw.inspect"] == [
        "the budget 10 calls per agent is 80 % used: 8 of 10 calls (test)",
        "the budget 10 calls per agent is used up: 10 of 10 calls (test)",
    ]


@async_test
async def test_calls_in_flight_count() -> None:
    async with model(Config(budget=(BudgetConfig(calls=4), BudgetConfig(per="run", output_tokens=100))), latency=0.2) as setup:
        got = await asyncio.gather(*(ask(setup, chat(max_tokens=30)) for _ in range(12)))
        assert sorted(status for status, _ in got) == [200] * 4 + [403] * 8
        agents = [make_agent(f"a{n}") for n in range(12)]
        got = await asyncio.gather(*(ask(setup, chat(max_tokens=30), agent=agent) for agent in agents))
        passed = sum(status == 200 for status, _ in got)
    assert passed == 3, "12 tokens are used, and 30 reserved by each call: 12, 42, 72, 102"


@pytest.mark.parametrize(
    ("budget", "passed"),
    [
        (BudgetConfig(cost=0.05), 3),  # 20 millionths of a dollar, and 2 cents reserved by each
        (BudgetConfig(output_tokens=9000), 5),  # 2,000 by each
        (BudgetConfig(per="run", tokens=9000), 5),
    ],
)
@async_test
async def test_calls_are_not_let_in_by_their_heads_alone(budget: BudgetConfig, passed: int) -> None:
    """What a call may use is known once its body is there. Eight hold theirs back until all heads have been let in."""
    answer = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n0\r\n\r\n")
            await answer.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with server(handler, Config(budget=(budget,), prices=PRICES)) as setup, contextlib.AsyncExitStack() as stack:
        body = json.dumps(chat(max_tokens=2000)).encode()
        start = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {OPENAI}:{setup.port}\r\nTransfer-Encoding: chunked\r\n\r\n"
        flows = [await stack.enter_async_context(connected(setup)) for _ in range(8)]
        for flow in flows:
            await flow.guest_send(start.encode())
        async with asyncio.timeout(20):
            await until(lambda: setup.plugin._run.in_flight == 8)
            for flow in flows:
                await flow.guest_send(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
            await until(lambda: setup.plugin.statistics()["calls_refused"] == 8 - passed)
        answer.set()
        got = [(await read_response(flow))[0] for flow in flows]
        assert sorted(got) == [200] * passed + [403] * (8 - passed)
        assert setup.plugin.statistics()["calls_refused"] == 8 - passed
    run = setup.plugin._run
    assert run.asked_cost == run.asked_output == run.asked_input == 0


@pytest.mark.parametrize("claimed", [10**12, 10**307, 10**400], ids=["much", "a float's most", "no float"])
@async_test
async def test_no_claim_of_one_agent_uses_up_what_others_share(claimed: int) -> None:
    """Its call is in flight all the while; nor do others' reservations get lost in its own when that is taken back."""
    limits = BudgetConfig(per="run", tokens=10_000_000), BudgetConfig(per="run", cost=100.0)
    async with model(Config(budget=limits, prices=PRICES), tokens_per_second=20, reply_tokens=4000) as setup:
        evil, good, third = make_agent("evil"), make_agent("good"), make_agent("third")
        async with connected(setup, agent=good) as flow:
            await flow.guest_send(head(chat(stream=True, max_tokens=2000)))
            await flow.guest_read_until(b"data:")
            reserved = setup.plugin._run.reserved_cost
            assert reserved > 0.02
            async with connected(setup, agent=evil) as other:
                await other.guest_send(head(chat(stream=True, max_tokens=claimed)))
                assert b" 200 " in await other.guest_read_until(b"\r\n\r\n")
                assert (await ask(setup, chat(max_tokens=1), agent=third))[0] == 200
            await until(lambda: setup.plugin._run.in_flight == 1)
            assert setup.plugin._run.reserved_cost == pytest.approx(reserved)


@pytest.mark.parametrize("scheme", ["tls", "tcp", "udp"])
@async_test
async def test_what_cannot_be_counted_is_no_way_past_a_budget(scheme: str) -> None:
    budget = BudgetConfig(labels={"team": "red"}, calls=2)
    async with model(Config(budget=(budget,))) as setup:
        red, blue = make_agent("red", team="red"), make_agent("blue", team="blue")
        allow = setup.runtime.plugins.allow
        for host in (OPENAI, "eu.api.openai.com", "x.openai.azure.com"):
            with pytest.raises(Denied) as refused:
                await allow(red, Destination.make(scheme, host, 443))
            assert refused.value.rule == "inspect: 2 calls per agent" and refused.value.plugin == "inspect"
            await allow(blue, Destination.make(scheme, host, 443))
            await allow(red, Destination.make("https", host, 443))
        await allow(red, Destination.make(scheme, "elsewhere.example", 443))


@async_test
async def test_own_tls_and_bytes_inside_tls_are_no_way_past_a_budget() -> None:
    async with model(Config(budget=(BudgetConfig(calls=0),))) as setup:
        client, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = ssl.create_default_context().wrap_bio(client, out, server_hostname=OPENAI)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        await lookup(setup.runtime, OPENAI)
        async with guest(setup.runtime, "127.0.0.1", setup.port) as flow:
            await flow.guest_send(out.read())
            assert await flow.guest_read_all() == b"\x15\x03\x03\0\2\2\x31", "access denied"
        async with guest(setup.runtime, "127.0.0.1", setup.port) as flow:
            await offload(flow, OPENAI, alpn=[])
            await flow.guest_send(b"\0\0\0\4ping")
            with pytest.raises(OSError):
                await flow.guest_receive()
        assert setup.mock is not None and setup.mock.stats()["requests"] == 0


@async_test
async def test_a_switch_of_protocols_is_no_way_past_a_budget() -> None:
    more = {"Connection": "Upgrade", "Upgrade": "websocket"}
    request = f"GET /v1/realtime HTTP/1.1\r\nHost: {OPENAI}:%d\r\n" + "".join(f"{k}: {v}\r\n" for k, v in more.items())
    for budget, status in ((BudgetConfig(calls=9), 403), (BudgetConfig(calls=9, labels={"team": "red"}), 404)):
        async with model(Config(budget=(budget,))) as setup, connected(setup) as flow:
            await flow.guest_send((request % setup.port).encode() + b"\r\n")
            got, _, body = await read_response(flow)
            assert got == status and (status == 404 or refusal(body) == "inspect: 9 calls per agent")


@async_test
async def test_with_a_cost_budget_models_without_a_price_are_refused() -> None:
    async with model(Config(budget=(BudgetConfig(cost=5.0),), prices=PRICES)) as setup:
        for body in (chat() | {"model": "free-lunch"}, {"messages": []}):
            status, answer = await ask(setup, body)
            assert status == 403 and refusal(answer) == "inspect: 5 USD per agent"
        async with connected(setup) as flow:
            await flow.guest_send(head(chat(), Content_Encoding="gzip"))
            assert (await read_response(flow))[0] == 403
        assert (await ask(setup, chat()))[0] == 200
        assert setup.mock is not None and setup.mock.stats()["model_calls"] == 1


@async_test
async def test_an_agent_is_stopped_when_it_goes_on() -> None:
    stopped: list[str] = []
    async with model(Config(budget=(BudgetConfig(calls=1, stop=True),))) as setup:
        setup.runtime.can_stop(make_agent(), stopped.append)
        assert (await ask(setup, chat()))[0] == 200 and not stopped
        await ask(setup, chat())
    assert stopped == ["stopped by inspect: 1 calls per agent: used up: 1 of 1 calls (test)"]


@async_test
async def test_other_limits_for_what_was_counted() -> None:
    async with model(Config(budget=(BudgetConfig(calls=2),))) as setup:
        for status in (200, 200, 403):
            assert (await ask(setup, chat()))[0] == status
        commit = setup.plugin.reconfigure(Config(budget=(BudgetConfig(calls=3),)))
        assert (await ask(setup, chat()))[0] == 403, "not before it is committed"
        commit()
        for status in (200, 403):
            assert (await ask(setup, chat()))[0] == status
        assert setup.plugin.statistics()["calls"] == 3
    with pytest.raises(ConfigError):
        setup.plugin.reconfigure(msgspec.convert({"route": [{"host": "a b", "provider": "openai"}]}, Config))


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"budget": [{}]}, "inspect.budget.0"),
        ({"budget": [{"calls": -1}]}, "inspect.budget.0.calls"),
        ({"budget": [{"calls": 1, "per": "planet"}]}, "inspect.budget.0.per"),
        ({"budget": [{"calls": 1, "per": "label:"}]}, "inspect.budget.0.per"),
        ({"budget": [{"cost": 1.0}]}, "inspect.budget.0.cost"),
        ({"prices": {"m": {"input": -1.0}}}, "inspect.prices.m.input"),
        ({"prices": {"m": {"input": float("nan")}}}, "inspect.prices.m.input"),
        ({"currency": ""}, "inspect.currency"),
        ({"route": [{"host": "x.y", "provider": "mine"}]}, "inspect.route.0.provider"),
        ({"nonsense": 1}, "inspect.nonsense"),
    ],
)
def test_mistakes_in_the_table(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        File({"inspect": table}).plugin("inspect", Config)
    assert caught.value.key == key


def test_an_idle_plugin_shows_nothing() -> None:
    assert Plugin(Config()).tables() == []


@async_test
async def test_a_call_sent_again_is_one_call() -> None:
    """A kept connection was closed: the same request goes out again, and reserves once."""
    plugin, third = Plugin(Config()), Third()
    destination = Destination("https", OPENAI, 443)
    async with running(plugin, third):
        for _ in range(2):
            plugin.request(make_agent(), destination, RequestHead("POST", "/v1/chat/completions", Headers(), exchange=5))
        assert plugin._run.in_flight == 1 and len(plugin._live) == 1
