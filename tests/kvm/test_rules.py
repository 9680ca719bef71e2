"""[policy.files] and [policy.syscalls] in real agents."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

PROBE = r"""
import ctypes, errno, os, socket, subprocess, sys, threading

def error(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except OSError as failure:
        return errno.errorcode.get(failure.errno, failure.errno)
    except RuntimeError as failure:
        return str(failure)
    return None

def say(name, value):
    print(f"{name}: {value}")
"""


def run(agentfw: Agentfw, tmp_path: Path, rules: str, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "agentfw.toml").write_text(f"[policy]\ndefault = 'allow'\nallow_addresses = ['127.0.0.0/8']\n{rules}")
    (tmp_path / "agent.py").write_text(PROBE + code)
    return agentfw("run", *options, "agent.py")


def test_files(agentfw: Agentfw, tmp_path: Path) -> None:
    """Through Python's own ways of looking at files; the mount is writable, so that renames could get around the rules."""
    for path in ("work/secrets/deep/key", "work/.env", "work/data/table", "work/pub/a"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"the text of {path}")
    (tmp_path / "work/link").symlink_to("secrets/deep/key")
    rules = """
[policy.files]
hide = ["**/.env"]
deny = ["/box/secrets/**", "/usr/lib/ssl"]
read_only = ["/box/data", "/tmp/fixed"]
"""
    code = """
import mmap, pathlib, shutil, tempfile
os.chdir("/box")
say("walk", sorted(os.path.join(d, f) for d, ds, fs in os.walk(".") for f in [*ds, *fs]))
say("hidden", [error(open, ".env"), os.path.exists(".env"), error(open, ".env", "w"), error(os.stat, "pub/../.env")])
say("denied", [error(open, p) for p in ("secrets/deep/key", "link", "/proc/self/cwd/secrets/deep/key", "pub/../secrets/deep/key")])
d = os.open("pub", os.O_RDONLY)
say("by handle", [error(os.open, "../secrets/deep/key", os.O_RDONLY, dir_fd=d), error(os.open, f"/proc/self/fd/{d}/../link", os.O_RDONLY)])
say("mode", [oct(os.stat("secrets/deep").st_mode & 0o777), os.access("secrets/deep", os.F_OK), os.access("secrets/deep", os.R_OK)])
say("moves", [error(os.rename, "secrets", "other"), error(os.rename, "secrets/deep", "pub/deep"), error(os.link, "secrets/deep/key", "k")])
say("read only", [open("data/table").read()[:8], error(open, "data/table", "a"), error(os.remove, "data/table"), error(os.mkdir, "data/x"),
    error(os.rename, "data", "d"), error(os.truncate, "data/table", 0), error(os.link, "data/table", "t"), error(os.mkdir, "/tmp/fixed")])
with open("data/table", "rb") as f:
    say("map", [mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:3], error(mmap.mmap, f.fileno(), 0)])
open("pub/b", "w").write("new")
os.rename("pub", "public")
say("allowed", [open("public/a").read(), sorted(os.listdir("public")), len(tempfile.mkdtemp()) > 0])
"""
    done = run(agentfw, tmp_path, rules, code, "--mount", f"{tmp_path}/work:/box:rw", "--stats")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "walk: ['./data', './data/table', './link', './pub', './pub/a', './secrets', './secrets/deep']",
        "hidden: ['ENOENT', False, 'EACCES', 'ENOENT']",
        "denied: ['EACCES', 'EACCES', 'EACCES', 'EACCES']",
        "by handle: ['EACCES', 'EACCES']",
        "mode: ['0o0', True, False]",
        "moves: ['EACCES', 'EACCES', 'EACCES']",
        "read only: ['the text', 'EROFS', 'EROFS', 'EROFS', 'EROFS', 'EROFS', 'EXDEV', 'EROFS']",
        "map: [b'the', 'EACCES']",
        "allowed: ['the text of work/pub/a', ['a', 'b'], True]",
    ]
    assert re.search(r"refused by their rules +\d+ paths, 0 system calls", done.stderr), done.stderr
    assert (tmp_path / "work/public/b").read_text() == "new" and (tmp_path / "work/data/table").read_text()[:8] == "the text"


TELL = """
import sys
from agentfw import hookimpl
class Plugin:
    @hookimpl
    def audit(self, event):
        if event.kind == "denied" and event.rule == "guest_rules":
            print("audit:", event.rule, event.extra["paths"], event.extra["calls"], file=sys.stderr)
"""


