"""What the host tells of a VM: system calls by count and time, files opened. Against what its program did, and strace natively."""

import asyncio
import os
import re
import signal
import struct
import subprocess
from pathlib import Path

import pytest
from agentfw_vmm import Cell, CellConfig, Mount, OpenedFile, Sight, VmStatistics
from agentfw_vmm._lib import lib
from agentfw_vmm.rules import FileRule, compile_rules
from agentfw_vmm.sight import _FAMILIES as FAMILIES
from agentfw_vmm.syscalls import NUMBERS

from ..cell_peer import C, Handler, offset
from .strace import traced

pytestmark = pytest.mark.kvm

SHIM = Path(__file__).parents[2] / "shim"
PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define TIMES(n) for (int i = 0; i < n; i++)

int main(int argc, char **argv)
{
    char buffer[256], *folder = argv[1];
    struct timespec t;
    struct stat st;
    if (chdir(folder))
        return 1;
    TIMES(1000) syscall(SYS_getpid);
    TIMES(77) syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    TIMES(6) syscall(SYS_sched_yield);
    TIMES(5) close(open("text", O_RDONLY));
    TIMES(3) open("none", O_RDONLY);
    TIMES(2) open("/nowhere/none", O_WRONLY | O_CREAT, 0600);
    TIMES(9) syscall(SYS_lstat, "text", &st);
    TIMES(4) syscall(SYS_access, "none", R_OK);
    int fd = open("text", O_RDONLY);
    TIMES(7) syscall(SYS_pread64, fd, buffer, 3, 2);
    TIMES(8) lseek(fd, 0, SEEK_SET);
    int null = open("/dev/null", O_RDWR);
    TIMES(13) if (write(null, buffer, 1) != 1) return 2;
    TIMES(3) if (mprotect(mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096, PROT_NONE)) return 3;
    TIMES(11) syscall(SYS_fsync, 99);
    TIMES(2) syscall(450, 1, 2, 3);      /* known, and not there */
    if (argc > 2) {                      /* numbers that no table has */
        TIMES(3) syscall(453);
        TIMES(3) syscall(0x7fffffff);
        TIMES(3) syscall(-1);
        TIMES(3) syscall(335);
        TIMES(3) syscall(423);
        int ends[2];
        if (pipe(ends))
            return 5;
        TIMES(3) if (sendfile(ends[1], fd, 0, 1) != 1) return 6;
    }
    if (write(1, "done\n", 5) != 5 || read(0, buffer, 1) < 0)
        return 4;
    TIMES(10) syscall(SYS_getpid);
    return 0;
}
"""
KNOWN = {
    "getpid": 1000, "clock_gettime": 77, "sched_yield": 6, "lstat": 9, "access": 4, "pread64": 7, "lseek": 8, "write": 14,
    "fsync": 11, "read": 1, "chdir": 1,
}  # fmt: skip


def compiled(folder: Path, source: str, name: str = "guest") -> None:
    (folder / f"{name}.c").write_text(source)
    command = ["cc", "-O1", "-static", "-Wall", "-Wno-unused-result", f"-I{SHIM}", "-o", folder / name, folder / f"{name}.c"]
    subprocess.run(list(map(str, command)), check=True)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sight")
    compiled(folder, PROGRAM)
    (folder / "text").write_text("a few words")
    return folder


def booted(folder: Path, *args: str, name: str = "guest", rules: bytes = b"") -> tuple[Sight, Sight, VmStatistics]:
    """Runs a program that says a line and waits for its input's end; -> how it stood then, and at its end."""

    async def main() -> tuple[Sight, Sight, VmStatistics]:
        path = f"/p/{name}"
        handler = Handler()
        cell = await Cell.start(CellConfig(mounts=[Mount("/p", folder)], program=path, argv=[path, *args]), handler)
        try:
            assert not cell.sight(0).syscalls()
            cell.boot(0, rules)
            async with asyncio.timeout(30):
                assert await cell.stream(0, 1).receive() == b"done\n"
                first, second = await asyncio.gather(cell.look(0), cell.look(0))
                assert first.counts() == second.counts()
                cell.stream(0, 0).send_eof()
                report = await handler.exit(20)
            assert (report.kind, report.code) == ("code", 0), report
            assert (await cell.look(0)).counts() == cell.sight(0).counts()
            return first, cell.sight(0), cell.statistics(0)
        finally:
            await cell.close()

    return asyncio.run(main())


