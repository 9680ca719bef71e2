"""PromQL taken apart (by promql-parser), and held against the metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from agentfw.metrics.catalog import CATALOG
from agentfw.metrics.declared import Declared

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = DOCS / "grafana/agentfw.json"
ALERTS = DOCS / "prometheus/alerts.yml"
SCRAPED = frozenset({"job", "instance"})
"""Labels that Prometheus adds itself."""
GROWING = frozenset({"rate", "increase", "irate"})


@dataclass(frozen=True)
class Query:
    place: str
    text: str
    legend: str = ""


@dataclass
class Known:
    """A metric as queries name it. `values`: those that a label may have, of those whose values are known."""

    labels: frozenset[str]
    grows: bool
    values: dict[str, frozenset[str]] = field(default_factory=dict)


def known() -> dict[str, Known]:
    found = {"up": Known(SCRAPED, False), "agentfw_build_info": Known(SCRAPED | {"version", "python"}, False)}
    found["agentfw_metrics_left_out"] = Known(SCRAPED, False)
    for declared in CATALOG:
        labels, values = SCRAPED | set(declared.labels), _values(declared)
        if declared.kind == "histogram":
            found[f"{declared.full_name}_bucket"] = Known(labels | {"le"}, True, values)
            for suffix in ("_sum", "_count"):
                found[declared.full_name + suffix] = Known(labels, True, values)
        else:
            found[declared.full_name] = Known(labels, declared.kind == "counter", values)
    return found


def _values(declared: Declared) -> dict[str, frozenset[str]]:
    if declared.pattern is not None:
        return {}
    return {label: frozenset(row[index] for row in declared.source.values()) for index, label in enumerate(declared.labels)}


def panels(document: Any) -> Iterator[Any]:
    for panel in document["panels"]:
        yield panel
        yield from panel.get("panels", ())


def of_dashboard() -> Iterator[Query]:
    document = json.loads(DASHBOARD.read_text())
    for panel in panels(document):
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5m").replace("$__range", "1h")
            yield Query(f"panel {panel['title']!r}", text, target["legendFormat"])


def rules() -> list[Any]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def of_alerts() -> Iterator[Query]:
    for rule in rules():
        yield Query(f"alert {rule['alert']}", rule["expr"], " ".join(rule["annotations"].values()))


def faults(query: Query, metrics: dict[str, Known]) -> list[str]:
    """What is wrong with it."""
    try:
        expression = promql_parser.parse(query.text)
    except ValueError as error:
        return [f"{query.place}: {error}"]
    found: list[str] = []
    labels = _labels(expression, metrics, False, found)
    used = {each.strip() for each in re.findall(r"{{ *(?:\$labels\.)?(\w+)[^}]*}}", query.legend)} - {"value"}
    if not used <= labels:
        found.append(f"no label {', '.join(sorted(used - labels))} in what comes of it")
    return [f"{query.place}: {each}" for each in found]


def _labels(node: Any, metrics: dict[str, Known], grows: bool, found: list[str]) -> frozenset[str]:
    """Of what an expression gives. `grows`: it is asked for the rate of."""
    match node:
        case promql_parser.VectorSelector():
            return _selected(node, metrics, grows, found)
        case promql_parser.MatrixSelector():
            return _selected(node.vector_selector, metrics, grows, found)
        case promql_parser.AggregateExpr():
            inside = _labels(node.expr, metrics, grows, found)
            if node.modifier is None:
                # those that choose series leave them as they are
                return inside if str(node.op) in ("topk", "bottomk") else frozenset()
            by = frozenset(node.modifier.labels)
            assert node.modifier.type == promql_parser.AggModifierType.By
            if not by <= inside:
                found.append(f"there is no label {', '.join(sorted(by - inside))} to group by")
            return by
        case promql_parser.Call():
            name = node.func.name
            args = [_labels(each, metrics, name in GROWING, found) for each in node.args]
            if name == "histogram_quantile" and "le" not in args[1]:
                found.append("a quantile without `le`")
            return args[-1] - ({"le"} if name == "histogram_quantile" else set())
        case promql_parser.BinaryExpr():
            sides = [_labels(each, metrics, grows, found) for each in (node.lhs, node.rhs)]
            return sides[0] | sides[1] if str(node.op) == "or" else sides[0]
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            return _labels(node.expr, metrics, grows, found)
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            return frozenset()
    raise TypeError(type(node))


def _selected(node: Any, metrics: dict[str, Known], grows: bool, found: list[str]) -> frozenset[str]:
    metric = metrics.get(node.name)
    if metric is None:
        found.append(f"no metric {node.name}")
        return frozenset()
    if grows != metric.grows:
        found.append(
            f"{node.name} is {'no counter, and has no rate' if grows else 'a counter, of which only the rate says something'}"
        )
    for matcher in node.matchers.matchers:
        if matcher.name not in metric.labels:
            found.append(f"{node.name} has no label {matcher.name}")
        elif matcher.name in metric.values:
            regex = matcher.op in (promql_parser.MatchOp.Re, promql_parser.MatchOp.NotRe)
            wrong = set(matcher.value.split("|") if regex else [matcher.value]) - metric.values[matcher.name]
            if wrong:
                found.append(f"{node.name} has no {matcher.name} {', '.join(sorted(wrong))}")
    return metric.labels
