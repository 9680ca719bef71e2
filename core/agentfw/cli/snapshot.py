"""`agentfw snapshot`: templates with names, made once, kept, moved to other machines."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..sizes import vm_memory
from ..texts import shown
from .connect import json_option
from .options import RunError, check_kvm
from .output import progress, put, say

if TYPE_CHECKING:
    from ..manifests import Manifest
    from ..snapshot_library import Named

T = TypeVar("T")


@click.group(short_help="Snapshots with names, here and elsewhere.")
def snapshot() -> None:
    """Snapshots with names: Python as it stands when an agent's program begins, with modules imported.

    `agentfw run --snapshot NAME` and `snapshot = "NAME"` in [pool.templates.X] start from one.
    """


_ENV = click.option("--env", multiple=True, metavar="K=V", help="A variable that Python reads while it starts (repeatable).")
_PYTHON = click.option("--python", metavar="PATH", help="The agents' interpreter.  [default: the one agentfw is installed in]")
_REPLACE = click.option("--replace", is_flag=True, help="Also if there is another of that name.")


@snapshot.command()
@click.argument("name")
@click.option("--preload", metavar="MODULES", default="", help="Comma-separated modules to import before the snapshot.")
@click.option("--memory", metavar="SIZE", help="Memory of its VMs, as 512M or 2G.  [default: 512M]")
@_PYTHON
@_ENV
@_REPLACE
@click.option("-v", "--verbose", is_flag=True, help="Print what Python says meanwhile.")
def build(
    name: str, preload: str, memory: str | None, python: str | None, env: tuple[str, ...], replace: bool, verbose: bool
) -> None:
    """Make a snapshot and name it NAME."""
    from ..dispatch import template_environment
    from ..guestfs import base_view, find_interpreter
    from ..snapshot_library import Library
    from ..snapshots import SnapshotStore, Template

    try:
        size = vm_memory(memory)
    except ValueError as error:
        raise RunError(f"--memory: `{memory}` {error}") from None
    variables = _startup(env)
    at_start = template_environment(variables)
    interpreter = find_interpreter(python or sys.executable, at_start)
    modules = tuple(each.strip() for each in preload.split(",") if each.strip())
    template = Template(interpreter, base_view(interpreter), at_start, modules, size)
    log = (lambda line: say(f"template: {shown(line)}")) if verbose else lambda line: None
    check_kvm()
    made = _run(Library().build(name, template, SnapshotStore(), progress, log, replace=replace))
    put(f"{made.name}  {made.manifest.digest}")


@snapshot.command()
@json_option
def ls(as_json: bool) -> None:
    """Which there are."""
    from ..snapshot_library import Library

    found = Library().all()
    if as_json:
        click.echo(json.dumps({"version": 1, "snapshots": [_summary(named) for named in found]}))
        return
    if not found:
        say("no snapshots (`agentfw snapshot build NAME` makes one)")
        return
    rows = [("NAME", "DIGEST", "SIZE", "PYTHON", "CPU", "CREATED", "LAST USED", "PRELOAD")]
    for named in found:
        one = named.manifest
        version = ".".join(map(str, one.python.version))
        cpu = _level(one)
        size = f"{named.disk / 2**20:.0f} MiB"
        preload = shown(",".join(one.preload), 60) or "-"
        rows.append((named.name, one.digest[:12], size, version, cpu, _when(one.created), _when(named.used), preload))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        put("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@snapshot.command()
@click.argument("name")
@click.option("--verify", is_flag=True, help="Read all of it: is it what its digest says, and has this host the same files?")
@json_option
def show(name: str, verify: bool, as_json: bool) -> None:
    """What one is made of, and what it needs."""
    from agentfw_vmm.heads import SnapshotError, read_head

    from ..guestfs import base_view
    from ..manifests import differences
    from ..snapshot_library import Library

    library = Library()
    named = library.find(name)
    one = named.manifest
    if verify:
        library.verify(named)
    differs = differences(one.files, base_view(one.python.interpreter())) if verify else []
    try:
        head = read_head(named.path)
    except (OSError, SnapshotError) as error:
        raise RunError(f"the snapshot `{name}` is damaged: {error}") from None
    if as_json:
        document = {
            **_summary(named),
            "format": head.format,
            "abi": head.abi,
            "shim": head.shim.hex(),
            "file_size": head.size,
            "stored": head.stored,
            "committed": head.committed,
            "state": head.state,
            "sites": head.sites,
            "sites_refused": head.sites_refused,
            "environment": one.environment,
            "modules": list(one.modules),
            "files": one.files,
        }
        if verify:
            document["differences"] = differs
        click.echo(json.dumps({"version": 1, "snapshot": document}))
        return
    python = one.python
    lines = [
        ("name", named.name),
        ("digest", f"sha256:{one.digest}"),
        ("file", str(named.path)),
        (
            "size",
            f"{named.disk / 2**20:.1f} MiB on disk; {head.stored / 2**20:.1f} MiB of memory, {head.state >> 10} KiB of state",
        ),
        ("created", f"{_when(one.created)} by agentfw {one.agentfw}; last used {_when(named.used)}"),
        ("format", f"{head.format}, ABI {head.abi}, shim {head.shim.hex()[:12]}"),
        ("python", f"{'.'.join(map(str, python.version))}  {python.executable}"),
        ("prefix", python.prefix if python.prefix == python.base else f"{python.prefix} (of {python.base})"),
        ("memory", f"{one.memory >> 20} MiB a VM, of which {head.committed >> 20} are committed"),
        ("preload", ", ".join(one.preload) or "-"),
        ("cpu", f"made on {head.cpu_vendor or '?'}; needs {_level(one)}: {' '.join(head.needs)}"),
        ("variables", " ".join(f"{key}={shown(value, 80)}" for key, value in sorted(one.environment.items()))),
        (
            "modules",
            f"{len(one.modules)} imported (`--json` lists them), from {len(one.files)} files that a host must have the same",
        ),
        ("code", f"{head.sites} system call sites rewritten, {head.sites_refused} left to the backstop"),
        ("holds", "the interpreter's memory and registers once those modules are imported"),
        ("holds not", "an agent, its files, open files or connections, seeds or process ids (each VM gets its own)"),
    ]
    if verify:
        lines.append(("verified", "its content is that of its digest; " + (_some(differs) or "this host has the same files")))
    for key, value in lines:
        put(f"{key:10}  {shown(value, 4000)}")
    if differs:
        raise RunError(f"the snapshot `{named.name}` does not fit this host: {differs[0]}")


@snapshot.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def rm(names: tuple[str, ...]) -> None:
    """Remove snapshots by name (or digest). VMs that run are not touched."""
    from ..snapshot_library import Library

    freed = sum(Library().remove(name) for name in names)
    put(f"removed {len(names)} snapshot{'' if len(names) == 1 else 's'}, {freed / 2**20:.0f} MiB")


@snapshot.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path))
def export(name: str, file: Path) -> None:
    """Write NAME to FILE, for another machine; `-`: to standard output."""
    from ..snapshot_archive import write_archive
    from ..snapshot_library import Library

    named = Library().find(name)
    if str(file) == "-":
        write_archive(named, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as out:
                write_archive(named, out)
                size = out.tell()
            part.rename(file)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"cannot write `{file}`: {error.strerror}") from None
    say(f"{named.name}: {size / 2**20:.1f} MiB in {file}")


@snapshot.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="What to name it here.  [default: as it was]")
@_PYTHON
@_ENV
@_REPLACE
@click.option("--no-trial", is_flag=True, help="Do not restore it once to see that it runs here.")
def import_(file: Path, name: str | None, python: str | None, env: tuple[str, ...], replace: bool, no_trial: bool) -> None:
    """Take a snapshot from FILE, which `export` wrote on another machine; `-`: from standard input.

    All sizes and digests are checked, and that this host has the same Python and files; what the archive says decides nothing
    else here.
    """
    from ..snapshot_archive import read_head, unpack
    from ..snapshot_library import Library

    library = Library()
    variables = _startup(env)
    if not no_trial:
        check_kvm("`--no-trial` keeps it without trying it")
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source, library.part() as (part, out):
            told, manifest = read_head(source)
            unpack(source, manifest, out)
            keeping = library.take(
                name or told,
                part,
                manifest,
                python=python or sys.executable,
                env=variables,
                replace=replace,
                trial=not no_trial,
            )
            named = _run(keeping)
    except OSError as error:
        raise RunError(f"cannot read `{file}`: {error.strerror}") from None
    put(f"{named.name}  {named.manifest.digest}")


# ---- helpers


def _run(work: Coroutine[Any, Any, T]) -> T:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _startup(texts: tuple[str, ...]) -> dict[str, str]:
    """Only those that a starting interpreter reads: others belong to the run."""
    from ..dispatch import template_environment

    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or "\0" in text or not equals:
            raise RunError(f"bad variable `{shown(text, 100)}`", "write `--env NAME=VALUE`")
        if name not in template_environment({name: value}):
            raise RunError(f"the variable {shown(name, 100)} makes no difference to a snapshot", "give it to `agentfw run`")
        found[name] = value
    return found


def _level(one: Manifest) -> str:
    """What its features amount to."""
    has = set(one.needs)
    if {"avx2", "bmi2", "fma", "movbe"} <= has:
        return "x86-64-v3"
    return "x86-64-v2" if {"sse4_2", "popcnt", "cx16"} <= has else "x86-64"


def _when(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, OSError, ValueError):
        return "?"


def _summary(named: Named) -> dict[str, Any]:
    one = named.manifest
    return {
        "name": named.name,
        "digest": one.digest,
        "file": str(named.path),
        "bytes": named.disk,
        "created": one.created,
        "used": int(named.used),
        "python": {"version": ".".join(map(str, one.python.version)), "executable": one.python.executable},
        "preload": list(one.preload),
        "memory": one.memory,
        "cpu_vendor": one.cpu_vendor,
        "cpu_needs": list(one.needs),
    }


def _some(found: list[str]) -> str:
    return f"this host differs in {len(found)} of its files" if found else ""
