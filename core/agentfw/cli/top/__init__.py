"""`agentfw top`: a pool at work, in a terminal."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

from ..connect import Where, json_option, pool_options, talk
from ..options import Range
from ..output import put, say
from .plain import document, summary, text, workers_table

if TYPE_CHECKING:
    from ...pool.client import HttpBackend

__all__ = ["summary", "top", "workers_table"]

EXAMPLES = """Examples:

\b
  agentfw top
  agentfw top --filter 'task=browse !done' --sort tokens
  agentfw top --once --all
  agentfw top --json | jq '.overview.dns_hit_rate'

\b
Keys: Enter one agent, / filter, N S T P M L K C D ... sort (again: the other way round), a those that have
ended too, 1 2 3 pages, space at once, p pause, ? all keys, q quit."""


@click.command(epilog=EXAMPLES, short_help="Show a pool at work, in the terminal.")
@click.option("-a", "--all", "ended", is_flag=True, help="Agents that have ended, too, as far as the pool keeps them.")
@click.option("--once", is_flag=True, help="Print it once.  [default: if there is no terminal to draw on]")
@click.option("--interval", type=Range(0.2, 3600), default=2.0, metavar="SECONDS", help="Time between two looks.  [default: 2]")
@click.option("--filter", "words", default="", metavar="WORDS", help="Only agents with all these words; `!word`: without it.")
@click.option(
    "--sort", metavar="COLUMN", default="cores", help="Sort by this column: cores, memory, tokens, ...  [default: cores]"
)
@json_option
@pool_options
def top(where: Where, ended: bool, once: bool, interval: float, words: str, sort: str, as_json: bool) -> int:
    """Show a pool at work: its numbers, its agents, and each agent's story.

    With --json agents that have ended are there, too.
    """
    from .rows import BY_NAME

    if sort not in BY_NAME:
        from ...hints import did_you_mean

        hint = did_you_mean(sort, list(BY_NAME)) or ", ".join(BY_NAME)
        raise click.UsageError(f"no column `{sort}` ({hint})")
    reason = _undrawable()
    live = not once and not as_json and not reason

    async def body(pool: HttpBackend) -> int:
        if live:
            from .app import run
            from .source import PoolSource

            await pool.describe()  # one that is not there, or not ours, is an error; only one that goes away is looked for again
            return await run(PoolSource(pool), interval, words, sort, ended)
        if as_json:
            click.echo(json.dumps(await document(pool, words)))
        else:
            if not once and reason != NO_TERMINAL:
                say(f"note: {reason}: printed once")
            put(await text(pool, words, sort, ended))
        return 0

    return talk(where, body)


NO_TERMINAL = "no terminal"


def _undrawable() -> str:
    """Why nothing can be drawn here, "" if it can. textual draws on stderr and reads from stdin."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return NO_TERMINAL
    term = os.environ.get("TERM", "")
    return f"this terminal's cursor cannot be moved (TERM={term})" if term in ("", "dumb", "unknown") else ""
