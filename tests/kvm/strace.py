"""The real strace, beside which programs in VMs are held."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .. import debian


def traced(directory: Path, command: list[str], *options: str) -> str:
    """What strace says of a program and its threads. Skips, and a run's end shows it, if there is none or it may not trace."""
    strace = debian.program("strace", "strace")
    if strace is not None:
        told = directory / "native"
        told.unlink(missing_ok=True)
        ended = subprocess.run(
            [strace.path, "-f", "-o", str(told), *options, *command],
            cwd=directory,
            env=strace.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        trouble = ended.stderr.decode(errors="replace").strip()
        if told.exists() and "ptrace" not in trouble:
            return told.read_text()
        debian.MISSING["strace"] = f"it cannot trace here: {trouble[-200:]}"
    pytest.skip(f"no strace: {debian.MISSING['strace']}")