def test_of_a_cell_that_died_it_is_known_what_its_vm_did(program: Path) -> None:
    """Then above all it is asked for."""

    async def main() -> Sight:
        handler = Handler()
        config = CellConfig(mounts=[Mount("/p", program)], program="/p/guest", argv=["/p/guest", "/p", "all"])
        cell = await Cell.start(config, handler)
        try:
            cell.boot(0)
            async with asyncio.timeout(30):
                assert await cell.stream(0, 1).receive() == b"done\n"
                await cell.look(0)
                os.kill(cell.pid, signal.SIGKILL)
                await handler.until(lambda: handler.failures)
                assert handler.exits[0][1].kind == "internal"
            return cell.sight(0)
        finally:
            await cell.close()
            assert not cell.sight(0).syscalls(), "closed"

    sight = asyncio.run(main())
    assert sight.counts()["getpid"] == KNOWN["getpid"] and "/p/text" in {file.path for file in sight.opened()}


def test_calls_are_counted(program: Path) -> None:
    first, end, statistics = booted(program, "/p", "all")
    at_first = first.counts()
    assert {name: at_first.get(name) for name in KNOWN} == {**KNOWN, "read": 1}
    assert end.counts()["getpid"] == KNOWN["getpid"] + 10
    absent = sum(end.counts().get(name, 0) for name in ("set_mempolicy_home_node", "rseq"))  # rseq: the C library asks for it
    assert statistics.n_enosys == 5 * 3 + absent and 2 <= absent <= 3
    rows = {row.name: row for row in end.syscalls()}
    assert "syscall_453" not in rows
    # the host's: calls that it answers as they are, by their numbers
    assert (rows["lstat"].host_count, rows["lstat"].errors) == (9, 0) and rows["lstat"].host_seconds > 0
    assert (rows["access"].host_count, rows["access"].errors) == (4, 4)
    assert (rows["fsync"].host_count, rows["fsync"].errors) == (11, 11)
    assert (rows["openat"].host_count, rows["openat"].errors) == (12, 5)
    assert (rows["sendfile"].host_count, rows["sendfile"].errors) == (3, 0), "to ask again in a while is no error"
    assert rows["getpid"].host_count == 0 and rows["clock_gettime"].host_count == 0
    # and operations of the ring, where the guest called what comes to them
    assert rows["close"].host_count == 5 + 1  # what was open at the end
    assert rows["pread64"].host_count == 3, "those of sendfile(): a small file's bytes came with its open"
    assert end.syscalls()[0].name == "getpid"
    assert sum(each.count for each in end.operations()) == statistics.ring_ops
    total = sum(each.seconds for each in end.operations())
    assert 0 < total < statistics.cpu_ns / 1e9 + 1


def test_as_many_as_natively(program: Path) -> None:
    """What strace counts in the same program on the host: of the calls that are not the start's or the C library's."""
    native: dict[str, int] = {}
    for name in re.findall(r"^\d+ +(\w+)\(", traced(program, [str(program / "guest"), str(program)]), re.MULTILINE):
        native[name] = native.get(name, 0) + 1
    _, end, _ = booted(program, "/p")
    counts = end.counts()
    same = {*KNOWN, "openat", "close", "mprotect"} & native.keys()
    assert len(same) == len(KNOWN) + 3
    # (the C library's start protects its own data once, here as there)
    assert {name: counts.get(name, 0) for name in same} == {name: native[name] for name in same}


