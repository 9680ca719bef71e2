"""`agentfw plugins list`, `show` and `new`; whose plugin a name means; and that nobody but the operator chooses one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from agentfw.cli import hint_for
from agentfw.config import Config
from agentfw.errors import PluginError
from agentfw.hookspecs import API_VERSION
from agentfw.plugins import DEFAULT, available, load_plugins
from agentfw.plugins.describe import describe
from agentfw.scaffold import write_project

from ..conftest import Agentfw

MINE = '''
"""Mine.

A longer text.
"""
import msgspec
from typing import Annotated, Literal
from agentfw import hookimpl

class Rule(msgspec.Struct, forbid_unknown_fields=True):
    host: str
    """Whom it is about."""
    ports: tuple[int, ...] = ()

class Config(msgspec.Struct, forbid_unknown_fields=True):
    needed: str
    """Must be there.

    More about it."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=9)] = 3
    mode: Literal["b", "a"] = "a"
    rule: list[Rule] = []
    again: Rule | None = None
    more: dict[str, float] = {}

class Plugin:
    api = "1.0"
    config_type = Config

    def __init__(self, config):
        raise SystemExit("`show` starts nothing")

    def reconfigure(self, config):
        return lambda: None

    @hookimpl(trylast=True)
    async def allow(self, agent): pass

    @hookimpl(tryfirst=True)
    def dial(self, address): pass

    @hookimpl
    def exit(self): pass

    @hookimpl(tryfirst=True)
    def stop(self): pass
