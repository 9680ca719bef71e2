"""Options by variables: how they are named, which one a wrong value came from, and those that are no option's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from types import TracebackType

import click

from ..errors import AgentfwError
from ..hints import did_you_mean


class Context(click.Context):
    """Of a command whose options variables may set: an error about one of those gets the variable's name as its note."""

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        if isinstance(exc_value, (AgentfwError, click.UsageError)) and not of_error(exc_value):
            for name in _meant(self, exc_value):
                exc_value.add_note(name)
                break
        return super().__exit__(exc_type, exc_value, tb)


def of_error(error: BaseException) -> str:
    """The variable that has the value which is wrong; "": none, as far as can be seen."""
    return next((note for note in getattr(error, "__notes__", ()) if note.startswith("AGENTFW_")), "")


def _meant(context: click.Context, error: BaseException) -> Iterator[str]:
    """Most errors know nothing of options: the value is in their text, quoted or as a path. What a pool says is of no option."""
    from ..pool.jobs import PoolError

    if isinstance(error, PoolError):
        return
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if not isinstance(option, click.Option) or source is not click.core.ParameterSource.ENVIRONMENT:
            continue
        name = next((name for name in _names(option, context) if os.environ.get(name)), "")
        if isinstance(error, click.BadParameter) and error.param is not None:
            told = error.param is option
        else:
            value = os.environ.get(name, "")
            words = filter(None, (value, *re.split(r"[\s,]+", value)))
            told = any(f"`{word}`" in text or ("/" in word and word in text) for word in words)
        if name and told:
            yield name


def _names(option: click.Option, context: click.Context) -> list[str]:
    """click asks for them in this order."""
    own = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    return [*own, f"{context.auto_envvar_prefix}_{option.name}".upper()]


def with_variables(command: click.Command, *path: str) -> click.Command:
    """Variables are named as options are: `run --json` is AGENTFW_RUN_JSON, whatever its argument is called in Python."""
    command.context_class = Context
    for name, inner in getattr(command, "commands", {}).items():
        with_variables(inner, *path, name)
    for option in command.params:
        if isinstance(option, click.Option) and option.envvar is None:
            word = max(option.opts, key=len).lstrip("-")
            option.envvar = "_".join(("AGENTFW", *path, word)).upper().replace("-", "_")
    return command


def misspelt(group: click.Group) -> Iterator[tuple[str, str]]:
    """Variables that are named as an option's of a command of `group`, and are none's; and a guess at what was meant."""
    outer = click.Context(group)
    found = ((f"AGENTFW_{_upper(word)}", group.get_command(outer, word)) for word in group.list_commands(outer))
    commands = {prefix: command for prefix, command in found if command is not None}
    known = {name for prefix, command in commands.items() for name in _all(command, prefix)}
    starts = tuple(f"{prefix}_" for prefix in commands)
    for name in sorted(os.environ):
        if name.startswith(starts) and name not in known:
            yield name, did_you_mean(name, sorted(known))


def _all(command: click.Command, prefix: str) -> Iterator[str]:
    context = click.Context(command, auto_envvar_prefix=prefix)
    for option in command.params:
        if isinstance(option, click.Option):
            yield from _names(option, context)
    for word, inner in getattr(command, "commands", {}).items():
        yield from _all(inner, f"{prefix}_{_upper(word)}")


def _upper(word: str) -> str:
    return word.upper().replace("-", "_")
