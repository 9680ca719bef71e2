"""What a named snapshot was made of, by content, and whether a host has the same.

A snapshot in the cache is found by a key of paths, times and inodes: quick to compute, and of this machine. One with a name may
come from another machine, so it carries a manifest: which Python, which files (by SHA-256) its memory was loaded from, which CPU
features its code may use. Files that are loaded later are the host's own, and those of the same Python.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated

import msgspec
from agentfw_vmm import Cell, CellError, VmExit
from agentfw_vmm.heads import SnapshotHead
from msgspec import Meta

from .agents import Agent
from .dispatch import Job, default_environment, hand_over
from .guestfs import GUEST_CODE, Interpreter, View
from .lives import Host, Life
from .sizes import VM_MEMORY_RANGE
from .snapshots import Template, TemplateError, cell_config

VERSION = 1
MAX_FILES = 20_000
MAX_FILE = 1 << 30
_GUEST_CODE = "/run/agentfw/"
_SURVEY_BYTES = 8 << 20
_SURVEY_SECONDS = 120.0
_HEX = re.compile(r"[0-9a-f]{64}\Z")
_MODULE = re.compile(r"[^\W\d]\w*(\.[\w-]+)*\Z")

Path_ = Annotated[str, Meta(max_length=4096)]


class PythonFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`agentfw.guestfs.Interpreter`, as JSON."""

    executable: Path_
    version: tuple[int, int, int]
    full: Annotated[str, Meta(max_length=1000)]
    prefix: Path_
    base: Path_
    stdlib: Path_
    platstdlib: Path_
    path: Annotated[tuple[Path_, ...], Meta(max_length=1000)]
    libraries: Annotated[tuple[Path_, ...], Meta(max_length=1000)]

    @staticmethod
    def of(interpreter: Interpreter) -> PythonFacts:
        return PythonFacts(**asdict(interpreter))

    def interpreter(self) -> Interpreter:
        return Interpreter(**{each.name: getattr(self, each.name) for each in fields(Interpreter)})


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a snapshot's file with SHA-256 `digest` and `size` bytes. `created`: seconds since the epoch; `needs`: CPU features;
    `modules`: imported in it; `files`: guest path -> SHA-256 of what it was loaded from."""

    version: int
    digest: Annotated[str, Meta(pattern=_HEX.pattern.replace("\\Z", "$"))]
    size: Annotated[int, Meta(ge=1, le=16 << 30)]
    created: Annotated[int, Meta(ge=0, le=1 << 40)]
    agentfw: Annotated[str, Meta(max_length=100)]
    format: int
    abi: int
    python: PythonFacts
    environment: Annotated[dict[str, Annotated[str, Meta(max_length=1 << 17)]], Meta(max_length=1000)]
    preload: Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=1000)]
    memory: Annotated[int, Meta(ge=VM_MEMORY_RANGE[0], le=VM_MEMORY_RANGE[1])]
    cpu_vendor: Annotated[str, Meta(max_length=16)]
    needs: Annotated[tuple[Annotated[str, Meta(max_length=40)], ...], Meta(max_length=256)]
    modules: Annotated[tuple[Annotated[str, Meta(max_length=500)], ...], Meta(max_length=MAX_FILES)]
    files: Annotated[dict[Path_, str], Meta(max_length=MAX_FILES)]

    def json(self) -> bytes:
        """The same bytes for the same manifest."""
        return msgspec.json.encode(self, order="deterministic")

    @staticmethod
    def parse(data: bytes) -> Manifest:
        """ValueError with what is wrong: whoever wrote it may be anybody."""
        try:
            found = msgspec.json.decode(data, type=Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"its manifest cannot be read: {str(error)[:200]}") from None
        if found.version != VERSION:
            raise ValueError(f"its manifest is of version {found.version}; this agentfw reads {VERSION}")
        facts = found.python
        paths = (*found.files, facts.executable, facts.prefix, facts.base, facts.stdlib, facts.platstdlib)
        for path in (*paths, *facts.path, *facts.libraries):
            if not _plain(path):
                raise ValueError(f"its manifest has a bad path: {path[:200]!r}")
        if found.size > found.memory + (256 << 20):
            raise ValueError("its manifest tells more bytes than its VMs have memory")
        if not all(_HEX.match(value) for value in found.files.values()):
            raise ValueError("its manifest has a bad digest")
        texts = (*found.environment, *found.environment.values(), *found.needs, *found.preload, found.agentfw, found.cpu_vendor)
        if any("\0" in text for text in texts) or any(not name or "=" in name for name in found.environment):
            raise ValueError("its manifest has a bad variable or text")
        shown = (*found.modules, *found.needs, found.agentfw, found.cpu_vendor, facts.full.replace("\n", " "))
        if not all(text.isprintable() for text in shown):
            raise ValueError("its manifest has a text that cannot be shown")
        if not all(_MODULE.match(name) for name in found.preload):
            raise ValueError("its manifest has a bad name of a module")
        return found

    def agrees(self, head: SnapshotHead) -> str | None:
        """What of the file's head it tells otherwise, or None."""
        same = {
            "size": (self.size, head.size),
            "format": (self.format, head.format),
            "ABI": (self.abi, head.abi),
            "memory": (self.memory, head.memory),
            "CPU vendor": (self.cpu_vendor, head.cpu_vendor),
            "CPU features": (self.needs, head.needs),
        }
        return next((name for name, (told, found) in same.items() if told != found), None)


