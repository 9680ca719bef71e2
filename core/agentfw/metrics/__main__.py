"""The tables of docs/reference/metrics.md, out of the catalog.

python -m agentfw.metrics docs/reference/metrics.md           writes them anew, between its markers
python -m agentfw.metrics --check docs/reference/metrics.md   status 1 if they are not as they should be
"""

from __future__ import annotations

import sys
from pathlib import Path

from .catalog import SECTIONS
from .declared import Declared

BEGIN, END = "<!-- made by `python -m agentfw.metrics`: begin -->", "<!-- end -->"


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


def renewed(page: str) -> str:
    """The page with the tables of now. ValueError: it has no place for them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the tables: `{BEGIN}` and `{END}`")
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    files = [Path(name) for name in arguments if name != "--check"]
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    stale = 0
    for file in files:
        page = file.read_text()
        new = renewed(page)
        if new != page:
            stale += 1
            if not check:
                file.write_text(new)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
