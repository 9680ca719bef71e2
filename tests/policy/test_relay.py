"""The policy in an agent's path: names, offloaded TLS, TLS of the agent's own, plain HTTP."""

from __future__ import annotations

import json
import ssl

import pytest
from agentfw.testing import make_agent
from agentfw_native import Config as NativeConfig
from agentfw_native import Plugin as Native

from ..core.support import Names, Recorder, TlsOnce, async_test, guest, lookup, offload, read_response, running, serving
from ..core.test_own_tls import Client, intercepting, trusting
from .support import policy

HERE = {"allow_addresses": ["127.0.0.1/32"]}


@async_test
async def test_names_and_offloaded_tls() -> None:
    names = Names(**{"good.example": "127.0.0.1", "rebound.example": "127.0.0.2", "bad.example": "127.0.0.1"})
    plugin = policy(allow=["good.example", "rebound.example"], **HERE)
    async with (
        serving(Recorder(), "good.example", "bad.example") as port,
        running(names, plugin, TlsOnce(), Native(NativeConfig())) as runtime,
    ):
        assert (await lookup(runtime, "good.example")).header.rcode == 0
        for name in ("bad.example", "rebound.example", "tunnel.attacker.example"):
            assert (await lookup(runtime, name)).header.rcode == 5
        assert set(names.asked) == {"good.example", "rebound.example"}
        async with guest(runtime, "127.0.0.1", port) as flow:
            answer = await offload(flow, "bad.example")
            assert answer["reason"] == "AGENTFW_DENIED"
            assert "policy.default: deny" in answer["message"] and "[policy]" in answer["message"]
        async with guest(runtime, "127.0.0.1", port) as flow:
            assert (await offload(flow, "good.example"))["ok"]


@async_test
async def test_requests_on_one_connection() -> None:
    """Offloaded and plain: each request by itself; the denial names the rule; what was refused never left."""
    server, plain = Recorder(), Recorder()
    plugin = policy(
        rule=[
            {"action": "allow", "host": "a.example", "methods": ["GET", "POST"], "paths": ["/v1"]},
            {"action": "deny", "host": "a.example", "paths": ["/v1/secret"], "name": "secrets"},
        ],
        **HERE,
    )
    names = Names(**{"a.example": "127.0.0.1"})
    async with (
        serving(server, "a.example") as port,
        serving(plain) as plain_port,
        running(names, plugin, TlsOnce(pooled=True), Native(NativeConfig())) as runtime,
    ):
        await lookup(runtime, "a.example")
        for to in (port, plain_port):
            async with guest(runtime, "127.0.0.1", to) as flow:
                if to == port:
                    assert (await offload(flow, "a.example"))["ok"]
                for line, status, rule in (
                    ("GET /v1/x", 200, ""),
                    ("GET /v1/secret/y", 403, "policy.rule: secrets"),
                    ("GET /v1/%2e%2e/x", 403, "policy.rule: secrets"),
                    ("DELETE /v1/x", 403, "policy.default: deny"),
                    (f"GET {'https' if to == port else 'http'}://a.example:{to}/v2", 403, "policy.default: deny"),
                    ("POST /v1/x", 200, ""),
                ):
                    await flow.guest_send(f"{line} HTTP/1.1\r\nHost: a.example:{to}\r\nContent-Length: 0\r\n\r\n".encode())
                    got, _, body = await read_response(flow)
                    assert got == status, line
                    if rule:
                        assert json.loads(body)["error"]["rule"] == rule
        for recorder in (server, plain):
            assert [request.split(b" HTTP")[0] for request in recorder.requests] == [b"GET /v1/x", b"POST /v1/x"]


@async_test
async def test_intercepted_requests_are_held_against_paths() -> None:
    plugin = policy(rule=[{"action": "allow", "host": "api.test", "paths": ["/v1"], "own_tls": "intercept"}], **HERE)
    server = Recorder()
    async with intercepting(plugin, server) as (runtime, port):
        async with guest(runtime, "127.0.0.1", port) as flow:
            client = Client(flow, trusting(runtime, "http/1.1"), "api.test")
            await client.handshake()
            for path, status in (("/v1/x", b"200"), ("/v2", b"403"), ("/v1/../v2", b"403"), ("/v1", b"200")):
                await client.send(f"GET {path} HTTP/1.1\r\nHost: api.test:{port}\r\n\r\n".encode())
                answer = await client.receive()
                assert answer.split()[1] == status, path
                body = int(answer.lower().split(b"content-length: ")[1].split()[0]) - len(answer.partition(b"\r\n\r\n")[2])
                if body:
                    await client.exactly(body)
        async with guest(runtime, "127.0.0.1", port) as flow:  # what is no HTTP cannot be held against a path
            client = Client(flow, trusting(runtime), "api.test")
            await client.handshake()
            await client.send(b"\x00\x01\x02\x03 not HTTP\n")
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                while await client.receive():
                    pass
        assert [request.split(b" HTTP")[0] for request in server.requests] == [b"GET /v1/x", b"GET /v1"]


@async_test
async def test_tls_that_passes_through_to_a_host_with_paths_is_refused() -> None:
    rule = {"action": "allow", "host": "api.test", "paths": ["/v1"]}
    for raw in (False, True):
        plugin = policy(rule=[rule | {"raw": raw}], own_tls="passthrough", **HERE)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        async with (
            intercepting(plugin, Recorder(), more=(Native(NativeConfig()),)) as (runtime, port),
            guest(runtime, "127.0.0.1", port) as flow,
        ):
            client = Client(flow, context, "api.test")
            if raw:
                await client.handshake()
                continue
            with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
                await client.handshake()


@async_test
async def test_a_kept_flow_does_not_outlive_its_agent() -> None:
    """Its account is gone; what is left of it gets nothing more."""
    from agentfw import ExitReport

    server = Recorder()
    plugin = policy(allow=["*"], limits={"requests": 100}, default="allow", **HERE)
    agent = make_agent("gone")
    async with (
        serving(server) as port,
        running(plugin, Native(NativeConfig())) as runtime,
        guest(runtime, "127.0.0.1", port, agent=agent) as flow,
    ):
        request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        await flow.guest_send(request)
        assert (await read_response(flow))[0] == 200
        runtime.agent_exited(agent, ExitReport("killed"))
        await flow.guest_send(request)
        assert (await read_response(flow))[0] == 403
        assert len(server.requests) == 1 and not plugin._states
