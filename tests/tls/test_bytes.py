"""Large bodies and backpressure, both ways."""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
from pathlib import Path

from agentfw_tls_pool.connection import PAUSE, READ

from .support import (
    bench,
    run,
    serve,
    serve_blocking,
)


def test_large_bodies_both_ways(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3_000_000)

    async def main() -> None:
        async def back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while piece := await reader.read(100_000):
                writer.write(piece)
                await writer.drain()

        async with serve(back) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()

            async def receive() -> bytes:
                got = b""
                while len(got) < len(data):
                    piece = await upstream.receive(random.choice([1, 100, 16384, 65536]))
                    assert piece
                    got += piece
                return got

            reading = asyncio.ensure_future(receive())
            for start in range(0, len(data), 700_000):
                await upstream.send(data[start : start + 700_000])
            assert await reading == data
            upstream.release(reusable=True)
            assert b.held == 1

    run(main)


def test_a_slow_reader_stops_the_peer(tmp_path: Path) -> None:
    async def main() -> None:
        written = 0

        async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            for _ in range(1000):
                writer.write(b"x" * 65536)
                await writer.drain()
                written += 65536

        async with serve(flood) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            await upstream.receive(1)
            last = -1
            while written != last:
                last = written
                await asyncio.sleep(0.1)
            assert upstream._connection._buffered <= PAUSE + READ  # type: ignore[attr-defined]
            assert written < 1000 * 65536
            for _ in range(1000):
                await upstream.receive()
            assert written > last

    run(main)


def test_a_stalled_peer_stops_the_sender(tmp_path: Path) -> None:
    async def main() -> None:
        go = threading.Event()

        def stall(tls: ssl.SSLSocket) -> None:
            go.wait(20)
            got = 0
            while piece := tls.recv(1 << 16):
                got += len(piece)
            tls.sendall(b"%d\n" % got)

        async with serve_blocking(stall) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            sent = 0

            async def send() -> None:
                nonlocal sent
                for _ in range(500):
                    await upstream.send(b"x" * 65536)
                    sent += 65536

            sending = asyncio.ensure_future(send())
            last = -1
            while sent != last:
                last = sent
                await asyncio.sleep(0.1)
            assert sent < 500 * 65536
            go.set()
            await sending
            await upstream.send_eof()
            assert await upstream.receive() == b"%d\n" % (500 * 65536)
            upstream.release()

    run(main)


def test_what_was_sent_before_release_arrives(tmp_path: Path) -> None:
    async def main() -> None:
        total = 0
        done = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal total
            await asyncio.sleep(0.1)
            while piece := await reader.read(1 << 16):
                total += len(piece)
            done.set()

        async with serve(slow) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            sent = 0
            while not upstream._connection._out:  # type: ignore[attr-defined]
                await upstream.send(b"y" * 50_000)
                sent += 50_000
            upstream.release()
            await asyncio.wait_for(done.wait(), 10)
            assert total == sent

    run(main)