def test_files(program: Path) -> None:
    rules = compile_rules([FileRule("**/text", "read"), FileRule("/p/none", "hide"), FileRule("/nowhere", "deny")])
    first, end, statistics = booted(program, "/p")
    expected = [
        OpenedFile("/p/text", "r", 6),
        OpenedFile("/p/none", "r", 3, "ENOENT"),
        OpenedFile("/nowhere/none", "w", 2, "ENOENT"),
        OpenedFile("/dev/null", "rw", 1),
    ]
    assert first.opened() == end.opened() == expected
    assert end.more_files == 0
    _, end, statistics = booted(program, "/p", rules=rules)
    expected[1] = OpenedFile("/p/none", "r", 3, "ENOENT", "hide /p/none")
    expected[2] = OpenedFile("/nowhere/none", "w", 2, "EACCES", "deny /nowhere")
    looked = OpenedFile("/p/none", "", 4, "ENOENT", "hide /p/none")
    found = end.opened()
    assert sorted(map(str, found)) == sorted(map(str, [*expected, looked]))
    assert statistics.refused_paths == 3 + 2 + 4


LIAR = r"""
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include "abi.h"
int main(int argc, char **argv)
{
    struct afw_ctl *ctl = (void *)AFW_CTL;
    for (int i = 0; i < AFW_TABLE_SIZE; i++)
        ctl->calls[i] = i % 3 ? ~0ull : 0x123456789abcdef;
    memset((void *)(AFW_WINDOW + AFW_WINDOW_DATA - 4096), 0xff, 4096);       /* all of the window that no flow has */
    close(open("/p/a\033[31mb\n\xe2\x80\xae\xff", O_RDONLY));
    write(1, "done\n", 5);
    char c;
    read(0, &c, 1);
    return 0;
}
"""


def test_what_a_guest_writes_over(tmp_path: Path) -> None:
    compiled(tmp_path, LIAR, "liar")
    for sight in booted(tmp_path, name="liar")[:2]:
        counts = sight.counts()
        assert len(counts) > 350 and max(counts.values()) == (1 << 48) - 1  # (some counted on, over the end)
        assert [file.path for file in sight.opened()] == ["/p/a?[31mb??\ufffd"]
        assert all(0 <= row.count < 1 << 48 and row.host_count < 1000 for row in sight.syscalls())
    # no address behind the window is the guest's
    assert C["AFW_SIGHT_AT"] == C["AFW_WINDOW_SIZE"]


FULL = r"""
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    char path[4000];
    mkdir("/tmp/d", 0700);
    for (int i = 0; i < 700; i++) {
        snprintf(path, sizeof path, "/tmp/d/%d", i);
        int fd = open(path, i < 10 ? O_RDWR | O_CREAT : O_RDONLY | O_CREAT, 0600);
        if (fd < 0)
            return 1;
        close(fd);
    }
    for (int i = 0; i < 300; i++) {
        memset(path, 'x', sizeof path);
        sprintf(path, "/nowhere/%d", i);
        path[strlen(path)] = '/';
        path[3999] = 0;
        if (open(path, O_RDONLY) >= 0)
            return 2;
    }
    write(1, "done\n", 5);
    return read(0, path, 1);
}
"""


def test_bounds(tmp_path: Path) -> None:
    compiled(tmp_path, FULL, "full")

    async def main() -> Sight:
        handler = Handler()
        config = CellConfig(
            mounts=[Mount("/p", tmp_path)], program="/p/full", argv=["/p/full"], tmp_bytes=16 << 20, tmp_inodes=2000
        )
        cell = await Cell.start(config, handler)
        try:
            cell.boot(0)
            cell.stream(0, 0).send_eof()
            assert (await handler.exit(30)).kind == "code"
            return cell.sight(0)
        finally:
            await cell.close()

    sight = asyncio.run(main())
    opened = sight.opened()
    read = [file for file in opened if file.mode == "r" and not file.error]
    assert len(read) == C["AFW_SIGHT_FILES"] * 3 // 4 - 10, "the last places are not for what is only read"
    failed = [file for file in opened if file.error]
    assert failed and all(len(file.path) == C["AFW_SIGHT_PATH"] and file.count == 1 for file in failed)
    assert len(opened) <= C["AFW_SIGHT_FILES"] and len(opened) + sight.more_files == 700 + 300
    assert len(sight._raw) <= C["AFW_SIGHT_SIZE"]


