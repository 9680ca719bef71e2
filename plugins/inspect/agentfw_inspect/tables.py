"""What `agentfw run --stats` and `--json` show of model calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentfw.reports import Table

from .totals import Rows, Totals

MOST = 64
"""Rows of a table of agents, labels or models; the rest are one row."""
_COLUMNS = ("calls", "failed", "input", "cached", "output", "cost", "first_token_p50_ms", "first_token_p99_ms", "p50_ms",
            "p99_ms", "estimated")  # fmt: skip


def make_tables(
    run: Totals,
    models: Rows,
    agents: list[tuple[str, Totals]],
    labels: Rows,
    destinations: Rows,
    limits: Mapping[str, Mapping[str, str]],
    currency: str,
) -> list[Table]:
    """No tables if no model was called. `currency` "": there are no prices."""
    if not run.calls and not run.refused:
        return []
    money = f", cost in {currency}" if currency else ""
    found = [_table("model_calls", f"model calls{money}", "model", [*models.items(), ("all", run)], currency)]
    if len(agents) > 1:
        found.append(_table("model_calls_by_agent", "by agent", "agent", agents, currency))
    if len(labels):
        found.append(_table("model_calls_by_label", "by label", "label", labels.items(), currency))
    if len(destinations) > 1:
        found.append(_table("model_calls_by_destination", "by destination", "destination", destinations.items(), currency))
    rows = [(place, name, value) for place, headers in limits.items() for name, value in sorted(headers.items())]
    if rows:
        found.append(Table("rate_limits", "rate limits as last seen", ("destination", "header", "value"), rows))
    return found


def _table(name: str, title: str, first: str, items: Iterable[tuple[str, Totals]], currency: str) -> Table:
    items = list(items)
    if len(items) > MOST:
        rest = Totals()
        for _, row in items[MOST - 1 :]:
            rest.merge(row)
        items = [*items[: MOST - 1], (f"({len(items) - MOST + 1} others)", rest)]
    rows = [(label, *_row(row, currency)) for label, row in items]
    return Table(name, title, (first, *_COLUMNS), rows)


def _row(row: Totals, currency: str) -> tuple[int | float | None, ...]:
    return (
        row.calls,
        row.failed,
        row.input_tokens,
        row.cache_read_tokens,
        row.output_tokens,
        round(row.cost, 6) if currency else None,
        _ms(row.first_token.quantile(0.5)),
        _ms(row.first_token.quantile(0.99)),
        _ms(row.latency.quantile(0.5)),
        _ms(row.latency.quantile(0.99)),
        row.estimated,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
