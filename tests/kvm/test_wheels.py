"""Wheels as PyPI has them, imported and used in a VM (tests/guest/wheels.py). With the real SDKs against a model: test_slice.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

USES = Path(__file__).parents[1] / "guest/wheels.py"
NAMES = re.findall(r"\w+", USES.read_text().split("WHEELS = [")[1].split("]")[0])


def said(text: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in text.splitlines())


def test_each_is_used(agentfw: Agentfw) -> None:
    """What is not installed here is named, and fails if it is installed in part (`make test` installs the extra `wheels`)."""
    assert len(NAMES) == 15
    done = agentfw("run", "-q", "--no-config", "--plugins", "", str(USES))
    results = said(done.stdout)
    assert list(results) == NAMES, done.stderr
    failed = {name: result for name, result in results.items() if result.startswith("FAILED")}
    assert not failed, done.stderr
    missing = [name for name, result in results.items() if result.startswith("MISSING")]
    if missing:
        pytest.skip(f"not installed, so not tried: {', '.join(missing)} (pip install -e '.[test,wheels]')")
    assert set(results.values()) == {"ok"}


def test_each_is_used_natively() -> None:
    """What fails here is the probe's own fault."""
    done = subprocess.run([sys.executable, USES], capture_output=True, text=True, timeout=100)
    assert not [line for line in done.stdout.splitlines() if " FAILED " in line], done.stderr


GENERATOR = """
import numpy
numpy.random.seed(1)
numpy.random.random()
print("ready", flush=True)
import sys
sys.stdin.read()
print(numpy.random.random(), flush=True)
print(numpy.random.default_rng().random(), flush=True)
print("end", flush=True)
"""


def test_numpys_generator_in_copies(agentfw_environment: dict[str, str]) -> None:
    """Its global one is another in each copy of a running agent, and in the agent goes on as it was seeded."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed (pip install -e '.[test,wheels]')")
    from .test_fork import check

    found = check(agentfw_environment, GENERATOR)
    numpy.random.seed(1)
    numpy.random.random()
    assert float(found[0][0]) == numpy.random.random()
    assert len({lines[0] for lines in found}) == len({lines[1] for lines in found}) == 3


def test_numpys_generator_in_vms_of_a_template(agentfw: Agentfw) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed (pip install -e '.[test,wheels]')")
    code = "import numpy, sys; print(numpy.random.random(), numpy.random.randint(1 << 60))"
    command = ("run", "-q", "--no-config", "--plugins", "", "--preload", "numpy.random", "-n", "3", "-c", code)
    told = agentfw(*command).stdout.splitlines()
    assert len({line.split()[0] for line in told}) == len({line.split()[1] for line in told}) == 3
