"""Agents that take all there is: the error that Linux gives, where it is taken, and an agent that goes on. No cell and no worker dies of it."""

from __future__ import annotations

import asyncio
import subprocess

import agentfw
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


#: Name -> (code, kind of its end, exit code or signal, what it wrote to stdout or the end's text or stderr's last line holds)
JOBS = {
    "memory": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "code", 1, "MemoryError"),
    "huge maps": (
        "import mmap\nfor bits in (40, 46, 47, 48, 62):\n try: mmap.mmap(-1, 1 << bits)\n except OSError as e: print(e.errno)",
        "code", 0, "12\n12\n12\n12\n12\n",
    ),
    "threads": (
        "import threading, time\ntry:\n while True: threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\n"
        "except RuntimeError as error: print(error)",
        "code", 0, "can't start new thread\n",
    ),
    "descriptors": (
        "import os\ntry:\n while True: os.dup(0)\nexcept OSError as e: print(e.errno)", "code", 0, "24\n",
    ),
    "many files, one after another": (
        "import os\nfor n in range(20_000): os.close(os.open('/etc/hosts', 0))\nprint(n)", "code", 0, "19999\n",
    ),
    "inodes": (
        "n = 0\ntry:\n while True: open(f'/tmp/{n}', 'w').close(); n += 1\nexcept OSError as e: print(e.errno)",
        "code", 0, "28\n",
    ),
    "stdout": ("import os\nfor n in range(10_240): os.write(1, bytes(1 << 20))", "output", 0, "more than 1048576 bytes"),
    "calls": ("def f(): return f()\nf()", "code", 1, "RecursionError: maximum recursion depth exceeded"),
    "calls in C": (
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n def __repr__(self): return repr(self)\nrepr(A())",
        "signal", 11, "SIGSEGV",
    ),
    "nested JSON": ("import json\njson.loads('[' * 10**6)", "code", 1, "RecursionError"),
    "forks": ("import os\nwhile True: os.fork()", "code", 1, "one process"),
    "programs": ("import subprocess\nwhile True: subprocess.Popen(['/bin/true'])", "code", 1, "one process"),
    "deaf": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: pass", "timeout", 0, "",
    ),
    "deaf by handlers": (
        "import signal\nfor n in signal.valid_signals() - {9, 19}: signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        "timeout", 0, "",
    ),
    "never ends": ("import atexit\natexit.register(lambda: [None for _ in iter(int, 1) if _])", "timeout", 0, ""),
    "itself": ("import os\nos.kill(os.getpid(), 9)", "signal", 9, "SIGKILL"),
    "abort": ("import os\nos.abort()", "signal", 6, "SIGABRT"),
    "null": ("import ctypes\nctypes.string_at(0)", "signal", 11, "SIGSEGV"),
    "no program": ("def", "code", 1, "SyntaxError"),
    "library": (
        "import ctypes, os\nelf = bytearray(open('/lib64/ld-linux-x86-64.so.2', 'rb').read())\n"
        "for change in ({18: 183}, {4: 1, 18: 3}, {4: 1}, {0: 0}):\n"
        " for at, byte in change.items(): elf[at] = byte\n"
        " open('/tmp/x.so', 'wb').write(elf)\n"
        " try: ctypes.CDLL('/tmp/x.so')\n"
        " except OSError as e: print(e)\n"
        "for size in (0, 3, 60, 500):\n"
        " os.truncate('/tmp/x.so', size)\n"
        " try: ctypes.CDLL('/tmp/x.so')\n"
        " except OSError: print(size)",
        "code", 0, "invalid ELF header\n0\n3\n60\n500\n",
    ),
}  # fmt: skip


def test_twenty_bad_jobs_at_once_and_then_a_good_one(nothing_left: None) -> None:
    """Each ends as it should, and none takes another one, a cell or the worker along."""

    async def body() -> None:
        async with agentfw.Pool({"run": {"memory": "192M"}}, plugins=[], size=len(JOBS), idle=4) as pool:

            async def end(name: str) -> str:
                code, kind, status, words = JOBS[name]
                limits = agentfw.Limits(output=1 << 20, seconds=2.0 if kind == "timeout" else 100.0)
                result = await pool.run(agentfw.Code(code), limits=limits)
                ended = result.ended
                told = result.stdout if result.stdout else f"{ended.text} {result.stderr[-300:]}"
                good = (ended.kind, ended.code + ended.signal) == (kind, status) and (words in told or words in ended.text)
                return "" if good else f"{name}: {ended} {result.stdout[-300:]!r} {result.stderr[-300:]!r}"

            assert [bad for bad in await asyncio.gather(*map(end, JOBS)) if bad] == []
            assert (await pool.run(agentfw.Code("print('good')"))).check().stdout == "good\n"
            assert (await pool.metrics())["pool.worker_restarts"] == 0

    asyncio.run(body())
