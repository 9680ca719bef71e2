"""`agentfw run` with real VMs: streams, ends, signals, limits, what is visible. Nothing may be left running by any of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Agentfw

from ..conftest import COMMAND
from ..processes import tell

pytestmark = pytest.mark.kvm

RUN = ("run", "--no-config", "--plugins", "")


@pytest.fixture
def started(
    agentfw_environment: dict[str, str], tmp_path: Path, nothing_left: None
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`agentfw` in the background, its output in pipes; killed after the test if need be."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([*COMMAND, *arguments], cwd=tmp_path, env=agentfw_environment, stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


# ---- streams


def test_bytes_pass_untouched_both_ways(agentfw_environment: dict[str, str], tmp_path: Path, nothing_left: None) -> None:
    data = os.urandom(3_000_000)
    code = "import sys; b = sys.stdin.buffer.read(); sys.stdout.buffer.write(b); sys.stderr.buffer.write(b[::-1])"
    done = subprocess.run(
        [*COMMAND, *RUN, "-c", code], input=data, cwd=tmp_path, env=agentfw_environment, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout == data, done.stderr == data[::-1]) == (0, True, True)


def test_output_comes_while_the_agent_runs(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = started(*RUN, "-c", "print('first', flush=True); import sys; sys.stdin.readline(); print('last')")
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"first\n"
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"last\n"
    assert process.wait(30) == 0


def test_a_reader_that_goes_away_stops_the_agent(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = started(*RUN, "-c", "while True: print('y' * 100)")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1000)
    process.stdout.close()
    assert process.wait(30) == 1
    assert b"BrokenPipeError" in process.stderr.read()


def test_a_reader_that_is_slow_loses_nothing(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    code = "import sys, hashlib; b = bytes(range(256)) * 20000; sys.stdout.buffer.write(b); print(hashlib.sha256(b).hexdigest(), file=sys.stderr)"
    process = started(*RUN, "-c", code)
    assert process.stdout is not None and process.stderr is not None
    digest = hashlib.sha256()
    while part := process.stdout.read(250_000):
        digest.update(part)
        time.sleep(0.01)
    assert process.wait(30) == 0 and process.stderr.read().decode().strip() == digest.hexdigest()


def test_the_last_output_before_a_death_is_shown(agentfw: Agentfw) -> None:
    done = agentfw(*RUN, "-c", "import os, sys; sys.stdout.write('x' * 200000); sys.stdout.flush(); os.kill(os.getpid(), 9)")
    assert (len(done.stdout), done.returncode) == (200000, 137)


# ---- ends


def test_faults_are_explained(agentfw: Agentfw) -> None:
    done = agentfw(*RUN, "-c", "import ctypes; print('before', flush=True); ctypes.string_at(0)")
    assert done.stdout == "before\n" and done.returncode == 128 + signal.SIGSEGV
    assert (
        done.stderr.startswith("error: killed by SIGSEGV at 0x")
        and "libc.so.6" in done.stderr
        and len(done.stderr.splitlines()) == 1
    )
    assert agentfw(*RUN, "-c", "import os; os.abort()").returncode == 128 + signal.SIGABRT


def test_faulthandler_works(agentfw: Agentfw) -> None:
    done = agentfw(*RUN, "-c", "import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)")
    assert "Fatal Python error: Segmentation fault" in done.stderr and done.returncode == 139


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(1000)", "import threading; threading.Event().wait()",
                                  "import sys; sys.stdin.read()", "import signal; signal.pause()"])  # fmt: skip
def test_time_limit(started: Callable[..., subprocess.Popen[bytes]], code: str) -> None:
    process = started(*RUN, "--timeout", "1s", "-c", f"print('begun', flush=True)\n{code}")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read() == b"begun\n"
    assert process.wait(30) == 124
    assert process.stderr.read().startswith(b"error: timed out after 1 s\n")


def test_memory_limit(agentfw: Agentfw) -> None:
    code = "try:\n    x = bytearray(400 << 20)\nexcept MemoryError:\n    print('refused')\ny = bytearray(40 << 20); print(len(y))"
    done = agentfw(*RUN, "--memory", "256M", "-c", code)
    assert (done.stdout, done.stderr, done.returncode) == ("refused\n41943040\n", "", 0)
    done = agentfw(*RUN, "--memory", "256M", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))")
    assert done.stderr.endswith("MemoryError\n") and done.returncode == 1


def test_unknown_system_calls_and_forks_fail_in_the_guest(agentfw: Agentfw) -> None:
    code = """if True:
        import ctypes, os, subprocess
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.syscall(9999), os.strerror(ctypes.get_errno()))
        import posix
        spawns = [lambda: spawn("/bin/true", ["true"], {}) for spawn in (posix.posix_spawnp, posix.execve)]
        for start in (lambda: subprocess.run(["true"]), os.fork, *spawns, lambda: os.system("true")):
            try:
                print("worked", start())
            except OSError as error:
                print(error.strerror)
    """
    done = agentfw(*RUN, "--json", "-c", code)
    (agent,) = json.loads(done.stdout)["agents"]
    unknown, *refused = agent["stdout"].splitlines()[:5]
    assert unknown == "-1 Function not implemented"
    for line in refused:
        assert line.startswith("a guest of agentfw is one process: no fork, no exec ("), line
        assert all(word in line for word in ("threads", "asyncio", "agentfw submit", "agentfw.Pool", "fork)"))
    assert agent["vm"]["n_enosys"] >= 1 and agent["status"] == 0


WRONG_ARGUMENTS = r"""
import _posixsubprocess, inspect, os, pathlib
class Spawner:
    spawn = os.posix_spawn
