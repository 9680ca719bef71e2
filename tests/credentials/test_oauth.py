"""Tokens by client credentials: one mint for the fleet, over verified TLS, never told to agents."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import pytest
from agentfw import Agent
from agentfw.errors import AgentfwError, Denied
from agentfw.pool.jobs import PoolError
from agentfw.runtime import Runtime
from agentfw_credentials import Config, OAuthConfig, Plugin
from agentfw_credentials.renewed import Renewed
from agentfw_policy import Config as PolicyConfig
from agentfw_policy import Plugin as Policy

from tests.core.support import Names, Recorder, TlsOnce, async_test, guest, lookup, offload, read_response, running, serving
from tests.pool.routers import until

from .support import rule

SECRET = "the client's secret/+&"
Answer = Callable[[bytes], bytes]


class TokenServer:
    """Gives token-1, token-2, ..."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.requests: list[bytes] = []
        self.delay = 0.0
        self.raw: bytes | None = None
        self.status = b"200 OK"

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        await asyncio.sleep(self.delay)
        number = len(self.requests)
        body = self.raw
        if body is None:
            fields = {"access_token": f"token-number-{number}", "token_type": "Bearer", "expires_in": 3600, **self.fields}
            body = json.dumps(fields).encode()
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (self.status, len(body), body))


class Fleet:
    def __init__(self, runtime: Runtime, plugin: Plugin, port: int) -> None:
        self.runtime = runtime
        self.plugin = plugin
        self.port = port

    async def call(self, agent: str = "a", extra: str = "") -> tuple[int, bytes]:
        await lookup(self.runtime, "api.example", Agent(agent, agent))
        async with guest(self.runtime, "127.0.0.1", self.port, agent=Agent(agent, agent)) as flow:
            await offload(flow, "api.example")
            await flow.guest_send(f"GET / HTTP/1.1\r\nHost: api.example\r\n{extra}\r\n".encode())
            status, _, body = await read_response(flow)
            return status, body


@asynccontextmanager
async def fleet(
    token: TokenServer, api: Recorder, require: bool = True, names: Names | None = None, **more: Any
) -> AsyncIterator[Fleet]:
    """Agents may talk to api.example only; the token server is the operator's."""
    async with contextlib.AsyncExitStack() as stack:
        token_port = await stack.enter_async_context(serving(token, "token.example"))
        port = await stack.enter_async_context(serving(api, "api.example"))
        config = {"allow_addresses": ("127.0.0.0/8",), **more}
        oauth = OAuthConfig(f"https://token.example:{token_port}/oauth?x=1", "client id", "${env:SECRET}", **config)
        rules = (rule(host=f"api.example:{port}", value="Bearer ${oauth:o}", require=require),)
        plugin = Plugin(Config(rule=rules, oauth={"o": oauth}), {"SECRET": SECRET})
        policy = Policy(PolicyConfig(allow=(f"api.example:{port}",), allow_addresses=("127.0.0.1",)))
        names = names or Names(**{"api.example": "127.0.0.1", "token.example": "127.0.0.1"})
        runtime = await stack.enter_async_context(running(names, policy, TlsOnce(), plugin))
        yield Fleet(runtime, plugin, port)


