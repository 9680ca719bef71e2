"""The queue: which job is next. First come, first served within a tenant; tenants take turns, each as often as its share says
(stride scheduling); a tenant that has as many jobs running as it may waits for one of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from .book import Entry
from .config import TenantConfig


class _Tenant:
    __slots__ = ("again", "name", "running", "ticket", "turn", "waiting")

    def __init__(self, name: str, turn: float) -> None:
        self.name = name
        self.turn = turn
        """When it is next, in the queue's own time."""
        self.running = 0
        self.waiting: dict[str, Entry] = {}
        self.again: dict[str, Entry] = {}
        """Further attempts, which go before the others."""
        self.ticket = 0
        """Its valid item in the heap; 0: it has none."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.again)


class Waiting:
    """`config`: what is set for a tenant. Tenants are kept as long as they have jobs."""

    def __init__(self, config: Callable[[str], TenantConfig]) -> None:
        self._config = config
        self._tenants: dict[str, _Tenant] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._tickets = 0
        self._now = 0.0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def waiting(self, tenant: str) -> int:
        """Jobs of this tenant that wait."""
        found = self._tenants.get(tenant)
        return len(found) if found is not None else 0

    def running(self, tenant: str) -> int:
        """Jobs of this tenant that were taken and have not ended."""
        found = self._tenants.get(tenant)
        return found.running if found is not None else 0

    def may_run(self, tenant: str, count: int = 1) -> bool:
        """Has the tenant room for so many more?"""
        most = self._config(tenant).running
        return most is None or self.running(tenant) + count <= most

    def add(self, entry: Entry) -> None:
        """It waits; another attempt goes before the tenant's other jobs."""
        tenant = self._tenant(entry.job.tenant)
        (tenant.waiting if entry.attempt == 1 else tenant.again)[entry.id] = entry
        self._count += 1
        self._line_up(tenant)

    def remove(self, entry: Entry) -> bool:
        """It waits no more. False: it did not."""
        tenant = self._tenants.get(entry.job.tenant)
        if tenant is None:
            return False
        if tenant.waiting.pop(entry.id, None) is None and tenant.again.pop(entry.id, None) is None:
            return False
        self._count -= 1
        if not tenant:
            tenant.ticket = 0
        self._forget(tenant)
        return True

    def take(self) -> Entry | None:
        """The next one, which counts as running from here on."""
        while self._heap:
            _, ticket, name = heapq.heappop(self._heap)
            tenant = self._tenants.get(name)
            if tenant is None or tenant.ticket != ticket:
                continue  # out of date
            tenant.ticket = 0
            if not self.may_run(name):
                continue
            line = tenant.again or tenant.waiting
            entry = line.pop(next(iter(line)))
            self._count -= 1
            self._now = tenant.turn
            tenant.turn += 1 / self._config(name).share
            tenant.running += 1
            self._line_up(tenant)
            return entry
        return None

    def run(self, entry: Entry) -> None:
        """It runs without having waited."""
        self._tenant(entry.job.tenant).running += 1

    def ended(self, entry: Entry) -> None:
        """One that was taken, or `run()`, runs no more."""
        tenant = self._tenants[entry.job.tenant]
        tenant.running -= 1
        self._line_up(tenant)
        self._forget(tenant)

    def changed(self) -> None:
        """What is set for tenants is something else."""
        for tenant in self._tenants.values():
            self._line_up(tenant)

    def _tenant(self, name: str) -> _Tenant:
        found = self._tenants.get(name)
        if found is None:
            found = self._tenants[name] = _Tenant(name, self._now)
        return found

    def _line_up(self, tenant: _Tenant) -> None:
        """Into the heap, if it has jobs and may run one."""
        if tenant.ticket or not len(tenant) or not self.may_run(tenant.name):
            return
        tenant.turn = max(tenant.turn, self._now)  # what it did not use is not saved up
        self._tickets += 1
        tenant.ticket = self._tickets
        heapq.heappush(self._heap, (tenant.turn, tenant.ticket, tenant.name))
        if len(self._heap) > 2 * len(self._tenants) + 64:
            self._heap = [item for item in self._heap if self._valid(item)]
            heapq.heapify(self._heap)

    def _valid(self, item: tuple[float, int, str]) -> bool:
        tenant = self._tenants.get(item[2])
        return tenant is not None and tenant.ticket == item[1]

    def _forget(self, tenant: _Tenant) -> None:
        if not len(tenant) and not tenant.running:
            del self._tenants[tenant.name]
