"""What the benchmarks share: running a program natively and in a VM, the time of calls, medians."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

RUNS = 7
AGENTFW = [str(Path(sys.executable).with_name("agentfw")), "run", "-q"]


def parser(doc: str | None, *flags: str) -> argparse.ArgumentParser:
    """`--help` is the benchmark's docstring. `flags`: options without a value, `"--json: one object instead of the table"`."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in flags:
        name, _, text = flag.partition(": ")
        made.add_argument(name, action="store_true", help=text)
    return made


def native(script: Path, *args: str) -> Any:
    """Run `script` with this interpreter; it prints one JSON document."""
    return _json([sys.executable, str(script), *args])


def in_vm(script: Path, *args: str, options: tuple[str, ...] = ()) -> Any:
    """Run `script` by `agentfw run`; it prints one JSON document."""
    return _json([*AGENTFW, *options, str(script), *args])


def _json(command: list[str]) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"error: `{' '.join(command)}` exited with {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def median_rows(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def per_call(function: Callable[[], object], calls: int) -> float:
    """Nanoseconds: `function` makes `calls` of them; the median of RUNS."""
    runs = []
    for _ in range(RUNS):
        start = time.perf_counter_ns()
        function()
        runs.append((time.perf_counter_ns() - start) / calls)
    return statistics.median(runs)


async def per_await(function: Callable[[], Awaitable[object]], calls: int) -> float:
    """The same for what is awaited, once a call."""
    runs = []
    for _ in range(RUNS):
        start = time.perf_counter_ns()
        for _ in range(calls):
            await function()
        runs.append((time.perf_counter_ns() - start) / calls)
    return statistics.median(runs)


def mem_available() -> int:
    """MemAvailable of this machine, bytes: the kernel's own memory is in it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("error: /proc/meminfo has no MemAvailable")
