"""`agentfw ps`, `logs`, `wait` and `kill`: jobs of a pool that runs."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import click

from ..errors import AgentfwError
from .connect import Where, about, complete_ids, duration, each, json_option, pool_options, table, talk
from .options import RunError, label, seconds
from .output import Harmless, Lines, Plain, Writer, complain, put

if TYPE_CHECKING:
    from ..pool.client import HttpBackend
    from ..pool.jobs import JobInfo, Output

STATES = ("queued", "starting", "running", "done")
ids_argument = click.argument("ids", nargs=-1, metavar="ID...", shell_complete=complete_ids)


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="Those that have ended, too.")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--tenant", metavar="NAME", help="Only this tenant's.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Only those with this label (repeatable).")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1000, metavar="N", help="At most so many.  [default: 1000]")
@click.option("-q", "--quiet", is_flag=True, help="Ids only.")
@json_option
@pool_options
def ps(
    where: Where,
    everything: bool,
    state: str | None,
    tenant: str | None,
    labels: tuple[str, ...],
    limit: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """List a pool's jobs, newest first."""
    from .following import document

    wanted = _labels(labels)
    states: list[Any] = [state] if state else [None] if everything else list(STATES[:-1])

    async def body(pool: HttpBackend) -> list[JobInfo]:
        found = await asyncio.gather(*(pool.jobs(state=one, tenant=tenant, labels=wanted, limit=limit) for one in states))
        # One that went from one state to the next in between is in two of the lists.
        by_id = {info.id: info for infos in found for info in infos}
        return sorted(by_id.values(), key=lambda info: info.submitted, reverse=True)[:limit]

    jobs = talk(where, body)
    if as_json:
        click.echo(json.dumps({"version": 1, "jobs": [document(info) for info in jobs]}))
    elif quiet:
        for info in jobs:
            put(info.id)
    else:
        put(jobs_table(jobs, time.time()))


def jobs_table(jobs: list[JobInfo], now: float) -> str:
    """As `ps` shows them."""
    columns = (
        ("ID", False),
        ("NAME", False),
        ("TENANT", False),
        ("STATE", False),
        ("WORKER", True),
        ("TIME", True),
        ("END", False),
    )
    rows = []
    for info in jobs:
        begun = info.started if info.started is not None else info.submitted
        spent = (info.ended if info.ended is not None else now) - begun
        worker = "-" if info.worker is None else str(info.worker)
        state = info.state if info.attempt == 1 else f"{info.state} ({info.attempt})"
        rows.append((info.id, info.name, info.tenant, state, worker, duration(spent), _end(info)))
    return table(columns, rows)


def _end(info: JobInfo) -> str:
    if info.result is None:
        return ""
    return f"exit {info.result.code}" if info.result.kind == "code" else f"{info.result.kind} ({info.result.status})"


@click.command()
@click.argument("job_id", metavar="ID", shell_complete=complete_ids)
@click.option("-f", "--follow", is_flag=True, help="Until the job's end.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON text for each piece.")
@click.option("--raw", is_flag=True, help="Byte for byte also to a terminal, which the job can then steer.")
@pool_options
def logs(where: Where, job_id: str, follow: bool, as_json: bool, raw: bool) -> None:
    """Print what a job wrote; also after its end.

    Its stdout and stderr come on ours: byte for byte into files and pipes; on a terminal colours and lines stay, and what else
    would steer it is shown as text. What the pool did not keep is left out, and stderr says so.
    """
    from .following import follow as stream
    from .following import gap, unread

    async def body(pool: HttpBackend) -> tuple[str, str] | None:
        writers = Writer(1), Writer(2)
        sinks: dict[int, Any] = {n + 1: Harmless(w) if not raw and os.isatty(n + 1) else Plain(w) for n, w in enumerate(writers)}
        try:
            if as_json:
                whole = await _as_json(pool, job_id, follow, writers[0])
            else:
                whole = await stream(pool, job_id, sinks, until_end=follow)
        except BrokenPipeError:
            raise unread(writers) from None
        return None if whole else gap(await pool.info(job_id))

    missing = talk(where, lambda pool: about(pool, job_id, body(pool)))
    if missing is not None:
        complain(f"{job_id}: {missing[0]}", missing[1])


async def _as_json(pool: HttpBackend, job_id: str, follow: bool, out: Writer) -> bool:
    """A line a piece; letters that are cut in two between pieces come with the second."""
    from .following import reached

    before = None if follow else await pool.info(job_id)
    lines = Lines(out)
    decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in (1, 2)}

    async def put(stream: int, offset: int, text: str) -> None:
        row = {"stream": ("stdout", "stderr")[stream - 1], "offset": offset, "text": text}
        await lines.write(json.dumps(row).encode() + b"\n")

    at = {1: 0, 2: 0}
    whole = True
    piece: Output
    async for piece in pool.output(job_id, follow=follow):
        whole = whole and piece.offset == at[piece.stream]
        at[piece.stream] = piece.offset + len(piece.data)
        await put(piece.stream, piece.offset, decoders[piece.stream].decode(piece.data))
    for stream, decoder in decoders.items():
        if rest := decoder.decode(b"", final=True):
            await put(stream, at[stream], rest)
    return whole and reached(before or await pool.wait(job_id), at)