def test_what_a_cell_may_write_there(program: Path) -> None:
    """A cell may be a guest's: whatever lies in the shared memory is a sight, without errors."""

    async def main() -> None:
        handler = Handler()
        cell = await Cell.start(CellConfig(mounts=[Mount("/p", program)], program="/p/guest", argv=["/p/guest", "/p"]), handler)
        try:
            cell.boot(0)
            cell.stream(0, 0).send_eof()
            await handler.exit(30)
            fd = lib.afw_worker_windows_fd(cell.worker)
            at, size = C["AFW_SIGHT_AT"], C["AFW_SIGHT_SIZE"]
            files, width = at + C["AFW_SIGHT_FILES_AT"], 32
            for seed in range(60):
                os.pwrite(fd, os.urandom(size) if seed % 2 else b"\xff" * size, at)
                os.pwrite(fd, struct.pack("<II", 1 << seed % 32, 1 << seed % 31), at)
                for entry in range(3):  # headers that are nearly right
                    length = [0, 255, 256][seed % 3]
                    record = struct.pack("<IIIHHHBBI", [width, 288, 8, 0, 0xFFFFFFF8, 292][seed % 6], 1, 9, length, 2, 3, 1, 9, 0)
                    os.pwrite(fd, record, files + entry * 288)
                sight = cell.sight(0)
                assert len(sight._raw) <= size
                for file in sight.opened():
                    assert len(file.path) <= 255 and (file.path.isprintable() or not file.path)
                assert len(sight.opened()) <= C["AFW_SIGHT_FILES"] and len(sight.operations()) <= C["AFW_SIGHT_OPS"]
                for row in sight.syscalls():  # numbers that go to whoever looks
                    assert row.count < 1 << 48 and row.host_count < 1 << 63 and sight.more_files < 1 << 48
        finally:
            await cell.close()

    asyncio.run(main())


