"""From what a caller names (a script, code, a module; files beside it) to the Job that a pool takes.

Scripts and files are read here, where the caller is, and sent: the pool need not see the caller's directories.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import msgspec

from ..pool.jobs import MAX_FILES, MAX_PAYLOAD, Isolation, Job, Limits, Mode, PoolError, Trace, in_words
from ..small_files import read_small

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Code:
    """Python source, as for `python -c`."""

    text: str


@dataclass(frozen=True)
class Module:
    """As for `python -m`: a module of the template's packages, or among the job's files."""

    name: str


@dataclass(frozen=True)
class Mounted:
    """A script that the VMs see already, at this absolute path, by a mount of the template: nothing is sent."""

    path: str


Program = str | os.PathLike[str] | Code | Module | Mounted
"""A path: the script there (or the directory with a `__main__.py`) is read and sent."""

Files = Mapping[str, bytes | str | os.PathLike[str]] | Iterable[StrPath]
"""What lies beside the program. A mapping: relative path in the job's directory -> content (bytes, or text) or a Path to read.
Else paths to read, each laid under its own last name; directories with all that is in them but names that begin with a dot, and
`__pycache__`."""


class JobOptions(TypedDict, total=False):
    """What can be said of any job, by keyword."""

    env: Mapping[str, str]
    """Variables beyond the usual. Nothing of the caller's own environment is passed on."""
    files: Files
    stdin: bytes | str
    name: str
    """For people; else the program's."""
    labels: Mapping[str, str]
    """For policies and plugins."""
    policy: str
    """Profile of the policy plugin."""
    tenant: str
    """VMs of different tenants never share a process."""
    template: str
    """A table [pool.templates.NAME]."""
    isolation: Isolation
    limits: Limits | Mapping[str, Any]
    timeout: float
    """Seconds of wall time: `limits.seconds`."""
    strace: Trace | Mapping[str, Any] | bool
    """Its system calls are printed on its stderr: all of them, or as the fields of `Trace` say."""
    retries: int
    """How often it may be run again, from its beginning, when the machinery under it failed."""
    capture: bool
    """What it says over HTTP is kept as a HAR file, by the pool's plugin `capture`."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """Of `map`: what one job gets besides what all of them get. `args` come after theirs; `env`, `files` and `labels` beside
    theirs; `stdin` and `name` instead."""

    args: Sequence[StrPath] = ()
    env: Mapping[str, str] | None = None
    files: Files | None = None
    stdin: bytes | str | None = None
    name: str = ""
    labels: Mapping[str, str] | None = None


def as_input(given: object) -> Input:
    """What `map` makes of an input: text is an argument; a tuple or list of texts, arguments; bytes are standard input; a
    mapping is one JSON document on standard input; an Input is itself. TypeError for others."""
    if isinstance(given, Input):
        return given
    if isinstance(given, str | os.PathLike):
        return Input(args=(given,))
    if isinstance(given, bytes):
        return Input(stdin=given)
    if isinstance(given, Mapping):
        return Input(stdin=json.dumps(given))
    if isinstance(given, tuple | list) and all(isinstance(each, str | os.PathLike) for each in given):
        return Input(args=tuple(given))
    raise TypeError(f"no input of a job: {type(given).__name__} (text, texts, bytes, a mapping, or agentfw.Input)")


@dataclass(frozen=True)
class Loaded:
    """A program with its files read: what jobs of the same program share."""

    mode: Mode
    target: str
    name: str
    files: Mapping[str, bytes]


def reads(program: Program, files: Files | None) -> bool:
    """Whether `load()` looks at the file system."""
    return bool(files) or not isinstance(program, Code | Module | Mounted)


def load(program: Program, files: Files | None) -> Loaded:
    """Reads what is to be sent. PoolError "bad_job"; OSError, as open() does, for what cannot be read."""
    budget = _Budget()
    found = read_files(files, budget) if files is not None else {}
    if isinstance(program, Code):
        return Loaded("code", program.text, "", found)
    if isinstance(program, Module):
        return Loaded("module", program.name, program.name, found)
    if isinstance(program, Mounted):
        if not program.path.startswith("/"):
            raise PoolError("bad_job", f"not an absolute path: {program.path!r}", "of a file to be sent, give the path itself")
        return Loaded("script", program.path, Path(program.path).name, found)
    if not isinstance(program, str | os.PathLike):
        raise TypeError(f"no program: {type(program).__name__} (a path, agentfw.Code, agentfw.Module, or agentfw.Mounted)")
    path = Path(program)
    if not path.name:
        raise PoolError("bad_job", f"not a script: {str(program)!r}", "for code, give `agentfw.Code(text)`")
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise PoolError("bad_job", f"`{path}` is a directory without a `__main__.py`")
    for name, content in _read(path, path.name, budget):
        if found.setdefault(name, content) != content:
            raise PoolError("bad_job", f"two different files for `{name}`: the program, and one of `files`")
    return Loaded("script", path.name, path.name, found)


def read_files(files: Files, budget: _Budget | None = None) -> dict[str, bytes]:
    """Relative path in the job's directory -> content."""
    budget = budget or _Budget()
    if isinstance(files, str | bytes | os.PathLike):
        raise TypeError("files: a mapping, or a list of paths")
    found: dict[str, bytes] = {}
    if isinstance(files, Mapping):
        for name, given in files.items():
            if isinstance(given, str):
                found[name] = budget.take(given.encode(), name)
            elif isinstance(given, os.PathLike):
                found.update(_read(Path(given), name, budget))
            else:
                found[name] = budget.take(bytes(given), name)
        return found
    for given in files:
        path = Path(os.fspath(given))
        for name, content in _read(path, path.name or path.resolve().name, budget):
            if found.setdefault(name, content) != content:
                raise PoolError("bad_job", f"two different files for `{name}`", "give a mapping, with a path for each")
    return found


