"""A snapshot's file copied into memory, where the kernel can make huge pages of it (vmm/native/cell/huge.c)."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from weakref import WeakValueDictionary

_PIECE = 1 << 22


class InMemory(os.PathLike[str]):
    """A sealed copy, gone when nothing of this process and no cell holds it. Usable as `CellConfig.snapshot_in`."""

    def __init__(self, path: Path) -> None:
        """Costs 10 ms and the memory of the file's data, once for all cells of this process. OSError if there is no memory."""
        self.fd = -1
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.fd = os.memfd_create("agentfw-snapshot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            size = os.fstat(source).st_size
            os.ftruncate(self.fd, size)
            at = 0
            while at < size:
                try:
                    at = os.lseek(source, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # a hole to the end
                        break
                    raise
                end = os.lseek(source, at, os.SEEK_HOLE)
                while at < end:
                    data = os.pread(source, min(_PIECE, end - at), at)
                    if not data:
                        raise OSError(errno.EIO, "the snapshot became shorter")
                    at += os.pwrite(self.fd, data, at)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        finally:
            os.close(source)

    def __fspath__(self) -> str:
        return f"/proc/self/fd/{self.fd}"

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


_kept: WeakValueDictionary[tuple[int, int, int, int], InMemory] = WeakValueDictionary()


def in_memory(path: Path) -> InMemory | Path:
    """The copy of `path`, shared by all of this process that ask for the same file; `path` itself where there is no memory."""
    try:
        found = path.stat()
        key = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        copy = _kept.get(key)
        if copy is None:
            copy = _kept[key] = InMemory(path)
        return copy
    except OSError:
        return path
