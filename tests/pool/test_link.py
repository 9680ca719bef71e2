"""Frames between router and workers: what comes is taken or cuts the link, who writes waits for who reads."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, cast

import msgspec
import pytest
from agentfw.pool.jobs import PoolError
from agentfw.pool.link import HIGH, Direct, Link, Refusal
from agentfw.pool.messages import Body, Counts, Done, Numbers, Ping, Statistics, ToRouter, ToWorker, Wrote
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .routers import pool_test, until


class _Peer:
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.ended: list[str] = []

    def event(self, message: Any) -> None:
        self.events.append(message)

    async def request(self, message: Any) -> msgspec.Struct:
        if isinstance(message, Ping):
            await asyncio.sleep(0)
            return Counts(1, 2, 3)
        raise PoolError("unsupported", "no", "ask another")

    def lost(self, reason: str) -> None:
        self.ended.append(reason)

    def writable(self) -> None:
        pass


def _frame(body: bytes, kind: int = 0, number: int = 0, length: int | None = None) -> bytes:
    return struct.pack("<IBI", len(body) if length is None else length, kind, number) + body


GOOD = msgspec.msgpack.encode(Wrote("r", 1, b"x"))


@pool_test
async def test_what_is_nested_too_deeply_cuts_the_link(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = socket.socketpair()
    peer = _Peer()
    await Link.open(ours, peer, ToRouter, frame_max=1 << 20)
    with theirs:
        one_more = GOOD[0] + 1  # the head of an array or a map
        theirs.sendall(_frame(bytes([one_more]) + GOOD[1:] + (b"" if one_more & 0x10 else b"\xa1z") + b"\x91" * 100_000))
        await until(lambda: bool(peer.ended))
    assert peer.ended[0].startswith("nonsense came") and not caplog.records


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.just(_frame(GOOD)),
            st.binary(max_size=40),
            st.builds(_frame, st.one_of(st.binary(max_size=40), st.just(GOOD)), st.integers(0, 255), st.integers(0, 2**32 - 1)),
            st.builds(lambda length: _frame(GOOD, length=length), st.integers(0, 2**32 - 1)),
        ),
        max_size=6,
    )
)
def test_whatever_comes_is_taken_or_cuts_the_link(frames: list[bytes]) -> None:
    @pool_test
    async def body() -> None:
        ours, theirs = socket.socketpair()
        peer = _Peer()
        link = await Link.open(ours, peer, ToRouter, frame_max=1 << 16)
        with theirs:
            theirs.setblocking(False)
            try:
                for frame in frames:
                    await asyncio.get_running_loop().sock_sendall(theirs, frame)
                    await asyncio.sleep(0)
            except OSError:
                pass  # cut
        await until(lambda: bool(peer.ended))
        assert len(peer.ended) == 1 and all(event == Wrote("r", 1, b"x") for event in peer.events)
        good = 0
        while good < len(frames) and frames[good] == _frame(GOOD):
            good += 1
        assert len(peer.events) >= good, "what came before the nonsense counts"
        link.send(Done())
        with pytest.raises(PoolError):
            await link.ask(Ping(), Counts)

    body()


@pool_test
async def test_questions_and_answers() -> None:
    for direct in (True, False):
        one, two = _Peer(), _Peer()
        if direct:
            left, right = Direct.pair(one, two)
        else:
            ends = socket.socketpair()
            left = cast(Any, await Link.open(ends[0], one, ToRouter))
            right = cast(Any, await Link.open(ends[1], two, ToWorker))
        left.send(Ping())
        answers = await asyncio.gather(*(left.ask(Ping(), Counts) for _ in range(100)))
        assert answers == [Counts(1, 2, 3)] * 100 and two.events == [Ping()]
        with pytest.raises(PoolError) as caught:
            await left.ask(Statistics(), Numbers)
        assert (caught.value.code, str(caught.value), caught.value.hint) == ("unsupported", "no", "ask another")
        with pytest.raises(PoolError) as caught:  # an answer of another type
            await left.ask(Ping(), Body)
        assert caught.value.code == ("internal" if direct else "unavailable")
        right.close()
        left.close()
        await asyncio.sleep(0.01)
        assert len(one.ended) == len(two.ended) == 1


class _Boundless(_Peer):
    async def request(self, message: Any) -> msgspec.Struct:
        return Numbers({"plugin.counter": 1 << 64}) if isinstance(message, Statistics) else Body(b"x" * (1 << 26))


@pool_test
async def test_an_answer_that_cannot_be_written_is_a_refusal() -> None:
    """Of numbers that a guest or its cell has a say in, or too long: who asked does not wait for ever."""
    ends = socket.socketpair()
    left = await Link.open(ends[0], cast(Any, _Peer()), ToRouter)
    right = await Link.open(ends[1], cast(Any, _Boundless()), ToWorker)
    async with asyncio.timeout(20):
        for question in (Statistics(), Ping()):
            with pytest.raises(PoolError):
                await left.ask(question, Numbers)
    right.close()
    left.close()


@pool_test
async def test_who_writes_waits_for_who_reads() -> None:
    ours, theirs = socket.socketpair()
    peer = _Peer()
    link = await Link.open(ours, peer, ToRouter)
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            await link.put(Wrote("r", 1, bytes(65536)))
            written += 65536

    writing = asyncio.ensure_future(write())
    for _ in range(200):
        await asyncio.sleep(0)
    stood = written
    await asyncio.sleep(0.05)
    assert written == stood <= 3 * HIGH and link.full
    theirs.setblocking(False)
    read = 0
    while read < stood + HIGH:
        read += len(await asyncio.get_running_loop().sock_recv(theirs, 1 << 20))
    assert written > stood
    theirs.close()
    with pytest.raises(PoolError):
        await writing
    assert peer.ended == ["the other end is gone"]


def test_refusals_tell_no_more_than_they_should() -> None:
    assert Refusal.of(PoolError("pool_full", "x", "y")) == Refusal("pool_full", "x", "y")
    assert Refusal.of(KeyError("secret")) == Refusal("internal", "a mistake of agentfw's or a plugin's: KeyError")


@pool_test
async def test_who_says_nothing_at_all_is_silent_until_it_speaks() -> None:
    ours, theirs = socket.socketpair()
    link = await Link.open(ours, _Peer(), ToRouter)
    with theirs:
        theirs.setblocking(False)
        assert not link.silent
        with pytest.raises(PoolError, match=r"no answer within 0\.05 s"):
            await link.ask(Ping(), Counts, 0.05)
        assert link.silent
        theirs.sendall(_frame(GOOD))  # whatever it is
        await until(lambda: not link.silent)
        asking = asyncio.ensure_future(link.ask(Ping(), Counts, 0.2))
        await asyncio.sleep(0)
        theirs.sendall(_frame(GOOD))  # it is busy with something else
        with pytest.raises(PoolError):
            await asking
        assert not link.silent
    link.close()
