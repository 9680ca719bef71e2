"""The CPU between tenants, and the time until an idle agent runs beside busy ones.

    python bench/fairness.py [--seconds 6] [--busy 63] [--json]

Two tenants, each with a cell of its own: one with 64 agents in endless loops, one with a single such agent. Their parts of the
CPU time that both used, without and with `agentfw.pool.shares`; fair is a half each. Other load on the machine changes the sums,
not the parts.

Then one cell with that many endless loops on one runner, and an agent that sleeps 20 ms at a time (how much later than due it
runs), or waits for a line and answers it (from the line's sending to the answer's coming); beside it the same without the loops.
A time slice is 5 ms: a round of 63 of them 315.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import common
import uvloop
from agentfw.agents import Agent
from agentfw.dispatch import Job, default_environment, hand_over
from agentfw.guestfs import base_view, find_interpreter
from agentfw.lives import Host, Life
from agentfw.pool.shares import Shares
from agentfw.rehearsal import rehearse
from agentfw.snapshots import SnapshotStore, Template, cell_config
from agentfw_vmm import Cell

LOOP = "while True: pass"
SLEEPER = """
import time
late = []
for _ in range(150):
    due = time.monotonic() + 0.02
    time.sleep(0.02)
    late.append(time.monotonic() - due)
print(*late, flush=True)
"""
ANSWERER = """
import sys
for line in sys.stdin:
    print(line, end='', flush=True)
"""


class Bench:
    def __init__(self) -> None:
        self.view = base_view(find_interpreter(sys.executable, default_environment()))
        interpreter = find_interpreter(sys.executable, default_environment())
        self.template = Template(interpreter, self.view, default_environment(), (), 256 << 20)
        self.store = SnapshotStore()

    @contextlib.asynccontextmanager
    async def cell(self, vms: int, runners: int) -> AsyncIterator[Host]:
        snapshot, key = await self.store.get(self.template, lambda what, seconds: contextlib.nullcontext())
        await rehearse(self.store, self.template, snapshot, key)
        host = Host(None)
        hot = self.store.hot_path(key)
        config = cell_config(
            self.template, vms=vms, runners=runners, snapshot_in=snapshot, hot_in=hot if hot.exists() else None, key=key
        )
        host.cell = await Cell.start(config, host)
        try:
            yield host
        finally:
            await host.cell.close()

    async def job(self, host: Host, vm: int, code: str) -> None:
        host.lives[vm] = Life(Agent(str(vm), str(vm)), host, vm)
        host.cell.restore(vm, 1000 + vm)
        job = Job("code", code, (), default_environment(), self.view.cwd)
        await hand_over(host.cell.stream(vm, 3), job)

    async def tenants(self, seconds: float) -> dict[str, Any]:
        async with self.cell(64, 2) as many, self.cell(1, 1) as one:
            await self.job(one, 0, LOOP)
            for vm in range(64):
                await self.job(many, vm, LOOP)
            without = await self._parts(many.cell, one.cell, seconds)
            shares = Shares(lambda: {"many": (1.0, [many.cell]), "one": (1.0, [one.cell])})
            task = asyncio.create_task(shares.run())
            await asyncio.sleep(2)
            with_shares = await self._parts(many.cell, one.cell, seconds)
            task.cancel()
            vms = sorted(many.cell.statistics(vm).cpu_ns / 1e9 for vm in range(64))
            return {"without": without, "with": with_shares, "inside_least": vms[0], "inside_most": vms[-1]}

    async def _parts(self, many: Cell, one: Cell, seconds: float) -> dict[str, float]:
        before = many.cpu_seconds(), one.cpu_seconds()
        await asyncio.sleep(seconds)
        used = many.cpu_seconds() - before[0], one.cpu_seconds() - before[1]
        return {"many": used[0] / sum(used), "one": used[1] / sum(used), "cores": sum(used) / seconds}

    async def latency(self, busy: int) -> dict[str, Any]:
        async with self.cell(busy + 1, 1) as host:
            for vm in range(1, busy + 1):
                await self.job(host, vm, LOOP)
            await self.job(host, 0, SLEEPER)
            data = b""
            while not data.endswith(b"\n"):
                data += await host.cell.stream(0, 1).receive()
            late = [float(word) for word in data.split()]
            await asyncio.wait_for(asyncio.shield(host.lives[0].exited) if 0 in host.lives else asyncio.sleep(0), 20)
            await self.job(host, 0, ANSWERER)
            answers = []
            for _ in range(150):
                await asyncio.sleep(0.02)
                start = time.perf_counter()
                await host.cell.stream(0, 0).send(b"line\n")
                await host.cell.stream(0, 1).receive()
                answers.append(time.perf_counter() - start)
            return {"late": percentiles(late), "answer": percentiles(answers)}


def percentiles(values: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(values)
    return {f"p{part}": ordered[min(len(ordered) - 1, len(ordered) * part // 100)] * 1000 for part in (50, 95, 99)}


async def main() -> None:
    parser = common.parser(__doc__, "--json: one object instead of the table")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement of the tenants' parts")
    parser.add_argument("--busy", type=int, default=63, choices=range(1, 64), metavar="N", help="endless loops beside one agent")
    options = parser.parse_args()
    bench = Bench()
    tenants = await bench.tenants(options.seconds)
    alone, beside = await bench.latency(0), await bench.latency(options.busy)
    if options.json:
        print(json.dumps({"tenants": tenants, "latency": {"alone": alone, "beside": beside}}))
        return
    print("64 loops of one tenant, 1 of another: parts of the CPU time")
    for name, row in (("without shares", tenants["without"]), ("with shares", tenants["with"])):
        print(f"  {name:15} {row['many']:6.1%} {row['one']:6.1%}   of {row['cores']:.2f} cores")
    print(f"  the 64 among themselves: {tenants['inside_least']:.3f} to {tenants['inside_most']:.3f} s")
    print("an idle agent's wake-up, ms                     p50     p95     p99")
    for name, result in (("alone", alone), (f"beside {options.busy} loops", beside)):
        for key, what in (("late", "later than due"), ("answer", "a line answered")):
            row = result[key]
            print(f"  {name:18} {what:20} {row['p50']:9.2f} {row['p95']:7.2f} {row['p99']:7.2f}")


if __name__ == "__main__":
    uvloop.run(main())
