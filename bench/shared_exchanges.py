"""A million adversarial exchanges on shared connections: no byte of one agent reaches another.

    python bench/shared_exchanges.py [--exchanges 1000000] [--agents 24] [--connections 24] [--seed 1]

Many agents speak HTTP through the real relay and the real pool, on few connections, with a server that does all that goes wrong
on a connection: answers split anywhere, sent twice, late, with bytes behind them, cut short, framed in two ways, or not at all.
The agents cancel in the middle of requests and of answers, pipeline, and come and go. Every request carries a token, in its head
and all over its body; every answer consists of its request's token. Whatever an agent reads, and whatever the server reads of one
request, must be of one token.

One thing the server does not do: send something unasked while a request is on its way. Nobody can tell that from its answer
(RFC 9112, section 9.2); hosts that would do it are not for `[tls] shared`. So late bytes are sent on connections that are not
lent, and they are in the kernel before the connection is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import select
import socket
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest import mock

import msgspec
import uvloop
from agentfw.agents import Agent, ExitReport
from agentfw.hookspecs import hookimpl
from agentfw.mock_llm import CertificateAuthority
from agentfw.relay.preface import MAGIC
from agentfw.runtime import Runtime
from agentfw.testing import MemoryFlow, make_runtime
from agentfw_dns_cache import DnsConfig
from agentfw_dns_cache import Plugin as Dns
from agentfw_tls_pool import Plugin, TlsConfig
from agentfw_tls_pool.connection import Connection
from agentfw_tls_pool.groups import Group
from agentfw_tls_pool.pool import Pool

HOST = "api.openai.com"
TOKEN = re.compile(rb"<[0-9]+\.[0-9]+>")
WISH = msgspec.json.encode({"server_name": HOST, "alpn": ["http/1.1"]})


class Mixed(AssertionError):
    """What must not be."""


class Network:
    """What the server has to know of the client's side, by the client's port: see the module's last paragraph."""

    def __init__(self) -> None:
        self.lent: set[int] = set()
        self.late: set[int] = set()
        """Connections on which late bytes are on their way."""
        self.lines: dict[int, ServerLine] = {}
        """The server's ends."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note when connections are lent and when they are read."""
        lend, take_back, soiled, read = Pool._lend, Pool.take_back, Connection.soiled, Connection._read_socket

        def lending(pool: Pool, group: Group, each: Connection, agent: Agent) -> None:
            self.lent.add(port(each))
            lend(pool, group, each, agent)

        def taking_back(pool: Pool, group: Group, each: Connection) -> bool:
            number = port(each)
            self.lent.discard(number)
            line = self.lines.get(number)
            if line is not None and line.behind:
                line.late(now=line.server.dice.random() < 0.5)
            return take_back(pool, group, each)

        def looking(each: Connection) -> str:
            if self.late and not each.closed and port(each) in self.late:
                select.select([each._sock], [], [], 5.0)
            return soiled(each)

        def reading(each: Connection) -> bool:
            got = read(each)
            if got and self.late:
                self.late.discard(port(each))
            return got

        with (
            mock.patch.multiple(Pool, _lend=lending, take_back=taking_back),
            mock.patch.multiple(Connection, soiled=looking, _read_socket=reading),
        ):
            yield


def port(connection: Connection) -> int:
    with contextlib.suppress(OSError):
        return int(connection._sock.getsockname()[1])
    return 0


class Server:
    """TLS over a bare socket, so that what is written is in the kernel when write() returns."""

    def __init__(self, dice: random.Random, network: Network) -> None:
        self.dice = dice
        self.network = network
        self.counters: Counter[str] = Counter()
        self.authority = CertificateAuthority()
        self.context = self.authority.server_context([HOST])
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.listener.setblocking(False)
        self.port = int(self.listener.getsockname()[1])
        self.loop = asyncio.get_running_loop()
        self.lines: set[ServerLine] = set()
        self.loop.add_reader(self.listener, self.accept)

    def accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, (_, number) = self.listener.accept()
                self.lines.add(ServerLine(self, sock, number))

    def close(self) -> None:
        self.loop.remove_reader(self.listener)
        self.listener.close()
        for line in list(self.lines):
            line.close()