def _plain(path: str) -> bool:
    """Absolute, as `normpath` has it, printable."""
    return path.startswith("/") and not path.startswith("//") and os.path.normpath(path) == path and path.isprintable()


# ---- making one


async def survey(template: Template, snapshot: Path, key: bytes) -> tuple[list[str], list[str]]:
    """Restore it once, and ask: -> names of the modules in it, guest paths of the files that they and its libraries came from.
    TemplateError: it does not restore or does not answer."""
    host = Host(None)
    try:
        host.cell = await Cell.start(cell_config(template, vms=1, runners=1, snapshot_in=snapshot, key=key), host)
    except CellError as error:
        raise TemplateError(str(error), "run `agentfw doctor`") from None
    try:
        life = host.lives[0] = Life(Agent("survey", "survey"), host, 0)
        host.cell.restore(0, 1000)
        host.cell.stream(0, 0).send_eof()
        try:
            await hand_over(host.cell.stream(0, 3), Job("code", _SURVEY, (), default_environment(), template.view.cwd))
            text = await asyncio.wait_for(_output(host.cell), _SURVEY_SECONDS)
            end = await asyncio.wait_for(asyncio.shield(life.exited), _SURVEY_SECONDS)
        except (EOFError, BrokenPipeError):
            end, text = await asyncio.wait_for(asyncio.shield(life.exited), _SURVEY_SECONDS), b""
        except (TimeoutError, ValueError) as error:
            raise TemplateError(f"the snapshot does not answer: {error or 'nothing came'}") from None
    finally:
        await host.cell.close()
    if (end.kind, end.code) != ("code", 0):
        raise TemplateError(_why(end))
    return _surveyed(text)


def _why(end: VmExit) -> str:
    return end.text if end.text.startswith("snapshot: ") else f"the snapshot does not run: {end.text}"


#: Names of modules, then files; what is said is as hostile as a module that was preloaded may be.
_SURVEY = """
import sys
for name, module in sorted(sys.modules.items()):
    if name != '__main__' and name.isprintable():
        print('m', name)
        file = getattr(module, '__file__', None)
        if isinstance(file, str) and file.isprintable():
            print('f', file)
with open('/proc/self/maps') as maps:
    for line in maps:
        parts = line.split(None, 5)
        if len(parts) == 6 and parts[5].startswith('/'):
            print('f', parts[5].strip())
"""


async def _output(cell: Cell) -> bytes:
    data = bytearray()
    stream = cell.stream(0, 1)
    while part := await stream.receive():
        data += part
        if len(data) > _SURVEY_BYTES:
            raise ValueError("it says too much")
    return bytes(data)


