"""What the workers of a pool counted, put together: totals that never fall, though workers die."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from .spread import Durations
from .wire import Histogram, Told, Totals

GAUGES = frozenset({"agents", "tls_agents"})
"""Of `Totals`: what there is now. All else only grows."""
STATISTICS_NOW = frozenset({"tls.held", "tls.leased"})


def add(parts: Iterable[Totals]) -> Totals:
    """The sum. (Of currencies the first that there is: all workers have one configuration.)"""
    listed = list(parts)
    sums: dict[str, object] = {}
    for name in Totals.__struct_fields__:
        values = [getattr(part, name) for part in listed]
        if name == "currency":
            sums[name] = next((value for value in values if value), "")
        elif name == "statistics":
            sums[name] = _added(values)
        elif values and isinstance(values[0], Histogram):
            merged = Durations()
            for value in values:
                merged.merge(value.counts, value.most)
            sums[name] = Histogram(counts=merged.counts, most=merged.most)
        elif values:
            sums[name] = sum(values)
    return Totals(**sums)  # type: ignore[arg-type]


def _added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, 0) + value
    return found


def ended(totals: Totals) -> Totals:
    """What stays of a worker's when it is gone."""
    left = {name: value for name, value in totals.statistics.items() if name not in STATISTICS_NOW}
    return msgspec.structs.replace(totals, statistics=left, **dict.fromkeys(GAUGES, 0))


class Workers:
    """The last word of each. What a process said that is there no more stays in the sums."""

    def __init__(self) -> None:
        self.latest: dict[int, Told] = {}
        self._past = Totals()

    def take(self, number: int, told: Told) -> bool:
        """-> False: it is another process than the one that spoke before."""
        before = self.latest.get(number)
        self.latest[number] = told
        if before is None or before.epoch == told.epoch:
            return before is not None
        self._past = add((self._past, ended(before.totals)))
        return False

    def lost(self, number: int) -> None:
        """Its process is there no more, and the next has not spoken yet."""
        told = self.latest[number]
        self.latest[number] = msgspec.structs.replace(told, totals=ended(told.totals))

    def totals(self) -> Totals:
        return add((self._past, *(told.totals for told in self.latest.values())))


def durations(histogram: Histogram) -> Durations:
    found = Durations()
    found.merge(histogram.counts, histogram.most)
    return found
