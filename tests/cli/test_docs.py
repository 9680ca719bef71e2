"""The documentation of the command line, held to the code."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from agentfw.cli import cli

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reference/cli.md").read_text()


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and f"## agentfw {name}" in TEXT and command.help
    for inner in getattr(command, "commands", {}):
        assert inner in TEXT
    assert "broken" not in command.help


def test_exit_statuses_agree() -> None:
    text = (ROOT / "docs/reference/exit-codes.md").read_text()
    for status in ("124", "125", "126", "127", "128+n"):
        assert f"| {status} |" in text, status


def test_the_examples_configuration_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentfw.config import load_config
    from agentfw.plugins import DEFAULT, load_plugins

    monkeypatch.setenv("OPENAI_API_KEY", "sk-real-0123456789")
    config = load_config(ROOT / "examples/agentfw.toml")
    assert load_plugins(config.run.plugins or DEFAULT, config).names == ["dns", "tls", "policy", "credentials"]