@click.command()
@ids_argument
@click.option("--timeout", metavar="TIME", help="Give up after this time: 30, 90s, 5m; the jobs go on.")
@json_option
@pool_options
@click.pass_context
def wait(ctx: click.Context, where: Where, ids: tuple[str, ...], timeout: str | None, as_json: bool) -> int:
    """Wait for jobs to end, and exit as they did.

    \b
    Exit status: as `agentfw run` would have; of several the first, in the order given, that is not 0;
    124: the jobs' time was over, or --timeout; 125: no such job, or no pool.
    """
    from .following import document, result_of, tell

    if not ids:
        raise click.UsageError("no job: name ids, as `agentfw ps` shows them", ctx)
    limit = None if timeout is None else seconds(timeout)
    found = talk(where, lambda pool: each(pool, ids, lambda job_id: pool.wait(job_id, limit)))
    status = 0
    for answer in found:
        if isinstance(answer, AgentfwError):
            complain(str(answer), getattr(answer, "hint", ""))
            status = status or 125
        elif answer.state != "done":
            complain(f"{answer.id} has not ended within {limit:g} s")
            status = status or 124
        else:
            tell(answer, named=len(ids) > 1)
            status = status or result_of(answer).status
    if as_json:
        rows = [document(answer) for answer in found if not isinstance(answer, AgentfwError)]
        click.echo(json.dumps({"version": 1, "status": status, "jobs": rows}))
    return status


@click.command()
@ids_argument
@click.option("--all", "everything", is_flag=True, help="All jobs that have not ended.")
@click.option(
    "-s", "--signal", "number", metavar="SIGNAL", default="KILL", help="Another signal: INT, TERM, 10.  [default: KILL]"
)
@click.option("--tenant", metavar="NAME", help="With --all: only this tenant's.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="With --all: only those with this label (repeatable).")
@json_option
@pool_options
@click.pass_context
def kill(
    ctx: click.Context,
    where: Where,
    ids: tuple[str, ...],
    everything: bool,
    number: str,
    tenant: str | None,
    labels: tuple[str, ...],
    as_json: bool,
) -> int:
    """Kill jobs, or send them a signal.

    A job that has ended is none of its business. Exit status 125 if an id is none; the others have had their signal.
    """
    if bool(ids) == everything:
        raise click.UsageError("name ids, or `--all`" if not ids else "name ids or `--all`, not both", ctx)
    if not everything and (tenant or labels):
        raise click.UsageError("`--tenant` and `--label` choose among `--all`", ctx)
    chosen = _signal(number)
    wanted = _labels(labels)

    async def body(pool: HttpBackend) -> list[tuple[str, AgentfwError | None]]:
        names = list(ids)
        if everything:
            states: list[Any] = list(STATES[:-1])
            lists = await asyncio.gather(*(pool.jobs(state=s, tenant=tenant, labels=wanted, limit=100_000) for s in states))
            names = list({info.id: None for infos in lists for info in infos})
        return list(zip(names, await each(pool, names, lambda job_id: pool.signal(job_id, chosen)), strict=True))

    answers = talk(where, body)
    status = 0
    for _, answer in answers:
        if answer is not None and not (everything and getattr(answer, "code", "") == "no_such_job"):
            complain(str(answer), getattr(answer, "hint", ""))
            status = 125
    if as_json:
        sent = [job_id for job_id, answer in answers if answer is None]
        click.echo(json.dumps({"version": 1, "signal": chosen, "jobs": sent}))
    return status


def _signal(text: str) -> int:
    """TERM, SIGTERM, term or 15."""
    if text.isdecimal() and text.isascii() and 1 <= int(text) <= 64:
        return int(text)
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    known = {each.name: each.value for each in signal.Signals}
    if name not in known:
        from ..hints import did_you_mean

        near = did_you_mean(name.removeprefix("SIG"), [each.removeprefix("SIG") for each in known], "`SIG{}`")
        raise RunError(f"no signal `{text}`", near or "write a name, as `TERM`, or a number from 1 to 64", 2)
    return known[name]


def _labels(texts: tuple[str, ...]) -> dict[str, str]:
    try:
        return dict(label(text) for text in texts)
    except RunError as error:
        raise RunError(str(error), error.hint, 2) from None
