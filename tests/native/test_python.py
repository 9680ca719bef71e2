"""CPython in cells: booted, saved after its imports, restored many times."""

import asyncio
import os
import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from agentfw_vmm import sites
from agentfw_vmm._lib import lib
from agentfw_vmm.cell import CELL_PROGRAM, Cell
from agentfw_vmm.config import CellConfig, Mount

from . import bare

pytestmark = [
    pytest.mark.kvm,
    pytest.mark.skipif(not os.access("/dev/kvm", os.R_OK | os.W_OK), reason="no access to /dev/kvm"),
    pytest.mark.skipif(not CELL_PROGRAM.is_file(), reason="the cell was not built"),
]

PYTHON = Path(sys.executable).resolve()


def config(code, **changes):
    roots = {"/usr", "/etc", sys.base_prefix}
    links = {}
    for name in ("/lib", "/lib64"):
        if Path(name).is_symlink():
            links[name] = str(Path(name).readlink())
        else:
            roots.add(name)
    roots = {root for root in roots if not any(root != other and root.startswith(other + "/") for other in roots)}
    settings = {
        "vms": 1,
        "memory": 256 << 20,
        "mounts": [Mount(root, root, system=True) for root in sorted(roots) if Path(root).exists()],
        "symlinks": links,
        "program": str(PYTHON),
        "argv": [str(PYTHON), "-I", "-c", code],
        "env": {"LANG": "C.UTF-8", "LD_BIND_NOW": "1"},
    }
    return CellConfig(**{**settings, **changes})


async def output(cell, vm, stream=1):
    text = b""
    while piece := await cell.stream(vm, stream).receive():
        text += piece
    return text


TEMPLATE = """
import ctypes, os, sys, json, threading, asyncio, random, time
before = random.random()
fd = os.open("/dev/agentfw", os.O_RDWR)
if os.getpid() == 2:
    os._exit(3)
print(os.getpid(), os.urandom(8).hex(), time.monotonic_ns(), flush=True)
result = []
thread = threading.Thread(target=lambda: result.append(sum(range(1000))))
thread.start()
thread.join()
assert result == [499500]
if os.getpid() % 10 == 7:
    ctypes.string_at(0)
os._exit(os.getpid() % 100)
"""


def test_restored_pythons_differ_where_they_must(tmp_path):
    path = tmp_path / "snapshot"

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(config(TEMPLATE, snapshot_out=path), recorder)
        try:
            cell.boot(0)
            await recorder.until(lambda: recorder.exits or recorder.failed, 60)
            assert recorder.ready[0][1] == 0 and recorder.exits[0].code == 3, recorder
            assert cell.statistics(0).sites > 500
        finally:
            await cell.close()
        recorder = bare.Recorder()
        cell = await Cell.start(config(TEMPLATE, snapshot_in=path, vms=64, runners=2), recorder)
        seen = []
        try:
            outputs = []
            for vm in range(64):
                cell.restore(vm, 200 + vm)
                outputs.append(asyncio.create_task(output(cell, vm)))
            await recorder.until(lambda: len(recorder.exits) == 64 or recorder.failed, 60)
            assert not recorder.failed
            async with asyncio.timeout(10):
                for vm, text in enumerate(await asyncio.gather(*outputs)):
                    pid, drawn, _ = text.split()
                    assert int(pid) == 200 + vm
                    seen.append(drawn)
            for vm, end in recorder.exits.items():
                if (200 + vm) % 10 == 7:
                    assert end.signal == 11 and "libc" in end.text and "address 0x0" in end.text, end
                else:
                    assert (end.kind, end.code) == ("code", (200 + vm) % 100), end
            cell.restore(5, 700)  # a number is free again
            await recorder.until(lambda: recorder.exits[5].code == 0)
        finally:
            await cell.close()
        assert len(set(seen)) == 64

    asyncio.run(main())


def test_ready_refuses_with_files_open(tmp_path):
    code = """
import os
import select
import subprocess
keep = open("/etc/passwd")
try:
    os.open("/dev/agentfw", os.O_RDWR)
except OSError as error:
    print(error.errno, flush=True)
os._exit(0)
"""

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(config(code, snapshot_out=tmp_path / "snapshot"), recorder)
        try:
            cell.boot(0)
            await recorder.until(lambda: recorder.exits or recorder.failed, 60)
            assert recorder.ready[0] == (0, 16)
            async with asyncio.timeout(10):
                assert await output(cell, 0) == b"16\n"
        finally:
            await cell.close()

    asyncio.run(main())


