"""Snapshots with names, kept until they are removed: made here, or brought from another machine.

    $XDG_DATA_HOME/agentfw/snapshots/DIGEST.snapshot    the file; DIGEST is its SHA-256
                                     DIGEST.json        its manifest (`agentfw.manifests`)
                                     names/NAME         the digest it stands for

Files appear by rename, with mode 0600 in a directory of mode 0700, and are never changed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
from agentfw_vmm.heads import SnapshotError, SnapshotHead, read_head

from .dispatch import template_environment
from .guestfs import Interpreter, base_view, find_interpreter
from .hints import did_you_mean
from .manifests import Manifest, PythonFacts, describe, differences, identities, same_python, survey
from .snapshots import Progress, Ready, SnapshotStore, Template, TemplateError, data_directory

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_DIGEST = re.compile(r"[0-9a-f]{8,64}\Z")
_PIECE = 1 << 20
_REBUILD = "make it anew with `agentfw snapshot build`, or import it again"


@dataclass(frozen=True)
class Named:
    """`used`: when it was last restored from, seconds since the epoch; `disk`: bytes it takes there."""

    name: str
    path: Path
    manifest: Manifest
    used: float
    disk: int


class Library:
    """The named snapshots of this user. Its methods raise TemplateError for what is not there or does not fit."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or data_directory() / "snapshots"

    # -- looking

    def all(self) -> list[Named]:
        """By name. Names whose files are gone or damaged are left out."""
        found = []
        for file in sorted((self.directory / "names").glob("*")):
            if NAME.match(file.name):
                with contextlib.suppress(TemplateError):
                    found.append(self.find(file.name))
        return found

    def find(self, name: str) -> Named:
        """By name, or by the first eight or more digits of its digest."""
        digest = self._digest(name)
        path = self.directory / f"{digest}.snapshot"
        try:
            manifest = Manifest.parse((self.directory / f"{digest}.json").read_bytes())
            found = path.stat()
        except OSError as error:
            raise TemplateError(f"the snapshot `{name}` is damaged: {error.strerror}: {error.filename}", _REBUILD) from None
        except ValueError as error:
            raise TemplateError(f"the snapshot `{name}` is damaged: {error}", _REBUILD) from None
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise TemplateError(f"the snapshot `{name}` is not used: others may write to {path}", f"chmod 600 {path}")
        if manifest.digest != digest or manifest.size != found.st_size:
            raise TemplateError(f"the snapshot `{name}` is damaged: its manifest is another's", _REBUILD)
        return Named(name, path, manifest, found.st_mtime, found.st_blocks * 512)

    def _digest(self, name: str) -> str:
        names = self._names()
        if name in names:
            return names[name]
        if _DIGEST.match(name):
            found = {digest for digest in names.values() if digest.startswith(name)}
            if len(found) == 1:
                return found.pop()
            if found:
                raise TemplateError(f"several snapshots begin with `{name}`", "name more digits")
        raise TemplateError(
            f"there is no snapshot `{name[:100]}`",
            did_you_mean(name, names) or "see `agentfw snapshot ls`; `agentfw snapshot build` makes one",
        )

    def _names(self) -> dict[str, str]:
        found = {}
        for file in (self.directory / "names").glob("*"):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                digest = file.read_text("ascii").strip()
                if NAME.match(file.name) and re.fullmatch(r"[0-9a-f]{64}", digest):
                    found[file.name] = digest
        return found

    def verify(self, named: Named) -> None:
        """Read all of it: is it what its digest says?"""
        try:
            with named.path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            head = read_head(named.path)
        except (OSError, SnapshotError) as error:
            raise TemplateError(f"the snapshot `{named.name}` is damaged: {error}", _REBUILD) from None
        if digest != named.manifest.digest:
            raise TemplateError(f"the snapshot `{named.name}` is damaged: its content is not that of its digest", _REBUILD)
        differs = named.manifest.agrees(head)
        if differs:
            raise TemplateError(f"the snapshot `{named.name}` is damaged: its manifest tells another {differs}", _REBUILD)

    # -- using

    def template(
        self,
        name: str,
        *,
        env: Mapping[str, str] | None = None,
        python: str | None = None,
        preload: Sequence[str] | None = None,
        memory: int | None = None,
    ) -> Template:
        """The template of a snapshot, with the basic view; what is asked for besides must be what it was made with. Its files are
        held against this host's: at once where they have not been touched since the last time."""
        named = self.find(name)
        manifest = named.manifest
        self._agree(named, env or {}, python, preload, memory)
        interpreter = manifest.python.interpreter()
        view = base_view(interpreter)
        looked_at = identities([*manifest.files, manifest.python.executable])
        checked = named.path.with_suffix(".checked")
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if checked.read_text("ascii") == looked_at:
                return self._template(named, interpreter)
        _refuse(name, differences(manifest.files, view))
        with contextlib.suppress(OSError):
            _write(checked, looked_at.encode("ascii"))
        return self._template(named, interpreter)

    def _template(self, named: Named, interpreter: Interpreter) -> Template:
        manifest = named.manifest
        try:
            key = read_head(named.path).key
        except (OSError, SnapshotError) as error:
            raise TemplateError(f"the snapshot `{named.name}` is damaged: {error}", _REBUILD) from None
        ready = Ready(named.name, named.path, key)
        return Template(interpreter, base_view(interpreter), manifest.environment, manifest.preload, manifest.memory, ready)

    def _agree(
        self, named: Named, env: Mapping[str, str], python: str | None, preload: Sequence[str] | None, memory: int | None
    ) -> None:
        manifest, name = named.manifest, named.name
        hint = f"leave that out, or `agentfw snapshot build` another (`agentfw snapshot show {name}` says what this one is)"
        if python is not None and str(Path(python).absolute()) != manifest.python.executable:
            raise TemplateError(f"the snapshot `{name}` is of the Python {manifest.python.executable}, not of {python}", hint)
        lacking = sorted(set(preload or ()) - set(manifest.preload) - set(manifest.modules))
        if lacking:
            raise TemplateError(f"the snapshot `{name}` was made without the module {lacking[0]}", hint)
        if memory is not None and memory != manifest.memory:
            raise TemplateError(f"the snapshot `{name}` is of VMs with {manifest.memory >> 20} MiB, not {memory >> 20}", hint)
        wanted = template_environment(env)
        for variable in sorted(env.keys() & wanted.keys()):
            if manifest.environment.get(variable) != wanted[variable]:
                raise TemplateError(f"Python read the variable {variable} before the snapshot `{name}` was made", hint)

    # -- changing

    async def build(
        self,
        name: str,
        template: Template,
        store: SnapshotStore,
        progress: Progress,
        log: Callable[[str], None],
        *,
        replace: bool,
    ) -> Named:
        """Make a snapshot of `template` (or take the cache's) and give it a name."""
        self._check_name(name)
        if not replace and name in self._names():
            raise TemplateError(f"there is a snapshot `{name}`", "`--replace` puts another in its place")
        source, key = await store.get(template, progress, log)
        with self._part() as part:
            try:
                _copy(source, part)
                digest = _file_digest(part)
                head = read_head(part)
            except (OSError, SnapshotError) as error:
                raise TemplateError(f"cannot keep the snapshot in {self.directory}: {error}") from None
            manifest = await describe(template, part, key, head, digest, int(time.time()))
            self._keep(name, part, manifest, replace)
        return self.find(name)

    async def take(
        self, name: str, part: Path, manifest: Manifest, *, python: str, env: Mapping[str, str], replace: bool, trial: bool
    ) -> Named:
        """Keep a file that came from elsewhere, `part` (of `self.part()`; its size and digest are the manifest's): it fits this
        host, and does what a snapshot does (`trial`). Nothing of the manifest decides what is run or shown here: `python` and
        `env` are what it must have been made with."""
        self._check_name(name)
        try:
            head = read_head(part)
        except SnapshotError as error:
            raise TemplateError(f"the archive holds no usable snapshot: {error}") from None
        differs = manifest.agrees(head)
        if differs:
            raise TemplateError(f"the archive is not to be trusted: its manifest tells another {differs} than its snapshot")
        names = self._names()
        if not replace and names.get(name, manifest.digest) != manifest.digest:
            raise TemplateError(f"there is another snapshot `{name}`", "name it with `--name`, or `--replace` that one")
        at_start = template_environment(env)
        if dict(manifest.environment) != at_start:
            names_ = {key for key, _ in set(manifest.environment.items()) ^ set(at_start.items())}
            variable = min(names_)
            told = manifest.environment.get(variable)
            raise TemplateError(
                f"the snapshot was made {f'with {variable}={told}' if told is not None else f'without the variable {variable}'}",
                "say with `--env` what it was made with, if that is right here",
            )
        here = find_interpreter(python, at_start)
        differs = same_python(manifest.python, here)
        if differs:
            raise TemplateError(f"the snapshot does not fit the Python {python}: {differs}", "name another one with `--python`")
        view = base_view(here)
        _refuse(name, differences(manifest.files, view))
        manifest = msgspec.structs.replace(manifest, python=PythonFacts.of(here))
        if trial:
            ready = Ready(name, part, head.key)
            await survey(Template(here, view, at_start, manifest.preload, manifest.memory, ready), part, head.key)
        self._keep(name, part, manifest, replace)
        return self.find(name)

    def remove(self, name: str) -> int:
        """The name, and the snapshot if it has no other; -> bytes of disk that this gave back."""
        with self._locked():
            digest = self._digest(name)
            names = self._names()
            gone = [each for each, of in names.items() if each == name or (name not in names and of == digest)]
            for each in gone:
                (self.directory / "names" / each).unlink(missing_ok=True)
            return self._drop(digest)

    def _drop(self, digest: str) -> int:
        if digest in self._names().values():
            return 0
        freed = 0
        for suffix in (".snapshot", ".json", ".checked"):
            file = self.directory / f"{digest}{suffix}"
            with contextlib.suppress(OSError):
                freed += file.stat().st_blocks * 512
                file.unlink()
        return freed

    def _keep(self, name: str, part: Path, manifest: Manifest, replace: bool) -> None:
        digest = manifest.digest
        try:
            with self._locked():
                old = self._names().get(name)
                if old is not None and old != digest and not replace:  # since it was looked at
                    raise TemplateError(f"there is another snapshot `{name}`", "`--replace` puts this one in its place")
                part.chmod(0o600)
                _write(self.directory / f"{digest}.json", manifest.json())
                part.rename(self.directory / f"{digest}.snapshot")
                _write(self.directory / "names" / name, digest.encode("ascii"))
                if old is not None and old != digest:
                    self._drop(old)
        except OSError as error:
            raise TemplateError(f"cannot keep the snapshot in {self.directory}: {error.strerror}") from None

    @contextlib.contextmanager
    def _part(self) -> Iterator[Path]:
        with self.part() as (path, file):
            file.close()
            yield path

    @contextlib.contextmanager
    def part(self) -> Iterator[tuple[Path, BinaryIO]]:
        """An empty file in the library's directory, removed at the end unless it was kept; left-overs of killed commands, too."""
        try:
            (self.directory / "names").mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.chmod(0o700)
            for old in self.directory.glob("*.part"):
                owner = old.name.partition(".")[0]
                if not owner.isdigit() or not Path("/proc", owner).exists():
                    old.unlink(missing_ok=True)
            path = self.directory / f"{os.getpid()}.{time.monotonic_ns()}.part"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            text = f"cannot write to {self.directory}: {error.strerror}"
            raise TemplateError(text, "set XDG_DATA_HOME to a directory you can write to") from None
        try:
            with os.fdopen(descriptor, "r+b") as file:
                yield path, file
        finally:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # there is no library yet
            yield
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @staticmethod
    def _check_name(name: str) -> None:
        if not NAME.match(name):
            raise TemplateError(f"`{name[:100]}` cannot be a name: letters, digits, `.`, `_`, `-`, at most 63")


def _refuse(name: str, found: list[str]) -> None:
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise TemplateError(
            f"the snapshot `{name}` does not fit this host: {found[0]}{more}", "`agentfw snapshot build` makes one here"
        )


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source: Path, target: Path) -> None:
    """A copy that keeps the holes."""
    with source.open("rb") as old, target.open("r+b") as new:
        size = os.fstat(old.fileno()).st_size
        at = 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # a hole to the end
                    break
                raise
            end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            old.seek(at)
            new.seek(at)
            shutil.copyfileobj(_Limited(old, end - at), new, _PIECE)
            at = end
        new.truncate(size)


class _Limited:
    def __init__(self, file: BinaryIO, left: int) -> None:
        self._file = file
        self._left = left

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size if size >= 0 else self._left, self._left))
        self._left -= len(data)
        return data


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f"{os.getpid()}.{time.monotonic_ns()}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


__all__ = ["NAME", "Library", "Named", "SnapshotHead"]
