"""`pytest_plugins = ["agentfw.testing.pytest_plugin"]` in a conftest.py: what did not run for want of /dev/kvm is told in red."""

from __future__ import annotations

import pytest

from . import vm


@pytest.fixture
def kvm() -> None:
    """For tests that make virtual machines by other means than `run_agent`: skips them without /dev/kvm."""
    vm.require_kvm()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if vm.skipped:
        terminalreporter.section("KVM", sep="!", red=True)
        for test in vm.skipped:
            terminalreporter.line(f"did NOT run, {vm.kvm_trouble() or 'no /dev/kvm'}: {test}", red=True)