'''


def test_show_tells_all_without_starting_it(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "agentfw.toml").write_text("[plugins.limits]\nmine.allow = 7\n[mine]\nneeded = 5\n")
    done = agentfw("plugins", "show", "./mine.py")
    assert done.returncode == 0 and not done.stderr
    for line in (
        "Mine.",
        "hooks (API 1.0):",
        "  allow          after others, at most 7 s",
        "  dial           before others",
        "  exit",
        "  stop           after others",
        "table [mine] of agentfw.toml (a changed one is taken over when agentfw.toml is read again):",
        "  needed: text; must be given",
        "      Must be there.",
        "  limit: integer >= 1 and <= 9; default 3",
        '  mode: "a" | "b"; default "a"',
        "  rule: list of table; default []",
        "  rule[].host: text; must be given",
        "      Whom it is about.",
        "  rule[].ports: list of integer; default []",
        "  again: table, as `rule[]`",
        "  more: table of number; default {}",
    ):
        assert line in done.stdout.splitlines(), (line, done.stdout)
    document = json.loads(agentfw("plugins", "show", "./mine.py", "--json").stdout)
    assert document["version"] == 1 and document["name"] == "mine" and document["reloads"] and not document["default"]
    assert document["hooks"][1] == {"name": "allow", "order": "last", "awaitable": True, "seconds": 7.0}
    assert [key["name"] for key in document["keys"] if key["default"] is None] == ["needed", "rule[].host"]


def test_show_knows_the_shipped_ones(agentfw: Agentfw) -> None:
    shipped = [name for name, info in available().items() if info.own]
    assert {"dns", "tls", "policy", "credentials", "native", "inspect", "audit"} <= set(shipped)
    for name in shipped:
        found = describe(name)
        assert found.name == name and found.doc and found.hooks and found.keys and found.reloads
        assert found.origin.startswith("agentfw ") and found.api.partition(".")[0] == "1" and found.default == (name in DEFAULT)
    document = json.loads(agentfw("plugins", "show", "policy", "--json").stdout)
    assert (
        document["default"]
        and document["hooks"]
        and {key["name"] for key in document["keys"]} >= {"allow", "deny", "rule[].host"}
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("polcy", "unknown plugin `polcy`"),
        ("./none.py", "plugin file none.py does not exist"),
        ("./broken.py", "does not import: ZeroDivisionError"),
        ("./misspelt.py", "plugin `misspelt`: there is no hook `alow`"),
        ("./argument.py", "plugin `argument`: the hook `allow` has no argument `agnt` (it has: `agent`, `destination`)"),
        ("./unmarked.py", "plugin `unmarked`: its method `allow` is named as a hook, but is none"),
        ("./inherited.py", "plugin `inherited`: its method `allow` is named as a hook, but is none"),
        ("./later.py", "plugin `later`: `later_hooks` names 'exchange_ends', which is no hook that only tells"),
        ("./newer.py", f"plugin `./newer.py` needs hook API 1.7 or newer, this agentfw has {API_VERSION}: update agentfw"),
        ("./other.py", f"plugin `./other.py` is for hook API 2, this agentfw has {API_VERSION}: another major version"),
        ("./nonsense.py", "plugin `./nonsense.py` has a bad `api`: 'one'"),
        ("./number.py", "plugin `./number.py` has a bad `api`: 1"),
        ("./core.py", "may not be called `core`"),
    ],
)
def test_show_and_run_say_what_is_wrong_in_a_line(
    agentfw: Agentfw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, message: str
) -> None:
    texts = {
        "broken": "1/0",
        "misspelt": "from agentfw import hookimpl\nclass Plugin:\n    @hookimpl\n    def alow(self): pass",
        "argument": "from agentfw import hookimpl\nclass Plugin:\n    @hookimpl\n    def allow(self, agnt): pass",
        "unmarked": "class Plugin:\n    async def allow(self, agent, destination): raise ValueError",
        "inherited": "class Base:\n    def allow(self): pass\nclass Plugin(Base): pass",
        "later": "class Plugin: later_hooks = {'exchange_ends'}",
        "newer": "class Plugin: api = '1.7'",
        "other": "class Plugin: api = '2'",
        "nonsense": "class Plugin: api = 'one'",
        "number": "class Plugin: api = 1",
        "core": "class Plugin: pass",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    for load in (lambda: describe(given), lambda: load_plugins([given], Config())):
        with pytest.raises(PluginError) as caught:
            load()
        assert message in str(caught.value) and "\n" not in str(caught.value)
        hint = {"./misspelt.py": "did you mean `allow`?", "./argument.py": "did you mean `agent`?",
                "./unmarked.py": "put `@hookimpl` before `def allow`, or give it another name"}.get(given)  # fmt: skip
        assert hint is None or hint_for(caught.value) == hint
    if given == "./newer.py":
        for command in (("plugins", "show", given), ("run", "--plugins", given, "-c", "pass")):
            done = agentfw(*command)
            assert (done.returncode, done.stderr, done.stdout) == (125, f"error: {message}\n", "")


# -- whose a name is


def distribution(place: Path, name: str, version: str, **points: str) -> None:
    """An installed distribution with entry points, and a module for each of them."""
    info = place / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = "\n".join(f"{point} = {module}" for point, module in points.items())
    (info / "entry_points.txt").write_text(f"[agentfw.plugins]\n{lines}\n")
    for module in points.values():
        (place / f"{module}.py").write_text(
            f"print('{module} was imported')\nfrom agentfw import hookimpl\nclass Plugin:\n"
            "    @hookimpl\n    def exit(self): pass\n"
        )


def listed(agentfw: Agentfw, place: Path) -> dict[str, dict[str, object]]:
    done = agentfw("plugins", "list", "--json", env={"PYTHONPATH": str(place)})
    assert "was imported" not in done.stdout, "what the modules above print is not data"
    return {row["name"]: row for row in json.loads(done.stdout)["plugins"]}


def test_two_distributions_with_one_name_are_told_apart_by_the_operator(agentfw: Agentfw, tmp_path: Path) -> None:
    distribution(tmp_path, "first_dist", "1.0", shared="first_module", alone="alone_module")
    distribution(tmp_path, "second_dist", "2.0", shared="second_module")
    rows = listed(agentfw, tmp_path)
    assert rows["alone"]["hooks"] == ["exit"]
    message = "plugin `shared` is offered by first_dist 1.0 and second_dist 2.0: uninstall all but one"
    assert rows["shared"]["error"] == message
    done = agentfw("run", "--plugins", "shared", "-c", "pass", env={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (125, f"error: {message}\n")


def test_agentfws_own_names_stay_its_own(agentfw: Agentfw, tmp_path: Path) -> None:
    distribution(tmp_path, "aaa_evil", "1.0", policy="evil_module")
    row = listed(agentfw, tmp_path)["policy"]
    assert row["module"] == "agentfw_policy" and row["others"] == ["aaa_evil 1.0"] and "allow" in row["hooks"]  # type: ignore[operator]
    done = agentfw("plugins", "show", "policy", env={"PYTHONPATH": str(tmp_path)})
    assert "not used: that of aaa_evil 1.0" in done.stdout and "evil_module was imported" not in done.stdout
    assert "plugin `policy` is agentfw's own; that of aaa_evil 1.0 is not used" in done.stderr


def test_a_plugin_cannot_call_itself_by_anothers_name(agentfw: Agentfw, tmp_path: Path) -> None:
    distribution(tmp_path, "sly", "1.0", harmless="sly_module")
    (tmp_path / "sly_module.py").write_text("class Plugin: name = 'policy'\n")
    done = agentfw("run", "--plugins", "harmless", "-c", "pass", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 125
    assert done.stderr == "error: plugin `harmless` calls itself `policy`, which is another plugin's name\n"


# -- who chooses


@pytest.mark.kvm
def test_what_lies_beside_a_script_chooses_no_plugin(agentfw: Agentfw, tmp_path: Path) -> None:
    agent, here = tmp_path / "agent", tmp_path / "here"
    agent.mkdir()
    here.mkdir()
    evil = "raise SystemExit('the agent chose a plugin')\n"
    for name in ("evil.py", "policy.py", "agentfw_policy.py", "sitecustomize.py", "agentfw_native.py"):
        (agent / name).write_text(evil)
    distribution(agent, "evil_dist", "1.0", evil="evil_module", dns="evil_module")
    (agent / "agentfw.toml").write_text("[run]\nplugins = ['./evil.py', 'evil']\nmemory = 'none'\n[nonsense]\n")
    (agent / "agent.py").write_text(
        "import os, sys\nprint('ran', os.environ.get('PYTHONPATH'))\nos.environ['AGENTFW_RUN_PLUGINS'] = 'evil'\n"
    )
    done = agentfw("run", "--plugins", "dns,policy,native", str(agent / "agent.py"), cwd=here)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran None\n", ""), done
    done = agentfw("run", str(agent / "agent.py"), cwd=here)
    assert (done.returncode, done.stdout) == (0, "ran None\n"), done


def test_the_nearest_file_is_looked_for_upward_from_here_only(agentfw: Agentfw, tmp_path: Path) -> None:
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    (tmp_path / "agentfw.toml").write_text("[run]\nmemory = '1G'\n")
    (tmp_path / "a/beside").mkdir()
    (tmp_path / "a/beside/agentfw.toml").write_text("[run]\nmemory = '2G'\n")
    shown = agentfw("config", "show", "--json", cwd=inner)
    assert json.loads(shown.stdout)["file"] == str(tmp_path / "agentfw.toml")


# -- new


@pytest.mark.kvm
def test_a_new_plugin_installs_passes_its_tests_shows_up_and_runs(
    agentfw: Agentfw, agentfw_environment: dict[str, str], tmp_path: Path
) -> None:
    made = json.loads(agentfw("plugins", "new", "night_shift", "--dir", tmp_path, "--json").stdout)
    project = tmp_path / "night_shift"
    assert made["directory"] == str(project) and set(made["files"]) == {
        ".gitignore", "README.md", "conftest.py", "pyproject.toml", "night_shift/__init__.py", "night_shift/py.typed",
        "tests/test_night_shift.py",
    }  # fmt: skip
    assert not any("my_plugin" in file.read_text() for file in project.rglob("*") if file.is_file())
    place = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "--no-compile"]
    done = subprocess.run([*install, "--target", place, project], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    environment = {**agentfw_environment, "PYTHONPATH": str(place)}

    tests = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=project, env=environment, capture_output=True,
        text=True, timeout=100,
    )  # fmt: skip
    assert tests.returncode == 0 and "5 passed" in tests.stdout, tests.stdout

    row = listed(agentfw, place)["night_shift"]
    assert row["hooks"] == ["allow", "statistics"] and row["origin"] == "night_shift 0.1.0" and not row["default"]
    (tmp_path / "agentfw.toml").write_text('[night_shift]\nclosed = ["example.com"]\n')
    code = "import socket\ntry: socket.gethostbyname('example.com')\nexcept OSError as e: print(type(e).__name__)"
    run = agentfw("run", "--plugins", "night_shift", "--stats", "-c", code, env={"PYTHONPATH": str(place)})
    assert run.stdout == "gaierror\n" and run.returncode == 0 and "night_shift.denied" in run.stderr, run
    assert "night_shift.closed: example.com" in run.stderr


def test_new_plugins_pass_the_linters(agentfw: Agentfw, tmp_path: Path) -> None:
    agentfw("plugins", "new", "night_shift", "--dir", tmp_path)
    project = tmp_path / "night_shift"
    configuration = Path(__file__).parents[2] / "pyproject.toml"
    for command in (
        ["ruff", "check", "--no-cache", "."],  # with its own, as its author does
        ["ruff", "format", "--no-cache", "--check", "."],
        ["ruff", "check", "--config", str(configuration), "--no-cache", "."],
        ["ruff", "format", "--config", str(configuration), "--no-cache", "--check", "."],
        ["mypy", "--config-file", "", "--strict", "--cache-dir", str(tmp_path / "cache"), "-p", "night_shift"],
    ):
        done = subprocess.run([sys.executable, "-m", *command], cwd=project, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Mine", "lower-case letters"),
        ("1st", "lower-case letters"),
        ("my-plugin", "lower-case letters"),
        ("a/b", "lower-case letters"),
        ("..", "lower-case letters"),
        ("", "lower-case letters"),
        ("class", "lower-case letters"),
        ("match", "lower-case letters"),
        ("x" * 41, "lower-case letters"),
        ("nächte", "lower-case letters"),
        ("policy", "has a plugin of that name"),
        ("run", "agentfw uses it itself"),
        ("hooks", "agentfw uses it itself"),
        ("agentfw", "agentfw uses it itself"),
        ("agentfw_mine", "agentfw uses it itself"),
        ("json", "there is a module of that name"),
        ("msgspec", "there is a module of that name"),
        ("there", "exists already"),
        ("link", "exists already"),
    ],
)
def test_bad_names_and_places_are_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PluginError) as caught:
        write_project(name, tmp_path)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_place_that_is_none(agentfw: Agentfw, tmp_path: Path) -> None:
    done = agentfw("plugins", "new", "mine", "--dir", tmp_path / "none")
    assert done.returncode == 125 and done.stderr.startswith("error: ") and "is no directory" in done.stderr


@pytest.mark.parametrize("fits", range(7))
def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int) -> None:
    writes, write = iter(range(fits)), Path.write_text

    def write_some(self: Path, *args: str, **keywords: str) -> int:
        if next(writes, None) is None:
            raise OSError(28, "No space left on device")
        return write(self, *args, **keywords)

    monkeypatch.setattr(Path, "write_text", write_some)
    with pytest.raises(PluginError, match="No space left"):
        write_project("mine", tmp_path)
    assert not (tmp_path / "mine").exists()