LIVES = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    char c;
    for (int i = 0; i < 500; i++)
        syscall(SYS_gettid);
    close(open("/p/template", O_RDONLY));
    if (open("/dev/agentfw", O_RDWR) < 0)
        return 1;
    for (int i = 0; i < 20; i++)
        syscall(SYS_getpid);
    close(open("/p/life", O_RDONLY));
    write(1, "done\n", 5);
    read(0, &c, 1);
    for (int i = 0; i < 30; i++)
        syscall(SYS_getppid);
    close(open("/p/late", O_RDONLY));
    return 0;
}
"""


def names(sight: Sight) -> list[str]:
    return [Path(file.path).name for file in sight.opened()]


def test_each_life_begins_at_zero(tmp_path: Path) -> None:
    """Restored, put back after an end (recycling), copied while it runs (fork), and when it is said (`sight_anew()`)."""
    compiled(tmp_path, LIVES, "lives")
    snapshot = tmp_path / "snapshot"

    def config(**changes: object) -> CellConfig:
        how = {"program": "/p/lives", "argv": ["/p/lives"], "mounts": [Mount("/p", tmp_path)], "key": b"k" * 32, **changes}
        return CellConfig(**how)  # type: ignore[arg-type]

    async def template() -> None:
        handler = Handler()
        cell = await Cell.start(config(snapshot_out=snapshot), handler)
        try:
            cell.boot(0)
            cell.stream(0, 0).send_eof()
            assert (await handler.exit(30)).text == "exit code 0"
            assert cell.sight(0).counts()["gettid"] == 500
        finally:
            await cell.close()

    async def ready(cell: Cell, vm: int) -> None:
        assert await cell.stream(vm, 1).receive() == b"done\n"

    async def ended(cell: Cell, vm: int, handler: Handler) -> Sight:
        handler.exits.clear()
        cell.stream(vm, 0).send_eof()
        assert (await handler.exit(20)).text == "exit code 0"
        return cell.sight(vm)

    async def lives() -> None:
        handler = Handler()
        cell = await Cell.start(config(snapshot_in=snapshot, recycle=True, vms=2), handler)
        copies = Handler()
        try:
            for life in range(3):
                cell.restore(0, 1000 + life)
                assert cell.sight(0).counts() == {} and cell.sight(0).opened() == [], life
                await ready(cell, 0)
                assert names(await cell.look(0)) == ["life"]
                end = await ended(cell, 0, handler)
                counts = end.counts()
                assert cell.statistics(0).recycled == bool(life)
                assert (counts["getpid"], counts["getppid"], counts.get("gettid")) == (20, 30, None), life
                assert names(end) == ["life", "late"] and {row.name for row in end.syscalls() if row.host_count}
            cell.restore(1, 2000, later=True)
            await cell.standing(1)
            assert (await cell.look(1)).counts() == {}
            cell.stream(1, 0).write(b"x")  # wakes it: it has nothing to wait for any more
            await ready(cell, 1)
            cell.restore(0, 2001)
            await ready(cell, 0)
            saved = await cell.save(0)
            cell.sight_anew(0)
            assert (await cell.look(0)).counts() == {} and cell.sight(0).opened() == [] and cell.sight(0).operations() == []
            end = await ended(cell, 0, handler)
            assert (end.counts()["getppid"], end.counts().get("getpid"), names(end)) == (30, None, ["late"])
            try:
                copy = await Cell.start(saved.config(1), copies)
                try:
                    copy.restore(0, 3000, note=b"{}")
                    end = await ended(copy, 0, copies)
                    assert (end.counts()["getppid"], end.counts().get("getpid"), names(end)) == (30, None, ["late"])
                finally:
                    await copy.close()
            finally:
                saved.close()
        finally:
            await cell.close()
        assert cell.sight(0).syscalls() == []  # nothing is there any more

    asyncio.run(template())
    asyncio.run(asyncio.wait_for(lives(), 60))


def stop(pid: int) -> None:
    """All its threads stand when this returns."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


def test_a_cell_that_stands_still(program: Path) -> None:
    """It holds up who looks, not longer than they wait; what it told before can be read."""

    async def main() -> None:
        handler = Handler()
        cell = await Cell.start(CellConfig(mounts=[Mount("/p", program)], program="/p/guest", argv=["/p/guest", "/p"]), handler)
        try:
            cell.boot(0)
            async with asyncio.timeout(30):
                assert await cell.stream(0, 1).receive() == b"done\n"
                stop(cell.pid)
                looks = [asyncio.ensure_future(cell.look(0)) for _ in range(3)]
                done, _ = await asyncio.wait(looks, timeout=0.1)
                assert not done and cell.sight(0).counts() == {} and len(cell.sight(0).opened()) == 4
                looks.pop().cancel()
                os.kill(cell.pid, signal.SIGCONT)
                assert [(await look).counts()["getpid"] for look in looks] == [KNOWN["getpid"]] * 2
                stop(cell.pid)
                look = asyncio.ensure_future(cell.look(0))
                await asyncio.wait([look], timeout=0.05)
                os.kill(cell.pid, signal.SIGKILL)
                await look  # nothing is waited for that will not come
        finally:
            await cell.close()

    asyncio.run(main())


def test_names_and_layout() -> None:
    assert offset("afw_ctl", "calls") % 8 == 0
    assert C["AFW_TABLE_SIZE"] == C["AFW_TABLE_END"] - C["AFW_TABLE_GAP_SIZE"]
    assert max(NUMBERS.values()) < 1 << 16


def test_of_each_operation_of_the_shims_it_is_known_whose_calls_come_to_it() -> None:
    posted = {name for file in SHIM.glob("*.c") for name in re.findall(r"AFW_OP_\w+", file.read_text())}
    assert {C[name] for name in posted - {"AFW_OP_CALL"}} == FAMILIES.keys()
    assert all(name in NUMBERS for calls in FAMILIES.values() for name in calls)
