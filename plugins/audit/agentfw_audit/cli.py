"""`agentfw audit`: the log read by people and programs."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click
from agentfw import ConfigError
from agentfw.cli.options import RunError
from agentfw.cli.output import say
from agentfw.config import load_config
from agentfw.homes import expanded
from agentfw.texts import shown as shown_text

from .choosing import Chooser, decode, fields, moment, value_of
from .config import Config
from .reading import Follower, Parts, Unread, shorter
from .showing import FORMATS, Counts, Csv, Jsonl, Table

LOOK = 0.2
"""Seconds between two looks for more."""
BAR_AFTER = 1.0
UNREADABLE = 1
MOST = 1_000_000
"""Lines that `--limit` and `-n` hold at most."""


def _moment(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else moment(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _labels(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"`{value}`: write NAME=VALUE", ctx, param)
        found[name] = text
    return found


def choosing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which lines of which file."""
    for option in reversed((
        click.option("--file", "log", type=click.Path(path_type=Path), metavar="FILE", help="This log instead of [audit] file."),
        click.option("--config", type=click.Path(path_type=Path), metavar="FILE",
                     help="This file instead of the nearest agentfw.toml."),
        click.option("--agent", "agents", multiple=True, metavar="NAME", help="Of this agent, by name or id (repeatable)."),
        click.option("--job", "jobs", multiple=True, metavar="ID", help="Of this job and its agent, all attempts (repeatable)."),
        click.option("--tenant", "tenants", multiple=True, metavar="NAME", help="Of this tenant (repeatable)."),
        click.option("--label", "labels", multiple=True, callback=_labels, metavar="K=V", help="With this label (all of them)."),
        click.option("--event", "events", multiple=True, metavar="EVENT",
                     help="Only these lines: decision, exchange, job, job.ended, ... (repeatable)."),
        click.option("--destination", "destinations", multiple=True, metavar="HOST",
                     help="About this host, HOST:PORT, or SCHEME://HOST:PORT (repeatable)."),
        click.option("--rule", "rules", multiple=True, metavar="TEXT", help="By a rule with this in it (repeatable)."),
        click.option("--model", "models", multiple=True, metavar="NAME", help="Calls of this model (repeatable)."),
        click.option("--who", "by", multiple=True, metavar="TEXT", help='Done by whom: "uid 1000", "token" (repeatable).'),
        click.option("--denied", is_flag=True, help="What was refused: decisions (--event denied: each time)."),
    )):  # fmt: skip
        function = option(function)
    return function


@click.group()
def audit() -> None:
    """What agents and operators did, by the log of [audit].

    Names, hosts, rules and models may have `*` and `?`. Exit status 0: all was read; 1: some lines could not be, and were left
    out; 125: there is no log that can be read.
    """


format_option = click.option("--format", "format_", type=click.Choice(FORMATS), default="table", help="[default: table]")
fields_option = click.option("--fields", metavar="NAMES", help="Of a table or CSV: these, as `time,agent,labels.team`.")


@audit.command()
@choosing
@click.option("-f", "--follow", is_flag=True, help="Go on as more is written, until Ctrl-C.")
@click.option("-n", "--lines", "number", type=click.IntRange(0, MOST), default=10, metavar="N",
              help="The last N of what is chosen.  [default: 10]")  # fmt: skip
@format_option
@fields_option
def tail(
    log: Path | None, config: Path | None, follow: bool, number: int, format_: str, fields: str | None, **chosen: Any
) -> int:
    """Print the last lines, and with -f those that come.

    Files that are put away meanwhile are read to their ends first.
    """
    path = _path(log, config)
    chooser = _chooser(chosen)
    out, unread = _Out(_shape(format_, fields)), Unread()
    with _readable(path), contextlib.ExitStack() as stack:
        try:
            parts = stack.enter_context(Parts(path))
        except FileNotFoundError:
            if not follow:
                raise
            parts = Parts(path)
        found: deque[tuple[bytes, dict[str, Any]]] = deque()

        def last(lines: Iterable[bytes]) -> deque[bytes]:
            return deque((data for data, _ in _wanted(lines, chooser, unread)), number)

        for line in _wanted(parts.backward(unread, last=last, following=follow), chooser, unread) if number else ():
            found.appendleft(line)
            if len(found) == number:
                break
        out.begin()
        out.put(found)
        if follow:
            follower = Follower(path, unread, parts.take())
            parts.__exit__()
            stack.callback(follower.close)
            while True:
                out.put(_wanted(follower.lines(), chooser, unread))
                _said(unread.take())  # whoever follows may do so for weeks
                time.sleep(LOOK)
    return _said(unread)


QUERY_EXAMPLES = """Examples:

\b
  agentfw audit query --since 1h --denied --by rule --by agent
  agentfw audit query --event job.signalled --who "uid 1000"
  agentfw audit query --job 7k2m9q4d1x --format jsonl | jq .rule"""


