"""What all of a pool takes of the host's memory: router, workers, cells, what they share, and what the kernel keeps for them.

No sum of resident sizes. Of proc_pid_status(5): anonymous pages, which are a process's own (none of these is forked), page
tables, and of mapped files those of the process that maps most, once for all of a kind. Memory without a file (memfd_create(2):
snapshots, windows, private files) counts by its inodes, mapped or not. The kernel's own memory for VMs is in no process's
figures: where the pool has a control group to itself (systemd gives each service one), that says; else it is estimated.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

SECONDS = 5.0
"""Between two looks (bench/pool_memory.py has what one costs)."""
KERNEL = 256 << 10
"""Bytes that the kernel keeps for a VM, about (likewise)."""
_STATUS = re.compile(rb"^(Name|RssAnon|RssFile|VmPTE):\s+(.*?)(?: kB)?$", re.MULTILINE)
_KERNEL = re.compile(rb"^kernel (\d+)$", re.MULTILINE)


class Physical:
    """Of one pool; belongs to the router's loop, and looks in a thread."""

    def __init__(self) -> None:
        self._known = 0, False
        self._at = float("-inf")
        self._looking = asyncio.Lock()
        _memory_device()  # later there may be no descriptor left for it

    async def look(self, workers: Iterable[int], vms: int) -> int:
        """Bytes, not older than SECONDS. `workers`: their processes; `vms`: that there are."""
        async with self._looking:  # who asks meanwhile is told the same, not what was before
            now = time.monotonic()
            if now - self._at >= SECONDS:
                self._known = await asyncio.to_thread(measure, os.getpid(), list(workers))
                self._at = now
        used, whole = self._known
        return used if whole else used + vms * KERNEL


def measure(
    router: int, workers: Iterable[int], proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> tuple[int, bool]:
    """Bytes of these processes and of those below them; whether what the kernel keeps for VMs is among them. Processes that end
    meanwhile, and what may not be read, are left out."""
    pids = _below([router, *workers], proc)
    pages = tables = 0
    mapped: dict[bytes, int] = {}
    files: dict[int, int] = {}
    device = _memory_device()
    for pid in pids:
        place = proc / str(pid)
        found = dict(_STATUS.findall(_read(place / "status")))
        kind = found.pop(b"Name", b"")
        sizes = {name: int(size) << 10 for name, size in found.items() if size.isdigit()}
        pages += sizes.get(b"RssAnon", 0)
        tables += sizes.get(b"VmPTE", 0)
        mapped[kind] = max(mapped.get(kind, 0), sizes.get(b"RssFile", 0))
        _memory_files(place / "fd", device, files)
    total = pages + sum(mapped.values()) + sum(files.values())
    kernel = _kernel(router, set(pids), proc, groups)
    return (total + tables, False) if kernel is None else (total + kernel, True)


def _below(roots: list[int], proc: Path) -> list[int]:
    """Them and theirs. (Cells have none, and are many: nobody is asked below a second level of a root's.)"""
    found = dict.fromkeys(roots)
    for root in roots:
        try:
            tasks = list((proc / str(root) / "task").iterdir())
        except OSError:
            continue
        for task in tasks:
            found |= dict.fromkeys(map(int, _read(task / "children").split()))
    return list(found)


def _memory_files(place: Path, device: int, found: dict[int, int]) -> None:
    try:
        entries = os.scandir(place)
    except OSError:
        return
    with entries:
        for entry in entries:
            try:
                status = entry.stat()
            except OSError:
                continue
            if status.st_dev == device:
                found[status.st_ino] = status.st_blocks * 512


@functools.cache
def _memory_device() -> int:
    """Of the file system in which all memory without a file is."""
    fd = os.memfd_create("agentfw-look", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def _kernel(router: int, pids: set[int], proc: Path, groups: Path) -> int | None:
    """By the router's control group (cgroup v2, memory.stat: page tables, VMs, sockets), if nobody else is in it."""
    lines = _read(proc / str(router) / "cgroup").splitlines()
    path = next((line[3:] for line in lines if line.startswith(b"0::/")), b"/")
    place = groups / os.fsdecode(path).lstrip("/")
    if path == b"/" or not set(map(int, _read(place / "cgroup.procs").split())) <= pids:
        return None
    kernel = _KERNEL.search(_read(place / "memory.stat"))
    return int(kernel[1]) if kernel is not None else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
