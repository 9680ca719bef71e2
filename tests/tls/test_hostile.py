"""Every kind of wrong HTTP from an upstream, over the real relay and pool: how it ends, and that nobody else notices.

Alice asks for something bad while Bob waits for a slow answer on another shared connection; then both ask for something good.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from agentfw.errors import UpstreamError

from .hostile import Client, Line, Speak, answer, hostile
from .support import ALICE, BOB, bench, eventually, run, serve_blocking

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

# name: (what is sent, what Alice gets). "200": the whole body "ok", but the connection is not lent again; "200 kept": it is.
# "broken": 502 or a reset, as it comes.
ANSWERS: dict[str, tuple[bytes, str]] = {
    "two lengths": (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok", "502"),
    "two equal lengths": (OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", "502"),
    "a list of lengths": (OK + b"Content-Length: 2, 2\r\n\r\nok", "502"),
    "length and chunks": (OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "502"),
    "chunks in HTTP/1.0": (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "502"),
    "gzip as transfer coding": (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "502"),
    "chunked twice": (OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "502"),
    "chunked, misspelt": (OK + b"Transfer-Encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "502"),
    "a negative length": (OK + b"Content-Length: -2\r\n\r\nok", "502"),
    "a signed length": (OK + b"Content-Length: +2\r\n\r\nok", "502"),
    "a length with a leading zero": (OK + b"Content-Length: 02\r\n\r\nok", "502"),
    "a length in hex": (OK + b"Content-Length: 0x2\r\n\r\nok", "502"),
    "an empty length": (OK + b"Content-Length: \r\n\r\nok", "502"),
    "a length beyond 64 bits": (OK + b"Content-Length: 99999999999999999999\r\n\r\nok", "502"),
    "a huge length, cut": (OK + b"Content-Length: 999999999999999999\r\n\r\nok", "reset"),
    "a chunk size that is none": (CHUNKED + b"zz\r\nok\r\n0\r\n\r\n", "broken"),
    "a negative chunk size": (CHUNKED + b"-2\r\nok\r\n0\r\n\r\n", "broken"),
    "a chunk size beyond 64 bits": (CHUNKED + b"fffffffffffffffff\r\nok\r\n0\r\n\r\n", "broken"),
    "a huge chunk, cut": (CHUNKED + b"7fffffffffffff\r\nok", "reset"),
    "a chunk longer than its size": (CHUNKED + b"1\r\nok\r\n0\r\n\r\n", "broken"),
    "a chunk without its end": (CHUNKED + b"2\r\nok0\r\n\r\n", "broken"),
    "an endless chunk extension": (CHUNKED + b"2;" + b"x" * 8192 + b"\r\nok\r\n0\r\n\r\n", "broken"),
    "a chunk line with a bare LF": (CHUNKED + b"2\nok\r\n0\r\n\r\n", "broken"),
    "a trailer that is no field": (CHUNKED + b"2\r\nok\r\n0\r\nno field\r\n\r\n", "broken"),
    "endless trailers": (CHUNKED + b"2\r\nok\r\n0\r\n" + b"X: y\r\n" * 4000 + b"\r\n", "broken"),
    "good trailers": (CHUNKED + b"2\r\nok\r\n0\r\nX: y\r\n\r\n", "200 kept"),
    "a bare LF in the head": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", "502"),
    "a bare CR in the head": (OK + b"X: a\rb\r\nContent-Length: 2\r\n\r\nok", "502"),
    "a folded field": (OK + b"X: a\r\n Content-Length: 1\r\nContent-Length: 2\r\n\r\nok", "502"),
    "a blank before the colon": (OK + b"Content-Length : 2\r\n\r\nok", "502"),
    "NUL in a field": (OK + b"X: a\0b\r\nContent-Length: 2\r\n\r\nok", "502"),
    "NUL in a name": (OK + b"X\0: a\r\nContent-Length: 2\r\n\r\nok", "502"),
    "a field without a name": (OK + b": a\r\nContent-Length: 2\r\n\r\nok", "502"),
    "a field without a colon": (OK + b"nonsense\r\nContent-Length: 2\r\n\r\nok", "502"),
    "too many fields": (OK + b"X: y\r\n" * 1000 + b"Content-Length: 2\r\n\r\nok", "502"),
    "a field of 100 KiB": (OK + b"X: " + b"y" * 102400 + b"\r\nContent-Length: 2\r\n\r\nok", "502"),
    "a status line that is none": (b"ICY 200 OK\r\nContent-Length: 2\r\n\r\nok", "502"),
    "HTTP/0.9": (b"ok", "502"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "502"),
    "a status of two digits": (b"HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nok", "502"),
    "status zero": (b"HTTP/1.1 000 OK\r\nContent-Length: 2\r\n\r\nok", "502"),
    "an escape in the reason": (b"HTTP/1.1 200 O\x1bK\r\nContent-Length: 2\r\n\r\nok", "502"),
    "an empty line first": (b"\r\n" + answer(b"ok"), "502"),
    "40 interim responses": (b"HTTP/1.1 103 Early\r\n\r\n" * 40 + answer(b"ok"), "502"),
    "100 Continue that nobody asked for": (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"ok"), "200 kept"),
    "101 unasked": (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nok", "502"),
    "an interim response with a body": (b"HTTP/1.1 103 Early\r\nContent-Length: 2\r\n\r\nok" + answer(b"ok"), "502"),
    "two responses": (answer(b"ok") + answer(b"SECRET OF ALICE"), "200"),
    "a byte behind the response": (answer(b"ok") + b"\0", "200"),
    "an empty line behind the response": (answer(b"ok") + b"\r\n", "200"),
    "bytes behind the last chunk": (CHUNKED + b"2\r\nok\r\n0\r\n\r\nX", "200"),
    "204 with a body": (b"HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\nok", "204"),
    "204 with chunks": (b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "204"),
    "304 with a body": (b"HTTP/1.1 304 No\r\nContent-Length: 2\r\n\r\nok", "304"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "200"),
    "Connection: close": (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", "200"),
    "Connection: CLOSE among others": (OK + b"Connection: foo , CLOSE\r\nContent-Length: 2\r\n\r\nok", "200"),
    "hop-by-hop fields": (OK + b"Connection: x-a\r\nX-A: 1\r\nKeep-Alive: max=1\r\nContent-Length: 2\r\n\r\nok", "200 kept"),
    "a cut head": (OK + b"Content-Len", "502"),
    "a cut body": (OK + b"Content-Length: 3\r\n\r\nok", "reset"),
    "cut chunks": (CHUNKED + b"2\r\nok\r\n", "reset"),
    "a cut body without a length": (OK + b"\r\nok", "reset"),
    "nothing": (b"", "502"),
}  # fmt: skip
ENDS = {name for name in ANSWERS if "cut" in name or name in ("nothing", "HTTP/0.9")}


async def encounter(
    tmp_path: Path, speak: Speak, outcome: str, method: str = "GET", during: Callable[[Client], Awaitable[None]] | None = None
) -> None:
    """`during`: what happens between Alice's bad request and the verdict on it."""
    expected, _, kept = outcome.partition(" ")
    async with hostile(speak, tmp_path) as stage:
        b = stage.bench
        alice, bob, patient = Client(b, ALICE), Client(b, BOB), Client(b, BOB)
        for client in (alice, bob, patient):
            assert (await client.open())["ok"]
        waiting = asyncio.ensure_future(patient.good("patience", "slow"))
        await bob.good("before")
        await alice.good("before")
        held = b.held
        await alice.send("/bad", method)
        if during:
            await during(alice)
        got, body = await alice.judge(method)
        assert got in (("502", "reset") if expected == "broken" else (expected,))
        if expected == "200":
            assert body == (b"" if method == "HEAD" else b"ok")
        if kept:
            await eventually(lambda: b.held == held)
        else:
            await eventually(lambda: b.held < held and b.leased == 1)
        await bob.good("after")
        if not kept:
            await alice.close()
            alice = Client(b, ALICE)
            assert (await alice.open())["ok"]
        await alice.good("after")
        stage.server.go.set()
        await waiting
        for line in stage.server.lines:
            bad = [number for number, request in enumerate(line.requests) if b" /bad " in request]
            assert not bad or kept or bad == [len(line.requests) - 1], "a dirty connection was used again"
        for client in (alice, bob, patient):
            await client.close()
        assert b.leased == b.waiting == 0


