"""Options by variables (docs/reference/environment.md): named as the option is, on every command."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from agentfw.cli import cli, doctor

ROOT = Path(__file__).parents[2]
ErrorOf = Callable[[str], str]


@pytest.fixture
def error_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> ErrorOf:
    """What a command says on stderr, in a directory that has `a.py`."""
    from agentfw.cli import main

    (tmp_path / "a.py").write_text("")
    monkeypatch.chdir(tmp_path)

    def call(command: str) -> str:
        with pytest.raises(SystemExit):
            main(command.split())
        return capsys.readouterr().err

    return call


def commands(group: click.Group, *path: str) -> list[tuple[tuple[str, ...], click.Command]]:
    found = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found += commands(command, *path, name) if isinstance(command, click.Group) else [((*path, name), command)]
    return found


@pytest.mark.parametrize(
    ("path", "command"), commands(cli), ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_every_option_has_the_variable_of_its_name(path: tuple[str, ...], command: click.Command) -> None:
    prefix = "_".join(("AGENTFW", *path)).upper().replace("-", "_")
    context = click.Context(command, auto_envvar_prefix=prefix)
    for option in command.params:
        if isinstance(option, click.Option):
            names = {option.envvar} if isinstance(option.envvar, str) else set(option.envvar or ())
            names.add(f"{context.auto_envvar_prefix}_{option.name or ''}".upper())
            word = max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
            assert f"{prefix}_{word}" in names, option.opts


def test_a_variable_is_what_the_option_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from agentfw.cli import main

    monkeypatch.setenv("AGENTFW_POLICY_EXPLAIN_JSON", "1")
    monkeypatch.setenv("AGENTFW_POLICY_EXPLAIN_CONFIG", str(ROOT / "examples/agentfw.toml"))
    with pytest.raises(SystemExit):
        main(["policy", "explain", "api.openai.com"])
    assert capsys.readouterr().out.startswith('{"version": 1')
    monkeypatch.setenv("AGENTFW_POLICY_EXPLAIN_CONFIG", "/nowhere.toml")
    with pytest.raises(SystemExit):
        main(["policy", "explain", "--config", str(ROOT / "examples/agentfw.toml"), "api.openai.com"])
    assert capsys.readouterr().out.startswith('{"version": 1'), "what is typed goes before it"
    with pytest.raises(SystemExit):
        main(["policy", "explain", "api.openai.com"])
    assert "/nowhere.toml" in capsys.readouterr().err


def test_variables_that_are_read_are_in_the_reference() -> None:
    """By what the code names; those that are options' are generated there."""
    page = (ROOT / "docs/reference/environment.md").read_text()
    read: set[str] = set()
    for file in (file for top in ("core", "vmm", "plugins") for file in (ROOT / top).rglob("*.py")):
        if "guest" not in file.parts and "template" not in file.parts:
            text = file.read_text()
            read |= set(re.findall(r"""environ(?:\.get\(|\[)["'](\w+)["']""", text)) | set(
                re.findall(r"""["'](AGENTFW_[A-Z_]+)["']""", text)
            )
    # What templates and the guest's own OpenSSL are told inside, a test runner's, and names of what is no variable.
    read -= {"AGENTFW_PRELOAD", "AGENTFW_DENIED", "AGENTFW_UPSTREAM", "AGENTFW_PLUGIN_FAILED", "PYTEST_CURRENT_TEST"}
    read.discard("AGENTFW_RUN_TRACE_PLUGINS")  # named as the rule says
    assert not {name for name in read if f"`{name}`" not in page}


@pytest.mark.parametrize(
    ("variable", "value", "command", "said"),
    [
        ("AGENTFW_RUN_COUNT", "x", "run a.py", "invalid value for '-n' / '--count': 'x' is not a valid integer\n"),
        ("AGENTFW_TOP_INTERVAL", "0", "top", "invalid value for '--interval': 0.0 is not in the range"),
        ("AGENTFW_RUN_STATS", "maybe", "run a.py", "invalid value for '--stats': 'maybe' is neither yes nor no: write 1 or 0\n"),
        ("AGENTFW_RUN_TIMEOUT", "x", "run a.py", "`x` is no time"),
        ("AGENTFW_RUN_LABEL", "a=b x", "run a.py", "bad label `x`"),
        ("AGENTFW_RUN_ENV", "A=1 =2", "run a.py", "bad variable `=2`"),
        ("AGENTFW_RUN_PLUGINS", "dns,nope", "run a.py", "unknown plugin `nope`"),
        ("AGENTFW_CONFIG_SHOW_CONFIG", "/nowhere.toml", "config show", "/nowhere.toml: cannot be read"),
        ("AGENTFW_TOP_SORT", "zz", "top", "no column `zz`"),
        ("AGENTFW_AUDIT_QUERY_SINCE", "then", "audit query", "invalid value for '--since': `then` is no time"),
    ],
)
def test_an_error_names_the_variable_that_has_the_wrong_value(
    variable: str, value: str, command: str, said: str, error_of: ErrorOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFW_RUN_JSON", "0")
    monkeypatch.setenv(variable, value)
    error = error_of(command)
    assert error.startswith(f"error: {variable}: {said}"), error


def test_what_is_typed_is_no_variables(error_of: ErrorOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFW_RUN_COUNT", "3")
    assert error_of("run -n y a.py").startswith("error: invalid value for '-n' / '--count': 'y'")
    monkeypatch.setenv("AGENTFW_RUN_TIMEOUT", "3")
    assert error_of("run --timeout y a.py").startswith("error: `y` is no time")


def test_doctor_tells_variables_that_are_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentfw.cli.variables import misspelt

    for name in [name for name in os.environ if name.startswith("AGENTFW_")]:
        monkeypatch.delenv(name)
    options = "POOL_START_SIZE POOL_SOCKET TOP_SOCKET AUDIT_QUERY_SINCE RUN_JSON MOCK_LLM_KEY TRACE_PLUGINS"
    for name in (*options.split(), "NO_PROGRESS", "A_KEY_OF_MINE"):
        monkeypatch.setenv(f"AGENTFW_{name}", "1")
    assert list(misspelt(cli)) == []
    monkeypatch.setenv("AGENTFW_POOL_SIZE", "3")
    monkeypatch.setenv("AGENTFW_RUN_COUNTT", "3")
    near = ["did you mean `AGENTFW_POOL_START_SIZE`?", "did you mean `AGENTFW_RUN_COUNT`?"]
    assert [hint for _, hint in misspelt(cli)] == near
    assert [check.detail.partition(" ")[0] for check in doctor._variables()] == ["AGENTFW_POOL_SIZE", "AGENTFW_RUN_COUNTT"]
