"""`agentfw config`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from .output import put

SECRET_WORDS = (
    "secret", "token", "pass", "key", "value", "authorization", "_auth", "credential", "cookie", "dsn", "argv", "parameters",
    "url", "basic",
)  # fmt: skip
"""Of a key with one of these in its name neither its value nor what is below it is shown. Programs are given secrets in their
arguments (`argv`), URLs have them in queries, and users of Basic authentication are keys at some APIs."""


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
    tables = {name: _masked(table) for name, table in loaded.tables.items()}
    if as_json:
        click.echo(json.dumps({"version": 1, "file": str(loaded.file) if loaded.file else None, "tables": tables}, default=str))
        return
    put(f"# {loaded.file or 'no agentfw.toml from here upward: the defaults apply'}")
    for name, table in tables.items():
        put(f"[{_key(name)}]")
        for key, value in table.items():
            place = f"  # {loaded.place(f'{name}.{key}') or loaded.file}" if origin else ""
            put(f"{_key(key)} = {_toml(value)}{place}")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    """A value as TOML writes it, in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return "".join(map(_letter, json.dumps(value, ensure_ascii=False)))
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _letter(letter: str) -> str:
    """TOML has no `\\x`, which is how what is not printable would be shown."""
    if letter.isprintable():
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 1 << 16 else f"\\U{ord(letter):08x}"


def _masked(value: Any, secret: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, secret or _may_be_secret(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, secret) for item in value]
    return "***" if secret and isinstance(value, str) else value


def _may_be_secret(key: str) -> bool:
    return any(word in key.lower() for word in SECRET_WORDS)
