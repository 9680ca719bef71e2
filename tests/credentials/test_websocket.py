"""WebSocket frames from a server: secrets masked, lengths and everything else as it was."""

from __future__ import annotations

import asyncio
import base64
import itertools

import pytest
from agentfw.errors import ProtocolError
from agentfw.http1 import transformed
from agentfw_credentials.search import PART, Needles
from agentfw_credentials.websocket import WebSocketRedactor
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.support import Loopback, Names, TlsOnce, async_test, guest, lookup, offload, running, serving

from .support import KEY, credentials, other_agents_turns, rule

NEEDLES = Needles([KEY.encode()])
SECRET = KEY.encode()


def frame(opcode: int, payload: bytes, final: bool = True) -> bytes:
    if len(payload) > 0xFFFF:
        size = b"\x7f" + len(payload).to_bytes(8)
    else:
        size = bytes([len(payload)]) if len(payload) < 126 else b"\x7e" + len(payload).to_bytes(2)
    return bytes([opcode | 0x80 * final]) + size + payload


def parse(data: bytes) -> list[tuple[int, bool, bytes]]:
    """(opcode, last of its message, payload) of each frame, all of them whole."""
    found = []
    at = 0
    while at < len(data):
        size, start = data[at + 1], at + 2
        if size >= 126:
            start += 2 if size == 126 else 8
            size = int.from_bytes(data[at + 2 : start])
        assert len(data) >= start + size
        found.append((data[at] & 15, bool(data[at] & 0x80), data[start : start + size]))
        at = start + size
    return found


def messages(frames: list[tuple[int, bool, bytes]]) -> list[bytes]:
    whole, text = [], b""
    for opcode, final, payload in frames:
        if opcode < 8:
            text += payload
            if final:
                whole.append(text)
                text = b""
    return whole


def redact(pieces: list[bytes]) -> bytes:
    transform = WebSocketRedactor(lambda: NEEDLES, lambda number: None)
    return b"".join([*(transform(piece, False) for piece in pieces), transform(b"", True)])


def test_a_message_passes_at_once() -> None:
    transform = WebSocketRedactor(lambda: NEEDLES, lambda number: None)
    for payload in (b"", b"yes", b"sk-real", b"s" * 126, b"x" * 70_000):
        assert transform(frame(1, payload), False) == frame(1, payload), "its end decides what could have become a secret"
    assert transform(frame(9, b"sk-r"), False) == frame(9, b"sk-r")
    part = transform(frame(1, b"sk-", final=False), False)
    assert parse(part + transform(frame(0, b"real"), False)) == [(1, False, b"sk-"), (0, True, b"real")]


def test_masked_in_every_kind_of_frame() -> None:
    for payload in (SECRET, b"<" + SECRET + b">", base64.b64encode(b"a:" + SECRET), b"x" * 300 + SECRET + b"y" * 70_000):
        for opcode in (1, 2):
            ((_, _, out),) = parse(redact([frame(opcode, payload)]))
            assert len(out) == len(payload) and not NEEDLES.find(out) and out.count(b"*") >= len(SECRET)
    for opcode in (8, 9, 10):
        assert parse(redact([frame(opcode, b"\x03\xe8" + SECRET)])) == [(opcode, True, b"\x03\xe8" + b"*" * len(SECRET))]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"a", SECRET, SECRET[:5], SECRET[5:], b"s", b"sk-", b"%73k-real-0123456789", b"%", b"x" * 130]),
            st.booleans(),
            st.lists(st.tuples(st.sampled_from([9, 10]), st.sampled_from([b"", SECRET, b"s"])), max_size=2),
        ),
        max_size=12,
    ),
    st.lists(st.integers(0, 1500), max_size=12),
)
def test_any_frames_in_any_pieces(parts: list[tuple[bytes, bool, list[tuple[int, bytes]]]], cuts: list[int]) -> None:
    wire = b""
    begun = False
    for payload, final, control in parts:
        wire += frame(0 if begun else 1, payload, final)
        begun = not final
        wire += b"".join(frame(opcode, each) for opcode, each in control)
    if begun:
        wire += frame(0, b"end")
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    out = redact([wire[a:b] for a, b in itertools.pairwise(edges)])
    before, after = parse(wire), parse(out)
    assert [(opcode, final, len(payload)) for opcode, final, payload in after] == [
        (opcode, final, len(payload)) for opcode, final, payload in before
    ]
    for whole, masked in zip(messages(before), messages(after), strict=True):
        assert not NEEDLES.find(masked)
        spans = NEEDLES.find(whole)
        expected = bytearray(whole)
        for start, end, _ in spans:
            expected[start:end] = b"*" * (end - start)
        assert masked == bytes(expected)
    assert not any(SECRET in payload for _, _, payload in after)


