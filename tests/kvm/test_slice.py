"""SDKs and refusals in real VMs, with all plugins and a model server that knows what it served."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentfw.mock_llm.options import MockOptions
from agentfw.mock_llm.server import MockLLMThread

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

KEY = "sk-mock-9f8e7d6c5b4a39281706"
EXAMPLES = Path(__file__).parents[2] / "examples"

CONFIG = """\
[run]
plugins = ["dns", "tls", "policy", "credentials"]
env = {{ OPENAI_BASE_URL = "https://api.openai.com:{port}/v1", OPENAI_API_KEY = "sk-agentfw-placeholder", PORT = "{port}" }}
[policy]
allow = ["api.openai.com:{port}", "wrong.test:{port}", "api.anthropic.com:{port}", "down.test"]
allow_addresses = ["127.0.0.1/32"]
[dns]
hosts = {{ "api.openai.com" = "127.0.0.1", "wrong.test" = "127.0.0.1", "api.anthropic.com" = "127.0.0.1", "down.test" = "127.0.0.1" }}
[tls]
{trust}
shared = ["api.openai.com:{port}"]
[[credentials.rule]]
host = "api.openai.com:{port}"
header = "authorization"
value = "Bearer ${{env:MODEL_KEY}}"
[[credentials.rule]]
host = "api.anthropic.com:{port}"
header = "x-api-key"
value = "${{env:MODEL_KEY}}"
"""


@pytest.fixture
def model(tmp_path: Path) -> Iterator[MockLLMThread]:
    with MockLLMThread(MockOptions(keys=(KEY,), latency=0.02)) as server:
        (tmp_path / "ca.pem").write_text(server.ca_pem)
        (tmp_path / "agentfw.toml").write_text(CONFIG.format(port=server.port, trust=f'ca_files = ["{tmp_path}/ca.pem"]'))
        yield server


@pytest.fixture
def agent(agentfw: Agentfw, model: MockLLMThread) -> Agentfw:
    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        return agentfw("run", *arguments, env={"MODEL_KEY": KEY}, **options)

    return run


def test_the_real_sdks(agent: Agentfw, model: MockLLMThread) -> None:
    pytest.importorskip("openai")
    done = agent(EXAMPLES / "agent_openai.py", "hi")
    assert (done.stdout, done.stderr) == ("plain:    echo: hi\nstreamed: echo: hi\n", "")
    pytest.importorskip("anthropic")
    code = """if True:
        import anthropic, asyncio, os
        arguments = dict(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
        url = f"https://api.anthropic.com:{os.environ['PORT']}"
        print(anthropic.Anthropic(base_url=url, api_key="sk-agentfw-placeholder").messages.create(**arguments).content[0].text)
        async def main():
            async with anthropic.AsyncAnthropic(base_url=url, api_key="sk-agentfw-placeholder") as client:
                print((await client.messages.create(**arguments)).content[0].text)
                async with client.messages.stream(**arguments) as stream:
                    print("".join([text async for text in stream.text_stream]))
        asyncio.run(main())
    """
    done = agent("-c", code)
    assert (done.stdout, done.stderr) == ("echo: hi\n" * 3, "")


CLIENTS = """if True:
    import os, asyncio
    import aiohttp, httpx, openai, requests, urllib3, uvloop
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    more = {"json": body, "headers": {"Authorization": "Bearer " + key}}
    target = url + "/chat/completions"
    said = lambda reply: print(reply["choices"][0]["message"]["content"])
    said(requests.post(target, **more).json())
    said(urllib3.request("POST", target, **more).json())
    said(httpx.post(target, **more).json())
    async def with_aiohttp():
        async with aiohttp.ClientSession() as session, session.post(target, **more) as reply:
            said(await reply.json())
    async def with_httpx():
        async with httpx.AsyncClient() as client:
            said((await client.post(target, **more)).json())
    async def many():
        async with openai.AsyncOpenAI() as client:
            for reply in await asyncio.gather(*(client.chat.completions.create(**body) for _ in range(10))):
                said(reply.model_dump())
    for run in (asyncio.run, uvloop.run):
        for job in (with_aiohttp, with_httpx, many):
            run(job())
"""


def test_the_clients_people_use(agent: Agentfw, model: MockLLMThread) -> None:
    """Each of them with asyncio's loop and with uvloop, none changed."""
    done = agent("-c", CLIENTS)
    assert (done.stdout, done.stderr) == ("echo: hi\n" * (3 + 2 * 12), "")
    assert model.stats()["requests"] == 27


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "urlopen(f'https://wrong.test:{port}/')",
            "certificate verify failed: Hostname mismatch, certificate is not valid for 'wrong.test'",
        ),
        ("urlopen('https://evil.test/')", "Name or service not known|No address associated|Temporary failure|-2|-3|-5"),
        ("urlopen(f'https://api.openai.com:{port + 1}/')", "Connection refused|Permission denied|unreachable|denied"),
        ("urlopen('https://down.test:9/')", "Connection refused|UPSTREAM|cannot connect|refused"),
        ("socket.create_connection(('127.0.0.1', port))", "Connection refused"),
        ("socket.create_connection(('169.254.169.254', 80), 5)", "refused|Permission|unreachable"),
    ],
)
def test_what_does_not_work_says_so_in_the_agent(agent: Agentfw, model: MockLLMThread, code: str, expected: str) -> None:
    done = agent(
        "--timeout", "60", "-c", f"import socket, os; from urllib.request import urlopen; port = int(os.environ['PORT']); {code}"
    )
    assert done.returncode == 1 and re.search(expected, done.stderr.splitlines()[-1]), done.stderr
    assert model.stats()["requests"] == 0


def test_an_unknown_authority_is_refused(agent: Agentfw, model: MockLLMThread, tmp_path: Path) -> None:
    """The agent turning verification off turns nothing off."""
    (tmp_path / "agentfw.toml").write_text(CONFIG.format(port=model.port, trust=""))
    for context in ("None", "ssl._create_unverified_context()"):
        code = f"import os, ssl; from urllib.request import urlopen; urlopen(os.environ['OPENAI_BASE_URL'], context={context})"
        done = agent("-c", code)
        assert done.returncode == 1 and "certificate verify failed" in done.stderr.splitlines()[-1], done.stderr
    assert model.stats()["requests"] == 0