@audit.command(epilog=QUERY_EXAMPLES)
@choosing
@click.option("--since", callback=_moment, metavar="TIME", help="Not before: 30m, 1h, 2d (ago), or 2026-01-31T12:00.")
@click.option("--until", callback=_moment, metavar="TIME", help="Before this time.")
@click.option("--limit", type=click.IntRange(1, MOST), metavar="N", help="The newest N; with --by, the most frequent.")
@click.option("--by", "groups", multiple=True, metavar="FIELD", help="Count: how many of each (repeatable).")
@format_option
@fields_option
def query(
    log: Path | None,
    config: Path | None,
    since: float | None,
    until: float | None,
    limit: int | None,
    groups: tuple[str, ...],
    format_: str,
    fields: str | None,
    **chosen: Any,
) -> int:
    """Print all lines that are chosen, oldest first: of the log and of all files put away.

    `--format jsonl` prints them as they stand there.
    """
    if since is not None and until is not None and until <= since:
        raise click.UsageError("`--until` is not after `--since`: nothing is in between")
    path = _path(log, config)
    chooser = _chooser(chosen, since=since, until=until)
    unread = Unread()
    counts = Counts(groups) if groups else None
    out = _Out(_shape(format_, fields), _names(fields))
    with _readable(path), Parts(path) as parts, _bar(parts.size) as read:
        found = _wanted(parts.forward(unread, since or 0.0, read), chooser, unread)
        if counts is not None:
            for _, line in found:
                counts.add(line)
            out.write(counts.text(format_, limit))
            _nowhere(counts.nowhere())
        else:
            out.begin()
            out.put(found if limit is None else deque(found, limit))
            _nowhere(out.nowhere if out.any else ())
    return _said(unread)


# -- what they have in common


def _path(log: Path | None, config: Path | None) -> Path:
    if log is not None:
        return log
    loaded = load_config(config)
    if "audit" not in loaded.tables:
        where = str(loaded.file) if loaded.file else "no agentfw.toml from here upward"
        error = ConfigError("", f"no table [audit] ({where})")
        error.hint = 'give it one, `[audit]` with `file = "/var/log/agentfw/audit.jsonl"`, or name a log with `--file FILE`'
        raise error
    base = loaded.file.parent if loaded.file else Path()
    try:
        return base / expanded(loaded.plugin("audit", Config).file, "file")
    except ConfigError as error:
        raise loaded.located("audit", error) from None


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What is wrong with the log, told as such."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        text = error.strerror or str(error)
        raise RunError(f"the audit log cannot be read: {text} ({error.filename or path})") from None


def _chooser(chosen: dict[str, Any], **more: Any) -> Chooser:
    return Chooser(**chosen, **more)


def _shape(format_: str, names: str | None) -> Jsonl | Csv | Table:
    chosen = _names(names)
    terminal = sys.stdout.isatty()
    if format_ == "jsonl":
        if chosen:
            raise click.UsageError("`--fields` is for tables and CSV")
        return Jsonl(terminal=terminal)
    if format_ == "csv":
        return Csv(chosen) if chosen else Csv()
    return Table(chosen, shutil.get_terminal_size((160, 24)).columns if terminal else None)


def _names(fields: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (fields or "").split(",") if part.strip())


def _nowhere(names: Iterable[str]) -> None:
    """A misspelt field is as empty as one that no line has."""
    for name in names:
        say(f"note: none of these lines has `{shown_text(name, 64)}`")


def _wanted(lines: Iterable[bytes], chooser: Chooser, unread: Unread) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for data in lines:
        try:
            if chooser.wants(decode(data)):
                yield data, fields(data)
        except (ValueError, RecursionError):
            unread.add(shorter(data))


class _Out:
    """Standard output, in pieces of some size; at once when there is nothing more."""

    def __init__(self, shape: Jsonl | Csv | Table, names: Iterable[str] = ()) -> None:
        self._shape = shape
        self._file: BinaryIO = sys.stdout.buffer
        self.any = False
        self.nowhere = list(names)
        """Those of `names` that no line had so far."""

    def begin(self) -> None:
        self.write(self._shape.title)

    def put(self, lines: Iterable[tuple[bytes, dict[str, Any]]]) -> None:
        for data, found in lines:
            self.any = True
            if self.nowhere:
                self.nowhere = [name for name in self.nowhere if value_of(found, name) is None]
            with _writable():
                self._file.write(self._shape.line(data, found))
        self.write(b"")

    def write(self, data: bytes) -> None:
        with _writable():
            self._file.write(data)
            self._file.flush()


@contextlib.contextmanager
def _writable() -> Iterator[None]:
    """A full disk is no fault of the log's."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunError(f"standard output cannot be written: {error.strerror or error}") from None


def _said(unread: Unread) -> int:
    """A note about what was left out; -> the exit status."""
    if not unread.lines:
        return 0
    several = "s" if unread.lines != 1 else ""
    say(f"note: {unread.lines} line{several} could not be read, the first: {unread.first}")
    return UNREADABLE


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal, stdout is none, and it takes more than a second."""
    wanted = sys.stderr.isatty() and not sys.stdout.isatty() and not os.environ.get("AGENTFW_NO_PROGRESS")
    shown: list[Any] = []
    began, done = time.monotonic(), 0

    def read(size: int) -> None:
        nonlocal done
        done += size
        if wanted and not shown and time.monotonic() - began > BAR_AFTER:
            shown.extend(_new_bar(total))
        if shown:
            shown[0].update(shown[1], completed=done)

    try:
        yield read
    finally:
        if shown:
            shown[0].stop()


def _new_bar(total: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    bar = Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    bar.start()
    return bar, bar.add_task("", total=total or None)