class ServerLine:
    """One connection of the server's."""

    def __init__(self, server: Server, sock: socket.socket, number: int) -> None:
        self.server = server
        self.sock = sock
        self.number = number
        """The client's port."""
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = server.context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.shaken = False
        self.closed = False
        self.data = b""
        self.serving = False
        self.behind = b""
        """What comes late."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.network.late.discard(number)  # a port used again
        server.network.lines[number] = self
        server.loop.add_reader(sock, self.readable)

    def close(self, *, reset: bool = False) -> None:
        if not self.closed:
            self.closed = True
            self.server.loop.remove_reader(self.sock)
            if reset:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.sock.close()
            self.server.lines.discard(self)
            if self.server.network.lines.get(self.number) is self:
                del self.server.network.lines[self.number]

    def flush(self) -> None:
        data = self.outgoing.read()
        if data and not self.closed:
            try:
                if self.sock.send(data) != len(data):
                    raise BlockingIOError
            except OSError:
                self.server.counters["cut_by_us"] += 1
                self.close()

    def write(self, data: bytes) -> None:
        if data and not self.closed:
            self.tls.write(data)
            self.flush()

    def readable(self) -> None:
        try:
            data = self.sock.recv(262144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self.incoming.write(data)
        try:
            if not self.shaken:
                self.tls.do_handshake()
                self.shaken = True
            while piece := self.tls.read(262144):
                self.data += piece
        except ssl.SSLWantReadError:
            self.flush()
        except ssl.SSLError:
            self.close()
            return
        if not self.serving:
            self.next()

    def next(self) -> None:
        """Begin with the next request if it is there, whole."""
        end = self.data.find(b"\r\n\r\n") + 4
        if end < 4 or self.closed:
            return
        head = self.data[:end]
        length = 0
        if head.startswith(b"POST"):
            length = int(re.search(rb"(?i)content-length: *(\d+)", head)[1])  # type: ignore[index]
        if len(self.data) < end + length:
            return
        whole, self.data = self.data[: end + length], self.data[end + length :]
        tokens = set(TOKEN.findall(whole))
        if len(tokens) != 1 or len(TOKEN.sub(b"", whole[end:])):
            raise_in_loop(f"the server read a request of {tokens}: {whole[:200]!r}")
        self.serving = True
        self.server.counters["requests"] += 1
        task = self.server.loop.create_task(self.answer(tokens.pop()))
        task.add_done_callback(self.answered)

    def answered(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() and not isinstance(task.exception(), OSError | ssl.SSLError):
            raise_in_loop(f"the server broke: {task.exception()!r}")
        self.serving = False
        self.next()

    async def answer(self, token: bytes) -> None:
        dice, count = self.server.dice, self.server.counters
        body = token * dice.choice((1, 1, 2, 5, 40, 400))
        if dice.random() < 0.3:
            half = len(body) // 2
            framed = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body)
            if half:
                parts = (half, body[:half], len(body) - half, body[half:])
                framed = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n%x;x=y\r\n%b\r\n" % parts
            data = b"HTTP/1.1 200 OK\r\nX-Token: %b\r\n%b0\r\n\r\n" % (token, framed)
        else:
            data = b"HTTP/1.1 200 OK\r\nX-Token: %b\r\nContent-Length: %d\r\n\r\n%b" % (token, len(body), body)
        if dice.random() < 0.03:
            data = b"HTTP/1.1 103 Early\r\nX-Token: %b\r\n\r\n%b" % (token, data)
        kind = dice.random()
        if kind < 0.81:
            count["well"] += 1
            self.write(data)
        elif kind < 0.90:
            count["in_pieces"] += 1
            for _ in range(dice.randint(1, 3)):
                cut = dice.randint(0, len(data))
                self.write(data[:cut])
                data = data[cut:]
                await asyncio.sleep(0)
            self.write(data)
        elif kind < 0.908:
            count["twice"] += 1
            self.write(data + data)
        elif kind < 0.916:
            count["bytes_behind"] += 1
            self.write(data + token[: dice.randint(1, len(token))])
        elif kind < 0.946:
            count["late"] += 1
            self.write(data)
            self.behind = data if dice.random() < 0.5 else token
        elif kind < 0.952:
            count["cut_short"] += 1
            self.write(data[: dice.randint(1, len(data) - 1)])
            self.close(reset=dice.random() < 0.5)
        elif kind < 0.958:
            count["closed_behind"] += 1
            self.write(data)
            if dice.random() < 0.5:
                with contextlib.suppress(ssl.SSLError):
                    self.tls.unwrap()
                self.flush()
            self.close()
        elif kind < 0.961:
            count["no_answer"] += 1
            self.close()
        elif kind < 0.966:
            count["two_framings"] += 1
            self.write(data.replace(b"X-Token", b"Content-Length: 3\r\nX-Token", 1))
        elif kind < 0.983:
            count["slow"] += 1
            await asyncio.sleep(dice.random() * 0.01)
            self.write(data)
        else:
            count["stalls"] += 1
            self.write(data[: len(data) // 2])
            await asyncio.sleep(dice.random() * 0.02)
            self.write(data[len(data) // 2 :])

    def late(self, *, now: bool) -> None:
        """The lease has just ended. Send what comes late, at this moment or a little later, if nobody has borrowed the connection
        by then."""
        if not now:
            self.server.loop.call_later(self.server.dice.random() * 0.002, lambda: self.late(now=True))
            return
        data, self.behind = self.behind, b""
        if data and not (self.closed or self.serving or self.number in self.server.network.lent):
            self.server.counters["late_sent"] += 1
            self.server.network.late.add(self.number)
            self.write(data)


def raise_in_loop(text: str) -> None:
    """Stop everything."""
    failure.append(Mixed(text))


failure: list[Mixed] = []


class Agents:
    """`number` agents that make exchanges until there were enough."""

    def __init__(self, runtime: Runtime, where: int, dice: random.Random, exchanges: int) -> None:
        self.runtime = runtime
        self.where = where
        self.dice = dice
        self.left = exchanges
        self.made = 0
        self.born = 0
        self.counters: Counter[str] = Counter()

    async def run(self) -> None:
        """One agent after the other."""
        while self.left > 0 and not failure:
            self.born += 1
            me = Agent(str(self.born), f"agent-{self.born}")
            for _ in range(self.dice.randint(1, 20)):
                await self.flow(me)
            self.runtime.agent_exited(me, ExitReport("code"))

    async def flow(self, me: Agent) -> None:
        flow = MemoryFlow("127.0.0.1", self.where)
        self.runtime.learn(me, HOST, ["127.0.0.1"])
        task = asyncio.create_task(self.runtime.handle_flow(me, flow))
        self.counters["flows"] += 1
        try:
            await flow.guest_send(MAGIC + len(WISH).to_bytes(4) + WISH)
            head = await exactly(flow, len(MAGIC) + 4)
            answer = msgspec.json.decode(await exactly(flow, int.from_bytes(head[len(MAGIC) :])))
            if not answer["ok"]:
                self.counters["refused"] += 1
                return
            for _ in range(self.dice.randint(1, 30)):
                if self.left <= 0 or failure or not await self.exchange(me, flow):
                    break
        except (ConnectionResetError, BrokenPipeError):
            self.counters["resets"] += 1
        except EOFError:
            self.counters["ends"] += 1
        finally:
            flow.guest_close()
            await task

    async def exchange(self, me: Agent, flow: MemoryFlow) -> bool:
        """One or two requests and their answers; False: no more on this flow."""
        dice = self.dice
        tokens = [self.token(me) for _ in range(2 if dice.random() < 0.1 else 1)]
        requests = [self.request(token) for token in tokens]
        if dice.random() < 0.02:
            self.counters["cancelled_requests"] += 1
            await flow.guest_send(requests[0][: dice.randint(1, len(requests[0]) - 1)])
            await asyncio.sleep(dice.random() * 0.003)
            return False
        await flow.guest_send(b"".join(requests))
        patience = dice.random() * 0.004 if dice.random() < 0.03 else None
        try:
            async with asyncio.timeout(patience):
                for token in tokens:
                    if not await self.answer(me, flow, token):
                        return False
        except TimeoutError:
            self.counters["cancelled_answers"] += 1
            return False
        if dice.random() < 0.3:
            await asyncio.sleep(dice.random() * 0.01)
        return True

    def token(self, me: Agent) -> bytes:
        self.left -= 1
        self.made += 1
        return b"<%s.%d>" % (me.id.encode(), self.made)

    def request(self, token: bytes) -> bytes:
        if self.dice.random() < 0.5:
            return b"GET /%b HTTP/1.1\r\nHost: %b:%d\r\n\r\n" % (token, HOST.encode(), self.where)
        body = token * self.dice.choice((1, 3, 60))
        return b"POST / HTTP/1.1\r\nHost: %b:%d\r\nX-Token: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            HOST.encode(), self.where, token, len(body), body
        )  # fmt: skip

    async def answer(self, me: Agent, flow: MemoryFlow, token: bytes) -> bool:
        head = await flow.guest_read_until(b"\r\n\r\n")
        status = int(head[9:12])
        if status == 103:
            head = await flow.guest_read_until(b"\r\n\r\n")
            status = int(head[9:12])
        if b"Transfer-Encoding: chunked" in head:
            body = b""
            while size := int((await flow.guest_read_until(b"\r\n"))[:-2], 16):
                body += await exactly(flow, size)
                await exactly(flow, 2)
            await exactly(flow, 2)
        else:
            length = re.search(rb"Content-Length: (\d+)", head)
            if length is None:
                raise Mixed(f"{me.name} got a head without framing: {head!r}")
            body = await exactly(flow, int(length[1]))
        found = set(TOKEN.findall(head + body))
        if status == 200:
            if found != {token} or TOKEN.sub(b"", body):
                raise Mixed(f"{me.name} asked with {token!r} and got {found}: {head!r} {body[:300]!r}")
            self.counters["answered"] += 1
        else:
            if status not in (502, 503) or found or f'"{me.name}"'.encode() not in body:
                raise Mixed(f"{me.name} asked with {token!r} and got {head!r} {body[:300]!r}")
            self.counters[f"told_{status}"] += 1
        return b"Connection: close" not in head


async def exactly(flow: MemoryFlow, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = await flow.guest_receive(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


class Loopback:
    name = "loopback"

    @hookimpl
    def dial(self) -> bool:
        return True


@contextlib.asynccontextmanager
async def stage(server: Server, network: Network, connections: int) -> AsyncIterator[tuple[Runtime, Plugin]]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "ca.pem"
        file.write_text(server.authority.ca_pem)
        plugin = Plugin(
            TlsConfig(ca_files=(str(file),), system_ca=False, shared=(HOST,), max_connections=connections, retry_post=(HOST,))
        )
        runtime = make_runtime(Dns(DnsConfig(upstream=(), hosts={HOST: "127.0.0.1"})), plugin, Loopback())
        await runtime.start()
        try:
            with network.watching():
                yield runtime, plugin
        finally:
            await runtime.stop()


async def run(exchanges: int, agents: int, connections: int, seed: int, *, seconds: float = 0.0) -> dict[str, float]:
    """What came of it, counted; Mixed if a byte went astray. `seconds`: stop after it."""
    failure.clear()
    dice = random.Random(seed)
    network = Network()
    server = Server(dice, network)
    start = last = time.monotonic()
    try:
        async with stage(server, network, connections) as (runtime, plugin):
            crowd = Agents(runtime, server.port, dice, exchanges)
            tasks = [asyncio.create_task(crowd.run()) for _ in range(agents)]
            try:
                while not all(task.done() for task in tasks) and not failure:
                    await asyncio.wait(tasks, timeout=0.5, return_when=asyncio.FIRST_EXCEPTION)
                    for task in tasks:
                        if task.done():
                            task.result()
                    if time.monotonic() - last > 60:
                        last = time.monotonic()
                        print(f"{crowd.made} exchanges, {crowd.made / (last - start):.0f}/s", flush=True)
                    if seconds and time.monotonic() - start > seconds:
                        crowd.left = 0
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if failure:
                raise failure[0]
            took = time.monotonic() - start
            counted = plugin.statistics()
            if counted["leased"] or counted["waiting"]:
                raise Mixed(f"leases were left behind: {counted}")
    finally:
        server.close()
    return {
        "exchanges": crowd.made, "seconds": took, "agents": crowd.born, **crowd.counters,
        **{f"server_{name}": value for name, value in server.counters.items()},
        **{f"tls_{name}": value for name, value in counted.items() if value},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchanges", type=int, default=1_000_000)
    parser.add_argument("--agents", type=int, default=24, help="at a time")
    parser.add_argument("--connections", type=int, default=24, help="at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long")
    options = parser.parse_args()
    import logging

    logging.disable(logging.WARNING)  # each retired connection is worth a line elsewhere
    work = run(options.exchanges, options.agents, options.connections, options.seed, seconds=options.seconds)
    figures = uvloop.run(work)
    for name, value in figures.items():
        print(f"{name:28} {value:12.0f}")
    print(f"{figures['exchanges'] / figures['seconds']:.0f} exchanges/s; no byte of one agent reached another")


if __name__ == "__main__":
    main()
