"""`submit`, `ps`, `logs`, `wait`, `kill`, `top` and `pool status|stop|drain|reload` against the control API over a fake pool."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agentfw.cli import cli, status_of
from agentfw.cli.following import explain
from agentfw.pool.client import HttpBackend
from agentfw.pool.jobs import Job, JobResult, PoolError

from tests.conftest import COMMAND
from tests.dashboard.fake import FakeObservatory
from tests.top.terminal import Terminal

from .support import Served, served


class Pool:
    """A served fake pool in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loop = asyncio.new_event_loop()
        self.found: Served | None = None
        self._up = threading.Event()
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="fake-pool")

    def _run(self) -> None:
        async def body() -> None:
            self._end = asyncio.Event()
            async with served(self.path) as self.found:
                self._up.set()
                await self._end.wait()

        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(body())

    def __enter__(self) -> Pool:
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._end is not None
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    @property
    def backend(self) -> Any:
        assert self.found is not None
        return self.found.backend

    def do(self, body: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(body, self.loop).result(20)

    def submit(self, text: str, **more: Any) -> str:
        return str(self.do(self.backend.submit(Job(mode="code", target=text, **more))).id)

    def wait(self, job_id: str) -> None:
        self.do(self.backend.wait(job_id))


@pytest.fixture
def pool(nothing_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTFW_POOL_SOCKET", str(tmp_path / "s"))
    with Pool(tmp_path / "s") as found:
        yield found


@dataclass
class Done:
    status: int
    out: bytes
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Done]


@pytest.fixture
def command(capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    """A command in this process, which is much quicker than in one of its own."""

    def run(*arguments: object, input: bytes = b"") -> Done:
        kept = os.dup(0)
        with tempfile.TemporaryFile() as file:
            file.write(input)
            file.seek(0)
            os.dup2(file.fileno(), 0)
            try:
                words = [str(argument) for argument in arguments]
                status = status_of(lambda: cli.main(words, prog_name="agentfw", standalone_mode=False), words)
            finally:
                os.dup2(kept, 0)
                os.close(kept)
        out, err = capfdbinary.readouterr()
        return Done(status, out, err.decode())

    return run


# ---- submit


def test_what_is_sent_and_what_comes_back(pool: Pool, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "passed on")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/x.py").write_text(
        "import os, sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())\n"
        "print(sys.argv[1:], os.environ['OURS'], open('a/b.txt').read())\n"
        "print(sorted(os.listdir()), os.listdir('tree'), file=sys.stderr); sys.exit(7)"
    )
    (tmp_path / "b.txt").write_text("beside")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/leaf").write_text("")
    done = command(
        "submit", "--wait", "--file", "b.txt:a/b.txt", "--file", "tree", "--env", "OURS", "--label", "run=7", "--tenant", "t",
        "--stdin", "-", "d/x.py", "--wait", "-n", "ü", input=b"in\xff",
    )  # fmt: skip
    assert done == Done(7, b"in\xff['--wait', '-n', '\xc3\xbc'] passed on beside\n", "['a', 'tree', 'x.py'] ['leaf']\n")
    (info,) = pool.do(pool.backend.jobs())
    assert (info.name, info.labels, info.tenant) == ("x.py", {"run": "7"}, "t")


@pytest.mark.parametrize(
    ("program", "input", "expected"),
    [
        (["-c", "import sys; print(sys.argv)", "a"], b"", b"['-c', 'a']\n"),
        (["-m", "platform", "--terse"], b"", None),
        (["-", "a"], b"import sys; print(sys.argv)", b"['stdin.py', 'a']\n"),
        (["--file", "mod.py", "-m", "mod"], b"", b"a module\n"),
        (["--stdin", "mod.py", "-c", "print(input())"], b"", b"print('a module')\n"),
        (["package"], b"", b"a package\n"),
    ],
)
def test_ways_to_name_a_program(
    pool: Pool, command: Command, tmp_path: Path, program: list[str], input: bytes, expected: bytes | None
) -> None:
    (tmp_path / "mod.py").write_text("print('a module')\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__main__.py").write_text("print('a package')\n")
    done = command("submit", "--wait", *program, input=input)
    assert (done.status, done.err) == (0, "") and done.out == (expected if expected is not None else done.out) and done.out


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        (["d/agent.py"], "hint: `d/helper.py` is not sent by itself: `--file d/helper.py`\n"),
        (["-m", "mod"], "hint: `mod.py` is not sent by itself: `--file mod.py`\n"),
        (["-m", "nowhere_at_all"], ""),
        (["-c", "import mod"], ""),
    ],
)
def test_a_module_that_lies_beside_is_named(pool: Pool, command: Command, tmp_path: Path, program: list[str], hint: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/agent.py").write_text("import helper.inner\n")
    (tmp_path / "d/helper.py").write_text("")
    (tmp_path / "mod.py").write_text("")
    done = command("submit", "--wait", *program)
    assert done.status == 1 and "No module named" in done.err and done.err.endswith(hint) and bool(hint) == ("hint:" in done.err)


def test_ids_and_documents(pool: Pool, command: Command) -> None:
    done = command("submit", "-c", "pass")
    assert done == Done(0, b"j-1\n", "")
    done = command("submit", "-n", "3", "--name", "three", "-c", "import os; print(os.environ['AGENTFW_AGENT_INDEX'])")
    assert done.out == b"j-2\nj-3\nj-4\n"
    assert [info.name for info in pool.do(pool.backend.jobs())][:3] == ["three-3", "three-2", "three-1"]
    document = command("submit", "--json", "-c", "pass").document
    assert document["version"] == 1 and document["jobs"][0]["state"] == "queued" and document["jobs"][0]["status"] is None
    code = "import os, sys; print('o'); print('e', file=sys.stderr); sys.exit(int(os.environ['AGENTFW_AGENT_INDEX']) % 2)"
    done = command("submit", "--wait", "--json", "-n", "4", "-c", code)
    rows = done.document["jobs"]
    assert [row["status"] for row in rows] == [1, 0, 1, 0] and done.status == 1 and not done.err
    assert {(row["stdout"], row["stderr"], row["truncated"]) for row in rows} == {("o\n", "e\n", False)}


def test_lines_of_several_do_not_mix(pool: Pool, command: Command) -> None:
    done = command(
        "submit", "--wait", "-n", "4", "-c", "import os\nfor i in range(300): print(str(os.getpid()) * 9, flush=i % 7 == 0)"
    )
    lines = done.out.splitlines()
    assert len(lines) == 1200 and all(line == line[: len(line) // 9] * 9 for line in lines)


@pytest.mark.parametrize(
    ("options", "code", "status", "said"),
    [
        ([], "import os; os.kill(os.getpid(), 11)", 139, "SIGSEGV"),
        (["--timeout", "300ms"], "import time; time.sleep(60)", 124, "timed out"),
        ([], "import sys; sys.exit(3)", 3, ""),
    ],
)
def test_ends(pool: Pool, command: Command, options: list[str], code: str, status: int, said: str) -> None:
    done = command("submit", "--wait", *options, "-c", code)
    assert done.status == status and said in done.err and bool(said) == bool(done.err) and not done.out


def test_which_limit_it_was() -> None:
    result = JobResult(kind="timeout", text="CPU time: it used the 1.000 s that it may")
    assert "cpu_seconds" in explain(result)[1]
    assert "--timeout" in explain(msgspec.structs.replace(result, text="timed out after 5 s"))[1]


def test_a_full_pool_says_how_many_it_took(pool: Pool, command: Command) -> None:
    pool.backend.limit = 2
    done = command("submit", "-n", "5", "-c", "pass")
    assert done.status == 125 and done.out == b"j-1\nj-2\n" and "2 of 5 were taken" in done.err
    done = command("submit", "--json", "-n", "5", "-c", "pass")
    assert done.status == 125 and done.document["jobs"] == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["submit"], 125, "no program"),
        (["submit", "-m"], 125, "no program"),
        (["submit", "none.py"], 127, "script `none.py` not found"),
        (["submit", "folder"], 126, "without a `__main__.py`"),
        (["submit", "--file", "none", "-c", "pass"], 127, "file `none` not found"),
        (["submit", "--file", "a.txt:", "-c", "pass"], 125, "bad file"),
        (["submit", "--file", "a.txt:/etc/x", "-c", "pass"], 125, "bad path of a file"),
        (["submit", "--file", "a.txt:../x", "-c", "pass"], 125, "bad path of a file"),
        (["submit", "--env", "=x", "-c", "pass"], 125, "bad variable"),
        (["submit", "--label", "x", "-c", "pass"], 125, "bad label"),
        (["submit", "--label", "tenant=x", "-c", "pass"], 125, "is a field of the job"),
        (["submit", "--tenant", "../x", "-c", "pass"], 125, "expected letters, digits, `.`, `_`, `-`, at most 63 - at `tenant`"),
        (["submit", "--timeout", "soon", "-c", "pass"], 125, "is no time"),
        (["submit", "--retries", "x", "-c", "pass"], 125, "retries"),
        (["submit", "--stdin", "none", "-c", "pass"], 126, "cannot read `none`"),
        (["submit", "--stdin", "-", "-"], 125, "standard input is the program"),
        (["submit", "--socket", "s", "--url", "http://127.0.0.1:1", "-c", "pass"], 125, "name two pools"),
        (["ps", "--url", "http://127.0.0.1:1"], 125, "wants a token"),
        (["ps", "--url", "http://127.0.0.1:1", "--token-file", "none"], 125, "cannot be read"),
        (["ps", "--state", "lost"], 2, "lost"),
        (["logs", "j-9"], 125, "no such job: `j-9`"),
        (["logs"], 2, "missing argument"),
        (["wait"], 125, "no job: name ids"),
        (["wait", "none"], 125, "no such job"),
        (["kill"], 2, "name ids, or `--all`"),
        (["kill", "j-1", "--all"], 2, "not both"),
        (["kill", "--tenant", "x", "j-1"], 2, "choose among"),
        (["kill", "-s", "TREM", "j-1"], 2, "no signal `TREM`\n\nhint: did you mean `SIGTERM`?"),
        (["kill", "-s", "99", "j-1"], 2, "no signal `99`\n\nhint: write a name"),
        (["kill", "none"], 125, "no such job"),
        (["ps", "--label", "a"], 2, "bad label `a`\n\nhint: write `--label NAME=VALUE`"),
        (["kill", "--all", "--label", "a"], 2, "bad label `a`"),
        (["pool", "stop", "--now", "-t", "5"], 2, "--now"),
        (["pool", "strat"], 2, "strat"),
        (["pool", "start", "--daemon", "--config", "bad.toml"], 125, "bad.toml:3: pool.idel: unknown key"),
        (["pool", "start", "--no-config", "--idle", "9", "--size", "2"], 125, "9 idle VMs in a pool of 2"),
        (["pool", "start", "--no-config", "--listen", "127.0.0.1:0"], 125, "TCP needs a token"),
        (
            ["pool", "start", "--no-config", "--plugins", "", "--listen", "nowhere", "--token-file", "a.txt"],
            125,
            "is not HOST:PORT",
        ),
        (["pool", "start", "--no-config", "--workers", "0"], 2, "workers"),
        *((["top", "--interval", text], 2, "'--interval': ") for text in ("nan", "-nan", "inf", "0", "-1", "3601", "1e400", "x")),
        *((["mock-llm", "--latency", text], 2, "'--latency': ") for text in ("nan", "inf", "-1")),
        (["mock-llm", "--error-rate", "nan"], 2, "'--error-rate': "),
    ],
)
def test_mistakes(pool: Pool, command: Command, tmp_path: Path, arguments: list[str], status: int, said: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "bad.toml").write_text("[pool]\nsize = 4\nidel = 2\n")
    done = command(*arguments)
    assert (done.status, done.out) == (status, b"") and said in done.err and done.err.startswith("error: "), done
    assert "Traceback" not in done.err and not pool.backend.runs


