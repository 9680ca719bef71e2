"""A CPython and small C programs in real cells, driven through `Cell`: streams, flows, reports, guests that lie."""

import asyncio
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from agentfw_vmm import Cell, CellConfig, GuestFlow, Mount, VmExit, sites

from ..cell_peer import C, Handler

pytestmark = pytest.mark.kvm

PYTHON = os.path.realpath(sys.executable)
PREFIX = str(Path(PYTHON).parent.parent)


def config(program: str, *argv: str, vms: int = 1, extra: tuple[Mount, ...] = ()) -> CellConfig:
    mounts = [Mount("/usr", "/usr", system=True), *extra]
    if not PREFIX.startswith("/usr"):
        mounts.append(Mount(PREFIX, PREFIX, system=True))
    return CellConfig(
        vms=vms,
        memory=512 << 20,
        mounts=mounts,
        symlinks={"/lib": "usr/lib", "/lib64": "usr/lib64", "/bin": "usr/bin"},
        program=program,
        argv=[program, *argv],
        env={"LANG": "C.UTF-8", "LD_LIBRARY_PATH": f"{PREFIX}/lib"},
    )


def python(code: str, vms: int = 1) -> CellConfig:
    return config(PYTHON, "-I", "-c", code, vms=vms)


def c_program(tmp_path: Path, source: str, vms: int = 1) -> CellConfig:
    (tmp_path / "guest.c").write_text(source)
    command = ["cc", "-O1", "-g", "-static", "-Wall", "-Werror", f"-I{Path(__file__).parents[2]}/shim"]
    subprocess.run([*command, "-o", str(tmp_path / "guest"), str(tmp_path / "guest.c")], check=True)
    return config("/program/guest", vms=vms, extra=(Mount("/program", tmp_path),))


class Guests(Handler):
    """Serves each flow by `serve`, and knows when the VMs are gone."""

    def __init__(self, serve: Callable[[GuestFlow], Awaitable[None]] | None = None) -> None:
        super().__init__()
        self.serve = serve
        self.tasks: list[asyncio.Task[None]] = []

    def flow_opened(self, flow: GuestFlow) -> None:
        super().flow_opened(flow)
        if self.serve is None:
            flow.failed(111)
            return

        async def life() -> None:
            try:
                await self.serve(flow)
            except BrokenPipeError:
                pass
            finally:
                flow.close()

        self.tasks.append(asyncio.ensure_future(life()))


async def drain(flow: GuestFlow) -> bytes:
    parts = []
    while part := await flow.receive():
        parts.append(part)
    return b"".join(parts)


def run(
    settings: CellConfig,
    stdin: bytes = b"",
    serve: Callable[[GuestFlow], Awaitable[None]] | None = None,
    act: Callable[[Cell], Awaitable[None]] | None = None,
) -> list[tuple[VmExit, bytes, bytes]]:
    """Boots the program in all VMs of a cell; -> end, stdout and stderr of each."""

    async def main() -> list[tuple[VmExit, bytes, bytes]]:
        guests = Guests(serve)
        cell = await Cell.start(settings, guests)
        try:
            outputs = []

            async def feed(flow: GuestFlow) -> None:
                try:
                    await flow.send(stdin)
                    flow.send_eof()
                except BrokenPipeError:
                    pass

            for vm in range(settings.vms):
                cell.boot(vm)
                outputs.append([asyncio.ensure_future(drain(cell.stream(vm, n))) for n in (1, 2)])
                guests.tasks.append(asyncio.ensure_future(feed(cell.stream(vm, 0))))
            if act is not None:
                guests.tasks.append(asyncio.ensure_future(act(cell)))
            await guests.until(lambda: len(guests.exits) == settings.vms or guests.failures, 60)
            assert not guests.failures
            ends = dict(guests.exits)
            result = [(ends[vm], await out, await err) for vm, (out, err) in enumerate(outputs)]
            await asyncio.gather(*guests.tasks)
            return result
        finally:
            await cell.close()

    return asyncio.run(main())