def test_system_calls(agentfw: Agentfw, tmp_path: Path) -> None:
    rules = """
[policy.syscalls]
deny = ["symlinkat", "connect", "mkdir", "ptrace", "rmdir"]
advisory = ["clone", "clone3", "timerfd_create"]
"""
    code = """
say("files", [error(os.symlink, "a", "/tmp/s"), error(os.mkdir, "/tmp/d"), error(os.rmdir, "/tmp"), error(os.remove, "/tmp/none")])
tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
say("network", [error(tcp.connect, ("192.0.2.1", 80)), error(udp.sendto, b"x", ("192.0.2.1", 53))])
try:
    say("names", socket.gethostbyname("example.com"))
except OSError as failure:
    say("names", type(failure).__name__)
say("inside", [error(threading.Thread(target=print).start), error(os.kill, os.getpid(), 0)])
say("timerfd", ctypes.CDLL(None, use_errno=True).timerfd_create(0, 0) == -1 and errno.errorcode[ctypes.get_errno()])
a, b = socket.socketpair()
a.send(b"x")
say("pair", b.recv(1))
"""
    (tmp_path / "tell.py").write_text(TELL)
    done = run(agentfw, tmp_path, rules, code, "--plugins", "policy,./tell.py")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^audit: guest_rules 0 [1-9]$", done.stderr, re.MULTILINE), done.stderr
    assert done.stdout.splitlines() == [
        "files: ['EPERM', 'EPERM', 'EPERM', 'ENOENT']",
        "network: ['EPERM', 'EPERM']",
        "names: gaierror",
        'inside: ["can\'t start new thread", None]',
        "timerfd: EPERM",
        "pair: b'x'",
    ]


def test_what_may_be_written(agentfw: Agentfw, tmp_path: Path) -> None:
    """Each run has it anew."""
    (tmp_path / "work").mkdir()
    code = """
with open("/box/a", "wb", buffering=0) as f:
    say("written", [f.write(b"x" * 1000), f.write(b"x" * 1000), error(f.write, b"x")])
say("made", [error(os.mkdir, "/box/d"), error(os.mkdir, "/box/e"), error(os.mkdir, "/tmp/e")])
os.rmdir("/box/d"); os.unlink("/box/a")
"""
    for _ in range(2):
        done = run(
            agentfw,
            tmp_path,
            "[policy.files]\nwrite_bytes = '1536'\ncreates = 2",
            code,
            "--mount",
            f"{tmp_path}/work:/box:rw",
        )
        assert done.stdout.splitlines() == ["written: [1000, 536, 'EDQUOT']", "made: [None, 'EDQUOT', None]"], done.stderr


def test_enosys_and_killed(agentfw: Agentfw, tmp_path: Path) -> None:
    done = run(
        agentfw,
        tmp_path,
        "[policy.syscalls]\ndeny = ['link']\nkill = ['symlink', 'unlink']\nerror = 'ENOSYS'",
        """
open("/tmp/a", "w").close()
os.mkdir("/tmp/d"); os.rmdir("/tmp/d")
print(error(os.link, "/tmp/a", "/tmp/b"), flush=True)
os.symlink("a", "/tmp/s")
print("survived")
""",
    )
    assert (done.returncode, done.stdout) == (128 + 31, "ENOSYS\n")
    assert "SIGSYS" in done.stderr and "symlink()" in done.stderr


def test_an_agent_without_its_rules_does_not_start(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from agentfw import hookimpl\nclass Plugin:\n    @hookimpl\n    def guest_rules(self, agent):\n        return 1 / 0\n"
    )
    (tmp_path / "agent.py").write_text("print('ran')")
    done = agentfw("run", "--plugins", "policy,./broken.py", "agent.py")
    assert (done.returncode, done.stdout) == (125, "")
    assert "plugin `broken` failed in `guest_rules`: ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("[policy.files]\ndeny = ['/a', 'secrets']", "agentfw.toml:5: policy.files.deny.1: `secrets`: begins neither"),
        (
            "[policy.syscalls]\nkill = ['symlnk']",
            "agentfw.toml:5: policy.syscalls.kill.0: Linux has no system call `symlnk` (`symlink`?)",
        ),
        ("[policy.syscalls]\ndeny = ['mmap']", "policy.syscalls.deny.0: `mmap` does not leave the virtual machine"),
        ("[policy.syscalls]\nerror = 'EIO'", 'policy.syscalls.error: expected "ENOSYS" | "EPERM", got "EIO"'),
        ("[policy.files]\nwrite = ['/a']", "policy.files.write: unknown key"),
        ("[policy.files]\nwrite_bytes = 'much'", "policy.files.write_bytes: `much` is no size"),
        ("[policy.files]\ncreates = -1", "policy.files.creates: -1: a number of files"),
    ],
)
def test_mistakes_are_told_with_their_key(agentfw: Agentfw, tmp_path: Path, rules: str, message: str) -> None:
    done = run(agentfw, tmp_path, rules, "")
    assert done.returncode == 125 and message in done.stderr, done.stderr