def test_hints(pool: Pool, command: Command) -> None:
    pool.submit("pass", name="mine")
    assert "did you mean `j-1`?" in command("logs", "j1").err
    assert "did you mean `j-1`?" in command("wait", "mine").err
    assert "did you mean `SIGTERM`?" in command("kill", "-s", "TREM", "j-1").err
    done = command("ps", "--socket", "elsewhere")
    assert done.status == 125 and "no pool runs at" in done.err and "hint: start one with `agentfw pool start`" in done.err


# ---- ps, logs, wait, kill


def test_ps(pool: Pool, command: Command) -> None:
    assert command("ps").out.split() == [b"ID", b"NAME", b"TENANT", b"STATE", b"WORKER", b"TIME", b"END"]
    ended = pool.submit("import sys; sys.exit(4)", name="bad\x1b[2J\nname", labels={"a": "1"})
    pool.wait(ended)
    running = pool.submit("print('x', flush=True); import time; time.sleep(60)", tenant="other", labels={"a": "2"})
    pool.do(anext(pool.backend.output(running)))
    assert command("ps", "-q").out.decode().split() == [running]
    rows = command("ps", "--all").out.decode().splitlines()
    assert [row.split()[0] for row in rows[1:]] == [running, ended] and "exit 4" in rows[2] and r"bad\x1b[2J\nname" in rows[2]
    for options, expected in (
        (["--state", "done"], [ended]),
        (["--all", "--tenant", "other"], [running]),
        (["-a", "--label", "a=1"], [ended]),
        (["-a", "--limit", "1"], [running]),
        (["--tenant", "default"], []),
    ):
        assert command("ps", "-q", *options).out.decode().split() == expected
    document = command("ps", "-a", "--json").document
    assert [(job["id"], job["status"]) for job in document["jobs"]] == [(running, None), (ended, 4)]


