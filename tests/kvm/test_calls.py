"""System calls about files, good and bad, by a table and by chance: the same results and the same trees natively and in a VM."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.kvm
HERE = Path(__file__).parent
SHM = Path("/dev/shm")  # a tmpfs, as a guest's /tmp is


def same(agentfw: Callable[..., subprocess.CompletedProcess[str]], directory: Path, program: str, *arguments: str) -> list[str]:
    directory = SHM if os.access(SHM, os.W_OK) else directory
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o1777)  # the program makes itself an ordinary user
        command = [sys.executable, str(HERE / program), place, *arguments]
        native = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    got = agentfw("run", "--no-config", "--plugins", "", HERE / program, "/tmp", *arguments)
    assert got.returncode == 0, got.stderr
    expected = native.stdout.splitlines()
    assert not [*difflib.unified_diff(expected, got.stdout.splitlines(), "native", "VM", lineterm="", n=3)]
    return expected


def test_as_natively(agentfw: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    assert len(same(agentfw, tmp_path, "calls_probe.py")) > 4000


def test_by_chance(agentfw: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    assert len(same(agentfw, tmp_path, "files_chance.py", "1", "80")) > 80 * 120


def test_a_name_for_memory_is_no_path(agentfw: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """memfd_create(2): the name is for /proc only. That of the job stream's device opened the stream."""
    code = "import os; fd = os.memfd_create('/dev/agentfw'); os.write(fd, b'x'); print(os.fstat(fd).st_size, os.readlink(f'/proc/self/fd/{fd}'))"
    done = agentfw("run", "--no-config", "--plugins", "", "-c", code)
    assert done.stdout == "1 /memfd:/dev/agentfw (deleted)\n", done.stdout + done.stderr
