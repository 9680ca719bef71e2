"""Credentials on their way through the relay: what servers get, what agents see, and what no log, counter or report has."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from typing import Any

import pytest
from agentfw import Agent, hookimpl
from agentfw.reports import AuditEvent, ExchangeReport
from agentfw_credentials.search import Needles
from agentfw_native import Config as NativeConfig
from agentfw_native import Plugin as Native

from tests.core.support import (
    Loopback,
    Names,
    Recorder,
    TlsOnce,
    async_test,
    guest,
    lookup,
    offload,
    read_response,
    running,
    serving,
)

from .support import KEY, KINDS, PLACEHOLDER, credentials, rule

NAMES = {"api.example": "127.0.0.1", "other.example": "127.0.0.1"}
NEEDLES = Needles([KEY.encode()])


class Listener:
    """All that other plugins are told."""

    name = "listener"

    def __init__(self) -> None:
        self.heard: list[str] = []

    @hookimpl
    def exchange_end(self, exchange: ExchangeReport) -> None:
        self.heard.append(repr(exchange))

    @hookimpl
    def flow_end(self, flow: object) -> None:
        self.heard.append(repr(flow))

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        self.heard.append(repr(event))

    @hookimpl
    def request(self, head: object) -> None:
        self.heard.append(repr(head))

    @hookimpl
    def response(self, request: object, head: object) -> None:
        self.heard.append(repr(request) + repr(head))


def echo(head: bytes) -> bytes:
    """All that was sent, and the ways it may be told."""
    body = head + base64.b64encode(b"you sent: " + head) + json.dumps(head.decode()).encode()
    location, saw = head.split(b" ")[1], base64.b64encode(KEY.encode())
    answer = b"HTTP/1.1 302 saw %b\r\nLocation: https://x.example%b\r\nX-Saw: %b\r\n" % (KEY.encode(), location, saw)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    return answer + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-T: " + KEY.encode() + b"\r\n\r\n"


@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_nothing_but_the_server_sees_it(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server, plain = Recorder(echo), Recorder(echo)
    listener = Listener()
    async with serving(server, "api.example", "other.example") as port, serving(plain) as plain_port:
        plugin = credentials(rule(host=f"api.example:{port}", **KINDS[kind]))
        async with running(Names(**NAMES), Loopback(), listener, TlsOnce(), Native(NativeConfig()), plugin) as runtime:
            agent = Agent("a", "a")
            for name in NAMES:
                await lookup(runtime, name, agent)
            seen = []
            for host, to, key, status in (
                ("api.example", port, PLACEHOLDER, 302),
                ("api.example", port, "sk-agents-own", 403),
                ("api.example", port, KEY, 403),
                ("other.example", port, PLACEHOLDER, 403),
                ("other.example", port, KEY, 403),
                ("other.example", port, "sk-agents-own", 302),
                ("api.example", plain_port, PLACEHOLDER, 403),
                ("api.example", plain_port, "", 302),
            ):
                async with guest(runtime, "127.0.0.1", to, agent=agent) as flow:
                    if to == port:
                        assert (await offload(flow, host))["ok"]
                    # naming the header in Connection strips the agent's, and must not strip the injected one
                    stripped = "authorization" if status == 302 else "x"
                    await flow.guest_send(f"GET /a HTTP/1.1\r\nHost: {host}:{to}\r\nConnection: {stripped}\r\n".encode())
                    await flow.guest_send(f"Authorization: Bearer {key}\r\n\r\n".encode())
                    got, fields, body = await read_response(flow)
                    if host == "api.example" and to == port:
                        seen.append(body + repr(fields).encode())
                    assert got == status, (host, to, key, body)
                    if got == 403:
                        assert json.loads(body)["error"]["plugin"] == "credentials"
            numbers = runtime.statistics()
    got_it = [bool(NEEDLES.find(request)) for request in server.requests]
    assert got_it == [True, False] and not any(NEEDLES.find(request) for request in plain.requests)
    said = [*listener.heard, caplog.text, repr(numbers), *(text.decode("latin-1") for text in seen)]
    for text in said:
        assert not NEEDLES.find(text.encode("latin-1", "replace")), text
    assert len(listener.heard) > 10 and numbers["credentials.echoes_masked"] >= 4
    assert numbers["credentials.injected"] == 1 and numbers["credentials.refused"] == 5


@async_test
async def test_an_echo_keeps_its_length() -> None:
    body = b"<" + KEY.encode() + b">"
    server = Recorder(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    async with serving(server, "api.example") as port:
        plugin = credentials(rule(host=f"api.example:{port}"))
        async with running(Names(**NAMES), Loopback(), TlsOnce(), plugin) as runtime:
            await lookup(runtime, "api.example")
            async with guest(runtime, "127.0.0.1", port) as flow:
                await offload(flow, "api.example")
                await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\nAccept-Encoding: gzip, br\r\n\r\n")
                status, fields, body = await read_response(flow)
    assert (status, body, fields["content-length"]) == (200, b"<" + b"*" * len(KEY) + b">", str(len(body)))
    assert b"Accept-Encoding: identity" in server.requests[0] and b"br" not in server.requests[0].split(b"Host")[0]


@pytest.mark.parametrize(("body", "status"), [(f'{{"k": "{KEY}"}}', 403), (f'{{"k": "{PLACEHOLDER}"}}', 200)])
@async_test
async def test_a_secret_in_a_body_does_not_leave(body: str, status: int) -> None:
    server = Recorder()
    async with (
        serving(server, "other.example") as port,
        running(Names(**NAMES), Loopback(), TlsOnce(), credentials()) as runtime,
    ):
        await lookup(runtime, "other.example")
        for late in (False, True):
            async with guest(runtime, "127.0.0.1", port) as flow:
                await offload(flow, "other.example")
                head = f"POST / HTTP/1.1\r\nHost: other.example\r\nContent-Length: {len(body)}\r\n\r\n"
                await flow.guest_send(head.encode())
                if late:
                    await asyncio.sleep(0.05)
                await flow.guest_send(body.encode())
                got, _, told = await read_response(flow)
                assert got == status, told
    assert not any(KEY.encode() in request for request in server.requests)


@async_test
async def test_events_pass_as_they_come() -> None:
    """Redaction holds nothing back at the end of an event."""
    go: asyncio.Queue[None] = asyncio.Queue()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(20):
            await go.get()
            writer.write(b'data: {"n": %d, "t": "as"}\n\n' % number)
            await writer.drain()

    async with serving(server, "api.example") as port:
        plugin = credentials(rule(host=f"api.example:{port}"))
        async with running(Names(**NAMES), Loopback(), TlsOnce(), plugin) as runtime:
            await lookup(runtime, "api.example")
            async with guest(runtime, "127.0.0.1", port) as flow:
                await offload(flow, "api.example")
                await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
                await flow.guest_read_until(b"\r\n\r\n")
                for number in range(20):
                    go.put_nowait(None)
                    event: Any = await flow.guest_read_until(b"\n\n")
                    assert b'"n": %d,' % number in event
