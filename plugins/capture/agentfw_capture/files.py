"""A HAR file that grows: each entry is written over the end of the file, and the end behind it, so that it is a whole HAR file
whenever nobody writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from . import har

MODE = 0o600


class HarFile:
    """Used in one thread at a time. `only`: a new file; else one of that name is written anew."""

    def __init__(self, path: Path, max_bytes: int, *, only: bool) -> None:
        """OSError: FileExistsError if `only`; also for what is no regular file of this user's, and for symbolic links."""
        self.path = path
        self.left_out = 0
        """Exchanges that are not in it."""
        self.entries = 0
        self._max = max_bytes
        self._pages: dict[str, har.Page] = {}
        self._tail = b""
        self._tail_of = -1, -1, False
        """How many pages and how many left out it tells of, and whether it says that it is over."""
        self._over = False
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        self._descriptor = os.open(path, flags | (os.O_EXCL if only else 0), MODE)
        try:
            found = os.fstat(self._descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
                raise OSError(0, "not a regular file of this user's with one name", str(path))
            os.fchmod(self._descriptor, MODE)
            os.ftruncate(self._descriptor, 0)
            self._at = 0
            self._put(har.head(), b"")
        except BaseException:
            os.close(self._descriptor)
            raise

    def page(self, page: har.Page) -> None:
        """An agent whose entries come."""
        self._pages.setdefault(page.id, page)

    def append(self, entry: bytes) -> None:
        """One entry, encoded. OSError: it is not there, and what was is."""
        if self._at + len(entry) > self._max:
            self.left_out += 1
            return
        try:
            self._put(b",\n" if self.entries else b"\n", entry)
            self.entries += 1
        except OSError:
            self.left_out += 1
            raise

    def _put(self, before: bytes, entry: bytes) -> None:
        data = before + entry
        end = self._end()
        at = self._at
        try:
            self._write(at, data + end)
            self._at += len(data)
        except OSError:
            if at:  # a full disk takes what fits where there was something before
                self._write(at, end)
                os.ftruncate(self._descriptor, at + len(end))
            raise
        os.ftruncate(self._descriptor, self._at + len(end))

    def _end(self) -> bytes:
        """PERF: with four thousand agents' pages it takes longer to encode than to write."""
        told = len(self._pages), self.left_out, self._over
        if told != self._tail_of:
            self._tail, self._tail_of = har.tail(list(self._pages.values()), self._comment()), told
        return self._tail

    def _write(self, at: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, memoryview(data)[done:], at + done)

    def _comment(self) -> str:
        text = har.ABOUT + (f" {self.left_out} exchanges are left out." if self.left_out else "")
        return text if self._over else text + har.GOES_ON  # who is killed cannot say that it was

    def close(self) -> None:
        """With how much is left out."""
        self._over = True
        try:
            self._put(b"", b"")
        finally:
            os.close(self._descriptor)
