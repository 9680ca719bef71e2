"""What holds for all tests of a run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]


def test_examples_may_take_as_long_as_the_machine_needs() -> None:
    assert settings.default is not None and settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check


def test_what_tests_start_can_be_interrupted() -> None:
    """Also if a shell runs all of it in the background."""
    code = (
        "import signal\nfor number in (signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)\n"
        "import subprocess, sys, tests.conftest\n"
        "ask = 'import signal; print([signal.getsignal(each) != signal.SIG_IGN for each in (signal.SIGINT, signal.SIGHUP)])'\n"
        "subprocess.run([sys.executable, '-c', ask], check=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout == "[True, True]\n", done.stderr
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
