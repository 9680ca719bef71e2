"""Servers of several kinds with many clients at once inside a VM: the same bytes as natively."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

PROGRAM = Path(__file__).parents[1] / "guest/servers.py"


def test_as_natively(agentfw: Agentfw) -> None:
    native = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=True, timeout=100)
    guest = agentfw("run", "--no-config", "--plugins", "", str(PROGRAM))
    assert guest.returncode == 0, guest.stderr
    assert guest.stdout == native.stdout
    assert len(guest.stdout.splitlines()) == 5