print(inspect.signature(os.execv), os.posix_spawn.__text_signature__, os.fork.__name__)
env = {"A": "1"}
for call in (
    lambda: os.fork(1), lambda: os.execv("x", []), lambda: os.execv("x", ["", "y"]), lambda: os.execve("x", ["x\0"], env),
    lambda: os.execve("x", ["x"], {"A=": "1"}), lambda: os.execve("x", ["x"], {"A": 1}), lambda: os.execve(1.5, ["x"], env),
    lambda: os.posix_spawn("x", ["x"], env, file_actions=[None]), lambda: os.posix_spawn("x", ["x"], env, setsigmask=["a"]),
    lambda: os.posix_spawn("x", "x", env), lambda: Spawner().spawn("x", ["x"], {"A": 1}), lambda: _posixsubprocess.fork_exec(1), lambda: os.fork(),
    lambda: os.execv("x", ["x", ""]), lambda: os.execve(pathlib.Path("x"), (b"x",), os.environb),
    lambda: os.posix_spawn("x", ["x"], os.environ, setpgroup=0),
):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, "one process" if "is one process" in str(error) else error, flush=True)
"""


def test_wrong_arguments_of_fork_and_exec_are_told_as_natively(agentfw: Agentfw) -> None:
    done = agentfw(*RUN, "-c", WRONG_ARGUMENTS)
    refused = 4
    lines = done.stdout.splitlines()
    assert lines[-refused:] == ["OSError one process"] * refused and done.returncode == 0, done.stdout + done.stderr
    code = WRONG_ARGUMENTS.replace("lambda: os.fork(),", "")
    native = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert native.stdout.splitlines()[: len(lines) - refused] == lines[:-refused]


#: What a guest has not, by the number of the call: ENOSYS, as of a kernel without it, so that libraries take another way; EPERM
#: where Linux would want a privilege of it.
REFUSED = """
57 fork ENOSYS 58 vfork ENOSYS 59 execve ENOSYS 322 execveat ENOSYS 101 ptrace ENOSYS 272 unshare ENOSYS 308 setns ENOSYS
425 io_uring_setup ENOSYS 323 userfaultfd ENOSYS 253 inotify_init ENOSYS 294 inotify_init1 ENOSYS 300 fanotify_init ENOSYS
298 perf_event_open ENOSYS 248 add_key ENOSYS 250 keyctl ENOSYS 321 bpf ENOSYS 289 signalfd4 ENOSYS 434 pidfd_open ENOSYS
310 process_vm_readv ENOSYS 29 shmget ENOSYS 64 semget ENOSYS 68 msgget ENOSYS 240 mq_open ENOSYS 222 timer_create ENOSYS
206 io_setup ENOSYS 444 landlock_create_ruleset ENOSYS 165 mount EPERM 166 umount2 EPERM 155 pivot_root EPERM 161 chroot EPERM
169 reboot EPERM 175 init_module EPERM 170 sethostname EPERM 227 clock_settime EPERM 105 setuid EPERM
"""
ASK_FOR_ALL = r"""
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
words = sys.argv[1].split()
for number, name, expected in zip(words[::3], words[1::3], words[2::3]):
    ctypes.set_errno(0)
    path = b"/tmp" if name in ("mount", "umount2", "chroot") else 0
    result = libc.syscall(int(number), path, b"/tmp", b"tmpfs", 0, 0, 0)
    if (result, errno.errorcode.get(ctypes.get_errno())) != (-1, expected):
        print(name, result, errno.errorcode.get(ctypes.get_errno()))
