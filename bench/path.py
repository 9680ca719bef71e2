"""What the path adds to a model call: a guest's flow through relay and plugins, against a direct TLS connection, in one run.

    python bench/path.py [--calls 2000] [--plugins dns,tls,policy,credentials,native] [--concurrency 1]

Both sides keep their connection; calls alternate. The server is a process of its own. Prints medians, 99th percentiles and
the difference.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import ssl
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import uvloop
from agentfw import Agent
from agentfw.config import load_config
from agentfw.mock_llm import MockLLM, MockOptions
from agentfw.plugins import DEFAULT, load_plugins
from agentfw.relay.preface import MAGIC
from agentfw.runtime import Runtime
from agentfw.testing import MemoryFlow

HOST = "api.openai.com"
KEY = "sk-real-0123456789abcdef"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()


def serve(pipe: Connection) -> None:
    """The model server; tells its port and CA, ends when told to."""

    async def body() -> None:
        async with MockLLM(MockOptions(keys=(KEY,))) as server:
            pipe.send((server.port, server.ca_pem))
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    asyncio.run(body())


def request(port: int, key: str) -> bytes:
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Accept: application/json\r\nUser-Agent: bench\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    ).encode() + BODY


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
            data += await self.flow.guest_receive(length - len(data))
        return data

    async def call(self) -> None:
        await self.flow.guest_send(request(self.port, "sk-agentfw-placeholder"))
        head = await self.flow.guest_read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await self.exactly(body_length(head))

    async def close(self) -> None:
        self.flow.guest_close()
        await self.task


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


async def main(options: argparse.Namespace, port: int, ca: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "ca.pem").write_text(ca)
        (place / "key").write_text(KEY)
        (place / "agentfw.toml").write_text(
            f'[dns]\nhosts = {{"{HOST}" = "127.0.0.1"}}\n[tls]\nca_files = ["ca.pem"]\nshared = ["{HOST}"]\n'
            f'[policy]\nallow = ["{HOST}"]\nallow_addresses = ["127.0.0.1/32"]\n'
            f'[[credentials.rule]]\nhost = "{HOST}:{port}"\nheader = "authorization"\nvalue = "Bearer ${{file:{place}/key}}"\n'
        )
        config = load_config(place / "agentfw.toml")
        runtime = Runtime(asyncio.get_running_loop(), load_plugins(options.plugins.split(","), config), config)
        await runtime.start()
        direct = [Direct(port, ca) for _ in range(options.concurrency)]
        path = [ThroughPath(runtime, port, Agent(str(n), f"bench-{n}")) for n in range(options.concurrency)]
        try:
            for one in (*direct, *path):
                await one.open()
                await one.call()
            times = await measure({"direct": direct, "path": path}, options.calls)
        finally:
            for one in (*direct, *path):
                with contextlib.suppress(AttributeError):
                    await one.close()
            await runtime.stop()
    rows = {}
    for name, seconds in times.items():
        milliseconds = sorted(1000 * s for s in seconds)
        rows[name] = (statistics.median(milliseconds), milliseconds[int(len(milliseconds) * 0.99)])
        print(f"{name:7} p50 {rows[name][0]:7.3f} ms   p99 {rows[name][1]:7.3f} ms   ({len(seconds)} calls)")
    (p50, p99), (q50, q99) = rows["direct"], rows["path"]
    print(f"added   p50 {q50 - p50:7.3f} ms   p99 {q99 - p99:7.3f} ms   (aim: at most 1 ms and 5 ms)   ratio {q50 / p50:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="of each client")
    parser.add_argument("--concurrency", type=int, default=1, help="clients of each side at once")
    parser.add_argument("--plugins", default=",".join(DEFAULT))
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