class _Budget:
    """Nobody reads a home directory to its end to be told that it is too large."""

    def __init__(self) -> None:
        self.left = MAX_PAYLOAD
        self.files = 0

    def take(self, content: bytes, name: str) -> bytes:
        self.left -= len(content)
        self.files += 1
        if self.left < 0 or self.files > MAX_FILES:
            most = f"{MAX_PAYLOAD >> 20} MiB in {MAX_FILES} files at most"
            raise PoolError(
                "bad_job", f"too much to send, at `{name}`: {most}", "show VMs large things by a mount of the template"
            )
        return content


def _read(path: Path, name: str, budget: _Budget) -> list[tuple[str, bytes]]:
    if not stat.S_ISDIR(path.stat().st_mode):
        try:
            return [(name, budget.take(read_small(path, budget.left), name))]
        except OSError as error:
            if error.errno == 27:  # EFBIG, by read_small()
                budget.take(b"", name)
                raise PoolError("bad_job", f"`{path}` is too large to send: {MAX_PAYLOAD >> 20} MiB at most in all") from None
            raise
    found: list[tuple[str, bytes]] = []
    for place, directories, names in os.walk(path):
        directories[:] = sorted(each for each in directories if not each.startswith(".") and each != "__pycache__")
        for each in sorted(names):
            file = Path(place, each)
            if not each.startswith(".") and file.is_file():
                found += _read(file, f"{name}/{file.relative_to(path).as_posix()}", budget)
    return found


def make_job(
    loaded: Loaded,
    args: Sequence[StrPath] = (),
    options: JobOptions | None = None,
    given: Input | None = None,
    interactive: bool = False,
) -> Job:
    """The job of a program read before, all values checked: PoolError "bad_job"; TypeError for what has no place in a job."""
    if isinstance(args, str | bytes):
        raise TypeError("args: a list of arguments, not one text")
    options = options or {}
    given = given or Input()
    unknown = options.keys() - JobOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"no option of a job: {', '.join(sorted(unknown))}")
    stdin = given.stdin if given.stdin is not None else options.get("stdin", b"")
    fields = {
        "mode": loaded.mode,
        "target": loaded.target,
        "args": tuple(map(_argument, (*args, *given.args))),
        "env": {**options.get("env", {}), **(given.env or {})},
        "files": {**loaded.files, **read_files(given.files)} if given.files else dict(loaded.files),
        "stdin": stdin.encode() if isinstance(stdin, str) else stdin,
        "interactive": interactive,
        "name": given.name or options.get("name") or loaded.name,
        "labels": {**options.get("labels", {}), **(given.labels or {})},
        "limits": _limits(options),
    }
    for name in ("policy", "tenant", "template", "isolation", "retries", "capture"):
        if name in options:
            fields[name] = options[name]
    traced = options.get("strace")
    if traced not in (None, False):
        fields["strace"] = {} if traced is True else msgspec.structs.asdict(traced) if isinstance(traced, Trace) else traced
    job = _checked(fields, Job)
    job.check(types=False)
    return job


def _argument(given: object) -> str:
    if isinstance(given, str | os.PathLike):
        return os.fspath(given)
    raise TypeError(f"args: texts or paths, not {type(given).__name__}: {given!r:.60}")


_NO_LIMITS = Limits()


def _limits(options: JobOptions) -> Limits:
    if "limits" not in options and "timeout" not in options:
        return _NO_LIMITS
    given = options.get("limits", _NO_LIMITS)
    limits = _checked(msgspec.structs.asdict(given) if isinstance(given, Limits) else dict(given), Limits)
    if "timeout" in options:
        if limits.seconds is not None:
            raise TypeError("`timeout` is `limits.seconds`: give one of them")
        limits = _checked({**msgspec.structs.asdict(limits), "seconds": options["timeout"]}, Limits)
    return limits


Struct = TypeVar("Struct", bound=msgspec.Struct)


def _checked(fields: dict[str, Any], kind: type[Struct]) -> Struct:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise PoolError("bad_job", in_words(error).replace("`$.", "`")) from None
