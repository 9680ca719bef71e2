"""Guests that have gone while a connection was being made for them: it is given up; what they had said has a little time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from agentfw import Agent, Destination, TlsRequest, hookimpl
from agentfw.relay import exchange, flow
from agentfw.relay.preface import MAGIC

from .support import Loopback, Names, async_test, guest, lookup, running
from .test_flows import hello_for

PREFACE = msgspec.json.encode(
    {"server_name": "api.example", "alpn": [], "verify": 2, "check_hostname": True, "cas": [], "min": 0, "max": 0}
)
OFFLOADED = MAGIC + len(PREFACE).to_bytes(4, "big") + PREFACE


class Slow:
    """A `connect` hook: a peer that never answers, or does when `may`."""

    name = "slow"

    def __init__(self) -> None:
        self.asked, self.may, self.given_up = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.sent = b""

    @hookimpl
    async def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> Any:
        self.asked.set()
        try:
            await self.may.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        self.destination, self.tls, self.address, self.reused = destination, None, "127.0.0.1", False
        return self

    async def send(self, data: bytes) -> None:
        self.sent += data

    async def send_eof(self) -> None: ...

    async def receive(self, limit: int = 65536) -> bytes:
        return b""

    def release(self, *, reusable: bool = False) -> None: ...


@pytest.mark.parametrize(
    ("port", "said"),
    [(443, OFFLOADED), (443, hello_for("api.example")), (25, b""), (7777, b"\x01\x02"),
     (80, b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")],
    ids=["offloaded", "own", "server first", "raw", "http"],
)  # fmt: skip
@async_test
async def test_nothing_goes_on_for_who_has_gone(port: int, said: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (exchange, flow):
            patch.setattr(module, "LINGER", 0.05)
        slow = Slow()
        async with running(Names(api_example="127.0.0.1"), Loopback(), slow) as runtime:
            await lookup(runtime, "api.example")
            async with guest(runtime, "127.0.0.1", port) as stream:
                await stream.guest_send(said)
                await slow.asked.wait()
            assert slow.given_up.is_set() and not runtime.uses


@async_test
async def test_what_was_said_before_the_close_still_goes() -> None:
    slow = Slow()
    async with running(Names(api_example="127.0.0.1"), Loopback(), slow) as runtime:
        await lookup(runtime, "api.example")
        async with guest(runtime, "127.0.0.1", 7777) as stream:
            await stream.guest_send(b"\x01\x02")
            await slow.asked.wait()
            stream.guest_close()
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.05, slow.may.set)
        assert slow.sent == b"\x01\x02" and not slow.given_up.is_set()