def test_logs_also_after_the_end(pool: Pool, command: Command) -> None:
    job = pool.submit("import sys; sys.stdout.buffer.write(b'\\xff\\xc3\\xbc\\n'); print('e', file=sys.stderr)")
    pool.wait(job)
    for options in ([], ["-f"]):
        assert command("logs", *options, job) == Done(0, b"\xff\xc3\xbc\n", "e\n")
    rows = [json.loads(line) for line in command("logs", "--json", job).out.splitlines()]
    assert {(row["stream"], row["text"]) for row in rows} == {("stdout", "\ufffdü\n"), ("stderr", "e\n")}
    run = pool.backend.runs[job]
    run.output = [piece for piece in run.output if piece.stream == 1]
    run.output[0] = type(run.output[0])(stream=1, offset=100, data=b"late\n")
    done = command("logs", job)
    assert done.out == b"late\n" and f"{job}: not all of its output was kept" in done.err and "keep_output" in done.err
    run.info = msgspec.structs.replace(run.info, attempt=2)
    done = command("logs", job)
    assert done.out == b"late\n" and "begun 2 times" in done.err and "keep_output" not in done.err
    run.output.clear()
    for options in ([], ["-f"], ["--json"]):
        done = command("logs", *options, job)
        assert not done.out and done.err, "nothing is left that a gap could be seen in"
    still = pool.submit("print('up', flush=True); import time; time.sleep(60)")
    pool.do(anext(pool.backend.output(still)))
    assert command("logs", still).out == b"up\n"


