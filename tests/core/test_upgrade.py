"""What follows a switch of protocols, what interim responses may say, and whose authentication a connection has."""

from __future__ import annotations

import asyncio

import pytest
from agentfw import Destination, RequestHead, ResponseHead, hookimpl
from agentfw.errors import ProtocolError
from agentfw_native import Config as NativeConfig
from agentfw_native import Plugin as Native

from .support import Loopback, Names, Recorder, TlsOnce, async_test, guest, lookup, offload, read_response, running, serving

NAMES = {"api.example": "127.0.0.1"}
ASK = b"GET /s HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


class Shout:
    """Puts what comes after the switch in capitals; `!` is an error."""

    name = "shout"

    def __init__(self, refuse: bool = False) -> None:
        self.refuse = refuse
        self.asked: list[str | None] = []
        self.lasts: list[bool] = []

    @hookimpl
    def request(self, head: RequestHead) -> None:
        self.asked.append(head.upgrade)
        if self.refuse:
            head.upgrade = None

    @hookimpl
    def response(self, destination: Destination, head: ResponseHead) -> None:
        head.transforms.append(self.transform)

    def transform(self, piece: bytes, last: bool) -> bytes:
        self.lasts.append(last)
        if b"!" in piece:
            raise ProtocolError("no shouting", 502)
        return piece.upper() + (b"END" if last else b"")


async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if b"websocket" not in head:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")
        return
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nfirst ")
    while data := await reader.read(1000):
        writer.write(data)


@async_test
async def test_transforms_go_on_after_a_switch() -> None:
    shout = Shout()
    async with serving(switch, "api.example") as port, running(Names(**NAMES), Loopback(), TlsOnce(), shout) as runtime:
        await lookup(runtime, "api.example")
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, "api.example")
            await flow.guest_send(ASK)
            await flow.guest_read_until(b"\r\n\r\n")
            await flow.guest_send(b"second ")
            assert await flow.guest_read_until(b"SECOND ") == b"FIRST SECOND "
            await flow.guest_send(b"no!")
            with pytest.raises(ConnectionResetError):
                await flow.guest_read_all()
    assert shout.asked == ["websocket"]


@async_test
async def test_the_last_piece_is_told() -> None:
    shout = Shout()
    async with serving(switch) as port, running(Names(**NAMES), Loopback(), Native(NativeConfig()), shout) as runtime:
        await lookup(runtime, "api.example")
        async with guest(runtime, "127.0.0.1", port) as flow:
            await flow.guest_send(ASK.replace(b"api.example", b"api.example:%d" % port) + b"x")
            flow.guest_send_eof()
            await flow.guest_read_until(b"\r\n\r\n")
            assert await flow.guest_read_all() == b"FIRST XEND"
    assert shout.lasts.count(True) == 1 and shout.lasts[-1]


@async_test
async def test_a_hook_can_refuse_the_switch() -> None:
    shout = Shout(refuse=True)
    async with serving(switch, "api.example") as port, running(Names(**NAMES), Loopback(), TlsOnce(), shout) as runtime:
        await lookup(runtime, "api.example")
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, "api.example")
            await flow.guest_send(ASK)
            status, _, body = await read_response(flow)
            assert (status, body) == (200, b"NOEND")


@async_test
async def test_interim_responses_say_nothing_of_their_own() -> None:
    early = b"HTTP/1.1 103 sk-secret\r\nLink: </s>\r\n\r\nHTTP/1.1 199 sk-secret\r\n\r\n"
    server = Recorder(early + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    async with serving(server, "api.example") as port, running(Names(**NAMES), Loopback(), TlsOnce()) as runtime:
        await lookup(runtime, "api.example")
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, "api.example")
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            heads = [await flow.guest_read_until(b"\r\n\r\n") for _ in range(3)]
    assert heads[:2] == [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 199 \r\n\r\n"] and heads[2].startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("scheme", "reusable"), [("Bearer", True), ("NTLM", False), ("negotiate", False), ("Basic", True)])
def test_a_connection_that_was_authenticated_is_not_lent_again(scheme: str, reusable: bool) -> None:
    @async_test
    async def run() -> None:
        tls = TlsOnce()
        async with serving(Recorder(), "api.example") as port, running(Names(**NAMES), Loopback(), tls) as runtime:
            await lookup(runtime, "api.example")
            async with guest(runtime, "127.0.0.1", port) as flow:
                await offload(flow, "api.example")
                await flow.guest_send(f"GET / HTTP/1.1\r\nHost: api.example\r\nAuthorization: {scheme} abc\r\n\r\n".encode())
                assert (await read_response(flow))[0] == 200
        assert tls.releases[-1] is reusable

    run()
