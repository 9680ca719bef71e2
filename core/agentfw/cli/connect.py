"""Which pool a command talks to, and what all such commands do alike: options, errors, ids and their completion."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ..errors import AgentfwError
from ..hints import did_you_mean

if TYPE_CHECKING:
    from ..pool.client import HttpBackend

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

COMPLETION_SECONDS = 1.0
_ID = re.compile(r"[A-Za-z0-9_-]+")
IDS_SHOWN = 200


@dataclass(frozen=True)
class Where:
    """A pool's place, as the command line, the environment or agentfw.toml has it; all None: this user's."""

    socket: Path | None
    url: str | None
    token_file: Path | None

    def open(self) -> HttpBackend:
        """PoolError, ConfigError."""
        from ..pool.client import HttpBackend
        from ..pool.tokens import read_token

        if self.url is not None:
            return HttpBackend(url=self.url, token=None if self.token_file is None else read_token(self.token_file))
        return HttpBackend(socket=self.path())

    def path(self) -> Path:
        """Of the socket."""
        if self.socket is not None:
            return self.socket
        from ..pool.config import configured_socket
        from ..pool.places import default_socket

        return Path(configured_socket() or default_socket())


def socket_option(function: Function) -> Function:
    """`--socket`, for those that make a pool and those that use one."""
    return click.option(
        "--socket",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="AGENTFW_POOL_SOCKET",
        help="The pool's socket.  [default: [pool] socket of agentfw.toml, else this user's]",
    )(function)


def pool_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--socket`, `--url` and `--token-file` as the first argument, a Where."""

    @socket_option
    @click.option("--url", metavar="URL", envvar="AGENTFW_POOL_URL", help="A pool over TCP instead: http://HOST:PORT.")
    @click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="AGENTFW_POOL_TOKEN_FILE",
        help="File with its token.",
    )
    @functools.wraps(function)
    def wrapped(*args: Any, socket: Path | None, url: str | None, token_file: Path | None, **keywords: Any) -> Any:
        if socket is not None and url is not None:
            # What is typed goes before what the environment has.
            context = click.get_current_context()
            typed = [context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE for name in ("socket", "url")]
            if typed[0] == typed[1]:
                raise click.UsageError("a socket and a URL name two pools: give one of `--socket` and `--url`", context)
            socket, url = (socket, None) if typed[0] else (None, url)
        return function(*args, where=Where(socket, url, token_file), **keywords)

    return wrapped


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def talk(where: Where, body: Callable[[HttpBackend], Awaitable[T]]) -> T:
    """Run `body` with the pool, to its end."""

    async def main() -> T:
        async with where.open() as pool:
            return await body(pool)

    return asyncio.run(main())


async def about(pool: HttpBackend, job_id: str, asked: Awaitable[T]) -> T:
    """What was asked about a job; for an id that is none, a guess at what was meant goes with the error."""
    from ..pool.jobs import PoolError

    try:
        return await asked
    except PoolError as error:
        if error.code != "no_such_job":
            raise
        try:
            known = await pool.jobs(limit=1000)
        except PoolError:
            known = []
        by_name = next((info.id for info in known if info.name == job_id), "")
        hint = f"did you mean `{by_name}`?" if by_name else did_you_mean(job_id, [info.id for info in known])
        raise PoolError(error.code, f"no such job: `{job_id}`", hint or "`agentfw ps --all` lists them") from None


async def each(pool: HttpBackend, ids: Sequence[str], body: Callable[[str], Awaitable[T]]) -> list[T | AgentfwError]:
    """The same for several jobs, at once; an error of one does not keep the others from it."""

    async def one(job_id: str) -> T | AgentfwError:
        try:
            return await about(pool, job_id, body(job_id))
        except AgentfwError as error:
            return error

    return list(await asyncio.gather(*map(one, ids)))


def complete_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the pool's jobs, with their names; none if it does not answer at once. A shell reads lines of them: what could end
    one is not in a name (a job's own words), and what is no id is none."""
    from ..texts import shown

    given = ctx.params.get("where") or Where(ctx.params.get("socket"), None, None)
    try:
        rows = _quickly(str(given.path()), f"/v1/jobs?limit={IDS_SHOWN}")["jobs"]
        ids = ((str(row["id"]), shown(str(row["name"]), 60)) for row in rows)
        return [CompletionItem(id, help=name) for id, name in ids if _ID.fullmatch(id) and id.startswith(incomplete)]
    except (OSError, AgentfwError, ValueError, LookupError, TypeError):
        return []


def _quickly(path: str, target: str) -> Any:
    """One request without what takes long to import."""
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(COMPLETION_SECONDS)
        made.connect(path)
        made.sendall(f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        data = b"".join(iter(lambda: made.recv(65536), b""))
    return json.loads(data.partition(b"\r\n\r\n")[2])


def table(columns: Iterable[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> str:
    """Lines with columns as wide as they must be; `columns`: title, and whether its cells go to the right. What others wrote in
    a cell stays in its line."""
    from ..texts import shown

    titles, right = zip(*columns, strict=True)
    lines = [list(titles), *([shown(cell, 60) for cell in row] for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(titles))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width) for cell, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def duration(seconds: float) -> str:
    """For people: 0.4s, 12s, 3m05s, 2h07m, 4d03h."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    for size, small, name, part in ((86400, 3600, "d", "h"), (3600, 60, "h", "m"), (60, 1, "m", "s")):
        if whole >= size:
            return f"{whole // size}{name}{whole % size // small:02d}{part}"
    return f"{whole}s"
