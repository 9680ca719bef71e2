"""The command `agentfw`. Data goes to stdout, everything else to stderr; expected errors are one line, `error: WHAT`, and often a
`hint:`; 125 is the status of our own faults."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import click
import importlib_metadata

from ..errors import AgentfwError, ConfigError, HookError, PluginError, UnknownPlugin
from ..hints import did_you_mean
from ..statuses import OWN_FAULT
from ..texts import why
from .output import complain, say
from .variables import of_error, with_variables

_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN}
"""What is wrong is the machine, or a limit, and not a line of ours."""

_AS_THE_PROGRAM = {"agentfw run", "agentfw submit", "agentfw wait"}
"""Their status may be a program's: even a mistake in their options is our 125."""

COMMANDS = {
    "run": ("run", "run"),
    "pool": ("pool", "pool"),
    "submit": ("submit", "submit"),
    "ps": ("jobs", "ps"),
    "logs": ("jobs", "logs"),
    "wait": ("jobs", "wait"),
    "kill": ("jobs", "kill"),
    "top": ("top", "top"),
    "metrics": ("metrics", "metrics"),
    "doctor": ("doctor", "doctor"),
    "plugins": ("plugins", "plugins"),
    "config": ("config", "config"),
    "cache": ("cache", "cache"),
    "snapshot": ("snapshot", "snapshot"),
    "mock-llm": ("..mock_llm.cli", "mock_llm"),
    "completion": ("completion", "completion"),
}
"""Name -> module and attribute; imported when used, so that `--help` and completion stay quick."""
GROUP = "agentfw.commands"
"""The entry points of plugins' commands: each a click command or group. agentfw's own names cannot be taken."""


def plugin_commands() -> dict[str, importlib_metadata.EntryPoint]:
    """Those that are installed, by name."""
    return {point.name: point for point in importlib_metadata.entry_points(group=GROUP) if point.name not in COMMANDS}


class Commands(click.Group):
    """Commands imported on demand, with a guess at what a misspelt one meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(plugin_commands())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            point = plugin_commands().get(cmd_name)
            return None if point is None else with_variables(_plugin_command(point), cmd_name)
        from importlib import import_module

        module, attribute = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module if module.startswith(".") else f".{module}", __name__), attribute)
        return with_variables(command, cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and name not in plugin_commands():
            if name.endswith(".py"):
                raise Hinted(f"no command `{name}`", f"run a script with `agentfw run {name}`")
            near = did_you_mean(name, self.list_commands(ctx))
            raise Hinted(f"no command `{name}`", near or "see `agentfw --help`")
        return super().resolve_command(ctx, args)


def _plugin_command(point: importlib_metadata.EntryPoint) -> click.Command:
    """What an entry point names; one that does not import is a command that says so, so that `--help` works."""
    try:
        command = point.load()
        if isinstance(command, click.Command):
            return command
        reason = f"{point.value} is no click command"
    except (Exception, SystemExit) as error:
        reason = why(error)
    origin = f" of {point.dist.name}" if point.dist is not None else ""

    @click.command(point.name, context_settings={"ignore_unknown_options": True}, help=f"(broken: {reason})")
    @click.argument("arguments", nargs=-1)
    def broken(arguments: tuple[str, ...]) -> None:
        raise PluginError(f"command `{point.name}`{origin} does not work: {reason}")

    return broken


EXAMPLES = """Examples:

\b
  agentfw run agent.py
  agentfw run -n 20 --stats --plugins dns,tls,policy,credentials agent.py
  agentfw pool start --daemon; agentfw submit --wait agent.py
  agentfw doctor"""


class Hinted(click.UsageError):
    """A usage error with something better to try."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "AGENTFW", "max_content_width": 100},
    epilog=EXAMPLES,
)
@click.version_option(package_name="agentfw", prog_name="agentfw")
def cli() -> None:
    """Run AI agents, unmodified Python programs, each in a KVM virtual machine without a guest kernel."""


