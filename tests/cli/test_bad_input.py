"""Whatever a person gets wrong: one line that says what, the documented status, no traceback of ours, nothing left running."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Agentfw


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The error line; the rest of stderr is a hint or nothing."""
    lines = done.stderr.splitlines()
    assert lines and lines[0].startswith("error: "), done.stderr
    assert "Traceback" not in done.stderr and not done.stdout
    assert all(line == "" or line.startswith("hint: ") for line in lines[1:]), done.stderr
    return lines[0].removeprefix("error: ")


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["run"], 125, "no program: name a script, `-m module`, `-c code` or `-`"),
        (["run", "-m"], 125, "no program: name a script, `-m module`, `-c code` or `-`"),
        (["run", "missing.py"], 127, "script `missing.py` not found"),
        (["run", "folder"], 126, "`folder` is a directory without a `__main__.py`"),
        (["run", "--plugins", "dns,polcy", "x.py"], 125, "unknown plugin `polcy` (known: "),
        (["run", "--plugins", "./none.py", "x.py"], 125, "plugin file none.py does not exist"),
        (["run", "--config", "bad.toml", "x.py"], 125, "bad.toml:2: run.memroy: unknown key"),
        (["run", "--config", "value.toml", "x.py"], 125, "value.toml:2: run.memory: `lots` is no size"),
        (["run", "--config", "type.toml", "x.py"], 125, "type.toml:2: run.timeout: "),
        (["run", "--config", "broken.toml", "x.py"], 125, "broken.toml:1: not TOML: "),
        (["run", "--config", "table.toml", "x.py"], 125, "table.toml:1: nonsense: unknown table"),
        (["run", "--config", "none.toml", "x.py"], 125, "none.toml: cannot be read: "),
        (["run", "--memory", "12", "x.py"], 125, "memory `12` must be from 96M to 14G"),
        (["run", "--memory", "big", "x.py"], 125, "memory `big` is no size"),
        (["run", "--timeout", "soon", "x.py"], 125, "`soon` is no time"),
        (["run", "--timeout", "0", "x.py"], 125, "`0` is no time"),
        (["run", "-n", "0", "x.py"], 125, "invalid value for '-n' / '--count': "),
        (["run", "--env", "NOT_SET_HERE", "x.py"], 125, "variable `NOT_SET_HERE` is not set here"),
        (["run", "--env", "=1", "x.py"], 125, "bad variable `=1`"),
        (["run", "--mount", "/", "x.py"], 125, "refusing to mount `/`: it is the whole machine"),
        (["run", "--mount", "/etc:/x", "x.py"], 125, "refusing to mount `/etc`: it holds /etc/shadow"),
        (["run", "--mount", "/proc/self:/x", "x.py"], 125, "refusing to mount `/proc/self`: it is in /proc"),
        (["run", "--mount", "~:/x", "x.py"], 125, "refusing to mount `~`: it is a home directory"),
        (["run", "--mount", "~/.ssh:/x", "x.py"], 125, "refusing to mount `~/.ssh`: it is in "),
        (["run", "--mount", "nowhere:/x", "x.py"], 125, "cannot mount `nowhere`: it does not exist"),
        (["run", "--mount", "folder:x", "x.py"], 125, "bad mount `folder:x`: the guest's path must be absolute"),
        (["run", "--mount", "folder:/proc/x", "x.py"], 125, "cannot mount on the guest's `/proc/x`"),
        (["run", "--mount", "folder:/x:rx", "x.py"], 125, "bad mount `folder:/x:rx`"),
        (["run", "--python", "/bin/true", "x.py"], 126, "`/bin/true` is no Python"),
        (["run", "--python", "/bin/ls", "x.py"], 126, "`/bin/ls` is no Python"),
        (["run", "/proc/self/mem"], 126, "cannot read `/proc/self/mem`: Input/output error"),
        (["run", "pipe"], 126, "`pipe` is not a file"),
        (["run", "/dev/zero"], 126, "`/dev/zero` is not a file"),
        (["run", "folder"], 126, "`folder` is a directory without a `__main__.py`"),
        (["run", "foreign"], 126, "`foreign` is an executable, and agents are Python programs"),
        (["run", "half"], 126, "`half` is an executable, and agents are Python programs"),
        (["run", "--python", "./half", "x.py"], 126, "cannot run the interpreter `./half`: "),
        (["run", "--python", "./list", "x.py"], 126, "`./list` is no Python"),
        (["run", "--python", "./object", "x.py"], 126, "`./object` is no Python"),
        (["run", "--python", "./deep", "x.py"], 126, "`./deep` is no Python"),
        (["run", "--python", "./endless", "x.py"], 126, "cannot run the interpreter `./endless`: it prints more than"),
        (["run", "--python", "./folder", "x.py"], 126, "cannot run the interpreter `./folder`: Permission denied"),
        (["run", "--python", "./pipe", "x.py"], 126, "cannot run the interpreter `./pipe`: Permission denied"),
        (["run", "--python", "/dev/zero", "x.py"], 126, "cannot run the interpreter `/dev/zero`: Permission denied"),
        (["run", "--python", "./empty", "x.py"], 126, "cannot run the interpreter `./empty`: Exec format error"),
        (["run", "--python", "./lost", "x.py"], 126, "cannot run the interpreter `./lost`: No such file"),
        (["run", "--python", "./foreign", "x.py"], 126, "cannot run the interpreter `./foreign`: Exec format error"),
        (["run", "--python", "/no/python", "x.py"], 126, "cannot run the interpreter `/no/python`: No such file"),
        (["run", "--bogus", "x.py"], 125, "no such option '--bogus'"),
        (["rnu", "x.py"], 2, "no command `rnu`"),
        (["x.py"], 2, "no command `x.py`"),
        (["config", "show", "--config", "bad.toml"], 125, "bad.toml:2: run.memroy: unknown key"),
        (["run", ""], 127, "script `` not found"),
        (["run", "a" * 300], 127, "script `aaaa"),
        (["run", "--memory", "9" * 400, "x.py"], 125, "memory `9999"),
        (["run", "--timeout", "9" * 400, "x.py"], 125, "`9999"),
        (["run", "--env"], 125, "option '--env' requires an argument"),
        (["run", "--config", "nan.toml", "x.py"], 125, "nan.toml:2: run.timeout: must be more than 0 seconds"),
        (["run", "--config", "zero.toml", "x.py"], 125, "zero.toml:2: run.timeout: must be more than 0 seconds"),
        (["run", "--config", "nul.toml", "x.py"], 125, "nul.toml:2: run.env.A: cannot be a variable"),
        (["run", "--config", "equals.toml", "x.py"], 125, "equals.toml:2: run.env.a=b: cannot be a variable"),
        (["run", "--config", "digit.toml", "x.py"], 125, "digit.toml:1: \xb2: unknown table"),
        (["run", "--config", "deep.toml", "x.py"], 125, "deep.toml: not TOML"),
        (["run", "--config", "ttl.toml", "x.py"], 125, "ttl.toml:2: native.ttl: expected integer >= 0"),
        (["run", "--mount", "folder:/x/" + "y" * 300, "x.py"], 125, "bad mount `folder:/x/yyy"),
        (["run", "--mount", "folder:/etc/hosts/x", "x.py"], 125, "cannot mount `"),
        (["run", "--mount", "x.py:/x", "--mount", "folder:/x/y", "x.py"], 125, "cannot mount `"),
        (["run", "shadow.py"], 126, "refusing to show `shadow.py` to the agent: it is in /etc/shadow"),
        (["run", "key.py"], 126, "refusing to show `key.py` to the agent: it is in "),
        (["run", "--plugins", "./leaves.py", "x.py"], 125, "plugin file leaves.py does not import: SystemExit: 3"),
        (["run", "-q", "--plugins", "./starts.py", "x.py"], 125, "plugin `starts` failed in `start`: SystemExit"),
        (["run", "--plugins", "./lines.py", "x.py"], 125, r"plugin file lines.py does not import: ValueError: a b\x1b[31m"),
        (["run", "--plugins", "./base.py", "x.py"], 125, "plugin file base.py does not import: CancelledError"),
        (["run", "--plugins", "./mute.py", "x.py"], 125, "plugin file mute.py does not import: Mute"),
        (["run", "--plugins", "./itself.py", "x.py"], 125, "plugin file itself.py does not import: ValueError: gone"),
        (["run", "--plugins", "./meta.py", "x.py"], 125, "plugin `./meta.py` cannot be looked at: RuntimeError: no name"),
        (["run", "--plugins", "./type.py", "x.py"], 125, "plugin `./type.py` has a bad config_type"),
        (["run", "-q", "--plugins", "./guest.py", "x.py"], 125, "plugin `guest` failed in check_guest(): TypeError"),
        (["run", "--plugins", "y" * 5000 + ".py", "x.py"], 125, "plugin file yyyy"),
        (["plugins", "new", "good", "--dir", "y" * 5000], 125, "`yyyy"),
        (["run", "--config", "latin.toml", "x.py"], 125, "latin.toml:2: not UTF-8: invalid start byte"),
        (["run", "--config", "escape.toml", "x.py"], 125, r"escape.toml:1: \x1b[31m\n: unknown table"),
        (["run", "--config", "/dev/zero", "x.py"], 125, "/dev/zero: cannot be read: larger than 1 MiB"),
        (["run", "-q", "--config", "ca.toml", "x.py"], 125, "ca.toml:2: tls.ca_files.0: /dev/zero: larger than 16 MiB"),
        (["run", "-q", "--config", "pipe.toml", "x.py"], 125, "pipe.toml:2: tls.ca_files.0: pipe: a pipe"),
        (["run", "-q", "--config", "hosts.toml", "x.py"], 125, "hosts.toml:2: dns.hosts_files.0: pipe cannot be read: a pipe"),
        (["run", "--config", "nulfile.toml", "x.py"], 125, "nulfile.toml:4: credentials.rule.0.value: the path"),
        (["run", "--no-config", "--plugins", "./needs.py", "x.py"], 125, "needs: the key `x` is missing"),
    ],
)
def test_says_what_is_wrong(agentfw: Agentfw, tmp_path: Path, arguments: list[str], status: int, expected: str) -> None:
    files = {
        "x.py": "print('ran')\n",
        "bad.toml": '[run]\nmemroy = "1G"\n',
        "value.toml": '[run]\nmemory = "lots"\n',
        "type.toml": '[run]\ntimeout = "10"\n',
        "broken.toml": "[run\n",
        "table.toml": "[nonsense]\na = 1\n",
        "nan.toml": "[run]\ntimeout = nan\n",
        "zero.toml": "[run]\ntimeout = 0\n",
        "nul.toml": '[run.env]\nA = "x\\u0000"\n',
        "equals.toml": '[run.env]\n"a=b" = "x"\n',
        "digit.toml": '"\xb2" = 1\n',
        "deep.toml": f"a = {'[' * 3000}{']' * 3000}\n",
        "ttl.toml": "[native]\nttl = -1\n",
        "leaves.py": "import sys\nsys.exit(3)\n",
        "needs.py": "import msgspec\nclass Plugin:\n    def __init__(self, config): pass\n"
        "    class config_type(msgspec.Struct):\n        x: int\n",
        "starts.py": "import agentfw\nclass Plugin:\n    @agentfw.hookimpl\n    async def start(self): raise SystemExit(0)\n",
    }
    files |= {
        "lines.py": "raise ValueError('a\\nb\\x1b[31m')\n",
        "base.py": "import asyncio\nraise asyncio.CancelledError\n",
        "mute.py": "class Mute(Exception):\n    def __str__(self): raise OSError\nraise Mute\n",
        "itself.py": "import sys\ndel sys.modules[__name__]\nraise ValueError('gone')\n",
        "meta.py": "class Meta(type):\n    @property\n    def name(self): raise RuntimeError('no name')\n"
        "class Plugin(metaclass=Meta): pass\n",
        "type.py": "class Plugin:\n    config_type = dict\n",
        "guest.py": "class Plugin:\n    check_guest = 5\n",
        "escape.toml": '"\\u001b[31m\\n" = 1\n',
        "ca.toml": '[tls]\nca_files = ["/dev/zero"]\n',
        "pipe.toml": '[tls]\nca_files = ["pipe"]\n',
        "hosts.toml": '[dns]\nhosts_files = ["pipe"]\n',
        "nulfile.toml": RULE % "${file:a\\u0000}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for name, said in {"list": "[1]", "object": '{"version": 3}', "deep": '{"x": ' * 5000}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "empty").touch()
    (tmp_path / "endless").write_text("#!/bin/sh\nyes & exec yes\n")
    (tmp_path / "lost").write_text("#!/no/such/program\n")
    elf = bytearray(Path("/bin/true").read_bytes())
    elf[18] = 183  # EM_AARCH64
    (tmp_path / "foreign").write_bytes(elf)
    (tmp_path / "half").write_bytes(Path("/bin/true").read_bytes()[:60])
    for name in ("list", "object", "deep", "endless", "empty", "lost", "foreign", "half"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "latin.toml").write_bytes(b'[run]\nmemory = "\xff"\n')
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").touch()
    (tmp_path / "key.py").symlink_to(home / ".ssh" / "id")
    (tmp_path / "shadow.py").symlink_to("/etc/shadow")
    done = agentfw(*arguments, env={"HOME": str(home)})
    assert (complaint(done)[: len(expected)], done.returncode) == (expected, status)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["rnu"], "did you mean `run`?"),
        (["x.py"], "run a script with `agentfw run x.py`"),
        (["run", "--plugins", "polcy", "x.py"], "did you mean `policy`?"),
        (["run", "x"], "did you mean `x.py`?"),
        (["run", "--strace", "summary", "x.py"], "did you mean `--strace=summary`?"),
        (["run", "-q", "--plugins", "./takes.py", "x.py"], "only a class with `config_type` is given a table"),
        pytest.param(["run", "-q", "--plugins", "./boom.py", "x.py"], "KeyError: 5 at HERE/boom.py:4", marks=pytest.mark.kvm),
    ],
)
def test_guesses_what_was_meant(agentfw: Agentfw, tmp_path: Path, arguments: list[str], hint: str) -> None:
    (tmp_path / "x.py").touch()
    (tmp_path / "takes.py").write_text("class Plugin:\n    def __init__(self, config): pass\n")
    boom = "import agentfw\nclass Plugin:\n    @agentfw.hookimpl\n    def start(self): raise KeyError(5)\n"
    (tmp_path / "boom.py").write_text(boom)
    assert agentfw(*arguments).stderr.splitlines()[-1] == f"hint: {hint.replace('HERE', str(tmp_path))}"


