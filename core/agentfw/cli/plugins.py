"""`agentfw plugins`."""

from __future__ import annotations

import json

import click


@click.group()
def plugins() -> None:
    """What can stand in an agent's path."""


@plugins.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_plugins(as_json: bool) -> None:
    """The installed plugins, their hooks, and where they come from. A `*` marks those that `agentfw run` uses by default."""
    from ..config import Config
    from ..errors import AgentfwError
    from ..plugins import DEFAULT, available, load_plugins

    rows = []
    for name, info in sorted(available().items()):
        row: dict[str, object] = {"name": name, "default": name in DEFAULT, "module": info.value, "origin": info.origin}
        try:
            row["hooks"] = load_plugins([name], Config()).hooks(name)
        except AgentfwError as error:  # it may need configuration, or be broken: either is worth seeing
            row["error"] = str(error)
        rows.append(row)
    if as_json:
        click.echo(json.dumps({"version": 1, "plugins": rows}))
        return
    for row in rows:
        hooks = row.get("hooks")
        detail = ", ".join(hooks) if isinstance(hooks, list) else f"error: {row['error']}"
        click.echo(f"{'*' if row['default'] else ' '} {row['name']:<14} {row['origin']:<18} {detail}")
