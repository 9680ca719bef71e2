"""Parts of the documentation that are made of the code. Each module has functions of its arguments that return Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import api, commands, hooks, metrics, python, statuses, tables, terminal
from .markdown import Unknown

PARTS: dict[str, Callable[..., str]] = {
    "config": tables.keys,
    "config-tables": tables.index,
    "command": commands.command,
    "commands": commands.index,
    "variables": commands.variables,
    "hooks": hooks.hooks,
    "hook-arguments": hooks.arguments,
    "operations": api.operations,
    "schemas": api.schemas,
    "api-errors": api.errors,
    "metrics": metrics.tables,
    "statuses": statuses.statuses,
    "python": python.public,
    "top-keys": terminal.keys,
    "top-columns": terminal.columns,
}


def make(name: str = "", *arguments: str) -> str:
    """A part. Unknown: there is none of this name, or of these arguments."""
    if name not in PARTS:
        raise Unknown(f"no part `{name}` (there are {', '.join(PARTS)})")
    return PARTS[name](*arguments)


def wanted() -> Iterator[tuple[str, str]]:
    """What must stand somewhere, and where it belongs."""
    for name in tables.named():
        yield f"config {name}", "docs/reference/configuration.md"
    for path in commands.leaves():
        yield f"command {path}", "docs/reference/cli.md"
    yield from ((name, "docs/reference") for name in PARTS if name not in ("config", "command"))


__all__ = ["PARTS", "Unknown", "make", "wanted"]