RULE = '[[credentials.rule]]\nhost = "a.example"\nheader = "authorization"\nvalue = "Bearer %s"\n'


def test_a_secret_where_agents_could_read_it(agentfw: Agentfw, tmp_path: Path) -> None:
    """A README's promise, that keys never enter a VM, kept against the operator's own slips."""
    program, outside = tmp_path / "program", tmp_path / "outside"
    program.mkdir()
    outside.mkdir()
    (program / "x.py").write_text("print('ran')\n")
    beside = program / "agentfw.toml"
    beside.write_text(RULE % "sk-0123456789")
    done = agentfw("run", "x.py", cwd=program)
    expected = f"{beside}:4: credentials.rule.0.value: the agents could read this secret, in {beside}"
    assert (complaint(done), done.returncode) == (expected, 125)
    assert "${env:NAME}" in done.stderr and "sk-0123" not in done.stderr

    beside.write_text(RULE % "${env:KEY}")
    environment = {"KEY": "sk-0123456789"}
    done = agentfw("run", "--env", "KEY", "x.py", cwd=program, env=environment)
    assert complaint(done).endswith("the agents could read this secret, as KEY") and done.returncode == 125
    assert agentfw("run", "x.py", cwd=program, env=environment).stdout == "ran\n"

    (outside / "key").write_text("sk-0123456789\n")
    beside.write_text(RULE % f"${{file:{outside}/key}}")
    done = agentfw("run", "--mount", f"{outside}:/data", "x.py", cwd=program)
    assert complaint(done).endswith(f"the agents could read this secret, in {outside}/key") and done.returncode == 125
    assert agentfw("run", "x.py", cwd=program).stdout == "ran\n"


