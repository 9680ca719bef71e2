"""A guest's connections, the guest being played from the other side of the same memory."""

import asyncio
import os
import random
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from agentfw_vmm import flows
from agentfw_vmm._lib import new_bytes
from agentfw_vmm.rules import compile_rules
from hypothesis import given, settings
from hypothesis import strategies as st

from .cell_peer import RING, C, Guest, Peer

CLOSED, TX_EOF, RX_OFF = C["AFW_G_CLOSED"], C["AFW_G_TX_EOF"], C["AFW_G_RX_OFF"]


@asynccontextmanager
async def running(vms: int = 2) -> AsyncIterator[Peer]:
    peer = Peer(vms)
    try:
        for vm in range(vms):
            peer.cell.restore(vm, 100 + vm)
        await peer.settle()
        peer.memory.commands(0)
        yield peer
    finally:
        peer.close()


def run(test: Callable[[Peer], Awaitable[None]], vms: int = 2) -> None:
    async def body() -> None:
        async with running(vms) as peer:
            await asyncio.wait_for(test(peer), 60)

    asyncio.run(body())


def wakes(peer: Peer) -> list[int]:
    return [vm for kind, vm, _, _ in peer.memory.commands(0) if kind == C["AFW_CMD_WAKE"]]


def test_connect_succeeds_and_fails() -> None:
    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 5, address=bytes([192, 0, 2, 7]), port=443)
        (flow,) = peer.handler.flows
        assert (flow.vm, flow.index, flow.kind, flow.address, flow.port) == (0, 5, "tcp", "192.0.2.7", 443)
        flow.opened(40000)
        assert (guest.get("hstate"), guest.get("local_port")) == (C["AFW_H_OPEN"], 40000)
        assert guest.ready()
        await peer.settle()
        assert wakes(peer) == [0]

        refused = await peer.open(1, 127, address=bytes(15) + b"\1", port=65535)
        flow = peer.handler.flows[1]
        assert (flow.address, flow.port, flow.vm, flow.index) == ("::1", 65535, 1, 127)
        flow.failed(111)
        assert (refused.get("hstate"), refused.get("error")) == (C["AFW_H_FAILED"], 111)
        assert refused.ready()
        assert await flow.receive() == b""
        refused.set("gflags", CLOSED)
        peer.kick(1, 127)
        await peer.settle()
        assert refused.get("hstate") == C["AFW_H_FREE"]
        await peer.open(1, 127)
        assert len(peer.handler.flows) == 3

    run(test)


@pytest.mark.parametrize(("kind", "port", "errno"), [(9, 80, 93), (1, 65536, 22)], ids=["kind", "port"])
def test_odd_open_fails_alone(kind: int, port: int, errno: int) -> None:
    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 4, kind=kind, port=port)
        assert not peer.handler.flows
        assert (guest.get("hstate"), guest.get("error")) == (C["AFW_H_FAILED"], errno)

    run(test)


def test_bytes_both_ways_with_wrapping_and_backpressure() -> None:
    """1 MB each way through 64 KiB rings: both sides have to wait for each other."""

    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 4)
        (flow,) = peer.handler.flows
        flow.opened()
        rng = random.Random(7)
        up, down = rng.randbytes(1_000_000), rng.randbytes(1_000_000)

        async def worker_receives() -> bytes:
            parts = []
            while part := await flow.receive(rng.choice([1, 1000, 65536])):
                parts.append(part)
            return b"".join(parts)

        async def worker_sends() -> None:
            at = 0
            while at < len(down):
                size = rng.choice([1, 700, 200_000])
                await flow.send(down[at : at + size])
                at += size
            flow.send_eof()

        async def guest_runs() -> bytes:
            sent, got = 0, b""
            while sent < len(up) or not (
                guest.get("hflags") & C["AFW_HF_RX_EOF"] and guest.get("rx_head") == guest.get("rx_tail")
            ):
                size = rng.choice([1, 5000, 100_000])
                sent += guest.write(up[sent : sent + size])
                if sent == len(up):
                    guest.set("gflags", TX_EOF)
                got += guest.read(rng.choice([10, 30_000, RING]))
                peer.memory.commands(0)
                peer.kick(0, 4)
                await peer.settle()
            return got

        received, _, got = await asyncio.gather(worker_receives(), worker_sends(), guest_runs())
        assert received == up
        assert got == down

    run(test)


