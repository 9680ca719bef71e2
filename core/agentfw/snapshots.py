"""Template snapshots: made once for each interpreter and environment, kept in the user's cache, content-addressed.

A template is the interpreter, its libraries, the bootstrap, the cell and shim, and what the VM may see while it starts; the key
is a digest of all of it. Files appear atomically and are never changed; a lock keeps two commands from building the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import agentfw_vmm
from agentfw_vmm import Cell, CellConfig, CellError, GuestFlow, VmExit

from .errors import AgentfwError
from .guestfs import GUEST_CODE, Interpreter, View
from .homes import home
from .texts import shown

FORMAT = 2
"""Part of every key: raise it when something that the key does not see changes."""
KEEP = 12
"""Snapshots kept; of more, those not used for the longest time go."""
BUILD_SECONDS = 180.0
_NOT_IMPORTED = {
    "__pycache__",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "lib2to3",
    "ensurepip",
    "turtledemo",
}

Progress = Callable[[str, float | None], AbstractContextManager[None]]
"""(what is being done, seconds it took last time or None) -> a context shown meanwhile."""


@contextlib.contextmanager
def quiet(what: str, seconds: float | None) -> Iterator[None]:
    """A `Progress` that shows nothing."""
    yield


class TemplateError(AgentfwError):
    """The template could not be made. `hint`: what to do; `status`: exit code of `agentfw run`."""

    def __init__(self, message: str, hint: str = "", status: int = 125) -> None:
        self.hint = hint
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class Ready:
    """A snapshot that is there already and has a name (`agentfw.snapshot_library`)."""

    name: str
    path: Path
    key: bytes


@dataclass(frozen=True)
class Template:
    """What a snapshot is made of. `environment`: the variables the interpreter starts with; `preload`: modules it imports besides
    its usual ones; `memory`: bytes a VM may use; `ready`: it is not made, but this one."""

    interpreter: Interpreter
    view: View
    environment: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    memory: int = 512 << 20
    ready: Ready | None = None

    def key(self) -> bytes:
        """32 bytes."""
        if self.ready is not None:
            return self.ready.key
        digest = hashlib.sha256()
        for part in self._parts():
            digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
        for path, content in sorted(self.view.files.items()):
            digest.update(path.encode() + repr(content).encode())
        for file in (Path(agentfw_vmm.__file__).with_name("agentfw-cell"), *sorted(GUEST_CODE.glob("*.py"))):
            with contextlib.suppress(FileNotFoundError):
                digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
        return digest.digest()

    def _parts(self) -> Iterator[str]:
        it = self.interpreter
        yield f"{FORMAT} {self.memory} {json.dumps(sorted(self.environment.items()))} {json.dumps(self.preload)}"
        yield from (it.executable, it.full, it.prefix, it.base, it.stdlib, json.dumps(it.path), _processor())
        for name in (it.executable, os.path.realpath(it.executable), *it.libraries, "/etc/ld.so.cache"):
            yield _identity(name)
        for directory in {it.stdlib, it.platstdlib}:
            yield from _tree(directory)
        tops = {name.partition(".")[0] for name in self.preload}
        for directory in it.path:
            if directory in (it.stdlib, it.platstdlib):
                continue
            directory = self._on_host(directory)
            yield _identity(directory)
            for name in _names(directory):
                if name.endswith(".pth"):
                    yield name + Path(directory, name).read_text(errors="replace")
                elif name.partition(".")[0] in tops or name in ("sitecustomize.py", "usercustomize.py"):
                    yield from _tree(f"{directory}/{name}")

    def _on_host(self, path: str) -> str:
        """What the guest sees there: a module to preload may come by a mount."""
        above = path
        while above not in ("", "/"):
            mount = self.view.mounts.get(above)
            if mount is not None:
                return f"{mount.host_path}{path[len(above) :]}"
            above = os.path.dirname(above)
        return path


def _identity(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return f"{path} -"
    return f"{path} {found.st_size} {found.st_mtime_ns} {found.st_ino}"


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _tree(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield _identity(path)
        return
    for place, directories, files in os.walk(path):
        directories[:] = sorted(name for name in directories if name not in _NOT_IMPORTED)
        for name in sorted(files):
            yield _identity(f"{place}/{name}")


def _processor() -> str:
    """Vendor, model and flags of the first processor: a snapshot is used on such machines only."""
    wanted = ("vendor_id", "cpu family", "model\t", "stepping", "flags")
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            first = file.read().split("\n\n")[0]
    except OSError:
        return ""
    return "\n".join(line for line in first.splitlines() if line.startswith(wanted))


class SnapshotStore:
    """`$XDG_CACHE_HOME/agentfw/snapshots`, private to the user."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or cache_directory() / "snapshots"

    def path(self, key: bytes) -> Path:
        return self.directory / f"{key.hex()[:40]}.snapshot"

    async def get(
        self, template: Template, progress: Progress, log: Callable[[str], None] = lambda line: None
    ) -> tuple[Path, bytes]:
        """The snapshot of `template` and its key, built now if there is none. TemplateError with what went wrong; `log` gets what
        the interpreter printed meanwhile."""
        if template.ready is not None:
            if not self._usable(template.ready.path):
                raise TemplateError(f"the snapshot `{template.ready.name}` is gone", "see `agentfw snapshot ls`")
            return template.ready.path, template.ready.key
        key = await asyncio.to_thread(template.key)  # looks at thousands of files: jobs of other templates run on meanwhile
        path = self.path(key)
        if self._usable(path):
            return path, key
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.directory / f"{path.stem}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            text = f"cannot write to the snapshot cache {self.directory}: {error.strerror}"
            raise TemplateError(text, "set XDG_CACHE_HOME to a directory you can write to") from None
        try:
            with progress("preparing Python for the first run", self._last_seconds()):
                await _locked(lock)
                if not self._usable(path):
                    await self._build(template, key, path, log)
        finally:
            os.close(lock)
        return path, key

    def hot_path(self, key: bytes) -> Path:
        """Which pages of the snapshot every run writes, as a rehearsal recorded it (vmm/native/cell/hot.c); it may be missing."""
        return self.path(key).with_suffix(".hot")

    def discard(self, key: bytes) -> None:
        """Forget a snapshot that turned out to be of no use."""
        self.path(key).unlink(missing_ok=True)
        self.hot_path(key).unlink(missing_ok=True)

    def clear(self) -> tuple[int, int]:
        """Remove all. -> (files, bytes)"""
        count = size = 0
        for file in self.directory.glob("*") if self.directory.is_dir() else ():
            with contextlib.suppress(OSError):
                if file.suffix == ".snapshot":
                    count, size = count + 1, size + file.stat().st_blocks * 512
                file.unlink()
        return count, size

    def _usable(self, path: Path) -> bool:
        """Ours, complete (they appear by rename); notes the use."""
        try:
            found = path.stat()
        except OSError:
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022 or not found.st_size:
            return False
        with contextlib.suppress(OSError):
            os.utime(path)
        return True

    def _last_seconds(self) -> float | None:
        try:
            return float((self.directory / "seconds").read_text())
        except (OSError, ValueError):
            return None

    async def _build(self, template: Template, key: bytes, path: Path, log: Callable[[str], None]) -> None:
        self._sweep()
        started = time.monotonic()
        part = path.with_name(f"{path.stem}.{os.getpid()}.part")
        try:
            await build(template, key, part, log)
            part.chmod(0o400)
            self.hot_path(key).unlink(missing_ok=True)
            part.rename(path)
        except OSError as error:
            text = f"cannot put a snapshot into {self.directory}: {error.strerror}"
            raise TemplateError(text, "`agentfw cache clear`, or set XDG_CACHE_HOME to another directory") from None
        finally:
            part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self.directory / "seconds").write_text(f"{time.monotonic() - started:.1f}")

    def _sweep(self) -> None:
        """Left-overs of killed commands, and the oldest snapshots."""
        for file in self.directory.glob("*.part"):
            owner = file.stem.rpartition(".")[2]
            if not owner.isdigit() or not Path("/proc", owner).exists():
                file.unlink(missing_ok=True)

        def used(file: Path) -> float:
            with contextlib.suppress(OSError):
                return file.stat().st_mtime
            return 0.0

        for file in sorted(self.directory.glob("*.snapshot"), key=used, reverse=True)[KEEP - 1 :]:
            file.unlink(missing_ok=True)
            file.with_suffix(".lock").unlink(missing_ok=True)
            file.with_suffix(".hot").unlink(missing_ok=True)