def _surveyed(text: bytes) -> tuple[list[str], list[str]]:
    modules: set[str] = set()
    files: set[str] = set()
    for line in text.decode("utf-8", "replace").splitlines():
        kind, _, value = line.partition(" ")
        if kind == "m" and len(value) <= 500:
            modules.add(value)
        # Code only. Of data (locales), what was read is in the memory, and nothing that comes later depends on it.
        elif kind == "f" and _plain(value) and len(value) <= 4096 and (value.endswith(".py") or ".so" in Path(value).name):
            files.add(value)
    if len(modules) > MAX_FILES or len(files) > MAX_FILES:
        raise TemplateError(f"more than {MAX_FILES} modules or files are in the snapshot")
    return sorted(modules), sorted(files)


async def describe(template: Template, snapshot: Path, key: bytes, head: SnapshotHead, digest: str, created: int) -> Manifest:
    """The manifest of a snapshot that was made here."""
    modules, loaded = await survey(template, snapshot, key)
    files = _digests(template.interpreter, loaded)
    return Manifest(
        version=VERSION,
        digest=digest,
        size=head.size,
        created=created,
        agentfw=agentfw_version(),
        format=head.format,
        abi=head.abi,
        python=PythonFacts.of(template.interpreter),
        environment=dict(sorted(template.environment.items())),
        preload=template.preload,
        memory=template.memory,
        cpu_vendor=head.cpu_vendor,
        needs=head.needs,
        modules=tuple(modules),
        files=files,
    )


def _digests(interpreter: Interpreter, loaded: list[str]) -> dict[str, str]:
    own = [_GUEST_CODE + file.name for file in GUEST_CODE.glob("*.py")]
    paths = {os.path.realpath(interpreter.executable), *interpreter.libraries, *loaded, *own}
    return {path: found for path in sorted(paths) if (found := file_digest(path)) is not None}


def agentfw_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("agentfw")
    except PackageNotFoundError:
        return "?"


# ---- holding one against this host


def host_path(path: str) -> str:
    """Where the host has the guest's file."""
    return str(GUEST_CODE / path.removeprefix(_GUEST_CODE)) if path.startswith(_GUEST_CODE) else path


def file_digest(path: str) -> str | None:
    """SHA-256 of the guest's file `path` on this host; None: there is no such regular file. Never waits for a device or pipe."""
    try:
        descriptor = os.open(host_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE:
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return None


def identities(paths: Iterable[str]) -> str:
    """One digest of size, times and inode of all of them: unchanged files need not be read again."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        try:
            found = Path(host_path(path)).stat()
            line = f"{path} {found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
        except OSError:
            line = f"{path} -"
        digest.update(line.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def differences(files: Mapping[str, str], view: View) -> list[str]:
    """What of `files` this host has not: "PATH: other content", "PATH: not here". Reads them all. Only what agents may see anyway
    is looked at, whoever made the list."""
    found = []
    for path, digest in sorted(files.items()):
        if not path.startswith(_GUEST_CODE) and not (view.covered(path) or view.shows(path)):
            found.append(f"{path}: agents do not see it here")
            continue
        here = file_digest(path)
        if here != digest:
            found.append(f"{path}: {'not here' if here is None else 'other content'}")
    return found


def same_python(facts: PythonFacts, here: Interpreter) -> str | None:
    """What differs between the Python that a snapshot was made with and one of this host: "its prefix is ..., here ...", or
    None."""
    ours = PythonFacts.of(here)
    names = {"full": "version", "base": "base prefix", "path": "sys.path"}
    for each in PythonFacts.__struct_fields__:
        told, found = getattr(facts, each), getattr(ours, each)
        if each == "libraries":  # what a probe maps besides; their content is in `files`
            continue
        if told != found:
            return f"its {names.get(each, each)} is {_shown(told)}, here {_shown(found)}"
    return None


def _shown(value: object) -> str:
    text = ".".join(map(str, value)) if isinstance(value, tuple) and value and isinstance(value[0], int) else str(value)
    return " ".join(text.split())[:200]