def test_logs_on_a_terminal(pool: Pool, command: Command, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """As with `less -R`: colours stay, and nothing else steers. `--raw` is as `docker logs`."""
    said = b"\x1b[31mred\x1b[0m\x1b]52;c;aGk=\x07\x1b[2J\xe2\x80\xae\n"
    job = pool.submit(f"import sys; sys.stdout.buffer.write({said!r})")
    pool.wait(job)
    assert command("logs", job).out == said
    main, side = pty.openpty()
    kept = os.dup(1)
    seen = []
    try:
        for options in ([], ["--raw"]):
            os.dup2(side, 1)
            try:
                done = command("logs", *options, job)
            finally:
                os.dup2(kept, 1)
            assert done.status == 0
            os.write(side, b"<end>")
            data = b""
            while not data.endswith(b"<end>"):
                data += os.read(main, 4096)
            seen.append(data.removesuffix(b"<end>"))
    finally:
        for descriptor in (kept, main, side):
            os.close(descriptor)
    assert seen == [b"\x1b[31mred\x1b[0m\\x1b]52;c;aGk=\\x07\\x1b[2J\\u202e\r\n\x1b[0m", said.replace(b"\n", b"\r\n")]


def test_wait(pool: Pool, command: Command) -> None:
    jobs = [
        pool.submit(f"import time, sys; time.sleep({delay}); sys.exit({code})") for delay, code in ((0.2, 0), (0.1, 5), (0, 6))
    ]
    assert command("wait", *jobs).status == 5
    assert command("wait", jobs[0]).status == 0
    document = command("wait", "--json", jobs[2], jobs[0]).document
    assert (document["status"], [job["status"] for job in document["jobs"]]) == (6, [6, 0])
    assert command("wait", jobs[0], "none").status == 125
    long = pool.submit("import time; time.sleep(60)")
    done = command("wait", "--timeout", "100ms", long)
    assert done.status == 124 and f"{long} has not ended" in done.err
    pool.do(pool.backend.signal(long, 9))
    done = command("wait", long)
    assert done.status == 137 and "killed" in done.err


def test_kill(pool: Pool, command: Command) -> None:
    code = "import signal, time\nsignal.signal(10, lambda *a: print('ten', flush=True))\n"
    code += "print('up', flush=True)\nwhile True: time.sleep(9)"
    jobs = [pool.submit(code, labels={"n": str(number)}) for number in range(4)]
    for job in jobs:
        pool.do(anext(pool.backend.output(job)))
    done = command("kill", "-s", "usr1", jobs[0], "none")
    assert done.status == 125 and "no such job: `none`" in done.err
    for text in ("TERM", "SIGTERM", "15", "term"):
        assert command("kill", "-s", text, jobs[1]).status == 0
    pool.wait(jobs[1])
    assert pool.backend.runs[jobs[1]].info.result.signal == 15
    assert command("kill", "--all", "--label", "n=2", "--json").document == {"version": 1, "signal": 9, "jobs": [jobs[2]]}
    pool.wait(jobs[2])
    assert command("ps", "-q").out.decode().split() == [jobs[3], jobs[0]]
    assert command("kill", "--all").status == 0
    for job in jobs:
        pool.wait(job)
    assert b"ten\n" in b"".join(piece.data for piece in pool.backend.runs[jobs[0]].output)
    assert command("kill", jobs[3]) == Done(0, b"", "") and command("kill", "--all") == Done(0, b"", "")


def _completing() -> tuple[Any, Any]:
    from agentfw.cli.jobs import logs

    return logs.make_context("logs", ["j"], resilient_parsing=True), logs.params[0]


def test_completion_of_ids(pool: Pool, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentfw.cli.connect import complete_ids
    from agentfw.cli.jobs import logs

    for number in range(11):
        pool.submit("pass", name="a\nplain\nj-$(reboot)\nb\x1b]0;t\x07" if number == 10 else "")
    from click.shell_completion import ZshComplete

    lines = [ZshComplete(cli, {}, "agentfw", "_C").format_completion(item) for item in complete_ids(*_completing(), "j-11")]
    assert lines == ["plain\nj-11\na\\nplain\\nj-$(reboot)\\nb\\x1b]0;t\\x07"], "three lines each, whatever a job is called"
    context = logs.make_context("logs", ["j"], resilient_parsing=True)
    assert [item.value for item in complete_ids(context, logs.params[0], "j-1")] == ["j-11", "j-10", "j-1"]
    monkeypatch.setenv("AGENTFW_POOL_SOCKET", "/none")
    context = logs.make_context("logs", ["j"], resilient_parsing=True)
    assert complete_ids(context, logs.params[0], "") == []
    rows = [{"id": id, "name": "n"} for id in ("j-1\nplain\nx", "j-2", "j 3", "", "\x1b[c")]
    monkeypatch.setattr("agentfw.cli.connect._quickly", lambda *where: {"jobs": rows})
    assert [item.value for item in complete_ids(context, logs.params[0], "")] == ["j-2"], "what is no id is none"


# ---- the pool


def test_pool_commands(pool: Pool, command: Command) -> None:
    job = pool.submit("import time; time.sleep(60)")
    done = command("pool", "status")
    assert done.status == 0 and done.out.startswith(b"pool ready (pid ") and b"WORKER" in done.out
    assert command("pool", "status", "--json").document["pool"]["state"] == "ready"
    pool.backend.reloads = [
        ["dns", "policy"],
        [],
        PoolError("bad_config", "x.toml:3: dns.hots: unknown key", "did you mean `hosts`?"),
    ]
    assert command("pool", "reload").err == "reloaded: dns, policy changed\n"
    assert command("pool", "reload", "--json").document == {"version": 1, "changed": []}
    done = command("pool", "reload")
    assert done.status == 125 and done.err == "error: x.toml:3: dns.hots: unknown key\n\nhint: did you mean `hosts`?\n"
    done = command("pool", "drain", "--timeout", "100ms", "--json")
    assert done.status == 124 and done.document == {"version": 1, "done": False, "left": 1}
    assert command("pool", "drain", "--timeout", "100ms").err == "error: 1 job has not ended within 0.1 s\n"
    done = command("submit", "-c", "pass")
    assert done.status == 125 and "no more jobs" in done.err
    pool.do(pool.backend.signal(job, 9))
    assert command("pool", "drain").status == 0
    assert command("pool", "status", "--socket", "none").status == 1


def test_stop_returns_when_it_is_gone(tmp_path: Path, command: Command) -> None:
    with Pool(tmp_path / "s") as pool:
        assert pool.found is not None

        def ended(seconds: float) -> None:
            assert pool._end is not None
            pool.loop.call_later(0.2, pool._end.set)

        pool.found.server._on_stop = ended
        assert command("pool", "stop", "--json", "--socket", tmp_path / "s").document["stopped"] is True
        assert not (tmp_path / "s").exists()
    assert command("pool", "stop", "--socket", tmp_path / "s").status == 125


def test_metrics(pool: Pool, command: Command) -> None:
    command("submit", "-c", "print(1)")
    done = command("metrics")
    assert done.status == 0 and b"\nagentfw_jobs_submitted_total 1.0\n" in done.out and done.out.endswith(b"0.0\n")
    assert command("metrics", "--json").document["metrics"]["pool.submitted"] == 1
    assert command("metrics", "--socket", "/nowhere/s").status == 125


def test_top(pool: Pool, command: Command) -> None:
    job = pool.submit("print('x', flush=True); import time; time.sleep(60)", name="evil\x1b]0;title\x07\n\u202e")
    pool.do(anext(pool.backend.output(job)))
    for options in ([], ["--once"]):
        done = command("top", *options)
        text = done.out.decode()
        assert done.status == 0 and text.startswith("pool ready") and job in text and "1 running" in text
        assert all(letter.isprintable() or letter == "\n" for letter in text)
        assert "CPU" in text and "0.0" in text
    document = command("top", "--json").document
    assert document["jobs"][0]["id"] == job and document["metrics"]["pool.jobs"] == 1 and job in document["usage"]


def test_the_busiest_jobs_come_first(pool: Pool, command: Command) -> None:
    idle = pool.submit("print('x', flush=True); import time; time.sleep(60)")
    busy = pool.submit("print('x', flush=True)\nwhile True: pass")
    for job in (idle, busy):
        pool.do(anext(pool.backend.output(job)))
    deadline = time.monotonic() + 10
    while pool.do(pool.backend.usage())[busy].cpu_seconds < 0.3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    text = command("top").out.decode()
    assert text.index(busy) < text.index(idle)


# ---- in a process of its own: signals, terminals, broken pipes


@pytest.fixture
def started(pool: Pool, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    processes = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "AGENTFW_POOL_SOCKET": str(tmp_path / "s"),
            "LANG": "C.UTF-8",
        }
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        for file in (process.stdin, process.stdout, process.stderr):
            assert file is not None
            file.close()


def line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def test_standard_input_as_it_comes(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = started(
        "submit", "--wait", "--stdin", "-", "-c", "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    )
    assert process.stdin is not None
    for text in (b"one\n", b"two\n"):
        process.stdin.write(text)
        process.stdin.flush()
        assert line(process) == text.upper()
    process.stdin.close()
    assert process.wait(30) == 0


def test_ctrl_c_goes_to_the_job_and_the_second_kills(pool: Pool, started: Callable[..., subprocess.Popen[bytes]]) -> None:
    code = "import time\ntry: print('up', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: print('caught', flush=True)\n"
    process = started("submit", "--wait", "-c", code + "raise SystemExit(3)")
    assert line(process) == b"up\n"
    process.send_signal(signal.SIGINT)
    assert line(process) == b"caught\n" and process.wait(30) == 3
    process = started("submit", "--wait", "-c", code + "while True: time.sleep(60)")
    assert line(process) == b"up\n"
    process.send_signal(signal.SIGINT)
    assert line(process) == b"caught\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process = started("submit", "--wait", "-c", code)
    assert line(process) == b"up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert {info.state for info in pool.do(pool.backend.jobs())} == {"done"}


def test_a_reader_that_goes_away(pool: Pool, started: Callable[..., subprocess.Popen[bytes]]) -> None:
    """The job of `submit --wait` ends with it; that of `logs` goes on."""
    code = "import time\nwhile True: print('y' * 1000, flush=True); time.sleep(0.01)"
    process = started("submit", "--wait", "-c", code)
    assert line(process) and process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 141
    pool.wait("j-1")
    job = pool.submit(code)
    process = started("logs", "-f", job)
    assert line(process) and process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 141
    process = started("logs", "-f", job)
    assert line(process)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert pool.do(pool.backend.info(job)).state == "running"


def test_a_pool_that_goes_away_is_our_fault(pool: Pool, started: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = started("submit", "--wait", "-c", "print('up', flush=True); import time; time.sleep(60)")
    assert line(process) == b"up\n" and pool.found is not None
    pool.do(pool.found.server.close())
    assert process.wait(30) == 125 and process.stderr is not None
    err = process.stderr.read()
    assert err.startswith(b"error: the pool at ") and err.splitlines()[0].endswith(b"went away")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (None, 0)])
def test_top_on_a_terminal(pool: Pool, tmp_path: Path, number: int | None, status: int) -> None:
    """It draws, fits the screen, and gives it back, however it ends."""
    for each in range(30):
        pool.submit("print('x', flush=True); import time; time.sleep(60)", name=f"job {each} \x1b[31m")
    for each in range(30):
        pool.do(anext(pool.backend.output(f"j-{each + 1}")))
    environment = {"AGENTFW_POOL_SOCKET": str(tmp_path / "s")}
    with Terminal("agentfw", "top", "--interval", "0.2", size=(150, 20), env=environment) as terminal:
        page = terminal.drawn("30 of 30 agents", "30 running", "no plugin `dashboard` in this pool")
        assert page.count("job ") == 11 and "CORES" in page and "\\x1b[31m" in page
        if number is None:
            terminal.type("q")
        assert terminal.end(number) == status
    assert b"\x1b[31mjob" not in terminal.raw and b" \x1b[31m" not in terminal.raw.replace(b"\x1b[0m \x1b[31m", b"")
    assert b"\x1b[?1049l" in terminal.raw and b"\x1b[?25h" in terminal.raw


def test_top_where_nothing_can_be_drawn(pool: Pool, tmp_path: Path) -> None:
    environment = {"AGENTFW_POOL_SOCKET": str(tmp_path / "s"), "TERM": "dumb"}
    with Terminal("agentfw", "top", env=environment) as terminal:
        assert terminal.end() == 0
        assert "pool ready" in terminal.page() and "(TERM=dumb): printed once" in terminal.page() and b"\x1b" not in terminal.raw


def test_top_of_no_pool(tmp_path: Path) -> None:
    with Terminal("agentfw", "top", env={"AGENTFW_POOL_SOCKET": str(tmp_path / "none")}) as terminal:
        assert terminal.end() == 125
        assert "error: no pool runs at" in terminal.page() and "hint: start one with" in terminal.page()
        assert b"\x1b" not in terminal.raw


def test_top_printed_once_asks_nothing_twice(pool: Pool, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.backend.observatory = FakeObservatory(3)
    asked: list[str] = []
    call = HttpBackend._call

    async def counted(self: HttpBackend, method: str, path: str, *rest: Any, **more: Any) -> Any:
        asked.append(path.removeprefix("/v1/"))
        return await call(self, method, path, *rest, **more)

    monkeypatch.setattr(HttpBackend, "_call", counted)
    always = ["plugins/dashboard/agents", "plugins/dashboard/overview", "pool", "usage"]
    assert command("top", "--once").status == 0 and sorted(asked) == always
    asked.clear()
    assert command("top", "--json").status == 0
    assert sorted(asked) == sorted([*always, "jobs", "metrics", "plugins/dashboard/loaded"])


def test_top_of_agents_that_have_ended(pool: Pool, command: Command) -> None:
    """Printed once as in the terminal: without `--all` only those that run; JSON has them all, but for the filter's sake."""
    jobs = [pool.submit("pass", name=name) for name in ("one", "two")]
    for job in jobs:
        pool.wait(job)
    text = command("top").out.decode()
    assert "(no agent runs; `--all`: " in text and not any(job in text for job in jobs)
    rows = [line.split() for line in command("top", "--all", "--sort", "name").out.decode().split("\n\n")[3].splitlines()]
    assert rows[0][:5] == ["ID", "NAME", "TENANT", "STATE", "WORKER"]
    assert [row[:2] + row[3:5] for row in rows[1:]] == [
        [job, name, "code", "0"] for job, name in zip(jobs, ("one", "two"), strict=True)
    ]
    assert jobs[0] not in (text := command("top", "-a", "--filter", "two").out.decode()) and jobs[1] in text
    pool.backend.observatory = FakeObservatory(300)
    shown = command("top", "--json", "--filter", "browse").document["agents"]
    assert 0 < len(shown) < 300 and all("browse" in json.dumps(row) for row in shown)


def test_top_with_a_dashboard(pool: Pool, command: Command) -> None:
    pool.backend.observatory = FakeObservatory(300)
    document = command("top", "--json").document
    assert len(document["agents"]) == 300 and document["overview"]["dns_hit_rate"] > 0.9 and document["loaded"]["plugins"]
    assert document["pool"]["state"] == "ready" and document["jobs"] == [] and "pool.jobs" in document["metrics"]
    text = command("top", "--filter", "browse", "--sort", "tokens").out.decode()
    assert "DNS hits 97.0 %" in text and "dispatch   p50 820us p95 2.1ms p99 4.7ms" in text
    rows = [line.split() for line in text.split("\n\n")[3].splitlines()]
    assert rows[0][-4:] == ["CALLS", "TOKENS", "COST", "DENIED"] and len(rows) > 5 and all("browse" in row[1] for row in rows[1:])
    assert all(letter.isprintable() or letter == "\n" for letter in command("top").out.decode())
    done = command("top", "--sort", "mem")
    assert done.status == 2 and "no column `mem` (did you mean `memory`?)" in done.err
    assert command("top", "--json", "--socket", "none").status == 125
