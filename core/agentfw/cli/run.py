"""`agentfw run`: one program, once or many times, each in a VM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..descriptors import more_descriptors, no_core_dumps
from ..log_lines import OneLine
from ..sizes import vm_memory
from .options import RunCommand, RunError, check_kvm, check_program, label, names, seconds, variable
from .output import Kept, Lines, Plain, Writer, complain, may_read_stdin, progress, say, standard_input
from .reload import Reloads, Terminal
from .statistics import document_of, statistics_of
from .tables import as_text
from .traced import StraceOptions, strace_options, tracing

if TYPE_CHECKING:
    from ..agents import ExitReport
    from ..config import Config
    from ..fleet import Fleet, Job, Result
    from ..snapshots import Template
    from ..strace import Strace

MEMORY = "512M"
AT_ONCE = 256
"""VMs at once; of a larger COUNT the rest wait."""
STDIN_MAX = 64 << 20
TRACE_VARIABLES = ["AGENTFW_TRACE_PLUGINS", "AGENTFW_RUN_TRACE_PLUGINS"]


@dataclass(frozen=True)
class Options:
    """The options after config and defaults have had their say."""

    plugins: tuple[str, ...]
    config: Config
    mounts: tuple[str, ...]
    env: dict[str, str]
    labels: dict[str, str]
    memory: int
    timeout: float | None
    preload: tuple[str, ...]
    count: int
    stats: bool
    as_json: bool
    quiet: bool
    verbose: int
    strace: StraceOptions | None
    trace_plugins: bool
    load: Callable[[], Config]
    """Reads the configuration again."""
    python: str | None
    snapshot: str | None
    har: bool
    """What they say over HTTP is kept."""
    given: tuple[tuple[str, ...] | None, int | None]
    """What the command line itself says of preload and memory: of a snapshot with a name, no default of ours counts."""


EPILOG = """Examples:

\b
  agentfw run agent.py --ticket 17
  agentfw run --mount ./data:/data:rw --env MODEL=small -m my_agent
  agentfw run -n 20 --stats --plugins dns,tls,policy,credentials agent.py
  agentfw run -n 200 --dashboard agent.py

\b
Exit status: the program's; 128+n if signal n ended it (130: Ctrl-C, 137: killed, out of memory);
124 time-out; 125 agentfw's own fault; 126 cannot be executed; 127 not found."""


