"""What a warm VM costs: to make, to keep, and to use.

    python bench/warm.py [--agents 256] [--at-once 16] [--jobs 40] [--json]

VMs are restored as pools do it (cells alone, no plugins; 32 VMs a cell): some until they say that they wait for their job, and
have run ahead, the others until they stand ready to run from where the template stopped. CPU time of this process and all cells
a VM, the last 64 beside the first; MemAvailable a VM, so that all of the kernel's memory is counted; private pages of guest
memory a VM. Must: 1.5 core-ms, 1 MB.
Then jobs into them, one after the other: from the worker's first step to the first bytes that the script prints, wall and CPU
time of all processes, beside fork() of a Python that has imported the same modules and runs the same script in the child.
Must: faster than the fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import common
import uvloop
from agentfw.agents import Agent
from agentfw.dispatch import AHEAD, Job, default_environment, hand_over, read_frame
from agentfw.guestfs import add_program, base_view, find_interpreter
from agentfw.lives import Host, Life
from agentfw.pool.cells import SOON_PART
from agentfw.rehearsal import rehearse
from agentfw.snapshots import SnapshotStore, Template, cell_config
from agentfw_vmm import Cell
from agentfw_vmm.in_memory import in_memory
from fleet import machine

CELL_VMS = 32  # as in pools
GROUP = 64
SCHED = 2  # CPUCLOCK_SCHED: the kind of clock, in the number of a process's (clock_getcpuclockid(3))
SCRIPT = "import sys\nprint('first', flush=True)\nsys.stdin.read()\n"
HERE = Path(__file__).parent


class Vms:
    """`count` VMs, by number."""

    def __init__(self, template: Template, count: int) -> None:
        self.template = template
        self.count = count
        self.cells: list[Cell] = []
        self.pages: list[int] = []

    async def start(self, store: SnapshotStore, runners: int) -> None:
        snapshot, key = await store.get(self.template, lambda what, seconds: contextlib.nullcontext())
        await rehearse(store, self.template, snapshot, key)
        hot = store.hot_path(key)
        for first in range(0, self.count, CELL_VMS):
            vms = min(CELL_VMS, self.count - first)
            host = Host(None)
            files = {"snapshot_in": in_memory(snapshot), "hot_in": hot if hot.exists() else None, "key": key}
            config = cell_config(self.template, vms=vms, runners=runners, **files)
            host.cell = await Cell.start(config, host)
            for vm in range(vms):
                host.lives[vm] = Life(Agent(str(first + vm), str(first + vm)), host, vm)
            self.cells.append(host.cell)

    def at(self, number: int) -> tuple[Cell, int]:
        return self.cells[number // CELL_VMS], number % CELL_VMS

    def soon(self, number: int) -> bool:
        """Whether it waits with the pages of its job, as in pools."""
        return number % CELL_VMS < CELL_VMS // SOON_PART

    async def warm(self, number: int) -> None:
        cell, vm = self.at(number)
        soon = self.soon(number)
        cell.restore(vm, 1000 + number, soon=soon, later=not soon)
        async with asyncio.timeout(60):
            if not soon:
                await cell.standing(vm)
                return
            await cell.stream(vm, 3).send(AHEAD)
            frame = await read_frame(cell.stream(vm, 3))
        if "warm" not in frame:
            raise SystemExit(f"error: VM {number} said {frame}")

    def private_pages(self) -> int:
        """Anonymous pages of all cells, by the kernel's count."""
        return sum(machine.anonymous(cell.pid) for cell in self.cells) // 4096

    def cpu(self, *cells: Cell) -> float:
        """CPU seconds of this process and of these cells (none: all). Asking takes little of it."""
        return time.process_time() + sum(time.clock_gettime(~cell.pid << 3 | SCHED) for cell in cells or self.cells)

    async def close(self) -> None:
        await asyncio.gather(*(cell.close() for cell in self.cells))


async def fill(vms: Vms, at_once: int) -> dict[str, float]:
    """All of them warm. -> what it took; core-ms a VM of the first 64 and of the last are of that many alone."""
    base, free = vms.private_pages(), machine.available()
    begun, at = vms.cpu(), time.monotonic()
    turns = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with turns:
            await vms.warm(number)

    order = _order(vms.count)
    soon = [number for number in order if vms.soon(number)]
    await asyncio.gather(*(one(number) for number in soon))
    await asyncio.sleep(0.2)  # what they do ahead comes after they said that they are warm
    marks = [vms.cpu()]
    others = [number for number in order if not vms.soon(number)]
    # groups of 64 of all cells, so that the last ones come into cells that are nearly full
    groups = [others[first : first + GROUP] for first in range(0, len(others), GROUP)]
    for group in groups:
        await asyncio.gather(*(one(number) for number in group))
        marks.append(vms.cpu())
    seconds = time.monotonic() - at
    await asyncio.sleep(0.5)
    costs = [(b - a) * 1e3 / len(group) for group, (a, b) in zip(groups, itertools.pairwise(marks), strict=True)]
    return {
        "seconds": seconds,
        "core_ms": (marks[-1] - begun) * 1e3 / vms.count,
        "soon": (marks[0] - begun) * 1e3 / len(soon),
        "first_64": costs[0],
        "last_64": costs[-1],
        "megabytes": (free - machine.available()) / vms.count / 1e6,
        "pages": (vms.private_pages() - base) / vms.count,
    }


