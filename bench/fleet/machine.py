"""What a set of processes takes of the machine: CPU time, descriptors; and what the machine has left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def tree(root: int | None = None) -> list[int]:
    """`root` (this process) and all its descendants that live."""
    found = [root or os.getpid()]
    for pid in found:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:  # it has just ended
            continue
    return found


def _schedstat(pid: int) -> float | None:
    """Seconds on a CPU of all its threads, by the scheduler's clock: /proc/PID/stat counts in ticks of 10 ms."""
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return total / 1e9


def _stat(pid: int) -> tuple[float, float]:
    """Seconds of CPU of all its threads, ended ones too; and of children that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    return (int(fields[11]) + int(fields[12])) / TICK, (int(fields[13]) + int(fields[14])) / TICK


@dataclass(frozen=True)
class Cpu:
    """CPU seconds at one moment. `ours`: of a process with all its descendants, also of those that ended; `machine`: all that
    was not idle (with others' work in it, and the kernel's own threads')."""

    ours: float
    machine: float

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.ours - other.ours, self.machine - other.machine)


def cpu(root: int | None = None) -> Cpu:
    ours = 0.0
    for pid in tree(root):
        own, ended = _stat(pid)
        exact = _schedstat(pid)
        # Ended threads are in the process's ticks only: the larger of both, they differ by less than a tick else.
        ours += ended + (own if exact is None else max(exact, own - 1 / TICK))
    return Cpu(ours, busy())


def cells(root: int | None = None) -> float:
    """CPU seconds of the cells alone: guests, and what the kernel does for them."""
    total = 0.0
    for pid in tree(root):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if name.startswith("agentfw-cell"):
            total += _schedstat(pid) or 0.0
    return total


def busy() -> float:
    """Seconds that the machine's CPUs were not idle, since it started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / TICK


def available() -> int:
    """MemAvailable, bytes: the kernel's own memory is in what is missing."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("error: /proc/meminfo has no MemAvailable")


def descriptors(root: int | None = None) -> int:
    """Open in this process and all below it."""
    count = 0
    for pid in tree(root):
        try:
            count += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
    return count


def proportional(pids: list[int]) -> int:
    """PSS of these, bytes: shared pages divided among those who share them."""
    total = 0
    for pid in pids:
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def anonymous(pid: int) -> int:
    """Bytes of private pages of a process."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    except OSError as error:
        raise SystemExit(f"error: process {pid}: {error}") from None
    return 0
