"""Programs of an operator's, and how their ends are seen."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from agentfw import cli
from agentfw.small_output import NoOutput, small_output


@pytest.fixture
def _ignored() -> Iterator[None]:
    """As whoever starts this process may have it."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("_ignored")
def test_an_end_that_nobody_sees_is_no_success() -> None:
    with pytest.raises(NoOutput, match="ignores SIGCHLD"):
        small_output(["echo", "x"], 10, 100)


@pytest.mark.usefixtures("_ignored")
def test_the_command_sees_how_its_processes_end() -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert small_output(["echo", "x"], 10, 100) == b"x\n"
    with pytest.raises(NoOutput, match="status 1"):
        small_output(["false"], 10, 100)
