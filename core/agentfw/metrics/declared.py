"""How a metric is declared: what it is called and means, and which statistics are its samples; and what a statistic may be."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

PREFIX = "agentfw_"
Kind = Literal["counter", "gauge", "histogram"]

MAX_NAME = 200
"""Characters of a statistic's name."""
MAX_VALUE = 2.0**63
MAX_SERIES = 256
"""Series of a metric whose labels come from statistics' names: hooks, processes, tenants."""

_NO_NAME = re.compile(r"[^a-zA-Z0-9_]+")


def is_sound(name: object, value: object) -> bool:
    """Of what calls itself a statistic: it has a name of some length, and a number that is one."""
    if not isinstance(name, str) or len(name) > MAX_NAME or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value) and abs(value) <= MAX_VALUE
    except OverflowError:  # an int beyond all floats
        return False


def other_name(statistic: str) -> str:
    """What a statistic that nobody declared is called. One that ends with `_total` is a counter."""
    return f"{PREFIX}plugin_{_NO_NAME.sub('_', statistic).strip('_').lower()}"


@dataclass(frozen=True)
class Declared:
    """One metric. `name` without `agentfw_`, and without the `_total` that a counter has besides; it ends with its unit
    (`_seconds`, `_bytes`) if it has one (https://prometheus.io/docs/practices/naming/).

    `source` gives for a statistic the values of `labels`; a histogram's is the name that its buckets begin with. With `pattern`
    there are as many series as there are statistics whose whole name matches; the groups are the labels.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    source: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pattern: re.Pattern[str] | None = None
    bounds: tuple[float, ...] = ()
    """Of a histogram: its buckets, in seconds."""
    sum: str = ".sum"
    """Of a histogram: what its sum is called, after the name that its buckets begin with."""
    count: str = ".count"
    """Of a histogram: likewise what its number of observations is called, if anything; its buckets say it, too."""
    plugin: str = ""
    """Whose it is: exposed, as 0 if need be, once any statistic begins with that. "": always."""

    @property
    def full_name(self) -> str:
        """As a query has it; a histogram's has `_bucket`, `_sum` and `_count` behind it."""
        return f"{PREFIX}{self.name}" + ("_total" if self.kind == "counter" else "")

    @property
    def unit(self) -> str:
        last = self.name.rpartition("_")[2]
        return last if last in ("seconds", "bytes") else ""


Source = str | Mapping[str, str | tuple[str, ...]]


def counter(name: str, help: str, source: Source, labels: str = "") -> Declared:
    return _declared(name, "counter", help, source, labels)


def gauge(name: str, help: str, source: Source, labels: str = "") -> Declared:
    return _declared(name, "gauge", help, source, labels)


def histogram(name: str, help: str, source: str, bounds: Sequence[float]) -> Declared:
    return Declared(name, "histogram", help, (), {source: ()}, bounds=tuple(bounds), plugin=_owner(source))


def several(kind: Kind, name: str, help: str, pattern: str, **more: object) -> Declared:
    """A series for each statistic that matches; the pattern's groups are labels, in their order."""
    compiled = re.compile(pattern)
    labels = tuple(sorted(compiled.groupindex, key=lambda label: compiled.groupindex[label]))
    return Declared(name, kind, help, labels, pattern=compiled, plugin="*", **more)  # type: ignore[arg-type]


def _declared(name: str, kind: Kind, help: str, source: Source, labels: str) -> Declared:
    pairs: dict[str, tuple[str, ...]]
    if isinstance(source, str):
        pairs = {source: ()}
    else:
        pairs = {statistic: (value,) if isinstance(value, str) else value for statistic, value in source.items()}
    names = tuple(labels.split())
    assert all(len(values) == len(names) for values in pairs.values()), name
    return Declared(name, kind, help, names, pairs, plugin=_owner(next(iter(pairs))))


def _owner(statistic: str) -> str:
    owner = statistic.partition(".")[0]
    return "" if owner == "core" else owner  # the core is always there, and its counters come one by one


def by_statistic(catalog: Sequence[Declared]) -> Iterator[tuple[str, Declared]]:
    for declared in catalog:
        for statistic in declared.source:
            yield statistic, declared
