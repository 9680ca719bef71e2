"""Traces, as a collector gets them."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from agentfw import Agent, ConfigError, Denied, Destination, hookimpl
from agentfw.agents import ExitReport
from agentfw.config import load_config
from agentfw.model_calls import ModelCall
from agentfw.plugins import available, chosen_plugins, load_plugins
from agentfw.reports import AuditEvent, DispatchReport
from agentfw.runtime import Runtime
from agentfw.testing import FakeServer, PathError, Response, fetch, make_agent, make_runtime, running
from agentfw_inspect import Config as InspectConfig
from agentfw_inspect import Plugin as Inspect
from agentfw_otel import Config, Plugin
from agentfw_otel.headers import Source
from agentfw_otel.sending import _Session

from ..core.support import async_test
from ..pool.routers import until
from ..processes import alive
from .collector import Collector, collecting, status, values

VERTEX = Destination.make("https", "europe-west4-aiplatform.googleapis.com")
AZURE = Destination.make("https", "mine.openai.azure.com")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def made(collector: Collector, **table: Any) -> Plugin:
    return Plugin(Config(**{"endpoint": collector.url, "timeout": 2.0, **table}))


def call(**changes: Any) -> ModelCall:
    facts: dict[str, Any] = {
        "exchange": 1, "provider": "openai", "operation": "chat", "destination": Destination.make("https", "api.openai.com"),
        "requested_model": "gpt-4o", "model": "gpt-4o-2024-08-06", "streamed": True, "status": 200,
        "started": time.monotonic() - 1.5, "seconds": 1.5, "first_token": 0.25, "input_tokens": 70,
        "output_tokens": 20, "cache_read_tokens": 64, "cache_write_tokens": 3,
        "reasoning_tokens": 5, "complete": True,
        "cost": 0.0021, "currency": "USD", **changes,
    }  # fmt: skip
    return ModelCall(**facts)


ENDED = ExitReport("code")


async def lived(runtime: Runtime, agent: Agent, report: ExitReport = ENDED, calls: tuple[ModelCall, ...] = ()) -> None:
    await runtime.admit(agent)
    for each in calls:
        runtime.plugins.model_call(agent, each)
    runtime.agent_exited(agent, report)


@async_test
async def test_a_span_a_job_and_a_child_a_model_call(collector: Collector) -> None:
    agent = make_agent("writer", run="7")
    before = time.time_ns()
    async with running(made(collector)) as runtime:
        await runtime.admit(agent)
        report = DispatchReport(job="j1", tenant="acme", template="openai", worker=3, queued=0.5, dispatch=0.004, began=0.0)
        runtime.plugins.dispatched(agent, report)
        runtime.plugins.model_call(agent, call())
        runtime.agent_exited(agent, ExitReport("code", 3))
        assert runtime.plugins.statistics()["otel.spans"] == 2
    after = time.time_ns()
    job, child = collector.span("invoke_agent writer"), collector.span("chat gpt-4o")
    assert child.trace_id == job.trace_id and child.parent_span_id == job.span_id and not job.parent_span_id
    assert before <= job.start_time_unix_nano <= job.end_time_unix_nano <= after
    assert child.end_time_unix_nano - child.start_time_unix_nano == 1_500_000_000
    assert values(child.attributes) == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.model": "gpt-4o-2024-08-06", "gen_ai.request.stream": True, "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 70, "gen_ai.usage.output_tokens": 20, "gen_ai.usage.cache_read.input_tokens": 64,
        "gen_ai.usage.cache_write.input_tokens": 3, "gen_ai.usage.reasoning.output_tokens": 5,
        "server.address": "api.openai.com", "server.port": 443,
        "http.response.status_code": 200, "agentfw.cost": 0.0021, "agentfw.currency": "USD",
    }  # fmt: skip
    assert (child.kind, job.kind) == (3, 1) and child.status.code == 0 and job.status.code == 2
    found = values(job.attributes)
    assert found["agentfw.bytes_up"] == 0 and found["agentfw.exit.kind"] == "code" and found["process.exit.code"] == 3
    assert (found["gen_ai.agent.name"], found["agentfw.agent.id"], found["agentfw.label.run"]) == ("writer", agent.id, "7")
    assert (found["agentfw.job.id"], found["agentfw.tenant"], found["agentfw.worker"]) == ("j1", "acme", 3)
    (event,) = job.events
    assert event.name == "dispatched" and values(event.attributes) == {
        "agentfw.queued_seconds": 0.5,
        "agentfw.dispatch_seconds": 0.004,
    }
    assert collector.resource["service.name"] == "agentfw" and collector.requests[0][0] == "/v1/traces"
    assert collector.requests[0][1]["content-encoding"] == "gzip"


@async_test
async def test_a_span_lasts_as_long_as_its_job_whatever_the_clock_is_set_to(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends before it begins is thrown away, or said to last for centuries."""
    agents = make_agent("one"), make_agent("two")
    async with running(made(collector)) as runtime:
        for agent in agents:
            await runtime.admit(agent)
        real = time.time_ns
        monkeypatch.setattr("opentelemetry.sdk.trace.time_ns", lambda: real() - 3600 * 10**9)
        runtime.agent_exited(agents[0], ENDED)  # the other one ends with the plugin
    for agent in agents:
        span = collector.span(f"invoke_agent {agent.name}")
        assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 600 * 10**9


