"""CPU between tenants over all workers of a pool.

Each worker's engine measures what its tenants use, and can deal out what is there between them; it does not see that a tenant
has VMs in other workers, too. So the router asks all of them, deals out the machine (`agentfw.pool.shares`, a tenant's VMs in a
worker in place of a cell), and tells each what its tenants may use there. A worker that hears nothing for a second deals for
itself again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from .jobs import PoolError
from .messages import Deal, Spent
from .shares import PERIOD, Limited, Shares
from .workers import Worker

ASK_SECONDS = 2.0

log = logging.getLogger("agentfw.pool")


class _There:
    """A tenant's VMs in one worker (`shares.Limited`)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.used = 0.0
        self.waited = 0.0
        self.part: float | None = None

    def cpu_seconds(self) -> float:
        return self.used

    def share(self, fraction: float | None) -> None:
        self.part = fraction


class Dealer:
    """`workers`: those that there are; `weight`: of a tenant."""

    def __init__(
        self, workers: Callable[[], Sequence[Worker]], weight: Callable[[str], float], capacity: float | None = None
    ) -> None:
        self._workers = workers
        self._weight = weight
        self._there: dict[tuple[int, str], _There] = {}
        self._by_number: dict[int, _There] = {}
        self._numbers = 0
        self.shares = Shares(self._tenants, capacity, lambda pid: self._by_number[pid].waited)

    def _tenants(self) -> Mapping[str, tuple[float, Iterable[Limited]]]:
        found: dict[str, tuple[float, list[Limited]]] = {}
        for (_, tenant), there in self._there.items():
            found.setdefault(tenant, (self._weight(tenant), []))[1].append(there)
        return found

    async def turn(self) -> None:
        """Ask, deal; what comes of it is told with the next question."""
        ready = [worker for worker in self._workers() if worker.state == "ready" and worker.channel is not None]
        answers = await asyncio.gather(*(self._ask(worker) for worker in ready))
        spent = {worker.number: answer for worker, answer in zip(ready, answers, strict=True) if answer is not None}
        self._take(spent)
        self.shares.look(time.monotonic())

    async def _ask(self, worker: Worker) -> Spent | None:
        parts = {
            tenant: there.part
            for (number, tenant), there in self._there.items()
            if number == worker.number and there.part is not None
        }
        try:
            return await worker.link().ask(Deal(parts), Spent, ASK_SECONDS)
        except PoolError:  # it is being replaced, or too busy to answer: then it deals for itself
            return None

    def _take(self, spent: Mapping[int, Spent]) -> None:
        now = {(number, tenant) for number, answer in spent.items() for tenant in answer.tenants}
        for gone in self._there.keys() - now:
            del self._by_number[self._there.pop(gone).pid]
        for number, answer in spent.items():
            for tenant, (used, waited) in answer.tenants.items():
                there = self._there.get((number, tenant))
                if there is None:
                    self._numbers += 1
                    there = self._there[number, tenant] = self._by_number[self._numbers] = _There(self._numbers)
                there.used, there.waited = used, waited


async def deal_always(workers: Callable[[], Sequence[Worker]], weight: Callable[[str], float]) -> None:
    """Until it is cancelled."""
    dealer = Dealer(workers, weight)
    while True:
        try:
            await dealer.turn()
        except Exception:  # without it each worker deals for itself
            log.exception("CPU shares of the pool could not be dealt out")
        await asyncio.sleep(PERIOD)
