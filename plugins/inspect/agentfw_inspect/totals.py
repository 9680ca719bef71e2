"""Sums of model calls: of an agent, a label's value, a model, a destination, the whole run."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable

from agentfw.model_calls import ModelCall

_FIRST, _GROWTH, _BUCKETS = 0.0005, 1.1, 150
_BOUNDS = [_FIRST * _GROWTH**i for i in range(_BUCKETS)]
"""Upper bounds in seconds, 0.5 ms to 12 minutes, ten per cent apart."""
OTHER = "(other)"


class Times:
    """A distribution of seconds, to within five per cent."""

    __slots__ = ("count", "counts")

    def __init__(self) -> None:
        self.count = 0
        self.counts: dict[int, int] = {}

    def add(self, bucket: int) -> None:
        """`bucket`: of `bucket_of()`."""
        self.count += 1
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def quantile(self, part: float) -> float | None:
        """Seconds; None: there is none."""
        left = math.ceil(self.count * part)
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return _BOUNDS[min(bucket, _BUCKETS - 1)] / math.sqrt(_GROWTH)
        return None

    def merge(self, other: Times) -> None:
        self.count += other.count
        for bucket, number in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + number


def bucket_of(seconds: float) -> int:
    return bisect_left(_BOUNDS, seconds)


class Totals:
    """What calls came to, and what those in flight have reserved."""

    __slots__ = (
        "asked_cost",
        "asked_input",
        "asked_output",
        "cache_read_tokens",
        "cache_write_tokens",
        "calls",
        "cost",
        "estimated",
        "failed",
        "first_token",
        "in_flight",
        "input_tokens",
        "latency",
        "output_tokens",
        "reasoning_tokens",
        "refused",
        "reserved_cost",
        "reserved_input",
        "reserved_output",
        "unpriced",
    )

    def __init__(self) -> None:
        self.calls = 0
        """All that were sent, failed ones too."""
        self.failed = 0
        self.refused = 0
        """Not sent, for a budget."""
        self.estimated = 0
        self.unpriced = 0
        """Calls with counts but no price."""
        self.input_tokens = 0
        self.output_tokens = 0
        self.cache_read_tokens = 0
        self.cache_write_tokens = 0
        self.reasoning_tokens = 0
        self.cost = 0.0
        self.latency = Times()
        self.first_token = Times()
        self.in_flight = 0
        self.reserved_input = 0
        self.reserved_output = 0
        self.reserved_cost = 0.0
        self.asked_input = 0
        """What of the reserved is of calls whose request was read to its end."""
        self.asked_output = 0
        self.asked_cost = 0.0

    def merge(self, other: Totals) -> None:
        """Add what has ended of another."""
        for name in ("calls", "failed", "refused", "estimated", "unpriced", "input_tokens", "output_tokens", "cache_read_tokens",
                     "cache_write_tokens", "reasoning_tokens", "cost"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latency.merge(other.latency)
        self.first_token.merge(other.first_token)


def add(rows: Iterable[Totals], call: ModelCall, latency: int, first_token: int | None) -> None:
    """To all of them. `latency`, `first_token`: buckets. PERF: half a dozen rows a call, so what is 0 is not added, and the call
    is looked at once."""
    inputs, outputs, cost, failed = call.input_tokens, call.output_tokens, call.cost, call.failed
    read, written, reasoning = call.cache_read_tokens, call.cache_write_tokens, call.reasoning_tokens
    for row in rows:
        row.calls += 1
        if failed:
            row.failed += 1
        if inputs:
            row.input_tokens += inputs
        if outputs:
            row.output_tokens += outputs
        if read:
            row.cache_read_tokens += read
        if written:
            row.cache_write_tokens += written
        if reasoning:
            row.reasoning_tokens += reasoning
        if call.estimated:
            row.estimated += 1
        if cost is not None:
            row.cost += cost
        elif inputs or outputs:
            row.unpriced += 1
        times = row.latency
        times.count += 1
        times.counts[latency] = times.counts.get(latency, 0) + 1
        if first_token is not None:
            row.first_token.add(first_token)


class Rows:
    """Totals by name, at most `limit`. When there are more, what was used longest ago is added to OTHER, if `may_fold` says so;
    if nothing may be, a new name is OTHER's."""

    def __init__(self, limit: int, may_fold: Callable[[str], bool] | None = None) -> None:
        self._limit = limit
        self._rows: OrderedDict[str, Totals] = OrderedDict()
        self._may_fold = may_fold

    def get(self, name: str) -> Totals:
        row = self._rows.get(name)
        if row is None:
            if len(self._rows) >= self._limit and not self._fold():
                name = OTHER
            row = self._rows.setdefault(name, Totals())
        self._rows.move_to_end(name)
        return row

    def known(self, name: str) -> bool:
        return name in self._rows

    def _fold(self) -> bool:
        if self._may_fold is None:
            return False
        for name, row in self._rows.items():
            if name != OTHER and not row.in_flight and self._may_fold(name):
                del self._rows[name]
                self._rows.setdefault(OTHER, Totals()).merge(row)
                return True
        return False

    def items(self) -> list[tuple[str, Totals]]:
        """Most tokens first."""
        return sorted(self._rows.items(), key=lambda item: -(item[1].input_tokens + item[1].output_tokens))

    def __len__(self) -> int:
        return len(self._rows)