def test_hello() -> None:
    ((end, out, err),) = run(
        python("import sys; print('hello', sys.version_info[:2]); print('and', file=sys.stderr); sys.exit(7)")
    )
    assert (end.kind, end.code) == ("code", 7)
    assert out.decode() == f"hello {sys.version_info[:2]}\n"
    assert err == b"and\n"


def test_ten_megabytes_through_the_standard_streams() -> None:
    data = random.Random(1).randbytes(10_000_000)
    code = """
import sys, hashlib
data = sys.stdin.buffer.read()
sys.stdout.buffer.write(data[::-1])
sys.stderr.write(hashlib.sha256(data).hexdigest())
"""
    ((end, out, err),) = run(python(code), stdin=data)
    assert (end.kind, end.code) == ("code", 0)
    assert err.decode() == hashlib.sha256(data).hexdigest()
    assert out == data[::-1]


def test_line_by_line_dialogue() -> None:
    """Small pieces, each waiting for the answer to the one before."""
    code = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"

    async def main() -> None:
        guests = Guests()
        cell = await Cell.start(python(code), guests)
        try:
            cell.boot(0)
            stdin, stdout = cell.stream(0, 0), cell.stream(0, 1)
            for n in range(50):
                waits = cell.statistics(0).exits_wait
                await stdin.send(f"line {n}\n".encode())
                assert await asyncio.wait_for(stdout.receive(), 30) == f"LINE {n}\n".encode()
                async with asyncio.timeout(30):
                    while cell.statistics(0).exits_wait == waits:  # noqa: ASYNC110  # it does not spin for the next line
                        await asyncio.sleep(0.001)
            stdin.send_eof()
            assert await stdout.receive() == b""
            await guests.until(lambda: guests.exits)
        finally:
            await cell.close()

    asyncio.run(main())


def test_tcp_echo_of_a_megabyte_each_way() -> None:
    code = """
import socket, threading
data = bytes(range(256)) * 4096
s = socket.create_connection(("192.0.2.1", 4321))
print(s.getpeername(), s.getsockname()[1])
def send():
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
t = threading.Thread(target=send)
t.start()
got = b""
while part := s.recv(100_000):
    got += part
t.join()
print(got == data)
"""
    seen = []

    async def serve(flow: GuestFlow) -> None:
        seen.append((flow.kind, flow.address, flow.port))
        flow.opened(50123)
        while data := await flow.receive():
            await flow.send(data)
        flow.send_eof()
        await flow.wait_closed()

    ((end, out, err),) = run(python(code), serve=serve)
    assert (end.code, err) == (0, b"")
    assert seen == [("tcp", "192.0.2.1", 4321)]
    assert out == b"('192.0.2.1', 4321) 50123\nTrue\n"


def test_connect_refused_and_reset() -> None:
    code = """
import socket
try: socket.create_connection(("192.0.2.1", 1))
except OSError as e: print(type(e).__name__)
s = socket.create_connection(("192.0.2.1", 2))
try: print(s.recv(10))
except OSError as e: print(type(e).__name__)
s = socket.create_connection(("192.0.2.1", 3))
print(s.recv(10), s.recv(10))
"""

    async def serve(flow: GuestFlow) -> None:
        if flow.port == 1:
            flow.failed(111)
            return
        flow.opened()
        if flow.port == 2:
            flow.reset()
        else:
            await flow.send(b"bye")

    ((end, out, err),) = run(python(code), serve=serve)
    assert (end.code, err) == (0, b"")
    assert out == b"ConnectionRefusedError\nConnectionResetError\nb'bye' b''\n"


def test_udp_echo() -> None:
    code = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
for n in (0, 1, 500, 9000):
    s.sendto(bytes([n % 256]) * n, ("192.0.2.9", 5000 + n))
    data, peer = s.recvfrom(65536)
    print(len(data), set(data), peer)
