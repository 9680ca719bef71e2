"""Statistics made metrics: a collector for `prometheus_client`.

What comes in is taken for whatever it is: names of any length and characters, values of any kind. What cannot be a metric is left
out, and counted.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.utils import floatToGoString

from ..histograms import BUCKET, labels
from ..texts import shown
from .catalog import CATALOG, IN_OTHERS
from .declared import MAX_SERIES, PREFIX, Declared, is_sound, other_name

MAX_OTHERS = 512
"""Counters of other plugins, all together ..."""
MAX_OF_ONE = 128
"""... and of one of them."""
MAX_OTHER_NAME = 120
"""Characters of what such a one is called."""

_TOTAL = re.compile(r"(_total)+\Z")
_RESERVED = ("_bucket", "_count", "_sum", "_info", "_created", "_gcount", "_gsum")


class Statistics:
    """A `prometheus_client` collector over one look at the statistics."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._left: dict[str, float] = {}
        self._left_out = 0
        self._owners: set[str] = set()
        for name, value in values.items():
            if is_sound(name, value):
                self._left[name] = float(value)
                self._owners.add(name.partition(".")[0])
            else:
                self._left_out += 1

    def collect(self) -> Iterable[Metric]:
        yield _build()
        for declared in CATALOG:
            found = self._histogram(declared) if declared.kind == "histogram" else self._family(declared)
            if found is not None:
                yield found
        for name in IN_OTHERS:
            self._left.pop(name, None)
        yield from self._others()
        yield GaugeMetricFamily(
            f"{PREFIX}metrics_left_out",
            "Statistics that are no metrics: beyond a limit of how many there may be, no numbers, or named like others.",
            value=self._left_out,
        )

    # -- declared ones

    def _family(self, declared: Declared) -> Metric | None:
        samples = list(self._samples(declared))
        if declared.plugin and not samples:
            return None
        kind = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
        family = kind(PREFIX + declared.name, declared.help, labels=declared.labels, unit=declared.unit)
        for values, value in samples:
            family.add_metric(values, value)
        return family

    def _samples(self, declared: Declared) -> Iterator[tuple[tuple[str, ...], float]]:
        if declared.pattern is not None:
            for matched in self._matching(declared, self._left):
                value = self._take(declared, matched[0])
                if value is not None:
                    yield _labels(matched), value
            return
        if declared.plugin and declared.plugin not in self._owners:
            return
        for statistic, values in declared.source.items():
            value = self._take(declared, statistic)
            yield values, 0.0 if value is None else value

    def _matching(self, declared: Declared, names: Iterable[str]) -> list[re.Match[str]]:
        """Of names that match, as many as there may be."""
        assert declared.pattern is not None
        found = [matched for name in sorted(names) if (matched := declared.pattern.fullmatch(name)) is not None]
        for matched in found[MAX_SERIES:]:
            self._drop(matched[0])
        return found[:MAX_SERIES]

    def _take(self, declared: Declared, statistic: str) -> float | None:
        value = self._left.pop(statistic, None)
        if value is not None and value < 0 and declared.kind == "counter":
            self._left_out += 1
            return None
        return value

    def _drop(self, statistic: str) -> None:
        if self._left.pop(statistic, None) is not None:
            self._left_out += 1

    def _histogram(self, declared: Declared) -> Metric | None:
        left = self._left
        found: dict[str, tuple[str, ...]] = dict.fromkeys(declared.source, ())
        if declared.pattern is not None:
            names = {
                name.partition(BUCKET)[0].removesuffix(declared.count)
                for name in left
                if name.endswith(declared.count) or BUCKET in name
            }
            found = {matched[0]: _labels(matched) for matched in self._matching(declared, names)}
        elif declared.plugin and declared.plugin not in self._owners:
            return None
        family = HistogramMetricFamily(PREFIX + declared.name, declared.help, labels=declared.labels, unit=declared.unit)
        buckets = labels(declared.bounds)
        for base, values in found.items():
            total, rows = 0, []
            for bound, bucket in zip((*declared.bounds, math.inf), buckets, strict=True):
                total += max(0, int(left.pop(f"{base}{BUCKET}{bucket}", 0)))
                rows.append((_bound(bound), total))
            rows[-1] = "+Inf", max(total, int(left.pop(base + declared.count, 0)))
            family.add_metric(values, rows, max(0.0, left.pop(base + declared.sum, 0.0)))
        return family if found else None

    # -- others

    def _others(self) -> Iterator[Metric]:
        """Counters of plugins that nobody declared. Of unknown type, since nobody says whether they only grow, but for those
        that end with `_total`."""
        taken: set[str] = set()
        of_one: dict[str, int] = {}
        for statistic in sorted(self._left):
            owner = statistic.partition(".")[0]
            of_one[owner] = of_one.get(owner, 0) + 1
            name = other_name(statistic)
            base = _TOTAL.sub("", name)
            if name.endswith(_RESERVED):  # what other kinds of metrics end with means something else here
                base = name = f"{name}_value"
            value = self._left[statistic]
            if (
                len(name) > MAX_OTHER_NAME or base in taken or of_one[owner] > MAX_OF_ONE or len(taken) >= MAX_OTHERS
                or (base != name and value < 0)
            ):  # fmt: skip
                self._left_out += 1
                continue
            taken.add(base)
            text = f"The statistic {shown(statistic)}."
            if base != name:
                yield CounterMetricFamily(base, text, value=value)
            else:
                yield UnknownMetricFamily(name, text, value=value)


def _labels(matched: re.Match[str]) -> tuple[str, ...]:
    """Values of labels: one line, no control characters. Escaping is the format's."""
    return tuple(shown(value, 64) for value in matched.groups())


def _bound(seconds: float) -> str:
    """OpenMetrics wants a decimal point in it."""
    return floatToGoString(seconds)  # type: ignore[no-any-return, no-untyped-call]


def _build() -> Metric:
    family = InfoMetricFamily(f"{PREFIX}build", "What this is.")
    family.add_metric([], {"version": version("agentfw"), "python": platform.python_version()})
    return family
