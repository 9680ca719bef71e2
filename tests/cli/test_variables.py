"""Options by variables (docs/reference/environment.md): named as the option is, on every command."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from agentfw.cli import cli

ROOT = Path(__file__).parents[2]


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