@click.command(cls=RunCommand, epilog=EPILOG)
@click.option("--plugins", metavar="NAMES", help="Comma-separated plugins in the agents' path, in order; files (./x.py) too.")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Instead of the nearest agentfw.toml."
)
@click.option("--no-config", is_flag=True, help="Read no agentfw.toml.")
@click.option("--mount", "mounts", multiple=True, metavar="HOST:GUEST[:rw]", help="Show a file or directory (repeatable).")
@click.option("--env", multiple=True, metavar="K=V", help="Set a variable; `K` alone passes ours on (repeatable).")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Label the agents, for policies (repeatable).")
@click.option("--memory", metavar="SIZE", help=f"Memory of each VM, as 512M or 2G.  [default: {MEMORY}]")
@click.option("--timeout", metavar="TIME", help="Stop an agent after this time: 30, 90s, 5m.")
@click.option("--preload", metavar="MODULES", help="Comma-separated modules to import once for all runs.")
@click.option("-n", "--count", type=click.IntRange(1, 100_000), default=1, metavar="COUNT", help="Run it so many times at once.")
@click.option("--python", metavar="PATH", help="The agents' interpreter.  [default: the one agentfw is installed in]")
@click.option("--snapshot", metavar="NAME", help="Start from a snapshot that `agentfw snapshot` has.")
@click.option("--dashboard", is_flag=True, help="Show what the agents do on a page, as long as they run.")
@click.option("--stats", is_flag=True, help="Print what the VMs and plugins counted, at the end, on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with output, ends and counters instead.")
@click.option(
    "--strace",
    type=click.Choice(["lines", "summary"]),
    metavar="[=lines|=summary]",
    help="Print the agents' system calls on stderr, or a table of them at the end.",
)
@click.option("--strace-out", type=click.Path(path_type=Path), metavar="FILE", help="Write the system calls there instead.")
@click.option("--strace-calls", metavar="NAMES", help="Only these system calls, as `open*,read`.")
@click.option(
    "--strace-size", type=click.IntRange(0, 1024), default=32, metavar="BYTES", help="Of a string that are shown.  [default: 32]"
)
@click.option(
    "--har",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what the agents say over HTTP there, as HAR: outside of the program's directory.",
)
@click.option("--trace-plugins", is_flag=True, envvar=TRACE_VARIABLES, help="Print each call of a plugin's hook on stderr.")
@click.option("-q", "--quiet", is_flag=True, help="No notes on stderr, errors only.")
@click.option("-v", "--verbose", count=True, help="More on stderr; -vv: debugging.")
@click.pass_context
def run(
    ctx: click.Context,
    plugins: str | None,
    config_file: Path | None,
    no_config: bool,
    mounts: tuple[str, ...],
    env: tuple[str, ...],
    labels: tuple[str, ...],
    memory: str | None,
    timeout: str | None,
    preload: str | None,
    count: int,
    python: str | None,
    snapshot: str | None,
    dashboard: bool,
    stats: bool,
    as_json: bool,
    strace: str | None,
    strace_out: Path | None,
    strace_calls: str | None,
    strace_size: int,
    har: Path | None,
    trace_plugins: bool,
    quiet: bool,
    verbose: int,
) -> int:
    """Run a Python program, each copy in a VM of its own.

    The program is a script, `-m module`, `-c code` or `-` for standard input, and gets the arguments after it. It sees its own
    directory (read-only), the interpreter with its packages, a private /tmp and home directory, and what --mount shows. Its
    network is what the plugins let through.
    """
    from ..config import FILE_NAME, Config, load_config
    from ..plugins import chosen_plugins, pool_plugins

    denials = _logging(quiet, verbose)
    program: list[str] = ctx.meta["program"]
    if not program or (program[0] in ("-m", "-c") and (len(program) < 2 or not program[1])):
        raise click.UsageError("no program: name a script, `-m module`, `-c code` or `-`", ctx)

    def load(file: Path | None, pipes: bool = True) -> Config:
        loaded = Config() if no_config else load_config(file, pipes=pipes)
        if dashboard and _without_page(loaded):
            loaded = loaded.with_keys("dashboard", {"listen": "127.0.0.1:0"})
        return loaded if har is None else loaded.with_keys("capture", {"file": str(har.absolute()), "directory": ""})

    config = load(config_file)
    table = config.run
    chosen = names(plugins) if plugins is not None else (pool_plugins if dashboard else chosen_plugins)(config)
    also = {"capture": har is not None, "dashboard": dashboard}
    options = Options(
        plugins=(*chosen, *(name for name, wanted in also.items() if wanted and name not in chosen)),
        config=config,
        mounts=(*table.mount, *mounts),
        env={**config.run.env, **dict(variable(text) for text in env)},
        labels=dict(label(text) for text in labels),
        memory=_memory(memory, config),
        timeout=seconds(timeout) if timeout is not None else _table_timeout(config),
        preload=names(preload) if preload is not None else table.preload,
        count=count,
        stats=stats,
        as_json=as_json,
        quiet=quiet,
        verbose=verbose,
        strace=strace_options(strace, strace_out, strace_calls, strace_size),
        trace_plugins=trace_plugins,
        load=lambda: load(config_file or config.file, pipes=False),
        python=python,
        snapshot=snapshot,
        har=har is not None,
        given=(names(preload) if preload is not None else None, _memory(memory, config) if memory is not None else None),
    )
    if config.file is None and not no_config and "policy" in options.plugins:
        denials.note = _without_a_file(program[0], FILE_NAME)
    return _with_loop(options, program)


def _without_page(config: Config) -> bool:
    """Its table says so, for pools: what is typed goes before it."""
    table = config.tables.get("dashboard")
    return isinstance(table, dict) and table.get("listen") == ""


def _without_a_file(script: str, name: str) -> str:
    """Said with the first denial: nothing is allowed, and why."""
    note = f"no {name} from here upward: agents may connect to nothing"
    beside = Path(script).parent / name
    return f"{note} (for the program's own, say `--config {beside}`)" if _is_file(beside) else note


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _table_timeout(config: Config) -> float | None:
    seconds = config.run.timeout
    if seconds is not None and not 0 < seconds < math.inf:
        raise config.error("run.timeout", "must be more than 0 seconds")
    return seconds


def _memory(text: str | None, config: Config) -> int:
    given = text if text is not None else config.run.memory if config.run.memory is not None else MEMORY
    try:
        return vm_memory(given)
    except ValueError as error:
        raise RunError(f"memory `{given}` {error}") from None  # that of the file was looked at with it


def _logging(quiet: bool, verbose: int) -> _Denials:
    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("agentfw").setLevel(level)
    denials = _Denials()
    if not quiet and not verbose:
        logging.getLogger("agentfw.relay").setLevel(logging.INFO)
        for each in logging.getLogger().handlers:
            each.addFilter(denials)
    return denials


