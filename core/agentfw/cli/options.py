"""What commands that run programs have in common: how a command line is taken apart, values checked, errors told."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import AgentfwError

if TYPE_CHECKING:
    from ..dispatch import Mode


class RunError(AgentfwError):
    """`status` is the command's exit status."""

    def __init__(self, message: str, hint: str = "", status: int = 125) -> None:
        self.hint = hint
        self.status = status
        super().__init__(message)


class Range(click.FloatRange):
    """Of numbers: click's lets NaN through, which is in no range, and infinity where there is no upper end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is no number", param, ctx)
        return number


#: Options that take a value only behind `=`: what they are without one.
_WITH_VALUE = {"--strace": "--strace=lines"}


class RunCommand(click.Command):
    """Options end where the program begins: at `-m`, `-c`, `-`, or the script; all that follows is the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, ctx.meta["program"] = split(args, {flag for flag, takes in self._options().items() if takes})
        return super().parse_args(ctx, [_WITH_VALUE.get(arg, arg) for arg in ours])

    def _options(self) -> dict[str, bool]:
        found = {}
        for parameter in self.params:
            if isinstance(parameter, click.Option):
                for flag in (*parameter.opts, *parameter.secondary_opts):
                    found[flag] = not parameter.is_flag and not parameter.count and flag not in _WITH_VALUE
        return found

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] (SCRIPT | -m MODULE | -c CODE | -) [ARGS]...")


def split(args: Sequence[str], valued: set[str]) -> tuple[list[str], list[str]]:
    """The command's options and the program's command line. `valued`: the options that take a value."""
    at = 0
    while at < len(args):
        arg = args[at]
        if arg == "--":
            return list(args[:at]), list(args[at + 1 :])
        if arg in ("-", "-m", "-c") or not arg.startswith("-"):
            return list(args[:at]), list(args[at:])
        if arg[:2] in ("-m", "-c") and not arg.startswith("--"):
            return list(args[:at]), [arg[:2], arg[2:], *args[at + 1 :]]
        at += 2 if arg in valued else 1
    return list(args), []


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", name) or len(value) > 128 or not value.isprintable():
        raise RunError(f"bad label `{text}`", "write `--label NAME=VALUE`")
    return name, value


def variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or "\0" in text:
        raise RunError(f"bad variable `{text}`", "write `--env NAME=VALUE`, or `--env NAME` to pass yours on")
    if equals:
        return name, value
    if name not in os.environ:
        raise RunError(f"variable `{name}` is not set here", f"write `--env {name}=VALUE`")
    return name, os.environ[name]


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip())
    seconds = float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2] or "s"] if match else 0.0
    if not seconds or not math.isfinite(seconds):
        raise RunError(f"`{text}` is no time", "write `--timeout 30`, `90s`, `5m` or `1h`")
    return seconds


def _starts(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def check_program(program: Sequence[str]) -> tuple[Mode, str, list[str]]:
    """(mode, target, arguments). RunError for a script that is not there (127) or cannot be read (126)."""
    first = program[0]
    if first in ("-m", "-c"):
        return "module" if first == "-m" else "code", program[1], list(program[2:])
    if first == "-":
        return "stdin", "", list(program[1:])
    path = Path(first)
    try:
        if not first:
            raise FileNotFoundError
        path.stat()
    except PermissionError:
        raise RunError(f"cannot read `{first}`: permission denied", "", 126) from None
    except (OSError, ValueError) as error:  # not there, too long, a loop of links
        named = first and isinstance(error, FileNotFoundError) and not path.suffix
        near = f"`{first}.py`" if named and Path(f"{first}.py").is_file() else ""
        if first in ("summary", "lines"):
            near = f"`--strace={first}`"  # what takes its value with `=` only
        raise RunError(f"script `{first}` not found", f"did you mean {near}?" if near else "", 127) from None
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise RunError(f"`{first}` is a directory without a `__main__.py`", "", 126)
    if not os.access(path, os.R_OK):
        raise RunError(f"cannot read `{first}`: permission denied", "", 126)
    if not path.is_dir() and not path.is_file():
        raise RunError(f"`{first}` is not a file", "", 126)
    try:
        starts = _starts(path) if path.is_file() else b""
    except OSError as error:  # a file system's own, a disk's
        raise RunError(f"cannot read `{first}`: {error.strerror}", "", 126) from None
    if starts == b"\x7fELF":
        raise RunError(f"`{first}` is an executable, and agents are Python programs", "it cannot be started from one either", 126)
    return "script", first, list(program[1:])


def check_kvm(hint: str = "") -> None:
    """Early and in words: a template that cannot be built would say so late. `hint`: instead of the usual one."""
    from .doctor import kvm_checks

    for check in kvm_checks():
        if check.status == "fail":
            raise RunError(check.detail, hint or check.hint or "run `agentfw doctor`")
