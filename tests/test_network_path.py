"""The host's side of the path, without KVM: guests in memory, the relay, all plugins, a DNS authority and a model server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import agentfw_credentials
import agentfw_policy
import pytest
from agentfw.agents import Agent
from agentfw.config import Config
from agentfw.mock_dns import MockDNS
from agentfw.mock_llm import MockLLM, MockOptions
from agentfw.runtime import Runtime
from agentfw.testing import MemoryFlow, make_agent
from agentfw_dns_cache import DnsConfig
from agentfw_dns_cache import Plugin as Dns
from agentfw_tls_pool import Plugin as Tls
from agentfw_tls_pool import TlsConfig

from .core.support import async_test, guest, lookup, offload, read_response, running

HOST = "api.openai.com"
KEY = "sk-the-real-key-0123456789"
PLACEHOLDER = "sk-agentfw-placeholder"
BEARER = f"Bearer {PLACEHOLDER}"


class Bench:
    def __init__(self, runtime: Runtime, llm: MockLLM, dns: MockDNS) -> None:
        self.runtime = runtime
        self.llm = llm
        self.dns = dns

    @asynccontextmanager
    async def flow(self, agent: Agent, host: str = HOST) -> AsyncIterator[MemoryFlow]:
        """As an agent's SDK gets there: look the name up, connect to what comes, begin TLS."""
        reply = await lookup(self.runtime, host, agent)
        async with guest(self.runtime, str(reply.rr[0].rdata), self.llm.port, agent=agent) as flow:
            assert await flow.guest_connected() == 0
            answer = await offload(flow, host)
            assert answer["ok"], answer
            assert (answer["version"], answer["alpn"]) == ("TLSv1.3", "http/1.1")
            yield flow

    async def post(self, flow: MemoryFlow, path: str, document: Any, host: str = HOST, **headers: str) -> None:
        body = json.dumps(document).encode()
        lines = [f"POST {path} HTTP/1.1", f"Host: {host}:{self.llm.port}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await flow.guest_send(("\r\n".join(lines) + "\r\n\r\n").encode() + body)


@asynccontextmanager
async def bench(tmp_path: Path, **options: Any) -> AsyncIterator[Bench]:
    zone = {HOST: "127.0.0.1", "api.anthropic.com": "127.0.0.1", "elsewhere.test": "127.0.0.1"}
    async with MockLLM(MockOptions(keys=(KEY,), **options)) as llm, MockDNS(zone) as dns:
        (tmp_path / "ca.pem").write_text(llm.ca_pem)
        (tmp_path / "key").write_text(KEY)
        source = "${file:%s}" % (tmp_path / "key")
        rules = [
            {"host": f"{HOST}:{llm.port}", "header": "authorization", "value": f"Bearer {source}"},
            {"host": f"api.anthropic.com:{llm.port}", "header": "x-api-key", "value": source},
        ]
        config = Config(
            {
                "policy": {"allow": [HOST, "api.anthropic.com"], "allow_addresses": ["127.0.0.1/32"]},
                "credentials": {"rule": rules},
                "dns": {"upstream": [dns.address]},
                "tls": {"ca_files": [str(tmp_path / "ca.pem")], "shared": [HOST, "api.anthropic.com"], "system_ca": False},
            }
        )
        plugins = [
            Dns(config.plugin("dns", DnsConfig)),
            Tls(config.plugin("tls", TlsConfig)),
            agentfw_policy.Plugin(config.plugin("policy", agentfw_policy.Plugin.config_type)),
            agentfw_credentials.Plugin(config.plugin("credentials", agentfw_credentials.Plugin.config_type)),
        ]
        async with running(*plugins) as runtime:
            yield Bench(runtime, llm, dns)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


AT_ONCE = 6
"""Of the agents, that call."""


def test_twenty_agents(tmp_path: Path) -> None:
    """One DNS query, fewer handshakes than agents, each its own answer, the key in the request and nowhere in the guest."""

    @async_test
    async def run() -> None:
        async with bench(tmp_path, latency=0.02) as b:
            seen: list[bytes] = []
            turn = asyncio.Semaphore(AT_ONCE)  # who calls at once is not left to how busy the host is

            async def agent(number: int) -> None:
                async with turn, b.flow(make_agent(f"agent{number}")) as flow:
                    for call in range(3):
                        await b.post(flow, "/v1/chat/completions", chat(f"{number}.{call}"), Authorization=BEARER)
                        status, fields, body = await read_response(flow)
                        seen.append(body)
                        assert status == 200, body
                        assert json.loads(body)["choices"][0]["message"]["content"] == f"echo: {number}.{call}"
                        assert fields["x-ratelimit-limit-requests"] == "10000"

            await asyncio.gather(*(agent(number) for number in range(20)))
            stats = b.llm.stats()
            statistics = b.runtime.statistics()
            assert (stats["requests"], stats["unauthorized"]) == (60, 0)
            assert b.dns.asked(HOST, "A") == 1
            assert b.dns.asked(HOST, "AAAA") <= 1
            assert stats["handshakes"] <= statistics["tls.held"] < 20
            assert statistics["tls.retired_dirty"] == statistics["tls.failed"] == 0
            assert KEY.encode() not in b"".join(seen)

    run()


def test_streams_pass_as_they_come(tmp_path: Path) -> None:
    """The first event is there long before the last; the connection is clean after it."""

    @async_test
    async def run() -> None:
        async with bench(tmp_path, tokens_per_second=50, reply="one two three four five six seven eight nine ten") as b:
            agent = make_agent("streamer")
            async with b.flow(agent) as flow:
                start = time.monotonic()
                await b.post(flow, "/v1/chat/completions", chat("x", stream=True), Authorization=BEARER)
                assert b"200 OK" in await flow.guest_read_until(b"\r\n\r\n")
                await flow.guest_read_until(b'"content":"one"')
                first = time.monotonic() - start
                await flow.guest_read_until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
                assert first < (time.monotonic() - start) / 2
            async with b.flow(agent, "api.anthropic.com") as flow:
                await b.post(
                    flow,
                    "/v1/messages",
                    chat("x", stream=True, max_tokens=9),
                    "api.anthropic.com",
                    anthropic_version="2023-06-01",
                )
                status, fields, body = await read_response(flow)
                assert status == 200
                assert fields["content-type"].startswith("text/event-stream")
                assert body.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
            assert b.runtime.statistics()["tls.held"] == 2

    run()


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_went_stale_costs_a_get_nothing(tmp_path: Path, reset: bool) -> None:
    """The server closes idle connections, with and without close_notify; the next request gets through all the same."""

    @async_test
    async def run() -> None:
        async with bench(tmp_path, idle_timeout=0 if reset else 0.05) as b, b.flow(make_agent("patient")) as flow:
            for _ in range(3):
                await flow.guest_send(f"GET /v1/models HTTP/1.1\r\nHost: {HOST}:{b.llm.port}\r\n\r\n".encode())
                status, _fields, _body = await read_response(flow)
                assert status == 200
                if reset:
                    for connection in list(b.llm._connections):
                        connection.abort()
                else:
                    await asyncio.sleep(0.1)
            assert b.llm.stats()["handshakes"] >= 3

    run()


def test_what_is_refused_never_leaves(tmp_path: Path) -> None:
    @async_test
    async def run() -> None:
        async with bench(tmp_path) as b:
            reply = await lookup(b.runtime, "elsewhere.test", make_agent("curious"))
            assert (reply.header.rcode, reply.rr) == (5, [])
            assert b.dns.seen == []
            async with b.flow(make_agent("curious")) as flow:
                await b.post(flow, "/v1/chat/completions", chat("x"), Authorization="Bearer sk-an-agents-own-key")
                status, _, body = await read_response(flow)
                assert (status, json.loads(body)["error"]["plugin"]) == (403, "credentials")
            assert b.llm.stats()["requests"] == 0

    run()


def test_a_wrong_certificate_is_told_to_the_guest(tmp_path: Path) -> None:
    @async_test
    async def run() -> None:
        async with bench(tmp_path) as b:
            (tmp_path / "other.pem").write_text(MockLLM().ca_pem)
            plugin = Tls(TlsConfig(ca_files=(str(tmp_path / "other.pem"),), system_ca=False))
            dns = Dns(DnsConfig(upstream=(b.dns.address,)))
            policy = agentfw_policy.Plugin(agentfw_policy.Config(allow=(HOST,), allow_addresses=("127.0.0.1",)))
            async with running(dns, plugin, policy) as runtime:
                reply = await lookup(runtime, HOST)
                async with guest(runtime, str(reply.rr[0].rdata), b.llm.port) as flow:
                    answer = await offload(flow, HOST)
                    assert answer["ok"] is False
                    assert answer["verify_code"] == 19
                    assert answer["verify_message"] == "self-signed certificate in certificate chain"
                    assert answer["reason"] == "CERTIFICATE_VERIFY_FAILED"

    run()
