"""What Prometheus is told: of the catalog of declared metrics."""

from __future__ import annotations

from agentfw.metrics.catalog import SECTIONS
from agentfw.metrics.declared import Declared


def tables() -> str:
    """Markdown: a table a section."""
    parts = []
    for title, section in SECTIONS.items():
        rows = [f"| `{declared.full_name}` | {declared.kind} | {_labels(declared)} | {_cell(declared)} |" for declared in section]
        parts.append("\n".join([f"### {title}", "", "| metric | type | labels | of |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts)


def _labels(declared: Declared) -> str:
    """With the values that they may have, where these are known."""
    found = []
    for index, label in enumerate(declared.labels):
        values = dict.fromkeys(labels[index] for labels in declared.source.values())
        found.append(f"`{label}`" + (f": {', '.join(values)}" if values else ""))
    return "; ".join(found)


def _cell(declared: Declared) -> str:
    text = declared.help.replace("|", "\\|")
    if declared.bounds:
        text += f" Buckets: {', '.join(f'{bound:.10g}' for bound in declared.bounds)} s."
    return text
