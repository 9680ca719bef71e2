"""CPython on the shim, where the shim's core half is what is tried: threads, signals, timing, memory. Differential: the same
script prints the same natively and in a VM."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agentfw_vmm import Cell, CellConfig, Mount, VmExit

from tests.cell_peer import Handler

GUEST = Path(__file__).parent / "guest"
PYTHON = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
pytestmark = pytest.mark.kvm


def python(*args: str, memory: int = 512 << 20, kill: int = 0, at: bytes = b"start\n") -> tuple[VmExit, str, str]:
    """Runs the interpreter in a VM -> exit report, standard output, standard error. kill: a signal sent when `at` was printed."""

    async def main() -> tuple[VmExit, str, str]:
        places = {"/usr", "/lib", "/lib64", "/bin", sys.base_prefix}
        mounts = [Mount(place, os.path.realpath(place), system=True) for place in places if Path(place).exists()]  # noqa: ASYNC240
        config = CellConfig(
            memory=memory,
            mounts=[*mounts, Mount("/guest", GUEST)],
            program=str(PYTHON),
            argv=[str(PYTHON), "-u", *args],
            env={"LANG": "C.UTF-8", "HOME": "/tmp", "GLIBC_TUNABLES": "glibc.malloc.arena_max=1"},
        )
        handler = Handler()
        cell = await Cell.start(config, handler)
        texts = [b"", b""]

        async def pump(index: int) -> None:
            flow = cell.stream(0, index + 1)
            sent = not kill or index
            while data := await flow.receive():
                texts[index] += data
                if not sent and at in texts[0]:
                    await asyncio.sleep(0.05)
                    cell.signal(0, kill)
                    sent = True

        try:
            cell.boot(0)
            pumps = [asyncio.create_task(pump(i)) for i in range(2)]
            report = await handler.exit(100)
            await asyncio.wait(pumps, timeout=5)
            return report, texts[0].decode(), texts[1].decode()
        finally:
            await cell.close()

    return asyncio.run(main())


@pytest.mark.parametrize("script", sorted(path.name for path in GUEST.glob("*.py")))
def test_like_native(script: str) -> None:
    native = subprocess.run([PYTHON, GUEST / script], capture_output=True, text=True, timeout=100, check=False)
    assert (native.returncode, native.stderr) == (0, "")
    report, out, err = python(f"/guest/{script}")
    assert (report.kind, report.code, err) == ("code", 0, "")
    assert out == native.stdout


WAYS = {
    "sleep": "time.sleep(60)",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "spin": "[time.monotonic() for _ in iter(int, 1)]",  # (CPython 3.11 does not count the loop's own jump to the try block)
    "select": "select.select([], [], [])",
    "poll": "select.poll().poll()",
    "epoll": "select.epoll().poll()",
    "stdin": "sys.stdin.read()",
    "pipe": "os.read(os.pipe()[0], 1)",
    "asyncio": "asyncio.run(asyncio.sleep(60))",
    "join": "thread = threading.Thread(target=time.sleep, args=(60,), daemon=True); thread.start(); thread.join()",
    "queue": "queue.Queue().get()",
}


@pytest.mark.parametrize("way", WAYS)
def test_interrupt(way: str) -> None:
    """Ctrl-C is a KeyboardInterrupt wherever the program is."""
    code = f"""
import asyncio, os, queue, select, sys, threading, time
try:
    print("start")
    {WAYS[way]}
except KeyboardInterrupt:
    print("interrupted")
    os._exit(7)
"""
    report, out, _ = python("-c", code, kill=signal.SIGINT)
    assert (report.kind, report.code, out) == ("code", 7, "start\ninterrupted\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_killed(number: signal.Signals) -> None:
    report, _, _ = python("-c", "import time; print('start'); time.sleep(60)", kill=number)
    assert (report.kind, report.signal) == ("signal", number)


def test_fault_without_handler() -> None:
    report, _, _ = python("-c", "import ctypes; ctypes.string_at(16)")
    assert (report.kind, report.signal) == ("signal", signal.SIGSEGV)


def test_faulthandler() -> None:
    report, _, err = python("-X", "faulthandler", "-c", "import ctypes; ctypes.string_at(16)")
    assert (report.kind, report.signal) == ("signal", signal.SIGSEGV)
    assert "Fatal Python error: Segmentation fault" in err and "string_at" in err


def test_abort() -> None:
    report, _, _ = python("-c", "import os; os.abort()")
    assert (report.kind, report.signal) == ("signal", signal.SIGABRT)


def test_out_of_memory() -> None:
    code = """
blocks = []
try:
    while True:
        blocks.append(bytearray(8 << 20))
except MemoryError:
    n = len(blocks)
    del blocks
    print(n > 5, len(bytearray(8 << 20)))
"""
    report, out, _ = python("-c", code, memory=160 << 20)
    assert (report.kind, report.code, out) == ("code", 0, "True 8388608\n")


def test_no_child_processes() -> None:
    code = """
import os, subprocess
for start in (os.fork, lambda: subprocess.run(["true"]), lambda: os.posix_spawn("/bin/true", ["true"], {})):
    try:
        start()
    except OSError as error:
        print(error.strerror)
"""
    report, out, err = python("-c", code)
    assert (report.kind, report.code) == ("code", 0)
    assert out == "Function not implemented\n" * 3
    assert err == "agentfw: no child processes here: fork and exec fail\n"
