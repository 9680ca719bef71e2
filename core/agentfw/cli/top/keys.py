"""The keys of `agentfw top`."""

from __future__ import annotations

import textwrap

from .pages import Line
from .rows import COLUMNS
from .story import SECTIONS

PAGES = {"1": "agents", "2": "overview", "3": "policy and plugins"}
KEYS: tuple[tuple[str, str], ...] = (
    ("up, down, k, j", "the agent, or the line, above and below"),
    ("page up, page down, home, end, g, G", "further"),
    ("left, right, h, l", "the rest of lines that are longer than the screen"),
    ("Enter", "the agent's story"),
    ("Esc, q", "back; q at the first page: quit"),
    ("/", "filter: all words must be in name, id, tenant, labels (name=value), state or last deed; !word: must not"),
    ("a", "agents that have ended, too"),
    ("1, 2, 3", "agents; the pool's overview; policy and plugins"),
    ("<, >", "sort by the column to the left, to the right"),
    (", ".join(column.key for column in COLUMNS), "sort by a column; again: the other way round"),
    (", ".join(SECTIONS), "in a story: " + ", ".join(SECTIONS.values())),
    ("space", "ask the pool at once"),
    ("p", "pause: the screen stays as it is"),
    ("?", "these keys"),
    ("Ctrl-C", "quit"),
)
"""All keys, as `?` and docs/reference/cli.md have them."""


def keys_page(columns: int) -> list[Line]:
    lines: list[Line] = [(("keys", "head"),)]
    for keys, meaning in KEYS:
        lines.append(((keys, "b"),))
        lines += [((f"    {line}", ""),) for line in textwrap.wrap(meaning, max(columns - 6, 20))]
    lines += [(), (("columns", "head"),)]
    lines += [((f"{column.key} ", "b"), (f"{column.title:<8}{column.meaning}", "")) for column in COLUMNS]
    return lines