def data_directory() -> Path:
    """For what is not made anew when it is gone. ConfigError if nobody says where."""
    return Path(os.environ.get("XDG_DATA_HOME") or home("XDG_DATA_HOME") / ".local/share") / "agentfw"


def cache_directory() -> Path:
    """ConfigError if nobody says where."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home("XDG_CACHE_HOME") / ".cache") / "agentfw"


async def _locked(descriptor: int) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(0.05)


# ---- building


class _Builder:
    """CellHandler of a template: one VM that stops at its ready call."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def vm_ready(self, vm: int, snapshot_bytes: int, error: int) -> None:
        if not self.ready.done():
            self.ready.set_result((snapshot_bytes, error))

    def flow_opened(self, flow: GuestFlow) -> None:
        """Nothing of the network goes into a snapshot."""
        flow.failed(101)  # ENETUNREACH

    def vm_exited(self, vm: int, report: VmExit) -> None:
        if not self.ended.done():
            self.ended.set_result(report.text)

    def cell_failed(self, text: str) -> None:
        if not self.ended.done():
            self.ended.set_result(text)


def cell_config(template: Template, **more: object) -> CellConfig:
    """The configuration that templates and fleets have in common."""
    view, interpreter = template.view, template.interpreter
    environment = {**template.environment, "AGENTFW_PRELOAD": ",".join(template.preload)}
    if not template.preload:
        del environment["AGENTFW_PRELOAD"]
    config = CellConfig(
        memory=template.memory,
        mounts=list(view.mounts.values()),
        files=view.files,
        symlinks=view.symlinks,
        private_dirs=list(view.private),
        program=interpreter.executable,
        argv=[interpreter.executable, "/run/agentfw/bootstrap.py"],
        env=environment,
    )
    for name, value in more.items():
        setattr(config, name, value)
    return config


