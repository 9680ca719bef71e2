"""Several messages by one call, sockets whose names were removed, and what is read for others: as natively."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.kvm
STEPS = Path(__file__).parents[1] / "guest/message_steps.py"


def test_as_natively(agentfw: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    for name in ("native", "guest"):
        (tmp_path / name).mkdir()
    native = subprocess.run(
        [sys.executable, str(STEPS), str(tmp_path / "native")], capture_output=True, text=True, check=True, timeout=100
    )
    guest = agentfw("run", "--no-config", "--plugins", "", "--mount", f"{tmp_path / 'guest'}:/data:rw", str(STEPS), "/data")
    assert guest.returncode == 0, guest.stderr
    assert guest.stdout.splitlines() == native.stdout.splitlines()
