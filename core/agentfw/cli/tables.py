"""Plugins' tables, for `agentfw run --stats` and `--json`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..reports import Table, shown

Value = str | int | float | None


def as_text(table: Table) -> str:
    """The title, and under it columns as wide as they must be; numbers to the right. A column without a value is left out."""
    kept = [i for i in range(len(table.columns)) if any(row[i] is not None for row in table.rows)]
    lines = [[table.columns[i] for i in kept], *([_cell(row[i]) for i in kept] for row in table.rows)]
    right = [all(not isinstance(row[i], str) for row in table.rows) for i in kept]
    widths = [max(len(line[k]) for line in lines) for k in range(len(kept))]
    text = [table.title]
    for line in lines:
        cells = zip(line, widths, right, strict=True)
        text.append("  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in cells).rstrip())
    return "\n".join(text)


def as_json(tables: Iterable[Table]) -> dict[str, list[dict[str, Any]]]:
    """Rows as objects, by the tables' names."""
    return {table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in tables}


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else shown(value, 80) if isinstance(value, str) else str(value)