async def build(template: Template, key: bytes, path: Path, log: Callable[[str], None]) -> None:
    """Boot the interpreter in a VM of its own cell, and save it to `path` where it is ready."""
    builder = _Builder()
    try:
        cell = await Cell.start(cell_config(template, vms=1, runners=1, snapshot_out=path, key=key), builder)
    except CellError as error:
        raise TemplateError(str(error), "run `agentfw doctor`") from None
    output: list[bytes] = []
    try:
        cell.boot(0)
        cell.stream(0, 0).send_eof()
        readers = [asyncio.ensure_future(_collect(cell.stream(0, index), output)) for index in (1, 2)]
        await asyncio.wait((builder.ready, builder.ended), timeout=BUILD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if builder.ended.done():
            await asyncio.wait(readers, timeout=5)
        for reader in readers:
            reader.cancel()
    finally:
        await cell.close()
    lines = b"".join(output).decode("utf-8", "backslashreplace").strip().splitlines()
    for line in lines:
        log(line)
    if builder.ready.done():
        size, errno = builder.ready.result()
        if errno:
            raise TemplateError(f"cannot save the snapshot {path.name}: {os.strerror(errno)}")
        if not size:
            raise TemplateError("the snapshot came out empty")
        return
    if not builder.ended.done():
        raise TemplateError(f"Python was not ready in the VM after {BUILD_SECONDS:.0f} s", "run `agentfw run -v` to see more")
    reason = next((line.removeprefix("agentfw: ") for line in lines if line.startswith("agentfw: ")), "")
    if reason:
        here = f"the agents' Python is {shown(template.interpreter.executable, 200)}"
        hint = f"{here}: install it there, or name another with `--python`" if "ModuleNotFoundError" in reason else here
        raise TemplateError(reason, hint, status=126)
    raise TemplateError(f"Python did not start in the VM: {lines[-1] if lines else builder.ended.result()}")


async def _collect(flow: GuestFlow, output: list[bytes]) -> None:
    size = 0
    while data := await flow.receive():
        if size < 1 << 20:
            output.append(data)
            size += len(data)
