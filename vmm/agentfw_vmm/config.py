"""What a cell is told before it starts, and its form on the wire (records of cell.h)."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from .errors import CellError
from .in_memory import InMemory
from .saved import SavedVm
from .trace import Tracer, plan

_END, _MOUNT, _FILE, _PROGRAM, _ARG, _ENV, _MEMORY, _SNAPSHOT_IN, _SNAPSHOT_OUT, _SLICE, _TRACE, _TMP, _SYMLINK, _KEY = range(14)
_HOT_IN, _HOT_OUT, _ALIAS, _RECYCLE, _SAVE, _SAVED = range(14, 20)


@dataclass(frozen=True)
class Mount:
    """A host file or directory that guests see at `guest_path` (absolute).

    system: only what "other" may read is shown, so that a cell run by root does not show /etc/shadow.
    """

    guest_path: str
    host_path: Path | str
    writable: bool = False
    system: bool = False


@dataclass
class CellConfig:
    """All that a cell and the VMs in it get to know.

    vms: VMs it may hold at once (1..64). runners: threads (1..4). memory: bytes a VM may commit. files: synthetic read-only
    files by guest path, content or (mode, content). program, argv, env: what BOOT runs. snapshot_in: what RESTORE maps,
    or goes on from;
    snapshot_out: where a booted VM is saved at its ready call. hot_in: pages to populate at each restore, as the
    cell of a rehearsal wrote them to its hot_out. key: 32 bytes that a snapshot must carry (b"": zeros).
    tmp_bytes, tmp_inodes: limits of each VM's private /tmp, /var/tmp and /dev/shm; private_dirs: guest paths of further private
    directories, e.g. the home directory. recycle: a VM that ended is kept, with up to `recycle_pages` pages of 4 KiB of what it
    changed, until the next restore() puts it back or discard() frees it. trace: who is told of the VMs' system calls (not of
    those of a VM that is booted to be saved).
    """

    vms: int = 1
    runners: int = 1
    memory: int = 512 << 20
    mounts: list[Mount] = field(default_factory=list)
    files: Mapping[str, bytes | tuple[int, bytes]] = field(default_factory=dict)
    symlinks: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    argv: list[str] = field(default_factory=list)
    env: Mapping[str, str] = field(default_factory=dict)
    snapshot_in: Path | InMemory | SavedVm | None = None
    snapshot_out: Path | None = None
    hot_in: Path | None = None
    hot_out: Path | None = None
    key: bytes = b""
    tmp_bytes: int = 256 << 20
    tmp_inodes: int = 10_000
    private_dirs: list[str] = field(default_factory=list)
    recycle: bool = False
    recycle_pages: int = 1024
    trace: Tracer | None = None
    slice_ns: int = 0  # 0: the cell's default


def _record(kind: int, payload: bytes) -> bytes:
    return struct.pack("<II", kind, len(payload)) + payload + bytes(-len(payload) % 8)


def _guest(path: str) -> bytes:
    raw = os.fsencode(path)
    if not PurePosixPath(path).is_absolute() or b"\0" in raw or len(raw) > 4095:
        raise CellError(f"not an absolute guest path: {path!r}")
    return raw


def _aliases(mounts: list[Mount]) -> list[tuple[bytes, bytes]]:
    """Pairs of guest paths under which guests find the same host files, because mounts overlap."""
    real = [(os.path.realpath(mount.host_path), "/".join(["", *_names(mount.guest_path)])) for mount in mounts]
    found: set[tuple[bytes, bytes]] = set()
    for outer, outside in real:
        for inner, inside in real:
            if inner == outer or inner.startswith(outer.rstrip("/") + "/"):
                beneath = outside + inner[len(outer.rstrip("/")) :].rstrip("/")
                if beneath != inside:
                    one, other = sorted((os.fsencode(beneath), os.fsencode(inside)))
                    found.add((one, other))
    return sorted(found)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _string(text: str) -> bytes:
    raw = os.fsencode(text)
    if b"\0" in raw:
        raise CellError(f"NUL in argument or environment: {text!r}")
    return raw


def _open(path: os.PathLike[str] | str, flags: int, opened: list[int]) -> int:
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CellError(f"{os.fspath(path)}: {error.strerror}") from None
    opened.append(fd)
    return fd


def encode(config: CellConfig, opened: list[int], save: int = -1, trace: int = -1) -> bytes:
    """The configuration as records; descriptors it names are appended to `opened`, to be inherited and then closed.

    The snapshot's paths are opened here, so that a cell needs no path of the host. `save`: descriptor of the file for VMs that
    are saved. CellError for what cannot be.
    """
    if config.key and len(config.key) != 32:
        raise CellError(f"snapshot key of {len(config.key)} bytes instead of 32")
    parts = [_record(_MEMORY, struct.pack("<Q", config.memory))]
    private = b"".join(_guest(path) + b"\0" for path in config.private_dirs)
    parts.append(_record(_TMP, struct.pack("<QQ", config.tmp_bytes, config.tmp_inodes) + private))
    for mount in config.mounts:
        fd = _open(mount.host_path, os.O_PATH, opened)
        parts.append(_record(_MOUNT, struct.pack("<II", fd, mount.writable | mount.system << 1) + _guest(mount.guest_path)))
    for one, other in _aliases(config.mounts):
        parts.append(_record(_ALIAS, struct.pack("<I", len(one)) + one + other))
    for path, content in config.files.items():
        mode, data = content if isinstance(content, tuple) else (0o444, content)
        name = _guest(path)
        parts.append(_record(_FILE, struct.pack("<II", mode, len(name)) + name + data))
    for path, target in config.symlinks.items():
        name = _guest(path)
        parts.append(_record(_SYMLINK, struct.pack("<I", len(name)) + name + _string(target)))
    if config.program:
        parts.append(_record(_PROGRAM, _guest(config.program)))
    parts += [_record(_ARG, _string(argument)) for argument in config.argv]
    parts += [_record(_ENV, _string(f"{name}={value}")) for name, value in config.env.items()]
    if save >= 0:
        parts.append(_record(_SAVE, struct.pack("<I", save)))
    if isinstance(config.snapshot_in, SavedVm):
        if config.snapshot_in.fd < 0:
            raise CellError("the saved VM was closed")
        for kind, fd in ((_SNAPSHOT_IN, config.snapshot_in.base), (_SAVED, config.snapshot_in.fd)):
            opened.append(os.dup(fd))
            parts.append(_record(kind, struct.pack("<I", opened[-1])))
    elif config.snapshot_in is not None:
        parts.append(_record(_SNAPSHOT_IN, struct.pack("<I", _open(config.snapshot_in, os.O_RDONLY, opened))))
    if config.snapshot_out is not None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        parts.append(_record(_SNAPSHOT_OUT, struct.pack("<I", _open(config.snapshot_out, flags, opened))))
    if config.hot_in is not None:
        parts.append(_record(_HOT_IN, struct.pack("<I", _open(config.hot_in, os.O_RDONLY, opened))))
    if config.hot_out is not None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        parts.append(_record(_HOT_OUT, struct.pack("<I", _open(config.hot_out, flags, opened))))
    if config.key:
        parts.append(_record(_KEY, config.key))
    if config.recycle:
        if not 0 < config.recycle_pages < 1 << 32:
            raise CellError(f"recycle_pages of {config.recycle_pages}: expected at least 1")
        parts.append(_record(_RECYCLE, struct.pack("<I", config.recycle_pages)))
    if config.slice_ns:
        parts.append(_record(_SLICE, struct.pack("<Q", config.slice_ns)))
    if config.trace is not None and trace >= 0:
        parts.append(_record(_TRACE, plan(trace, config.trace.copies())))
    parts.append(_record(_END, b""))
    return b"".join(parts)
