"""What interception costs: the server's side of TLS by `ssl` and by pyOpenSSL, and an agent's own TLS through the relay beside
TLS that the host makes for it. No VMs: flows in memory, so client and host share one core here.

    python bench/own_tls.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from agentfw.agents import Agent
from agentfw.destination import Destination
from agentfw.fleet_ca import FleetCa
from agentfw.hookspecs import hookimpl
from agentfw.relay import own_tls
from agentfw.relay.tls_flow import TlsFlow
from agentfw.testing import MemoryFlow
from OpenSSL import SSL

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.core.support import Loopback, Names, Recorder, TlsOnce, guest, offload, running, serving
from tests.core.test_own_tls import Client

DESTINATION = Destination("https", "api.test", 443)
SMALL, WHOLE = 600, 16384


class Side(Protocol):
    """A server over memory."""

    def feed(self, data: bytes) -> None: ...
    def handshake(self) -> bool: ...
    def read(self) -> bytes: ...
    def write(self, data: bytes) -> bytes: ...
    def output(self) -> bytes: ...


class Std:
    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def feed(self, data: bytes) -> None:
        self.incoming.write(data)

    def handshake(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def read(self) -> bytes:
        return self.tls.read(65536)

    def write(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    def output(self) -> bytes:
        return self.outgoing.read()


class PyOpenSSL:
    def __init__(self, context: SSL.Context) -> None:
        self.tls = SSL.Connection(context, None)
        self.tls.set_accept_state()

    def feed(self, data: bytes) -> None:
        self.tls.bio_write(data)

    def handshake(self) -> bool:
        try:
            self.tls.do_handshake()
        except SSL.WantReadError:
            return False
        return True

    def read(self) -> bytes:
        return self.tls.recv(65536)

    def write(self, data: bytes) -> bytes:
        self.tls.send(data)
        return self.tls.bio_read(65536)

    def output(self) -> bytes:
        try:
            return self.tls.bio_read(65536)
        except SSL.WantReadError:
            return b""


def libraries(rounds: int) -> None:
    authority = FleetCa()
    leaf = authority.leaf(DESTINATION, datetime.now(UTC), datetime.now(UTC) + timedelta(days=1))
    other = SSL.Context(SSL.TLS_SERVER_METHOD)
    other.use_certificate(leaf)
    other.use_privatekey(authority._leaf_key)
    std = authority.context(DESTINATION, None)
    trusting = ssl.create_default_context(cadata=authority.pem.decode())
    kinds: dict[str, Callable[[], Side]] = {"ssl": lambda: Std(std), "pyOpenSSL": lambda: PyOpenSSL(other)}
    for name, make in kinds.items():
        shakes = sorted(shake(make(), trusting)[1] for _ in range(40 * rounds))
        rows = [f"handshake {statistics.median(shakes) * 1e3:.3f} ms"]
        for size, count in ((SMALL, 4000), (WHOLE, 1000)):
            found = [records(make(), trusting, size, count) for _ in range(rounds)]
            up, down = (statistics.median(each[way] for each in found) for way in (0, 1))
            rows.append(f"{size} B: in {up / 1e3:.0f} k/s, out {down / 1e3:.0f} k/s")
        print(f"{name + ', server side':<28}{' · '.join(rows)}")


def shake(server: Side, context: ssl.SSLContext) -> tuple[Any, float, ssl.MemoryBIO, ssl.MemoryBIO]:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="api.test")
    spent, here, there = 0.0, False, False
    while not (here and there):
        try:
            client.do_handshake()
            here = True
        except ssl.SSLWantReadError:
            pass
        server.feed(outgoing.read())
        start = time.perf_counter()
        there = server.handshake()
        output = server.output()
        spent += time.perf_counter() - start
        if output:
            incoming.write(output)
    return client, spent, incoming, outgoing


def records(server: Side, context: ssl.SSLContext, size: int, count: int) -> tuple[float, float]:
    """Records a second: read, written."""
    client, _, _, outgoing = shake(server, context)
    data = os.urandom(size)
    sealed = []
    for _ in range(count):
        client.write(data)
        sealed.append(outgoing.read())
    start = time.perf_counter()
    for record in sealed:
        server.feed(record)
        server.read()
    middle = time.perf_counter()
    for _ in range(count):
        server.write(data)
    return count / (middle - start), count / (time.perf_counter() - middle)


class Intercept:
    name = "intercept"

    @hookimpl
    def own_tls(self, agent: Agent, destination: Destination) -> str:
        return "intercept"


async def relayed(rounds: int) -> None:
    """Handshakes and calls of one agent, its own TLS beside the host's."""
    calls = 200
    async with (
        serving(Recorder(), "api.test") as port,
        running(Intercept(), TlsOnce(pooled=True), Names(api_test="127.0.0.1"), Loopback()) as runtime,
    ):
        trusting = ssl.create_default_context(cadata=runtime.interceptor.authority.pem.decode())
        request = b"GET / HTTP/1.1\r\nHost: api.test:%d\r\n\r\n" % port
        told: dict[str, list[float]] = {}
        for _ in range(rounds):
            for own in (True, False):
                shakes, asked = [], []
                for number in range(30):
                    await runtime.interceptor.turn(Agent("warm", "warm"))
                    async with guest(runtime, "127.0.0.1", port, agent=Agent(f"a{number}", "a")) as flow:
                        start = time.perf_counter()
                        client = Client(flow, trusting, "api.test")
                        await (client.handshake() if own else offload(flow, "api.test"))
                        shakes.append(time.perf_counter() - start)
                        for _ in range(calls // 30):
                            start = time.perf_counter()
                            if own:
                                await client.send(request)
                                await client.receive()
                            else:
                                await flow.guest_send(request)
                                await flow.guest_receive()
                            asked.append(time.perf_counter() - start)
                what = "intercepted" if own else "offloaded"
                told.setdefault(f"{what}: handshake", []).append(statistics.median(shakes) * 1e3)
                told.setdefault(f"{what}: call", []).append(statistics.median(asked) * 1e3)
    await asyncio.sleep(0.05)  # the server's tasks end
    for name, values in told.items():
        print(f"{name + ', with the client':<40}{statistics.median(values):.3f} ms")


async def bulk(rounds: int) -> None:
    """Plaintext through a TlsFlow, both ends in this process."""
    authority, size = FleetCa(), 32 << 20
    trusting = ssl.create_default_context(cadata=authority.pem.decode())
    rates = []
    for _ in range(rounds):
        inner = MemoryFlow("127.0.0.1", 443)
        inner.opened()
        flow = TlsFlow(inner, authority.context(DESTINATION, None))
        client = Client(inner, trusting, "api.test")
        await asyncio.gather(flow.handshake(b""), client.handshake())
        piece = os.urandom(65536)

        async def read(client: Client = client) -> None:
            left = size
            while left > 0:
                left -= len(await client.receive())

        start = time.perf_counter()
        reading = asyncio.create_task(read())
        for _ in range(size // len(piece)):
            await flow.send(piece)
        await reading
        rates.append(size / (time.perf_counter() - start) / 1e6)
        inner.close()
    print(f"{'bodies, with the client':<40}{statistics.median(rates):.0f} MB/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    own_tls.RATE, own_tls.BURST = 1e6, 1e6  # what is measured here is cost
    libraries(options.rounds)
    asyncio.run(relayed(options.rounds))
    asyncio.run(bulk(options.rounds))
