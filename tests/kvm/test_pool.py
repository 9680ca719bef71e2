"""`agentfw pool` with real VMs, as its users have it: in the background, in the foreground, ended in every way; nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import COMMAND

from ..processes import all_end

pytestmark = pytest.mark.kvm

SMALL = ("--no-config", "--plugins", "", "--workers", "1", "--size", "4", "--idle", "1")
FOREVER = "import time; print('up', flush=True)\nwhile True: time.sleep(60)"

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def environment(agentfw_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    (tmp_path / "run").mkdir()
    return {**agentfw_environment, "XDG_RUNTIME_DIR": str(tmp_path / "run"), "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    def command(*arguments: object, input: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)], input=input, cwd=tmp_path, env={**environment, **more}, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip

    return command


@pytest.fixture
def start(nothing_left: None, environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """A command in the background; `line()` reads its output. The pool's socket and lock must be gone at the end."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments: str) -> subprocess.Popen[str]:
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                [*COMMAND, *arguments], cwd=tmp_path, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin
    assert list((tmp_path / "run").rglob("pool.sock*")) == []


def line(process: subprocess.Popen[str], stream: str = "stdout") -> str:
    return str(getattr(process, stream).readline())


def ready(process: subprocess.Popen[str]) -> str:
    """Its line, once it takes jobs."""
    while not (text := line(process, "stderr")).startswith("pool ready"):
        assert text, process.wait()
    return text


