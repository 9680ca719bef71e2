"""Model calls of real SDKs and clients in VMs, as `inspect` counts them: the same as the server that answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentfw.mock_dns import MockDNSThread
from agentfw.mock_llm import MockLLMThread, MockOptions
from agentfw.mock_llm.model import tokenize

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

OPENAI, ANTHROPIC = "api.openai.com", "api.anthropic.com"
KEY = "sk-real-c0ffee00c0ffee00"

CONFIG = """\
[policy]
allow = ["{openai}:{port}", "{anthropic}:{port}"]
allow_addresses = ["127.0.0.1/32"]
[dns]
upstream = ["{dns}"]
[tls]
ca_files = ["{ca}"]
shared = ["{openai}:{port}", "{anthropic}:{port}"]
[[credentials.rule]]
host = "{openai}:{port}"
header = "authorization"
value = "Bearer ${{env:MODEL_KEY}}"
[[credentials.rule]]
host = "{anthropic}:{port}"
header = "x-api-key"
value = "${{env:MODEL_KEY}}"
[inspect.prices."gpt-*"]
input = 2.0
output = 8.0
[inspect.prices."claude-*"]
input = 3.0
output = 15.0
{more}
"""


class Slice:
    def __init__(self, folder: Path, model: MockLLMThread, dns: MockDNSThread) -> None:
        self.folder, self.model, self.dns = folder, model, dns
        (folder / "ca.pem").write_text(model.ca_pem)
        self.env = {"MODEL_KEY": KEY}

    def arguments(self, more: str = "") -> list[str]:
        config = self.folder / "agentfw.toml"
        config.write_text(CONFIG.format(openai=OPENAI, anthropic=ANTHROPIC, port=self.model.port, dns=self.dns.address,
                                        ca=self.folder / "ca.pem", more=more))  # fmt: skip
        return ["run", "--config", str(config), "--plugins", "dns,tls,policy,credentials,inspect",
                "--env", f"OPENAI_BASE_URL=https://{OPENAI}:{self.model.port}/v1", "--env", "OPENAI_API_KEY=sk-agentfw-placeholder",
                "--env", f"ANTHROPIC_BASE_URL=https://{ANTHROPIC}:{self.model.port}",
                "--env", "ANTHROPIC_API_KEY=sk-agentfw-placeholder"]  # fmt: skip


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Slice]:
    options = MockOptions(keys=(KEY,), cache_minimum=1)
    with MockLLMThread(options) as model, MockDNSThread({OPENAI: "127.0.0.1", ANTHROPIC: "127.0.0.1"}) as dns:
        yield Slice(tmp_path, model, dns)


SDKS = """
import asyncio, anthropic, openai

def ask(n):
    client = openai.OpenAI()
    messages = [{"role": "user", "content": f"question {n}"}]
    client.chat.completions.create(model="gpt-4o", messages=messages)
    stream = client.chat.completions.create(model="gpt-4o", messages=messages, stream=True, stream_options={"include_usage": True})
    assert [part for part in stream][-1].usage.completion_tokens
    client.responses.create(model="gpt-5", input=f"question {n}")
    with client.responses.stream(model="gpt-5", input="more") as stream:
        stream.until_done()
    client.embeddings.create(model="text-embedding-3-small", input=["a b", "c"])
    claude = anthropic.Anthropic()
    parts = [{"type": "text", "text": "a system prompt of some length", "cache_control": {"type": "ephemeral"}}]
    claude.messages.create(model="claude-x", max_tokens=100, messages=messages, system=parts)
    with claude.messages.stream(model="claude-x", max_tokens=100, messages=messages, system=parts) as stream:
        assert stream.get_final_text().startswith("echo")

async def later():
    client = openai.AsyncOpenAI()
    messages = [{"role": "user", "content": "later"}]
    await asyncio.gather(*(client.chat.completions.create(model="gpt-4o", messages=messages) for _ in range(3)))
    claude = anthropic.AsyncAnthropic()
    async with claude.messages.stream(model="claude-x", max_tokens=100, messages=messages) as stream:
        await stream.get_final_message()

ask(1)
asyncio.run(later())
print("done")
"""
CALLS = 7 + 4


def counted(ran: dict[str, Any]) -> dict[str, int]:
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
    return {name: ran["statistics"][f"inspect.{name}"] for name in names}


def test_counts_equal_the_servers_with_the_real_sdks(network: Slice, agentfw: Agentfw) -> None:
    done = agentfw(*network.arguments(), "--json", "--label", "team=red", "-c", SDKS, env=network.env)
    assert done.returncode == 0, done.stdout + done.stderr
    ran, served = json.loads(done.stdout), network.model.stats()
    assert ran["agents"][0]["stdout"] == "done\n", ran
    assert served["model_calls"] == ran["statistics"]["inspect.calls"] == CALLS
    assert counted(ran) == served["usage"] and served["usage"]["cache_read_tokens"] and served["usage"]["cache_write_tokens"]
    for name in ("calls_failed", "calls_estimated", "calls_cut", "calls_in_flight", "unreadable"):
        assert ran["statistics"][f"inspect.{name}"] == 0, name
    *models, total = ran["tables"]["model_calls"]
    for row in models:
        billed = served["models"][row["model"]]
        assert (row["input"], row["output"], row["cached"]) == (
            billed["input_tokens"], billed["output_tokens"], billed["cache_read_tokens"])  # fmt: skip
    assert total["calls"] == CALLS and total["cost"] > 0 and total["first_token_p50_ms"] > 0
    assert ran["tables"]["model_calls_by_label"][0]["label"] == "team=red"
    assert KEY not in done.stdout + done.stderr


CLIENTS = """
import asyncio, os, aiohttp, httpx, requests
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}
streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
assert requests.post(url, json=body, headers=headers).json()["usage"]
assert b"[DONE]" in b"".join(requests.post(url, json=streamed, headers=headers, stream=True).iter_content(7))
assert httpx.post(url, json=body, headers=headers).json()["usage"]
with httpx.stream("POST", url, json=streamed, headers=headers) as reply:
    assert any("usage" in line for line in reply.iter_lines())