c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
c.connect(("192.0.2.8", 53))
c.send(b"question")
print(c.recv(100))
"""

    async def serve(flow: GuestFlow) -> None:
        assert flow.kind == "udp"
        flow.opened()
        while True:
            data, address, port = await flow.receive_datagram()
            await flow.send_datagram(data, address, port)

    ((end, out, err),) = run(python(code), serve=serve)
    assert (end.code, err) == (0, b"")
    expected = [f"{n} {set(bytes([n % 256]) * n)} ('192.0.2.9', {5000 + n})\n" for n in (0, 1, 500, 9000)]
    assert out.decode() == "".join(expected) + "b'question'\n"


def test_hundred_connections_one_after_the_other() -> None:
    """The slots of closed flows are used anew."""
    code = """
import socket
for n in range(300):
    with socket.create_connection(("192.0.2.1", 1000 + n)) as s:
        s.sendall(b"%d" % n)
        assert s.recv(10) == b"%d" % n
print("done")
"""

    async def serve(flow: GuestFlow) -> None:
        flow.opened()
        await flow.send(await flow.receive())
        assert await flow.receive() == b""

    ((end, out, err),) = run(python(code), serve=serve)
    assert (end.code, out, err) == (0, b"done\n", b"")


def test_guest_dies_in_the_middle_of_sending() -> None:
    """What is in the rings when the VM ends is still received."""
    code = """
import os, socket
s = socket.create_connection(("192.0.2.1", 1))
s.sendall(b"x" * 60000)
os.write(1, b"y" * 60000)
os._exit(3)
"""
    got = []

    async def serve(flow: GuestFlow) -> None:
        flow.opened()
        await asyncio.sleep(0.3)  # long after its end
        got.append(await drain(flow))

    ((end, out, _),) = run(python(code), serve=serve)
    assert (end.kind, end.code) == ("code", 3)
    assert out == b"y" * 60000
    assert got == [b"x" * 60000]


def test_segfault_names_module_and_symbol() -> None:
    ((end, _, err),) = run(python("import ctypes; ctypes.string_at(8)"))
    assert (end.kind, end.signal) == ("signal", 11)
    assert end.text.startswith("killed by SIGSEGV at 0x")
    assert "libc.so.6+0x" in end.text
    assert end.text.endswith(", address 0x8") or "address 0x8" in end.text
    assert err == b""


def test_abort_and_sigint() -> None:
    ((end, _, _),) = run(python("import os; os.abort()"))
    assert (end.kind, end.signal) == ("signal", 6)

    async def interrupt(cell: Cell) -> None:
        assert await cell.stream(0, 1).receive() == b""  # its task has it; only the end is seen here

    code = """
import time
print("up", flush=True)
try: time.sleep(60)
except KeyboardInterrupt: print("interrupted")
"""

    async def main() -> None:
        guests = Guests()
        cell = await Cell.start(python(code), guests)
        try:
            cell.boot(0)
            assert await cell.stream(0, 1).receive() == b"up\n"
            cell.signal(0, 2)
            assert await drain(cell.stream(0, 1)) == b"interrupted\n"
            await guests.until(lambda: guests.exits)
            assert guests.exits[0][1].code == 0
        finally:
            await cell.close()

    asyncio.run(main())


def test_sites_are_rewritten_eagerly_and_lazily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sites._memory.clear()
    # A function made at run time: nobody sees it before it has been called twice.
    code = """
import ctypes, mmap, os, select
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\x90" * 64 + bytes.fromhex("b827000000" "0f05" "c3"))
call = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
while not select.select([0], [], [], 0)[0]:
    assert call() == os.getpid()
    os.stat("/")