@pytest.mark.parametrize("name", ANSWERS)
def test_wrong_answers(tmp_path: Path, name: str) -> None:
    data, outcome = ANSWERS[name]

    async def speak(line: Line, request: bytes) -> None:
        await line.write(data)
        if name in ENDS:
            line.cut()

    run(lambda: encounter(tmp_path, speak, outcome))


@pytest.mark.parametrize("kind", ["length", "chunks"])
@pytest.mark.parametrize("with_body", [False, True])
def test_answers_to_head(tmp_path: Path, kind: str, with_body: bool) -> None:
    head = OK + b"Content-Length: 2\r\n\r\n" if kind == "length" else CHUNKED
    body = (b"ok" if kind == "length" else b"2\r\nok\r\n0\r\n\r\n") if with_body else b""

    async def speak(line: Line, request: bytes) -> None:
        await line.write(head + body)

    run(lambda: encounter(tmp_path, speak, "200" if with_body else "200 kept", "HEAD"))


# ---- answers that take their time ----


async def pieces(line: Line, data: bytes, size: int, pause: float = 0.0) -> None:
    for at in range(0, len(data), size):
        await line.write(data[at : at + size])
        await asyncio.sleep(pause)


async def drip(line: Line, request: bytes) -> None:
    """Right, a byte at a time."""
    await pieces(line, CHUNKED + b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n", 1, 0.001)


async def endless_head(line: Line, request: bytes) -> None:
    await line.write(OK)
    while not line.writer.transport.is_closing():
        await line.write(b"X-Filler: %b\r\n" % (b"y" * 4000))


async def endless_line(line: Line, request: bytes) -> None:
    while not line.writer.transport.is_closing():
        await line.write(b"y" * 4000)


async def endless_interim(line: Line, request: bytes) -> None:
    while not line.writer.transport.is_closing():
        await line.write(b"HTTP/1.1 102 Processing\r\n\r\n")


async def reset_in_the_body(line: Line, request: bytes) -> None:
    await line.write(OK + b"Content-Length: 100000\r\n\r\nok")
    await asyncio.sleep(0.05)
    line.reset()


async def reset_at_once(line: Line, request: bytes) -> None:
    await line.write(OK[:-2])
    await asyncio.sleep(0.05)
    line.reset()


async def notify_in_the_body(line: Line, request: bytes) -> None:
    """close_notify is an end of the stream, not of the message."""
    await line.write(OK + b"Content-Length: 3\r\n\r\nok")
    await line.notify()


async def notify_in_the_head(line: Line, request: bytes) -> None:
    await line.write(OK)
    await line.notify()


async def until_the_end(line: Line, request: bytes) -> None:
    """No length: the end of the stream is the end of the message, if it was said."""
    await line.write(OK + b"\r\nok")
    await line.notify()


async def behind_it(line: Line, request: bytes) -> None:
    """A second answer, a moment after the first."""
    await line.write(answer(b"ok"))
    await asyncio.sleep(0.02)
    await line.write(answer(b"SECRET OF ALICE"))


async def notify_behind_it(line: Line, request: bytes) -> None:
    await line.write(answer(b"ok"))
    await line.notify()


async def half_a_record_behind_it(line: Line, request: bytes) -> None:
    await line.write(answer(b"ok"))
    await line.raw(b"\x17\x03\x03\x01\x00half")


async def junk_behind_it(line: Line, request: bytes) -> None:
    await line.write(answer(b"ok"))
    await line.raw(b"not a record at all")


async def forged_behind_it(line: Line, request: bytes) -> None:
    await line.write(answer(b"ok"))
    await line.raw(b"\x17\x03\x03\x00\x40" + random.Random(1).randbytes(64))


async def forged_in_the_body(line: Line, request: bytes) -> None:
    await line.write(OK + b"Content-Length: 5\r\n\r\nok")
    await line.raw(b"\x17\x03\x03\x00\x40" + random.Random(1).randbytes(64))


async def alert_in_the_body(line: Line, request: bytes) -> None:
    await line.write(OK + b"Content-Length: 5\r\n\r\nok")
    await line.raw(b"\x15\x03\x03\x00\x02\x02\x28")


async def record_too_long(line: Line, request: bytes) -> None:
    await line.write(OK + b"Content-Length: 5\r\n\r\nok")
    await line.raw(b"\x17\x03\x03\xff\xff" + b"x" * 65535)


SCRIPTS: list[tuple[Speak, str]] = [
    (drip, "200 kept"), (endless_head, "502"), (endless_line, "502"), (endless_interim, "502"), (reset_in_the_body, "reset"),
    (reset_at_once, "502"), (notify_in_the_body, "reset"), (notify_in_the_head, "502"), (until_the_end, "200"),
    (behind_it, "200"), (notify_behind_it, "200"), (half_a_record_behind_it, "200"), (junk_behind_it, "200"),
    (forged_behind_it, "200"), (forged_in_the_body, "reset"), (alert_in_the_body, "reset"), (record_too_long, "reset"),
]  # fmt: skip


@pytest.mark.parametrize(("speak", "outcome"), SCRIPTS, ids=lambda each: getattr(each, "__name__", None))
def test_wrong_streams(tmp_path: Path, speak: Speak, outcome: str) -> None:
    run(lambda: encounter(tmp_path, speak, outcome))


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("when", ["in an answer", "idle"])
def test_a_reset_right_behind_bytes_is_noticed(tmp_path: Path, loop: Callable[[], Any], when: str) -> None:
    """libuv reports both at once, and then never again."""
    ready = threading.Event()

    def speak(tls: ssl.SSLSocket) -> None:
        tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else "more" may wait for half's ACK, and go with the reset
        while tls.recv(100):
            tls.sendall(b"half")
            ready.wait(10)
            tls.sendall(b"more")
            tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            tls.close()
            return

    async def main() -> None:
        async with serve_blocking(speak) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            await upstream.send(b"x")
            got = await upstream.receive(4)
            assert got == b"half"
            if when == "idle":
                upstream.release(reusable=True)
                assert b.held == 1
            reading = asyncio.ensure_future(upstream.receive(1)) if when != "idle" else None
            await asyncio.sleep(0.01)
            ready.set()
            time.sleep(0.2)  # noqa: ASYNC251  (so that the loop finds both at once)
            if reading is None:
                await eventually(lambda: b.held == 0)
            else:
                async with asyncio.timeout(20):
                    assert await reading == b"m"
                    with pytest.raises((OSError, UpstreamError)):
                        while await upstream.receive():
                            pass
                upstream.release()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("kind", ["head", "body", "chunks"])
def test_an_answer_that_never_ends_ends_with_its_agent(tmp_path: Path, kind: str) -> None:
    """Whatever trickles in costs the one flow; when the agent gives up, the connection is closed."""

    async def main() -> None:
        ended = asyncio.Event()

        async def speak(line: Line, request: bytes) -> None:
            try:
                await line.write({"head": OK, "body": OK + b"Content-Length: 999999\r\n\r\n", "chunks": CHUNKED}[kind])
                while True:
                    await line.write({"head": b"X: y\r\n", "body": b"x", "chunks": b"1\r\nx\r\n"}[kind])
                    await asyncio.sleep(0.02)
            finally:
                ended.set()

        async with hostile(speak, tmp_path) as stage:
            b = stage.bench
            alice, bob = Client(b, ALICE), Client(b, BOB)
            assert (await alice.open())["ok"] and (await bob.open())["ok"]
            await alice.send("/bad")
            await asyncio.sleep(0.1)
            for number in range(5):
                await bob.good(f"meanwhile{number}")
            assert b.leased == 1
            await alice.close()
            assert b.leased == 0
            await asyncio.wait_for(ended.wait(), 10)
            await bob.good("after")
            await bob.close()

    run(main)


def test_what_comes_before_a_request_retires_the_connection(tmp_path: Path) -> None:
    """An answer to nobody's question, sent as soon as the handshake is done, is nobody's answer."""

    async def main() -> None:
        async def speak(line: Line, request: bytes) -> None:
            raise AssertionError("never")

        async with hostile(speak, tmp_path) as stage:
            b = stage.bench
            bob = Client(b, BOB)
            assert (await bob.open())["ok"]
            await bob.good("b1")
            connection = next(iter(b.plugin.pool.groups.values())).idle[0]  # type: ignore[union-attr]
            await stage.server.lines[-1].write(answer(b"SECRET"))
            await eventually(lambda: connection.closed)
            await bob.good("b2")
            assert b.retired_dirty == 1
            await bob.close()

    run(main)