def test_memory_limit_is_a_memory_error(tmp_path):
    code = """
import os
import select
import subprocess
hold = []
try:
    while True:
        hold.append(bytearray(8 << 20))
except MemoryError:
    count = len(hold)
    hold = None
    print(8 < count < 32, flush=True)
    os._exit(0)
"""

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(config(code), recorder)
        try:
            cell.boot(0)
            await recorder.until(lambda: recorder.exits or recorder.failed, 60)
            assert recorder.exits[0].code == 0, recorder.exits
            async with asyncio.timeout(10):
                assert await output(cell, 0) == b"True\n"
            assert cell.statistics(0).memory_committed <= 256 << 20
        finally:
            await cell.close()

    asyncio.run(main())


def test_the_clock_of_a_program_that_never_waits():
    """It is corrected while the program runs, and never goes back."""
    code = """
import os, time
first = last = time.monotonic_ns()
back = 0
while last - first < 2_500_000_000:
    now = time.monotonic_ns()
    back += now < last
    last = now
print(first, last, back, flush=True)
os._exit(0)
"""

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(config(code), recorder)
        try:
            before = time.monotonic_ns()
            cell.boot(0)
            await recorder.until(lambda: recorder.exits or recorder.failed, 60)
            after = time.monotonic_ns()
            async with asyncio.timeout(10):
                first, last, back = map(int, (await output(cell, 0)).split())
            assert before < first < last < after
            assert back == 0
        finally:
            await cell.close()

    asyncio.run(main())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_cell_runs_as_another_user(monkeypatch):
    """As on a machine where agentfw is no root's: only the cell, since this one's checkout may be root's alone."""
    popen = subprocess.Popen

    def as_nobody(*args, **options):
        return popen(*args, **options, user=65534, group=65534, extra_groups=[])

    monkeypatch.setattr(subprocess, "Popen", as_nobody)

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(config("print('hello')"), recorder)
        try:
            cell.boot(0)
            await recorder.until(lambda: recorder.exits or recorder.failed, 60)
            assert recorder.exits[0].code == 0, recorder.exits
        finally:
            await cell.close()

    asyncio.run(main())


def test_a_cell_dies_with_its_worker(tmp_path):
    """Also by SIGKILL, when nobody can tidy up."""
    script = """
import asyncio, sys
from tests.native import bare, test_python
from agentfw_vmm.cell import Cell
async def main():
    cell = await Cell.start(test_python.config("while True: pass"), bare.Recorder())
    cell.boot(0)
    print(cell.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=bare.ROOT, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        pidfd = os.pidfd_open(pid)
        try:
            worker.kill()
            gone, _, _ = select.select([pidfd], [], [], 30)
            assert gone
        finally:
            os.close(pidfd)


CALLS = """
import os, time
fd = os.open("/dev/agentfw", os.O_RDWR)
if os.getpid() == 2:
    os._exit(3)
for _ in range(5):
    os.listdir("/usr")
    os.stat("/usr")
    os.close(os.open("/usr", os.O_RDONLY))
    os.getcwd(), os.umask(0o22), os.sched_yield(), os.getpriority(0, 0), time.sleep(0.0001)
    read, write = os.pipe()
    os.write(write, b"x"), os.read(read, 1), os.close(read), os.close(write)
os._exit(0)
"""


def test_sites_without_a_safe_window_are_asked_for_once(tmp_path, monkeypatch):
    """Not by each VM of a runner anew: to decode around one costs the worker a millisecond."""
    path = tmp_path / "snapshot"
    refused = Counter()
    find = sites.find

    async def counted(code, kind, offset, budget):
        found = await find(code, kind, offset, budget)
        if kind == lib.AFW_SITES_LAZY and not found.count and found.refused:
            refused[code[offset - 24 : offset + 24]] += 1
        return found

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(config(CALLS, snapshot_out=path), recorder)
        try:
            cell.boot(0)
            await recorder.until(lambda: recorder.exits or recorder.failed, 60)
        finally:
            await cell.close()
        monkeypatch.setattr(sites, "find", counted)
        recorder = bare.Recorder()
        cell = await Cell.start(config(CALLS, snapshot_in=path, vms=4), recorder)
        try:
            for vm in range(4):
                cell.restore(vm, 200 + vm)
                await recorder.until(lambda vm=vm: vm in recorder.exits or recorder.failed, 60)
                assert recorder.exits[vm].code == 0, recorder
            return [cell.statistics(vm) for vm in range(4)]
        finally:
            await cell.close()

    counts = asyncio.run(main())
    if not refused:
        pytest.skip("this C library has no such site in what was called")
    assert max(refused.values()) < 4, refused  # on a busy machine the first VM may have ended before the answer came
    assert counts[2].sites_refused == counts[3].sites_refused, counts