print("same")
"""

    async def main() -> None:
        guests = Guests()
        cell = await Cell.start(python(code), guests)
        try:
            cell.boot(0)
            while (found := cell.statistics(0)).sites < 500 or not found.sites_lazy:
                assert not guests.exits
                await asyncio.sleep(0.01)
            cell.stream(0, 0).send_eof()
            assert await drain(cell.stream(0, 2)) == b""
            assert await drain(cell.stream(0, 1)) == b"same\n"
            await guests.until(lambda: guests.exits)
            found = cell.statistics(0)
            assert found.n_backstop < found.n_local + found.n_ring
        finally:
            await cell.close()

    asyncio.run(main())
    assert len(list((tmp_path / "agentfw/sites").iterdir())) >= 2


# -- guests that lie

SCRIBBLE = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include "abi.h"
static struct afw_window *const window = (void *)AFW_WINDOW;
static uint32_t seed = 12345;
static uint32_t rnd(void) { seed = seed * 1664525 + 1013904223; return seed >> 3; }
static void kick(int flow) { volatile uint32_t *w = (void *)&window->flow[flow].gflags; (void)*w; sleep(0); }
int main(int argc, char **argv)
{
    int s[8];
    for (int i = 0; i < 8; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(1000 + i)};
        inet_pton(AF_INET, "192.0.2.1", &a.sin_addr);
        s[i] = socket(AF_INET, i & 1 ? SOCK_DGRAM : SOCK_STREAM, 0);
        if (connect(s[i], (void *)&a, sizeof a))
            return 99;
    }
    for (int round = 0; round < 2000; round++) {
        volatile uint8_t *p = (void *)window;
        switch (rnd() % 4) {
        case 0: p[rnd() % sizeof *window] = rnd(); break;
        case 1: ((volatile uint32_t *)p)[rnd() % (sizeof *window / 4)] = rnd() << 3; break;
        case 2: p[AFW_WINDOW_DATA + rnd() % (8 * 2 * AFW_RING)] = rnd(); break;
        default: window->flow[4 + rnd() % 8].tx_head += rnd() % 100000; break;
        }
        char c = rnd();
        send(s[rnd() % 8], &c, 1, MSG_DONTWAIT);
        kick(4);
    }
    return 0;
}
"""


def test_guest_that_scribbles_over_its_window(tmp_path: Path) -> None:
    """Whatever becomes of that guest, a neighbour in the same cell and the worker's next cell work on."""

    async def serve(flow: GuestFlow) -> None:
        flow.opened()
        if flow.kind == "udp":
            while True:
                await flow.send_datagram(*await flow.receive_datagram())
        while data := await flow.receive():
            await flow.send(data)

    settings = c_program(tmp_path, SCRIBBLE, vms=3)

    async def main() -> None:
        guests = Guests(serve)
        cell = await Cell.start(settings, guests)
        try:
            for vm in range(3):
                cell.boot(vm)
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(guests.until(lambda: len(guests.exits) == 3, 20))), 25)
        except TimeoutError:
            for vm in range(3):
                cell.kill(vm)  # it destroyed the indices that it waits for itself
            await guests.until(lambda: len(guests.exits) == 3)
        finally:
            assert not guests.failures
            await cell.close()
            for task in guests.tasks:
                task.cancel()

    asyncio.run(main())
    ((end, out, _),) = run(python("print('alive')"))
    assert (end.code, out) == (0, b"alive\n")


def test_neighbour_of_a_scribbler(tmp_path: Path) -> None:
    source = SCRIBBLE.replace(
        "int main(int argc, char **argv)\n{",
        """int main(int argc, char **argv)
{
    char name[64] = {0};
    if (read(0, name, 63) <= 0 || name[0] == 'g') {
        for (int i = 0; i < 100; i++) { printf("good %d\\n", i); fflush(stdout); usleep(1000); }
        return 5;
    }""",
    )

    async def serve(flow: GuestFlow) -> None:
        flow.opened()
        while data := await (flow.receive() if flow.kind == "tcp" else flow.receive_datagram()):
            if isinstance(data, bytes):
                await flow.send(data)

    settings = c_program(tmp_path, source, vms=2)

    async def main() -> None:
        guests = Guests(serve)
        cell = await Cell.start(settings, guests)
        try:
            for vm, word in ((0, b"bad"), (1, b"good")):
                cell.boot(vm)
                await cell.stream(vm, 0).send(word)
            out = await asyncio.wait_for(drain(cell.stream(1, 1)), 60)
            assert out == b"".join(b"good %d\n" % i for i in range(100))
            await guests.until(lambda: 1 in dict(guests.exits))
            assert dict(guests.exits)[1].code == 5
            assert not guests.failures
        finally:
            await cell.close()
            for task in guests.tasks:
                task.cancel()

    asyncio.run(main())


def test_constants_used_by_guests() -> None:
    assert C["AFW_WINDOW"] == 0x3C0000000
