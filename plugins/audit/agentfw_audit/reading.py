"""The log read again: FILE and those that were put away (FILE.1, FILE.2.gz, FILE-20260101, ...), line by line, in either
direction, and as it grows. Memory is bounded whatever the files' sizes; what is no line of ours is counted, not shown.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

PIECE = 1 << 20
MAX_LINE = 1 << 20
"""Bytes; longer ones are none of ours, and are left out as they are read."""
MAX_FILES = 4096
TRIES = 5
LATE = 60.0
"""Seconds by which a file may say that it was written earlier than its last line: file systems have clocks of their own, coarse
ones, or those of other machines; and who sets a clock back, does."""

_NUMBERED = re.compile(r"\.([0-9]{1,6})(\.gz)?\Z")
_DATED = re.compile(r"[-.]([0-9]{8,14}(?:-[0-9]+)?)(\.gz)?\Z")
"""As logrotate's `dateext` names them."""


@dataclass
class Unread:
    """What could not be read as lines: how many, and where the first was."""

    lines: int = 0
    first: str = ""

    def add(self, where: str) -> None:
        self.lines += 1
        self.first = self.first or where

    def take(self) -> Unread:
        """What there is, to be told; from here on it is counted anew."""
        taken = Unread(self.lines, self.first)
        self.lines, self.first = 0, ""
        return taken


@dataclass
class Part:
    """One file, open. `size`: bytes on the disk."""

    path: Path
    file: BinaryIO
    size: int
    modified: float
    compressed: bool
    active: bool
    """It has the log's own name: its last line may be about to be written."""
    identity: tuple[int, int]

    @property
    def settled(self) -> bool:
        """Nobody writes its last line: what has no end there never gets it, for its writer was killed or found no room. (Who
        writes holds a lock for as long.)"""
        if not self.active:
            return True
        try:
            fcntl.flock(self.file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # it is being written; or the file system has no locks, and nobody knows
            return False
        try:
            return os.fstat(self.file.fileno()).st_size == self.size
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)


@dataclass
class Parts:
    """All files of a log, open, the newest first: `with` it. What is put away meanwhile is still read once."""

    path: Path
    parts: list[Part] = field(default_factory=list)

    def __enter__(self) -> Parts:
        """OSError if there is not even one."""
        seen: set[tuple[int, int]] = set()
        failure: OSError | None = None
        for path in (self.path, *_put_away(self.path)):
            try:
                part = _open(path, active=path == self.path)
            except FileNotFoundError as error:
                failure = failure or error
                continue
            except OSError:
                self.__exit__()
                raise
            if part.identity in seen:  # it was put away after it had been opened by its former name
                part.file.close()
                continue
            seen.add(part.identity)
            self.parts.append(part)
        if not self.parts:
            raise failure or FileNotFoundError(2, os.strerror(2), str(self.path))
        return self

    def __exit__(self, *error: object) -> None:
        for part in self.parts:
            part.file.close()
        self.parts.clear()

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def take(self) -> Part | None:
        """FILE itself, for a `Follower` to go on with from where its last whole line ends; it is not among these any more."""
        if not self.parts or not self.parts[0].active:
            return None
        part = self.parts.pop(0)
        at = part.size
        while at:
            begin = max(0, at - PIECE)
            part.file.seek(begin)
            found = _exactly(part.file, at - begin).rfind(b"\n")
            if found >= 0:
                at = begin + found + 1
                break
            at = begin
        part.file.seek(at)
        return part

    def forward(self, unread: Unread, since: float = 0.0, read: Callable[[int], None] = lambda size: None) -> Iterator[bytes]:
        """Lines, oldest first, without their ends. Files whose last write was before `since` are left out. `read` is told how
        many bytes of the disk were."""
        for part in reversed(self.parts):
            if part.modified < since - LATE:
                read(part.size)
                continue
            yield from _forward(part, unread, read)

    def backward(
        self,
        unread: Unread,
        since: float = 0.0,
        last: Callable[[Iterator[bytes]], Sequence[bytes]] = list,
        *,
        following: bool = False,
    ) -> Iterator[bytes]:
        """Lines, newest first. Compressed files cannot be read from their ends: what `last()` keeps of each is held at once.
        `following`: what has no end yet is left to a `Follower`."""
        for part in self.parts:
            if part.modified < since - LATE:
                return
            if part.compressed:
                yield from reversed(last(_forward(part, unread, lambda size: None)))
            else:
                yield from _backward(part, unread, following)


def _put_away(path: Path) -> list[Path]:
    """The newest first: numbers grow into the past, dates do not; who has both began with numbers."""
    numbered: list[tuple[int, Path]] = []
    dated: list[tuple[str, Path]] = []
    with contextlib.suppress(OSError):
        for found in path.parent.iterdir():
            rest = found.name[len(path.name) :] if found.name.startswith(path.name) else ""
            if match := _NUMBERED.fullmatch(rest):
                numbered.append((int(match[1]), found))
            elif match := _DATED.fullmatch(rest):
                dated.append((match[1], found))
    numbered.sort()
    dated.sort(reverse=True)
    return [found for _, found in (*numbered, *dated)][:MAX_FILES]


def _open(path: Path, *, active: bool) -> Part:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(22, "not a regular file", str(path))
        file = os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise
    identity = found.st_dev, found.st_ino
    return Part(path, file, found.st_size, found.st_mtime, path.suffix == ".gz", active, identity)


