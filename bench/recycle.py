"""What putting a VM back costs, beside making a new one.

    python bench/recycle.py [--rounds 40] [--lives 1000] [--json]

Two cells of one VM each, one that recycles and one that does not, take turns with the same job: it says when its first bytecode
ran, dirties so many pages, and ends. Printed for 100, 1,000 and 4,000 pages: from the restore command to that first bytecode, the
reset (a part of that, but for programs that grew beyond the template: they are put back before they are wanted), and the CPU
time of the cell for a whole life (start, run, end).
Must: 1,000 pages, to the next first bytecode, 5 ms or less.
Then --lives lives in the recycling cell, of all kinds: its memory and descriptors after the first tenth of them, and at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import common
import uvloop
from agentfw.agents import Agent
from agentfw.dispatch import Job, default_environment, hand_over
from agentfw.guestfs import base_view, find_interpreter
from agentfw.lives import Host, Life
from agentfw.rehearsal import rehearse
from agentfw.snapshots import SnapshotStore, Template, cell_config
from agentfw_vmm import Cell, VmStatistics
from agentfw_vmm.in_memory import in_memory

PAGES = (100, 1000, 4000)
MUST_MS = 5.0
CODE = """import time
print(time.monotonic_ns(), flush=True)
import mmap
memory = mmap.mmap(-1, {pages} * 4096)
for at in range(0, len(memory), 4096):
    memory[at] = 1
"""
#: What the lives of the second part do, in turn.
KINDS = (
    CODE.format(pages=1000),
    "print(1, flush=True); b = bytearray(60 << 20)",
    "print(1, flush=True); open('/tmp/file', 'wb').write(bytes(1 << 20)); import sqlite3, csv",
    "print(1, flush=True); import ctypes; ctypes.string_at(0)",
    "print(1, flush=True); import threading; threading.Thread(target=lambda: 1 / 0).start()",
)


class One:
    """A cell with one VM, in which one job after the other runs."""

    cell: Cell
    statistics: VmStatistics

    def __init__(self, template: Template) -> None:
        self.template = template
        self.host = Host(None)
        self.lives = 0

    async def start(self, snapshot: Path, key: bytes, hot: Path | None, recycle: bool) -> None:
        files = {"snapshot_in": in_memory(snapshot), "hot_in": hot, "key": key}
        self.host.cell = self.cell = await Cell.start(
            cell_config(self.template, vms=1, runners=1, recycle=recycle, **files), self.host
        )

    async def life(self, code: str) -> float:
        """-> milliseconds from the restore to what the job says first, if that is the time"""
        self.lives += 1
        life = self.host.lives[0] = Life(Agent(str(self.lives), str(self.lives)), self.host, 0)
        begun = time.monotonic_ns()
        self.cell.restore(0, 1000 + self.lives)
        self.cell.stream(0, 0).send_eof()
        await hand_over(self.cell.stream(0, 3), Job("code", code, (), default_environment(), self.template.view.cwd))
        text = b""
        async with asyncio.timeout(60):
            while not text.endswith(b"\n"):
                text += await self.cell.stream(0, 1).receive()
            while await self.cell.stream(0, 2).receive():
                pass
            await life.exited
        self.statistics = self.cell.statistics(0)
        return (int(text) - begun) / 1e6


async def compare(recycling: One, new: One, rounds: int) -> list[dict[str, float]]:
    rows = []
    for pages in PAGES:
        code = CODE.format(pages=pages)
        found: dict[str, list[float]] = {
            "recycled_ms": [],
            "reset_ms": [],
            "recycled_cpu_ms": [],
            "new_ms": [],
            "new_cpu_ms": [],
            "private": [],
        }
        for turn in range(rounds + 2):
            for one, name in ((recycling, "recycled"), (new, "new")):
                cpu = one.cell.cpu_seconds()
                first = await one.life(code)
                cpu = one.cell.cpu_seconds() - cpu
                if turn < 2:
                    continue
                found[f"{name}_ms"].append(first)
                found[f"{name}_cpu_ms"].append(cpu * 1e3)
                if one is recycling:
                    if not one.statistics.recycled:
                        raise SystemExit("error: a VM that did no wrong was not recycled")
                    found["reset_ms"].append(one.statistics.reset_ns / 1e6)
                    found["private"].append(one.statistics.private_pages)
        rows.append({"pages": pages, **{key: statistics.median(values) for key, values in found.items()}})
    return rows


def holds(cell: Cell) -> dict[str, float]:
    lines = Path(f"/proc/{cell.pid}/smaps_rollup").read_text().splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    maps = len(Path(f"/proc/{cell.pid}/maps").read_text().splitlines())
    return {
        "rss_mb": kilobytes["Rss"] / 1024,
        "private_mb": kilobytes["Anonymous"] / 1024,
        "descriptors": len(list(Path(f"/proc/{cell.pid}/fd").iterdir())),
        "mappings": maps,
    }


async def turnover(one: One, lives: int) -> dict[str, Any]:
    recycled = 0
    marks = []
    for number in range(lives):
        await one.life(KINDS[number % len(KINDS)])
        recycled += one.statistics.recycled
        if number + 1 in (max(len(KINDS), lives // 10), lives):
            await asyncio.sleep(0.2)  # idle, it is put back
            marks.append(holds(one.cell))
    return {"lives": lives, "recycled": recycled, "early": marks[0], "end": marks[-1]}


async def measure(options: Any) -> dict[str, Any]:
    interpreter = find_interpreter(sys.executable, default_environment())
    template = Template(interpreter, base_view(interpreter), default_environment(), (), 512 << 20)
    store = SnapshotStore()
    snapshot, key = await store.get(template, lambda what, seconds: contextlib.nullcontext())
    await rehearse(store, template, snapshot, key)
    hot = store.hot_path(key)
    recycling, new = One(template), One(template)
    await recycling.start(snapshot, key, hot if hot.exists() else None, True)
    try:
        await new.start(snapshot, key, hot if hot.exists() else None, False)
        try:
            rows = await compare(recycling, new, options.rounds)
        finally:
            await new.cell.close()
        return {"rows": rows, "turnover": await turnover(recycling, options.lives)}
    finally:
        await recycling.cell.close()


def show(result: dict[str, Any]) -> None:
    print("pages dirtied   put back: first bytecode (reset)     CPU a life   |   new: first bytecode     CPU a life")
    for row in result["rows"]:
        note = f"   must: <= {MUST_MS:g} ms" if row["pages"] == 1000 else ""
        print(
            f"{row['pages']:13}   {row['recycled_ms']:15.2f} ms ({row['reset_ms']:.2f} ms) {row['recycled_cpu_ms']:14.2f} ms"
            f"   |   {row['new_ms']:12.2f} ms {row['new_cpu_ms']:16.2f} ms{note}"
        )
    turned = result["turnover"]
    print(f"{turned['lives']} lives of {len(KINDS)} kinds in one VM, {turned['recycled']} of them in the VM of the one before")
    for when, held in (("after a tenth", turned["early"]), ("at the end", turned["end"])):
        memory = f"RSS {held['rss_mb']:.1f} MB, anonymous {held['private_mb']:.1f} MB"
        print(f"  {when:14} {memory}, {held['descriptors']} descriptors, {held['mappings']} mappings")


def main() -> None:
    parser = common.parser(__doc__, "--json: one object instead of the table")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--lives", type=int, default=1000)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(measure(options))
    print(json.dumps(result)) if options.json else show(result)


if __name__ == "__main__":
    main()