def test_send_waits_until_all_is_in_the_ring() -> None:
    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 4)
        (flow,) = peer.handler.flows
        flow.opened()
        task = asyncio.ensure_future(flow.send(b"x" * (RING + 1)))
        await peer.settle()
        assert not task.done()
        assert len(guest.read()) == RING
        await peer.settle()
        assert not task.done()  # nobody polls: the guest has to say so
        peer.kick(0, 4)
        await peer.settle()
        assert task.done()
        assert guest.read() == b"x"

    run(test)


def test_end_of_stream_after_everything_is_read() -> None:
    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 4)
        (flow,) = peer.handler.flows
        flow.opened()
        guest.write(b"last words")
        guest.set("gflags", TX_EOF)
        assert await flow.receive(4) == b"last"
        assert await flow.receive() == b" words"
        assert await flow.receive() == b""
        await flow.send(b"still open this way")
        assert guest.read() == b"still open this way"
        waiting = asyncio.ensure_future(flow.wait_closed())
        peer.kick(0, 4)
        await peer.settle()
        assert not waiting.done()
        guest.set("gflags", TX_EOF | CLOSED)
        peer.kick(0, 4)
        await asyncio.wait_for(waiting, 5)
        with pytest.raises(BrokenPipeError):
            await flow.send(b"x")
        assert guest.get("hstate") == C["AFW_H_OPEN"]
        flow.close()
        flow.close()
        assert guest.get("hstate") == C["AFW_H_FREE"]
        assert [guest.get(name) for name in ("rx_head", "tx_tail", "hflags", "error")] == [0, 0, 0, 0]

    run(test)


def test_guest_closes_while_a_sender_waits() -> None:
    async def test(peer: Peer) -> None:
        for index, flag in ((4, CLOSED), (5, RX_OFF)):
            guest = await peer.open(0, index)
            flow = peer.handler.flows[-1]
            flow.opened()
            task = asyncio.ensure_future(flow.send(bytes(RING * 2)))
            await peer.settle()
            guest.set("gflags", flag)
            peer.kick(0, index)
            with pytest.raises(BrokenPipeError):
                await asyncio.wait_for(task, 5)

    run(test)


def test_worker_closes_first() -> None:
    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 4)
        (flow,) = peer.handler.flows
        flow.opened()
        await flow.send(b"bye")
        flow.close()
        assert guest.get("hflags") == C["AFW_HF_RX_EOF"]
        assert guest.get("hstate") == C["AFW_H_OPEN"]  # the guest holds it still
        guest.write(b"more")
        peer.kick(0, 4)
        await peer.settle()
        assert guest.get("tx_tail") == 4  # thrown away
        assert not guest.get("hflags") & C["AFW_HF_RESET"]  # it has something to read before
        assert guest.read() == b"bye"
        guest.write(b"more")
        peer.kick(0, 4)
        await peer.settle()
        assert guest.get("hflags") & C["AFW_HF_RESET"]
        guest.set("gflags", CLOSED)
        peer.kick(0, 4)
        await peer.settle()
        assert guest.get("hstate") == C["AFW_H_FREE"]

    run(test)


def test_misuse_is_an_error_of_the_caller() -> None:
    async def test(peer: Peer) -> None:
        with pytest.raises(ValueError, match="0 bytes"):
            await peer.cell.stream(0, 1).receive(0)
        for vm, index in ((0, 4), (0, -1), (5, 1)):
            with pytest.raises(ValueError, match=r"stream|never started"):
                peer.cell.stream(vm, index)
        with pytest.raises(ValueError, match="signal"):
            peer.cell.signal(0, 0)
        with pytest.raises(ValueError, match="datagram"):
            await peer.cell.stream(0, 1).send_datagram(bytes(65508), "10.0.0.1", 1)

    run(test)


