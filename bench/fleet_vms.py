"""Restore latency, and memory of many warm VMs.

    python bench/fleet_vms.py restore [--rounds 40]
    python bench/fleet_vms.py density [--agents 200]

`restore`: one VM at a time; from the RESTORE command to the first bytecode of the user's script (which prints CLOCK_MONOTONIC,
the same clock inside and outside). Must: p50 <= 10 ms alone on the machine.
`density`: that many VMs alive at once, each having run a script's first lines and now waiting; memory a VM by MemAvailable, so
that the kernel's share (KVM, page tables) is in it.
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
from agentfw.fleet import Fleet, Job, Streams, default_environment
from agentfw.guestfs import add_program, base_view, find_interpreter
from agentfw.plugins import load_plugins
from agentfw.runtime import Runtime
from agentfw.snapshots import Template


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


def _print(what: str, values: list[float], note: str = "") -> None:
    ordered = sorted(values)
    middle, late = statistics.median(ordered), ordered[int(len(ordered) * 0.95)]
    print(f"{what:42} p50 {middle:6.2f} ms   p95 {late:6.2f} ms   min {ordered[0]:6.2f} ms   {note}")


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("what", choices=["restore", "density"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--agents", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(restore(Path(folder), options.rounds) if options.what == "restore" else density(Path(folder), options.agents))


if __name__ == "__main__":
    main()
