"""Who is next: jobs that wait for a VM, weighted by their tenants' shares, each tenant's own in the order they came.

The tenant that has the fewest jobs running, for its share, is next: so what one tenant's job leaves goes to the next of the same
tenant as long as all have their part, and its VM can be used again. Where that is equal it is their turn (stride scheduling: a
job taken moves its tenant on by 1/share, who is furthest behind is next). Who comes back after a pause begins where the others
are; what it did not use is not saved up.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

Terms = Callable[[str], tuple[float, int | None]]
"""Tenant -> (share, jobs at once or None)."""


class _Tenant(Generic[T]):
    __slots__ = ("entries", "name", "order", "passed", "running")

    def __init__(self, name: str, passed: float, order: int) -> None:
        self.name = name
        self.passed = passed
        self.order = order
        self.running = 0
        self.entries: dict[T, None] = {}


class FairQueue(Generic[T]):
    """Entries (hashable, each once) of tenants. A taken one counts as running until `ended()`."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._tenants: dict[str, _Tenant[T]] = {}
        self._now = 0.0
        self._orders = itertools.count()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, tenant: str, entry: T) -> None:
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = _Tenant(tenant, self._now, next(self._orders))
        elif not found.entries:
            found.passed = max(found.passed, self._now)
        found.entries[entry] = None
        self._size += 1

    def remove(self, tenant: str, entry: T) -> None:
        """It does not wait any more. Nothing if it did not."""
        found = self._tenants.get(tenant)
        if found is not None and entry in found.entries:
            del found.entries[entry]
            self._size -= 1
            self._drop(found)

    def entries(self, tenant: str) -> list[T]:
        """Those of one tenant that wait."""
        found = self._tenants.get(tenant)
        return list(found.entries) if found is not None else []

    def take(self, tenant: str, entry: T) -> None:
        """It is served."""
        del self._tenants[tenant].entries[entry]
        self._size -= 1
        self.start(tenant)

    def start(self, tenant: str) -> None:
        """One that need not wait is served."""
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = _Tenant(tenant, self._now, next(self._orders))
        found.running += 1
        self._now = max(self._now, found.passed)
        found.passed += 1 / self._terms(tenant)[0]

    def ended(self, tenant: str) -> None:
        """One that was taken is over."""
        found = self._tenants[tenant]
        found.running -= 1
        self._drop(found)

    def may_run(self, tenant: str) -> bool:
        """Is the tenant below its limit of jobs at once?"""
        limit = self._terms(tenant)[1]
        found = self._tenants.get(tenant)
        return limit is None or found is None or found.running < limit

    def running(self) -> dict[str, int]:
        """Jobs that run, by tenant."""
        return {name: found.running for name, found in self._tenants.items() if found.running}

    def in_order(self) -> Iterator[T]:
        """The entries as they would be served if each were when its turn comes; of a tenant no more than it may run at once.
        Nothing may be added, removed or taken meanwhile."""
        heap: list[tuple[float, float, int, float, Iterator[T]]] = []
        for found in self._tenants.values():
            share, limit = self._terms(found.name)
            count = len(found.entries) if limit is None else min(len(found.entries), limit - found.running)
            if count > 0:
                first = itertools.islice(found.entries, count)
                heap.append((found.running / share, found.passed, found.order, share, first))
        heapq.heapify(heap)
        while heap:
            running, passed, order, share, entries = heap[0]
            entry = next(entries, None)
            if entry is None:
                heapq.heappop(heap)
                continue
            heapq.heapreplace(heap, (running + 1 / share, passed + 1 / share, order, share, entries))
            yield entry

    def _drop(self, found: _Tenant[T]) -> None:
        if not found.entries and not found.running:
            del self._tenants[found.name]
