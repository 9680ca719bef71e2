"""Agents that take all there is: the error that Linux gives, where it is taken, and an agent that goes on. No cell and no worker dies of it."""

from __future__ import annotations

import subprocess

import pytest

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

RUN = ("run", "--no-config", "--plugins", "", "--memory", "192M")

MEMORY = """
import mmap
out_of_it = (MemoryError, OSError)  # made now: there is no memory for a tuple either
for piece in (lambda: bytearray(1 << 20), lambda: [0] * 10, lambda: mmap.mmap(-1, 1 << 16)):
    held = []
    try:
        while True:
            held.append(piece())
    except out_of_it as error:
        said = error
        held.clear()  # before anything else: there is no memory for that, not even for a number
    print(repr(said), len(bytes(1 << 20)))
for size in (1 << 40, 1 << 50):
    try:
        bytearray(size)
    except MemoryError:
        print("MemoryError")
"""

THREADS = """
import threading
end, threads = threading.Event(), []
try:
    while True:
        threads.append(threading.Thread(target=end.wait))
        threads[-1].start()
except RuntimeError as error:
    print(error, len(threads) > 50)
end.set()
for thread in threads[:-1]:
    thread.join()
thread = threading.Thread(target=print, args=("another",))
thread.start()
thread.join()
"""

DESCRIPTORS = """
import errno, os, resource, select, socket
for make, close in ((lambda: os.open(os.devnull, os.O_RDONLY), os.close), (lambda: os.open("/etc/hosts", os.O_RDONLY), os.close),
                    (lambda: os.open("/tmp/x", os.O_CREAT | os.O_RDWR), os.close), (os.pipe, lambda both: [os.close(fd) for fd in both]),
                    (socket.socket, socket.socket.close), (socket.socketpair, lambda both: [end.close() for end in both]),
                    (select.epoll, lambda e: e.close()), (lambda: os.dup(1), os.close)):
    held = []
    try:
        while True:
            held.append(make())
    except OSError as error:
        print(errno.errorcode[error.errno], len(held) > 400, end=" ")
    for each in held:
        close(each)
print(len(os.listdir("/proc/self/fd")) < 20)
"""

FILES = """
import errno, os, shutil
os.mkdir("/tmp/d")
for make in (lambda n: open(f"/tmp/d/{n}", "w").close(), lambda n: os.mkdir(f"/tmp/d/{n}"), lambda n: os.symlink("x", f"/tmp/d/{n}")):
    n = 0
    try:
        while True:
            make(n)
            n += 1
    except OSError as error:
        print(errno.errorcode[error.errno], n > 100, end=" ")
    shutil.rmtree("/tmp/d")
    os.mkdir("/tmp/d")
with open("/tmp/big", "wb", buffering=0) as file:
    try:
        while file.write(bytes(1 << 20)) == 1 << 20:
            pass
        file.write(b"x")
    except OSError as error:
        print(errno.errorcode[error.errno], end=" ")
    try:
        os.posix_fallocate(file.fileno(), 0, 1 << 40)
    except OSError as error:
        print(errno.errorcode[error.errno], end=" ")
os.unlink("/tmp/big")
with open("/tmp/d/again", "w") as file:
    file.write("ok")
print(open("/tmp/d/again").read())
"""


def last(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_memory(agentfw: Agentfw) -> None:
    lines = last(agentfw(*RUN, "-c", MEMORY)).splitlines()
    assert lines[:2] == ["MemoryError() 1048576"] * 2
    assert lines[2] == "OSError(12, 'Cannot allocate memory') 1048576" and lines[3:] == ["MemoryError"] * 2


def test_threads(agentfw: Agentfw) -> None:
    assert last(agentfw(*RUN, "-c", THREADS)) == "can't start new thread True\nanother"


def test_descriptors(agentfw: Agentfw) -> None:
    assert last(agentfw(*RUN, "-c", DESCRIPTORS)) == "EMFILE True " * 8 + "True"


def test_files_of_tmp(agentfw: Agentfw) -> None:
    assert last(agentfw(*RUN, "-c", FILES)) == "ENOSPC True " * 3 + "ENOSPC ENOSPC ok"


def test_a_stack_without_an_end_is_reported(agentfw: Agentfw) -> None:
    code = "import sys; sys.setrecursionlimit(10**9)\nclass A:\n def __getattr__(self, n): return getattr(self, n + 'x')\nA().y"
    done = agentfw(*RUN, "-c", code)
    assert done.returncode == 139 and done.stderr.startswith("error: killed by SIGSEGV at 0x")


def test_an_executable_is_no_agent(agentfw: Agentfw) -> None:
    done = agentfw(*RUN, "/bin/true")
    assert done.returncode == 126 and "`/bin/true` is an executable, and agents are Python programs" in done.stderr


LIMIT = """
import ctypes, resource
call = ctypes.CDLL(None, use_errno=True).syscall
limit = (ctypes.c_uint64 * 2)(96 << 20, resource.RLIM_INFINITY & (1 << 64) - 1)
resource_number = ctypes.c_uint64(resource.RLIMIT_AS | HIGH)  # Linux takes the low 32 bits
print(call(302, 0, resource_number, limit, None), resource.getrlimit(resource.RLIMIT_AS)[0] >> 20)
try:
    bytearray(100 << 20)
except MemoryError:
    print("MemoryError")
"""


@pytest.mark.parametrize("high", [0, 1 << 32])
def test_a_limit_of_ones_own_is_kept(agentfw: Agentfw, high: int) -> None:
    done = agentfw(*RUN, "-c", LIMIT.replace("HIGH", str(high)))
    assert done.stdout.split() == ["0", "96", "MemoryError"], done.stdout + done.stderr