@async_test
async def test_a_call_is_when_it_was_though_it_is_told_later(collector: Collector) -> None:
    """`inspect` is told of exchanges many at a time."""
    began = time.time_ns()
    async with running(made(collector)) as runtime:
        await lived(runtime, make_agent("a"), calls=(call(started=runtime.loop.time() - 10, seconds=1.5),))
    child = collector.span("chat gpt-4o")
    assert child.end_time_unix_nano - child.start_time_unix_nano == 1_500_000_000
    assert began - 8_600_000_000 < child.end_time_unix_nano < time.time_ns() - 8_400_000_000


@async_test
async def test_a_real_call_and_a_real_refusal(collector: Collector) -> None:
    class Closed:
        @hookimpl
        def allow(self, destination: Destination) -> None:
            if destination.host == "evil.example":
                raise Denied("closed: evil", "no")

    body = b'{"object":"chat.completion","model":"gpt-4o","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}'
    server = FakeServer(lambda request: Response(200, {"content-type": "application/json"}, body))
    agent = make_agent("writer")
    async with running(made(collector), Inspect(InspectConfig()), Closed(), server) as runtime:
        await runtime.admit(agent)
        secret = {"authorization": "Bearer sk-agents-secret"}
        target = "https://api.openai.com/v1/chat/completions?key=sk-agents-secret"
        await fetch(runtime, target, method="POST", headers=secret, body=b'{"model":"gpt-4o"}', agent=agent)
        with pytest.raises(PathError):
            await fetch(runtime, "https://evil.example/", agent=agent)
        runtime.agent_exited(agent, ExitReport("code"))
    found = values(collector.span("chat gpt-4o").attributes)
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (7, 2)
    job = collector.span("invoke_agent writer")
    assert job.status.code == 0 and values(job.attributes)["agentfw.bytes_down"] > 100
    events = [values(event.attributes) for event in job.events if event.name == "agentfw.denied"]
    assert events and events[0]["agentfw.rule"] == "closed: evil" and "evil.example" in events[0]["agentfw.destination"]
    assert b"sk-agents-secret" not in b"".join(request.SerializeToString() for _, _, request in collector.requests)