@pytest.mark.parametrize("auth", ["basic", "body"])
@async_test
async def test_one_token_for_all_agents(auth: str) -> None:
    token, api = TokenServer(), Recorder()
    token.delay = 0.2
    async with fleet(token, api, auth=auth, scope="a b", audience="https://api", parameters={"resource": "r"}) as agents:
        answers = await asyncio.gather(*(agents.call(f"agent-{n}") for n in range(20)))
        assert [status for status, _ in answers] == [200] * 20
        assert agents.plugin.statistics()["renewed"] == 1
        with pytest.raises(Denied):
            await agents.runtime.plugins.allow(Agent("a", "a"), agents.plugin._state.sources["oauth", "o"].destination)  # type: ignore[attr-defined]
    assert len(token.requests) == 1 and all(b"authorization: Bearer token-number-1\r\n" in request for request in api.requests)
    head, _, body = token.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /oauth?x=1 HTTP/1.1\r\nHost: token.example:")
    sent = {name: values[0] for name, values in parse_qs(body.decode()).items()}
    assert sent.pop("grant_type") == "client_credentials" and sent.pop("resource") == "r"
    if auth == "basic":
        basic = base64.b64decode(head.split(b"Basic ")[1].split(b"\r\n")[0])
        assert basic == b"client+id:the+client%27s+secret%2F%2B%26", "form-encoded first (RFC 6749, 2.3.1)"
    else:
        assert (sent.pop("client_id"), sent.pop("client_secret")) == ("client id", SECRET) and b"Basic" not in head
    assert sent == {"scope": "a b", "audience": "https://api"}


@async_test
async def test_a_401_makes_one_new_token() -> None:
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    bad = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
    token, api = TokenServer(), Recorder(lambda head: bad if b"token-number-1" in head or b"X-Bad" in head else good)
    async with fleet(token, api) as agents:
        assert [(await agents.call())[0] for _ in range(3)] == [401, 200, 200], "the agent sees it, the next request has another"
        assert len(token.requests) == 2
        for _ in range(3):
            assert (await agents.call(extra="X-Bad: 1\r\n"))[0] == 401
            assert (await agents.call())[0] == 200
        assert len(token.requests) == 2, "agents cannot have tokens made again and again"
    assert [b"token-number-2" in request for request in api.requests][1:3] == [True, True]


ERRORS: list[tuple[bytes, bytes, str]] = [
    (b"401 Unauthorized", b'{"error": "invalid_client", "error_description": "the client\'s secret/+&"}', "(invalid_client)"),
    (b"500 Oops", b"the client's secret/+&", "status 500"),
    (b"200 OK", b"not json, the client's secret/+&", "no token"),
    (b"200 OK", b'{"access_token": ""}', "no token"),
    (b"200 OK", b'{"access_token": "short"}', "shorter"),
    (b"200 OK", b'{"access_token": "two\\r\\nlines-of-token"}', "line break"),
    (b"200 OK", b'{"access_token": "token-number-0", "token_type": "mac"}', "no bearer token"),
    (b"200 OK", b'{"access_token": 5}', "no token"),
    (b"200 OK", b'{"a": ' + b"[" * 50_000, "no token"),
    (b"302 Found", b"", "status 302"),
    (b"200 OK", b"x" * 100_000, "too long"),
]


