"""Plain sockets and WebSockets in a VM: the `native` plugin and the relay's switch of protocols, with real clients."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentfw.mock_llm import CertificateAuthority
from websockets.sync.server import ServerConnection, serve

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

KEY = "sk-real-0123456789abcdef"
BIG = 64 << 20

AGENT = """
import asyncio, hashlib, json, os, socket, ssl, time
import aiohttp, websockets
from websockets.asyncio.client import connect
from websockets.sync.client import connect as connect_sync

P = json.loads(os.environ["PORTS"])
TOLD = {}

def tell(name):
    def run(function):
        try:
            TOLD[name] = function()
        except BaseException as error:
            TOLD[name] = f"{type(error).__name__}: {error}"
    return run

@tell("tcp refused")
def _():
    with socket.create_connection(("plain.test", P["closed"]), 20) as s:
        s.sendall(b"\\1")
        return s.recv(1).decode()

@tell("udp refused")
def _():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(20)
        s.connect((socket.gethostbyname("plain.test"), P["closed"]))
        s.send(b"x")
        return s.recv(10).decode()

@tell("udp denied")
def _():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(20)
        s.connect(("192.0.2.1", 9))
        s.send(b"x")
        return s.recv(10).decode()

@tell("udp refused, asyncio")
def _():
    class Protocol(asyncio.DatagramProtocol):
        def __init__(self):
            self.error = asyncio.get_running_loop().create_future()
        def error_received(self, exc):
            if not self.error.done():
                self.error.set_result(type(exc).__name__)
    async def main():
        transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
            Protocol, remote_addr=(socket.gethostbyname("plain.test"), P["closed"]))
        transport.sendto(b"x")
        return await asyncio.wait_for(protocol.error, 20)
    return asyncio.run(main())

@tell("udp, not connected")
def _():
    "Others are not told of errors; a large datagram; several peers."
    host = socket.gethostbyname("plain.test")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(20)
        s.sendto(b"x", (host, P["closed"]))
        time.sleep(0.3)
        data = os.urandom(60_000)
        s.sendto(data, (host, P["udp"]))
        got, peer = s.recvfrom(65536)
        return got == data and peer[1] == P["udp"]

def url(host, port, scheme):
    return f"{scheme}://{host}:{P[port]}/"

@tell("ws")
def _():
    with connect_sync(url("plain.test", "ws", "ws")) as ws:
        ws.send("hello")
        return [ws.recv(), ws.protocol.extensions != []]

@tell("wss")
def _():
    async def main():
        async with connect(url("ws.test", "wss", "wss"), max_size=None) as ws:
            await ws.send("hello")
            first = await ws.recv()
            await (await ws.ping())
            digest, size = hashlib.sha256(), 0
            await ws.send("big")
            async for piece in ws.recv_streaming(decode=False):
                digest.update(piece)
                size += len(piece)
            await ws.send("close")
            try:
                await ws.recv()
            except websockets.ConnectionClosed as closed:
                return [first, size, digest.hexdigest(), closed.rcvd.code, closed.rcvd.reason]
    return asyncio.run(main())

@tell("aiohttp")
def _():
    async def main():
        async with aiohttp.ClientSession() as session, session.ws_connect(url("ws.test", "wss", "https"), compress=15) as ws:
            await ws.send_str("hello")
            first = (await ws.receive()).data
            await ws.send_bytes(bytes(300_000))
            second = len((await ws.receive()).data)
            return [first, second, bool(ws.compress)]
    return asyncio.run(main())

@tell("idle")
def _():
    "Nothing but pings for a while."
    with connect_sync(url("plain.test", "ws", "ws"), ping_interval=0.2) as ws:
        time.sleep(1.5)
        ws.send("still")
        return ws.recv()

