"""`agentfw config`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..config_shown import key_text, masked, value_text
from .output import put


@click.group()
def config() -> None:
    """agentfw.toml, and what it comes to."""


@config.command()
@click.option(
    "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="This file instead of the nearest agentfw.toml."
)
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(file: Path | None, origin: bool, as_json: bool) -> None:
    """Check the file and print what it sets. Values that may be secrets are not shown."""
    from ..config import load_config
    from ..plugins import available, chosen_plugins, plugin_name

    loaded = load_config(file)
    loaded.check_tables({*available(), *map(plugin_name, chosen_plugins(loaded))})
    tables = {name: masked(table) for name, table in loaded.tables.items()}
    if as_json:
        click.echo(json.dumps({"version": 1, "file": str(loaded.file) if loaded.file else None, "tables": tables}, default=str))
        return
    put(f"# {loaded.file or 'no agentfw.toml from here upward: the defaults apply'}")
    for name, table in tables.items():
        put(f"[{key_text(name)}]")
        for key, value in table.items():
            place = f"  # {loaded.place(f'{name}.{key}') or loaded.file}" if origin else ""
            put(f"{key_text(key)} = {value_text(value)}{place}")