def test_much_comes_in_parts() -> None:
    """64 KB of the shortest frames were 60 ms of all agents' time."""
    for wire in (frame(1, b"a") * 10_000, frame(9, b"") * 10_000, frame(2, b"%61" * 10_000), frame(1, SECRET) * 1000):
        parts = list(transformed([WebSocketRedactor(lambda: NEEDLES, lambda number: None)], wire, True))
        assert [end for _, end in parts] == [False] * (len(parts) - 1) + [True] and len(parts) == -(-len(wire) // PART)
        assert b"".join(part for part, _ in parts) == wire.replace(SECRET, b"*" * len(SECRET))


@async_test
async def test_a_server_of_many_frames_stops_no_other_agent() -> None:
    wire = frame(1, b"a") * 20_000

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Yes\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        await reader.read(1)
        writer.write(wire + frame(1, b"end"))
        await reader.read()

    async with serving(server, "api.example") as port:
        plugin = credentials(rule(host=f"api.example:{port}"))
        async with running(Names(**{"api.example": "127.0.0.1"}), Loopback(), TlsOnce(), plugin) as runtime:
            await lookup(runtime, "api.example")
            async with guest(runtime, "127.0.0.1", port) as flow:
                await offload(flow, "api.example")
                await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
                await flow.guest_read_until(b"\r\n\r\n")
                async with other_agents_turns() as turns:
                    await flow.guest_send(b"a")
                    got = await flow.guest_read_until(b"end")
    assert got == wire + frame(1, b"end") and len(turns) >= len(wire) // PART


@pytest.mark.parametrize(
    "wire",
    [
        b"\xc1\x01a", b"\xa1\x01a", b"\x91\x01a", b"\x81\x81\0\0\0\0a", b"\x89\x7e\0\x7e" + b"x" * 126, b"\x09\0",
        frame(1, b"a", False) + frame(1, b"b"),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_into_ends_the_connection(wire: bytes) -> None:
    with pytest.raises(ProtocolError):
        redact([wire])


def test_endless_heads_are_bounded() -> None:
    transform = WebSocketRedactor(lambda: NEEDLES, lambda number: None)
    transform(frame(1, SECRET[:4], False), False)
    with pytest.raises(ProtocolError):
        for _ in range(100_000):
            transform(frame(9, b"x" * 100), False)


def test_a_stream_cut_amid_a_frame() -> None:
    for wire in (frame(1, b"sk-real-0")[:-3], frame(9, SECRET)[:-2], b"\x81", b"\x81\x7e\x01", frame(1, SECRET, False)):
        out = redact([wire])
        assert len(out) == len(wire) and SECRET not in out


@async_test
async def test_through_the_relay() -> None:
    heads: list[bytes] = []

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        extension = b"Sec-WebSocket-Extensions: permessage-deflate\r\n" if b"GET /bad" in heads[-1] else b""
        writer.write(b"HTTP/1.1 101 " + SECRET + b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\n" + extension + b"\r\n")
        writer.write(frame(1, b"you sent " + SECRET))
        while data := await reader.read(1000):
            writer.write(frame(1, data + SECRET[:6]) + frame(1, SECRET[6:]))

    async with serving(server, "api.example") as port:
        plugin = credentials(rule(host=f"api.example:{port}"))
        async with running(Names(**{"api.example": "127.0.0.1"}), Loopback(), TlsOnce(), plugin) as runtime:
            await lookup(runtime, "api.example")
            for path, upgrade in (("/ws", "websocket"), ("/bad", "websocket"), ("/other", "spdy")):
                async with guest(runtime, "127.0.0.1", port) as flow:
                    await offload(flow, "api.example")
                    ask = f"GET {path} HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n"
                    await flow.guest_send((ask + "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n").encode())
                    head = await flow.guest_read_until(b"\r\n\r\n")
                    assert SECRET not in head
                    if path != "/ws":
                        assert not head.startswith(b"HTTP/1.1 101"), head
                        continue
                    assert head.startswith(b"HTTP/1.1 101 " + b"*" * len(SECRET))
                    masked = b"you sent " + b"*" * len(SECRET)
                    assert await flow.guest_read_until(masked) == frame(1, masked)
                    await flow.guest_send(b"hi ")
                    assert await flow.guest_read_until(SECRET[6:]) == frame(1, b"hi " + SECRET[:6]) + frame(1, SECRET[6:])
    assert b"authorization: Bearer " + SECRET in heads[0] and not any(b"Extensions" in head for head in heads)
    assert b"spdy" not in heads[2]
