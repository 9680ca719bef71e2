"""The TLS pool without relay and guests: many agents on few connections, small records (streams of events) and bulk.

    python bench/tls_pool.py [--agents 500] [--few 50] [--connections 113] [--rate 400] [--seconds 10]

The servers are processes of their own. First as many calls a second (`--rate`, at random moments) by few agents and by many: what
the 99th percentile makes of that, and on how many connections. Then all of the many at once. Then streams: ratios are against
asyncio's TLS on the same machine in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import ssl
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import uvloop
from agentfw.agents import Agent
from agentfw.destination import Destination
from agentfw.hookspecs import hookimpl
from agentfw.mock_llm import CertificateAuthority, MockLLM, MockOptions
from agentfw.runtime import Runtime
from agentfw.testing import make_agent, make_runtime
from agentfw.upstream import TlsRequest
from agentfw_dns_cache import DnsConfig
from agentfw_dns_cache import Plugin as Dns
from agentfw_tls_pool import Plugin, TlsConfig

HOST = "api.openai.com"
HTTP = TlsRequest(HOST, ("http/1.1",))
BULK = 256 << 20
EVENTS = 100_000
EVENT = 250


class Loopback:
    name = "loopback"

    @hookimpl
    def dial(self) -> bool:
        return True


class Readable(Protocol):
    async def receive(self, limit: int) -> bytes: ...


def serve_model(pipe: Connection, latency: float) -> None:
    async def main() -> None:
        async with MockLLM(MockOptions(latency=latency)) as server:
            pipe.send((server.port, server.ca_pem))
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
            pipe.send(server.stats())

    uvloop.run(main())


def serve_bytes(pipe: Connection) -> None:
    """ "b": BULK bytes in records of 16 KiB; "e": EVENTS records of EVENT bytes."""
    authority = CertificateAuthority()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while what := await reader.read(1):
            piece, count = (b"x" * 16384, BULK // 16384) if what == b"b" else (b"x" * EVENT, EVENTS)
            for _ in range(count):
                writer.write(piece)
                await writer.drain()

    async def main() -> None:
        server = await asyncio.start_server(client, "127.0.0.1", 0, ssl=authority.server_context([HOST]))
        pipe.send((server.sockets[0].getsockname()[1], authority.ca_pem))
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    uvloop.run(main())


async def call(runtime: Runtime, agent: Agent, port: int) -> None:
    upstream = await runtime.connect(agent, Destination("https", HOST, port), HTTP)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": agent.name}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer k\r\ncontent-length: {len(body)}\r\n\r\n"
    await upstream.send(head.encode() + body)
    data = b""
    while not data.endswith(b'"system_fingerprint":"fp_mock"}'):
        piece = await upstream.receive()
        assert piece
        data += piece
    assert f"echo: {agent.name}".encode() in data
    upstream.release(reusable=True)


async def fleet(runtime: Runtime, port: int, agents: int, calls: int) -> tuple[list[float], float]:
    """Every agent one call after the other, all at once: (seconds of each call, seconds of all)."""
    times: list[float] = []

    async def run(agent: Agent) -> None:
        for _ in range(calls):
            start = time.perf_counter()
            await call(runtime, agent, port)
            times.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(run(make_agent(f"agent-{number}")) for number in range(agents)))
    return times, time.perf_counter() - start


async def arrivals(runtime: Runtime, port: int, agents: int, rate: float, seconds: float) -> list[float]:
    """Calls begin at random moments, `rate` a second on the average, whatever became of those before. Seconds of each, from when
    it was due."""
    dice = random.Random(1)
    everyone = [make_agent(f"agent-{number}") for number in range(agents)]
    times: list[float] = []
    tasks = set()

    async def one(agent: Agent, due: float) -> None:
        await call(runtime, agent, port)
        times.append(time.perf_counter() - due)

    due = start = time.perf_counter()
    while due < start + seconds:
        due += dice.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one(dice.choice(everyone), due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return times


async def seconds(start: Callable[[], Awaitable[None]], source: Readable, total: int) -> float:
    begin = time.perf_counter()
    await start()
    while total:
        piece = await source.receive(65536)
        assert piece, "the peer ended the stream"
        total -= len(piece)
    return time.perf_counter() - begin


class Plain:
    """asyncio's streams, as a source."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.receive = reader.read


