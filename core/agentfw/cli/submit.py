"""`agentfw submit`: a program to a pool that runs, once or many times."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import AgentfwError
from .connect import Where, json_option, pool_options
from .options import RunCommand, RunError, check_program, label, seconds, variable
from .output import Kept, Lines, Plain, Writer, complain, put, say

if TYPE_CHECKING:
    from ..pool.client import HttpBackend
    from ..pool.jobs import Job, JobInfo

AT_ONCE = 64
"""Requests of `-n` at one time."""

EPILOG = """Examples:

\b
  agentfw submit agent.py --ticket 17
  agentfw submit --wait --file data.csv --env MODEL=small -m my_agent
  agentfw submit -n 100 --label run=7 agent.py

\b
Exit status: 0 once the pool has it; with --wait as `agentfw run`: the program's; 128+n if signal n ended it;
124 time-out; 125 agentfw's or the pool's fault; 126 cannot be read; 127 not found."""


@dataclass(frozen=True)
class Options:
    """How it is submitted; what is submitted is in the job."""

    count: int
    wait: bool
    stdin: str | None
    as_json: bool
    quiet: bool
    beside: Path | None = None
    """Where the modules lie that Python would find here, and a job does not."""


@click.command(cls=RunCommand, epilog=EPILOG)
@click.option("--file", "files", multiple=True, metavar="LOCAL[:PATH]", help="Send a file or directory, too (repeatable).")
@click.option("--env", multiple=True, metavar="K=V", help="Set a variable; `K` alone passes ours on (repeatable).")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Label the job, for policies (repeatable).")
@click.option("--name", metavar="NAME", help="For people.  [default: the program's]")
@click.option("--tenant", metavar="NAME", help="Whose it is: tenants share no process.")
@click.option("--template", metavar="NAME", help="A [pool.templates.NAME] of the pool.")
@click.option("--policy", metavar="NAME", help="Profile of the policy plugin.")
@click.option("--timeout", metavar="TIME", help="Stop it after this time: 30, 90s, 5m.")
@click.option("--retries", type=click.IntRange(0, 10), metavar="N", help="Run it again if its worker died under it.")
@click.option("--har", is_flag=True, help="Keep what it says over HTTP: `agentfw har ID` has it then.")
@click.option("--isolation", type=click.Choice(["cell", "process"]), help="What its VM shares a process with.")
@click.option("--stdin", metavar="FILE|-", help="Its standard input.  [default: nothing]")
@click.option("-n", "--count", type=click.IntRange(1, 100_000), default=1, metavar="COUNT", help="Submit it so many times.")
@click.option("--wait", is_flag=True, help="Print its output as it comes, and exit as it does.")
@click.option(
    "--strace",
    type=click.Choice(["lines", "summary"]),
    metavar="[=lines|=summary]",
    help="Print its system calls on its stderr, or a table of them at the end.",
)
@click.option("--strace-calls", metavar="NAMES", help="Only these system calls, as `open*,read`.")
@click.option("--strace-size", type=click.IntRange(0, 1024), metavar="BYTES", help="Of a string that are shown.  [default: 32]")
@json_option
@click.option("-q", "--quiet", is_flag=True, help="No notes on stderr, errors only.")
@pool_options
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    where: Where,
    files: tuple[str, ...],
    env: tuple[str, ...],
    labels: tuple[str, ...],
    timeout: str | None,
    stdin: str | None,
    count: int,
    wait: bool,
    as_json: bool,
    quiet: bool,
    har: bool,
    strace: str | None,
    strace_calls: str | None,
    strace_size: int | None,
    **given: Any,
) -> int:
    """Give a program to a pool.

    The program is a script (or a directory with a __main__.py), `-m module`, `-c code` or `-` for standard input, and gets the
    arguments after it. The script and each --file are sent: they are in its working directory, /job. Prints the job's id.
    """
    program: list[str] = ctx.meta["program"]
    if not program or (program[0] in ("-m", "-c") and (len(program) < 2 or not program[1])):
        raise click.UsageError("no program: name a script, `-m module`, `-c code` or `-`", ctx)
    if program[0] == "-" and stdin == "-":
        raise click.UsageError("standard input is the program: it cannot be the program's, too", ctx)
    beside = Path() if program[0] == "-m" else None if program[0] in ("-c", "-") else Path(program[0]).parent
    options = Options(count, wait, stdin, as_json, quiet, beside)
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    fields["env"] = dict(variable(text) for text in env)
    fields["labels"] = dict(label(text) for text in labels)
    fields["capture"] = har
    if strace is not None or strace_calls is not None:
        size = {} if strace_size is None else {"size": strace_size}
        fields["strace"] = {"summary": strace == "summary", "calls": strace_calls or "", **size}
    if timeout is not None:
        fields["timeout"] = seconds(timeout)
    job = prepare(program, files, fields, stdin, interactive=wait and stdin == "-" and count == 1)
    status, document = asyncio.run(_with_pool(where, job, options))
    if document is not None:
        click.echo(json.dumps(document))
    return status


def prepare(program: Sequence[str], files: Sequence[str], fields: dict[str, Any], stdin: str | None, *, interactive: bool) -> Job:
    """The job of a command line, with all that is to be sent read. RunError, PoolError."""
    from ..pool.jobs import MAX_PAYLOAD, PoolError
    from ..sdk.programs import Code, Loaded, Module, Program, load, make_job, read_files
    from ..small_files import read_small

    mode, target, arguments = check_program(program)
    try:
        sent: dict[str, Any] = {}
        for text in files:
            sent |= _sent(text)
        if mode == "stdin":
            loaded = Loaded("script", "stdin.py", "stdin.py", {**read_files(sent), "stdin.py": _all_input(MAX_PAYLOAD)})
        else:
            what: Program = Code(target) if mode == "code" else Module(target) if mode == "module" else Path(target).absolute()
            loaded = load(what, sent)
        if stdin is not None and not interactive:
            fields["stdin"] = _all_input(MAX_PAYLOAD) if stdin == "-" else read_small(Path(stdin), MAX_PAYLOAD, pipes=True)
        if any(0xD800 <= ord(letter) <= 0xDFFF for text in arguments for letter in text):
            raise PoolError("bad_job", "arguments must be text in UTF-8")
        return make_job(loaded, arguments, fields, interactive=interactive)  # type: ignore[arg-type]
    except OSError as error:
        raise RunError(f"cannot read `{error.filename or stdin}`: {error.strerror}", "", 126) from None


def _sent(text: str) -> dict[str, Path]:
    """LOCAL[:PATH] -> where it is laid, and what."""
    local, colon, path = text.rpartition(":")
    if not colon or Path(text).exists():
        local, path = text, ""
    if not local or (colon and not path and local != text):
        raise RunError(f"bad file `{text}`", "write `--file LOCAL` or `--file LOCAL:PATH`")
    name = path or Path(local).name or Path(local).resolve().name
    if not Path(local).exists():
        raise RunError(f"file `{local}` not found", "", 127)
    return {name.removeprefix("./"): Path(local)}


def _all_input(most: int) -> bytes:
    data = bytearray()
    while piece := os.read(0, 1 << 20):
        data += piece
        if len(data) > most:
            raise RunError(f"more than {most >> 20} MiB on standard input")
    return bytes(data)


def _copy(job: Job, options: Options, number: int) -> Job:
    """With `-n`, a job may want to know which of them it is."""
    import msgspec

    if options.count == 1:
        return job
    own = {"AGENTFW_AGENT_INDEX": str(number), "AGENTFW_AGENT_COUNT": str(options.count)}
    return msgspec.structs.replace(job, env={**job.env, **own}, name=f"{job.name}-{number}" if job.name else "")


async def _with_pool(where: Where, job: Job, options: Options) -> tuple[int, dict[str, Any] | None]:
    from .following import Interrupts

    async with where.open() as pool:
        ids: list[str] = []
        interrupts = Interrupts(pool, ids, options.quiet)
        if not options.wait:
            return await _submitted(pool, job, options)
        with interrupts.watching():
            try:
                return await _followed(pool, job, options, ids, interrupts)
            except asyncio.CancelledError:
                if interrupts.last is None:
                    raise
                return 128 + interrupts.last, None


async def _submitted(pool: HttpBackend, job: Job, options: Options) -> tuple[int, dict[str, Any] | None]:
    """All of them, as far as the pool takes them; ids are printed as they come."""
    from .following import document

    found: list[JobInfo] = []
    try:
        for start in range(1, options.count + 1, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, options.count + 1))
            answers = await asyncio.gather(*(pool.submit(_copy(job, options, n)) for n in numbers), return_exceptions=True)
            infos = [answer for answer in answers if not isinstance(answer, BaseException)]
            found += infos
            if not options.as_json:
                for info in infos:
                    put(info.id)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
    except AgentfwError as error:
        if options.count == 1:
            raise
        complain(f"{len(found)} of {options.count} were taken: {error}", getattr(error, "hint", ""))
        return 125, {"version": 1, "jobs": [document(info) for info in found]} if options.as_json else None
    return 0, {"version": 1, "jobs": [document(info) for info in found]} if options.as_json else None


async def _followed(
    pool: HttpBackend, job: Job, options: Options, ids: list[str], interrupts: Any
) -> tuple[int, dict[str, Any] | None]:
    from .following import CANCEL_SECONDS, Last, document, feed, follow, gap, kill_all, not_sent, result_of, tell, unread

    writers = {1: Writer(1), 2: Writer(2)}
    rows: dict[int, dict[str, Any]] = {}
    ends: dict[int, JobInfo] = {}
    missing: set[str] = set()
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            info = await _surely(pool, _copy(job, options, number))
            ids.append(info.id)
            if interrupts.last is not None:  # it came too late for the signal
                await pool.signal(info.id, 9 if interrupts.killed else interrupts.last)
            prefix = f"[{_plain(info.name)}] ".encode() if os.isatty(1) else b""
            kept = {1: Kept(), 2: Kept()}
            sinks: Any = kept
            if not options.as_json:
                sinks = {n: Plain(w) if options.count == 1 else Lines(w, prefix) for n, w in writers.items()}
            last = Last(sinks[2])
            # Its end is asked for from the beginning: a pool may keep none of what has ended.
            ending = asyncio.create_task(pool.wait(info.id))
            helpers: list[asyncio.Task[Any]] = [ending]
            if job.interactive:
                helpers.append(asyncio.create_task(feed(pool, info.id)))
            try:
                whole = await follow(pool, info.id, {1: sinks[1], 2: last}, end=ending)
                ended = ends[number] = await ending
            finally:
                for helper in helpers:
                    helper.cancel()
                await asyncio.gather(*helpers, return_exceptions=True)
            ids.remove(info.id)
            if options.beside is not None and result_of(ended).kind == "code" and result_of(ended).code:
                missing.add(not_sent(options.beside, last.text))
            rows[number] = document(ended, kept if options.as_json else None, whole)
            if not whole and not options.as_json and not options.quiet:
                what, hint = gap(ended)
                complain(f"{ended.name} ({ended.id}): {what}", hint)

    tasks = [asyncio.create_task(one(number)) for number in range(1, options.count + 1)]
    try:
        await asyncio.gather(*tasks)
    except BaseException as error:  # our reader has gone, the pool has, or we are told to end: nobody waits for them
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(CANCEL_SECONDS):
            await kill_all(pool, list(ids))
        if isinstance(error, BrokenPipeError):
            raise unread(writers.values()) from None
        raise
    for number in sorted(ends):
        tell(ends[number], named=options.count > 1, interrupted=interrupts.last)
    for hint in sorted(missing - {""}):
        say(f"hint: {hint}")
    if interrupts.killed:
        return 128 + interrupts.last, None
    status = next((found for n in sorted(ends) if (found := result_of(ends[n]).status)), 0)
    return status, {"version": 1, "jobs": [rows[number] for number in sorted(rows)]} if options.as_json else None


async def _surely(pool: HttpBackend, job: Job) -> JobInfo:
    """Submit it; if we are told to end meanwhile, nobody will wait for it: it is killed if the pool has it."""
    from .following import CANCEL_SECONDS, kill_all

    asked = asyncio.ensure_future(pool.submit(job))
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        with contextlib.suppress(AgentfwError, TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await kill_all(pool, [(await asked).id])
        raise


def _plain(name: str) -> str:
    return re.sub(r"[^ -~]", "?", name)[:40]
