"""`agentfw plugins`."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .output import put

if TYPE_CHECKING:
    from ..plugins.describe import Description

WIDTH = 110


@click.group()
def plugins() -> None:
    """What can stand in an agent's path."""


@plugins.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_plugins(as_json: bool) -> None:
    """The installed plugins, their hooks, and where they come from. A `*` marks those that `agentfw run` uses by default."""
    from ..errors import AgentfwError
    from ..plugins import DEFAULT, available

    rows: list[dict[str, Any]] = []
    for name, info in sorted(available().items()):
        row: dict[str, Any] = {
            "name": name,
            "default": name in DEFAULT,
            "module": info.value,
            "origin": info.origin,
            "others": list(info.others),
        }
        try:
            row["hooks"] = [use.name for use in _described(name).hooks]
        except AgentfwError as error:  # a broken one is worth seeing, and must not hide the others
            row["error"] = str(error)
        rows.append(row)
    if as_json:
        click.echo(json.dumps({"version": 1, "plugins": rows}))
        return
    names, origins = (max((len(row[key]) for row in rows), default=0) for key in ("name", "origin"))
    for row in rows:
        detail = ", ".join(row["hooks"]) if "hooks" in row else f"error: {row['error']}"
        if row["others"] and "hooks" in row:
            detail += f" (that of {', '.join(row['others'])} is not used)"
        put(f"{'*' if row['default'] else ' '} {row['name']:<{names}}  {row['origin']:<{origins}}  {detail}")


@plugins.command()
@click.argument("plugin", metavar="NAME")
@click.option(
    "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="Its time limits are shown; default: the nearest."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(plugin: str, file: Path | None, as_json: bool) -> None:
    """What a plugin does: its hooks with their order and time limits, and the keys of its table in agentfw.toml.

    NAME is an installed plugin or a file, as for `run --plugins`. It is imported, but not started.
    """
    from ..config import load_config
    from ..plugins.limits import Limits

    found = _described(plugin)
    limits = Limits(load_config(file), [found.name])
    seconds = {use.name: limits.seconds(found.name, use.name) for use in found.hooks}
    if as_json:
        document = asdict(found)
        for use in document["hooks"]:
            use["seconds"] = seconds[use["name"]]
        click.echo(json.dumps({"version": 1, **document}))
        return
    for line in _lines(found, seconds):
        put(line)


def _described(name: str) -> Description:
    """What the plugin prints while it is imported is not data."""
    from ..plugins.describe import describe

    with contextlib.redirect_stdout(sys.stderr):
        return describe(name)


def _lines(found: Description, seconds: dict[str, float]) -> list[str]:
    by_default = "; used by default" if found.default else ""
    origin = "" if found.origin == found.module else f", {found.origin}"
    lines = [f"{found.name}: {found.module}{origin}{by_default}"]
    lines += [f"not used: that of {other}" for other in found.others]
    lines += ["", *found.doc.splitlines(), "", f"hooks (API {found.api}):"]
    for use in found.hooks:
        words = [{"first": "before others", "last": "after others"}.get(use.order, "")]
        words.append(f"at most {seconds[use.name]:g} s" if use.awaitable else "")
        lines.append(f"  {use.name:<14} {', '.join(word for word in words if word)}".rstrip())
    if not found.hooks:
        lines.append("  none")
    if not found.configurable:
        return [*lines, "", "no configuration"]
    change = "a changed one is taken over when agentfw.toml is read again" if found.reloads else "a changed one needs a restart"
    lines += ["", f"table [{found.name}] of agentfw.toml ({change}):"]
    for key in found.keys:
        default = "must be given" if key.default is None else f"default {key.default}" if key.default not in ("", "null") else ""
        lines.append(f"  {key.name}: {key.type}" + (f"; {default}" if default else ""))
        lines += textwrap.wrap(key.doc, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines


@plugins.command()
@click.argument("name")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path, file_okay=False), default=Path(), metavar="DIR",
    help="Where the project's directory is made.  [default: here]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def new(name: str, directory: Path, as_json: bool) -> None:
    """Write the project of a new plugin: package, configuration, a hook, tests."""
    from ..scaffold import write_project

    project, files = write_project(name, directory)
    if as_json:
        click.echo(json.dumps({"version": 1, "name": name, "directory": str(project), "files": files}))
        return
    put(f"{project}:")
    for file in files:
        put(f"  {file}")
    put(
        f"\nnext:\n  pip install -e '{project}[test]'\n  pytest {project}\n  agentfw plugins show {name}\n"
        f"  agentfw run --plugins dns,tls,policy,credentials,native,{name} agent.py"
    )
