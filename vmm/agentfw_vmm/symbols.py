"""From an address in a mapped file to `libfoo.so+0x123 (symbol)`."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path, PurePosixPath

from .config import Mount

_SECTION_MAX = 16 << 20  # of a symbol table: a guest may have made the file up, and reading it is our time
_FUNC, _IFUNC, _NOTYPE = 2, 10, 0


def locate(module: str, rip: int, map_start: int, map_offset: int, mounts: list[Mount]) -> str:
    """`name+0xoffset (symbol)`; the offset is the ELF address, as `addr2line -e` takes it, or else the offset in the file."""
    name = PurePosixPath(module).name or module
    offset = rip - map_start + map_offset
    if offset < 0:
        return name
    host = host_path(module, mounts)
    if host is not None:
        try:
            address, symbol = _lookup(host, offset)
            return f"{name}+{address:#x}" + (f" ({symbol})" if symbol else "")
        except (OSError, ValueError, OverflowError, struct.error):
            pass  # not a sound ELF file: the plain offset must do
    return f"{name}+{offset:#x}"


def host_path(guest: str, mounts: list[Mount]) -> Path | None:
    """The host's file behind a guest path. None if no mount holds it, or if links lead out of the mount."""
    path = PurePosixPath(guest)
    best: tuple[int, Path, Path] | None = None
    for mount in mounts:
        base = PurePosixPath(mount.guest_path)
        if path.is_relative_to(base) and (best is None or len(base.parts) > best[0]):
            root = Path(mount.host_path)
            best = (len(base.parts), root, root / path.relative_to(base))
    if best is None:
        return None
    try:
        root, host = best[1].resolve(strict=True), best[2].resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return host if host.is_relative_to(root) else None


def _lookup(path: Path, offset: int) -> tuple[int, str]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a file")
        return _lookup_in(fd, offset)
    finally:
        os.close(fd)


def _lookup_in(fd: int, offset: int) -> tuple[int, str]:
    """Virtual address of a file offset, and the symbol around it. pread, not mmap: the file may shrink under us."""
    head = os.pread(fd, 64, 0)
    if head[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    phoff, shoff, phentsize, phnum, shentsize, shnum = _header(head)
    address = None
    for index in range(phnum):
        kind, _, at, vaddr, _, size = struct.unpack("<IIQQQQ", os.pread(fd, 40, phoff + index * phentsize))
        if kind == 1 and at <= offset < at + size:
            address = vaddr + offset - at
    if address is None:
        raise ValueError("offset in no segment")
    sections = [struct.unpack("<IIQQQQIIQQ", os.pread(fd, 64, shoff + index * shentsize)) for index in range(shnum)]
    best = (-1, "")
    for kind in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM: a file has one of each at most
        section = next((section for section in sections if section[1] == kind), None)
        if section is not None and section[6] < len(sections):
            best = max(best, _nearest(_section(fd, section), _section(fd, sections[section[6]]), address))
    return address, best[1]


def _header(head: bytes) -> tuple[int, int, int, int, int, int]:
    phoff, shoff = struct.unpack_from("<QQ", head, 32)
    phentsize, phnum, shentsize, shnum = struct.unpack_from("<HHHH", head, 54)
    return phoff, shoff, phentsize, phnum, shentsize, shnum


def _section(fd: int, section: tuple[int, ...]) -> bytes:
    offset, size = section[4], section[5]
    return os.pread(fd, size, offset) if size <= _SECTION_MAX else b""


def _nearest(table: bytes, strings: bytes, address: int) -> tuple[int, str]:
    best, best_name = -1, 0
    for name, info, _, index, value, size in struct.iter_unpack("<IBBHQQ", table[: len(table) // 24 * 24]):
        if best < value <= address and index and info & 15 in (_FUNC, _IFUNC, _NOTYPE) and (address < value + size or not size):
            best, best_name = value, name
    if best < 0:
        return -1, ""
    raw = strings[best_name : strings.find(b"\0", best_name)]
    return best, "".join(c if c.isprintable() else "?" for c in raw[:200].decode("utf-8", "replace"))
