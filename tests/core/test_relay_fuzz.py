"""Random guests and random servers against the HTTP relay, with h11 at the other end as the judge. No sockets."""

from __future__ import annotations

import asyncio
import contextlib

import h11
from agentfw import Destination, TlsInfo, hookimpl
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from .support import async_test, guest, offload, running
from .test_http1 import BODIES, LINES, PIECES, requests

HOST = "a.example"
INFO = TlsInfo("TLSv1.3", ("c", "TLSv1.3", 256), None, b"certificate", True)


CHUNKED = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


class JudgedUpstream:
    """A server that reads requests with h11 and answers each; `faults` has what h11 could not read."""

    reused = False
    address = "127.0.0.1"
    tls = INFO

    def __init__(self, destination: Destination, faults: list[str], seen: list[h11.Request]) -> None:
        self.destination = destination
        self.faults = faults
        self.seen = seen
        self.h11 = h11.Connection(h11.SERVER)
        self.ready = asyncio.Event()
        self.out = b""
        self.requests = 0

    async def send(self, data: bytes) -> None:
        self.h11.receive_data(data)
        try:
            while True:
                event = self.h11.next_event()
                if isinstance(event, h11.Request):
                    self.requests += 1
                    self.seen.append(event)
                elif isinstance(event, h11.EndOfMessage):
                    self.out += b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
                    self.ready.set()
                elif event in (h11.NEED_DATA, h11.PAUSED):
                    break
        except h11.RemoteProtocolError as error:
            self.faults.append(f"{error}: {data!r}")
        if self.requests > 1:
            self.faults.append("two requests in one lease")
        if self.h11.trailing_data[0]:
            self.faults.append(f"bytes behind the request: {self.h11.trailing_data[0]!r}")

    async def receive(self, limit: int = 65536) -> bytes:
        await self.ready.wait()
        data, self.out = self.out[:limit], self.out[limit:]
        return data

    async def send_eof(self) -> None:
        self.ready.set()

    def release(self, *, reusable: bool = False) -> None:
        self.ready.set()
        if reusable and self.requests and self.h11.their_state is not h11.DONE:
            self.faults.append(f"reusable in the middle of a request: {self.h11.their_state}")


class Judge:
    """The `connect` hook for it."""

    name = "judge"

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.seen: list[h11.Request] = []

    @hookimpl
    def allow(self) -> None:
        """Everything."""

    @hookimpl
    def dial(self) -> bool:
        return True

    @hookimpl
    async def connect(self, destination: Destination) -> JudgedUpstream:
        return JudgedUpstream(destination, self.faults, self.seen)


stream = st.lists(requests | st.sampled_from(PIECES + LINES + BODIES), min_size=1, max_size=4).map(b"".join)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream, st.integers(1, 4000))
@example(b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: b.example\r\n\r\n", 4000)
@example(CHUNKED + b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", 7)
def test_whatever_a_guest_sends_the_server_reads_whole_requests_for_its_name(data: bytes, size: int) -> None:
    @async_test
    async def body() -> None:
        judge = Judge()
        async with running(judge) as runtime, guest(runtime, "192.0.2.1", 443) as flow:
            assert (await offload(flow, HOST))["ok"]
            for at in range(0, len(data), size):
                await flow.guest_send(data[at : at + size])
            flow.guest_send_eof()
            with contextlib.suppress(ConnectionResetError):
                await flow.guest_read_all()
        assert not judge.faults
        for request in judge.seen:
            assert [value for name, value in request.headers if name == b"host"] == [HOST.encode()]
            assert request.target.startswith((b"/", b"*"))

    body()


class Rude:
    """A `connect` hook whose server says `data`, in pieces of `size`, to every request, and hangs up."""

    name = "rude"

    def __init__(self, data: bytes, size: int) -> None:
        self.data = data
        self.size = size
        self.reusable: list[bool] = []

    @hookimpl
    def dial(self) -> bool:
        return True

    @hookimpl
    def connect(self, destination: Destination) -> JudgedUpstream:
        rude = self

        class Server(JudgedUpstream):
            at = 0

            async def send(self, data: bytes) -> None:
                self.requests += 1

            async def receive(self, limit: int = 65536) -> bytes:
                piece = rude.data[self.at : self.at + rude.size]
                self.at += len(piece)
                return piece

            def release(self, *, reusable: bool = False) -> None:
                if self.requests:
                    rude.reusable.append(reusable)
                    self.requests = 0

        async def made() -> JudgedUpstream:
            return Server(destination, [], [])

        return made()  # type: ignore[return-value]


STATUS = [b"HTTP/1.1 200 OK", b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 x", b"HTTP/1.0 200 OK", b"HTTP/1.1 100 Continue",
          b"HTTP/1.1 500 x",
          b"HTTP/1.1 101 x"]  # fmt: skip
responses = st.builds(
    lambda status, lines, body: b"\r\n".join([status, *lines, b"", b""]) + body,
    st.sampled_from(STATUS),
    st.lists(st.sampled_from(LINES), max_size=3),
    st.sampled_from(BODIES),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(responses | st.sampled_from(PIECES), min_size=1, max_size=3).map(b"".join),
    st.integers(1, 4000),
    st.sampled_from(["GET", "HEAD"]),
)
def test_whatever_a_server_sends_the_guest_reads_one_whole_response_or_a_reset(data: bytes, size: int, method: str) -> None:
    @async_test
    async def body() -> None:
        rude = Rude(data, size)
        got = b""
        was_reset = False
        async with running(rude) as runtime, guest(runtime, "192.0.2.1", 443) as flow:
            assert (await offload(flow, HOST))["ok"]
            await flow.guest_send(f"{method} / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            flow.guest_send_eof()
            try:
                while piece := await flow.guest_receive():
                    got += piece
            except ConnectionResetError:
                was_reset = True
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method=method, target="/", headers=[("Host", HOST)]))
        reader.send(h11.EndOfMessage())
        if got:
            reader.receive_data(got)
        finished = False
        if not was_reset:
            reader.receive_data(b"")
        while not finished:
            event = reader.next_event()
            if event is h11.NEED_DATA:
                break
            finished = isinstance(event, h11.EndOfMessage)
        assert finished or was_reset, got
        assert not reader.trailing_data[0], "bytes behind the response reached the guest"
        # a connection may go on only if exactly one whole response came
        if rude.reusable == [True]:
            judge = h11.Connection(h11.CLIENT)
            judge.send(h11.Request(method=method, target="/", headers=[("Host", HOST)]))
            judge.send(h11.EndOfMessage())
            judge.receive_data(data)
            while not isinstance(event := judge.next_event(), h11.EndOfMessage):
                assert event is not h11.NEED_DATA

    body()