@tell("with a key")
def _():
    with connect_sync(url("key.test", "wss", "wss"), additional_headers={"Authorization": "Bearer sk-agentfw-placeholder"}) as ws:
        ws.send("headers")
        said = ws.recv()
        ws.send("parts")
        return [said, ws.recv(), ws.protocol.extensions]

@tell("own key")
def _():
    connect_sync(url("key.test", "wss", "wss"), additional_headers={"Authorization": "Bearer sk-mine"})

@tell("nobody there")
def _():
    connect_sync(url("plain.test", "closed", "ws"))

print(json.dumps(TOLD))
"""


def _answer(ws: ServerConnection) -> None:
    for message in ws:
        if message == "big":
            ws.send(bytes(1 << 20) for _ in range(BIG >> 20))
        elif message == "close":
            ws.close(4321, "as you like")
            return
        elif message == "headers":
            assert ws.request is not None
            ws.send(str(ws.request.headers.get("Authorization")))
        elif message == "parts":
            ws.send(["you sent ", KEY[:5], KEY[5:], " did you?"])
        else:
            ws.send(message)


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[dict[str, int]]:
    authority = CertificateAuthority()
    (tmp_path / "ca.pem").write_text(authority.ca_pem)
    with contextlib.ExitStack() as stack:
        found = {}
        for name, context in (("ws", None), ("wss", authority.server_context(["ws.test", "key.test"]))):
            server = stack.enter_context(serve(_answer, "127.0.0.1", 0, ssl=context, max_size=None))
            found[name] = server.socket.getsockname()[1]
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
        echo = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        echo.bind(("127.0.0.1", 0))
        found["udp"] = echo.getsockname()[1]
        answering = threading.Thread(target=_echo, args=(echo,))
        answering.start()
        stack.callback(answering.join)
        stack.callback(lambda: echo.sendto(b"", echo.getsockname()))
        with socket.create_server(("127.0.0.1", 0)) as closed:
            found["closed"] = closed.getsockname()[1]
        yield found


def _echo(sock: socket.socket) -> None:
    while True:
        data, peer = sock.recvfrom(65536)
        if not data:
            return
        sock.sendto(data, peer)


def test_sockets_and_websockets(agentfw: Agentfw, ports: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "agentfw.toml").write_text(f"""
[run]
env = {{ PORTS = '{json.dumps(ports)}' }}
[dns]
hosts = {{ "plain.test" = "127.0.0.1", "ws.test" = "127.0.0.1", "key.test" = "127.0.0.1" }}
[tls]
ca_files = ["ca.pem"]
[policy]
allow = ["plain.test", "ws.test", "key.test"]
allow_addresses = ["127.0.0.1/32"]
[[credentials.rule]]
host = "key.test:{ports["wss"]}"
header = "authorization"
value = "Bearer ${{env:REAL}}"
""")
    done = agentfw("run", "--json", "agent.py", env={"REAL": KEY})
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout + done.stderr
    ran = json.loads(done.stdout)
    told = json.loads(ran["agents"][0]["stdout"].splitlines()[-1])
    assert told["tcp refused"].startswith("ConnectionRefusedError"), told
    assert told["udp refused"].startswith("ConnectionRefusedError"), told
    assert told["udp denied"].startswith("PermissionError"), told
    assert told["udp refused, asyncio"] == "ConnectionRefusedError" and told["udp, not connected"] is True, told
    assert told["ws"] == ["hello", True], told
    assert told["wss"][:2] == ["hello", BIG] and told["wss"][3:] == [4321, "as you like"], told
    assert told["aiohttp"] == ["hello", 300_000, True], told
    assert told["idle"] == "still", told
    masked = "*" * len(KEY)
    assert told["with a key"] == [f"Bearer {masked}", f"you sent {masked} did you?", []], told
    assert "403" in told["own key"], told
    assert told["nobody there"].startswith(("ConnectionRefusedError", "InvalidStatus", "InvalidMessage")), told
    assert ran["statistics"]["tls.handshakes"] == 4, "what was switched is no connection of the pool's any more"