for kind, expected in (((2, 3, 1), "EPERM"), ((2, 2, 1), "EACCES"), ((17, 3, 0), "EAFNOSUPPORT"), ((16, 3, 0), "EAFNOSUPPORT")):
    try:
        socket.socket(*kind)
    except OSError as error:
        if errno.errorcode[error.errno] == expected:
            continue
    print(kind)
for data in (b"\x7fELF\x02\x01\x01", b"hello", b"\x7fELF\x02\x02\x01" + bytes(300)):  # half a file, none, another machine's
    with open("/tmp/x.so", "wb") as file:
        file.write(data)
    try:
        print(ctypes.CDLL("/tmp/x.so"))
    except OSError as error:
        assert str(error).startswith("/tmp/x.so: "), error
try:
    os.openpty()
except FileNotFoundError:
    print("end")
"""


def test_what_a_guest_has_not_is_refused_as_linux_does(agentfw: Agentfw) -> None:
    done = agentfw(*RUN, "-c", ASK_FOR_ALL, REFUSED)
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr


# ---- signals


def test_ctrl_c_is_a_keyboard_interrupt(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    code = "import time\ntry:\n    print('ready', flush=True); time.sleep(1000)\nexcept KeyboardInterrupt:\n    print('caught'); raise SystemExit(3)"
    process = started(*RUN, "-c", code)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == b"caught\n" and process.wait(30) == 3


@pytest.mark.parametrize(
    "busy", ["time.sleep(1000)", "[i for i in iter(int, 1)]", "threading.Event().wait()", "asyncio.run(asyncio.sleep(1000))"]
)
def test_ctrl_c_that_nobody_catches(started: Callable[..., subprocess.Popen[bytes]], busy: str) -> None:
    process = started(*RUN, "-c", f"import time, threading, asyncio; print('ready', flush=True); {busy}")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    err = process.stderr.read()
    err = err.replace(b"<frozen importlib._bootstrap>", b"")  # Python may be importing still
    assert err.endswith(b"KeyboardInterrupt\n") and b"bootstrap" not in err


def test_the_second_ctrl_c_kills(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGINT, lambda *a: print('no', flush=True))\nprint('ready', flush=True)\nwhile True: time.sleep(1)"
    process = started(*RUN, "-c", code)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"no\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130


def test_ctrl_c_twice_ends_it_even_if_nobody_reads(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = started(*RUN, "-c", "while True: print('y' * 10000)")
    assert process.stdout is not None
    process.stdout.read(100)
    for _ in range(2):
        time.sleep(0.3)
        tell(process, signal.SIGINT)
    assert process.wait(30) == 130


def test_sigterm(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = started(*RUN, "-n", "3", "-c", "import time; print('ready', flush=True); time.sleep(1000)")
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143


def test_killed_outright_it_takes_everything_along(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = started(*RUN, "-n", "3", "-c", "import time; print('ready', flush=True); time.sleep(1000)")
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    process.kill()
    process.wait(30)  # `nothing_left` looks for the cell


def test_a_cell_that_dies_is_our_fault(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = started(*RUN, "-n", "2", "-c", "import time; print('ready', flush=True); time.sleep(1000)")
    assert process.stdout is not None and process.stderr is not None
    for _ in range(2):
        process.stdout.readline()
    (cell,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(cell), signal.SIGKILL)
    assert process.wait(30) == 125
    err = process.stderr.read().decode()
    assert "error: agent-1: the cell ended by signal 9" in err and "Traceback" not in err


# ---- many


def test_many_agents(agentfw: Agentfw) -> None:
    code = "import os, random, sys; print(os.getpid(), random.random()); sys.exit(os.getpid() % 2)"
    done = agentfw(*RUN, "-n", "12", "--json", "-c", code)
    document = json.loads(done.stdout)
    agents = document["agents"]
    assert [agent["name"] for agent in agents] == [f"agent-{number}" for number in range(1, 13)]
    assert len({agent["stdout"].split()[0] for agent in agents}) == 12 == len({agent["stdout"].split()[1] for agent in agents})
    assert all(agent["status"] == int(agent["stdout"].split()[0]) % 2 for agent in agents)
    assert done.returncode == max(agent["status"] for agent in agents)
    assert document["vms"]["sites"] > 100 and done.stderr == ""


def test_lines_of_many_agents_stay_whole(agentfw: Agentfw) -> None:
    done = agentfw(*RUN, "-n", "6", "-c", "import os\nfor i in range(200): print(str(os.getpid()) * 20)")
    lines = done.stdout.splitlines()
    assert len(lines) == 1200 and all(line == line[:4] * 20 for line in lines)


def test_more_agents_than_a_cell_holds(agentfw: Agentfw) -> None:
    done = agentfw(*RUN, "-n", "70", "-c", "print('here')")
    assert (done.stdout, done.returncode) == ("here\n" * 70, 0)


def test_a_program_on_stdin_for_all(agentfw: Agentfw) -> None:
    assert agentfw(*RUN, "-n", "3", "-", "x", input="import sys; print(sys.argv)").stdout == "['-', 'x']\n" * 3


def test_stats(agentfw: Agentfw) -> None:
    done = agentfw(*RUN, "--stats", "-c", "print('out')")
    assert done.stdout == "out\n"
    rows = dict(line.split("  ", 1) for line in done.stderr.splitlines())
    for name in (
        "system call sites rewritten",
        "backstop hits",
        "VM exits",
        "system calls in the guest",
        "system calls forwarded",
    ):
        assert name in rows
    assert int(rows["system call sites rewritten"].split()[0]) > 100


# ---- what is visible


def test_nothing_else_of_the_host_is_visible(agentfw: Agentfw, agentfw_environment: dict[str, str], tmp_path: Path) -> None:
    home = Path(agentfw_environment["HOME"])
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh/id_rsa").write_text("host secret")
    (tmp_path / "beside.txt").write_text("beside")
    (tmp_path / "escape").symlink_to(home / ".ssh/id_rsa")
    code = f"""
