"""Scrapes taken apart, by Prometheus' own parsers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentfw.metrics import expose
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(values: dict[str, Any], accept: str = "") -> Series:
    """Values by name and labels; each of them once."""
    text = expose(values, accept)[0].decode()
    return series(parse_open_metrics(text) if accept else parse_text(text))


def series(families: Iterable[Any]) -> Series:
    found: Series = {}
    for family in families:
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, key
            found[key] = sample.value
    return found


def of(found: Series, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))