@pytest.mark.parametrize(
    ("changes", "name", "attributes", "error"),
    [
        ({"provider": "anthropic", "operation": "message", "requested_model": "c"}, "chat c",
         {"gen_ai.provider.name": "anthropic"}, False),
        ({"provider": "gemini", "operation": "generate"}, "generate_content gpt-4o",
         {"gen_ai.provider.name": "gcp.gemini"}, False),
        ({"provider": "gemini", "operation": "generate", "destination": VERTEX}, "generate_content gpt-4o",
         {"gen_ai.provider.name": "gcp.vertex_ai"}, False),
        ({"destination": AZURE}, "chat gpt-4o", {"gen_ai.provider.name": "azure.ai.openai"}, False),
        ({"destination": Destination.make("https", "notapi.groq.com")}, "chat gpt-4o", {"gen_ai.provider.name": "openai"}, False),
        ({"provider": "anthropic", "operation": "message", "destination": VERTEX}, "chat gpt-4o",
         {"gen_ai.provider.name": "anthropic"}, False),
        ({"operation": "embedding", "first_token": None}, "embeddings gpt-4o", {"gen_ai.operation.name": "embeddings"}, False),
        ({"status": 429, "error_type": "rate_limit", "error": "slow down", "input_tokens": None}, "chat gpt-4o",
         {"error.type": "rate_limit", "http.response.status_code": 429}, True),
        ({"status": 0, "error_type": "no_response", "model": "", "requested_model": ""}, "chat",
         {"error.type": "no_response"}, True),
        ({"streamed": False, "first_token": None}, "chat gpt-4o", {}, False),
        ({"estimated": True}, "chat gpt-4o", {"agentfw.usage.estimated": True}, False),
        ({"requested_model": "x\x1b[31m\n" + "y" * 10_000}, None, {}, False),
    ],
)  # fmt: skip
@async_test
async def test_model_calls_of_all_kinds(
    collector: Collector, changes: dict[str, Any], name: str | None, attributes: dict[str, Any], error: bool
) -> None:
    async with running(made(collector)) as runtime:
        await lived(runtime, make_agent("a"), calls=(call(**changes),))
    (span,) = [span for span in collector.spans if span.kind == 3]
    assert name is None or span.name == name
    assert span.name.isprintable() and len(span.name) < 300
    found = values(span.attributes)
    assert found.get("gen_ai.request.stream", False) == changes.get("streamed", True), "only of requests that stream"
    assert attributes.items() <= found.items() and (span.status.code == 2) == error
    assert all(not isinstance(value, str) or (value.isprintable() and len(value) <= 512) for value in found.values())


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", True),
        (f"00-{TRACE.upper()}-{PARENT}-01", False),
        (f"ff-{TRACE}-{PARENT}-01", False),
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE}-{PARENT}-01-more", False),
        (f"00-{TRACE}-{PARENT}", False),
        ("", False),
        ("x" * 600, False),
        ("\n" * 55, False),
    ],
)
@async_test
async def test_a_job_may_have_a_parent(collector: Collector, text: str, fits: bool) -> None:
    sampled = text.endswith("-01") or not fits
    async with running(made(collector)) as runtime:
        await lived(runtime, make_agent("a", traceparent=text))
    if not sampled:
        assert not collector.requests, "who made it does not trace it"
        return
    (span,) = collector.spans
    assert (span.trace_id.hex() == TRACE and span.parent_span_id.hex() == PARENT) == fits
    assert fits or not span.parent_span_id
    assert "agentfw.label.traceparent" not in values(span.attributes)


@async_test
async def test_agents_may_be_told_their_span(collector: Collector) -> None:
    agent = make_agent("a", traceparent=f"00-{TRACE}-{PARENT}-01")
    async with running(made(collector, propagate=True)) as runtime:
        await runtime.admit(agent)
        told = runtime.plugins.environment(agent)["TRACEPARENT"]
        runtime.agent_exited(agent, ExitReport("code"))
    assert told == f"00-{TRACE}-{collector.spans[0].span_id.hex()}-01"
    async with running(made(collector)) as runtime:
        await runtime.admit(agent)
        assert "TRACEPARENT" not in runtime.plugins.environment(agent)
        runtime.agent_exited(agent, ExitReport("code"))


