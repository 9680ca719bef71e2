"""Pages that a restore leaves read-only on the host though the guest may write to them: nobody can tell."""

import asyncio
import os
import struct
from pathlib import Path

import pytest
from agentfw_vmm.cell import CELL_PROGRAM, Cell

from . import bare
from .test_python import config, output
from .test_recycle import line

pytestmark = [
    pytest.mark.kvm,
    pytest.mark.skipif(not os.access("/dev/kvm", os.R_OK | os.W_OK), reason="no access to /dev/kvm"),
    pytest.mark.skipif(not CELL_PROGRAM.is_file(), reason="the cell was not built"),
]

#: 12 pages: read-only are 0, 1, 4, 5, 7, 10 and 11; 8 and 9 are out of reach
TEMPLATE = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
at = libc.mmap(None, 12 * 4096, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
ctypes.memset(at, 7, 12 * 4096)
for page, count, protection in ((0, 2, 1), (4, 2, 1), (7, 1, 1), (8, 2, 0), (10, 2, 1)):
    assert not libc.mprotect(at + page * 4096, count * 4096, protection)
page = lambda number, offset=0: at + number * 4096 + offset
print("template", hex(at), flush=True)
fd = os.open("/dev/agentfw", os.O_RDWR)
what = os.read(fd, 4096).decode()
print(hex(at), flush=True)
try:
    exec(what)
except BaseException as error:
    print(type(error).__name__, error, flush=True)
print("over", flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    directory = tmp_path_factory.mktemp("islands")

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(config(TEMPLATE, snapshot_out=directory / "snapshot"), recorder)
        try:
            cell.boot(0)
            await recorder.until(lambda: recorder.ready or recorder.exits or recorder.failed, 60)
            assert recorder.ready[0][1] == 0, recorder
        finally:
            await cell.close()

    asyncio.run(main())
    (directory / "hot").write_bytes(struct.pack("<4I", 0x204, 1, 0, 0))  # of nothing but the control page is it known
    return directory


def mappings(pid: int) -> int:
    return len(Path(f"/proc/{pid}/maps").read_text().splitlines())


#: What is run, what it prints, page and offset of the fault that ends it
CASES = {
    "plain": ("ctypes.memset(page(2), 1, 8192); print(ctypes.string_at(page(1, 4095), 8194).count(1))", "8192", None),
    "a byte": (
        "ctypes.c_char.from_address(page(3, 4095)).value = b'x'; print(ctypes.string_at(page(3, 4094), 3))",
        r"b'\x07x\x07'",
        None,
    ),
    "both": (
        "ctypes.memset(page(6), 2, 9); ctypes.memset(page(3, 4000), 3, 96); print(ctypes.string_at(page(6), 1))",
        r"b'\x02'",
        None,
    ),
    "by the host": (
        "r = os.open('/etc/passwd', 0); print(os.readv(r, [(ctypes.c_char * 64).from_address(page(2, 4090))]))",
        "64",
        None,
    ),
    "by a small read": (
        "r, w = os.pipe(); os.write(w, b'abc'); os.readv(r, [(ctypes.c_char * 3).from_address(page(6))]); "
        "print(ctypes.string_at(page(6), 4))",
        r"b'abc\x07'",
        None,
    ),
    "read only": ("print(sum(ctypes.string_at(page(0), 32768)))", str(7 * 32768), None),
    "before it": ("ctypes.memset(page(1, 4088), 1, 16)", "", (1, 4088)),
    "behind it": ("ctypes.memset(page(2), 1, 8192); ctypes.c_char.from_address(page(4)).value = b'x'", "", (4, 0)),
    "far from it": ("ctypes.c_char.from_address(page(10, 5)).value = b'x'", "", (10, 5)),
    "out of reach": ("ctypes.string_at(page(8, 3), 1)", "", (8, 3)),
    "locked": (
        "print(libc.mprotect(page(2), 4096, 1), flush=True); ctypes.memset(page(3), 1, 9); ctypes.memset(page(2), 1, 1)",
        "0",
        (2, 0),
    ),
    "unlocked": ("print(libc.mprotect(page(1), 4096 * 3, 3)); ctypes.memset(page(1), 1, 4096 * 3)", "0", None),
    "mapped anew": (
        "libc.mmap(page(2), 4096, 3, 0x32, -1, 0); print(ctypes.string_at(page(2), 1)); ctypes.memset(page(2), 1, 8192)",
        r"b'\x00'",
        None,
    ),
}


def test_what_a_guest_sees_is_as_without(template):
    async def main(hot: bool, lives: int) -> dict[str, object]:
        found: dict[str, object] = {}
        recorder = bare.Recorder()
        files = {"snapshot_in": template / "snapshot", "hot_in": template / "hot" if hot else None}
        cell = await Cell.start(config(TEMPLATE, vms=len(CASES), runners=2, recycle=lives > 1, **files), recorder)
        try:
            before = mappings(cell.pid)
            for vm in range(len(CASES)):
                cell.restore(vm, 100, later=True)
                await cell.standing(vm)
            found["mappings"] = mappings(cell.pid) - before
            for life in range(lives):
                recorder.exits.clear()
                for vm, (code, _, _) in enumerate(CASES.values()):
                    if life:
                        cell.restore(vm, 100)
                    await cell.stream(vm, 3).send(code.encode())
                async with asyncio.timeout(60):
                    texts = [(await output(cell, vm)).decode().split("\n") for vm in range(len(CASES))]
                await recorder.until(lambda: len(recorder.exits) == len(CASES) or recorder.failed)
                for vm, (name, (_, says, fault)) in enumerate(CASES.items()):
                    at, end = int(texts[vm][0], 16), recorder.exits[vm]
                    if fault is None:
                        assert texts[vm][1:] == [says, "over", ""] and (end.kind, end.code) == ("code", 0), (name, texts[vm], end)
                    else:
                        place = at + fault[0] * 4096 + fault[1]
                        assert texts[vm][1:] == ([says, ""] if says else [""]), (name, texts[vm])
                        assert end.signal == 11 and f"address {place:#x}" in end.text, (name, end)
                    assert life == 0 or fault or cell.statistics(vm).recycled, name
        finally:
            await cell.close()
        assert not recorder.failed
        return found

    without = asyncio.run(main(False, 1))
    within = asyncio.run(main(True, 3))
    assert within["mappings"] < without["mappings"] * 0.7, "there are islands"


#: Does what its standard input says, to a page, or (-1) to memory of its own.
ASKED = """
mine = ctypes.create_string_buffer(64)
file = os.open("/etc/passwd", 0)
host = lambda at: os.preadv(file, [(ctypes.c_char * 64).from_address(at)], 0)
acts = {"host": host, "guest": lambda at: ctypes.memset(at, 1, 64)}
while word := os.read(0, 100).decode():
    act, number = word.split()
    acts[act](ctypes.addressof(mine) if number == "-1" else page(int(number)))
    print(act, number, flush=True)
"""


def test_an_island_costs_a_fault_at_most_and_none_where_the_host_writes(template):
    """Counted when the interpreter's own pages have had theirs: how many those are depends on what it had to wait for."""

    async def main():
        recorder = bare.Recorder()
        files = {"snapshot_in": template / "snapshot", "hot_in": template / "hot"}
        cell = await Cell.start(config(TEMPLATE, **files), recorder)

        async def faults(act: str) -> int:
            await cell.stream(0, 0).send(act.encode())
            assert await line(cell, 0) == f"{act}\n".encode()
            return cell.statistics(0).exits_fault

        try:
            cell.restore(0, 100)
            await cell.stream(0, 3).send(ASKED.encode())
            assert (await line(cell, 0)).startswith(b"0x")
            counts = []
            while len(counts) < 6 or len(set(counts[-6:])) > 1:
                counts += [await faults("host -1"), await faults("guest -1")]
                assert len(counts) < 100
            base = counts[-1]
            for act in ("host 2", "guest 2", "guest 3"):
                assert await faults(act) == base, act
            first = await faults("guest 6")  # if one of those before had an address that could not be told, all are open
            assert first - base in (0, 1)
            for act in ("guest 6", "host 6"):
                assert await faults(act) == first, act
        finally:
            await cell.close()

    asyncio.run(main())