def _forward(part: Part, unread: Unread, read: Callable[[int], None]) -> Iterator[bytes]:
    part.file.seek(0)
    splitter = Splitter(str(part.path), unread)
    source: BinaryIO = gzip.GzipFile(fileobj=part.file) if part.compressed else part.file  # type: ignore[assignment]
    told = 0
    left = part.size if part.active else 1 << 62  # what is written from here on is another question's
    try:
        while left and (piece := source.read(min(PIECE, left))):
            left -= len(piece)
            yield from splitter.feed(piece)
            at = part.file.tell()
            read(at - told)
            told = at
    except (EOFError, zlib.error, gzip.BadGzipFile):  # cut short, or no gzip at all
        unread.add(f"{part.path}, which is broken from there on: line {splitter.number + 1}")
        splitter.drop()
    rest = splitter.rest
    if rest and part.settled:
        yield rest


class Splitter:
    """Pieces into lines, of which it says when one is too long."""

    def __init__(self, name: str, unread: Unread) -> None:
        self.number = 0
        self._name = name
        self._unread = unread
        self._kept: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        first, *others = piece.split(b"\n")
        self._keep(first)
        for line in others:
            self.number += 1
            if self._kept:  # an empty one ends another that was torn
                yield b"".join(self._kept)
            self.drop()
            self._keep(line)

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_LINE:
            if not self._skipping:
                self._unread.add(f"{self._name}, line {self.number + 1}")
            self._skipping = True
            self._kept.clear()
        elif piece:
            self._kept.append(piece)

    @property
    def rest(self) -> bytes:
        """What has no end yet."""
        return b"".join(self._kept)

    def drop(self) -> None:
        self._kept.clear()
        self._size = 0
        self._skipping = False


def _backward(part: Part, unread: Unread, following: bool) -> Iterator[bytes]:
    at = part.size
    tail = b""
    """The beginning of the line that was met last, whose own beginning has not been."""
    first = True
    skipping = False
    while at:
        begin = max(0, at - PIECE)
        part.file.seek(begin)
        piece = _exactly(part.file, at - begin)
        at = begin
        head, *lines = (piece + tail).split(b"\n")
        for line in reversed(lines):
            if skipping:  # its beginning: the rest of it is gone
                skipping = False
            elif len(line) > MAX_LINE:
                unread.add(f"{part.path}, before byte {part.size}")
            elif line and not (first and part.active and (following or not part.settled)):
                yield line
            first = False
        tail = head
        if len(tail) > MAX_LINE:
            if not skipping:
                unread.add(f"{part.path}, before byte {at + len(tail)}")
            skipping = True
            tail = b""
    if tail and not skipping and not (first and part.active and (following or not part.settled)):
        yield tail


def _exactly(file: BinaryIO, size: int) -> bytes:
    """Fewer only if the file was cut meanwhile."""
    data = b""
    while len(data) < size and (piece := file.read(size - len(data))):
        data += piece
    return data


class Follower:
    """The log as it grows; it goes along when files are put away. `lines()` whenever one likes."""

    def __init__(self, path: Path, unread: Unread, part: Part | None) -> None:
        """`part`: FILE, open, at the byte from which on (`Parts.take()`); it is closed here. None: it is not there yet."""
        self._path = path
        self._unread = unread
        self._part = part
        self._splitter = Splitter(str(path), unread)

    def lines(self) -> Iterator[bytes]:
        """All that have come since."""
        part = self._part
        if part is not None:
            if os.fstat(part.file.fileno()).st_size < part.file.tell():  # emptied, as logrotate's `copytruncate` does
                part.file.seek(0)
                self._torn()
                self._splitter = Splitter(str(part.path), self._unread)
            yield from self._more(part)
        yield from self._newer()

    def _torn(self) -> None:
        """What has no end gets none any more."""
        if self._splitter.rest:
            self._unread.add(shorter(self._splitter.rest))

    def _more(self, part: Part) -> Iterator[bytes]:
        while piece := part.file.read(PIECE):
            yield from self._splitter.feed(piece)

    def _newer(self) -> Iterator[bytes]:
        """What has come after the file that was read, if that has another name now."""
        before = self._part.identity if self._part is not None else None
        there = _identity(self._path)
        if there is None or there == before:  # None: between two, it comes in a moment
            return
        newer = self._opened(before)
        try:
            while newer:
                part = newer.pop()
                if self._part is not None:
                    yield from self._more(self._part)  # its last lines, written before it was put away
                    self._part.file.close()
                self._torn()
                self._splitter = Splitter(str(part.path), self._unread)
                self._part = part
                yield from self._more(part)
        finally:
            for part in newer:
                part.file.close()

    def _opened(self, before: tuple[int, int] | None) -> list[Part]:
        """The files after that one, the newest first. None, if they are given other names meanwhile, again and again: what is
        newer is told the next time."""
        for _ in range(TRIES):
            newer: list[Part] = []
            names = self._names()
            for path, identity in names.items():
                if identity == before:
                    break
                with contextlib.suppress(FileNotFoundError):
                    newer.append(_open(path, active=path == self._path))
                if before is None:  # it was not there: what was put away before is not wanted
                    break
            else:
                for part in newer[1:]:  # ours is gone, and nobody knows how much more is
                    part.file.close()
                del newer[1:]
            if names == self._names():
                return newer
            for part in newer:
                part.file.close()
        return []

    def _names(self) -> dict[Path, tuple[int, int]]:
        paths = [self._path, *(found for found in _put_away(self._path) if found.suffix != ".gz")]
        return {path: identity for path in paths if (identity := _identity(path)) is not None}

    def close(self) -> None:
        if self._part is not None:
            self._part.file.close()
            self._part = None


def shorter(data: bytes) -> str:
    """Of garbage, for people."""
    return ascii(data[:60].decode("utf-8", "replace")) + ("..." if len(data) > 60 else "")


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file has this name."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
