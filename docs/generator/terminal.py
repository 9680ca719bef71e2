"""Keys and columns of `agentfw top`."""

from __future__ import annotations

from agentfw.cli.top.keys import KEYS
from agentfw.cli.top.rows import COLUMNS

from .markdown import code, table


def keys() -> str:
    rows = [(", ".join(code(key) for key in names.split(", ")), meaning) for names, meaning in KEYS]
    return table(("key", "meaning"), rows)


def columns() -> str:
    rows = [(code(column.title), code(column.key), code(column.name), column.meaning) for column in COLUMNS]
    return table(("column", "key", "`--sort`", "meaning"), rows)
