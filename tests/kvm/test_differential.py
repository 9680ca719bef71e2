"""The same program under plain `python` and in a VM: same output, same end."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..guest import probes

pytestmark = pytest.mark.kvm

# What a guest has instead of the host's: its environment, and its ids.
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/home/agent",
    "USER": "agent",
    "LOGNAME": "agent",
    "LANG": "C.UTF-8",
}


def plain(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|repeated 9\d\d more", "...", text)


@pytest.mark.parametrize("name", probes.CASES)
def test_as_natively(name: str, tmp_path: Path, agentfw: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    probes.write(tmp_path)
    arguments, stdin = probes.CASES[name]
    arguments = [argument.format(dir=tmp_path) if argument.startswith("{dir}") else argument for argument in arguments]
    native = subprocess.run([sys.executable, *arguments], input=stdin, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True,
                            errors="surrogateescape", timeout=60)  # fmt: skip
    got = agentfw("run", "--no-config", "--plugins", "", *arguments, input=stdin, cwd=tmp_path)
    status = native.returncode if native.returncode >= 0 else 128 - native.returncode
    assert (plain(got.stderr), plain(got.stdout), got.returncode) == (plain(native.stderr), plain(native.stdout), status)
