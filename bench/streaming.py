"""How much later streamed tokens come through the path than straight from the server, in one run.

    python bench/streaming.py [--calls 100] [--tokens 40] [--rate 400]

Streamed calls of a direct TLS client, of one through the default plugins, and of one through `inspect` too take turns. The server
makes tokens at a steady rate. Of each call: seconds to the first token, and how late each further one was by that rate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop
from agentfw import Agent
from agentfw.config import load_config
from agentfw.mock_llm import MockLLM, MockOptions
from agentfw.plugins import DEFAULT, load_plugins
from agentfw.runtime import Runtime
from path import HOST, KEY, Direct, ThroughPath

END = b"data: [DONE]\n\n"
TOKEN = b'"delta":{"content":'


def serve(pipe: Connection) -> None:
    """The model server, as in bench/path.py, with a rate."""
    tokens, rate = pipe.recv()

    async def body() -> None:
        async with MockLLM(MockOptions(keys=(KEY,), reply_tokens=tokens, tokens_per_second=rate)) as server:
            pipe.send((server.port, server.ca_pem))
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    asyncio.run(body())


def request(port: int, key: str) -> bytes:
    wanted = {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], **wanted}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}:{port}\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def call(client: Direct | ThroughPath) -> list[float]:
    """Seconds from the request to each token."""
    start = time.perf_counter()
    if isinstance(client, Direct):
        client.writer.write(request(client.port, KEY))
    else:
        await client.flow.guest_send(request(client.port, "sk-agentfw-placeholder"))
    seen: list[float] = []
    data = b""
    while not (END in data and data.endswith(b"0\r\n\r\n")):
        piece = await (client.reader.read(65536) if isinstance(client, Direct) else client.flow.guest_receive())
        assert piece, data
        now = time.perf_counter() - start
        data += piece
        seen += [now] * (data.count(TOKEN) - len(seen))
    assert data.startswith(b"HTTP/1.1 200"), data[:200]
    return seen


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
        loop = asyncio.get_running_loop()
        runtimes = [Runtime(loop, load_plugins(names, config), config) for names in (DEFAULT, (*DEFAULT, "inspect"))]
        for runtime in runtimes:
            await runtime.start()
        clients: dict[str, Direct | ThroughPath] = {"direct": Direct(port, ca)}
        for name, runtime in zip(("path", "+ inspect"), runtimes, strict=True):
            clients[name] = ThroughPath(runtime, port, Agent(name, name))
        try:
            for client in clients.values():
                await client.open()
                await call(client)
            seen: dict[str, list[list[float]]] = {name: [] for name in clients}
            for _ in range(options.calls):
                for name, client in clients.items():
                    seen[name].append(await call(client))
        finally:
            for client in clients.values():
                with contextlib.suppress(AttributeError):
                    await client.close()
            for runtime in runtimes:
                await runtime.stop()
    base = 0.0
    for name, calls in seen.items():
        firsts = sorted(1000 * tokens[0] for tokens in calls)
        late = sorted(1000 * (at - (n + 1) / options.rate) for tokens in calls for n, at in enumerate(tokens))
        middle = statistics.median(firsts)
        base = base or middle
        p99 = firsts[int(len(firsts) * 0.99)]
        print(f"{name:9}  first token p50 {middle:7.3f} ms, {middle - base:+6.3f}   p99 {p99:7.3f} ms   "
              f"behind the rate p50 {statistics.median(late):6.3f} ms   p99 {late[int(len(late) * 0.99)]:7.3f} ms")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100, help="of each client")
    parser.add_argument("--tokens", type=int, default=40, help="of each answer")
    parser.add_argument("--rate", type=float, default=400.0, help="tokens a second")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    ours.send((arguments.tokens, arguments.rate))
    try:
        uvloop.run(main(arguments, *ours.recv()))
    finally:
        ours.send(None)
        process.join(5)
        if process.is_alive():
            process.terminate()