class _Denials(logging.Filter):
    """Without -v: warnings, and each denial once: what the agent sees of it (a name that does not resolve) tells no rule."""

    MOST = 20

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()
        self.note = ""
        """What to say before the first of them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING or not record.name.startswith("agentfw.relay"):
            return True
        text = record.getMessage()
        if not getattr(record, "denied", False) or text in self._seen or len(self._seen) >= self.MOST:
            return False
        if self.note and not self._seen:
            say(f"note: {self.note}")
        self._seen.add(text)
        return True


# ---- the program and its guest


def prepare(options: Options, program: Sequence[str]) -> tuple[Template, Job, list[str]]:
    """Template and job of a command line, and notes for the operator."""
    from .. import programs

    mode, target, arguments = check_program(program)
    try:
        directory = str(Path.cwd())
    except OSError as error:
        raise RunError(f"the working directory cannot be used: {error.strerror}", "run it from another one") from None
    return programs.prepare(
        mode,
        target,
        arguments,
        directory=directory,
        python=options.python,
        mounts=options.mounts,
        env=options.env,
        preload=options.preload if options.snapshot is None else options.given[0],
        memory=options.memory if options.snapshot is None else options.given[1],
        snapshot=options.snapshot,
        line_buffered=not options.as_json and (os.isatty(1) or options.count > 1),
    )


# ---- running it


def _with_loop(options: Options, program: Sequence[str]) -> int:
    import uvloop

    more_descriptors()
    no_core_dumps()
    # What plugins print is not data: our stdout is the agents', or one JSON document.
    with (
        contextlib.redirect_stdout(sys.stderr),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        tracing(options.strace, options.count > 1) as strace,
    ):
        status, document = runner.run(_run(options, program, strace))
    if document is not None:
        click.echo(document)
    return status


async def _run(options: Options, program: Sequence[str], strace: Strace | None) -> tuple[int, str | None]:
    """Exit status, and the document of `--json`."""
    from ..fleet import Fleet
    from ..plugins import load_plugins, without_effect
    from ..plugins.discovery import WITHOUT_POLICY
    from ..plugins.tracing import to_stderr
    from ..runtime import Runtime

    loop = asyncio.get_running_loop()
    check_program(program)
    manager = load_plugins(options.plugins, options.config)
    check_kvm()
    template, job, notes = prepare(options, program)
    manager.check_guest(options.config, job.env, template.view.shows)
    if not options.quiet:
        if options.plugins and "policy" not in options.plugins:
            notes = [*notes, WITHOUT_POLICY]
        for note in [*notes, *without_effect(options.config, manager.names)]:
            say(f"note: {note}")
    runtime = Runtime(loop, manager, options.config)
    fleet = Fleet(
        runtime,
        template,
        size=min(options.count, AT_ONCE),
        progress=progress if not options.quiet else None,
        on_line=(lambda line: say(f"template: {line}")) if options.verbose else lambda line: None,
        trace=strace,
        recycle=options.count > AT_ONCE,
    )
    if options.trace_plugins:
        manager.trace(to_stderr)
    writers = Writer(1), Writer(2)
    reloads = Reloads(runtime, options.load, options.quiet)
    stop = _Interrupts(fleet, asyncio.current_task(), options.quiet)
    for number in stop.SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:  # nohup means it
            loop.add_signal_handler(number, stop.received, number)
    terminal, hangup_ends = Terminal(), signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    loop.add_signal_handler(signal.SIGHUP, lambda: _hangup(terminal, stop if hangup_ends else None, reloads))
    started = time.monotonic()
    try:
        await runtime.start()
        try:
            reloads.begin()
            for name, url in manager.served_at(login=True).items():
                say(f"{name}: {url}")
            async with fleet:
                stop.ready = True
                results, captured = await _agents(fleet, job, options, writers)
            counted, tables = runtime.statistics(), runtime.tables()  # now that the last flows have ended
        finally:
            await reloads.end()
            await runtime.stop()
    except asyncio.CancelledError:
        if stop.last is None:
            raise
        return 128 + stop.last, None
    seconds = time.monotonic() - started
    for result in results:
        _tell(result, options, stop)
    document = json.dumps(document_of(results, captured, counted, tables, seconds)) if options.as_json else None
    if options.stats and not options.as_json:
        say("\n\n".join([statistics_of(results, counted, seconds), *(as_text(table) for table in tables)]))
    if stop.killed and stop.last is not None:
        return 128 + stop.last, document
    status = next((result.status for result in results if result.status), 0)
    for writer in writers:
        if writer.failure is not None and not status:  # what the agents said did not get out, and they may not know
            complain(f"cannot write to {writer.name}: {writer.failure.strerror}")
            status = 125
    return status, document


def _hangup(terminal: Terminal, stop: _Interrupts | None, reloads: Reloads) -> None:
    """SIGHUP. `stop` None: whoever started us wants us to outlive the terminal."""
    if not terminal.hung_up():
        reloads.request()
    elif stop is not None:
        stop.received(signal.SIGHUP)


class _Interrupts:
    """The first Ctrl-C, SIGTERM, or loss of the terminal goes to the agents, the second one kills them."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, fleet: Fleet, task: asyncio.Task[Any] | None, quiet: bool) -> None:
        self._fleet = fleet
        self._task = task
        self._quiet = quiet
        self.ready = False
        self.last: int | None = None
        self.killed = False

    def received(self, number: int) -> None:
        again = self.last is not None
        self.last = number
        if not self.ready or (again and self.killed):
            if self._task is not None:
                self._task.cancel()
        elif again:
            self.killed = True
            self._fleet.kill()
            if self._task is not None:  # somebody may not be reading our output: do not wait for it
                asyncio.get_running_loop().call_later(3.0, self._task.cancel)
        else:
            self._fleet.signal(number)
            if not self._quiet and number == signal.SIGINT and self._fleet.running:
                say("interrupting; press Ctrl-C again to kill")


