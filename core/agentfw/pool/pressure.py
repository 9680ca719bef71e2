"""How the host's memory is doing, and the pool's part of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

LEFT = 0.10
"""Of the host's memory: with less available it is "tight" ..."""
LITTLE = 0.05
"""... and with less than this "exhausted"."""
STALLED = (10.0, 40.0)
"""Percent of the last ten seconds in which some task waited for memory (PSI): the same."""

KERNEL = 512 << 10
"""Bytes that the kernel keeps for a VM, about: it does not say for whom."""

Level = Literal["fine", "tight", "exhausted"]

_AVERAGE = re.compile(r"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)
_MEMINFO = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", re.MULTILINE)
_STATUS = re.compile(r"^(?:RssAnon|VmPTE):\s+(\d+) kB$", re.MULTILINE)


def used(pids: Iterable[int], vms: int = 0, proc: Path = Path("/proc")) -> int:
    """Bytes of memory that these processes, with so many VMs in them, have for themselves: what they wrote, page tables, what the
    kernel keeps. What they share, the snapshot most of all, is not in it, nor what lies in memfds (`Cell.other_memory()`)."""
    total = vms * KERNEL
    for pid in pids:
        try:
            text = (proc / str(pid) / "status").read_text()
        except (OSError, UnicodeDecodeError):
            continue  # it has just ended
        total += sum(int(number) for number in _STATUS.findall(text)) << 10
    return total


def host(proc: Path = Path("/proc")) -> Level:
    """By what is available, and by PSI where the kernel has it."""
    level: Level = "fine"
    found = dict(_MEMINFO.findall(_read(proc / "meminfo")))
    if len(found) == 2 and int(found["MemTotal"]):
        part = int(found["MemAvailable"]) / int(found["MemTotal"])
        level = "exhausted" if part < LITTLE else "tight" if part < LEFT else "fine"
    stalled = _AVERAGE.search(_read(proc / "pressure/memory"))
    if stalled is not None and level != "exhausted":
        share = float(stalled[1])
        level = "exhausted" if share >= STALLED[1] else "tight" if share >= STALLED[0] else level
    return level


def of_limit(used: int, limit: int | None) -> Level:
    """Of the pool's own limit, `[pool] memory`."""
    if limit is None or used < limit * (1 - LEFT):
        return "fine"
    return "exhausted" if used >= limit else "tight"


def worse(one: Level, other: Level) -> Level:
    order: tuple[Level, ...] = ("fine", "tight", "exhausted")
    return max(one, other, key=order.index)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
