"""Python's own file modules in a VM, beside the same under plain `python`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.kvm
PROBE = Path(__file__).with_name("files_probe.py")


@pytest.mark.parametrize("where", ["tmp", "mount"])
def test_as_natively(where: str, tmp_path: Path, agentfw: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "native").mkdir()
    (tmp_path / "shared").mkdir()
    probe = shutil.copy(PROBE, tmp_path / "program")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    native = subprocess.run(
        [sys.executable, str(probe), str(tmp_path / "native")], env=environment, capture_output=True, text=True, timeout=60
    )
    assert native.returncode == 0, native.stderr
    mounts = ["--mount", f"{tmp_path}/shared:/data:rw"] if where == "mount" else []
    got = agentfw(
        "run", "--no-config", "--plugins", "", *mounts, str(probe), "/data" if where == "mount" else "/tmp", cwd=tmp_path
    )
    assert (got.stdout.splitlines(), got.returncode) == (native.stdout.splitlines(), 0), got.stderr
    assert list((tmp_path / "shared").iterdir()) == []
