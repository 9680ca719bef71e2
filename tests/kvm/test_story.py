"""One agent's whole life in a real VM, as operators are shown it, held against what it did: in a pool, and by `agentfw run`'s plugins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentfw import Code, Pool
from agentfw.mock_dns import MockDNSThread
from agentfw.mock_llm import MockLLMThread, MockOptions
from agentfw.views import AgentStory, AgentTable, Overview

pytestmark = pytest.mark.kvm

NAME = "api.openai.com"
KEY = "sk-real-5e0c1b7d94a2f6083"
CONFIG = """\
[run]
plugins = ["dns", "tls", "policy", "credentials", "native", "inspect", "dashboard"]

[policy]
allow = ["{name}:{port}"]
allow_addresses = ["127.0.0.1/32"]

[dns]
upstream = ["{dns}"]

[tls]
ca_files = ["{ca}"]
shared = ["{name}:{port}"]

[[credentials.rule]]
host = "{name}:{port}"
header = "authorization"
value = "Bearer ${{env:MODEL_KEY}}"

[inspect]
currency = "USD"

[[inspect.route]]
host = "{name}:{port}"
provider = "openai"

[inspect.prices.m]
input = 1000000.0
output = 2000000.0

[dashboard]
listen = ""
"""

LIFE = r"""
import http.client, json, os, socket, ssl, sys, time
name, port = sys.argv[1], int(sys.argv[2])
with open("/tmp/note", "w") as file:
    file.write("x")
try:
    open("/nothing/there")
except OSError:
    pass
connection = http.client.HTTPSConnection(name, port, context=ssl.create_default_context())
for number in range(3):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
    connection.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer sk-agentfw-placeholder"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.status
    assert json.loads(answer.read())["choices"][0]["message"]["content"] == "echo: hello"
connection.request("GET", "/nothing?<b>=1")
answer = connection.getresponse()
answer.read()
connection.close()
for _ in range(2):
    try:
        socket.getaddrinfo("evil.example", 443)
    except OSError:
        pass
print("done", flush=True)
if len(sys.argv) > 3:
    sys.stdin.readline()
sys.exit(7)
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agentfw_environment: dict[str, str]) -> Iterator[tuple[Path, int]]:
    monkeypatch.setenv("XDG_CACHE_HOME", agentfw_environment["XDG_CACHE_HOME"])
    monkeypatch.setenv("MODEL_KEY", KEY)
    with MockLLMThread(MockOptions(keys=(KEY,), latency=0.02)) as model, MockDNSThread({NAME: "127.0.0.1"}) as dns:
        (tmp_path / "ca.pem").write_text(model.ca_pem)
        file = tmp_path / "agentfw.toml"
        file.write_text(CONFIG.format(name=NAME, port=model.port, dns=dns.address, ca=tmp_path / "ca.pem"))
        yield file, model.port


@pytest.mark.parametrize("workers", [1, None], ids=["a worker process", "embedded"])
def test_a_whole_story(world: tuple[Path, int], workers: int | None, nothing_left: None) -> None:
    file, port = world

    async def body() -> None:
        async with Pool(file, workers=workers, size=2, idle=1) as pool:

            async def ask(what: str, **query: str) -> Any:
                return await pool.backend.plugin("dashboard", what, query)

            waiting = await pool.submit(Code(LIFE), [NAME, str(port), "wait"], interactive=True, name="<b>one</b>")
            async for text in waiting.lines():
                assert text.strip() == "done"
                break
            live = await ask("agent", id=waiting.id)
            assert isinstance(live, AgentStory) and live.row.state == "running" and live.row.requests == 4
            assert any(each.name == "openat" and each.count for each in live.syscalls), "of a VM that runs"
            rows = (await ask("agents")).rows
            assert (
                [row.state for row in rows] == ["running"]
                and rows[0].exits > 0
                and rows[0].memory > 0
                and rows[0].cpu_seconds > 0
            )
            await waiting.feed("go on\n", end=True)
            result = await waiting.wait()
            assert result.exit_code == 7
            await check(await ask("agent", id=waiting.id), live, port)

            told = await ask("overview")
            assert isinstance(told, Overview) and told.model_calls == 3 and told.requests == 4 and told.denials >= 2
            assert told.done == told.failed == 1 and told.tls_sessions >= 1 and told.dispatch.count == 1
            assert told.connect.count == 4 and told.first_call.count == 1
            assert told.dns_questions >= 3 and told.input_tokens == live.row.input_tokens > 0
            table = await ask("agents")
            assert isinstance(table, AgentTable) and [row.id for row in table.rows] == [waiting.id]
            assert KEY not in repr((live, told, table, await ask("loaded"), await ask("agent", id=waiting.id)))

    asyncio.run(body())


async def check(story: Any, live: AgentStory, port: int) -> None:
    """What is shown against what the program did."""
    assert isinstance(story, AgentStory)
    row = story.row
    assert (row.name, row.state, row.how, row.requests, row.model_calls) == ("<b>one</b>", "done", "code 7", 4, 3)
    assert row.connections >= 1 and row.denials >= 2 and row.cpu_seconds > 0 and row.bytes_up > 500 and row.bytes_down > 500
    assert row.input_tokens > 0 and row.cost == pytest.approx(row.input_tokens + 2 * row.output_tokens)
    kinds = [step.kind for step in story.timeline]
    places = [kinds.index(kind) for kind in ("queued", "dispatch", "first_syscall", "resolve", "connect", "request", "response")]
    assert places == sorted(places) and kinds[-1] == "exit" and "denied" in kinds, kinds
    assert kinds.count("request") == kinds.count("response") == kinds.count("connect") == 4 and kinds.count("model_call") == 3
    times = [step.at for step in story.timeline]
    assert times == sorted(times) and times[0] == 0 and all(step.seconds is None or step.seconds >= 0 for step in story.timeline)
    assert row.ended is not None and times[-1] <= row.ended - row.submitted + 0.5
    answers = {(each.name, each.qtype): each for each in story.names}
    assert answers[NAME, "A"].answer == "10.0.2.2" and not answers[NAME, "A"].denied_rule
    assert answers["evil.example", "A"].denied_rule and answers["evil.example", "A"].answer == "REFUSED"
    (place,) = [each for each in story.destinations if each.destination == f"https://{NAME}:{port}"]
    assert (place.requests, place.denials, place.connections) == (4, 0, 1)
    assert [call.model for call in story.model_calls] == ["m"] * 3 and all(call.status == 200 for call in story.model_calls)
    assert {each.destination for each in story.denials} == {"dns://evil.example:53"}
    assert sum(each.count for each in story.denials) == row.denials
    files = {each.path: each for each in story.files}
    assert files["/tmp/note"].mode in ("w", "rw") and files["/nothing/there"].error == "ENOENT", files
    calls = {each.name: each for each in story.syscalls}
    assert calls["openat"].count >= 2 and calls["exit_group"].count >= 1 and calls["openat"].host_seconds > 0
    before = {each.name: each.count for each in live.syscalls}
    assert calls["openat"].count >= before["openat"]
    assert (story.exit_kind, story.exit_code, story.dropped) == ("code", 7, {})
    assert story.counters["exits"] > 0 and row.exits == story.counters["exits"]