@pytest.mark.parametrize("error", [None, 104, 111, 110])
def test_reset(error: int | None) -> None:
    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 4)
        (flow,) = peer.handler.flows
        flow.opened()
        reader = asyncio.ensure_future(flow.receive())
        await peer.settle()
        flow.reset() if error is None else flow.reset(error)
        assert await asyncio.wait_for(reader, 5) == b""
        assert guest.get("hflags") & C["AFW_HF_RESET"]
        assert guest.get("error") == (error or 104)
        flow.reset(110)
        assert guest.get("error") == (error or 104), "the first counts"
        with pytest.raises(BrokenPipeError):
            await flow.send(b"x")
        flow.close()
        guest.write(b"on its way before the guest looked")
        peer.kick(0, 4)
        await peer.settle()
        assert guest.get("error") == (error or 104), "it is not forgotten, either"

    run(test)


def test_cancelled_receive_loses_nothing() -> None:
    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 4)
        (flow,) = peer.handler.flows
        flow.opened()
        for round in range(100):
            task = asyncio.ensure_future(flow.receive())
            await asyncio.sleep(0)
            guest.write(bytes([round]))
            peer.kick(0, 4)
            if round % 2:
                await peer.settle()
            task.cancel()
            done = await asyncio.gather(task, return_exceptions=True)
            got = done[0] if isinstance(done[0], bytes) else await flow.receive()
            assert got == bytes([round])

    run(test)


def test_datagrams() -> None:
    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 4, kind=2, address=bytes(4), port=0)
        (flow,) = peer.handler.flows
        assert (flow.kind, flow.address) == ("udp", "")
        flow.opened()
        large = os.urandom(65507 - 24)
        for payload, port in ((b"", 53), (b"question", 53), (large, 54)):
            guest.write(struct.pack("<HHHH", len(payload), port, 2, 0) + bytes([127, 0, 0, 9]).ljust(16, b"\0") + payload)
            assert await flow.receive_datagram() == (payload, "127.0.0.9", port)
        assert (flow.address, flow.port) == ("127.0.0.9", 53)
        await flow.send_datagram(b"answer", "2001:db8::5", 5353)
        raw = guest.read()
        assert struct.unpack("<HHHH", raw[:8]) == (6, 5353, 10, 0)
        assert raw[8:24] == bytes.fromhex("20010db8000000000000000000000005")
        assert raw[24:] == b"answer"
        flow.send_datagram_error(111, "10.0.0.7", 9)
        raw = guest.read()
        assert struct.unpack("<HHHH", raw[:8]) == (0, 9, 2, 111) and raw[8:12] == bytes([10, 0, 0, 7]) and len(raw) == 24
        guest.write(struct.pack("<HHHH", 1, 9, 2, 111) + bytes(16) + b"x")  # a guest has no errors to tell
        assert await flow.receive_datagram() == (b"x", "0.0.0.0", 9)
        await flow.send_datagram(large, "10.0.0.1", 1)
        await flow.send_datagram(large, "10.0.0.2", 1)  # no room: dropped, not waited for
        assert guest.read()[8:12] == bytes([10, 0, 0, 1])
        assert guest.read() == b""
        guest.set("gflags", CLOSED)
        with pytest.raises(BrokenPipeError):
            await flow.receive_datagram()
        with pytest.raises(BrokenPipeError):
            await flow.send_datagram(b"x", "10.0.0.1", 1)
        flow.close()
        flow.send_datagram_error(111, "10.0.0.7", 9)  # nobody is there to be told

    run(test)


