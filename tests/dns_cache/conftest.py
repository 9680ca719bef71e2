"""Real DNS servers, on 127.0.0.1 and high ports, of which the tests' zones are all they know."""

from __future__ import annotations

import pytest

from .. import debian


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, reason in debian.MISSING.items():
        terminalreporter.section(name, sep="!", red=True)
        terminalreporter.line(f"the tests against a real {name} did NOT run: {reason}", red=True)
