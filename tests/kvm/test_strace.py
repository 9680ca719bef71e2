"""`agentfw run --strace` with real VMs, and beside the real strace."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Agentfw

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
    strace = shutil.which("strace")
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
    if strace is None:
        pytest.skip("strace is not installed: not compared with it (apt install strace)")
    native = tmp_path / "native"
    command = [strace, "-f", "-o", str(native), "-e", f"trace={NAMES}", sys.executable, "-I", "agent.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    if not native.exists() or "ptrace" in ended.stderr:
        pytest.skip(f"strace cannot trace here: {ended.stderr.strip()[:100]}")
    theirs = [re.sub(r"^\d+ +", "", line) for line in native.read_text().splitlines()]
    assert body(lines_of(ours)) == body(lines_of("\n".join(theirs)))


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
    assert re.search(r"^read\(\d+ <unfinished \.\.\.>$", done.stderr, re.MULTILINE)
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