def test_an_internal_error_is_one_line_too(agentfw: Agentfw, tmp_path: Path) -> None:
    """A cache that is a file: whatever comes of it is told, with a way out."""
    (tmp_path / "x.py").touch()
    (tmp_path / "cache").touch()
    done = agentfw("run", "--plugins", "", "x.py", env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert complaint(done).startswith("cannot write to the snapshot cache") and done.returncode == 125


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_empty_ones(agentfw_environment: dict[str, str], tmp_path: Path, closed: str) -> None:
    """Their numbers must not go to the loop's or KVM's descriptors."""
    from ..conftest import COMMAND

    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, "run", "nope.py"], cwd=tmp_path, timeout=60,
                          env=agentfw_environment, capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stdout) == (127, "")
    assert "2>" in closed or done.stderr == "error: script `nope.py` not found\n"


@pytest.mark.parametrize("arguments", [["--version"], ["run", "--help"], ["config", "show"]])
def test_a_full_disk_behind_stdout(agentfw_environment: dict[str, str], tmp_path: Path, arguments: list[str]) -> None:
    from ..conftest import COMMAND

    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, env=agentfw_environment, timeout=60, stdin=subprocess.DEVNULL,
                              stdout=full, stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert done.returncode == 125
    assert done.stderr.splitlines()[0].endswith("No space left on device")
    assert done.stderr.count("error: ") == 1 and "Traceback" not in done.stderr


