"""Restore latency, and memory and CPU time of many warm VMs.

    python bench/fleet_vms.py restore [--rounds 40]
    python bench/fleet_vms.py density [--agents 200]
    python bench/fleet_vms.py warm [--agents 200] [--at-once 8]

`restore`: one VM at a time; from the RESTORE command to the first bytecode of the user's script (which prints CLOCK_MONOTONIC,
the same clock inside and outside). Must: p50 <= 10 ms alone on the machine.
`density`: that many VMs alive at once, each having run a script's first lines and now waiting; memory a VM by MemAvailable, so
that the kernel's share (KVM, page tables) is in it.
`warm`: the cells alone, no plugins: VMs restored, that many at a time, until each says that it waits for its job; CPU time of
this process and the cells a VM, the ninth tenth against the first, memory as above. Must: 1.5 core-ms, 1 MB.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import uvloop
from agentfw.config import Config
from agentfw.dispatch import Job, default_environment
from agentfw.fleet import Fleet, Streams
from agentfw.guestfs import add_program, base_view, find_interpreter
from agentfw.plugins import load_plugins
from agentfw.runtime import Runtime
from agentfw.snapshots import Template
from fleet import cells


class Collect:
    """A Sink that keeps what came and tells when a first line is whole."""

    def __init__(self) -> None:
        self.data = b""
        self.line = asyncio.Event()

    async def write(self, data: bytes) -> None:
        self.data += data
        if b"\n" in self.data:
            self.line.set()

    async def close(self) -> None:
        self.line.set()


def fleet(script: Path, size: int) -> tuple[Fleet, Job]:
    view = base_view(find_interpreter(sys.executable, default_environment()))
    add_program(view, str(script), str(script.parent))
    config = Config()
    runtime = Runtime(asyncio.get_running_loop(), load_plugins(("native",), config), config)
    template = Template(find_interpreter(sys.executable, default_environment()), view, default_environment(), (), 512 << 20)
    return Fleet(runtime, template, size=size), Job("script", str(script), (), default_environment(), view.cwd)


async def restore(folder: Path, rounds: int) -> None:
    script = folder / "first.py"
    script.write_text("import time; t = time.monotonic_ns()\nprint(t, flush=True)\n")
    group, job = fleet(script, 1)
    commanded: list[int] = []
    first: list[float] = []
    kernel: list[float] = []
    async with group:
        cell = group._hosts[0].cell
        original = cell.restore

        def noted(*arguments: Any) -> None:
            commanded.append(time.monotonic_ns())
            original(*arguments)

        cell.restore = noted  # type: ignore[method-assign]
        for _ in range(rounds + 3):
            out = Collect()
            result = await group.run(job, Streams(out, Collect()))
            if result.status:
                raise SystemExit(f"error: {result.report.text}")
            first.append((int(out.data) - commanded[-1]) / 1e6)
            kernel.append(result.statistics.restore_ns / 1e6 if result.statistics else 0.0)
    _print("RESTORE to the VM's first instruction", kernel[3:])
    _print("RESTORE to the script's first bytecode", first[3:], "must: p50 <= 10 ms")


async def density(folder: Path, agents: int) -> None:
    script = folder / "wait.py"
    script.write_text("import sys\nprint('alive', flush=True)\nsys.stdin.read()\n")
    group, job = fleet(script, agents)
    async with group:
        warm = Collect()
        await group.run(job, Streams(warm, Collect()))  # the snapshot is in the page cache from here on
        before = common.mem_available()
        gate = asyncio.Event()
        outs = [Collect() for _ in range(agents)]

        async def held() -> Any:
            await gate.wait()
            return
            yield b""

        start = time.monotonic()
        runs = [asyncio.ensure_future(group.run(job, Streams(out, Collect(), held()))) for out in outs]
        await asyncio.gather(*(out.line.wait() for out in outs))
        seconds = time.monotonic() - start
        await asyncio.sleep(1)
        used = before - common.mem_available()
        alive = group.running
        gate.set()
        results = await asyncio.gather(*runs)
    failed = sum(1 for result in results if result.status)
    for result in results:
        if result.status:
            print(f"failed: {result.agent.name}: {result.report}")
    print(f"{alive} VMs alive at once, {failed} failed; all up in {seconds:.2f} s ({seconds / agents * 1e3:.1f} ms each)")
    print(f"memory a VM by MemAvailable: {used / agents / 1e6:.2f} MB (in all {used / 1e9:.2f} GB)")


async def warm(folder: Path, agents: int, at_once: int) -> None:
    found = await cells.warm(folder, agents, at_once)
    print(f"{found.cells} cells started: {found.cell_ms:.1f} core-ms each")
    print(
        f"{agents} VMs warm in {found.seconds:.2f} s, {at_once} at a time: {found.each:.2f} core-ms each (must: <= 1.5); "
        f"of all that the machine did {found.machine_each:.2f}"
    )
    if len(found.tenths) == 10:
        print(f"the last tenth {found.tenths[-1]:.2f} core-ms each, the first {found.tenths[0]:.2f}")
    mega = f"{found.memory / 1e6:.2f} MB, with the cells' own {found.memory_all / 1e6:.2f}"
    print(f"memory a VM by MemAvailable: {mega}  (must: <= 1)")


def _print(what: str, values: list[float], note: str = "") -> None:
    ordered = sorted(values)
    middle, late = statistics.median(ordered), ordered[int(len(ordered) * 0.95)]
    print(f"{what:42} p50 {middle:6.2f} ms   p95 {late:6.2f} ms   min {ordered[0]:6.2f} ms   {note}")


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("what", choices=["restore", "density", "warm"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.what == "restore":
            runner.run(restore(Path(folder), options.rounds))
        elif options.what == "density":
            runner.run(density(Path(folder), options.agents))
        else:
            runner.run(warm(Path(folder), options.agents, options.at_once))


if __name__ == "__main__":
    main()
