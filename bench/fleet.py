"""The pool as a whole, one command: warm-up, memory, dispatch, network, throughput, recycling; its peers beside it.

    python bench/fleet.py [--agents 1500] [--json OUT.json] [--plot OUT.png] [--only PHASES] [--soak SECONDS]

Prints every row of the table: reference, what must be reached, what was measured. All servers are on 127.0.0.1. CPU time is that
of all processes of the pool, in core-ms; memory is what MemAvailable loses, so that the kernel's share is in it. `--plot` needs
matplotlib (`pip install agentfw[bench]`); 1,500 agents need some 10 GiB. Exit status: 0; 1 if a phase failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

import uvloop
from fleet import alive, calls, cells, machine, peers, plot, single, soak, warmed
from fleet.book import Book, table
from fleet.numbers import percentile
from fleet.world import World, settled, world

PHASES = ("cells", "warm", "dispatch", "alive", "sdk", "import", "calls", "flat", "print", "recycle", "peers", "soak")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--agents", type=int, default=1500, metavar="N", help="VMs warm, and agents alive at once")
    add("--json", type=Path, metavar="OUT.json", help="write all figures")
    add("--plot", type=Path, metavar="OUT.png", help="draw the six panels")
    add("--only", metavar="PHASES", help=f"comma-separated, of: {', '.join(PHASES)}")
    add("--workers", type=int, default=len(os.sched_getaffinity(0)), help="worker processes of the pool")
    add("--at-once", type=int, default=8, help="VMs on their way at once, where cells are measured alone")
    add("--rate", type=float, default=50, help="dispatches a second")
    add("--jobs", type=int, default=500, help="dispatches at that rate")
    add("--alive-rate", type=float, default=50, help="agents begun a second, of those that stay")
    add("--importing", type=int, default=200, help="agents that import an SDK after restore")
    add("--callers", type=int, default=64, help="agents that call without a pause")
    add("--seconds", type=float, default=10, help="how long they do")
    add("--flat", default="100,1000", help="agents, few and many, that make as many calls in all")
    add("--flat-rate", type=float, default=50, help="those calls a second")
    add("--flat-seconds", type=float, default=40, help="how long they do")
    add("--rounds", type=int, default=200, help="of first prints; a tenth of it for recycling and peers")
    add("--pages", type=int, default=1000, help="pages that a VM has written to before it is used again")
    add("--latency", type=float, default=0, help="ms that the model server takes")
    add("--peers-at-once", type=int, default=20, help="of each peer, alive at once")
    add("--soak", type=float, default=0, metavar="SECONDS", help="turnover for so long, at the end")
    add("--soak-at-once", type=int, default=32, help="agents at once in it")
    add("--timeout", type=float, default=600, help="seconds for a phase")
    found = parser.parse_args()
    chosen = set(found.only.split(",")) if found.only else set(PHASES)
    if chosen - set(PHASES):
        parser.error(f"no such phase: {', '.join(sorted(chosen - set(PHASES)))}")
    found.phases = chosen
    found.counts = [int(word) for word in found.flat.split(",")]
    return found


class Bench:
    def __init__(self, options: argparse.Namespace, place: World, book: Book) -> None:
        self.options, self.world, self.book = options, place, book

    def wants(self, *phases: str) -> bool:
        return bool(self.options.phases & set(phases))

    async def phase(self, name: str, body: Callable[[], Awaitable[None]], pool: object = "none needed") -> None:
        """A phase that fails costs its rows, not the rest. `pool` None: the one that it needs did not start."""
        if not self.wants(name) or pool is None:
            return
        print(f"\n== {name}", flush=True)
        try:
            async with asyncio.timeout(self.options.timeout + (self.options.soak if name == "soak" else 0)):
                await body()
        except TimeoutError:
            self.failed(name, f"not done after {self.options.timeout:.0f} s")
        except Exception as error:
            traceback.print_exc()
            self.failed(name, f"{type(error).__name__}: {error}")

    def failed(self, name: str, why: str) -> None:
        self.book.failures.append(f"{name}: {why}")
        print(f"FAILED: {name}: {why}", flush=True)

    async def run(self, folder: Path) -> None:
        options, place, book = self.options, self.world, self.book
        await self.phase("cells", lambda: self.cells(folder))
        await self.warm_pool()
        await self.pool_of("sdk", {"size": options.agents, "idle": 0, "sdk": options.agents}, alive.sdk)
        await self.pool_of("import", {"size": options.importing, "idle": options.importing}, alive.importing)
        if self.wants("calls", "flat"):
            size = max(options.callers, *options.counts)
            async with self.opened("calls", size=size, idle=min(size, options.callers)) as pool:
                await self.phase("calls", lambda: calls.throughput(place, book, pool, options.callers, options.seconds), pool)
                await self.phase(
                    "flat", lambda: calls.flat(place, book, pool, options.counts, options.flat_rate, options.flat_seconds), pool
                )
        if self.wants("print", "peers"):
            async with peers.Forker.started() as forker:
                await self.phase("print", lambda: single.first_print(place, book, forker, options.rounds))
                await self.phase("peers", lambda: self.peers(forker))
        await self.phase("recycle", lambda: single.recycle(place, book, max(10, options.rounds // 5), options.pages))
        if options.soak and self.wants("soak"):
            size = options.soak_at_once * 2
            async with self.opened("soak", size=size, idle=options.soak_at_once) as pool:
                every = max(1.0, min(60.0, options.soak / 60))
                await self.phase("soak", lambda: soak.soak(place, book, pool, options.soak, options.soak_at_once, every), pool)

    @contextlib.asynccontextmanager
    async def opened(self, phase: str, **keys: object) -> AsyncIterator[object]:
        """A pool; if it cannot be had, or does not end well, that is told, and the other phases go on."""
        try:
            async with asyncio.timeout(self.options.timeout):
                pool = self.world.pool(**keys)
                await pool.start()
        except Exception as error:
            traceback.print_exc()
            self.failed(phase, f"the pool did not start: {type(error).__name__}: {error}")
            yield None
            return
        try:
            yield pool
        finally:
            try:
                async with asyncio.timeout(120):
                    await pool.close()
            except Exception as error:
                traceback.print_exc()
                self.failed(phase, f"the pool did not close: {type(error).__name__}: {error}")

    async def cells(self, folder: Path) -> None:
        found = await cells.warm(folder, self.options.agents, self.options.at_once)
        self.book.figures["cells"] = asdict(found)
        ratio = found.tenths[-1] / found.tenths[0] if len(found.tenths) == 10 and found.tenths[0] else 0.0
        self.book.row(
            f"{found.vms} VMs warm, cells alone, core-ms each",
            "35.8",
            "<= 1.5",
            f"{found.each:.2f}, all in {found.seconds:.2f} s, {self.options.at_once} at a time; a cell {found.cell_ms:.1f}",
            found.each <= 1.5,
        )
        self.book.row(
            "cost of the last tenth against the first",
            "",
            "like the first",
            f"{ratio:.2f} times ({found.tenths[-1]:.2f} against {found.tenths[0]:.2f} core-ms)",
            0 < ratio <= 1.2,
        )
        self.book.note(
            f"memory a VM {found.memory / 1e6:.2f} MB; of all that the machine did {found.machine_each:.2f} core-ms each; "
            f"RESTORE to waiting p50 {percentile(found.latencies, 0.5):.1f} ms, p99 {percentile(found.latencies, 0.99):.1f}"
        )

    async def warm_pool(self) -> None:
        """One pool: its warm-up, its memory, jobs in it, then all its VMs taken at once."""
        if not self.wants("warm", "dispatch", "alive"):
            return
        options, place, book = self.options, self.world, self.book
        nothing = 0.0

        async def empty() -> None:
            nonlocal nothing
            nothing = await warmed.empty(place, options.agents)

        await self.phase("warm", empty)
        await settled()
        start = warmed.Start.now()
        async with self.opened("warm", size=options.agents, idle=options.agents) as pool:
            if pool is None:
                return
            await self.phase("warm", lambda: warmed.warm_up(place, book, pool, options.agents, nothing, start))
            await self.phase("dispatch", lambda: warmed.dispatch(place, book, pool, options.agents, options.rate, options.jobs))
            await self.phase("alive", lambda: alive.stdlib(place, book, pool, options.agents, options.alive_rate, start.memory))
            alive.network_rows(book)
        await settled()

    async def pool_of(self, phase: str, keys: dict[str, object], body: Callable[..., Awaitable[None]]) -> None:
        if not self.wants(phase):
            return
        count = self.options.importing if phase == "import" else self.options.agents
        before = machine.available()
        async with self.opened(phase, **keys) as pool:
            if pool is not None:
                await self.phase(phase, lambda: body(self.world, self.book, pool, count, self.options.alive_rate, before))
        await settled()

    async def peers(self, forker: peers.Forker) -> None:
        rounds, at_once = max(3, self.options.rounds // 20), self.options.peers_at_once
        found = [await forker.peer(rounds * 3, at_once)]
        for name, (command, boundary, trouble) in peers.commands().items():
            if trouble:
                self.book.note(f"{name}: {trouble}")
                continue
            try:
                found.append(await peers.measure(name, command, boundary, rounds, at_once))
            except (OSError, RuntimeError, TimeoutError) as error:
                self.book.note(f"{name}: does not start here: {error}")
        self.book.figures["peers"] = [asdict(peer) for peer in found]
        for peer in found:
            self.book.row(
                f"beside it: {peer.name} (boundary: {peer.boundary})",
                "",
                "",
                f"first print {peer.first_ms:.1f} ms; {peer.at_once} alive in {peer.up_seconds:.2f} s, "
                f"{peer.memory / 1e6:.1f} MB each by MemAvailable, PSS {peer.pss / 1e6:.1f}",
            )


async def main(options: argparse.Namespace) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    shown = {name: value for name, value in vars(options).items() if name not in ("json", "plot", "phases", "counts")}
    book = Book(shown)
    load = os.getloadavg()[0]
    if load > 0.5:
        book.note(f"the machine is busy (load {load:.1f}): wall times are not this program's alone")
    with tempfile.TemporaryDirectory(prefix="agentfw-bench-", dir=Path.home()) as name:
        folder = Path(name)
        with world(folder, options.workers, options.latency) as place:
            try:
                await Bench(options, place, book).run(folder)
            finally:
                if options.json:
                    book.write(options.json)
    left = [pid for pid in machine.tree() if pid != os.getpid()]
    if left:
        book.failures.append(f"left running: {left}")
    print("\n" + table(book.rows))
    for failure in book.failures:
        print(f"FAILED: {failure}")
    if options.json:
        book.write(options.json)
    if options.plot:
        plot.draw(book.document(), options.plot)
    return 1 if book.failures else 0


if __name__ == "__main__":
    chosen = arguments()
    if chosen.plot:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            sys.exit("error: --plot needs matplotlib\n\nhint: pip install 'agentfw[bench]'")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main(chosen)))