def below(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found |= {child, *below(child)}
    return found


def test_a_daemon_from_start_to_stop(run: Run, start: Start, tmp_path: Path) -> None:
    done = run("pool", "start", "--daemon", "--json", *SMALL)
    assert done.returncode == 0, done
    document = json.loads(done.stdout)
    assert document["socket"] == str(tmp_path / "run/agentfw/pool.sock") and document["workers"] == 1
    assert done.stderr.startswith("pool ready in ") and "1 worker, 1 VM warm" in done.stderr
    assert os.getsid(document["pid"]) == document["pid"]
    try:
        second = run("pool", "start", *SMALL)
        assert second.returncode == 125 and f"(pid {document['pid']})" in second.stderr and not second.stdout

        (tmp_path / "agent.py").write_text(
            "import os, sys; print(os.getcwd(), sorted(os.listdir()), sys.argv[1:], sys.stdin.read()); sys.exit(9)"
        )
        code = "import sys; print(vars(sys.modules['__main__']) is globals(), 'main' in globals())"
        assert run("submit", "--wait", "-c", code).stdout == "True False\n", "code was run in this VM before: it left nothing"
        (tmp_path / "data.txt").write_text("x")
        done = run("submit", "--wait", "--file", "data.txt:d/e.txt", "--stdin", "-", "agent.py", "-x", input="given")
        assert (done.returncode, done.stdout) == (9, "/job ['agent.py', 'd'] ['-x'] given\n"), done

        job = run(
            "submit", "--label", "n=1", "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
        ).stdout.strip()
        assert run("wait", job).returncode == 3
        logs = run("logs", job)
        assert (logs.stdout, logs.stderr) == ("out\n", "err\n")
        assert json.loads(run("ps", "--all", "--label", "n=1", "--json").stdout)["jobs"][0]["status"] == 3

        waiting = start("submit", "--wait", "-c", FOREVER)
        assert line(waiting) == "up\n"
        running = run("ps", "-q").stdout.split()
        assert len(running) == 1 and run("kill", *running).returncode == 0
        assert waiting.wait(20) == 137

        interrupted = start(
            "submit",
            "--wait",
            "-c",
            "import time\ntry: print('up', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: print('caught')",
        )
        assert line(interrupted) == "up\n"
        interrupted.send_signal(signal.SIGINT)
        assert line(interrupted) == "caught\n" and interrupted.wait(20) == 0
        top = run("top", "--once").stdout
        assert top.startswith("pool ready") and "0 running" in top
        pids = {document["pid"], *below(document["pid"])}
        assert len(pids) >= 3  # router, worker, cell
    finally:
        stopped = run("pool", "stop", "--now")
    assert stopped.returncode == 0, stopped
    assert all_end(pids)
    assert "pool ready" in Path(document["log"]).read_text()
    again = run("pool", "status")
    assert again.returncode == 1 and "hint: start one with `agentfw pool start`" in again.stderr


def test_killed_outright_and_started_again(run: Run, start: Start, tmp_path: Path) -> None:
    first = start("pool", "start", *SMALL)
    ready(first)
    waiting = start("submit", "--wait", "-c", FOREVER)
    assert line(waiting) == "up\n"
    pids = below(first.pid)
    first.kill()
    first.wait()
    assert waiting.wait(20) == 125
    assert "went away" in line(waiting, "stderr")
    assert all_end(pids), "workers or cells outlived their router"
    assert run("pool", "status").returncode == 1
    second = start("pool", "start", *SMALL)
    ready(second)
    assert run("submit", "--wait", "-c", "print(2)").stdout == "2\n"

    # A worker that is killed is replaced; a job of its ends as lost, or begins again if it may.
    lost, again = start("submit", "--wait", "-c", FOREVER), start("submit", "--wait", "--retries", "1", "-c", FOREVER)
    assert line(lost) == line(again) == "up\n"
    (worker,) = json.loads(run("pool", "status", "--json").stdout)["pool"]["workers"]
    os.kill(worker["pid"], signal.SIGKILL)
    assert lost.wait(20) == 125 and "worker" in line(lost, "stderr")
    assert line(again) == "up\n"
    assert json.loads(run("ps", "--json").stdout)["jobs"][0]["attempt"] == 2
    assert run("kill", "--all").returncode == 0 and again.wait(20) == 137
    (replaced,) = json.loads(run("pool", "status", "--json").stdout)["pool"]["workers"]
    assert (replaced["state"], replaced["restarts"]) == ("ready", 1) and replaced["pid"] != worker["pid"]
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0


def test_ctrl_c_lets_jobs_end_and_the_second_kills_them(run: Run, start: Start) -> None:
    pool = start("pool", "start", *SMALL)
    ready(pool)
    ending = start(
        "submit", "--wait", "--stdin", "-", "-c", "print('up', flush=True); input(); print('end'); raise SystemExit(4)"
    )
    assert line(ending) == "up\n" and ending.stdin is not None
    pool.send_signal(signal.SIGINT)
    assert line(pool, "stderr") == "1 job may go on for 10 s; press Ctrl-C again to kill them\n"
    refused = run("submit", "-c", "pass")
    assert refused.returncode == 125 and "no more jobs" in refused.stderr
    ending.stdin.write("go\n")
    ending.stdin.close()
    assert line(ending) == "end\n" and ending.wait(20) == 4
    assert pool.wait(20) == 0

    pool = start("pool", "start", *SMALL)
    ready(pool)
    waiting = start("submit", "--wait", "-c", FOREVER)
    assert line(waiting) == "up\n"
    pool.send_signal(signal.SIGINT)
    assert "press Ctrl-C again" in line(pool, "stderr")
    pool.send_signal(signal.SIGINT)
    assert waiting.wait(20) == 137 and pool.wait(20) == 130


def test_what_keeps_a_daemon_from_starting_is_told(run: Run, start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("short\n")
    (tmp_path / "token").chmod(0o600)
    for arguments, said in (
        (["--no-config", "--plugins", "polcy"], "unknown plugin `polcy`"),
        (["--no-config", "--listen", "127.0.0.1:0", "--token-file", "token"], "a token is one line of at least"),
    ):
        done = run("pool", "start", "--daemon", *arguments)
        assert done.returncode == 125 and said in done.stderr and not done.stdout and "Traceback" not in done.stderr, done


def test_over_tcp_and_reloaded(run: Run, start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789-0123456789\n")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "agentfw.toml").write_text('[policy]\nallow = ["a.example"]\n')
    pool = start(
        "pool", "start", "--plugins", "dns,tls,policy", "--workers", "1", "--size", "2", "--idle", "1",
        "--listen", "127.0.0.1:0", "--token-file", "token",
    )  # fmt: skip
    text = line(pool, "stderr")
    assert text.startswith("listening at http://127.0.0.1:"), text
    url = text.split()[-1]
    ready(pool)
    remote = {"AGENTFW_POOL_URL": url, "AGENTFW_POOL_TOKEN_FILE": "token"}
    assert run("submit", "--wait", "-c", "print(5)", **remote).stdout == "5\n"
    (tmp_path / "agentfw.toml").write_text('[policy]\nallow = ["b.example"]\n')
    assert run("pool", "reload", **remote).stderr == "reloaded: policy changed\n"
    (tmp_path / "agentfw.toml").write_text('[policy]\nalow = ["b.example"]\n')
    done = run("pool", "reload")
    assert done.returncode == 125 and "agentfw.toml:2: policy.alow: unknown key" in done.stderr
    allows = '[policy]\nallow = ["c.example"]\n'
    (tmp_path / "agentfw.toml").write_text(f'{allows}[pool.templates.bad]\npreload = ["no_such_module"]\n')
    done = run("pool", "reload")
    assert done.returncode == 125
    assert done.stderr.startswith("error: template `bad`: cannot preload `no_such_module`: ModuleNotFoundError"), done.stderr
    assert run("submit", "--wait", "-c", "print(6)", **remote).stdout == "6\n"
    (tmp_path / "agentfw.toml").write_text('[policy]\nallow = ["c.example"]\n')
    pool.send_signal(signal.SIGHUP)
    while not (text := line(pool, "stderr")).startswith("reloaded"):
        assert text
    assert text == "reloaded: policy changed\n", "none of what was refused is in force"
    done = run("pool", "stop", **remote)
    assert done.returncode == 0 and pool.wait(20) == 0


def test_a_job_is_traced(start: Start, run: Run) -> None:
    pool = start("pool", "start", *SMALL)
    ready(pool)
    traced = (
        "submit",
        "--wait",
        "--strace-calls",
        "mkdir,rmdir",
        "-c",
        "import os; os.mkdir('/tmp/a'); print('out'); os.rmdir('/tmp/a')",
    )
    done = run(*traced)
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert done.stderr == 'mkdir("/tmp/a", 0777) = 0 [host]\nrmdir("/tmp/a") = 0 [host]\n+++ exited with 0 +++\n'
    table = run(*traced[:2], "--strace=summary", *traced[2:]).stderr
    assert table.startswith("% time") and " host  rmdir\n" in table and "mkdir(" not in table
    assert run("submit", "--wait", *traced[4:]).stderr == ""
    wrong = run("submit", "--strace-calls", "opne", "-c", "pass")
    assert wrong.returncode == 125 and "no system call is named `opne`" in wrong.stderr
    pool.send_signal(signal.SIGTERM)
    assert pool.wait(30) == 0
