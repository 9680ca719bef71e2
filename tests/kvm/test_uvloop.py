"""uvloop inside a guest: streams, datagrams, pipes, signals, threads and names as natively; who starts a process is refused at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.kvm

PROGRAM = """
import asyncio, os, signal, socket, tempfile
import uvloop

async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def client(port, i):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for n in range(20):
        piece = b"%d %d\\n" % (i, n) * 500
        writer.write(piece)
        assert await reader.readexactly(len(piece)) == piece
    writer.write_eof()
    rest = await reader.read()
    writer.close()
    await writer.wait_closed()
    return rest

class Datagrams(asyncio.DatagramProtocol):
    def __init__(self):
        self.got = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        if not data.startswith(b"re: "):
            self.transport.sendto(b"re: " + data, address)
        self.got.set_result(data)

async def main():
    loop = asyncio.get_running_loop()
    print(type(loop).__module__)
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(set(await asyncio.gather(*(client(port, i) for i in range(20)))))
    server.close()
    await server.wait_closed()
    try:
        await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        print(type(error).__name__)

    path = os.path.join(tempfile.mkdtemp(), "s")
    server = await asyncio.start_unix_server(echo, path)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"unix")
    print(await reader.readexactly(4))
    writer.close()
    server.close()

    one, first = await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", 0))
    other, second = await loop.create_datagram_endpoint(Datagrams, remote_addr=one.get_extra_info("sockname"))
    other.sendto(b"datagram")
    print(await first.got, await second.got)
    one.close()
    other.close()

    print(await loop.run_in_executor(None, sum, range(10)), await asyncio.to_thread(len, "abc"))
    print(sorted({found[4][1] for found in await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)}))
    signalled = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, signalled.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await signalled.wait()

    read, write = os.pipe()
    stream = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(read, "rb"))
    os.write(write, b"pipe")
    os.close(write)
    print(await stream.read())

    a, b = socket.socketpair()
    a.setblocking(False)
    b.setblocking(False)
    sending = asyncio.ensure_future(loop.sock_sendall(a, bytes(300_000)))
    total = 0
    while total < 300_000:
        total += len(await loop.sock_recv(b, 100_000))
    await sending
    print(total)
    a.close()
    b.close()
    try:
        await asyncio.wait_for(asyncio.sleep(60), 0.01)
    except TimeoutError:
        print("timeout")

uvloop.run(main())
"""
PROCESSES = """
import asyncio, os, subprocess
import uvloop

async def main():
    for start in asyncio.create_subprocess_exec, asyncio.create_subprocess_shell:
        try:
            await start("true")
        except OSError as error:
            print(error.errno)
    for call in os.fork, lambda: subprocess.run(["true"]), lambda: os.posix_spawn("/bin/true", ["true"], {}):
        try:
            call()
        except OSError as error:
            print(error.errno)

uvloop.run(main())
"""


def test_as_natively(agentfw: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    native = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    guest = agentfw("run", "--no-config", "--plugins", "", "program.py", cwd=tmp_path)
    assert guest.returncode == 0, guest.stderr
    assert guest.stdout == native.stdout
    assert guest.stdout.startswith("uvloop")


def test_processes_are_refused(agentfw: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    guest = agentfw("run", "--no-config", "--plugins", "", "-c", PROCESSES)
    assert guest.stdout.split() == ["38"] * 5, guest.stderr
