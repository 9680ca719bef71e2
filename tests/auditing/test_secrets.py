"""Real credentials never stand in the log: injected, echoed by servers in heads, bodies and errors, and sent by agents that
should not have them."""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from agentfw import hookimpl
from agentfw.agents import ExitReport
from agentfw.config import load_config
from agentfw.plugins import load_plugins
from agentfw.reports import AuditEvent
from agentfw.testing import FakeServer, PathError, Response, fetch, make_agent, running
from agentfw_audit import Config, Plugin
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.support import async_test

HOST = "api.openai.com"
SECRET_TEXT = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+/=", min_size=16, max_size=60)


def spellings(secret: str) -> set[str]:
    """How it could stand in a line of JSON."""
    raw = secret.encode()
    return {
        secret, urllib.parse.quote(secret, safe=""), urllib.parse.quote(secret), base64.b64encode(raw).decode().rstrip("="),
        raw.hex(), secret.replace("/", "\\/"),
    }  # fmt: skip


def answers(secret: str, how: str) -> Response:
    """A server that says it back."""
    if how == "error":
        body = f'{{"error": {{"type": "invalid_request_error", "message": "Incorrect API key provided: {secret}"}}}}'
        return Response(401, {"content-type": "application/json", "x-request-key": secret}, body.encode())
    if how == "model":
        body = f'{{"model": "{secret}", "object": "chat.completion", "choices": [], "usage": {{"prompt_tokens": 1}}}}'
        return Response(200, {"content-type": "application/json"}, body.encode())
    if how == "stream":
        event = f'data: {{"model": "{secret}", "choices": [{{"delta": {{"content": "{secret}"}}}}]}}\n\ndata: [DONE]\n\n'.encode()
        return Response(200, {"content-type": "text/event-stream"}, [event[at : at + 7] for at in range(0, len(event), 7)])
    if how == "redirect":
        return Response(302, {"location": f"https://{secret}.example/?key={secret}"}, b"")
    return Response(200, {"content-type": "text/plain"}, secret.encode())


async def everything_told(tmp_path: Path, secret: str, how: str) -> bytes:
    """All lines of an agent's life in which its credential is injected, said back, and sent by the agent itself."""
    path = tmp_path / "audit.jsonl"
    path.unlink(missing_ok=True)
    (tmp_path / "secret").write_text(secret)
    kinds = '["events", "decisions", "exchanges", "flows", "model_calls", "exits", "jobs", "questions"]'
    (tmp_path / "agentfw.toml").write_text(
        f'[audit]\nfile = "audit.jsonl"\nqueries = true\nevents = {kinds}\n'
        f'[[credentials.rule]]\nhost = "{HOST}"\nheader = "authorization"\nvalue = "Bearer ${{file:{tmp_path}/secret}}"\n'
        "[inspect]\n"
    )
    config = load_config(tmp_path / "agentfw.toml")
    named = load_plugins(["credentials", "inspect", "audit"], config)
    plugins = [named.get(name) for name in ("credentials", "inspect", "audit")]
    server = FakeServer(lambda request: answers(secret, how))
    agent = make_agent("a")
    sent: list[Any] = []
    body = b'{"model": "m", "messages": []}'
    async with running(*plugins, server, config=config) as runtime:
        for url, headers, data in (  # the last ones it should not even know
            (f"https://{HOST}/v1/chat/completions", {"authorization": "Bearer sk-agentfw-placeholder"}, body),
            (f"https://{HOST}/v1/chat/completions?key={urllib.parse.quote(secret)}", {}, body),
            (f"https://{HOST}/v1/{urllib.parse.quote(secret, safe='')}", {}, body),
            (f"https://{HOST}/v1/{base64.b64encode(secret.encode()).decode()}", {}, body),
            (f"https://{HOST}/v1/chat/completions", {"x-api-key": secret}, body),
            (f"https://{HOST}/v1/chat/completions", {}, b'{"model": "' + secret.encode() + b'"}'),
        ):
            try:
                response = await fetch(runtime, url, method="POST", headers=headers, body=data, agent=agent)
                sent.append(response)
            except PathError:
                pass
        runtime.agent_exited(agent, ExitReport("code", text=f"it said {secret}"))
    assert any(secret in str(dict(request.headers)) for request in server.requests), "it was injected"
    assert not any(secret.encode() in response.body for response in sent), "and masked"
    return path.read_bytes()


@pytest.mark.parametrize("how", ["error", "model", "stream", "redirect", "plain"])
@async_test
async def test_no_line_has_it(how: str, tmp_path: Path) -> None:
    secret = "sk-real/0123456789+abcdefXYZ="
    text = (await everything_told(tmp_path, secret, how)).decode()
    assert text.count("\n") > 8 and '"event":"exchange"' in text and '"event":"denied"' in text
    assert not [each for each in spellings(secret) if each in text]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(SECRET_TEXT, st.sampled_from(["error", "model", "stream", "redirect", "plain"]))
def test_no_line_has_whatever_it_is(tmp_path: Path, secret: str, how: str) -> None:
    @async_test
    async def run() -> None:
        text = (await everything_told(tmp_path, secret, how)).decode()
        assert not [each for each in spellings(secret) if each in text]

    run()


@async_test
async def test_what_cannot_be_looked_into_is_not_written(tmp_path: Path) -> None:
    class Fails:
        name = "fails"

        @hookimpl
        def redact(self, text: bytes) -> bytes | None:
            if b"first" in text:
                raise ValueError("secret")
            return b"short" if b"second" in text else text.replace(b'"', b"*") if b"third" in text else None

    path = tmp_path / "a"
    async with running(Fails(), Plugin(Config(str(path)))) as runtime:
        for name in ("first", "second", "third", "fourth"):
            runtime.audit(AuditEvent.about(name))
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line.get("reason", "")) for line in told] == [
        ("dropped", "plugin `fails` failed in `redact`: ValueError"),
        ("dropped", "plugin `fails` failed in `redact`: returned bytes, not as many bytes"),
        ("dropped", "what must not be written stood across its fields"),
        ("fourth", ""),
    ]


@pytest.mark.parametrize("mask", [rb"hidden", rb'[^,]+"}\n{"time":[0-9.]+'], ids=["in a line", "across two lines"])
@async_test
async def test_lines_are_looked_into_many_at_once_and_stay_lines(tmp_path: Path, mask: bytes) -> None:
    class Masks:
        name = "masks"
        looks = 0

        @hookimpl
        def redact(self, text: bytes) -> bytes | None:
            self.looks += 1
            return re.sub(mask, lambda found: b"*" * len(found[0]), text)

    path, masks = tmp_path / "a", Masks()
    async with running(masks, Plugin(Config(str(path)))) as runtime:
        for number in range(1000):
            runtime.audit(AuditEvent.about("denied", reason="hidden" if number == 500 else f"seen {number}"))
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in told] == ["denied"] * 1000
    if mask == b"hidden":
        assert [line["reason"] for line in told] == ["******" if number == 500 else f"seen {number}" for number in range(1000)]
        assert masks.looks <= 1000 // 256 + 2 + 1, "the one that is masked is looked into once more"


@async_test
async def test_what_cannot_be_written_takes_no_other_line_along(tmp_path: Path) -> None:
    path = tmp_path / "a"
    async with running(Plugin(Config(str(path)))) as runtime:
        for name in ("first", "sec\ud800ond", "third"):
            runtime.audit(AuditEvent(time=1.0, kind=name))
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in told] == ["first", "dropped", "third"]
    assert told[1]["lines"] == 1 and told[1]["reason"] == "it cannot be written as JSON: UnicodeEncodeError"
