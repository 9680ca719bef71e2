"""System calls about files, good and bad: the same results and the same trees natively and in a VM."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.kvm
HERE = Path(__file__).parent
SHM = Path("/dev/shm")  # a tmpfs, as a guest's /tmp is


def test_as_natively(agentfw: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    directory = SHM if os.access(SHM, os.W_OK) else tmp_path
    native = subprocess.run(
        [sys.executable, HERE / "calls_probe.py", directory], capture_output=True, text=True, timeout=60, check=True
    )
    got = agentfw("run", "--no-config", "--plugins", "", HERE / "calls_probe.py", "/tmp")
    assert got.returncode == 0, got.stderr
    expected = native.stdout.splitlines()
    assert len(expected) > 6000
    assert not [*difflib.unified_diff(expected, got.stdout.splitlines(), "native", "VM", lineterm="", n=0)]
