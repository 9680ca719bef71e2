"""The shipped plugins together, from a guest's flow to a model server and its DNS authority on 127.0.0.1. No KVM."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import dnslib
import pytest
from agentfw import Agent
from agentfw.config import Config, load_config
from agentfw.mock_dns import MockDNS
from agentfw.mock_llm import MockLLM, MockOptions
from agentfw.plugins import DEFAULT, load_plugins
from agentfw.runtime import Runtime
from agentfw.testing import MemoryFlow

from .support import RESOLVER, async_test, guest, lookup, offload, read_response

KEY = "sk-real-0123456789abcdef"
PLACEHOLDER = "sk-agentfw-placeholder"
HOST = "api.openai.com"


def configuration(directory: Path, dns: MockDNS, llm: MockLLM) -> Config:
    (directory / "ca.pem").write_text(llm.ca_pem)
    (directory / "key").write_text(KEY + "\n")
    (directory / "agentfw.toml").write_text(f"""
[dns]
upstream = ["127.0.0.1:{dns.port}"]

[tls]
ca_files = ["ca.pem"]
shared = ["{HOST}"]

[policy]
allow = ["{HOST}"]
allow_addresses = ["127.0.0.1/32"]

[[credentials.rule]]
host = "{HOST}:{llm.port}"
header = "authorization"
value = "Bearer ${{file:{directory}/key}}"
""")
    return load_config(directory / "agentfw.toml")


def call(port: int, text: str, key: str = PLACEHOLDER, stream: bool = False) -> bytes:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}).encode()
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def agent_runs(runtime: Runtime, agent: Agent, port: int) -> list[str]:
    """Resolve, connect, two plain calls and a streamed one on one connection."""
    record = await lookup(runtime, HOST, agent)
    address = str(record.rr[0].rdata)
    answers = []
    async with guest(runtime, address, port, agent=agent) as flow:
        assert await flow.guest_connected() == 0
        assert (await offload(flow, HOST))["ok"]
        for stream in (False, True, False):
            await flow.guest_send(call(port, f"hello from {agent.name}", stream=stream))
            status, _, body = await read_response(flow)
            assert status == 200, body
            assert KEY.encode() not in body
            answers.append(body.decode())
    return answers


@async_test
async def test_many_agents_share_names_and_sessions(tmp_path: Path) -> None:
    async with MockDNS({HOST: "127.0.0.1"}) as dns, MockLLM(MockOptions(keys=(KEY,))) as llm:
        config = configuration(tmp_path, dns, llm)
        runtime = Runtime(asyncio.get_running_loop(), load_plugins(DEFAULT, config), config)
        await runtime.start()
        try:
            agents = [Agent(str(n), f"agent-{n}") for n in range(20)]
            every = await asyncio.gather(*(agent_runs(runtime, agent, llm.port) for agent in agents))
            counted = runtime.statistics()
        finally:
            await runtime.stop()
        for agent, answers in zip(agents, every, strict=True):
            assert all(agent.name in answer for answer in (answers[0], answers[2])) and "data: [DONE]" in answers[1]
        assert dns.asked(HOST, "A") == 1, "one upstream query for the whole fleet"
        stats = llm.stats()
        assert stats["handshakes"] < 20 and counted["core.http_responses"] == 60
        assert counted["credentials.injected"] == 60 and not any(KEY in str(item) for item in counted.items())


@async_test
async def test_refusals_with_the_shipped_plugins(tmp_path: Path) -> None:
    async with MockDNS({HOST: "127.0.0.1", "other.example": "127.0.0.1"}) as dns, MockLLM(MockOptions(keys=(KEY,))) as llm:
        config = configuration(tmp_path, dns, llm)
        runtime = Runtime(asyncio.get_running_loop(), load_plugins(DEFAULT, config), config)
        await runtime.start()
        try:
            assert (await lookup(runtime, "other.example")).header.rcode == dnslib.RCODE.REFUSED
            assert dns.asked("other.example", "A") == 0
            address = str((await lookup(runtime, HOST)).rr[0].rdata)
            async with guest(runtime, address, llm.port) as flow:
                assert (await offload(flow, "other.example"))["reason"] == "AGENTFW_DENIED"
            async with guest(runtime, address, llm.port) as flow:
                assert (await offload(flow, HOST))["ok"]
                await flow.guest_send(call(llm.port, "x", key="sk-of-the-agent"))
                status, _, body = await read_response(flow)
                assert status == 403 and json.loads(body)["error"]["plugin"] == "credentials"
            async with guest(runtime, "127.0.0.3", llm.port) as flow:
                assert await flow.guest_connected() != 0
            async with guest(runtime, *RESOLVER, "udp") as resolver:
                assert isinstance(resolver, MemoryFlow)
        finally:
            await runtime.stop()


@async_test
async def test_upstream_failures_are_told(tmp_path: Path) -> None:
    async with MockDNS({HOST: "127.0.0.1"}) as dns:
        async with MockLLM(MockOptions(keys=(KEY,))) as llm:
            port = llm.port
            config = configuration(tmp_path, dns, llm)
        runtime = Runtime(asyncio.get_running_loop(), load_plugins(DEFAULT, config), config)
        await runtime.start()
        try:
            address = str((await lookup(runtime, HOST)).rr[0].rdata)
            async with guest(runtime, address, port) as flow:
                answer = await offload(flow, HOST)
                assert (answer["ok"], answer["reason"]) == (False, "AGENTFW_UPSTREAM") and "ECONNREFUSED" in answer["message"]
        finally:
            await runtime.stop()
        async with MockLLM(MockOptions(keys=(KEY,))) as stranger:  # its CA is not trusted
            config.tables["credentials"] = {}
            runtime = Runtime(asyncio.get_running_loop(), load_plugins(DEFAULT, config), config)
            await runtime.start()
            try:
                address = str((await lookup(runtime, HOST)).rr[0].rdata)
                async with guest(runtime, address, stranger.port) as flow:
                    answer = await offload(flow, HOST)
                    assert not answer["ok"] and answer["verify_code"] in (18, 19, 20, 21), answer
                assert not stranger.stats()["requests"]
            finally:
                await runtime.stop()


@pytest.mark.parametrize("text", ["[dns]\nupstrem = []\n", "[tls]\nca_file = []\n"])
def test_shipped_tables_refuse_unknown_keys(tmp_path: Path, text: str) -> None:
    from agentfw import ConfigError

    (tmp_path / "agentfw.toml").write_text(text)
    with pytest.raises(ConfigError, match="unknown key"):
        load_plugins(DEFAULT, load_config(tmp_path / "agentfw.toml"))
