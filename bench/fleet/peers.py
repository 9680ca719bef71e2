"""What else starts Python here: a process, a fork of a warmed one, bubblewrap, gVisor's runsc. What is not installed is said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from . import machine
from .numbers import percentile

PRINT = "print('hi', flush=True)"
WAIT = PRINT + "\nimport sys; sys.stdin.read()"


@dataclass(frozen=True)
class Peer:
    """`first_ms`: from the request to the first byte of a print; `up_seconds`: of `at_once` to have printed, all alive; `memory`:
    bytes each, by MemAvailable and by PSS."""

    name: str
    first_ms: float
    at_once: int
    up_seconds: float
    memory: float
    pss: float
    boundary: str


def commands() -> dict[str, tuple[list[str], str, str]]:
    """Name -> (command, its boundary, why it cannot be started)."""
    python = sys.executable
    binds = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    return {
        "python3 -c": ([python], "none", ""),
        "bubblewrap": (
            ["bwrap", "--unshare-all", "--die-with-parent", *binds, python],
            "namespaces",
            "" if shutil.which("bwrap") else "not installed (Debian: bubblewrap)",
        ),
        "gVisor (runsc, ptrace)": (
            ["runsc", "--rootless=false", "--platform=ptrace", "--network=none", "do", python],
            "kernel in userspace",
            "" if shutil.which("runsc") else "not installed (Debian: runsc)",
        ),
    }


async def measure(name: str, command: list[str], boundary: str, rounds: int, at_once: int) -> Peer:
    times = []
    for _ in range(rounds):
        at = time.monotonic()
        process = await _begin(command, PRINT)
        times.append((time.monotonic() - at) * 1e3)
        await _end([process])
    before = machine.available()
    at = time.monotonic()
    processes = await asyncio.gather(*(_begin(command, WAIT) for _ in range(at_once)))
    seconds = time.monotonic() - at
    await asyncio.sleep(0.5)
    used = before - machine.available()
    pss = sum(machine.proportional(machine.tree(process.pid)) for process in processes)
    await _end(processes)
    return Peer(name, percentile(times, 0.5), at_once, seconds, used / at_once, pss / at_once, boundary)


async def _begin(command: list[str], code: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *command, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(30):
            data = await process.stdout.read(1)
            if not data:
                said = (await process.stderr.read()).decode("utf-8", "replace").strip().splitlines()
                raise RuntimeError(said[-1] if said else "it ended without a word")
    except BaseException:
        await _end([process])
        raise
    return process


async def _end(processes: list[asyncio.subprocess.Process]) -> None:
    """At the end of their input they end; who does not is killed, with all that it started."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    waits = [asyncio.ensure_future(process.wait()) for process in processes]
    _, late = await asyncio.wait(waits, timeout=20)
    if late:
        for process in processes:
            if process.returncode is None:
                for pid in reversed(machine.tree(process.pid)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        await asyncio.wait(waits, timeout=10)


class Forker:
    """fork_server.py."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls) -> AsyncIterator[Forker]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", str(Path(__file__).with_name("fork_server.py")), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                if await process.stdout.readline() != b"ready\n":
                    raise RuntimeError("the fork server did not start")
            yield cls(process)
        finally:
            await _end([process])

    async def _asked(self, order: str) -> list[int]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(order.encode() + b"\n")
        async with asyncio.timeout(60):
            return [int(word) for word in (await self._process.stdout.readline()).split()]

    async def first_print(self) -> float:
        """ms from before fork() to the child's first byte, by the parent's clock."""
        return (await self._asked("print"))[0] / 1e6

    async def peer(self, rounds: int, at_once: int) -> Peer:
        times = [await self.first_print() for _ in range(rounds)]
        before = machine.available()
        nanoseconds, *pids = await self._asked(f"hold {at_once}")
        await asyncio.sleep(0.5)
        used = before - machine.available()
        pss = machine.proportional(pids)
        assert self._process.stdin is not None
        self._process.stdin.write(b"end\n")
        return Peer(
            "fork() of a warmed Python", percentile(times, 0.5), at_once, nanoseconds / 1e9, used / at_once, pss / at_once, "none"
        )