@pytest.mark.parametrize(
    "frame",
    [
        b"short",
        struct.pack("<HHHH", 100, 1, 2, 0) + bytes(16) + b"less than it says",
        struct.pack("<HHHH", 1, 1, 7, 0) + bytes(16) + b"x",
    ],
    ids=["head", "length", "family"],
)
def test_bad_datagram_resets_that_flow(frame: bytes) -> None:
    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 4, kind=2)
        other = await peer.open(1, 4)
        flow, fine = peer.handler.flows
        guest.write(frame)
        with pytest.raises(BrokenPipeError):
            await flow.receive_datagram()
        assert guest.get("hflags") & C["AFW_HF_RESET"]
        other.write(b"alive")
        assert await fine.receive() == b"alive"

    run(test)


@settings(max_examples=60, deadline=None)
@given(head=st.integers(0, 0xFFFFFFFF), tail=st.integers(0, 0xFFFFFFFF), flags=st.integers(0, 0xFFFFFFFF))
def test_whatever_the_guest_writes_into_its_line(head: int, tail: int, flags: int) -> None:
    """No index or flag does more than end that connection; the neighbour goes on."""

    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 4)
        other = await peer.open(1, 4)
        flow, fine = peer.handler.flows
        flow.opened()
        guest.set("tx_head", head)
        guest.set("rx_tail", tail)
        guest.set("gflags", flags)
        guest.set("tx_tail", head ^ 0x5555)  # the worker's own line: never believed
        guest.set("rx_head", tail ^ 0x3333)
        peer.kick(0, 4)
        task = asyncio.ensure_future(flow.receive())
        await peer.settle()
        if not task.done():
            task.cancel()
        else:
            assert len(task.result()) <= RING
        sending = asyncio.ensure_future(flow.send(b"data"))
        await peer.settle()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        if head > RING:
            assert await flow.receive() == b""
            assert guest.get("hflags") & C["AFW_HF_RESET"]
        flow.close()
        other.write(b"alive")
        assert await fine.receive() == b"alive"

    run(test)


def test_flows_that_rules_refuse_are_refused_here_too() -> None:
    """The cell refuses them; one that a guest has taken over may not."""

    async def test(peer: Peer) -> None:
        for vm, name in enumerate(("connect", "symlink")):
            peer.cell.kill(vm)
            assert peer.memory.event(0, C["AFW_EV_EXIT"], vm)
            peer.signal()
            await peer.settle()
            peer.cell.restore(vm, 7, compile_rules(deny=[name]))
            guest = await peer.open(vm, 5)
            assert (guest.get("hstate"), guest.get("error")) == ((C["AFW_H_FAILED"], 1) if vm == 0 else (C["AFW_H_OPENING"], 0))
        assert [flow.vm for flow in peer.handler.flows] == [1]

    run(test)


def test_opening_a_slot_in_use_kills_that_vm() -> None:
    async def test(peer: Peer) -> None:
        for index in (4, 2):  # held by a flow; a standard stream
            if index == 4:
                await peer.open(0, 4)
            peer.memory.commands(0)
            assert peer.memory.event(0, C["AFW_EV_FLOW_OPEN"], 0, index, 1 | 2 << 16 | 80 << 32)
            peer.signal()
            await peer.settle()
            assert [(kind, vm) for kind, vm, _, _ in peer.memory.commands(0)] == [(C["AFW_CMD_KILL"], 0)]

    run(test)


def test_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    async def test(peer: Peer) -> None:
        for _ in range(100):
            guest = await peer.open(0, 4)
            flow = peer.handler.flows[-1]
            guest.set("tx_head", 1 << 31)
            assert await flow.receive() == b""
            flow.close()
            guest.set("gflags", CLOSED)
            peer.kick(0, 4)
            await peer.settle()

    run(test)
    lines = [record.message for record in caplog.records if "corrupted" in record.message]
    assert len(lines) == 20
    assert lines[-1].endswith("(no more of this VM is logged)")