def main(arguments: list[str] | None = None) -> None:
    """The entry point: never returns, never shows a traceback of ours for what can be expected."""
    status = OWN_FAULT
    _open_standard_streams()
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # as who started us has it: nobody would know how our processes end
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        status = _main(arguments)
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:  # what is in the buffer cannot be written when Python ends either
            if status != OWN_FAULT:  # not said yet
                complain(f"cannot write to standard output: {error.strerror}")
            os._exit(OWN_FAULT)
        # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 141
    except KeyboardInterrupt:
        status = 130
    sys.stderr.flush()
    os._exit(status) if status == 141 else sys.exit(status)


def _open_standard_streams() -> None:
    """A closed one is /dev/null: its number would go to the next file that something opens."""
    for descriptor, mode in ((0, "r"), (1, "w"), (2, "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        name = ("stdin", "stdout", "stderr")[descriptor]
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115  # for the life of the process


def _main(arguments: list[str] | None) -> int:
    return status_of(lambda: cli.main(arguments, prog_name="agentfw", standalone_mode=False), arguments)


def status_of(call: Callable[[], Any], arguments: list[str] | None = None) -> int:
    """What a command comes to, with what went wrong told on stderr."""
    stdout = sys.stdout
    try:
        result = call()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        return 130
    except click.exceptions.NoArgsIsHelpError as error:  # its message is the help, not a sentence
        say(error.format_message())
        return 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else _command(arguments)
        complain(_told(error, error.format_message()), getattr(error, "hint", "") or f"see `{command} --help`")
        return OWN_FAULT if command in _AS_THE_PROGRAM else 2
    except click.ClickException as error:
        complain(_lower(error.format_message()))
        return OWN_FAULT if error.exit_code == 1 else error.exit_code
    except AgentfwError as error:
        complain(_told(error, str(error)), hint_for(error))
        return int(getattr(error, "status", OWN_FAULT))
    except SystemExit:
        if sys.stdout is not stdout:  # click puts a muffler there when the reader has gone, and leaves with status 1
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
        raise
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if os.environ.get("AGENTFW_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            complain(": ".join(str(part) for part in (error.filename, error.strerror) if part), "run `agentfw doctor`")
            return OWN_FAULT
        complain(f"internal error: {why(error)}", "set AGENTFW_TRACEBACK=1 to see where, and report it")
        return OWN_FAULT


def _command(arguments: list[str] | None) -> str:
    """`agentfw COMMAND` of a command line, for errors to which click adds no context."""
    name = next((word for word in (sys.argv[1:] if arguments is None else arguments) if not word.startswith("-")), "")
    return f"agentfw {name}" if name in COMMANDS else "agentfw"


def hint_for(error: AgentfwError) -> str:
    """What to do about it, where that is known."""
    hint: str = getattr(error, "hint", "")
    if hint:
        return hint
    if isinstance(error, UnknownPlugin):
        return did_you_mean(error.name, error.known) or "see `agentfw plugins list`"
    if isinstance(error, HookError) and error.__cause__ is not None:
        return _where(error.__cause__)
    if isinstance(error, ConfigError) and error.file:
        return _what_a_table_holds(error.key.partition(".")[0])
    return ""


def _what_a_table_holds(table: str) -> str:
    """A plugin says it itself, wherever agentfw was installed from; of the others the documentation does."""
    from ..config import OWN_TABLES
    from ..plugins.discovery import available

    if table in available():
        return f"see `agentfw plugins show {table}` for what its table may hold"
    if table and table not in OWN_TABLES:
        return f"see `agentfw plugins show FILE`, with the file of `{table}`, for what its table may hold"
    return "see docs/reference/configuration.md for what the file may hold"


def _told(error: Exception, text: str) -> str:
    """With the variable in the place where others have their file."""
    return ": ".join(part for part in (of_error(error), _lower(text)) if part)


def _lower(text: str) -> str:
    """click begins with a capital and ends with a full stop; our errors do neither. It names types as it has them."""
    text = " ".join(text.split()).removesuffix(".")
    text = re.sub(r"is not a valid (integer|float) range$", r"is not a valid \1", text)
    text = re.sub(r"is not a valid boolean\. Recognized values: .*", "is neither yes nor no: write 1 or 0", text)
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _where(cause: BaseException) -> str:
    """What a plugin raised, and in which line: for its author."""
    trace = cause.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return why(cause) + place
