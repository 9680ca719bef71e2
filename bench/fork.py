"""What it costs to fork a running agent.

    python bench/fork.py [--copies 8] [--rounds 5] [--megabytes 4] [--json]

An agent of some MEGABYTES of objects, beside the modules of the template, waits; it is saved, and copies go on in a cell of their
own. Printed, medians: the time to save it (all of it, and CPU time of this process and the cells), memory of the saved VM, from
the start of the copies' cell to the first copy's first output and to the last one's, CPU time a copy, private pages of a copy.
Beside it in one run: fork() of a Python with the same state to the child's first output, and a VM restored from the template
until it says that it waits for its job (which has no state at all).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import common
import uvloop
from agentfw.agents import Agent
from agentfw.dispatch import Job, default_environment, hand_over, read_frame
from agentfw.guestfs import base_view, find_interpreter
from agentfw.lives import Host, Life
from agentfw.snapshots import SnapshotStore, Template, cell_config
from agentfw_vmm import Cell, CellConfig
from agentfw_vmm.in_memory import in_memory
from fleet import machine

HERE = Path(__file__).parent
_pids = itertools.count(1000)


async def start(config: CellConfig) -> Cell:
    host = Host(None)
    host.cell = await Cell.start(config, host)
    for vm in range(config.vms):
        host.lives[vm] = Life(Agent(str(vm), str(vm)), host, vm)
    return host.cell


async def heard(cell: Cell, vm: int, text: bytes) -> None:
    seen = b""
    async with asyncio.timeout(120):
        while text not in seen:
            part = await cell.stream(vm, 1).receive()
            if not part:
                raise SystemExit(f"error: VM {vm} ended: {await cell.stream(vm, 2).receive()!r}")
            seen += part


async def agent(template: Template, megabytes: int) -> tuple[Cell, dict[str, float]]:
    """-> its cell, and what a restore from the template took."""
    store = SnapshotStore()
    snapshot, key = await store.get(template, lambda what, seconds: contextlib.nullcontext())
    cell = await start(cell_config(template, vms=1, runners=1, snapshot_in=in_memory(snapshot), key=key))
    at, cpu = time.perf_counter(), machine.cpu()
    cell.restore(0, next(_pids))
    await read_frame(cell.stream(0, 3))
    fresh = {"wall_ms": (time.perf_counter() - at) * 1e3, "cpu_ms": (machine.cpu() - cpu).ours * 1e3}
    code = f"MEGABYTES = {megabytes}\n" + (HERE / "guest/branching.py").read_text()
    await hand_over(cell.stream(0, 3), Job("code", code, (), default_environment(), "/tmp"))
    await heard(cell, 0, b"ready")
    return cell, fresh


async def fork(cell: Cell, copies: int) -> dict[str, float]:
    at, cpu = time.perf_counter(), machine.cpu()
    saved = await cell.save(0)
    found = {"save_ms": (time.perf_counter() - at) * 1e3, "save_cpu_ms": (machine.cpu() - cpu).ours * 1e3}
    at, cpu = time.perf_counter(), machine.cpu()
    branch = await start(saved.config(copies))
    found["cell_ms"] = (time.perf_counter() - at) * 1e3
    base = machine.anonymous(branch.pid)
    try:
        for vm in range(copies):
            branch.restore(vm, next(_pids), note=b"{}\n")
        waits = [asyncio.ensure_future(heard(branch, vm, b"here")) for vm in range(copies)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        found["first_ms"] = (time.perf_counter() - at) * 1e3
        await asyncio.gather(*waits)
        found["last_ms"] = (time.perf_counter() - at) * 1e3
        found["copy_cpu_ms"] = (machine.cpu() - cpu).ours * 1e3 / copies
        await asyncio.sleep(0.05)
        found["pages"] = (machine.anonymous(branch.pid) - base) / 4096 / copies
        found["saved_mb"] = saved.memory() / 1e6
    finally:
        await branch.close()
        saved.close()
    return found


def forker(count: int, megabytes: int) -> dict[str, float]:
    command = [sys.executable, str(HERE / "guest/forker.py"), str(count), str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, stdin=subprocess.DEVNULL)
    rows: dict[str, list[float]] = json.loads(done.stdout)
    return {name: statistics.median(values) for name, values in rows.items()}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    interpreter = find_interpreter(sys.executable, default_environment())
    view = base_view(interpreter)
    view.cwd = "/tmp"
    template = Template(interpreter, view, default_environment(), (), 512 << 20)
    cell, fresh = await agent(template, options.megabytes)
    try:
        rows = [await fork(cell, options.copies) for _ in range(options.rounds)]
    finally:
        await cell.close()
    return {"forks": common.median_rows(rows), "fresh": fresh, "os_fork": forker(20, options.megabytes)}


def show(found: dict[str, Any], copies: int) -> None:
    forks, fresh, native = found["forks"], found["fresh"], found["os_fork"]
    print(f"save a running agent     {forks['save_ms']:7.1f} ms  {forks['save_cpu_ms']:6.1f} core-ms, {forks['saved_mb']:.1f} MB")
    print(
        f"{copies:2} copies                {forks['first_ms']:7.1f} ms to the first output, {forks['last_ms']:.1f} to the last's"
    )
    print(f"  of it their cell's start{forks['cell_ms']:6.1f} ms  {forks['copy_cpu_ms']:6.1f} core-ms a copy in all")
    print(f"  private pages of a copy{forks['pages']:7.0f}")
    print(
        f"fork() of the same       {native['wall_ms']:7.1f} ms  {native['cpu_ms']:6.1f} core-ms, "
        f"{native['pages']:.0f} private pages"
    )
    print(f"restore of a template    {fresh['wall_ms']:7.1f} ms  {fresh['cpu_ms']:6.1f} core-ms, without the state")


def main() -> None:
    parser = common.parser(__doc__, "--json: one object instead of the text")
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=4)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(options))
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        show(found, options.copies)


if __name__ == "__main__":
    main()
