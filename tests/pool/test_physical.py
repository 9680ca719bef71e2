"""Physical memory of a set of processes: of ones that are made up, and of this one."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agentfw.pool.physical import Physical, measure

MIB = 1 << 20


def process(proc: Path, pid: int, name: str, anon: int, file: int, tables: int, children: str = "", shmem: int = 0) -> None:
    """Sizes in KiB."""
    place = proc / str(pid)
    (place / "task" / str(pid)).mkdir(parents=True)
    (place / "task" / str(pid) / "children").write_text(children)
    (place / "fd").mkdir()
    (place / "cgroup").write_text("4:memory:/other\n0::/pool.slice/agentfw.service\n")
    (place / "status").write_text(
        f"Name:\t{name}\nUmask:\t0022\nVmPTE:\t {tables} kB\nRssAnon:\t {anon} kB\n"
        f"RssFile:\t  {file} kB\nRssShmem:\t {shmem} kB\n"
    )


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A router (1) with two workers, of which one has two cells; somebody else (9)."""
    place = tmp_path / "proc"
    process(place, 1, "agentfw", 1000, 200, 10, "2 3 ")
    process(place, 2, "agentfw", 500, 250, 10, "4 5 ", shmem=9000)
    process(place, 3, "agentfw", 400, 100, 10)
    process(place, 4, "agentfw-cell", 3000, 60, 20, shmem=9000)
    process(place, 5, "agentfw-cell", 2000, 50, 20, shmem=9000)
    process(place, 9, "other", 100_000, 100_000, 1000)
    return place


def test_shared_pages_once_and_nobody_elses(proc: Path, tmp_path: Path) -> None:
    pages = 1000 + 500 + 400 + 3000 + 2000 + 250 + 60
    assert measure(1, [2, 3], proc, tmp_path / "none") == ((pages + 70) << 10, False)
    # workers that the router does not know are its children all the same; those that have gone are nothing
    assert measure(1, [2, 3, 77], proc, tmp_path / "none") == ((pages + 70) << 10, False)


def test_a_control_group_of_its_own_tells_what_the_kernel_keeps(proc: Path, tmp_path: Path) -> None:
    group = tmp_path / "groups/pool.slice/agentfw.service"
    group.mkdir(parents=True)
    (group / "memory.stat").write_text(f"anon 1\nfile 2\nkernel {7 * MIB}\nkernel_stack 3\n")
    (group / "cgroup.procs").write_text("1\n2\n3\n4\n5\n")
    pages = 1000 + 500 + 400 + 3000 + 2000 + 250 + 60
    assert measure(1, [2, 3], proc, tmp_path / "groups") == ((pages << 10) + 7 * MIB, True)
    (group / "cgroup.procs").write_text("1\n2\n3\n4\n5\n9\n")  # a login session's
    assert measure(1, [2, 3], proc, tmp_path / "groups")[1] is False
    (group / "cgroup.procs").write_text("1\n")
    (group / "memory.stat").write_text("anon 1\n")  # Linux before 5.18
    assert measure(1, [2, 3], proc, tmp_path / "groups")[1] is False


def test_what_makes_no_sense_is_nothing(proc: Path, tmp_path: Path) -> None:
    (proc / "4/status").write_text("Name:\tRssAnon: 7 kB\nRssAnon:\t lots kB\n")
    (proc / "5/status").unlink()
    assert measure(1, [2, 3], proc, tmp_path / "none") == ((1000 + 500 + 400 + 250 + 30) << 10, False)


@contextmanager
def more(least: int, most: int) -> Iterator[None]:
    before = measure(os.getpid(), [])[0]
    yield
    grown = measure(os.getpid(), [])[0] - before
    assert least <= grown <= most, grown


def test_this_process() -> None:
    with more(16 * MIB, 20 * MIB):
        memory = mmap.mmap(-1, 16 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, 16 * MIB, 4096):
            memory[at] = 1
    memory.close()
    fd = os.memfd_create("test")
    try:
        with more(16 * MIB, 18 * MIB):  # in no mapping
            os.pwrite(fd, bytes(8 * MIB), 0)
            os.pwrite(fd, bytes(8 * MIB), 8 * MIB)
        with more(0, 2 * MIB):  # mapped, and open twice: no more
            again = os.dup(fd)
            mapped = mmap.mmap(fd, 16 * MIB)
            assert sum(mapped[at] for at in range(0, 16 * MIB, 4096)) == 0
        mapped.close()
        os.close(again)
    finally:
        os.close(fd)
    code = "import sys; x = bytearray(b'x') * (32 << 20); print(1, flush=True); sys.stdin.read()"
    with more(32 * MIB, 64 * MIB):
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"1\n"
    child.communicate()


def test_a_process_without_a_descriptor_left_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then above all."""

    def none_left(*args: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    physical = Physical()
    monkeypatch.setattr(os, "memfd_create", none_left)
    assert asyncio.run(physical.look([], 0)) > MIB


def test_who_asks_while_it_is_looked_is_told_that() -> None:
    """The page and Prometheus ask at once when a pool has just begun: one of them was told that it takes nothing."""

    async def both() -> list[int]:
        physical = Physical()
        return await asyncio.gather(physical.look([], 0), physical.look([], 0))

    one, other = asyncio.run(both())
    assert one == other > MIB
