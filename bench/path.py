"""What the path adds to a model call: a guest's flow through relay and plugins, against a direct TLS connection, in one run.

    python bench/path.py [--calls 2000] [--plugins dns,tls,policy,credentials,native] [--concurrency 1] [--profile FILE]

Both sides keep their connection; calls alternate. The servers are processes of their own. Prints medians, 99th percentiles and
differences: of calls, of streams to their first and to each further event; then calls and bytes of body for each second of CPU
time that this process took (the agents' ends in memory are in it, the servers are not).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import multiprocessing
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from agentfw import Agent
from agentfw.config import load_config
from agentfw.mock_llm import CertificateAuthority, MockLLM, MockOptions
from agentfw.plugins import DEFAULT, load_plugins
from agentfw.relay.preface import MAGIC
from agentfw.runtime import Runtime
from agentfw.testing import MemoryFlow

HOST = "api.openai.com"
KEY = "sk-real-0123456789abcdef"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()


STREAM = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}).encode()
EVENTS = 20
PER_SECOND = 500.0
"""Events of a stream, and how fast they come."""
BULK = 64 << 20


async def all_told(runtime: Runtime) -> None:
    """Have plugins be told now what they would be a moment later, and what they then put off for a turn of the loop: else it
    would be in somebody else's CPU time."""
    await asyncio.sleep(0)
    runtime.plugins.later.deliver()
    await asyncio.sleep(0)


def serve(pipe: Connection) -> None:
    """The model servers (at once, and with streams that take their time) and one that gives and takes BULK bytes; tells their
    ports and CAs, ends when told to."""

    async def body() -> None:
        at_once = MockLLM(MockOptions(keys=(KEY,)))
        slowly = MockLLM(MockOptions(keys=(KEY,), tokens_per_second=PER_SECOND, reply="word ", reply_tokens=EVENTS))
        authority = CertificateAuthority()
        block = b"x" * 65536

        async def bulk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    up = b"POST" in head
                    left = BULK if up else 0
                    while left:
                        piece = await reader.read(min(left, 1 << 20))
                        if not piece:
                            return
                        left -= len(piece)
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (0 if up else BULK))
                    for _ in range(0 if up else BULK // len(block)):
                        writer.write(block)
                        await writer.drain()

        third = await asyncio.start_server(bulk, "127.0.0.1", 0, ssl=authority.server_context([HOST]))
        async with at_once, slowly:
            ports = [at_once.port, slowly.port, third.sockets[0].getsockname()[1]]
            pipe.send((ports, [at_once.ca_pem, slowly.ca_pem, authority.ca_pem]))
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    uvloop.run(body())


def request(port: int, key: str, body: bytes = BODY) -> bytes:
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Accept: application/json\r\nUser-Agent: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def body_length(head: bytes) -> int:
    lower = head.lower()
    at = lower.index(b"content-length:") + 15
    return int(lower[at : lower.index(b"\r\n", at)])


class Direct:
    """A TLS connection as an agent on the host would have."""

    def __init__(self, port: int, ca: str) -> None:
        self.port = port
        self.context = ssl.create_default_context(cadata=ca)

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context, server_hostname=HOST)

    async def call(self) -> None:
        self.writer.write(request(self.port, KEY))
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await self.reader.readexactly(body_length(head))

    async def stream(self) -> list[float]:
        """When each event came."""
        self.writer.write(request(self.port, KEY, STREAM))
        await self.reader.readuntil(b"\r\n\r\n")
        times: list[float] = []
        await events(self.reader.read, times)
        return times

    async def close(self) -> None:
        self.writer.close()


