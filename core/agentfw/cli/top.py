"""`agentfw top`: a pool at work, on one page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .connect import Where, duration, json_option, pool_options, table, talk
from .output import put

if TYPE_CHECKING:
    from ..pool.client import HttpBackend
    from ..pool.jobs import JobInfo, PoolInfo, Usage

JOBS = 200
"""Running jobs that are asked for; as many are shown as there is room."""


@click.command()
@click.option("--once", is_flag=True, help="Print it once.  [default: if stdout is no terminal]")
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=2.0, metavar="SECONDS", help="[default: 2]")
@json_option
@pool_options
def top(where: Where, once: bool, interval: float, as_json: bool) -> None:
    """Show a pool at work: its workers, and the jobs that run."""
    live = not once and not as_json and sys.stdout.isatty()

    async def body(pool: HttpBackend) -> None:
        look = Look()
        await look.take(pool)
        if as_json:
            click.echo(json.dumps(look.document()))
        elif live:
            await _live(pool, look, interval)
        else:
            put(look.text(JOBS))

    talk(where, body)


@dataclass
class Look:
    """What was seen at one moment, and how that differs from the moment before."""

    pool: PoolInfo | None = None
    jobs: list[JobInfo] = field(default_factory=list)
    usage: dict[str, Usage] = field(default_factory=dict)
    """Of the jobs that run, by id, so far."""
    metrics: dict[str, float] = field(default_factory=dict)
    at: float = 0.0
    rate: float | None = None
    """Jobs that ended in a second."""
    cores: dict[int, float] = field(default_factory=dict)
    """Of each worker with its cells, by pid, where it is on this machine."""
    busy: dict[str, float] = field(default_factory=dict)
    """Cores of each job."""
    _cpu: dict[int, float] = field(default_factory=dict)

    async def take(self, pool: HttpBackend) -> None:
        before, then, used = self.pool, self.at, self.usage
        now, self.jobs, self.metrics, self.usage = await asyncio.gather(
            pool.describe(), pool.jobs(state="running", limit=JOBS), pool.metrics(), pool.usage()
        )
        self.pool = now
        self.at = time.monotonic()
        cpu = {} if pool.socket is None else {worker.pid: tree_seconds(worker.pid) for worker in now.workers}
        if before is not None and (passed := self.at - then) > 0:
            self.rate = max(now.done - before.done, 0) / passed
            self.cores = {pid: max(spent - self._cpu[pid], 0) / passed for pid, spent in cpu.items() if pid in self._cpu}
            self.busy = {
                job_id: max(usage.cpu_seconds - used[job_id].cpu_seconds, 0) / passed
                for job_id, usage in self.usage.items()
                if job_id in used
            }
        self._cpu = cpu

    def document(self) -> dict[str, Any]:
        import msgspec

        assert self.pool is not None
        seen = {"pool": self.pool, "jobs": self.jobs, "usage": self.usage, "metrics": self.metrics}
        return {"version": 1, **msgspec.to_builtins(seen)}

    def text(self, rows: int) -> str:
        """At most so many jobs, the busiest first: by what they use now, or have used."""
        assert self.pool is not None
        nothing = (0.0, 0.0)
        by_id = {key: (self.busy.get(key, 0.0), usage.cpu_seconds) for key, usage in self.usage.items()}
        jobs = sorted(self.jobs, key=lambda info: by_id.get(info.id, nothing), reverse=True)
        parts = [summary(self.pool, self.rate), workers_table(self.pool, self.cores)]
        if jobs:
            parts.append(self._jobs_table(jobs[:rows]))
        hidden = max(self.pool.running - min(len(jobs), rows), 0)
        return "\n\n".join(parts) + (f"\n({hidden} more)" if hidden else "")

    def _jobs_table(self, jobs: list[JobInfo]) -> str:
        now = time.time()
        left, right = ("ID", "NAME", "TENANT"), ("WORKER", "TIME", "CPU", "CORES", "MEMORY", "OUTPUT")
        columns = [*((title, False) for title in left), *((title, True) for title in right)]
        rows = []
        for info in jobs:
            usage = self.usage.get(info.id)
            row = [info.id, info.name, info.tenant, "-" if info.worker is None else str(info.worker)]
            row.append(duration(now - (info.started or now)))
            row.append("-" if usage is None else f"{usage.cpu_seconds:.2f}s")
            row.append(f"{self.busy[info.id]:.2f}" if info.id in self.busy else "-")
            row += ["-", "-"] if usage is None else [_size(usage.memory), _size(usage.stdout + usage.stderr)]
            rows.append(row)
        return table(columns, rows)


def _size(size: int) -> str:
    """For people: 512, 4K, 32M."""
    for shift, name in ((30, "G"), (20, "M"), (10, "K")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.0f}{name}"
    return str(size)


def summary(pool: PoolInfo, rate: float | None = None) -> str:
    """A pool in one line."""
    warm = sum(worker.idle for worker in pool.workers)
    speed = "" if rate is None else f", {rate:.1f} a second"
    jobs = f"{pool.running} running, {pool.queued} queued, {pool.done} done{speed}, {warm} warm"
    return f"pool {pool.state} (pid {pool.pid}, up {duration(time.time() - pool.started)}): {jobs}"


def workers_table(pool: PoolInfo, cores: dict[int, float] | None = None) -> str:
    columns = [
        ("WORKER", True),
        ("PID", True),
        ("STATE", False),
        ("RUNNING", True),
        ("WARM", True),
        ("CELLS", True),
        ("RESTARTS", True),
    ]
    rows = [
        [str(w.number), str(w.pid), w.state, str(w.running), str(w.idle), str(w.cells), str(w.restarts)] for w in pool.workers
    ]
    if cores:
        columns.append(("CORES", True))
        for row, worker in zip(rows, pool.workers, strict=True):
            row.append(f"{cores[worker.pid]:.2f}" if worker.pid in cores else "-")
    return table(columns, rows)


def tree_seconds(pid: int) -> float:
    """CPU time of a process and those below it, as far as /proc tells. 0: it is gone, or not on this machine."""
    total, left = 0, [pid]
    for _ in range(1000):
        if not left:
            break
        process = Path("/proc") / str(left.pop())
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
            for task in (process / "task").iterdir():
                left += map(int, (task / "children").read_text().split())
    return total / os.sysconf("SC_CLK_TCK")


async def _live(pool: HttpBackend, look: Look, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def page() -> Text:
        assert look.pool is not None
        room = max(console.size.height - len(look.pool.workers) - 6, 1)
        return Text(look.text(room), no_wrap=True, overflow="ellipsis")

    with Live(page(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval)
            await look.take(pool)
            live.update(page(), refresh=True)