@pytest.mark.parametrize("require", [True, False])
@pytest.mark.parametrize(("status", "body", "why"), ERRORS)
@async_test
async def test_failures_are_told_without_secrets(
    status: bytes, body: bytes, why: str, require: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token, api = TokenServer(), Recorder()
    token.status, token.raw = status, body
    async with fleet(token, api, require=require) as agents:
        answers = [await agents.call() for _ in range(3)]
        numbers = agents.plugin.statistics()
    assert len(token.requests) == 1, "not again at once"
    assert why in caplog.text
    for secret in (SECRET, "client+id:the", "token-number", base64.b64encode(SECRET.encode()).decode()):
        assert secret not in caplog.text and not any(secret.encode() in each for _, each in answers)
    if require:
        assert [code for code, _ in answers] == [403] * 3 and not api.requests
        error = json.loads(answers[0][1])["error"]
        assert error["rule"].startswith("credentials: api.example:") and error["plugin"] == "credentials"
    else:
        assert [code for code, _ in answers] == [200] * 3 and not any(b"uthorization" in request for request in api.requests)
    assert numbers["missing"] == 3 and numbers["failures"] == 1


@pytest.mark.parametrize(
    ("addresses", "more", "why"),
    [
        ("127.0.0.1", {"allow_addresses": ()}, "not on the public internet"),
        ("169.254.169.254", {}, "not on the public internet"),
        ([], {}, "has no address"),
        ("127.0.0.1", {"timeout": 0.05}, "no answer within"),
    ],
)
@async_test
async def test_the_way_to_the_token_server_is_as_safe_as_any(
    addresses: Any, more: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = TokenServer()
    token.delay = 0.5
    names = Names(**{"api.example": "127.0.0.1", "token.example": addresses})
    async with fleet(token, Recorder(), names=names, **more) as agents:
        assert (await agents.call())[0] == 403
    assert why in caplog.text
    if "timeout" not in more:
        assert not token.requests


@pytest.mark.parametrize("verified", [True, False])
@async_test
async def test_no_secret_to_a_server_that_is_not_verified(verified: bool, caplog: pytest.LogCaptureFixture) -> None:
    token, api = TokenServer(), Recorder()
    async with serving(token, "token.example" if not verified else "other.example") as port:
        oauth = OAuthConfig(f"https://token.example:{port}/", "id", "${env:SECRET}", allow_addresses=("127.0.0.1",))
        plugin = Plugin(Config(rule=(rule(value="Bearer ${oauth:o}"),), oauth={"o": oauth}), {"SECRET": SECRET})
        async with running(Names(**{"token.example": "127.0.0.1"}), TlsOnce(verified=verified), plugin):
            assert await plugin._state.sources["oauth", "o"].get() is None
    assert not token.requests and not api.requests and "cannot be asked" in caplog.text


@pytest.mark.parametrize(
    ("told", "seconds"),
    [(3600, 3600), ("120", 120), (None, 300), ("soon", 300), (0, 5), (-9, 5), (1e12, 86_400), (float("nan"), 300)],
)
def test_how_long_a_token_is_good_for(told: Any, seconds: float) -> None:
    plugin = Plugin(Config(rule=(rule(value="${oauth:o}"),), oauth={"o": OAuthConfig("https://t.example/", "i", "s" * 9)}), {})
    assert plugin._state.sources["oauth", "o"]._life(told) == seconds  # type: ignore[attr-defined]


class _Pool:
    """A worker's way to the plugin in its router."""

    role = "worker"

    def __init__(self, router: Plugin) -> None:
        self.router = router
        self.gone = False

    async def ask(self, plugin: str, body: bytes) -> bytes:
        if self.gone:
            raise PoolError("unavailable", "the link was closed")
        return await self.router.answer_pool(body)


@async_test
async def test_one_token_for_all_workers_of_a_pool() -> None:
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    bad = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
    token, api = TokenServer(), Recorder(lambda head: bad if b"token-number-1" in head else good)
    token.delay = 0.1
    async with fleet(token, api) as router, fleet(token, api) as one, fleet(token, api) as two:
        pool = _Pool(router.plugin)
        one.runtime.pool = two.runtime.pool = pool  # type: ignore[assignment]
        calls = [fleet.call(f"agent-{n}") for fleet in (one, two) for n in range(5)]
        assert [status for status, _ in await asyncio.gather(*calls)] == [401] * 10
        await until(
            lambda: (len(token.requests), *(each.plugin.statistics()["renewed"] for each in (one, two, router))) == (2, 2, 2, 2)
        )
        assert [(await fleet.call())[0] for fleet in (one, two, router)] == [200] * 3
        assert len(token.requests) == 2, "the router's, for all"
        assert all(b"token-number-2" in request for request in api.requests[-3:])
        pool.gone = True
        source = one.plugin._state.sources["oauth", "o"]
        assert isinstance(source, Renewed)
        await source._begin()
        assert len(token.requests) == 3 and (await one.call())[0] == 200, "a worker without its router mints one itself"
        for body in (b"", b"\x92\xa5other\xa0", b"\x92\xa7oauth:x\xa0", b"\x92\xa9env:SECRET\xa0"):
            with pytest.raises((AgentfwError, ValueError)):
                await router.plugin.answer_pool(body)
