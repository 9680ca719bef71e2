"""Locks on files that VMs share with one another and with the host's processes."""

from __future__ import annotations

import fcntl
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Agentfw

pytestmark = pytest.mark.kvm

ROWS = 60
SQLITE = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1] + "/db", timeout=60, isolation_level=None)
for i in range({rows}):
    database.execute("begin immediate" if i % 2 else "begin exclusive")
    (n,) = database.execute("select value from total").fetchone()
    database.execute("insert into rows values(?, ?)", (os.getpid(), i))
    database.execute("update total set value = ?", (n + 1,))
    database.execute("commit")
"""

# A number in a file, read and written by those who hold the lock, each in its own way; what nobody locks loses some
COUNTER = """
import fcntl, os, struct, sys
WAYS = {
    "posix": lambda fd, kind: fcntl.lockf(fd, kind, 8, 0),
    "ofd": lambda fd, kind: fcntl.fcntl(fd, 38, struct.pack("hhqqi4x", {fcntl.LOCK_EX: 1, fcntl.LOCK_UN: 2}[kind], 0, 0, 8, 0)),
    "flock": fcntl.flock,
}
def count(path, way, times):
    fd = os.open(path, os.O_RDWR)
    for i in range(times):
        WAYS[way](fd, fcntl.LOCK_EX)
        n = int(os.pread(fd, 20, 0) or b"0")
        if i % 5 == 0:
            os.sched_yield()
        os.pwrite(fd, b"%d" % (n + 1), 0)
        WAYS[way](fd, fcntl.LOCK_UN)
    os.close(fd)
"""


def both(agentfw: Agentfw, code: str, where: Path, *arguments: str) -> None:
    """The code in two VMs of one cell and in a process of the host's, at once."""
    host = subprocess.Popen([sys.executable, "-c", code, str(where), *arguments], stderr=subprocess.PIPE, text=True)
    try:
        done = agentfw(
            "run", "--no-config", "--plugins", "", "--mount", f"{where}:/data:rw", "-n", "2", "-c", code, "/data", *arguments
        )
    finally:
        _, said = host.communicate(timeout=60)
    assert (done.returncode, done.stderr, host.returncode, said) == (0, "", 0, "")


@pytest.mark.parametrize("mode", ["delete", "persist"])
def test_one_database(mode: str, tmp_path: Path, agentfw: Agentfw) -> None:
    database = sqlite3.connect(tmp_path / "db")
    database.execute(f"pragma journal_mode = {mode}")
    database.executescript("create table rows(who, i); create table total(value); insert into total values(0)")
    database.close()
    both(agentfw, SQLITE.format(rows=ROWS), tmp_path)
    database = sqlite3.connect(tmp_path / "db")
    counted = [n for (n,) in database.execute("select count(*) from rows group by who")]
    assert (counted, *database.execute("select value from total"), *database.execute("pragma integrity_check")) == (
        [ROWS] * 3, (3 * ROWS,), ("ok",))  # fmt: skip
    database.close()


@pytest.mark.parametrize("way", ["posix", "ofd", "flock"])
def test_a_counter(way: str, tmp_path: Path, agentfw: Agentfw) -> None:
    """Who waits for a lock gets it, and nobody else has it meanwhile."""
    (tmp_path / "n").touch()
    both(agentfw, COUNTER + "count(sys.argv[1] + '/n', sys.argv[2], 60)", tmp_path, way)
    assert (tmp_path / "n").read_text() == "180"


def test_threads(agentfw: Agentfw) -> None:
    """Within a VM: between descriptions, each thread with its own; others go on while one waits."""
    code = (
        COUNTER
        + """
import threading
for way in ("ofd", "flock"):
    open("/tmp/n", "w").close()
    threads = [threading.Thread(target=count, args=("/tmp/n", way, 40)) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(open("/tmp/n").read())
"""
    )
    done = agentfw("run", "--no-config", "--plugins", "", "-c", code)
    assert done.stdout == "160\n160\n", done.stderr


WAITING = """
import errno, fcntl, os, signal, struct, sys, time
fd = os.open("/data/f", os.O_RDWR)
print(*struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))))
for ask in (lambda: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 2), lambda: fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 3)):
    try:
        ask()
    except OSError as error:
        print(errno.errorcode[error.errno])
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 2, 0)
class Rang(Exception): pass
def ring(*_): raise Rang
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX, 5, 2)
except Rang:
    print("rang")
read_only = os.open("/look/f", os.O_RDONLY)
fcntl.lockf(read_only, fcntl.LOCK_SH, 0, 100)  # in a mount that may only be read: nobody on the host sees it
fcntl.flock(read_only, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_against_the_host(tmp_path: Path, nothing_left: None, agentfw_environment: dict[str, str]) -> None:
    """What a process of the host holds is held against a VM, and the other way round."""
    path = tmp_path / "f"
    path.write_bytes(b"x" * 20)
    ask = struct.Struct("hhqqi4x")
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 3, 3)
        program = tmp_path / "waiting.py"
        program.write_text(WAITING)
        command = [
            *COMMAND,
            "run",
            "--no-config",
            "--plugins",
            "",
            "--mount",
            f"{tmp_path}:/data:rw",
            "--mount",
            f"{tmp_path}:/look",
        ]
        vm = subprocess.Popen(
            [*command, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=agentfw_environment
        )
        assert vm.stdin and vm.stdout
        try:
            lines = [vm.stdout.readline() for _ in range(5)]
            assert lines == ["1 0 3 3 0\n", "EAGAIN\n", "EAGAIN\n", "rang\n", "locked\n"]
            _, _, start, length, pid = ask.unpack(fcntl.fcntl(file, fcntl.F_GETLK, ask.pack(fcntl.F_RDLCK, 0, 0, 0, 0)))
            assert (start, length, pid) == (0, 2, -1)
            with pytest.raises(BlockingIOError):
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 1)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 3)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            vm.stdin.close()
            vm.stdout.close()
            assert vm.wait(60) == 0
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # with the VM its locks are gone
