"""The documentation of the command line, held to the code."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[policy]\nallow = 3\n', "see `agentfw plugins show policy` for what its table may hold"),
        ("[run]\nmemory = 512\n", "see docs/reference/configuration.md for what the file may hold"),
        ('[run]\nplugins = ["./mine.py"]\n[mine]\nn = "x"\n', "`agentfw plugins show FILE`, with the file of `mine`, for what"),
        ('[[credentials.rule]]\nhost = "a.example"\nheader = "x"\nvalue = "${env:NO_SUCH_KEY}"\n', "`export NO_SUCH_KEY=...`"),
    ],
)
def test_what_is_wrong_in_the_file_comes_with_a_place_to_look(
    text: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agentfw.cli import main

    (tmp_path / "agentfw.toml").write_text(text)
    (tmp_path / "mine.py").write_text("import msgspec\nclass C(msgspec.Struct):\n    n: int\nclass Plugin: config_type = C\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["run", "-c", "0"])
    error, _, hinted = capsys.readouterr().err.partition("\n\nhint: ")
    assert ended.value.code == 125 and "agentfw.toml:" in error and hint in hinted


def test_a_named_file_that_is_not_there_says_which_is_read_without(capsys: pytest.CaptureFixture[str]) -> None:
    from agentfw.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["run", "--config", "none.toml", "-c", "0"])
    assert ended.value.code == 125
    assert capsys.readouterr().err.splitlines()[::2] == [
        "error: none.toml: cannot be read: No such file or directory",
        "hint: without a name the nearest agentfw.toml is read, from here upward",
    ]


def test_the_page_that_hints_name_is_there() -> None:
    text = "".join(file.read_text() for file in (ROOT / "core/agentfw").rglob("*.py"))
    named = set(re.findall(r"docs/[\w/-]+\.md", text))
    assert named and not [name for name in named if not (ROOT / name).is_file()]


def test_no_command_is_cut_in_the_list_of_them() -> None:
    from click.testing import CliRunner

    listed = CliRunner().invoke(cli, ["--help"], terminal_width=80).output.partition("\nCommands:\n")[2].partition("\n\n")[0]
    assert len(listed.splitlines()) == len(cli.list_commands(click.Context(cli)))
    assert not [line for line in listed.splitlines() if line.endswith("...")]
