"""The commands around `run`, and how a command line is taken apart."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from agentfw.cli import doctor, service
from agentfw.cli.options import split
from agentfw.cli.output import Kept, Lines
from agentfw.fleet import exit_status
from agentfw.log_lines import OneLine
from agentfw.pool import worker

from tests.conftest import Agentfw

VALUED = {"--mount", "--env", "-n"}


@pytest.mark.parametrize(
    ("line", "ours", "program"),
    [
        ("x.py -n 3 --env A", "", "x.py -n 3 --env A"),
        ("-n 3 x.py", "-n 3", "x.py"),
        ("-n3 x.py", "-n3", "x.py"),
        ("--env=A=1 x.py", "--env=A=1", "x.py"),
        ("--env A=1 --stats -m pkg --stats", "--env A=1 --stats", "-m pkg --stats"),
        ("-mpkg -q", "", "-m pkg -q"),
        ("-q -c code -q", "-q", "-c code -q"),
        ("-q - -q", "-q", "- -q"),
        ("-q -- -odd.py -q", "-q", "-odd.py -q"),
        ("--mount a:/b --mount c:/d", "--mount a:/b --mount c:/d", ""),
        ("--memory", "--memory", ""),
    ],
)
def test_options_end_where_the_program_begins(line: str, ours: str, program: str) -> None:
    assert split(line.split(), VALUED) == (ours.split(), program.split())


def test_exit_statuses() -> None:
    from agentfw.agents import ExitReport

    kinds = {"timeout": 124, "internal": 125, "killed": 137, "memory": 137, "hostile": 137}
    assert {kind: exit_status(ExitReport(kind)) for kind in kinds} == kinds  # type: ignore[arg-type]
    assert exit_status(ExitReport("code", code=7)) == 7 and exit_status(ExitReport("signal", signal=11)) == 139


def test_help_has_examples_and_every_option(agentfw: Agentfw) -> None:
    done = agentfw("run", "--help")
    for option in ("--plugins", "--config", "--mount", "--env", "--memory", "--timeout", "-n", "--stats", "--json", "-q", "-v"):
        assert option in done.stdout
    assert "agentfw run agent.py" in done.stdout and "124" in done.stdout and done.returncode == 0
    assert agentfw("--version").stdout.startswith("agentfw, version ")


def test_json_is_all_there_is_on_stdout(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "agentfw.toml").write_text('[run]\nenv = { API_KEY = "sk-real" }\n')
    for arguments in (["doctor"], ["plugins", "list"], ["config", "show"], ["cache", "show"]):
        done = agentfw(*arguments, "--json")
        assert json.loads(done.stdout)["version"] == 1
        assert "sk-real" not in done.stdout
    assert "sk-real" not in agentfw("config", "show").stdout


def test_config_show_is_toml_again(agentfw: Agentfw, tmp_path: Path) -> None:
    text = """\
[run]
plugins = ["dns", "./mine.py"]
env = { NAME = "a \\"b\\" ü \\u007f \\\\", "odd.name" = "" }

[dns]
hosts = { "a.example" = ["192.0.2.1", "192.0.2.2"], "*.b.example" = "192.0.2.3" }
prefetch = false
timeout = 1.5

[mine]
day = 2026-11-29
far = inf
nothing = {}

[[policy.rule]]
action = "deny"
labels = { team = "a" }
"""
    (tmp_path / "agentfw.toml").write_text(text)
    for options in ([], ["--origin"]):
        done = agentfw("config", "show", *options)
        assert done.returncode == 0 and tomllib.loads(done.stdout) == tomllib.loads(text), done
    assert "prefetch = false  # agentfw.toml:7\n" in done.stdout


def test_config_show_checks_every_table(agentfw: Agentfw, tmp_path: Path) -> None:
    """Also those of plugins that `agentfw run` would not load; not what only a start can find."""
    for text, said in (
        ('[dashboard]\nlistn = "x"\n', "agentfw.toml:2: dashboard.listn: unknown key\n\nhint: did you mean `listen`?"),
        ("[pool]\nsizee = 1\n", "agentfw.toml:2: pool.sizee: unknown key"),
        ("[audit]\n", "agentfw.toml:1: audit: the key `file` is missing"),
        ('[run]\nplugins = ["./mine.py"]\n\n[mine]\nb = 1\n', "agentfw.toml:5: mine.b: unknown key"),
    ):
        (tmp_path / "mine.py").write_text(
            "import msgspec\nclass Config(msgspec.Struct, forbid_unknown_fields=True):\n    a: int = 0\n"
            "class Plugin:\n    name = 'mine'\n    config_type = Config\n    def __init__(self, config): 1 / 0\n"
        )
        (tmp_path / "agentfw.toml").write_text(text)
        done = agentfw("config", "show")
        assert (done.returncode, done.stdout) == (125, "") and said in done.stderr, done
    rule = '[[credentials.rule]]\nhost = "x.example"\nheader = "a"\nvalue = "${env:NOBODY_SETS_THIS}"\n'
    (tmp_path / "agentfw.toml").write_text(f'[capture]\ndirectory = "/nowhere"\n{rule}')
    assert agentfw("config", "show").returncode == 0


def test_no_secret_is_shown_wherever_it_stands(agentfw: Agentfw, tmp_path: Path) -> None:
    text = """