async def with_runtime(port: int, ca: str, config: dict[str, int], work: Callable[[Runtime, Plugin], Awaitable[None]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "ca.pem"
        file.write_text(ca)
        plugin = Plugin(TlsConfig(ca_files=(str(file),), system_ca=False, shared=(HOST,), **config))
        runtime = make_runtime(Dns(DnsConfig(upstream=(), hosts={HOST: "127.0.0.1"})), plugin, Loopback())
        await runtime.start()
        try:
            await work(runtime, plugin)
        finally:
            await runtime.stop()


async def sharing(options: argparse.Namespace, port: int, ca: str) -> None:
    p99 = {}

    async def steady(agents: int) -> None:
        async def work(runtime: Runtime, plugin: Plugin) -> None:
            await arrivals(runtime, port, agents, options.rate, options.seconds / 5)  # connections are there
            times = await arrivals(runtime, port, agents, options.rate, options.seconds)
            cuts = statistics.quantiles(times, n=100)
            p99[agents] = cuts[98]
            held = plugin.statistics()["held"]
            print(f"{agents:4} agents, {len(times) / options.seconds:4.0f} calls/s of {options.latency:g} ms:", end=" ")
            print(f"p50 {cuts[49] * 1000:6.1f} ms, p99 {cuts[98] * 1000:6.1f} ms; {held} connections held")

        await with_runtime(port, ca, {}, work)

    for agents in (options.few, options.agents):
        await steady(agents)
    ratio = p99[options.agents] / p99[options.few]
    print(f"p99 of {options.agents} agents is {ratio:.2f} times that of {options.few}   (aim: flat)")

    async def work(runtime: Runtime, plugin: Plugin) -> None:
        times, took = await fleet(runtime, port, options.agents, options.calls)
        counted = plugin.statistics()
        cuts = statistics.quantiles(times, n=100)
        print(f"{options.agents} agents at once, {len(times)} calls: {len(times) / took:.0f} calls/s,", end=" ")
        print(f"p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms;", end=" ")
        held = counted["held"]
        print(f"{held} connections, {options.agents / held:.1f} agents on each   (aim: at most 113, 4.4)")

    await with_runtime(port, ca, {"max_connections": options.connections}, work)


async def streams(port: int, ca: str) -> None:
    async def work(runtime: Runtime, _: Plugin) -> None:
        upstream = await runtime.connect(make_agent("bench"), Destination("https", HOST, port), HTTP)
        context = ssl.create_default_context(cadata=ca)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=HOST)

        async def ask(what: bytes) -> None:
            writer.write(what)

        for what, total, name in ((b"e", EVENTS * EVENT, "events"), (b"b", BULK, "bulk")):
            ours, theirs = [], []
            for _ in range(3):
                ours.append(await seconds(lambda what=what: upstream.send(what), upstream, total))
                theirs.append(await seconds(lambda what=what: ask(what), Plain(reader), total))
            mine, other = statistics.median(ours), statistics.median(theirs)
            if name == "events":
                rates = f"{EVENTS / mine:9.0f}/s    asyncio {EVENTS / other:9.0f}/s   "
            else:
                rates = f"{total / mine / 1e6:9.0f} MB/s asyncio {total / other / 1e6:9.0f} MB/s"
            print(f"records of {EVENT if name == 'events' else 16384:5d} bytes: {rates} ratio {other / mine:.2f}")
        upstream.release()
        writer.close()

    await with_runtime(port, ca, {}, work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--few", type=int, default=50)
    parser.add_argument("--rate", type=float, default=400.0, help="calls a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=113)
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--latency", type=float, default=100.0, help="of the model, milliseconds")
    options = parser.parse_args()
    for target, arguments in ((serve_model, (options.latency / 1000,)), (serve_bytes, ())):
        here, there = multiprocessing.Pipe()
        process = multiprocessing.Process(target=target, args=(there, *arguments))
        process.start()
        try:
            port, ca = here.recv()
            uvloop.run(sharing(options, port, ca) if target is serve_model else streams(port, ca))
            here.send(None)
            process.join(5)
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
