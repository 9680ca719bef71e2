"""`agentfw run --strace` with real VMs, and beside the real strace."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Agentfw

from .strace import traced

pytestmark = pytest.mark.kvm

AGENT = r"""
import encodings.idna, os, socket, threading
os.mkdir("/tmp/strace-here")
fd = os.open("/tmp/strace-here/a", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
os.write(fd, b"\x1b[31mred\0007" + b"x" * 100)
os.writev(fd, [b"one", b"two"])
os.lseek(fd, 0, os.SEEK_SET)
os.read(fd, 5)
os.pread(fd, 1000, 3)
os.fsync(fd)
os.rename("/tmp/strace-here/a", "/tmp/strace-here/b")
for call in (lambda: os.open("/tmp/strace-none", os.O_RDONLY), lambda: os.close(9999), lambda: os.rmdir("/tmp/strace-here")):
    try:
        call()
    except OSError:
        pass
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen(3)
c = socket.create_connection(s.getsockname())
c.sendall(b"over loopback")
a, _ = s.accept()
a.recv(100)
a.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
os.unlink("/tmp/strace-here/b")
os.rmdir("/tmp/strace-here")
r, w = os.pipe()
t = threading.Thread(target=lambda: os.read(r, 1))
t.start()
os.write(w, b"!")
t.join()
os._exit(7)
"""
NAMES = (
    "openat,write,writev,read,pread64,lseek,fsync,rename,close,mkdir,rmdir,unlink,bind,listen,connect,sendto,recvfrom,setsockopt"
)


def lines_of(text: str) -> list[str]:
    """Without what differs from run to run: threads and numbers of ports."""
    lines = [re.sub(r"^\[pid +\d+\] ", "", line) for line in text.splitlines()]
    lines = [re.sub(r" +=", " =", re.sub(r" \[(shim|host)\]$", "", line)) for line in lines]
    return [re.sub(r"htons\(\d+\)", "htons(PORT)", line) for line in lines]


def body(lines: list[str]) -> list[str]:
    """From the agent's first own call to the one before there are two threads."""
    begin = next(number for number, line in enumerate(lines) if line.startswith("mkdir("))
    return lines[begin : lines.index('rmdir("/tmp/strace-here") = 0') + 1]


def test_as_strace_says_it(agentfw: Agentfw, tmp_path: Path) -> None:
    """The same program, natively under the real strace: the same lines."""
    (tmp_path / "agent.py").write_text(AGENT)
    done = agentfw(
        "run", "--no-config", "--plugins", "", "--strace", "--strace-out", "calls", "--strace-calls", NAMES, "agent.py"
    )
    assert done.returncode == 7, done.stderr
    ours = (tmp_path / "calls").read_text()
    assert ours.isascii() and "\x1b" not in ours
    assert (
        r'write(3, "\33[31mred\0007xxxxxxxxxxxxxxxxxxxxx"..., 110) = 110 [shim]' in ours or r'xxx"..., 110) = 110 [host]' in ours
    )
    assert 'openat(AT_FDCWD, "/tmp/strace-none", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory) [host]' in ours
    assert "close(9999) = -1 EBADF (Bad file descriptor) [shim]" in ours
    assert ours.endswith("+++ exited with 7 +++\n")
    native = traced(tmp_path, [sys.executable, "-I", "agent.py"], "-e", f"trace={NAMES}")
    theirs = [re.sub(r"^\d+ +", "", line) for line in native.splitlines()]
    assert body(lines_of(ours)) == body(lines_of("\n".join(theirs)))


#: name -> program and how it ends. The calls that are compared come after MARK; they are the same in each run of a program.
MARK = "import os\nos.mkdir('/tmp/strace-mark')\nos.rmdir('/tmp/strace-mark')\n"
HANDLERS = "import signal\nfor s in (10, 12, 14, 15): signal.signal(s, lambda *_: os.getppid())\n"
PROGRAMS = {
    "delivered": (
        "import signal\n"
        + MARK
        + HANDLERS
        + """
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), 0)
signal.pthread_sigmask(signal.SIG_BLOCK, {10, 12})
signal.raise_signal(10)
signal.sigpending()
signal.sigtimedwait({10}, 1)
signal.sigtimedwait({10}, 0.01)
signal.raise_signal(12)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {12})
try: os.kill(os.getpid(), 99)
except OSError: pass
os._exit(3)
""",
        "exited with 3",
    ),
    "interrupted": (
        "import select, signal, time\n"
        + MARK
        + HANDLERS
        + """
def soon(): signal.setitimer(signal.ITIMER_REAL, 0.06, 1)  # (again: pause() may begin late)
soon(); signal.pause()
soon(); time.sleep(0.15)
r, w = os.pipe()
soon(); select.select([r], [], [r], 0.15)
p = select.poll(); p.register(r, select.POLLIN)
soon(); p.poll(150)
e = select.epoll(); e.register(r, select.EPOLLIN)
soon(); e.poll(0.15)
os._exit(0)
""",
        "exited with 0",
    ),
    "restarted": (
        "import signal\n"
        + MARK
        + HANDLERS
        + """
r, w = os.pipe(); os.set_blocking(w, False)
signal.siginterrupt(14, False); signal.set_wakeup_fd(w); signal.setitimer(signal.ITIMER_REAL, 0.03)
os.read(r, 4)
os._exit(0)
""",
        "exited with 0",
    ),
    "killed in a call": (
        "import signal\n" + MARK + "signal.setitimer(signal.ITIMER_REAL, 0.03)\nos.read(os.pipe()[0], 1)\n",
        "killed by SIGALRM",
    ),
    "segmentation fault": ("import ctypes\n" + MARK + "ctypes.string_at(16)\n", "killed by SIGSEGV"),
    "fault with a handler": (
        "import ctypes, faulthandler\nfaulthandler.enable(open('/dev/null', 'w'))\n" + MARK + "ctypes.string_at(0)\n",
        "killed by SIGSEGV",
    ),
    "abort": (MARK + "os.abort()\n", "killed by SIGABRT"),
    "broken pipe": (
        "import signal\nsignal.signal(13, signal.SIG_DFL)\n" + MARK + "r, w = os.pipe()\nos.close(r)\nos.write(w, b'x')\n",
        "killed by SIGPIPE",
    ),
    "files": (
        "import fcntl\n"
        + MARK
        + """
os.mkdir("/tmp/strace-d"); os.chdir("/tmp/strace-d"); os.getcwd()
fd = os.open("a", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
os.write(fd, b"hello\\n" * 20); os.lseek(fd, -3, os.SEEK_END); os.read(fd, 100); os.pread(fd, 4, 0)
os.readv(fd, [bytearray(3), bytearray(5)]); os.preadv(fd, [bytearray(30)], 2); os.pwritev(fd, [b"ab", b"c"], 1)
os.ftruncate(fd, 10); os.truncate("a", 5); os.fdatasync(fd); os.fchmod(fd, 0o6); os.chmod("a", 0o640); os.umask(0o22)
for command in (fcntl.F_GETFD, fcntl.F_GETFL, 99):
    try: fcntl.fcntl(fd, command)
    except OSError: pass
fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 2)
os.dup(fd); os.dup2(fd, 40); os.dup2(fd, 41, inheritable=False); os.close(40); os.close(41)
os.stat("a"); os.symlink("a", "l"); os.readlink("l"); os.link("a", "h"); os.replace("h", "i"); os.utime("a", (1, 2))
os.access("a", os.R_OK | os.W_OK); os.posix_fallocate(fd, 0, 100); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
d = os.open(".", os.O_RDONLY | os.O_DIRECTORY); os.unlink("i", dir_fd=d); os.fchdir(d); os.listdir()
for path in ("nope", "a/b", "x" * 300):
    try: os.stat(path)
    except OSError: pass
os.eventfd_read(os.eventfd(3, os.EFD_NONBLOCK | os.EFD_CLOEXEC)); os.memfd_create("name", os.MFD_CLOEXEC)
os.unlink("l"); os.unlink("a"); os.chdir("/"); os.rmdir("/tmp/strace-d")
os._exit(0)
""",
        "exited with 0",
    ),
    "sockets": (
        "import encodings.idna, fcntl, socket, struct, select, termios\n"
        + MARK
        + """
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(5)
c = socket.socket(); c.connect(s.getsockname()); a, _ = s.accept(); c.getpeername()
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 2))
c.send(b"abc"); a.recv(10); a.sendall(b"x" * 100)
fcntl.ioctl(c, termios.FIONREAD, bytearray(4)); c.recv(50, socket.MSG_PEEK); c.sendmsg([b"ab", b"cd"]); a.recvmsg(100)
c.shutdown(socket.SHUT_WR); a.recv(5); a.setblocking(False)
u, v = socket.socketpair(); u.send(b"q"); v.recv(2); u.setblocking(False)
try: u.recv(1)
except OSError: pass
d = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); d.bind(("127.0.0.1", 0)); d.sendto(b"hi", d.getsockname()); d.recvfrom(10)
x = socket.socket(socket.AF_UNIX); x.bind("\\0strace-w"); x.listen(); y = socket.socket(socket.AF_UNIX); y.connect("\\0strace-w")
z, _ = x.accept(); p = select.epoll(); p.register(z, select.EPOLLIN); y.send(b"1"); p.poll(1); p.unregister(z)
six = socket.socket(socket.AF_INET6); six.bind(("::1", 0)); select.select([z], [y], [], 1)
t = socket.socket()
try: t.connect(("127.0.0.1", 1))
except OSError: pass
os._exit(0)
""",
        "exited with 0",
    ),
}
#: Of memory, and of threads' hand-over: not of the program's doing.
OTHERS = re.compile(r"(<\.\.\. )?(mmap|munmap|mprotect|brk|futex|madvise|clock_gettime|rseq|strace: Process)\b")


def comparable(text: str) -> list[str]:
    """Lines behind MARK without what differs from run to run: addresses, ids, ports, times; and without strace's comments."""
    found = []
    for line in lines_of(text):
        if OTHERS.match(line):
            continue
        line = re.sub(r"0x[0-9a-f]{6,}", "ADDRESS", re.sub(r" /\*.*?\*/", "", line))
        line = re.sub(r"tv_sec=\d{4,}, tv_nsec=\d+", "TIME", re.sub(r", left {[^}]*}", "", line))
        line = re.sub(r"^(poll\(.*, )\d+\)", r"\1N)", line)
        line = re.sub(r"tv_(n|u)sec=\d{3,}", "FRACTION", line)
        line = re.sub(r"\b(si_pid|si_uid)=\d+", r"\1=N", re.sub(r"^(getp?pid|gettid)\(\) = \d+", r"\1() = N", line))
        found.append(re.sub(r"st_size=\d+", "st_size=N", re.sub(r"^(t?g?kill)\((\d+, )+", r"\1(N, ", line)))
    return found[found.index('rmdir("/tmp/strace-mark") = 0') :]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_strace_says_of_signals_and_ends(name: str, agentfw: Agentfw, tmp_path: Path) -> None:
    """Up to three times: on a busy machine a signal may come before the call that it is to interrupt."""
    program, end = PROGRAMS[name]
    (tmp_path / "agent.py").write_text(program)
    for last in (False, False, True):
        agentfw("run", "--no-config", "--plugins", "", "--strace", "--strace-out", "calls", "agent.py")
        ours = (tmp_path / "calls").read_text()
        assert ours.endswith(f"+++ {end} +++\n")
        theirs = re.sub(r"(?m)^\d+ +", "", traced(tmp_path, [sys.executable, "-I", "agent.py"]))
        a, b = comparable(ours), comparable(theirs.replace(" (core dumped)", ""))
        if name == "fault with a handler":  # it writes addresses, and a traceback
            a, b = ([line for line in lines if not line.startswith("write(")] for lines in (a, b))
        if a == b:
            return
        assert not last or a == b


def test_stderr_summary_and_threads(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT.replace("os._exit(7)", "print('out'); import sys; sys.stderr.write('err\\n')"))
    done = agentfw("run", "--no-config", "--plugins", "", "--strace=summary", "agent.py")
    assert (done.returncode, done.stdout) == (0, "out\n")
    rows = {line.split()[-1]: line.split() for line in done.stderr.splitlines() if "host" in line or "shim" in line}
    assert rows["openat"][-3:-1] == ["1", "host"] and "listen" in rows and "clone3" in rows
    assert "err\n" in done.stderr and "100.00" in done.stderr


def test_a_call_in_which_a_program_hangs(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("import os\nos.read(os.pipe()[0], 1)\n")
    done = agentfw("run", "--no-config", "--plugins", "", "--strace", "--timeout", "1.5", "agent.py")
    assert done.returncode == 124
    assert re.search(r"^read\(\d+,  <unfinished \.\.\.>$", done.stderr, re.MULTILINE)
    assert re.search(r"^<\.\.\. read resumed> <unfinished \.\.\.>\) = \?$", done.stderr, re.MULTILINE)
    assert "+++ killed (killed) +++" in done.stderr


def test_several_agents_and_signals(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    done = agentfw("run", "--no-config", "--plugins", "", "--strace", "--strace-calls", "kill", "-n", "3", "agent.py")
    assert done.returncode == 137
    for number in (1, 2, 3):
        assert re.search(rf"^\[agent-{number}\] kill\(\d+, SIGKILL", done.stderr, re.MULTILINE), done.stderr
        assert f"[agent-{number}] +++ killed by SIGKILL +++" in done.stderr


def test_options(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("")
    done = agentfw("run", "--strace-calls", "opne", "agent.py")
    assert done.returncode == 125 and "no system call is named `opne`" in done.stderr
    done = agentfw("run", "--strace-out", "none/x", "agent.py")
    assert done.returncode == 125 and "none/x: No such file or directory" in done.stderr
