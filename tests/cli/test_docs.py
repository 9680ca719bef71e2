"""The documentation of the command line, held to the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest
from agentfw.cli import cli
from agentfw.cli.run import run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reference/cli.md").read_text()


def test_every_option_of_run_and_no_other() -> None:
    table = TEXT.partition("| option | meaning |")[2].partition("\n\n")[0]
    documented = set(
        re.findall(r"`(--?[a-z-]+)", "\n".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `")))
    )
    real = {flag for option in run.params if isinstance(option, click.Option) for flag in option.opts} - {"-h", "--help"}
    assert documented == real


def options(*path: str) -> set[str]:
    """Those of a command, all spellings."""
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts} - {"-h", "--help"}


def section(name: str) -> str:
    return TEXT.split(f"\n## agentfw {name}\n")[1].split("\n## ")[0]


COMMON = {"--json", "--socket", "--url", "--token-file"}


@pytest.mark.parametrize(("name", "path"), [("pool", ("pool", "start")), ("submit", ("submit",))])
def test_every_option_of_those_with_a_table(name: str, path: tuple[str, ...]) -> None:
    table = section(name).partition("| option | meaning |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.replace("\\|", "/").splitlines() if row.startswith("| `")]
    assert set(re.findall(r"`(--?[a-z-]+)", "\n".join(cells))) == options(*path)


@pytest.mark.parametrize("name", ["ps", "logs", "wait", "kill", "top"])
def test_every_option_of_the_commands_about_jobs(name: str) -> None:
    assert set(re.findall(r"`(--?[a-z-]+)", section(name))) | COMMON == options(name)


@pytest.mark.parametrize("name", ["status", "stop", "drain", "reload"])
def test_every_option_of_the_commands_about_pools(name: str) -> None:
    (row,) = (line for line in section("pool").splitlines() if line.startswith(f"| `agentfw pool {name}` |"))
    assert set(re.findall(r"`(--?[a-z-]+)", row)) | COMMON == options("pool", name)
    assert all(f"`{flag}" in section("pool") for flag in COMMON)


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and f"## agentfw {name}" in TEXT and command.help
    for inner in getattr(command, "commands", {}):
        assert inner in TEXT
    assert "broken" not in command.help


def test_exit_statuses_agree() -> None:
    for name in ("README.md", "docs/reference/cli.md"):
        text = (ROOT / name).read_text()
        for status in ("124", "125", "126", "127", "128+n"):
            assert f"| {status} |" in text, (name, status)


def test_the_examples_configuration_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentfw.config import load_config
    from agentfw.plugins import DEFAULT, load_plugins

    monkeypatch.setenv("OPENAI_API_KEY", "sk-real-0123456789")
    config = load_config(ROOT / "examples/agentfw.toml")
    assert load_plugins(config.run.plugins or DEFAULT, config).names == ["dns", "tls", "policy", "credentials"]


@pytest.mark.parametrize("name", ["README.md", "docs/getting-started.md"])
def test_configurations_in_the_text_are_valid(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from agentfw.config import load_config
    from agentfw.plugins import DEFAULT, load_plugins

    monkeypatch.setenv("OPENAI_API_KEY", "sk-real-0123456789")
    monkeypatch.setenv("MODEL_KEY", "sk-mock-key")
    blocks = [block for block in re.findall(r"(?:^    .*\n|\n)+", (ROOT / name).read_text(), re.MULTILINE) if "[policy]" in block]
    assert blocks
    for block in blocks:
        text = "\n".join(line[4:] for line in block.strip("\n").splitlines())
        tomllib.loads(text)
        (tmp_path / "agentfw.toml").write_text(text)
        load_plugins(DEFAULT, load_config(tmp_path / "agentfw.toml"))