def _order(count: int) -> list[int]:
    """Numbers so that cells fill evenly."""
    cells = -(-count // CELL_VMS)
    return [cell * CELL_VMS + vm for vm in range(CELL_VMS) for cell in range(cells) if cell * CELL_VMS + vm < count]


async def dispatch(vms: Vms, script: Path, numbers: list[int]) -> dict[str, list[float]]:
    """Into warm VMs, one at a time; each stands still after its print."""
    job = Job("script", str(script), (), default_environment(), vms.template.view.cwd)
    found: dict[str, list[float]] = {"wall_ms": [], "cpu_ms": [], "pages": []}
    for number in numbers:
        cell, vm = vms.at(number)
        pages, begun, at = machine.anonymous(cell.pid), vms.cpu(cell), time.perf_counter()
        task = asyncio.ensure_future(hand_over(cell.stream(vm, 3), job))
        async with asyncio.timeout(60):
            text = await cell.stream(vm, 1).receive()
            wall = time.perf_counter() - at
            await task
        if text != b"first\n":
            raise SystemExit(f"error: the script printed {text!r}")
        await asyncio.sleep(0.005)
        found["wall_ms"].append(wall * 1e3)
        found["cpu_ms"].append((vms.cpu(cell) - begun) * 1e3)
        found["pages"].append((machine.anonymous(cell.pid) - pages) / 4096)
    return found


def forks(script: Path, jobs: int) -> dict[str, list[float]]:
    command = [sys.executable, str(HERE / "guest/warm_fork.py"), str(script), str(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, stdin=subprocess.DEVNULL)
    result: dict[str, list[float]] = json.loads(done.stdout)
    return result


@contextlib.asynccontextmanager
async def waiting(folder: Path, count: int, runners: int) -> AsyncIterator[tuple[Vms, Path]]:
    script = folder / "first.py"
    script.write_text(SCRIPT)
    interpreter = find_interpreter(sys.executable, default_environment())
    view = base_view(interpreter)
    add_program(view, str(script), str(folder))
    vms = Vms(Template(interpreter, view, default_environment(), (), 512 << 20), count)
    try:
        await vms.start(SnapshotStore(), runners)
        yield vms, script
    finally:
        await vms.close()


async def measure(folder: Path, options: Any) -> dict[str, Any]:
    async with waiting(folder, max(GROUP, options.agents), options.runners) as (vms, script):
        filled = await fill(vms, options.at_once)
        jobs = options.jobs
        forked = forks(script, jobs // 2)
        given = await dispatch(vms, script, [number for number in range(vms.count) if vms.soon(number)][:jobs])
        others = await dispatch(vms, script, [number for number in range(vms.count) if not vms.soon(number)][:jobs])
        again = forks(script, jobs - jobs // 2)
        forked = {name: forked[name] + again[name] for name in forked}
    return {"agents": vms.count, "warm": filled, "dispatch": given, "others": others, "fork": forked}


def show(found: dict[str, Any]) -> None:
    warm, given, forked = found["warm"], found["dispatch"], found["fork"]
    print(
        f"{found['agents']} VMs warm in {warm['seconds']:.2f} s: {warm['core_ms']:.2f} core-ms each (must: <= 1.5); "
        f"one in {SOON_PART} that has run ahead {warm['soon']:.2f}, the first 64 that sleep {warm['first_64']:.2f}, "
        f"the last 64 {warm['last_64']:.2f}"
    )
    print(f"memory of a warm VM by MemAvailable: {warm['megabytes']:.2f} MB (must: <= 1); private pages {warm['pages']:.0f}")
    middle = statistics.median
    print(f"to the script's first print, medians of {len(given['wall_ms'])}:")
    rows = (("in a VM that waits for it", given), ("in one of the others", found["others"]), ("fork() of a warm Python", forked))
    for what, row in rows:
        print(f"  {what:26}{middle(row['wall_ms']):6.2f} ms   {middle(row['cpu_ms']):6.2f} core-ms")
    print(f"  {middle(given['pages']):.0f} more private pages of a VM, {middle(found['others']['pages']):.0f} of the others")
    ratio = middle(given["wall_ms"]) / middle(forked["wall_ms"])
    ratio_cpu = middle(given["cpu_ms"]) / middle(forked["cpu_ms"])
    print(f"  VM / fork                 {ratio:6.2f}      {ratio_cpu:6.2f}           (must: < 1)")


def main() -> None:
    parser = common.parser(__doc__, "--json: one object instead of the text")
    parser.add_argument("--agents", type=int, default=256)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--runners", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(Path(folder), options))
    if options.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