class ThroughPath:
    """A flow in memory, served by the runtime: everything but the VM and its ring."""

    def __init__(self, runtime: Runtime, port: int, agent: Agent) -> None:
        self.flow = MemoryFlow("127.0.0.1", port)
        self.port = port
        runtime.learn(agent, HOST, ["127.0.0.1"])
        self.task = asyncio.create_task(runtime.handle_flow(agent, self.flow))

    async def open(self) -> None:
        wish = msgspec.json.encode({"server_name": HOST, "alpn": ["http/1.1"]})
        await self.flow.guest_send(MAGIC + len(wish).to_bytes(4) + wish)
        head = await self.exactly(len(MAGIC) + 4)
        answer = msgspec.json.decode(await self.exactly(int.from_bytes(head[len(MAGIC) :])))
        assert answer["ok"], answer

    async def exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = await self.flow.guest_receive(length - len(data))
            assert piece, "the flow ended"
            data += piece
        return data

    async def call(self) -> None:
        await self.flow.guest_send(request(self.port, "sk-agentfw-placeholder"))
        head = await self.flow.guest_read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await self.exactly(body_length(head))

    async def stream(self) -> list[float]:
        await self.flow.guest_send(request(self.port, "sk-agentfw-placeholder", STREAM))
        await self.flow.guest_read_until(b"\r\n\r\n")
        times: list[float] = []
        await events(self.flow.guest_receive, times)
        return times

    async def download(self) -> None:
        await self.flow.guest_send(f"GET / HTTP/1.1\r\nHost: {HOST}:{self.port}\r\n\r\n".encode())
        left = body_length(await self.flow.guest_read_until(b"\r\n\r\n"))
        while left:
            piece = await self.flow.guest_receive(65536)
            assert piece, "the flow ended"
            left -= len(piece)

    async def upload(self) -> None:
        await self.flow.guest_send(f"POST / HTTP/1.1\r\nHost: {HOST}:{self.port}\r\nContent-Length: {BULK}\r\n\r\n".encode())
        piece = bytes(65536)
        for _ in range(BULK // len(piece)):
            await self.flow.guest_send(piece)
        await self.flow.guest_read_until(b"\r\n\r\n")

    async def close(self) -> None:
        self.flow.guest_close()
        await self.task


async def events(read: Callable[[int], Coroutine[Any, Any, bytes]], times: list[float]) -> None:
    """Read a chunked stream of events to its end; note when each came."""
    tail = b""
    while True:
        piece = await read(65536)
        assert piece, "the stream ended"
        data = tail + piece
        now = time.perf_counter()
        times.extend([now] * data.count(b"data: "))
        if b"[DONE]" in data and data.endswith(b"0\r\n\r\n"):
            return
        tail = data[-32:].replace(b"data: ", b"")


async def measure(sides: dict[str, list[Direct] | list[ThroughPath]], calls: int) -> dict[str, list[float]]:
    """Seconds of each call. Blocks of calls of the two sides alternate; within a block the clients of a side run at once."""
    times: dict[str, list[float]] = {name: [] for name in sides}

    async def client(name: str, one: Direct | ThroughPath, count: int) -> None:
        for _ in range(count):
            start = time.perf_counter()
            await one.call()
            times[name].append(time.perf_counter() - start)

    per_block = 20
    for _ in range(max(1, calls // per_block)):
        for name, clients in sides.items():
            await asyncio.gather(*(client(name, one, per_block) for one in clients))
    return times


def report(name: str, direct: list[float], path: list[float], aim: str = "") -> None:
    """Both sides' p50 and p99, and what the path adds. Seconds."""
    rows = []
    for side, seconds in (("direct", direct), ("path", path)):
        milliseconds = sorted(1000 * s for s in seconds)
        rows.append((statistics.median(milliseconds), milliseconds[int(len(milliseconds) * 0.99)]))
        print(f"{name:12} {side:7} p50 {rows[-1][0]:7.3f} ms   p99 {rows[-1][1]:7.3f} ms   ({len(seconds)})")
    (p50, p99), (q50, q99) = rows
    print(f"{name:12} added   p50 {q50 - p50:7.3f} ms   p99 {q99 - p99:7.3f} ms   {aim}")


async def streams(direct: Direct, path: ThroughPath, count: int) -> None:
    first: dict[str, list[float]] = {"direct": [], "path": []}
    between: dict[str, list[float]] = {"direct": [], "path": []}
    for number in range(2 * count + 2):
        name = "path" if number % 2 else "direct"
        start = time.perf_counter()
        times = await (path if number % 2 else direct).stream()
        if number >= 2:
            first[name].append(times[0] - start)
            between[name] += [later - start - k / PER_SECOND for k, later in enumerate(times)]
    report("first event", *first.values(), "(aim: at most 2 ms)")
    report("each event", *between.values(), "(after the time it was due)")


async def rates(path: list[ThroughPath], bulk: ThroughPath, calls: int, profile: str) -> None:
    """For each second of this process's CPU time."""

    async def client(one: ThroughPath) -> None:
        for _ in range(calls // len(path)):
            await one.call()

    profiler = cProfile.Profile() if profile else None
    start, cpu = time.perf_counter(), time.process_time()
    if profiler:
        profiler.enable()
    await asyncio.gather(*(client(one) for one in path))
    if profiler:
        profiler.disable()
        profiler.dump_stats(profile)
    took, used = time.perf_counter() - start, time.process_time() - cpu
    print(f"calls        {calls / used:7.0f}/s a core   {calls / took:7.0f}/s now, {len(path)} at once   (aim: at least 300)")
    for name, work in (("response", bulk.download), ("request", bulk.upload)):
        figures = []
        for _ in range(3):
            start, cpu = time.perf_counter(), time.process_time()
            await work()
            figures.append((BULK / (time.process_time() - cpu) / 1e6, BULK / (time.perf_counter() - start) / 1e6))
        a_core, now = (statistics.median(each) for each in zip(*figures, strict=True))
        print(f"{name:8} body {a_core:6.0f} MB/s a core {now:7.0f} MB/s now   (aim: at least 200)")


async def main(options: argparse.Namespace, ports: list[int], cas: list[str]) -> None:
    port = ports[0]
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "ca.pem").write_text("".join(cas))
        (place / "key").write_text(KEY)
        rules = "".join(
            f'[[credentials.rule]]\nhost = "{HOST}:{each}"\nheader = "authorization"\nvalue = "Bearer ${{file:{place}/key}}"\n'
            for each in ports[:2]
        )
        (place / "agentfw.toml").write_text(
            f'[dns]\nhosts = {{"{HOST}" = "127.0.0.1"}}\n[tls]\nca_files = ["ca.pem"]\nshared = ["{HOST}"]\n'
            f'[policy]\nallow = ["{HOST}"]\nallow_addresses = ["127.0.0.1/32"]\n{rules}'
        )
        config = load_config(place / "agentfw.toml")
        runtime = Runtime(asyncio.get_running_loop(), load_plugins(options.plugins.split(","), config), config)
        await runtime.start()
        direct = [Direct(port, cas[0]) for _ in range(options.concurrency)]
        path = [ThroughPath(runtime, port, Agent(str(n), f"bench-{n}")) for n in range(max(options.concurrency, 16))]
        slow = (Direct(ports[1], cas[1]), ThroughPath(runtime, ports[1], Agent("slow", "slow")))
        bulk = ThroughPath(runtime, ports[2], Agent("bulk", "bulk"))
        try:
            for one in (*direct, *path, *slow, bulk):
                await one.open()
            for one in (*direct, *path):
                await one.call()
            times = await measure({"direct": direct, "path": path[: options.concurrency]}, options.calls)
            report("call", times["direct"], times["path"], "(aim: at most 1 ms and 5 ms)")
            await streams(*slow, max(1, options.calls // 20))
            await rates(path, bulk, options.calls, options.profile)
        finally:
            for one in (*direct, *path, *slow, bulk):
                with contextlib.suppress(AttributeError):
                    await one.close()
            await runtime.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="of each client")
    parser.add_argument("--concurrency", type=int, default=1, help="clients of each side at once")
    parser.add_argument("--plugins", default=",".join(DEFAULT))
    parser.add_argument("--profile", default="", help="where to put cProfile's figures of the calls")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        uvloop.run(main(arguments, *ours.recv()))
    finally:
        ours.send(None)
        process.join(5)
        if process.is_alive():
            process.terminate()