import os
def attempt(path):
    try:
        with open(path) as file:
            return file.read(40)
    except OSError as error:
        return type(error).__name__
print(attempt("beside.txt"))
for path in ("{home}/.ssh/id_rsa", "escape", "/etc/shadow", "/proc/1/environ", "../" * 12 + "etc/shadow", "/proc/self/root/etc/shadow",
             "/root/.bashrc", "/etc/machine-id", "/sys/class/net/lo/address", "/dev/kvm"):
    print(path, attempt(path))
try:
    open("new.txt", "w")
except OSError as error:
    print(error.strerror)
open("/tmp/mine", "w").write("x"); os.makedirs(os.path.expanduser("~/.cache/x"))
print(os.environ.get("HOST_ONLY"), os.getuid(), os.path.expanduser("~"), os.listdir("/tmp"))
"""
    (tmp_path / "look.py").write_text(code)
    done = agentfw(*RUN, "look.py", env={"HOST_ONLY": "1"})
    first, *middle, new, last = done.stdout.splitlines()
    assert first == "beside" and "host secret" not in done.stdout and "root:" not in done.stdout, done
    for line in middle:
        assert line.split()[-1] in ("FileNotFoundError", "PermissionError", "NotADirectoryError", "OSError"), line
    assert new == "Read-only file system"
    assert last.startswith("None 1000 /home/agent [")
    assert not (tmp_path / "new.txt").exists() and not Path("/tmp/mine").exists()


def test_mounts(agentfw: Agentfw, tmp_path: Path) -> None:
    for name in ("in", "out", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "in/a.txt").write_text("given")
    (tmp_path / "work/x.py").write_text("""if True:
        print(open("/data/a.txt").read())
        open("/out/b.txt", "w").write("made")
        try:
            open("/data/c.txt", "w")
        except OSError as error:
            print(error.strerror)
    """)
    done = agentfw(*RUN, "--mount", "in:/data", "--mount", f"{tmp_path}/out:/out:rw", "work/x.py")
    assert (done.stdout, done.returncode) == ("given\nRead-only file system\n", 0), done.stderr
    assert (tmp_path / "out/b.txt").read_text() == "made" and not (tmp_path / "in/c.txt").exists()


def test_environment(agentfw: Agentfw) -> None:
    code = "import os, sys; print(os.environ['A'], os.environ['HOST'], 'SECRET' in os.environ, sys.flags.utf8_mode, os.environ['PYTHONUTF8'])"
    done = agentfw(*RUN, "--env", "A=1=2", "--env", "HOST", "--env", "PYTHONUTF8=1", "-c", code, env={"HOST": "h", "SECRET": "s"})
    assert done.stdout == "1=2 h False 1 1\n"


def test_a_script_in_the_home_directory_is_all_that_is_seen_of_it(agentfw: Agentfw, agentfw_environment: dict[str, str]) -> None:
    home = Path(agentfw_environment["HOME"])
    (home / "lone.py").write_text(
        "import os; print(os.listdir('.'), os.getcwd() == os.path.dirname(os.path.abspath(__file__)))\n"
    )
    done = agentfw(*RUN, "lone.py", cwd=home)
    assert done.stdout == "['lone.py'] True\n"
    assert done.stderr == f"note: the agent sees lone.py only, not the rest of {home}: it is a home directory\n"
    assert agentfw(*RUN, "-q", "lone.py", cwd=home).stderr == ""


# ---- templates


def test_the_template_is_made_once(agentfw: Agentfw, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    both = [agentfw(*RUN, "-c", "print(1)", env=cache) for _ in range(2)]
    assert [done.stdout for done in both] == ["1\n", "1\n"]
    (snapshot,) = (tmp_path / "cache/agentfw/snapshots").glob("*.snapshot")
    made = snapshot.stat().st_ino
    agentfw(*RUN, "-c", "print(1)", env=cache)
    assert snapshot.stat().st_ino == made and snapshot.stat().st_mode & 0o777 == 0o400
    assert agentfw("cache", "clear", env=cache).stdout.startswith("removed 1 snapshot, ")
    assert not snapshot.exists()


def test_two_commands_make_one_template(agentfw_environment: dict[str, str], tmp_path: Path, nothing_left: None) -> None:
    environment = {**agentfw_environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    both = [subprocess.Popen([*COMMAND, *RUN, "-c", "print(1)"], env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE) for _ in range(2)]  # fmt: skip
    assert [process.communicate(timeout=60)[0] for process in both] == [b"1\n", b"1\n"]
    assert len(list((tmp_path / "cache/agentfw/snapshots").glob("*.snapshot"))) == 1


def test_a_damaged_snapshot_is_not_run(agentfw: Agentfw, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    agentfw(*RUN, "-c", "print(1)", env=cache)
    (snapshot,) = (tmp_path / "cache/agentfw/snapshots").glob("*.snapshot")
    snapshot.chmod(0o600)
    data = bytearray(snapshot.read_bytes())
    data[200] ^= 0xFF
    snapshot.write_bytes(data)
    done = agentfw(*RUN, "-c", "print(1)", env=cache)
    assert (done.stdout, done.returncode) == ("", 125)
    assert done.stderr.startswith("error: snapshot: the file is damaged") and "hint: run it again" in done.stderr
    assert agentfw(*RUN, "-c", "print(1)", env=cache).stdout == "1\n"


def test_preload(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import sys; print('sqlite3' in sys.modules, 'turtle' in sys.modules)")
    assert agentfw(*RUN, "--preload", "sqlite3", "x.py").stdout == "True False\n"
    done = agentfw(*RUN, "--preload", "no_such_module", "x.py")
    assert done.returncode == 126
    error, hint = done.stderr.split("\n\nhint: ")
    assert error == "error: cannot preload `no_such_module`: ModuleNotFoundError: No module named 'no_such_module'"
    assert hint.startswith("the agents' Python is /") and hint.endswith("install it there, or name another with `--python`\n")


def test_a_rehearsal_tells_which_pages_to_populate(agentfw: Agentfw, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert agentfw("run", "-c", "print(1)", env=cache).stdout == "1\n"
    (hot,) = (tmp_path / "cache/agentfw/snapshots").glob("*.hot")
    runs = list(struct.iter_unpack("<II", hot.read_bytes()))
    parts: list[list[tuple[int, int]]] = [
        []
    ]  # until it waits for its job, its job's, and four of imports, the more the more was imported
    for run in runs:
        parts[-1].append(run) if run != (0, 0) else parts.append([])
    assert len(parts) == 7 and not parts.pop()
    for part in parts:
        assert 30 < sum(count for _, count in part) < 2500 and part == sorted(part)
    pages = [page for part in parts for first, count in part for page in range(first, first + count)]
    assert len(pages) - len(set(pages)) < len(pages) / 4  # (what lies between two may be in two sets)
    noise = os.urandom(8 * 500)  # a damaged list costs time, nothing else
    hot.write_bytes(noise)
    assert agentfw("run", "-c", "import sqlite3, unittest.mock; print(2)", env=cache).stdout == "2\n"
    assert hot.read_bytes() == noise
    hot.unlink()
    assert agentfw("run", "-c", "print(3)", env=cache).stdout == "3\n" and hot.exists()


def test_agents_know_their_number(agentfw: Agentfw) -> None:
    code = "import os; print(os.environ['AGENTFW_AGENT_INDEX'], 'of', os.environ['AGENTFW_AGENT_COUNT'])"
    assert sorted(agentfw("run", "-n", 3, "-c", code).stdout.splitlines()) == ["1 of 3", "2 of 3", "3 of 3"]
    alone = agentfw("run", "-c", "import os; print([name for name in os.environ if 'AGENTFW' in name])")
    assert alone.stdout == "[]\n"


def test_labels_reach_plugins(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(
        "import sys\nfrom agentfw import hookimpl\n"
        "class Plugin:\n    name = 'tell'\n    config_type = None\n"
        "    @hookimpl\n    def exit(self, agent, report): print(sorted(agent.labels.items()), file=sys.stderr)\n"
    )
    done = agentfw("run", "-q", "--plugins", "./tell.py", "--label", "team=red", "--label", "run=7", "-c", "pass")
    assert (done.returncode, done.stderr) == (0, "[('run', '7'), ('team', 'red')]\n")
    for bad in ("team", "=x", "a b=c"):
        done = agentfw("run", "--label", bad, "-c", "pass")
        assert done.returncode == 125 and f"bad label `{bad}`" in done.stderr


def test_mounts_below_links_of_the_guests(agentfw: Agentfw, tmp_path: Path) -> None:
    """/lib leads to /usr/lib in the guest, too; what is mounted below it is there by both names."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()
    code = "import os; print(os.listdir('/lib/foo'), os.path.samefile('/lib/foo', os.path.realpath('/lib/foo')))"
    done = agentfw("run", "--no-config", "--plugins", "", "--mount", "data:/lib/foo", "-c", code)
    assert (done.stdout, done.stderr, done.returncode) == ("['file'] True\n", "", 0)


