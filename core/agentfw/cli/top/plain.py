"""`agentfw top` printed once: as text, or as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..connect import duration, table

if TYPE_CHECKING:
    from ...pool.client import HttpBackend
    from ...pool.jobs import PoolInfo, Usage
    from ...views import AgentRow

MOST = 200
"""Running jobs that are told of."""


async def document(pool: HttpBackend, filter: str = "") -> dict[str, Any]:
    """`overview`, `agents` (those that fit, ended or not), `loaded`: as in `agentfw.views`; None where the pool has no
    dashboard."""
    import msgspec

    from .rows import Agents
    from .source import PoolSource

    source = PoolSource(pool)
    seen, jobs, usage, metrics = await asyncio.gather(
        source.look(0), pool.jobs(state="running", limit=MOST), pool.usage(), pool.metrics()
    )
    told = not seen.missing
    agents = Agents()
    agents.take(seen.table)
    fitting = set(agents.ids(filter, ended=True))
    found = {
        "pool": seen.pool,
        "jobs": jobs,
        "usage": usage,
        "metrics": metrics,
        "overview": seen.overview if told else None,
        "agents": [row for row in seen.table.rows if row.id in fitting] if told else None,
        "loaded": await source.loaded(),
    }
    return {"version": 1, **msgspec.to_builtins(found)}


async def text(pool: HttpBackend, filter: str = "", sort: str = "cores", ended: bool = False) -> str:
    """Of the agents that run (`ended`: of all that are known) the first MOST, by what they are sorted by (`cores`: by CPU
    time)."""
    from .pages import numbers, plain
    from .rows import Agents
    from .source import PoolSource
    from .words import FINE

    seen, usage = await asyncio.gather(PoolSource(pool).look(0), pool.usage())
    assert seen.pool is not None
    agents = Agents()
    agents.take(seen.table)
    rows = [agents.known[id].row for id in agents.ids(filter, sort, ended=ended)]
    if not ended:
        rows = [row for row in rows if row.state == "running"]
    parts = [summary(seen.pool), workers_table(seen.pool)]
    parts.append(f"({seen.missing})" if seen.missing else plain(numbers(seen.overview, 100, FINE)))
    if rows:
        parts.append(_agents_table(rows[:MOST], usage, agents.now, not seen.missing, ended))
    elif agents.ids(filter, ended=True):
        parts.append("(no agent runs; `--all`: those that wait and those that have ended, too)")
    hidden = len(rows) - MOST
    return "\n\n".join(parts) + (f"\n({hidden} more)" if hidden > 0 else "")


def _agents_table(found: list[AgentRow], usage: dict[str, Usage], now: float, told: bool, ended: bool) -> str:
    """`now`: by the pool's clock, as are its times."""
    from . import words
    from .rows import seconds_of, state_of

    left = ("ID", "NAME", "TENANT", "STATE") if ended else ("ID", "NAME", "TENANT")
    right = ("WORKER", "TIME", "CPU", "MEMORY", "OUTPUT")
    columns = [*((title, False) for title in left), *((title, True) for title in right)]
    if told:
        columns += [(title, True) for title in ("CALLS", "TOKENS", "COST", "DENIED")]
    rows = []
    for each in found:
        used = usage.get(each.id)
        row = [each.id, each.name, each.tenant, *([state_of(each)] if ended else [])]
        row += ["-" if each.worker is None else str(each.worker), duration(seconds_of(each, now))]
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
        [str(w.number), str(w.pid), "silent" if w.silent else w.state, *map(str, (w.running, w.idle, w.cells, w.restarts))]
        for w in pool.workers
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
