"""Warm-up at the layer below the pool: cells alone, no plugins, no worker processes."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from agentfw.config import Config
from agentfw.dispatch import AHEAD, Job, read_frame
from agentfw.fleet import CELL_VMS, Fleet, Streams
from agentfw.plugins import load_plugins
from agentfw.pool.cells import SOON_PART
from agentfw.programs import prepare
from agentfw.runtime import Runtime

from . import machine


class Nothing:
    """A sink."""

    async def write(self, data: bytes) -> None:
        pass

    async def close(self) -> None:
        pass


def fleet(script: Path, size: int, plugins: tuple[str, ...] = ()) -> tuple[Fleet, Job]:
    template, job, _ = prepare("script", str(script), directory=str(script.parent), python=sys.executable)
    config = Config()
    runtime = Runtime(asyncio.get_running_loop(), load_plugins(plugins, config), config)
    return Fleet(runtime, template, size=size), job


@dataclass(frozen=True)
class Warmed:
    """`each`: core-ms of a VM, `machine_each`: of all that the machine did meanwhile, `tenths`: of the VMs' first tenth, second,
    ...; `seconds`: all of them; `latencies`: ms from a VM's RESTORE to its waiting for a job; `memory`, `memory_all`:
    bytes a VM without and with the cells' own; `cell_ms`: core-ms to start a cell."""

    vms: int
    seconds: float
    each: float
    machine_each: float
    tenths: list[float]
    latencies: list[float]
    memory: float
    memory_all: float
    cells: int
    cell_ms: float


async def warm(folder: Path, agents: int, at_once: int) -> Warmed:
    """`agents` VMs, `at_once` of them on their way at any time: one in SOON_PART runs ahead, the others sleep, as in pools."""
    script = folder / "nothing.py"
    script.write_text("")
    group, job = fleet(script, 1)
    async with group:  # the snapshot is made, its hot pages are known, it is in the page cache
        await group.run(job, Streams(Nothing(), Nothing()))
    group, _ = fleet(script, agents)
    before, begun = machine.available(), machine.cpu()
    marks: list[float] = []
    latencies: list[float] = []
    async with group:
        cells = len(group._hosts)
        await asyncio.sleep(0.2)
        started, free = machine.cpu(), machine.available()
        turns = asyncio.Semaphore(at_once)
        tenth = max(1, agents // 10)

        async def one(number: int) -> None:
            async with turns:
                cell, vm = group._hosts[number // CELL_VMS].cell, number % CELL_VMS
                soon = not number % SOON_PART
                at = time.monotonic()
                cell.restore(vm, 1000 + number, soon=soon, later=not soon)
                async with asyncio.timeout(20):
                    if soon:
                        await cell.stream(vm, 3).send(AHEAD)
                        frame = await read_frame(cell.stream(vm, 3))
                        if "warm" not in frame:
                            raise ValueError(f"VM {number} said {frame}")
                    else:
                        await cell.standing(vm)
                latencies.append((time.monotonic() - at) * 1e3)
                if len(latencies) % tenth == 0:
                    marks.append(machine.cpu().ours)

        at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in range(agents):
                tasks.create_task(one(number))
        seconds = time.monotonic() - at
        took = machine.cpu() - started
        await asyncio.sleep(1)
        used, used_all = free - machine.available(), before - machine.available()
    starts = [started.ours, *marks]
    tenths = [(late - early) / tenth * 1e3 for early, late in itertools.pairwise(starts)]
    return Warmed(
        vms=agents,
        seconds=seconds,
        each=took.ours / agents * 1e3,
        machine_each=took.machine / agents * 1e3,
        tenths=tenths[:10],
        latencies=latencies,
        memory=used / agents,
        memory_all=used_all / agents,
        cells=cells,
        cell_ms=(started - begun).ours / cells * 1e3,
    )
