"""What a pool counts: the statistics of all workers, of the router and its plugins, and of its processes, in one.

Workers come and go, and may be too busy to answer. What they counted stays counted: a sum that falls and rises again would be
read as so many new events, as Prometheus takes a counter that fell for one that began anew.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..metrics.catalog import ENDS, OTHER, TENANTS, grows
from ..metrics.declared import is_sound
from ..metrics.processes import measure
from .jobs import DEFAULT_TENANT, JobResult
from .messages import MAX_NUMBERS, Numbers, Statistics
from .physical import Physical

if TYPE_CHECKING:
    from .workers import Worker

LOOK_SECONDS = 2.0
"""For workers to say what they count."""
OURS = ("pool", "process")
"""What statistics of the router's begin with: no worker tells them."""


class Tally:
    """Sums over workers ("longest": the longest). One that is silent counts with what it said last; of one that ended, what only
    grows stays."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, dict[str, float]]] = {}
        """By worker: which of its processes said it, and what."""
        self._gone: dict[str, float] = {}
        """Of processes that have ended; at most MAX_NUMBERS."""

    def told(self, worker: int, process: int, values: Mapping[str, float]) -> None:
        """`process`: another number for each process that is the worker. What is no statistic is left out."""
        self.ended(worker, process)
        before = self._last.get(worker, (process, {}))[1]
        now = {
            name: float(value)
            for name, value in values.items()
            if is_sound(name, value) and name.partition(".")[0] not in OURS and (value >= 0 or not grows(name))
        }
        for name, value in before.items():
            if grows(name) and now.get(name, 0.0) < value and (name in now or len(now) < MAX_NUMBERS):
                now[name] = value  # it cannot have fallen; or it was taken from the list, which is bounded
        self._last[worker] = process, now

    def ended(self, worker: int, process: int) -> None:
        """The worker is this process now, and has not said anything yet."""
        last = self._last.get(worker)
        if last is not None and last[0] != process:
            for name, value in last[1].items():
                if grows(name) and (name in self._gone or len(self._gone) < MAX_NUMBERS):
                    self._gone[name] = self._gone.get(name, 0.0) + value
            del self._last[worker]

    def sums(self, own: Mapping[str, float]) -> dict[str, float]:
        """`own`: statistics of this process, which count too."""
        found: dict[str, float] = {name: float(value) for name, value in own.items() if is_sound(name, value)}
        for values in (self._gone, *(values for _, values in self._last.values())):
            for name, value in values.items():
                before = found.get(name, 0.0)
                found[name] = max(before, value) if name.endswith(".longest") else before + value
        return found


class Counting:
    """Of one router."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._physical = Physical()
        self._ends: Counter[str] = Counter()
        self._tenants: Counter[str] = Counter()
        """Jobs that ended, by tenant: of so many tenants as there may be known names of."""

    def ended(self, tenant: str, result: JobResult) -> None:
        """A job has."""
        how = result.kind if result.kind != "code" else "failed" if result.code else "succeeded"
        self._ends[how] += 1
        if tenant not in self._tenants and len(self._tenants) > 10 * TENANTS:
            tenant = OTHER
        self._tenants[tenant] += 1

    async def statistics(
        self, own: Mapping[str, float], workers: Sequence[Worker], router: Mapping[str, float]
    ) -> dict[str, float]:
        """All. `own`: of the router's own plugins; `router`: of its book."""
        asked = [worker for worker in workers if worker.state == "ready" and worker.channel is not None]
        processes = _processes(workers)
        answers, measured = await asyncio.gather(_ask(asked), asyncio.to_thread(measure, processes))
        for worker in workers:
            self._tally.ended(worker.number, worker.restarts)
        for worker, restarts, values in answers:
            if worker.restarts == restarts:
                self._tally.told(worker.number, restarts, values)
        sums = self._tally.sums(own)
        vms = int(sum(sums.get(f"engine.{state}", 0.0) for state in ("running", "idle", "warming")))
        return {
            **sums,
            "pool.physical_memory": await self._physical.look([pid for name, pid in processes.items() if name != "router"], vms),
            **{f"pool.ended.{name}": self._ends[name] for name in ENDS},
            "pool.workers": len(workers),
            "pool.workers_ready": sum(worker.state == "ready" for worker in workers),
            "pool.workers_silent": len(workers) - len(answers),
            "pool.worker_restarts": sum(worker.restarts for worker in workers),
            **router,
            **measured,
        }

    def tenants(
        self,
        configured: Iterable[str],
        queued: int,
        running: int,
        queued_of: Callable[[str], int],
        running_of: Callable[[str], int],
    ) -> dict[str, float]:
        """Jobs by tenant, of those that the operator named; the others' together. `queued`, `running`: all tenants'."""
        names = sorted({DEFAULT_TENANT, *sorted(configured)[: TENANTS - 1]} - {OTHER})
        found: dict[str, float] = {}
        rest = [queued, running, self._tenants.total()]
        for name in names:
            for index, value in enumerate((queued_of(name), running_of(name), self._tenants[name])):
                found[f"pool.tenants.{name}.{_OF_TENANT[index]}"] = value
                rest[index] -= value
        return found | {f"pool.tenants.{OTHER}.{what}": max(0, left) for what, left in zip(_OF_TENANT, rest, strict=True)}


_OF_TENANT = ("queued", "running", "ended")


def _processes(workers: Iterable[Worker]) -> dict[str, int]:
    """The router's and the workers', by name. A worker without a process of its own is the router."""
    own = os.getpid()
    return {"router": own, **{f"worker-{worker.number}": worker.pid for worker in workers if worker.pid not in (0, own)}}


async def _ask(workers: Sequence[Worker]) -> list[tuple[Worker, int, Mapping[str, float]]]:
    """Those that answered, which of their processes it was, and what it said."""

    async def one(worker: Worker) -> tuple[Worker, int, Mapping[str, float]]:
        restarts = worker.restarts
        assert worker.channel is not None
        return worker, restarts, (await worker.channel.ask(Statistics(), Numbers, worker.patience(LOOK_SECONDS))).values

    answers = await asyncio.gather(*map(one, workers), return_exceptions=True)
    return [answer for answer in answers if isinstance(answer, tuple)]
