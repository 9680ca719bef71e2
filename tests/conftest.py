"""What the tests share: the command itself, and `kvm` tests that skip loudly where there is no /dev/kvm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_skipped = 0


def _kvm_trouble() -> str | None:
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/kvm: {error.strerror}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    global _skipped
    trouble = _kvm_trouble()
    if trouble is None:
        return
    for item in items:
        if item.get_closest_marker("kvm"):
            item.add_marker(pytest.mark.skip(reason=trouble))
            _skipped += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _skipped:
        terminalreporter.section("KVM", sep="!", red=True)
        terminalreporter.line(f"{_skipped} tests that need /dev/kvm did NOT run: {_kvm_trouble()}", red=True)


Agentfw = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def agentfw_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of commands under test: a snapshot cache of their own, shared by the session, and nothing of the user's."""
    cache = tmp_path_factory.mktemp("cache")
    yield {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path_factory.mktemp("home")),
        "XDG_CACHE_HOME": str(cache),
        "LANG": "C.UTF-8",
    }
    shutil.rmtree(cache, ignore_errors=True)


@pytest.fixture
def agentfw(agentfw_environment: dict[str, str], tmp_path: Path) -> Agentfw:
    """`agentfw(*arguments, input=..., cwd=..., env=...)` runs the command to its end."""

    def run(
        *arguments: object, input: str = "", cwd: Path = tmp_path, env: dict[str, str] | None = None, timeout: float = 110
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", "from agentfw.cli import main; main()", *map(str, arguments)],
            input=input,
            cwd=cwd,
            env={**agentfw_environment, **(env or {})},
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout,
        )

    return run
