"""`agentfw pool`: starting a pool, looking at it, ending it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .connect import Where, duration, json_option, pool_options, socket_option, talk
from .options import RunError, names, seconds
from .output import complain, put, say

if TYPE_CHECKING:
    from ..config import Config
    from ..pool.client import HttpBackend
    from ..pool.jobs import PoolInfo

STOP_SECONDS = 10.0
"""That running jobs have, where nobody says otherwise."""
GONE_SECONDS = 30.0
"""Within which a pool must be gone once its jobs have ended."""

EPILOG = """Examples:

\b
  agentfw pool start --workers 2 --size 200 --idle 20
  agentfw pool start --daemon
  agentfw submit --wait agent.py
  agentfw pool stop"""


@click.group(epilog=EPILOG)
def pool() -> None:
    """A service that keeps VMs warm and runs jobs in them."""


@pool.command(epilog=EPILOG)
@click.option("--workers", type=click.IntRange(1, 256), metavar="N", help="Worker processes.  [default: one a CPU]")
@click.option("--size", type=click.IntRange(1, 100_000), metavar="N", help="VMs at once, warm or running.  [default: 256]")
@click.option("--idle", type=click.IntRange(0, 100_000), metavar="N", help="VMs kept warm.  [default: 32, at most --size]")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Instead of the nearest agentfw.toml."
)
@click.option("--no-config", is_flag=True, help="Read no agentfw.toml.")
@click.option("--plugins", metavar="NAMES", help="Comma-separated plugins in the agents' path, in order; files (./x.py) too.")
@socket_option
@click.option("--listen", metavar="HOST:PORT", help="Serve the control API over TCP, too; wants --token-file.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="The token that TCP clients must show.")
@click.option("--daemon", is_flag=True, help="Go to the background once it is ready; print the pid.")
@json_option
@click.option("-q", "--quiet", is_flag=True, help="No notes on stderr, errors only.")
@click.option("-v", "--verbose", count=True, help="More on stderr; -vv: debugging.")
def start(
    workers: int | None,
    size: int | None,
    idle: int | None,
    config_file: Path | None,
    no_config: bool,
    plugins: str | None,
    socket: Path | None,
    listen: str | None,
    token_file: Path | None,
    daemon: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> int:
    """Start a pool.

    It runs until Ctrl-C, SIGTERM or `agentfw pool stop`: then it takes no more jobs and gives those that run ten seconds; a
    second Ctrl-C kills them. SIGHUP makes it read agentfw.toml again.
    """
    from ..config import Config, load_config
    from ..plugins import pool_plugins
    from .daemon import in_background
    from .service import Service, serve

    keys: dict[str, Any] = {"workers": workers, "size": size, "idle": idle, "listen": listen}
    keys |= {
        name: None if path is None else str(path.absolute()) for name, path in (("socket", socket), ("token_file", token_file))
    }
    keys = {name: value for name, value in keys.items() if value is not None}

    def load(again: bool = True) -> Config:
        file = config_file if not again else config_file or first.file
        found = Config() if no_config or (again and file is None) else load_config(file, pipes=not again)
        return found.with_keys("pool", keys) if keys else found

    if config_file is not None:
        config_file = config_file.absolute()
    first = load(again=False)
    chosen = names(plugins) if plugins is not None else pool_plugins(first)
    service = Service(config=first, plugins=chosen, load=load, as_json=as_json, quiet=quiet, verbose=verbose)
    service.listen()  # what is wrong with it is told before anything is started
    return in_background(service) if daemon else serve(service)


@pool.command()
@json_option
@pool_options
def status(where: Where, as_json: bool) -> int:
    """Show the pool and its workers.

    Exit status: 0 if it runs, 1 if it does not.
    """
    from ..pool.jobs import PoolError
    from .top import summary, workers_table

    try:
        found = talk(where, lambda pool: pool.describe())
    except PoolError as error:
        if error.code != "unavailable":
            raise
        complain(str(error), error.hint)
        return 1
    if as_json:
        import msgspec

        click.echo(json.dumps({"version": 1, "pool": msgspec.to_builtins(found)}))
        return 0
    put(f"{summary(found)}\nagentfw {found.version}, templates: {', '.join(found.templates)}\n")
    put(workers_table(found))
    return 0


@pool.command()
@click.option("-t", "--timeout", metavar="TIME", help="How long jobs that run may go on: 30, 90s, 5m.  [default: 10]")
@click.option("--now", is_flag=True, help="Kill them now.")
@json_option
@pool_options
@click.pass_context
def stop(ctx: click.Context, where: Where, timeout: str | None, now: bool, as_json: bool) -> int:
    """End the pool, and return when it is gone.

    It takes no more jobs; those that run have some time to end, then they are killed.
    """
    if now and timeout is not None:
        raise click.UsageError("`--now` is no time at all: give one of `--timeout` and `--now`", ctx)
    given = 0.0 if now else STOP_SECONDS if timeout is None else 0.0 if timeout == "0" else seconds(timeout)
    found = talk(where, lambda pool: _stop(where, pool, given))
    if as_json:
        click.echo(json.dumps({"version": 1, "pid": found.pid, "stopped": True}))
    return 0


async def _stop(where: Where, pool: HttpBackend, given: float) -> PoolInfo:
    """PoolInfo of what was ended. RunError if it does not go."""
    from ..pool.jobs import PoolError
    from ..pool.places import wait_until_free

    found = await pool.describe()
    await pool.stop(given)
    limit = given + GONE_SECONDS
    if pool.socket is not None:
        if await asyncio.to_thread(wait_until_free, pool.socket, limit):
            return found
    else:
        try:
            async with asyncio.timeout(limit):
                while (await pool.describe()).pid == found.pid:  # noqa: ASYNC110  # it is another process
                    await asyncio.sleep(0.2)
            return found
        except PoolError as error:
            if error.code == "unavailable":
                return found
            raise
        except TimeoutError:
            pass
    raise RunError(f"the pool (pid {found.pid}) is still there after {limit:g} s", "see its log")


@pool.command()
@click.option("-t", "--timeout", metavar="TIME", help="Give up waiting after this time; the pool drains on.")
@json_option
@pool_options
def drain(where: Where, timeout: str | None, as_json: bool) -> int:
    """Take no more jobs, and return when the last has ended.

    The pool stays, and still tells of its jobs. Exit status: 0; 124 if jobs run on after --timeout.
    """
    limit = None if timeout is None else seconds(timeout)
    done, left = talk(where, lambda pool: _drain(pool, limit))
    if as_json:
        click.echo(json.dumps({"version": 1, "done": done, "left": left}))
    if not done:
        complain(f"{left} job{'s have' if left != 1 else ' has'} not ended within {limit:g} s")
    return 0 if done else 124


async def _drain(pool: HttpBackend, limit: float | None) -> tuple[bool, int]:
    until = None if limit is None else asyncio.get_running_loop().time() + limit
    while True:
        left = 60.0 if until is None else min(max(until - asyncio.get_running_loop().time(), 0), 60.0)
        answer = await pool.drained(left)
        if answer.done or (until is not None and left <= 0):
            return answer.done, answer.pool.running + answer.pool.queued


@pool.command()
@json_option
@pool_options
def reload(where: Where, as_json: bool) -> None:
    """Make the pool read agentfw.toml again.

    All of it takes over what changed, or nothing does and the error says which line is wrong.
    """
    changed = talk(where, lambda pool: pool.reload())
    if as_json:
        click.echo(json.dumps({"version": 1, "changed": changed}))
    else:
        say(f"reloaded: {', '.join(changed) or 'nothing'} changed")


def ready_line(info: PoolInfo, place: Path, took: float) -> str:
    """What is said once, when jobs can come."""
    warm = sum(worker.idle for worker in info.workers)
    count = len(info.workers)
    workers = f"{count} worker{'s' if count != 1 else ''}"
    return f"pool ready in {duration(took)}: {workers}, {warm} VM{'s' if warm != 1 else ''} warm, at {place} (pid {info.pid})"
