"""What agentfw's own processes take of the host, as its kernel counts it (proc_pid_stat(5), proc_pid_smaps(5),
proc_pid_limits(5))."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

_PSS = re.compile(rb"^Pss:\s+(\d+) kB$", re.MULTILINE)
_FILES = re.compile(rb"^Max open files\s+(\d+)", re.MULTILINE)
_BOOTED = re.compile(rb"^btime (\d+)$", re.MULTILINE)


def measure(processes: Mapping[str, int], proc: Path = Path("/proc")) -> dict[str, float]:
    """Statistics `process.NAME.cpu_seconds`, `.resident_memory_bytes`, ... of these processes, by name; nothing of those that are
    gone. To be called in a thread: summing up a large process's pages may take milliseconds."""
    booted = _first(_BOOTED, proc / "stat")
    found: dict[str, float] = {}
    for name, pid in processes.items():
        for what, value in _of(proc / str(pid), booted).items():
            found[f"process.{name}.{what}"] = value
    return found


def _of(place: Path, booted: float | None) -> dict[str, float]:
    try:
        # The name, in brackets, may hold anything.
        fields = (place / "stat").read_bytes().rpartition(b")")[2].split()
        found = {
            "cpu_seconds": (int(fields[11]) + int(fields[12])) / TICKS,
            "threads": float(fields[17]),
            "resident_memory_bytes": float(int(fields[21]) * PAGE),
        }
        if booted is not None:
            found["start_time_seconds"] = booted + int(fields[19]) / TICKS
    except (OSError, ValueError, IndexError):
        return {}
    pss, files = _first(_PSS, place / "smaps_rollup"), _first(_FILES, place / "limits")
    if pss is not None:
        found["proportional_memory_bytes"] = pss * 1024
    if files is not None:
        found["max_fds"] = files
    with contextlib.suppress(OSError):
        found["open_fds"] = float(sum(1 for _ in os.scandir(place / "fd")))
    return found


def _first(pattern: re.Pattern[bytes], file: Path) -> float | None:
    try:
        matched = pattern.search(file.read_bytes())
    except OSError:
        return None
    return None if matched is None else float(matched[1])
