"""HTTP/1 through the relay: guests in memory, real servers on 127.0.0.1 behind real TLS."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agentfw import Agent, Denied, Destination, RequestHead, ResponseHead, TlsRequest, hookimpl
from agentfw.errors import Overloaded
from agentfw.relay.exchange import Exchange
from agentfw.runtime import Runtime

from .support import (
    Lease,
    Loopback,
    Names,
    Recorder,
    TlsOnce,
    async_test,
    exactly,
    guest,
    lookup,
    offload,
    read_response,
    running,
    serving,
)

HOST = "api.example"


def names() -> Names:
    return Names(**{HOST: "127.0.0.1", "other.example": "127.0.0.1"})


async def https(runtime: Runtime, port: int, request: bytes, host: str = HOST) -> bytes:
    """All that the guest gets for what it sends."""
    await lookup(runtime, host)
    async with guest(runtime, "127.0.0.1", port) as flow:
        assert await flow.guest_connected() == 0
        answer = await offload(flow, host)
        assert answer["ok"], answer
        await flow.guest_send(request)
        flow.guest_send_eof()
        return await flow.guest_read_all()


@async_test
async def test_request_and_response_are_written_anew() -> None:
    server = Recorder(
        b"HTTP/1.1 200 Fine\r\nX-RateLimit-Remaining: 7\r\nRetry-After-Ms: 9\r\nConnection: x-hop\r\n"
        b"X-Hop: 1\r\nContent-Length: 2\r\n\r\nok"
    )
    async with serving(server, HOST) as port, running(names(), Loopback(), TlsOnce()) as runtime:
        request = (
            b"POST /v1?q=1 HTTP/1.1\r\naccept: */*\r\nHost: API.example.:%d\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\n"
            b"Content-Length: 3\r\nTE: trailers\r\nX-Last:  a b \r\n\r\nabc"
        )
        got = await https(runtime, port, request % port)
    assert server.requests == [
        b"POST /v1?q=1 HTTP/1.1\r\naccept: */*\r\nHost: api.example:%d\r\nContent-Length: 3\r\nX-Last: a b\r\n\r\nabc" % port
    ]
    assert got == b"HTTP/1.1 200 Fine\r\nX-RateLimit-Remaining: 7\r\nRetry-After-Ms: 9\r\nContent-Length: 2\r\n\r\nok"


@async_test
async def test_requests_of_one_flow_are_served_in_order_and_connections_reused() -> None:
    server = Recorder(lambda head: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + head[5:7])
    tls = TlsOnce(pooled=True)
    async with serving(server, HOST) as port, running(names(), Loopback(), tls) as runtime:
        pipelined = b"".join(b"GET /%d HTTP/1.1\r\nHost: api.example\r\n\r\n" % n for n in range(10, 15))
        got = await https(runtime, port, pipelined)
    assert [part[:2] for part in got.split(b"\r\n\r\n")[1:]] == [b"10", b"11", b"12", b"13", b"14"]
    assert server.connections == 1 and all(tls.releases)


@pytest.mark.parametrize(
    ("what", "request_"),
    [
        ("two lengths", b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
        ("two lengths, differing", b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabc"),
        ("a list of lengths", b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 3, 3\r\n\r\nabc"),
        ("a signed length", b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: +3\r\n\r\nabc"),
        ("a leading zero", b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 03\r\n\r\nabc"),
        ("an underscore", b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1_0\r\n\r\nabcdefghij"),
        (
            "length and chunked",
            b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("chunked in 1.0", b"POST / HTTP/1.0\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (
            "chunked twice",
            b"POST / HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("xchunked", b"POST / HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ("identity", b"POST / HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: identity\r\n\r\n"),
        ("vertical tab", b"POST / HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
        ("obs-fold", b"GET / HTTP/1.1\r\nHost: api.example\r\nX-A: b\r\n c\r\n\r\n"),
        ("folded first field", b"GET / HTTP/1.1\r\n Host: api.example\r\n\r\n"),
        ("bare LF", b"GET / HTTP/1.1\nHost: api.example\n\n"),
        ("one bare LF", b"GET / HTTP/1.1\r\nHost: api.example\nX: y\r\n\r\n"),
        ("bare CR", b"GET / HTTP/1.1\r\nHost: api.example\r\nX: a\rb\r\n\r\n"),
        ("NUL in a value", b"GET / HTTP/1.1\r\nHost: api.example\r\nX: a\0b\r\n\r\n"),
        ("NUL in the host", b"GET / HTTP/1.1\r\nHost: api.example\0.evil\r\n\r\n"),
        ("blank before the colon", b"GET / HTTP/1.1\r\nHost : api.example\r\n\r\n"),
        ("no colon", b"GET / HTTP/1.1\r\nHost: api.example\r\nnonsense\r\n\r\n"),
        ("empty name", b"GET / HTTP/1.1\r\nHost: api.example\r\n: x\r\n\r\n"),
        ("no host", b"GET / HTTP/1.1\r\n\r\n"),
        ("empty host", b"GET / HTTP/1.1\r\nHost:\r\n\r\n"),
        ("two hosts", b"GET / HTTP/1.1\r\nHost: api.example\r\nHost: api.example\r\n\r\n"),
        ("another host", b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"),
        ("another port", b"GET / HTTP/1.1\r\nHost: api.example:1\r\n\r\n"),
        ("forwarded host", b"GET / HTTP/1.1\r\nHost: api.example\r\nX-Forwarded-Host: api.example, other.example\r\n\r\n"),
        ("forwarded host, underscores", b"GET / HTTP/1.1\r\nHost: api.example\r\nx_forwarded_host: other.example\r\n\r\n"),
        ("forwarded", b'GET / HTTP/1.1\r\nHost: api.example\r\nForwarded: for=_a;proto=https; Host="other.example"\r\n\r\n'),
        ("original host, odd", b"GET / HTTP/1.1\r\nHost: api.example\r\nX-Original-Host: http://api.example\r\n\r\n"),
        ("coding by underscore", b"POST / HTTP/1.1\r\nHost: api.example\r\nTransfer_Encoding: chunked\r\n\r\n"),
        ("length by underscore", b"POST / HTTP/1.1\r\nHost: api.example\r\ncontent_length: 5\r\nContent-Length: 0\r\n\r\n"),
        ("user info", b"GET / HTTP/1.1\r\nHost: api.example@other.example\r\n\r\n"),
        ("absolute form, another host", b"GET https://other.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n"),
        ("absolute form, user info", b"GET https://api.example@other.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n"),
        ("absolute form, another scheme", b"GET http://api.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n"),
        ("host against absolute form", b"GET https://api.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n"),
        ("authority form", b"CONNECT other.example:443 HTTP/1.1\r\nHost: api.example\r\n\r\n"),
        ("no slash", b"GET foo HTTP/1.1\r\nHost: api.example\r\n\r\n"),
        ("fragment", b"GET /a#b HTTP/1.1\r\nHost: api.example\r\n\r\n"),
        ("two blanks", b"GET  / HTTP/1.1\r\nHost: api.example\r\n\r\n"),
        ("tab", b"GET\t/ HTTP/1.1\r\nHost: api.example\r\n\r\n"),
        ("no version", b"GET /\r\nHost: api.example\r\n\r\n"),
        ("version 1.2", b"GET / HTTP/1.2\r\nHost: api.example\r\n\r\n"),
        ("version 2.0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("lower-case version", b"GET / http/1.1\r\nHost: api.example\r\n\r\n"),
        ("empty line first", b"\r\nGET / HTTP/1.1\r\nHost: api.example\r\n\r\n"),
        ("unknown expectation", b"GET / HTTP/1.1\r\nHost: api.example\r\nExpect: 200-ok\r\n\r\n"),
        ("too many fields", b"GET / HTTP/1.1\r\nHost: api.example\r\n" + b"X: y\r\n" * 300 + b"\r\n"),
        ("too long", b"GET / HTTP/1.1\r\nHost: api.example\r\nX: " + b"y" * 70000),
        ("not HTTP", b"\x01\x02\x03\x04"),
    ],
)
@async_test
async def test_ambiguous_requests_are_refused_and_nothing_is_sent(what: str, request_: bytes) -> None:
    server = Recorder()
    async with serving(server, HOST) as port, running(names(), Loopback(), TlsOnce()) as runtime:
        follow = b"GET /smuggled HTTP/1.1\r\nHost: api.example\r\n\r\n"
        got = await https(runtime, port, request_ + follow)
        assert runtime.counters["http_bad_requests"] == 1
    assert server.requests == []
    head, _, body = got.partition(b"\r\n\r\n")
    assert 400 <= int(head.split()[1]) <= 505 and int(head.split()[1]) != 502, got
    assert b"Connection: close" in head and json.loads(body)["error"]["type"] == "agentfw_bad_request"


@pytest.mark.parametrize(
    "body",
    [b"3\r\nabcd\r\n0\r\n\r\n", b"g\r\nabc\r\n0\r\n\r\n", b"3\nabc\r\n0\r\n\r\n",
     b"-3\r\nabc\r\n0\r\n\r\n", b"0x3\r\nabc\r\n0\r\n\r\n", b" 3\r\nabc\r\n0\r\n\r\n",
     b"3;" + b"x" * 5000 + b"\r\nabc\r\n0\r\n\r\n", b"3\r\nabc\r\n0\r\nbad trailer\r\n\r\n",
     b"3\r\nabc\r\n0\r\nX: y\n\r\n", b"1" * 40 + b"\r\nabc", b"3\r\nab"],
)  # fmt: skip
@async_test
async def test_bad_chunks_are_refused(body: bytes) -> None:
    async def hungry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await reader.read())

    bodies: list[bytes] = []
    tls = TlsOnce(pooled=True)
    async with serving(hungry, HOST) as port, running(names(), Loopback(), tls) as runtime:
        got = await https(runtime, port, b"POST / HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert got.startswith(b"HTTP/1.1 400 ") and b"Connection: close" in got
    assert tls.releases[1:] == [False], "a connection in the middle of a request must not be used again"
    assert not any(b"\r\n0\r\n\r\n" in each for each in bodies)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 40,
        b"",
    ],
)
@async_test
async def test_bad_responses_are_502_and_never_reused(answer: bytes) -> None:
    server = Recorder(answer, close=True)
    tls = TlsOnce(pooled=True)
    async with serving(server, HOST) as port, running(names(), Loopback(), tls) as runtime:
        got = await https(runtime, port, b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1\r\n\r\nx")
    assert got.startswith(b"HTTP/1.1 502 ") and b"agentfw_upstream_failed" in got, got
    assert tls.releases[1:] == [False]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "method", "body", "reusable"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"GET", b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", b"GET", b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", b"HEAD", b"", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HEAD", b"", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX: y\r\n\r\n", b"GET",
         b"3\r\nabc\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\r\n", b"GET", b"abc", False),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc", b"GET", b"", False),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", b"GET", b"abc", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"GET", b"abc", False),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", b"GET", b"3\r\nabc\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 204 Done\r\n\r\n", b"GET", b"HTTP/1.1 204 Done\r\n\r\n", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 Done\r\n\r\n", b"GET", b"", True),
    ],
)  # fmt: skip
@async_test
async def test_framing_of_responses(answer: bytes, method: bytes, body: bytes, reusable: bool) -> None:
    server = Recorder(answer, close=b"\r\n\r\nabc" in answer and b"Content" not in answer)
    tls = TlsOnce()
    async with serving(server, HOST) as port, running(names(), Loopback(), tls) as runtime:
        got = await https(runtime, port, method + b" / HTTP/1.1\r\nHost: api.example\r\n\r\n")
        extra = runtime.counters["http_extra_bytes"]
    assert got.partition(b"\r\n\r\n")[2] == body, got
    assert tls.releases[1:] == [reusable]
    assert extra == (not reusable and (b"abcHTTP" in answer or b"204" in answer))


@async_test
async def test_old_guests_get_the_body_until_the_end() -> None:
    server = Recorder(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    async with serving(server, HOST) as port, running(names(), Loopback(), TlsOnce()) as runtime:
        got = await https(runtime, port, b"GET / HTTP/1.0\r\n\r\n")
    assert got == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"
    assert server.requests == [b"GET / HTTP/1.1\r\nHost: api.example:%d\r\n\r\n" % port]


@async_test
async def test_a_response_cut_off_resets_the_guest() -> None:
    server = Recorder(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", close=True)
    async with serving(server, HOST) as port, running(names(), Loopback(), TlsOnce()) as runtime:
        with pytest.raises(ConnectionResetError):
            await https(runtime, port, b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")


@async_test
async def test_events_stream_as_they_come() -> None:
    steps: asyncio.Queue[bytes] = asyncio.Queue()

    async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        while piece := await steps.get():
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")

    async with serving(events, HOST) as port, running(names(), Loopback(), TlsOnce()) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            head = await flow.guest_read_until(b"\r\n\r\n")  # before any event is there
            assert b"text/event-stream" in head
            for n in range(5):
                steps.put_nowait(b"data: %d\n\n" % n)
                assert await flow.guest_read_until(b"\n\n\r\n") == b"9\r\ndata: %d\n\n\r\n" % n
            steps.put_nowait(b"")
            assert await flow.guest_read_until(b"0\r\n\r\n") == b"0\r\n\r\n"


@async_test
async def test_expect_continue() -> None:
    async def careful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(100000)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n%d" % len(body))

    async with serving(careful, HOST) as port, running(names(), Loopback(), TlsOnce()) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(
                b"POST / HTTP/1.1\r\nHost: api.example\r\nExpect: 100-continue\r\nContent-Length: 100000\r\n\r\n"
            )
            assert await flow.guest_read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await flow.guest_send(b"x" * 100000)
            assert await read_response(flow) == (200, {"content-length": "6"}, b"100000")


@async_test
async def test_an_early_answer_ends_the_upload() -> None:
    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    tls = TlsOnce(pooled=True)
    async with serving(refusing, HOST) as port, running(names(), Loopback(), tls) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1000000\r\n\r\nabc")
            status, fields, _ = await read_response(flow)
            assert status == 413 and fields["connection"] == "close"
            assert await flow.guest_receive() == b""
    assert tls.releases[1:] == [False]


@async_test
async def test_an_answer_before_the_request_could_be_sent_ends_the_upload() -> None:
    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 408 Too Slow\r\nContent-Length: 0\r\n\r\n")

    class Hanging(TlsOnce):
        @hookimpl
        async def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> Lease | None:
            lease = await TlsOnce.connect(self, agent, destination, tls)
            if lease is not None:
                lease.send = self.broken  # type: ignore[method-assign]
            return lease

        async def broken(self, data: bytes) -> None:
            raise ConnectionResetError

    async with serving(refusing, HOST) as port, running(names(), Loopback(), Hanging()) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1000000\r\n\r\nabc")
            status, fields, _ = await read_response(flow)
            assert status == 408 and fields["connection"] == "close"
            assert await flow.guest_receive() == b""


@async_test
async def test_upgraded_connections_go_raw_and_never_back() -> None:
    async def websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in head and b"Sec-WebSocket-Key: k" in head
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n\r\n\x81\x02hi")
        while data := await reader.read(100):
            writer.write(data.upper())

    tls = TlsOnce(pooled=True)
    async with serving(websocket, HOST) as port, running(names(), Loopback(), tls) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(
                b"GET / HTTP/1.1\r\nHost: api.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Key: k\r\n\r\n"
            )
            assert (await flow.guest_read_until(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            assert await exactly(flow, 4) == b"\x81\x02hi"
            await flow.guest_send(b"GET /not-a-request")
            assert await exactly(flow, 18) == b"GET /NOT-A-REQUEST"
    assert tls.releases[1:] == [False]


@async_test
async def test_cleartext_http2_upgrades_are_not_passed_on() -> None:
    server = Recorder()
    async with serving(server, HOST) as port, running(names(), Loopback(), TlsOnce()) as runtime:
        await https(
            runtime,
            port,
            b"GET / HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: x\r\n\r\n",
        )
    assert server.requests == [b"GET / HTTP/1.1\r\nHost: api.example:%d\r\n\r\n" % port]


@async_test
async def test_a_slow_guest_holds_its_server_back_only() -> None:
    total = 20_000_000
    sent = 0

    async def generous(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(bytes(100_000))
            await writer.drain()
            sent += 100_000

    async with serving(generous, HOST) as port, running(names(), Loopback(), TlsOnce()) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            await flow.guest_read_until(b"\r\n\r\n")
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.2)
            assert sent < total, "nothing held the server back"
            assert len(await exactly(flow, total)) == total


@async_test
async def test_a_guest_that_closes_cancels_the_request() -> None:
    gone = asyncio.Event()

    async def patient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        assert await reader.read() == b""
        gone.set()

    asked = asyncio.Event()
    tls = TlsOnce(pooled=True)
    async with serving(patient, HOST) as port, running(names(), Loopback(), tls) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            await asked.wait()
        await gone.wait()
    assert tls.releases[1:] == [False]


@pytest.mark.parametrize(("method", "tries"), [(b"GET", 2), (b"POST", 1)])
@async_test
async def test_a_stale_connection_is_tried_again_only_for_what_can_be_replayed(method: bytes, tries: int) -> None:
    server = Recorder(close=True)
    tls = TlsOnce(pooled=True)
    request = method + b" / HTTP/1.1\r\nHost: api.example\r\n" + (b"Content-Length: 1\r\n\r\nx" if method == b"POST" else b"\r\n")
    async with serving(server, HOST) as port, running(names(), Loopback(), tls) as runtime:
        await https(runtime, port, request)  # leaves a connection that the server has closed
        got = await https(runtime, port, request)
        stale = runtime.counters["http_stale_connections"]
        assert sum(runtime.durations.connect.counts) == 2, "once for each request"
    assert (stale, got.split()[1]) == ((1, b"200") if tries == 2 else (0, b"502"))


@async_test
async def test_a_body_is_kept_no_longer_than_it_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Exchange] = []

    class Told(Exchange):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    class Replayed(TlsOnce):
        @hookimpl
        async def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> Lease | None:
            lease = await TlsOnce.connect(self, agent, destination, tls)
            if lease is not None:
                lease.replayable = lambda method: True  # type: ignore[attr-defined]
            return lease

    kept: list[int] = []

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(50000)
            kept.append(sum(map(len, made[-1]._replay or ())))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
            await writer.drain()
            await reader.readexactly(50000)
            writer.write(b"k")

    monkeypatch.setattr("agentfw.relay.http.Exchange", Told)
    async with serving(slow, HOST) as port, running(names(), Loopback(), Replayed(pooled=True)) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 100000\r\n\r\n" + bytes(50000))
            assert (await flow.guest_read_until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert made[-1]._replay is None
            await flow.guest_send(bytes(50000))
            assert await exactly(flow, 2) == b"ok"
    assert kept == [50000]


class Hooks:
    """Request and response hooks under test."""

    name = "hooks"

    def __init__(self, mode: str) -> None:
        self.mode = mode

    @hookimpl
    def request(self, head: RequestHead) -> None:
        if self.mode == "deny":
            raise Denied("my rule", "because")
        if self.mode == "limit":
            raise Denied("my rule", "too fast", status=429, retry_after=1.2)
        if self.mode == "overload":
            raise Overloaded("too many requests wait", 0.1)
        if self.mode == "raise":
            raise RuntimeError("with a secret in it")
        if self.mode == "junk":
            return 5  # type: ignore[return-value]
        if self.mode == "newline":
            head.target = "/a b\r\nX: y"
        head.headers.set("X-Added", "yes")
        head.headers.set("Content-Length", "999")
        head.headers.set("Host", "evil.example")

    @hookimpl
    async def response(self, destination: Destination, request: RequestHead, head: ResponseHead) -> None:
        held = b""

        def shout(piece: bytes, last: bool) -> bytes:
            nonlocal held
            held += piece
            out, held = (held, b"") if last else (held[:-1], held[-1:])
            return out.upper()

        head.headers.set("X-Seen", f"{destination.host} {request.method}")
        if self.mode == "transform":
            head.transforms.append(shout)


@async_test
async def test_hooks_change_heads_but_not_framing_or_host() -> None:
    server = Recorder()
    async with serving(server, HOST) as port, running(names(), Loopback(), TlsOnce(), Hooks("change")) as runtime:
        got = await https(runtime, port, b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1\r\n\r\nx")
    assert server.requests == [b"POST / HTTP/1.1\r\nHost: api.example:%d\r\nContent-Length: 1\r\nX-Added: yes\r\n\r\nx" % port]
    assert b"X-Seen: api.example POST" in got


@async_test
async def test_transforms_see_the_body_as_it_streams() -> None:
    server = Recorder(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    async with serving(server, HOST) as port, running(names(), Loopback(), TlsOnce(), Hooks("transform")) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            status, fields, body = await read_response(flow)
    assert (status, body) == (200, b"HELLO") and "content-length" not in fields


@pytest.mark.parametrize(
    ("mode", "status", "kind"),
    [
        ("deny", 403, "agentfw_denied"),
        ("raise", 502, "agentfw_plugin_failed"),
        ("junk", 502, "agentfw_plugin_failed"),
        ("newline", 502, "agentfw_plugin_failed"),
    ],
)
@async_test
async def test_a_failing_hook_fails_closed_and_the_flow_goes_on(mode: str, status: int, kind: str) -> None:
    server = Recorder()
    hooks = Hooks(mode)
    async with serving(server, HOST) as port, running(names(), Loopback(), TlsOnce(), hooks) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            got, _, body = await read_response(flow)
            assert got == status and b"secret" not in body
            error = json.loads(body)["error"]
            assert error["type"] == kind and error["agent"] == "test"
            if mode == "deny":
                assert (error["rule"], error["plugin"]) == ("my rule", "hooks")
            assert server.requests == []
            hooks.mode = "change"
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            assert (await read_response(flow))[0] == 200


@pytest.mark.parametrize(
    ("mode", "status", "kind", "seconds"),
    [
        ("limit", 429, "agentfw_denied", "2"),
        ("overload", 503, "agentfw_upstream_failed", "1"),
        ("deny", 403, "agentfw_denied", None),
    ],
)
@async_test
async def test_what_may_be_tried_again_says_when(mode: str, status: int, kind: str, seconds: str | None) -> None:
    async with serving(Recorder(), HOST) as port, running(names(), Loopback(), TlsOnce(), Hooks(mode)) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            got, fields, body = await read_response(flow)
    assert (got, json.loads(body)["error"]["type"], fields.get("retry-after")) == (status, kind, seconds)


@async_test
async def test_who_forwards_for_the_host_itself_may_say_so() -> None:
    server = Recorder()
    async with serving(server, HOST) as port, running(names(), Loopback(), TlsOnce()) as runtime:
        more = f"X-Forwarded-Host: API.example\r\nX-Host: api.example:{port}\r\nForwarded: for=10.0.0.1\r\nX_Other: y\r\n"
        got = await https(runtime, port, f"GET / HTTP/1.1\r\nHost: api.example\r\n{more}Connection: close\r\n\r\n".encode())
        assert got.startswith(b"HTTP/1.1 200") and b"Forwarded: for=10.0.0.1" in server.requests[0]


@async_test
async def test_plain_http_goes_to_a_name_the_agent_was_given_the_address_for() -> None:
    from agentfw_native import Config, Plugin

    server = Recorder()
    async with serving(server) as port, running(names(), Loopback(), Plugin(Config())) as runtime:
        agent = Agent("a1", "one")
        await lookup(runtime, HOST, agent)
        for host, status in (
            ("api.example", 200),
            (f"127.0.0.1:{port}", 200),
            ("other.example", 400),
            ("elsewhere.example", 400),
        ):
            async with guest(runtime, "127.0.0.1", port, agent=agent) as flow:
                await flow.guest_send(f"GET /{status} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                assert (await read_response(flow))[0] == status, host
        async with guest(runtime, "127.0.0.1", port, agent=agent) as flow:  # the second request names another host
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            assert (await read_response(flow))[0] == 200
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert (await read_response(flow))[0] == 400
            assert await flow.guest_receive() == b""
    assert [request.split(b"\r\n")[1] for request in server.requests] == [
        b"Host: api.example:%d" % port,
        b"Host: 127.0.0.1:%d" % port,
        b"Host: api.example:%d" % port,
    ]