[run.env]
DATABASE_URL = "postgres://me:hunter2@db"
DB_PASS = "hunter2"
SMTP_PASSPHRASE = "hunter2"
NPM_AUTH = "hunter2"
SENTRY_DSN = "hunter2"
SESSION_COOKIE = "hunter2"
AWS_CREDENTIALS = "hunter2"
[[credentials.rule]]
host = "a.example"
header = "authorization"
value = "Bearer ${command:vault}"
[[credentials.rule]]
host = "b.example"
basic = { user = "hunter2-as-user", password = "${oauth:x}" }
[credentials.command.vault]
argv = ["curl", "-H", "X-Vault-Token: hunter2"]
[credentials.oauth.x]
token_url = "https://l.example/?code=hunter2"
client_id = "fleet"
client_secret = "hunter2hunter2"
parameters = { assertion = "hunter2" }
"""
    (tmp_path / "agentfw.toml").write_text(text)
    for more in ((), ("--json",), ("--origin",)):
        done = agentfw("config", "show", *more)
        assert done.returncode == 0 and "hunter2" not in done.stdout + done.stderr and "a.example" in done.stdout


def test_what_is_logged_is_one_line_each() -> None:
    """Names, reasons and errors come from agents and servers."""
    form = OneLine("%(name)s: %(message)s").format
    record = logging.LogRecord("agentfw.x", logging.INFO, "", 1, "%s", ("a\x1b[2J\nagentfw.relay: forged",), None)
    assert form(record) == r"agentfw.x: a\x1b[2J\nagentfw.relay: forged"
    said = worker.formatter().format(record)
    assert said.endswith(rf" INFO agentfw.x: worker {os.getpid()}: a\x1b[2J\nagentfw.relay: forged") and said.startswith("20")
    try:
        raise ValueError("b\x1b[2J\x07")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert form(record).endswith("\nValueError: b\\x1b[2J\\x07")


def test_doctor_checks_what_it_says(agentfw: Agentfw) -> None:
    document = json.loads(agentfw("doctor", "--json").stdout)
    assert {check["name"] for check in document["checks"]} >= {
        "platform",
        "python",
        "kvm",
        "processor",
        "memory",
        "native parts",
        "cache",
    }
    assert all(check["status"] in ("ok", "warn", "fail") for check in document["checks"])
    assert document["ok"] == all(check["status"] != "fail" for check in document["checks"])


def test_doctor_outlives_plugins_that_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each is asked, whatever the one before did."""
    bodies = {
        "broken": "raise ValueError('no\\x1b')",
        "wrong": "return [('ok',)]",
        "word": "return [('FAIL', 'a', 'b')]",
        "kind": "return [('ok', 7, None)]",
        "exits": "raise SystemExit(0)",
        "good": "yield 'warn', str(config.file), 'mend it'",
    }
    for name, body in bodies.items():
        text = f"class Plugin:\n    name = {name!r}\n    @staticmethod\n    def check_machine(config):\n        {body}\n"
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "agentfw.toml").write_text(
        "[run]\nplugins = ['./missing.py', './broken.py', './wrong.py', './word.py', './kind.py', './exits.py', './good.py']\n"
    )
    monkeypatch.chdir(tmp_path)
    missing, broken, wrong, word, kind, exits, good = doctor._plugins()
    assert missing.name == "configuration" and "missing.py" in missing.detail
    assert (broken.name, broken.status) == ("broken", "warn") and "check_machine(): ValueError: no\\x1b" in broken.detail
    assert (wrong.name, wrong.status) == ("wrong", "warn") and "check_machine(): ValueError" in wrong.detail
    assert (word.name, word.status) == ("word", "warn") and "'FAIL' - at `$.status`" in word.detail
    assert (kind.name, kind.status) == ("kind", "warn") and "Expected `str`" in kind.detail
    assert (exits.name, exits.status) == ("exits", "warn") and "check_machine(): SystemExit: 0" in exits.detail
    assert good == doctor.Check("good", "warn", str(tmp_path / "agentfw.toml"), "mend it")


