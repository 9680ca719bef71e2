"""`agentfw config`."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..config_shown import key_text, masked, value_text
from .output import put, say

if TYPE_CHECKING:
    from ..config import Config


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
    """Check the file and print what it sets. Values that may be secrets are not shown.

    Whether secrets, files and ports are there is seen at a start only.
    """
    from ..config import load_config
    from ..plugins import chosen_plugins
    from ..plugins.loading import known_tables

    loaded = load_config(file)
    plugins = known_tables(chosen_plugins(loaded), loaded)
    loaded.check_tables(plugins)
    _check_keys(loaded, plugins)
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


def _check_keys(loaded: Config, plugins: dict[str, str]) -> None:
    """ConfigError for a key that is none, a value of another kind. What only a start can find is not looked for: secrets, files,
    ports. `plugins`: by name, what would load them."""
    from ..errors import PluginError
    from ..plugins.loading import plugin_class
    from ..pool.config import PoolConfig

    loaded.plugin("pool", PoolConfig)
    for name in loaded.tables:
        if name in plugins:
            try:
                with contextlib.redirect_stdout(sys.stderr):  # what it prints is not data
                    kind = getattr(plugin_class(plugins[name])[1], "config_type", None)
            except PluginError as error:  # a package that it needs is not here
                say(f"note: [{name}] is not checked: {error}")
                continue
            if kind is not None:
                loaded.plugin(name, kind)