@async_test
async def test_what_is_sampled(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(made(collector, sample=0.0)) as runtime:
        await lived(runtime, make_agent("a"), calls=(call(),))
        assert runtime.plugins.statistics()["otel.spans"] == 0
    async with running(made(collector, sample=0.0)) as runtime:
        await lived(runtime, make_agent("b", traceparent=f"00-{TRACE}-{PARENT}-01"), calls=(call(),))
    assert [span.name for span in collector.spans] == ["chat gpt-4o", "invoke_agent b"]
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    async with running(made(collector)) as runtime:
        await lived(runtime, make_agent("c"))
    assert len(collector.spans) == 2


@async_test
async def test_the_standard_variables(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{collector.url}/base")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=k1")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=red")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    async with running(Plugin(Config(resource={"zone": "a"}))) as runtime:
        await lived(runtime, make_agent("a"))
    path, headers, _ = collector.requests[0]
    assert path == "/base/v1/traces" and headers["x-api-key"] == "k1"
    assert {"team": "red", "service.name": "mine", "zone": "a"}.items() <= collector.resource.items()
    async with running(made(collector, service="other")) as runtime:
        await lived(runtime, make_agent("a"))
    assert collector.resource["service.name"] == "other"


@async_test
async def test_labels_are_chosen(collector: Collector) -> None:
    async with running(made(collector, labels=("run",))) as runtime:
        await lived(runtime, make_agent("a", run="7", team="red"))
    found = values(collector.spans[0].attributes)
    assert found["agentfw.label.run"] == "7" and "agentfw.label.team" not in found


@pytest.mark.parametrize("broken", [False, True])
@async_test
async def test_secrets_are_masked_wherever_they_turn_up(collector: Collector, broken: bool) -> None:
    class Keeper:
        @hookimpl
        def redact(self, text: bytes) -> bytes:
            if broken:
                raise ValueError("x")
            return text.replace(b"hush-hush", b"*********")

    agent = make_agent("a", key="hush-hush")
    async with running(made(collector), Keeper()) as runtime:
        await runtime.admit(agent)
        runtime.plugins.dispatched(agent, DispatchReport(job="j", tenant="hush-hush", dispatch=0.1, began=0.0))
        runtime.audit(AuditEvent.about("denied", agent, rule="r", reason="é hush-hush é", plugin="p"))
        runtime.plugins.model_call(agent, call(requested_model="m-hush-hush", error_type="x", error="no hush-hush here"))
        runtime.agent_exited(agent, ExitReport("killed", text="hush-hush"))
    assert b"hush-hush" not in b"".join(request.SerializeToString() for _, _, request in collector.requests)
    job = collector.span("invoke_agent (hidden)" if broken else "invoke_agent a")
    (_, event) = job.events
    (child,) = [span for span in collector.spans if span is not job and span.kind == 3]
    if broken:
        assert set(values(event.attributes).values()) == {"(hidden)"} == {job.status.message, child.status.message}
        return
    assert values(event.attributes) == {"agentfw.rule": "r", "agentfw.plugin": "p", "agentfw.reason": "é ********* é"}
    assert child.name == "chat m-*********" and child.status.message == "no ********* here" and job.status.message == "*********"
    assert values(child.attributes)["gen_ai.response.model"] == "gpt-4o-2024-08-06"


# -- the collector misbehaves


@async_test
async def test_a_collector_that_stands_still_holds_nobody_up(collector: Collector) -> None:
    collector.go_on.clear()
    plugin = made(collector, queue=50, timeout=0.5)
    async with running(plugin) as runtime:
        for number in range(2000):
            await lived(runtime, make_agent(str(number)))
        numbers = runtime.plugins.statistics()
        assert numbers["otel.spans"] == 2000 and numbers["otel.waiting"] <= 50
        assert numbers["otel.dropped"] >= 2000 - 50 - 2 * 50 and numbers["otel.exported"] == 0
        collector.go_on.set()
    numbers = plugin.statistics()
    assert numbers["exported"] + numbers["failed"] + numbers["dropped"] == 2000 and numbers["waiting"] == 0


@pytest.mark.parametrize("code", [400, 401, 403, 500, 302, 307])
@async_test
async def test_failures_are_counted_and_told_once(
    collector: Collector, code: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "headers").write_text("x-api-key: hush-hush\n")
    collector.answer = status(code, Location=f"{collector.url}/elsewhere")
    plugin = made(collector, headers_file=str(tmp_path / "headers"), queue=1)
    async with running(plugin) as runtime:
        for number in range(3):
            await lived(runtime, make_agent(str(number)))
            await until(lambda: plugin.statistics()["failed"] + plugin.statistics()["dropped"] > number)  # noqa: B023 (awaited)
        assert runtime.plugins.statistics()["otel.exported"] == 0 and plugin.statistics()["failed"] >= 1
    assert {path for path, _, _ in collector.requests} == {"/v1/traces"}, (
        "a redirect is not followed: the headers are for one server"
    )
    (told,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (
        told.name == "agentfw.otel"
        and "hush" not in caplog.text
        and str(code) in told.getMessage()
        and "127.0.0.1" in told.getMessage()
    )


@async_test
async def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    plugin = Plugin(Config(endpoint="http://127.0.0.1:1", timeout=0.3))
    async with running(plugin) as runtime:
        await lived(runtime, make_agent("a"))
    assert plugin.statistics()["failed"] == 1
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == ["agentfw.otel"]
    assert "by 127.0.0.1:1: " in caplog.text, "which of this machine's collectors"


@async_test
async def test_an_answer_without_an_end_is_not_kept(collector: Collector) -> None:
    def flood(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 40))
        handler.end_headers()
        piece = b"x" * 65536
        try:
            for _ in range(10_000):
                handler.wfile.write(piece)
        except OSError:
            pass

    collector.answer = flood
    plugin = made(collector)
    async with running(plugin) as runtime:
        await lived(runtime, make_agent("a"))
    assert plugin.statistics()["exported"] == 1


@async_test
async def test_a_reload_changes_all_of_it(collector: Collector, tmp_path: Path) -> None:
    file = tmp_path / "agentfw.toml"
    (tmp_path / "headers").write_text("k: v\n")
    with collecting() as other:
        collector.go_on.clear()
        file.write_text(f'[otel]\nendpoint = "{collector.url}"\ntimeout = 2\n')
        async with running(load_plugins(["otel"], load_config(file)).get("otel"), config=load_config(file)) as runtime:
            running_on = make_agent("runs on")
            await runtime.admit(running_on)
            await lived(runtime, make_agent("before"))
            for wrong in ('endpoint = "nowhere"', 'headers_file = "gone"'):
                file.write_text(f"[otel]\n{wrong}\n")
                with pytest.raises(ConfigError):
                    await runtime.reload(load_config(file))
            file.write_text(f'[otel]\nendpoint = "{other.url}"\nservice = "new"\nheaders_file = "headers"\ntimeout = 2\n')
            await runtime.reload(load_config(file))
            await lived(runtime, make_agent("after"))
            runtime.plugins.model_call(running_on, call())
            runtime.agent_exited(running_on, ENDED)
            assert runtime.plugins.statistics()["otel.spans"] == 4
            collector.go_on.set()
        numbers = runtime.plugins.statistics()
        assert (numbers["otel.exported"], numbers["otel.dropped"], numbers["otel.waiting"]) == (4, 0, 0)
        assert [span.name for span in collector.spans] == ["invoke_agent before"]
        job, child = other.span("invoke_agent runs on"), other.span("chat gpt-4o")
        assert child.parent_span_id == job.span_id and other.span("invoke_agent after") and other.requests[0][1]["k"] == "v"
        assert other.resource["service.name"] in ("new", "agentfw")


@async_test
async def test_failures_after_a_reload_are_told_as_before(
    collector: Collector, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """By us, though what was sent to before it goes away meanwhile."""
    file = tmp_path / "agentfw.toml"
    with collecting() as other:
        other.answer = status(400)
        collector.go_on.clear()
        file.write_text(f'[otel]\nendpoint = "{collector.url}"\ntimeout = 5\nqueue = 1\n')
        plugin = load_plugins(["otel"], load_config(file)).get("otel")
        assert isinstance(plugin, Plugin)
        async with running(plugin, config=load_config(file)) as runtime:
            await lived(runtime, make_agent("before"))
            file.write_text(f'[otel]\nendpoint = "{other.url}"\ntimeout = 5\nqueue = 1\n')
            await runtime.reload(load_config(file))
            await lived(runtime, make_agent("one"))
            await until(lambda: plugin.statistics()["failed"] == 1)
            collector.go_on.set()
            await until(lambda: not plugin._closing)
            await lived(runtime, make_agent("two"))
            await until(lambda: plugin.statistics()["failed"] == 2)
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == ["agentfw.otel"]


@async_test
async def test_what_a_reload_leaves_behind_is_counted_as_lost(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of those that wait and of the one that is under way none stays "waiting", or is forgotten."""
    monkeypatch.setattr("agentfw_otel.plugin.STOP_SECONDS", 0.2)
    file = tmp_path / "agentfw.toml"
    file.write_text(f'[otel]\nendpoint = "{collector.url}"\ntimeout = 5\nqueue = 1\n')
    plugin = load_plugins(["otel"], load_config(file)).get("otel")
    assert isinstance(plugin, Plugin)
    collector.go_on.clear()
    async with running(plugin, config=load_config(file)) as runtime:
        await lived(runtime, make_agent("under way"))
        await until(lambda: not plugin.statistics()["waiting"])
        await lived(runtime, make_agent("waits"))
        assert plugin.statistics()["waiting"] == 1
        with collecting() as other:
            file.write_text(f'[otel]\nendpoint = "{other.url}"\n')
            await runtime.reload(load_config(file))
            await until(lambda: not plugin._closing)
        numbers = plugin.statistics()
        assert (numbers["spans"], numbers["failed"], numbers["waiting"]) == (2, 2, 0)
        collector.go_on.set()


# -- headers


@async_test
async def test_headers_of_a_file_are_read_again(collector: Collector, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# for the collector\n\nx-api-key: one\nX-Scope: a b\n")
    plugin = made(collector, headers_file=str(file), queue=1)
    async with running(plugin) as runtime:
        await lived(runtime, make_agent("a"))
        await until(lambda: plugin.statistics()["exported"] >= 1)
        file.write_text("x-api-key: another\n")
        await lived(runtime, make_agent("b"))
        await until(lambda: plugin.statistics()["exported"] >= 2)
        file.unlink()
        await lived(runtime, make_agent("c"))
    assert [headers["x-api-key"] for _, headers, _ in collector.requests] == ["one", "another", "another"]
    assert collector.requests[0][1]["x-scope"] == "a b"


@async_test
async def test_headers_of_a_program_are_asked_for_again_when_they_are_refused(collector: Collector, tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f'n=$(cat {count} 2>/dev/null || echo 0); n=$((n+1)); echo $n > {count}; echo "authorization: Bearer t$n"'

    def only_the_second(handler: Any) -> None:
        status(200 if handler.headers["authorization"] == "Bearer t2" else 401)(handler)

    collector.answer = only_the_second
    plugin = made(collector, headers_command=("sh", "-c", script))
    async with running(plugin) as runtime:
        await lived(runtime, make_agent("a"))
    assert plugin.statistics()["exported"] == 1
    assert [headers["authorization"] for _, headers, _ in collector.requests] == ["Bearer t1", "Bearer t2"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [("x-api-key", "line 1 is no header"), ("a: b\nx y: z", "line 2"), ("k: \x01", "line 1"), ("Host: evil", "`Host`"),
     ("k: é", "ASCII"), ("k: v\n" * 20_000, "64 KiB"), (None, "No such file")],
)  # fmt: skip
@async_test
async def test_headers_that_are_none(collector: Collector, tmp_path: Path, text: str | None, fault: str) -> None:
    if text is not None:
        (tmp_path / "headers").write_text(text)
    with pytest.raises(ConfigError, match=fault) as raised:
        async with running(made(collector, headers_file=str(tmp_path / "headers"))):
            pass
    assert raised.value.key == "otel.headers_file"


@pytest.mark.parametrize("command", [("false",), ("/nowhere",), ("echo", "nonsense"), ("yes", "k: v")])
@async_test
async def test_programs_that_print_none(collector: Collector, command: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as raised:
        async with running(made(collector, headers_command=command)):
            pass
    assert raised.value.key == "otel.headers_command"


@async_test
async def test_what_a_program_started_ends_with_it(collector: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It has ended at once, but another has its output still."""
    monkeypatch.setattr("agentfw_otel.headers.COMMAND_SECONDS", 2.0)
    began = tmp_path / "began"
    with pytest.raises(ConfigError, match="did not end within") as raised:
        async with running(made(collector, headers_command=("sh", "-c", f"sleep 60 & echo $! > {began}; echo k: v"))):
            pass
    assert raised.value.key == "otel.headers_command"
    await until(lambda: not alive([int(began.read_text())]))


@async_test
async def test_a_program_that_is_under_way_ends_with_the_plugin(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("agentfw_otel.plugin.STOP_SECONDS", 0.2)
    before, ended = tmp_path / "before", tmp_path / "ended"
    script = f"if test -e {before}; then sleep 8; touch {ended}; fi; touch {before}; echo k: v"
    collector.answer = status(401)
    plugin = made(collector, headers_command=("sh", "-c", script))
    async with running(plugin) as runtime:
        await lived(runtime, make_agent("a"))
    source = plugin._spans.sending._source
    await until(lambda: not source._running)
    assert before.exists() and not ended.exists() and len(collector.requests) == 1


@async_test
async def test_who_gives_up_the_start_does_not_wait_for_a_program(collector: Collector, tmp_path: Path) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    plugin = made(collector, headers_command=("sh", "-c", f"touch {began}; sleep 20; touch {ended}; echo k: v"))
    runtime = make_runtime(plugin)
    starting = asyncio.create_task(runtime.start())
    await until(began.exists)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: not plugin._spans.sending._source._running)
    assert not ended.exists()


@async_test
async def test_headers_for_this_machine_go_through_no_proxy(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "headers").write_text("x-api-key: hush-hush\n")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with collecting() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        async with running(made(collector, headers_file=str(tmp_path / "headers"))) as runtime:
            await lived(runtime, make_agent("a"))
        assert len(collector.spans) == 1 and not proxy.requests


@async_test
async def test_nor_do_those_over_https(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector speaks no TLS: that nobody else is asked is what counts."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        plugin = Plugin(Config(endpoint=f"https://127.0.0.1:{collector.port}", timeout=0.5))
        async with running(plugin) as runtime:
            await lived(runtime, make_agent("a"))
        assert plugin._spans.sending.exporter.failed == 1
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_what_netrc_has_does_not_go_before_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine collector.example login me password other\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    session = _Session(Source(Config()))
    asked = requests.Request("POST", "https://collector.example/v1/traces", headers={"Authorization": "Bearer key"})
    assert session.prepare_request(asked).headers["Authorization"] == "Bearer key"


def test_agents_must_not_see_the_headers(tmp_path: Path, collector: Collector) -> None:
    plugin = made(collector, headers_file=str(tmp_path / "headers"))
    plugin.check_guest(None, {}, lambda path: False)
    with pytest.raises(ConfigError, match="the agents see"):
        plugin.check_guest(None, {}, lambda path: path == tmp_path)


@pytest.mark.parametrize(
    "table",
    ['endpoint = "ftp://x"', 'endpoint = "http://"', 'endpoint = "http://user:pw@x"', 'endpoint = "http://x?y"', 'endpoint = "x"',
     "sample = 1.5", "timeout = 0", "queue = 0", 'headers_file = ""', 'headers = {a = "b"}',
     'headers_file = "a"\nheaders_command = ["b"]', 'endpoint = "http://collector.example"\nheaders_file = "a"',
     'compression = "zip"', 'headers_command = [""]'],
)  # fmt: skip
def test_tables_that_are_wrong(tmp_path: Path, table: str) -> None:
    (tmp_path / "agentfw.toml").write_text(f"[otel]\n{table}\n")
    with pytest.raises(ConfigError, match="otel"):
        load_plugins(["otel"], load_config(tmp_path / "agentfw.toml"))


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_headers_go_over_no_network_in_the_clear_wherever_a_variable_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "http://collector.example:4318")
    (tmp_path / "agentfw.toml").write_text('[otel]\nheaders_file = "a"\n')
    with pytest.raises(ConfigError, match="in the clear"):
        load_plugins(["otel"], load_config(tmp_path / "agentfw.toml"))
    monkeypatch.setenv(name, "https://collector.example:4318")
    load_plugins(["otel"], load_config(tmp_path / "agentfw.toml"))


def test_the_plugin_is_there_and_chosen_by_its_table(tmp_path: Path) -> None:
    (tmp_path / "agentfw.toml").write_text('[otel]\nendpoint = "http://127.0.0.1:4318"\n')
    config = load_config(tmp_path / "agentfw.toml")
    assert "otel" in available() and "otel" in chosen_plugins(config)
    assert load_plugins(["otel"], config).names == ["otel"]


def test_without_its_packages_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "agentfw.toml").write_text("[otel]\n")
    program = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("opentelemetry", "requests"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
from agentfw.cli import main
main(["run", "--config", "agentfw.toml", "-c", "print(1)"])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 125 and "pip install 'agentfw[otel]'" in done.stderr and "Traceback" not in done.stderr, done.stderr


# -- bounds


@async_test
async def test_an_agent_that_is_refused_over_and_over(collector: Collector) -> None:
    agent = make_agent("a")
    async with running(made(collector)) as runtime:
        await runtime.admit(agent)
        for number in range(1000):
            runtime.audit(AuditEvent.about("denied", agent, rule=f"r{number}", reason="x" * 10_000))
        runtime.audit(AuditEvent.about("denied", make_agent("nobody"), rule="r"))
        runtime.agent_exited(agent, ExitReport("killed", text="too much"))
    (span,) = collector.spans
    assert len(span.events) == 64 and span.dropped_events_count == 936
    assert values(span.events[-1].attributes)["agentfw.rule"] == "r999", "the latest are kept, as docs/otel.md says"
    assert all(len(value) <= 512 for event in span.events for value in values(event.attributes).values())
    assert values(span.attributes)["error.type"] == "killed" and span.status.message == "too much"


@async_test
async def test_nothing_is_kept_of_agents_that_ended(collector: Collector) -> None:
    plugin = made(collector)
    async with running(plugin) as runtime:
        for number in range(20):
            await lived(runtime, make_agent(str(number)))
        runtime.plugins.model_call(make_agent("late"), call())
        assert not plugin._live
        await runtime.admit(make_agent("runs"))
    assert not plugin._live and len(collector.spans) == 21, "that which ran was ended with the rest"
