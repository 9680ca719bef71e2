"""Durations counted by size: logarithmic buckets with linear ones inside, as those of an HDR histogram. A count costs an index;
histograms are added bucket by bucket, so that workers' can be merged and percentiles taken of the sum.

Each microsecond below 64 has a bucket of its own; above, each power of two has 32 of the same width. What is told of a bucket is
its middle, at most 1.6 % beside what was counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from agentfw.views import Spread

SUB = 5
"""Buckets a power of two, as a power of two."""
MOST_BITS = 42
"""Microseconds beyond this power of two (50 days) are counted as that."""
BUCKETS = (MOST_BITS - SUB + 1) << SUB
_LARGEST = (1 << MOST_BITS) - 1


def bucket_of(seconds: float) -> int:
    """0 for what is negative, as clocks may have it. ValueError for NaN, OverflowError for infinity."""
    micros = int(seconds * 1e6)
    if micros < 32:
        return micros if micros > 0 else 0
    if micros > _LARGEST:
        micros = _LARGEST
    shift = micros.bit_length() - 6
    return (shift << 5) + (micros >> shift)


def middle_of(bucket: int) -> float:
    """Seconds."""
    if bucket < 64:
        return (bucket + (0.5 if bucket else 0.0)) / 1e6
    shift = (bucket >> 5) - 1
    return ((((bucket & 31) + 32) << shift) + (1 << shift) / 2) / 1e6


class Durations:
    """`counts`: by bucket. Grows to BUCKETS entries at most."""

    __slots__ = ("count", "counts", "most")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0
        self.most = 0.0

    def add(self, seconds: float) -> None:
        bucket = bucket_of(seconds)
        counts = self.counts
        counts[bucket] = counts.get(bucket, 0) + 1
        self.count += 1
        if seconds > self.most:
            self.most = seconds

    def merge(self, counts: Mapping[int, int], most: float) -> None:
        """Add what another counted."""
        mine = self.counts
        for bucket, count in counts.items():
            mine[bucket] = mine.get(bucket, 0) + count
            self.count += count
        self.most = max(self.most, most)

    def quantile(self, part: float) -> float | None:
        """The duration that `part` of all are not longer than; None: there are none."""
        if not self.count:
            return None
        left = max(1, math.ceil(part * self.count))
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return min(middle_of(bucket), self.most)
        return self.most

    def spread(self) -> Spread:
        if not self.count:
            return Spread()
        return Spread(count=self.count, p50=self.quantile(0.5), p95=self.quantile(0.95), p99=self.quantile(0.99), most=self.most)
