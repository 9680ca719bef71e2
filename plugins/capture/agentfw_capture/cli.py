"""`agentfw har`: what a pool's job said over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from agentfw.cli.connect import Where, about, complete_ids, pool_options, talk
from agentfw.cli.options import RunError
from agentfw.cli.output import put_json, say

if TYPE_CHECKING:
    from agentfw.pool.client import HttpBackend


EPILOG = """Examples:

\b
  agentfw submit --har agent.py
  agentfw har 7k2m9q4d1x -o job.har
  agentfw har 7k2m9q4d1x -o - | jq '.log.entries[].request.url'"""


@click.command(epilog=EPILOG, short_help="Fetch what a job said over HTTP, as HAR 1.2.")
@click.argument("job_id", metavar="ID", shell_complete=complete_ids)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
              help="Write it there; `-`: print it.  [default: ID.har]")  # fmt: skip
@click.option("--stdout", is_flag=True, help="Print it instead, as `-o -`.")
@pool_options
def har(where: Where, job_id: str, output: Path | None, stdout: bool) -> None:
    """Fetch what a job said over HTTP, as HAR 1.2: of one that was submitted with `--har`.

    Also while it runs. Of a job that was begun again: what the last attempt said. A note tells if something is missing.
    """
    if stdout and output is not None:
        raise click.UsageError("`--output` or `--stdout`")
    stdout = stdout or str(output) == "-"

    async def body(pool: HttpBackend) -> tuple[bytes, str]:
        import msgspec

        info = await about(pool, job_id, pool.info(job_id))
        run = info.id if info.attempt == 1 else f"{info.id}.{info.attempt}"
        data = bytes(await pool.plugin("capture", "har", {"id": run}, kind=msgspec.Raw))
        return data, missing(data, lost=info.result is not None and info.result.kind == "internal")

    data, note = talk(where, body)
    if stdout:
        put_json(data)
        _note(note)
        return
    path = output or Path(f"{job_id}.har")
    try:
        path.touch(0o600)
        size = path.write_bytes(data + b"\n")
    except OSError as error:
        raise RunError(f"cannot write `{path}`: {error.strerror}") from None
    say(f"{path}: {size} bytes")
    _note(note)


def missing(data: bytes, *, lost: bool) -> str:
    """What a capture says is not in it. `lost`: its agent's worker was, so that it does not go on."""
    import msgspec

    from . import har

    class Log(msgspec.Struct):
        comment: str = ""

    comment = msgspec.json.decode(data, type=dict[str, Log])["log"].comment.removeprefix(har.ABOUT)
    return comment.replace(har.GOES_ON, " Its worker was lost: what was said last is missing." if lost else "").strip()


def _note(text: str) -> None:
    if text:
        say(f"note: {text}")
