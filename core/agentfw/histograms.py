"""Histograms of durations, counted where they happen: fixed buckets, one bisection and two additions an observation.

In statistics a histogram NAME is a counter for each bucket that something fell into, `NAME.bucket.LE` (LE: its upper bound in
seconds, that itself included, "inf" for the last; not cumulative), and `NAME.sum`. So histograms of several workers are added up
as all counters are, and a bucket costs a name only if it was ever used.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from .views import WARMUP_BUCKET, WARMUP_BUCKETS

BUCKET = ".bucket."
SUM = ".sum"

SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: what takes a millisecond if all is well, and seconds if it is not: dispatches, names, connections."""
LONG = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds: what somebody else works for, as a model."""
WARM = (0.01, 0.025, 0.05, *(round(WARMUP_BUCKET * bar, 6) for bar in range(1, WARMUP_BUCKETS)))
"""Seconds: a VM's way from nothing to waiting for a job, with the bars that an operator is shown."""

HOOK_NS = (1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000)
"""Nanoseconds, in which calls of hooks are counted."""
HOOK = tuple(bound / 1e9 for bound in HOOK_NS)


class Histogram:
    """`bounds`: upper ends of the buckets, rising; above the last one there is one more."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def statistics(self, name: str) -> dict[str, int | float]:
        """Nothing if nothing was observed."""
        found: dict[str, int | float] = {
            f"{name}{BUCKET}{bound}": count for bound, count in zip(labels(self.bounds), self.counts, strict=True) if count
        }
        if found:
            found[f"{name}{SUM}"] = self.sum
        return found


class Durations:
    """What takes agents time, as far as the core knows it. Statistics "core.NAME_seconds"."""

    __slots__ = ("connect", "dispatch", "dns", "first_request", "wait")

    def __init__(self) -> None:
        self.wait = Histogram(SHORT)
        """For a virtual machine."""
        self.dispatch = Histogram(SHORT)
        """From having one to the first bytecode."""
        self.first_request = Histogram(LONG)
        """From there until a first request has its connection."""
        self.connect = Histogram(SHORT)
        """Of a request, until it has its connection."""
        self.dns = Histogram(SHORT)
        """Of a question."""

    def statistics(self) -> dict[str, int | float]:
        found: dict[str, int | float] = {}
        for name in self.__slots__:
            found |= getattr(self, name).statistics(f"core.{name}_seconds")
        return found


def labels(bounds: Sequence[float]) -> tuple[str, ...]:
    """What buckets are called in statistics."""
    return *(f"{bound:.10g}" for bound in bounds), "inf"


def warmup_bars(statistics: Mapping[str, float], name: str = "engine.warmup_seconds") -> list[int]:
    """Of a histogram over WARM in statistics the bars of `views.Overview.warmup`."""
    bars = [0] * WARMUP_BUCKETS
    for bound, label in zip((*WARM, math.inf), labels(WARM), strict=True):
        bar = WARMUP_BUCKETS - 1 if bound == math.inf else max(0, round(bound / WARMUP_BUCKET) - 1)
        bars[bar] += int(statistics.get(f"{name}{BUCKET}{label}", 0))
    return bars