def test_a_reader_that_has_gone(agentfw_environment: dict[str, str], tmp_path: Path) -> None:
    from ..conftest import COMMAND

    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*COMMAND, "config", "show"], cwd=tmp_path, env=agentfw_environment, timeout=60, stdout=writer,
                              stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_working_directory_that_is_gone(agentfw_environment: dict[str, str], tmp_path: Path) -> None:
    from ..conftest import COMMAND

    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    command = ["sh", "-c", script, "sh", *COMMAND, "run", "--plugins", "", "-c", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=agentfw_environment, input="", capture_output=True, text=True, timeout=60)
    assert done.returncode == 125 and complaint(done).startswith("the working directory cannot be used: ")


def _without_kvm(environment: dict[str, str], tmp_path: Path, prepare: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a mount namespace where /dev/kvm is not what it was."""
    from ..conftest import COMMAND

    (tmp_path / "x.py").write_text("print('ran')\n")
    script = f'{prepare} && exec "$@"'
    try:
        probe = subprocess.run(["unshare", "-rm", "sh", "-c", f"{prepare} && true"], capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if probe.returncode:
        pytest.skip("no mount namespaces here")
    return subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", *COMMAND, *arguments], cwd=tmp_path, env=environment,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)  # fmt: skip


def test_no_kvm(agentfw_environment: dict[str, str], tmp_path: Path) -> None:
    done = _without_kvm(agentfw_environment, tmp_path, "mount -t tmpfs none /dev", "run", "x.py")
    assert complaint(done) == "/dev/kvm does not exist" and done.returncode == 125
    assert "hint: " in done.stderr
    done = _without_kvm(agentfw_environment, tmp_path, "mount -t tmpfs none /dev", "doctor")
    assert done.returncode == 1 and "fail  kvm            /dev/kvm does not exist" in done.stdout


def test_kvm_that_is_something_else(agentfw_environment: dict[str, str], tmp_path: Path) -> None:
    done = _without_kvm(agentfw_environment, tmp_path, "mount --bind /dev/null /dev/kvm", "run", "x.py")
    assert complaint(done).startswith("/dev/kvm is no KVM device: ") and done.returncode == 125


def test_kvm_without_permission(tmp_path: Path) -> None:
    from agentfw.cli.doctor import kvm_checks

    (check,) = kvm_checks(str(tmp_path))  # a directory cannot be opened for writing by anybody
    assert (check.status, check.name) == ("fail", "kvm") and check.detail.startswith(f"cannot open {tmp_path}: ")
    assert check.hint
