"""CPU between tenants: max-min fair by weight, from what they were measured to use.

`allocate()` is the arithmetic. `Shares` looks every `PERIOD` at what each tenant's cells used. While there is enough for all
nobody is limited; when there is not, who asks for less than its part gets what it asks for, and the rest is dealt out by weight
among those who would take more. A tenant's part is dealt out over its cells the same way, and kept by the cells (`Cell.share()`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from agentfw_vmm import CellError

PERIOD = 0.2
"""Seconds between two looks."""
_HUNGRY = 0.85  # of its part: who uses more would take more
_GROWTH = 1.25  # what somebody is taken to want, times what was used
_FIRST = 0.05  # cores that anybody is taken to want at least
_LEAST = 0.01  # cores of a cell, else its agents never end
_BUSY = 0.1  # waiting, as a part of using and waiting: from here on it would have used more

log = logging.getLogger("agentfw.pool")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Claim:
    """What somebody would use (cores; `math.inf`: all there is) and how much of it is due to them against others (> 0)."""

    want: float
    weight: float = 1.0


def allocate(capacity: float, claims: Mapping[K, Claim]) -> dict[K, float]:
    """Cores for each: nobody more than they want, and nobody less unless all who get more, by weight, do not.

    >>> allocate(2.0, {"a": Claim(math.inf), "b": Claim(0.5), "c": Claim(math.inf, 2.0)})
    {'b': 0.5, 'a': 0.5, 'c': 1.0}
    """
    given: dict[K, float] = {}
    left = max(0.0, capacity)
    weights = sum(claim.weight for claim in claims.values())
    # By what a unit of weight wants: once one of them wants more than its part of what is left, so do all behind it.
    for name, claim in sorted(claims.items(), key=lambda item: item[1].want / item[1].weight):
        part = left * min(1.0, claim.weight / weights) if weights > 0 else left
        given[name] = min(claim.want, part)
        left = max(0.0, left - given[name])
        weights -= claim.weight
    return given


class Limited(Hashable, Protocol):
    """A cell, as far as this module is concerned (`agentfw_vmm.Cell`)."""

    pid: int

    def cpu_seconds(self) -> float: ...
    def share(self, fraction: float | None) -> None: ...


@dataclass
class _Seen:
    """What is known of a cell. `share`: what it was told last."""

    used: float
    waited: float
    share: float | None = None
    rate: float = 0.0
    wait: float = 0.0


class Shares:
    """Deals out `capacity` cores (None: as many as this process may use). `cells` gives each tenant's weight and cells, now.

    `look()` is one step, for those who have their own clock; `run()` takes one every PERIOD, until it is cancelled.
    """

    def __init__(
        self,
        cells: Callable[[], Mapping[str, tuple[float, Iterable[Limited]]]],
        capacity: float | None = None,
        waited: Callable[[int], float] | None = None,
    ) -> None:
        self.capacity = capacity or float(len(os.sched_getaffinity(0)))
        self.parts: dict[str, float] = {}
        """Cores of each tenant that is limited now."""
        self.totals: dict[str, tuple[float, float]] = {}
        """Of each tenant with cells: seconds that they used, and waited for the CPU."""
        self._dealt: tuple[float, Mapping[str, float]] | None = None
        self._capacity = self.capacity
        self._short: dict[str, float] = {}  # of `parts`, those who would take more
        self._cells = cells
        self._waited = waited or waited_seconds
        self._seen: dict[Limited, _Seen] = {}
        self._at: float | None = None

    def dealt(self, parts: Mapping[str, float]) -> None:
        """Somebody who sees more than this (`agentfw.pool.dealing`) says what tenants may use, cores; who is not named may use
        what there is. It holds for a second; meanwhile this is when it is looked."""
        now = time.monotonic()
        self._dealt = now + 5 * PERIOD, parts
        self.look(now)

    async def run(self) -> None:
        while True:
            try:
                if self._dealt is None or self._dealt[0] < time.monotonic():
                    self._dealt = None
                    self.look(time.monotonic())
            except Exception:  # without it tenants are not limited as they should be, but go on
                log.exception("CPU shares could not be dealt out")
            await asyncio.sleep(PERIOD)

    def begins(self, tenant: str, cell: Limited, cells: int) -> None:
        """A cell that is one of so many of its tenant's now: until the next look it has its like part of what that may use, if it
        is limited."""
        part = self.parts.get(tenant)
        if part is not None and cell not in self._seen:
            self._seen[cell] = _Seen(cell.cpu_seconds(), self._waited(cell.pid))
            self._tell(cell, max(_LEAST, part / max(1, cells)))

    def look(self, now: float) -> None:
        """Measure since the last look, and limit whom there is to limit. `now`: seconds on a clock that does not jump."""
        tenants = {name: (weight, list(cells)) for name, (weight, cells) in self._cells().items()}
        seconds = now - self._at if self._at is not None else 0.0
        self._at = now
        present = {cell for _, cells in tenants.values() for cell in cells}
        for gone in self._seen.keys() - present:
            del self._seen[gone]
        self._measure(present, seconds)
        if seconds <= 0:
            return
        self._add_up(tenants, seconds)
        if self._dealt is not None:
            self.parts = {name: part for name, part in self._dealt[1].items() if name in tenants}
            self._short = {}
            for name, (_, cells) in tenants.items():
                if name in self.parts:
                    self._deal(self.parts[name], cells)
                else:
                    for cell in cells:
                        self._tell(cell, None)
            return
        wants = {name: _sum(self._want(cell) for cell in cells) for name, (_, cells) in tenants.items()}
        capacity = self._there_is(tenants)
        if len(tenants) < 2 or sum(wants.values()) <= capacity:
            self.parts = self._short = {}
            for cell in present:
                self._tell(cell, None)
            return
        claims = {name: Claim(wants[name], weight) for name, (weight, _) in tenants.items()}
        fair = allocate(
            capacity, {name: Claim(math.inf, weight) for name, (weight, _) in tenants.items() if wants[name] > _FIRST}
        )
        self.parts = allocate(capacity, claims)
        self._short = {name: part for name, part in self.parts.items() if 0 < part < wants[name]}
        for name, part in self.parts.items():
            # Who uses less than its due may have it at once when it needs it, not only after the next look.
            self._deal(max(part, fair.get(name, min(fair.values(), default=capacity))), tenants[name][1])

    def _add_up(self, tenants: Mapping[str, tuple[float, list[Limited]]], seconds: float) -> None:
        for gone in self.totals.keys() - tenants.keys():
            del self.totals[gone]
        for name, (_, cells) in tenants.items():
            used, waited = self.totals.get(name, (0.0, 0.0))
            used += _sum(self._seen[cell].rate for cell in cells) * seconds
            waited += _sum(self._seen[cell].wait for cell in cells) * seconds
            self.totals[name] = used, waited

    def _there_is(self, tenants: Mapping[str, tuple[float, list[Limited]]]) -> float:
        """Cores for all. Others use this machine, too, and our own workers do. That matters once somebody waits for the CPU and
        does not get its part while others get theirs: then all parts shrink until it does, and grow again when it has."""
        got = {}
        for name, part in self._short.items():
            cells = [self._seen[cell] for cell in tenants.get(name, (0.0, []))[1]]
            rate, wait = _sum(seen.rate for seen in cells), _sum(seen.wait for seen in cells)
            if rate > _HUNGRY * part or wait > _BUSY * (rate + wait):
                got[name] = rate / part
        least = min(got.values(), default=1.0)
        if least < _HUNGRY and max(got.values()) > 1.2 * least:
            self._capacity = max(0.1, self._capacity * max(0.75, least * 1.1))
        elif least >= _HUNGRY:
            self._capacity = min(self.capacity, self._capacity * 1.15)
        return self._capacity

    def _measure(self, cells: Iterable[Limited], seconds: float) -> None:
        for cell in cells:
            total = cell.cpu_seconds()
            seen = self._seen.get(cell)
            if seen is None:
                self._seen[cell] = _Seen(total, self._waited(cell.pid))
                continue
            rate = max(0.0, total - seen.used) / seconds if seconds > 0 else 0.0
            seen.used, seen.rate = total, rate
            seen.wait = 0.0
            if rate > 0.005 and seconds > 0:  # looking costs
                wait = self._waited(cell.pid)
                seen.wait = max(0.0, wait - seen.waited) / seconds
                seen.waited = wait

    def _want(self, cell: Limited) -> float:
        seen = self._seen[cell]
        if seen.share is not None and seen.rate > _HUNGRY * seen.share:
            return math.inf
        return max(seen.rate * _GROWTH, seen.rate + seen.wait) if seen.rate > 0.001 else 0.0

    def _deal(self, part: float, cells: list[Limited]) -> None:
        given = allocate(part, {cell: Claim(max(_FIRST, self._want(cell))) for cell in cells})
        spare = max(0.0, part - sum(given.values())) / len(cells) if cells else 0.0
        for cell in cells:
            self._tell(cell, max(_LEAST, given[cell] + spare))

    def _tell(self, cell: Limited, share: float | None) -> None:
        seen = self._seen[cell]
        old = seen.share
        if old is not share if old is None or share is None else abs(share - old) >= 0.02 * old:
            with contextlib.suppress(CellError):  # it has just ended
                cell.share(share)
            seen.share = share


def _sum(wants: Iterable[float]) -> float:
    return sum(wants, 0.0)


def waited_seconds(pid: int) -> float:
    """Seconds that the threads of a process were ready to run and another had the CPU; 0.0 where the kernel does not count it."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # five times a second and thread, and Path takes its time
            with open(f"/proc/{pid}/task/{task}/schedstat", "rb") as file:  # noqa: PTH123
                total += int(file.read().split()[1])
    return total / 1e9
