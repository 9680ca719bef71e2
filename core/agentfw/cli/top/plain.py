"""`agentfw top` printed once: as text, or as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..connect import duration, table

if TYPE_CHECKING:
    from ...pool.client import HttpBackend
    from ...pool.jobs import JobInfo, PoolInfo, Usage
    from ...views import AgentRow, Loaded
    from .source import Seen


@dataclass
class Look:
    """What was seen at one moment."""

    pool: PoolInfo | None = None
    jobs: list[JobInfo] = field(default_factory=list)
    usage: dict[str, Usage] = field(default_factory=dict)
    """Of the jobs that run, by id, so far."""
    metrics: dict[str, float] = field(default_factory=dict)
    seen: Seen | None = None
    loaded: Loaded | None = None

    async def take(self, pool: HttpBackend) -> None:
        from .source import PoolSource

        source = PoolSource(pool)
        self.pool, self.jobs, self.metrics, self.usage, self.seen = await asyncio.gather(
            pool.describe(), pool.jobs(state="running", limit=MOST), pool.metrics(), pool.usage(), source.look(0)
        )
        self.loaded = await source.loaded()

    def document(self) -> dict[str, Any]:
        """`overview`, `agents`, `loaded`: as in `agentfw.views`; None where the pool has no dashboard."""
        import msgspec

        assert self.pool is not None and self.seen is not None
        told = not self.seen.missing
        document = {
            "pool": self.pool,
            "jobs": self.jobs,
            "usage": self.usage,
            "metrics": self.metrics,
            "overview": self.seen.overview if told else None,
            "agents": self.seen.table.rows if told else None,
            "loaded": self.loaded,
        }
        return {"version": 1, **msgspec.to_builtins(document)}

    def text(self, most: int, filter: str = "", sort: str = "cores") -> str:
        """At most so many of the agents that run, the first by what they are sorted by (`cores`: by CPU time)."""
        from .pages import numbers, plain
        from .rows import Agents
        from .words import FINE

        assert self.pool is not None and self.seen is not None
        agents = Agents()
        agents.take(self.seen.table)
        ids = [id for id in agents.ids(filter, sort) if agents.known[id].row.state == "running"]
        parts = [summary(self.pool), workers_table(self.pool)]
        if self.seen.missing:
            parts.append(f"({self.seen.missing})")
        else:
            parts.append(plain(numbers(self.seen.overview, 100, FINE)))
        if ids:
            parts.append(self._table([agents.known[id].row for id in ids[:most]], not self.seen.missing))
        hidden = len(ids) - len(ids[:most])
        return "\n\n".join(parts) + (f"\n({hidden} more)" if hidden else "")

    def _table(self, found: list[AgentRow], told: bool) -> str:
        from . import words

        now = time.time()
        left, right = ("ID", "NAME", "TENANT"), ("WORKER", "TIME", "CPU", "MEMORY", "OUTPUT")
        columns = [*((title, False) for title in left), *((title, True) for title in right)]
        if told:
            columns += [(title, True) for title in ("CALLS", "TOKENS", "COST", "DENIED")]
        rows = []
        for each in found:
            used = self.usage.get(each.id)
            row = [each.id, each.name, each.tenant, "-" if each.worker is None else str(each.worker)]
            row.append(duration(max(now - (each.started or now), 0)))
            row += [
                f"{each.cpu_seconds:.2f}s",
                words.size(each.memory),
                words.size(None if used is None else used.stdout + used.stderr),
            ]
            if told:
                tokens = words.number(each.input_tokens + each.output_tokens)
                row += [words.number(each.model_calls), tokens, words.money(each.cost), words.number(each.denials)]
            rows.append(row)
        return table(columns, rows)


MOST = 200


def summary(pool: PoolInfo) -> str:
    """A pool in one line."""
    warm = sum(worker.idle for worker in pool.workers)
    jobs = f"{pool.running} running, {pool.queued} queued, {pool.done} done, {warm} warm"
    return f"pool {pool.state} (pid {pool.pid}, up {duration(time.time() - pool.started)}): {jobs}"


def workers_table(pool: PoolInfo, cores: dict[int, float] | None = None) -> str:
    """`cores`: that each uses with its cells, by pid."""
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
