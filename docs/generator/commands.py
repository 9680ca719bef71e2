"""The command line: of click's commands and options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache

import click
from agentfw.cli import cli

from .markdown import Unknown, code, slug, table

WIDTH = 200


@cache
def found() -> dict[str, click.Command]:
    """Path -> command: "run", "pool start"; groups are left out."""
    return dict(_walk(cli, ()))


def _walk(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _walk(command, (*path, name))
        elif command is not None:
            yield " ".join((*path, name)), command


def leaves() -> list[str]:
    return list(found())


def index() -> str:
    rows = ((f"[`agentfw {path}`](#{slug('agentfw ' + path)})", _help(each)[0]) for path, each in found().items())
    return table(("command", "what it does"), rows)


def command(*path: str) -> str:
    name = " ".join(path)
    if name not in found():
        raise Unknown(f"no command `{name}` (there are {', '.join(found())})")
    each = found()[name]
    context = click.Context(each, info_name=f"agentfw {name}", max_content_width=WIDTH, terminal_width=WIDTH)
    usage = " ".join(each.get_usage(context).removeprefix("Usage:").split())
    rows = [row for option in each.params if isinstance(option, click.Option) and (row := _row(option, context))]
    return "\n\n".join([f"    {usage}", *_help(each), table(("option", "meaning", "default"), rows)])


def _help(each: click.Command) -> list[str]:
    """The paragraphs of its help, as Markdown."""
    text = inspect.cleandoc(each.help or "").partition("\f")[0]
    return [_marked(" ".join(part.replace("\b\n", "").split())) for part in text.split("\n\n") if "\b" not in part]


def _marked(text: str) -> str:
    """Options and files that Markdown would take for something else, in backquotes."""
    return re.sub(r"(?<![`\w])(--[a-z][a-z-]*|__\w+__\.py)(?![\w`-])", r"`\1`", text)


def _row(option: click.Option, context: click.Context) -> tuple[str, str, str] | None:
    record = option.get_help_record(context)
    if record is None or "--help" in option.opts:
        return None
    names, text = record
    named = {
        key: match[1]
        for key in ("default", "env var")
        if (match := re.search(rf"\[(?:[^\[\]]*; )?{key}: ((?:\[\w+\]|[^\[\];])*)", text))
    }
    text = re.sub(r"(?:^|  )\[[^\[\]]*(?:\[\w+\][^\[\]]*)*\]", "", text)
    bounds = option.type
    if isinstance(bounds, (click.IntRange, click.FloatRange)) and not option.count:
        low, high = (
            None if edge is None else f"{edge:,}" if isinstance(edge, int) else f"{edge:g}" for edge in (bounds.min, bounds.max)
        )
        text += f" {low} to {high}." if low is not None and high is not None else f" At least {low}." if low is not None else ""
    flags, _, value = names.partition("  ")
    shown = ", ".join(code(part) for part in re.split(r", (?=-)", f"{flags} {value}".strip()))
    return shown, _marked(text.strip()), named.get("default", "")


def variables() -> str:
    """Those that click reads, where an option names one of its own."""
    rows: dict[str, tuple[list[str], str]] = {}
    for path, each in found().items():
        for option in each.params:
            names = getattr(option, "envvar", None)
            for name in [names] if isinstance(names, str) else names or []:
                if name == "_".join(("AGENTFW", *path.split(), option.opts[-1].lstrip("-"))).upper().replace("-", "_"):
                    continue  # as the rule says
                told = rows.setdefault(name, ([], f"`{option.opts[-1]}`"))
                told[0].append(f"`{path}`")
    return table(
        ("variable", "as the option", "of"),
        ((code(name), option, ", ".join(paths)) for name, (paths, option) in sorted(rows.items())),
    )
