"""Commands of plugins: entry points in the group agentfw.commands."""

from __future__ import annotations

from typing import Any

import click
import importlib_metadata
import pytest
from agentfw import cli
from agentfw.cli import _main


def points(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    found = [importlib_metadata.EntryPoint(name, value, cli.GROUP) for name, value in values.items()]
    real: Any = importlib_metadata.entry_points
    monkeypatch.setattr(cli.importlib_metadata, "entry_points", lambda group: found if group == cli.GROUP else real(group=group))


def test_they_are_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    points(monkeypatch, policy="agentfw_policy.cli:policy", run="agentfw_policy.cli:policy")
    assert cli.cli.list_commands(click.Context(cli.cli)).count("run") == 1, "agentfw's own names cannot be taken"
    assert _main(["policy", "--help"]) == 0
    assert "explain" in capsys.readouterr().out
    assert _main(["polici"]) == 2
    assert "did you mean `policy`?" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["nowhere_at_all:x", "agentfw_policy.cli:nothing", "agentfw_policy:Plugin"])
def test_a_broken_one_says_so_and_harms_no_other(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points(monkeypatch, broken=value)
    assert _main(["--help"]) == 0
    assert "broken" in capsys.readouterr().out
    assert _main(["broken", "--any", "thing"]) == 125
    assert "command `broken` does not work: " in capsys.readouterr().err
