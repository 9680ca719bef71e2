"""What a pool's VMs take of memory, measured as operators are shown it, beside MemAvailable; and what it costs to look:
`python bench/pool_memory.py [--agents 320]`. Others on the machine move MemAvailable.
"""

from __future__ import annotations

import asyncio
import os
import time

import common
from agentfw import Code, Pool
from agentfw.pool import physical
from fleet.warmed import idle_vms

RUNNING = "import json, time; kept = [json.dumps({'n': n}) for n in range(1000)]; print('up', flush=True); time.sleep(60)"


def row(pool_pids: list[int], vms: int, own: int, before: int, what: str) -> None:
    """`own`: what this process had for itself before."""
    begun = time.process_time()
    used, whole = physical.measure(os.getpid(), pool_pids)
    spent = time.process_time() - begun
    used -= own
    used += 0 if whole else vms * physical.KERNEL
    free = before - common.mem_available()
    text = f"{used / 1e6:7.0f} MB, {used / vms / 1e6:.2f} each; by MemAvailable {free / 1e6:7.0f} MB ({used / free:.2f} of it)"
    print(f"{what:24} {text}; a look {spent * 1e3:.1f} core-ms")


async def measured(agents: int) -> None:
    async with Pool({}, plugins=[], workers=1, size=2) as pool:
        (await pool.run(Code("pass"))).check()  # the snapshot is there
    own, before = physical.measure(os.getpid(), [])[0], common.mem_available()
    async with Pool({}, plugins=[], workers=2, size=agents, idle=agents) as pool:
        if await idle_vms(pool, agents, 120) < agents:
            raise SystemExit(f"error: {agents} VMs do not get warm")
        await asyncio.sleep(2)
        pids = [worker.pid for worker in (await pool.describe()).workers]
        row(pids, agents, own, before, f"{agents} VMs that wait")
        handles = [await pool.submit(Code(RUNNING)) for _ in range(agents // 4)]
        for handle in handles:
            async for _ in handle.lines():
                break
        await asyncio.sleep(1)
        row(pids, agents, own, before, "a quarter of them runs")
        await asyncio.gather(*(handle.kill() for handle in handles))


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--agents", type=int, default=320)
    asyncio.run(measured(parser.parse_args().agents))


if __name__ == "__main__":
    main()