def test_streams_are_drained_after_exit() -> None:
    async def test(peer: Peer) -> None:
        cell, stdout, stdin = peer.cell, Guest(peer.memory, 0, 1), Guest(peer.memory, 0, 0)
        assert stdout.get("hstate") == C["AFW_H_OPEN"]
        text = os.urandom(RING)
        await cell.stream(0, 0).send(b"input")
        assert stdin.read() == b"input"
        stdout.write(text)
        waiting = asyncio.ensure_future(cell.stream(0, 2).receive())
        await peer.settle()
        peer.memory.set_vm(0, "exit_kind", C["AFW_EXIT_CODE"])
        peer.memory.set_vm(0, "exit_code", 3)
        assert peer.memory.event(0, C["AFW_EV_EXIT"], 0)
        peer.signal()
        assert await asyncio.wait_for(waiting, 5) == b""
        (vm, report) = peer.handler.exits[0]
        assert (vm, report.kind, report.code) == (0, "code", 3)
        old = cell.stream(0, 1)
        stdin_flow = cell.stream(0, 0)
        cell.restore(0, 5)  # the slot is used anew, the window is empty
        assert stdout.get("tx_head") == 0
        assert stdout.windows[stdout.tx : stdout.tx + RING] == bytes(RING)
        assert await old.receive(1000) == text[:1000]
        assert await old.receive() == text[1000:]
        assert await old.receive() == b""
        with pytest.raises(BrokenPipeError):
            await stdin_flow.send(b"too late")
        stdin_flow.close()
        old.reset()
        assert cell.stream(0, 1) is not old
        assert stdout.get("hflags") == 0
        stdout.write(b"second life")
        assert await cell.stream(0, 1).receive() == b"second life"

    run(test)


def test_wakes_are_coalesced() -> None:
    async def test(peer: Peer) -> None:
        for vm in (0, 1):
            for index in (4, 5):
                await peer.open(vm, index)
        await peer.settle()
        peer.memory.commands(0)
        for flow in peer.handler.flows:
            await flow.send(b"x")
            await flow.send(b"y")
        await peer.settle()
        assert sorted(wakes(peer)) == [0, 1]
        assert os.eventfd_read(peer.runner_fds[0]) > 0

    run(test)


def test_reading_little_does_not_wake_the_guest() -> None:
    """A guest waits for room only when its ring is full; waking it costs it an exit."""

    async def test(peer: Peer) -> None:
        guest = await peer.open(0, 4)
        (flow,) = peer.handler.flows
        await peer.settle()
        peer.memory.commands(0)
        guest.ready()
        guest.write(b"small")
        assert await flow.receive() == b"small"
        await peer.settle()
        assert not guest.ready()
        assert wakes(peer) == []
        guest.write(bytes(RING))
        await flow.receive()
        await peer.settle()
        assert guest.ready()
        assert wakes(peer) == [0]

    run(test)


def test_a_datagrams_peer_is_its_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two embedded pools have a thread each, and C code runs without the GIL."""
    both = threading.Barrier(2, timeout=10)
    told = {}

    def write(worker: object, vm: int, index: int, head: object, data: object) -> int:
        both.wait()
        told[vm] = head.port
        return 1

    def read(worker: object, vm: int, index: int, head: object, out: object) -> int:
        head.family, head.port = socket.AF_INET, vm
        both.wait()
        return 0

    async def exchanged(port: int) -> int:
        flow = flows.GuestFlow.__new__(flows.GuestFlow)
        flow._host = SimpleNamespace(worker=None, scratch=new_bytes(1), changed=lambda: None)
        flow.vm, flow.index, flow.address = port, 9, ""
        flow._give_datagram(b"", "192.0.2.1", port, 0)
        return (await flow.receive_datagram())[2]

    monkeypatch.setattr(flows, "lib", SimpleNamespace(afw_flow_write_datagram=write, afw_flow_read_datagram=read))
    monkeypatch.setattr(flows.GuestFlow, "turn", lambda self: asyncio.sleep(0))
    monkeypatch.setattr(flows.GuestFlow, "_live", lambda self: True)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda port: asyncio.run(exchanged(port)), (1, 2))) == [1, 2]
    assert told == {1: 1, 2: 2}