async def _agents(
    fleet: Fleet, job: Job, options: Options, writers: tuple[Writer, Writer]
) -> tuple[list[Result], list[tuple[Kept, Kept]]]:
    from ..fleet import Streams

    out, err = writers
    captured: list[tuple[Kept, Kept]] = []
    text: bytes | None = None
    if options.count > 1 and job.mode == "stdin":
        text = await _all_input()
    marked = options.count > 1 and os.isatty(1)

    def streams(number: int) -> Streams:
        if options.as_json:
            kept = Kept(), Kept()
            captured.append(kept)
            sinks: Any = kept
        elif options.count == 1:
            sinks = Plain(out), Plain(err)
        else:
            prefix = b"[agent-%d] " % number if marked else b""
            sinks = Lines(out, prefix), Lines(err, prefix)
        source = None
        if text is not None:
            source = _once(text)
        elif options.count == 1 and may_read_stdin():
            source = standard_input()
        return Streams(sinks[0], sinks[1], source)

    def own(number: int) -> Job:
        """With `-n`, an agent may want to know which of them it is."""
        if options.count == 1:
            return job
        return replace(job, env={**job.env, "AGENTFW_AGENT_INDEX": str(number), "AGENTFW_AGENT_COUNT": str(options.count)})

    runs = [
        fleet.run(
            own(number),
            streams(number),
            name=f"agent-{number}",
            labels=options.labels,
            timeout=options.timeout,
            capture=options.har,
        )
        for number in range(1, options.count + 1)
    ]
    return list(await asyncio.gather(*runs)), captured


async def _all_input() -> bytes:
    data = bytearray()
    async for part in standard_input():
        data += part
        if len(data) > STDIN_MAX:
            raise RunError(f"more than {STDIN_MAX >> 20} MiB of program on standard input")
    return bytes(data)


async def _once(data: bytes) -> Any:
    if data:
        yield data


# ---- telling


def _tell(result: Result, options: Options, stop: _Interrupts) -> None:
    """One line on stderr for an end that the agent itself did not explain."""
    report = result.report
    if report.kind == "code" or (report.kind == "killed" and stop.last is not None):
        return
    if report.kind == "signal" and report.signal in (stop.last, signal.SIGINT):
        return
    who = f"{result.agent.name}: " if options.count > 1 else ""
    what, hint = explain(report, options)
    complain(who + what, hint)


def explain(report: ExitReport, options: Options) -> tuple[str, str]:
    """(what, hint) of an end that is not the program's own."""
    if report.kind == "timeout":
        return f"timed out after {options.timeout:g} s", "give it more with `--timeout`"
    if report.kind == "memory":
        return f"out of memory ({options.memory >> 20} MiB): {report.text}", "give it more with `--memory`"
    if report.kind == "signal":
        return report.text.partition(" (")[0] or f"killed by signal {report.signal}", ""
    if report.kind == "hostile":
        return f"stopped for breaking the VM's protocol: {report.text}", ""
    hint = ""
    if report.text.startswith("snapshot: "):
        removed = "run it again: the snapshot was removed and will be made anew"
        hint = (
            removed
            if options.snapshot is None
            else f"`agentfw snapshot show --verify {options.snapshot}` looks whether it is damaged"
        )
    return report.text or report.kind, hint