async def main():
    async with aiohttp.ClientSession() as session:
        async with session.post(url, json=body, headers=headers) as reply:
            assert (await reply.json())["usage"]
        async with session.post(url, json=streamed, headers={**headers, "Accept-Encoding": "gzip, deflate, br"}) as reply:
            assert b"[DONE]" in await reply.read()
asyncio.run(main())
print("done")
"""


def test_other_clients(network: Slice, agentfw: Agentfw) -> None:
    done = agentfw(*network.arguments(), "--json", "-c", CLIENTS, env=network.env)
    ran = json.loads(done.stdout)
    assert ran["agents"][0]["stdout"] == "done\n", ran
    assert ran["statistics"]["inspect.calls"] == 6 and counted(ran) == network.model.stats()["usage"]


ONE_MORE = """
import os, sys, openai
client = openai.OpenAI(max_retries=2)
index = int(os.environ.get("AGENTFW_AGENT_INDEX", 1))
for n in range(index % 3 + 1):
    client.chat.completions.create(model=f"gpt-{index % 2}", messages=[{"role": "user", "content": "word " * index}])
"""


def test_twenty_agents_are_told_apart(network: Slice, agentfw: Agentfw, tmp_path_factory: pytest.TempPathFactory) -> None:
    """And the audit log has all of them, and no secret."""
    log = tmp_path_factory.mktemp("log") / "audit.jsonl"
    arguments = [argument.replace(",inspect", ",inspect,audit") for argument in network.arguments(f'[audit]\nfile = "{log}"')]
    done = agentfw(*arguments, "--json", "-n", 20, "-c", ONE_MORE, env=network.env)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    calls = [line for line in lines if line["event"] == "model_call"]
    exchanges = [line for line in lines if line["event"] == "exchange"]
    assert len(calls) == len(exchanges) == sum(n % 3 + 1 for n in range(1, 21))
    assert {line["agent"] for line in lines if line["event"] == "exit"} == {f"agent-{n}" for n in range(1, 21)}
    assert {line["exchange"] for line in calls} == {line["exchange"] for line in exchanges}
    assert sum(line["input_tokens"] for line in calls) == network.model.stats()["usage"]["input_tokens"]
    assert KEY not in log.read_text() and log.stat().st_mode & 0o777 == 0o600
    ran, served = json.loads(done.stdout), network.model.stats()
    rows = {row["agent"]: row for row in ran["tables"]["model_calls_by_agent"]}
    assert {name: row["calls"] for name, row in rows.items()} == {f"agent-{n}": n % 3 + 1 for n in range(1, 21)}
    prompts = {n: len(tokenize("word " * n)) + 3 for n in range(1, 21)}
    assert {name: row["input"] for name, row in rows.items()} == {f"agent-{n}": (n % 3 + 1) * prompts[n] for n in prompts}
    assert counted(ran) == served["usage"]


BUDGET = """
import sys, openai
client = openai.OpenAI()
for n in range(5):
    try:
        client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "x"}])
        print(n, flush=True)
    except openai.PermissionDeniedError as error:
        print(error.body["rule"] if "rule" in error.body else error.body, flush=True)
"""


@pytest.mark.parametrize("stop", [False, True])
def test_a_budget_ends_calls_and_may_end_the_agent(network: Slice, agentfw: Agentfw, stop: bool) -> None:
    more = f"[[inspect.budget]]\ncalls = 2\nstop = {str(stop).lower()}"
    done = agentfw(*network.arguments(more), "--stats", "-c", BUDGET, env=network.env)
    assert network.model.stats()["requests"] == 2
    if stop:
        assert (done.returncode, done.stdout) == (137, "0\n1\n"), done.stderr
        assert "error: stopped by inspect: 2 calls per agent: used up: 2 of 2 calls (agent-1)" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "0\n1\n" + "inspect: 2 calls per agent\n" * 3), done.stderr
    assert "the budget 2 calls per agent is used up" in done.stderr
    lines = done.stderr.splitlines()
    assert lines[lines.index("model calls, cost in USD") + 1].split()[:4] == ["model", "calls", "failed", "input"]


def test_the_audit_log_does_not_lie_where_agents_look(network: Slice, agentfw: Agentfw) -> None:
    """Beside the script they see everything."""
    script = network.folder / "agent.py"
    script.write_text("print(open('audit.jsonl').read())")
    arguments = [argument.replace(",inspect", ",audit") for argument in network.arguments('[audit]\nfile = "audit.jsonl"')]
    done = agentfw(*arguments, script, env=network.env)
    assert done.returncode == 125 and "audit.file" in done.stderr and "the agents see" in done.stderr, done
    assert not (network.folder / "audit.jsonl").exists()
