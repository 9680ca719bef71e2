"""Other processes, as tests look at them and tell them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path


def alive(pids: Iterable[int]) -> set[int]:
    """Those that run: not the dead ones that nobody has waited for."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.add(pid)
    return found


def all_end(pids: Iterable[int], seconds: float = 20) -> bool:
    """Who was killed is there until the kernel has taken it apart."""
    deadline = time.monotonic() + seconds
    while alive(pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def tell(process: subprocess.Popen[bytes], number: signal.Signals, seconds: float = 20) -> None:
    """Sends the signal and waits until it has got it: of two that come while a process has no CPU, it sees one."""
    process.send_signal(number)
    deadline = time.monotonic() + seconds
    while process.poll() is None and _pending(process.pid) >> (number - 1) & 1:
        assert time.monotonic() < deadline, f"signal {number} is not taken"
        time.sleep(0.005)


def _pending(pid: int) -> int:
    """Signals that the process as a whole has not taken yet (proc(5): ShdPnd)."""
    try:
        for line in (Path("/proc") / str(pid) / "status").read_text().splitlines():
            if line.startswith("ShdPnd:"):
                return int(line.split()[1], 16)
    except OSError:
        pass
    return 0