def test_what_plugins_print_is_no_data(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text("print('loading')\nclass Plugin:\n    def __init__(self): print('made')\n")
    done = agentfw("run", "-q", "--no-config", "--plugins", "./chatty.py", "--json", "-c", "print('said')")
    assert json.loads(done.stdout)["agents"][0]["stdout"] == "said\n"
    assert done.stderr == "loading\nmade\n"


def test_output_that_cannot_be_written_is_told(agentfw_environment: dict[str, str], tmp_path: Path, nothing_left: None) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*COMMAND, *RUN, "-c", "print(1)"], cwd=tmp_path, timeout=60, env=agentfw_environment,
                              stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert done.returncode and "Traceback" not in done.stderr.split("error: ")[-1]
    assert "cannot write to standard output: No space left on device" in done.stderr


@pytest.mark.parametrize("how", ["time limit", "Ctrl-C twice"])
def test_a_cell_that_hangs_is_killed(started: Callable[..., subprocess.Popen[bytes]], how: str) -> None:
    """Stopped here; a host's file system that hangs looks the same."""
    limit = ("--timeout", "3") if how == "time limit" else ()
    process = started("run", *limit, "-c", "import time; print('up', flush=True); time.sleep(60)")
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        for pid in (task / "children").read_text().split():
            os.kill(int(pid), signal.SIGSTOP)
    if not limit:
        tell(process, signal.SIGINT)
        time.sleep(0.3)
        tell(process, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == (124 if limit else 130)


def test_two_hundred_threads_in_the_default_memory(agentfw: Agentfw) -> None:
    code = """
import threading
gate, done = threading.Event(), []
def work(n):
    gate.wait()
    done.append(str(n) * 1000)
threads = [threading.Thread(target=work, args=(n,)) for n in range(200)]
for thread in threads: thread.start()
gate.set()
for thread in threads: thread.join()
print(len(done))
"""
    assert agentfw("run", "-q", "-c", code).stdout == "200\n"


def test_no_policy_is_said(agentfw: Agentfw) -> None:
    assert "without the `policy` plugin" in agentfw("run", "--no-config", "--plugins", "native", "-c", "pass").stderr
    assert "policy" not in agentfw("run", "--no-config", "--plugins", "", "-c", "pass").stderr
    assert "policy" not in agentfw("run", "--no-config", "-c", "pass").stderr


def test_a_denial_is_told_once_with_its_rule(agentfw: Agentfw) -> None:
    code = "import socket\nfor n in range(3):\n    try: socket.getaddrinfo('evil.example', 443)\n    except OSError as error: print(error.errno)\n"
    done = agentfw("run", "--no-config", "-c", code)
    assert done.returncode == 0
    assert done.stderr == "agentfw.relay: agent-1: dns: denied by policy.default: deny: evil.example is not on the allow list\n"
    assert agentfw("run", "-q", "--no-config", "-c", code).stderr == ""


def test_where_agentfw_toml_was_looked_for_is_said_with_the_first_denial(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/agent.py").write_text(
        "import socket\nfor name in 'a.example', 'b.example':\n    try: socket.getaddrinfo(name, 443)\n    except OSError: pass\n"
    )
    note = "note: no agentfw.toml from here upward: agents may connect to nothing"
    assert agentfw("run", "-c", "pass", cwd=tmp_path).stderr == ""
    lines = agentfw("run", "inner/agent.py", cwd=tmp_path).stderr.splitlines()
    assert lines[0] == note and len(lines) == 3, lines
    (tmp_path / "inner/agentfw.toml").write_text("[policy]\nallow = []\n")
    assert agentfw("run", "inner/agent.py", cwd=tmp_path).stderr.splitlines()[0] == (
        f"{note} (for the program's own, say `--config inner/agentfw.toml`)"
    )
    assert "note" not in agentfw("run", "agent.py", cwd=tmp_path / "inner").stderr