@pytest.mark.parametrize(("plugins", "said"), [(("dns",), True), (("dns", "policy"), False), ((), False)])
def test_a_pool_without_a_policy_says_so(
    plugins: tuple[str, ...], said: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def describe() -> object:
        return SimpleNamespace(workers=())

    monkeypatch.setattr("agentfw.cli.pool.ready_line", lambda info, place, took: "pool ready")
    process = service._Process(SimpleNamespace(quiet=False, as_json=False, plugins=plugins), None, None)  # type: ignore[arg-type]
    router = SimpleNamespace(describe=describe, runtime=None)
    asyncio.run(process._tell(router, SimpleNamespace(path=Path("s"))))  # type: ignore[arg-type]
    assert ("note: without the `policy` plugin" in capsys.readouterr().err) == said


def test_doctor_names_what_would_not_be_called_and_what_nobody_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Plugin:\n    def allow(self): pass\n")
    (tmp_path / "agentfw.toml").write_text("[run]\nplugins = ['./mine.py']\n[policy]\n[plugins.limits]\nmin.allow = 5\n")
    monkeypatch.chdir(tmp_path)
    first, second = doctor._plugins()
    assert (first.status, first.hint) == ("warn", "put `@hookimpl` before `def allow`, or give it another name")
    assert first.detail == "plugin `mine`: its method `allow` is named as a hook, but is none"
    assert "agentfw.toml:5: plugins.limits.min: no such hook or plugin" in second.detail
    (tmp_path / "mine.py").write_text("class Plugin: pass\n")
    (tmp_path / "agentfw.toml").write_text("[run]\nplugins = ['./mine.py']\n[policy]\n[mine]\n")
    (note,) = doctor._plugins()
    assert (note.status, note.detail) == ("warn", "[policy] has no effect: `policy` is not among the plugins")
    (tmp_path / "agentfw.toml").write_text("[run]\nplugins = ['./mine.py']\n[polcy]\n")
    (unknown,) = doctor._plugins()
    assert "polcy: unknown table" in unknown.detail and "policy" in unknown.hint


def test_doctor_says_which_table_a_pool_would_not_start_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "agentfw.toml").write_text('[audit]\nevents = ["nonsense"]\n[dns]\nttl = 5\n[dashboard]\nlisten = ""\n')
    monkeypatch.chdir(tmp_path)
    troubles = [check.detail for check in doctor._plugins() if check.name == "configuration" and check.status == "warn"]
    assert len(troubles) == 2 and "agentfw.toml:4: dns.ttl: unknown key" in "\n".join(troubles)
    assert "agentfw.toml:2: audit.events.0: expected" in "\n".join(troubles)


@pytest.mark.parametrize("group", [[], ["plugins"], ["config"], ["cache"]])
def test_a_group_alone_shows_its_commands(agentfw: Agentfw, group: list[str]) -> None:
    done = agentfw(*group)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(f"Usage: {' '.join(['agentfw', *group])} ") and "\nCommands:\n" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(agentfw: Agentfw, shell: str) -> None:
    done = agentfw("completion", shell)
    assert done.returncode == 0 and "_AGENTFW_COMPLETE" in done.stdout


def test_completion_knows_commands(agentfw: Agentfw) -> None:
    done = agentfw(env={"_AGENTFW_COMPLETE": "bash_complete", "COMP_WORDS": "agentfw mo", "COMP_CWORD": "1"})
    assert "mock-llm" in done.stdout


class Recorder:
    def __init__(self) -> None:
        self.writes: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self.writes.append(data)


def test_lines_of_many_agents_do_not_mix() -> None:
    async def body() -> None:
        recorder = Recorder()
        lines = Lines(recorder, b"[1] ")  # type: ignore[arg-type]
        for part in (b"a", b"b\nc\nd", b"", b"e"):
            await lines.write(part)
        await lines.close()
        assert recorder.writes == [b"[1] ab\n[1] c\n", b"[1] de\n"]

    asyncio.run(body())


def test_a_line_without_end_is_cut() -> None:
    async def body() -> None:
        recorder = Recorder()
        lines = Lines(recorder)  # type: ignore[arg-type]
        for _ in range(3):
            await lines.write(b"x" * 40000)
        assert [len(data) for data in recorder.writes] == [80001]

    asyncio.run(body())


def test_what_json_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        monkeypatch.setattr("agentfw.cli.output.CAPTURE", 5)
        kept = Kept()
        await kept.write(b"abc")
        await kept.write(b"def\xff")
        assert (kept.text, kept.cut) == ("abcde", True)

    asyncio.run(body())


def test_ctrl_c_while_the_command_is_still_imported() -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'agentfw.cli': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from agentfw.__main__ import main; main()\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code, "--help"], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
