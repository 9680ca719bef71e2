"""Lines into a file that is put away when it is full. One thread writes; nobody waits for it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

MODE = 0o600
BATCH = 1 << 20
"""Bytes written at a time, about."""
GATHER = 0.2
"""Seconds that a line may wait for others to be written with. A write is a dozen system calls, and each of them has the thread
that serves agents give up the interpreter and take it back."""

TRIES = 3
"""For a file that nobody puts away at that moment; then whichever."""
AGAIN = 1.0
"""Seconds after which a disk that took no more is tried again."""

log = logging.getLogger("agentfw.audit")


class LogFile:
    """`path`, open for appending. Others may append to it, too, and put it away: each batch goes to whatever has the name."""

    def __init__(self, path: Path, max_bytes: int, keep: int, sync: str) -> None:
        """OSError if it cannot be opened: also if it is no regular file of ours, or a symbolic link."""
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self.sync = sync
        self.rotations = 0
        self.done = 0
        """Lines of the last `write()` that are in the file."""
        self._descriptor = self._open()

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        descriptor = os.open(self.path, flags, MODE)
        try:
            found = os.fstat(descriptor)
            # (with no name: another who writes it has just removed it. The next write finds that out)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
                raise OSError(0, "not a regular file of this user's with one name", str(self.path))
            os.fchmod(descriptor, MODE)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def write(self, lines: Sequence[bytes]) -> None:
        """Append lines, given without their ends, to as many files as they need. OSError: `done` of them are written; one that is
        torn is ended before the next."""
        self.done = 0
        self._follow()
        while self.done < len(lines):
            size = os.fstat(self._descriptor).st_size
            end, length = self.done, 0
            while end < len(lines) and (not length or size + length + len(lines[end]) < self.max_bytes):
                length += len(lines[end]) + 1
                end += 1
            if size and size + length > self.max_bytes:
                self._rotate()
                continue
            self._append(b"\n".join(lines[self.done : end]) + b"\n")
            self.done = end
        if self.sync == "always":
            os.fsync(self._descriptor)

    def _append(self, data: bytes) -> None:
        torn, done = False, 0
        try:
            torn = self._hold()
            if torn:
                data = b"\n" + data
            while done < len(data):
                done += os.write(self._descriptor, memoryview(data)[done:])
        except OSError:
            self.done += data.count(b"\n", torn, done)
            raise
        finally:
            _lock(self._descriptor, fcntl.LOCK_UN)

    def _hold(self) -> bool:
        """Until this is written nobody of ours puts the file away: who follows the log has read it to its end then. -> whether it
        ends amid a line, of whoever was killed or found no room."""
        for _ in range(TRIES):
            _lock(self._descriptor, fcntl.LOCK_EX)
            if not self._follow():
                break
        size = os.fstat(self._descriptor).st_size
        return size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"

    def _follow(self) -> bool:
        """Whether somebody else has put the file away, or removed it: go on with the one that has its name."""
        ours = os.fstat(self._descriptor)
        if self._named() == (ours.st_dev, ours.st_ino):
            return False
        old, self._descriptor = self._descriptor, self._open()
        _close(old)
        return True

    def _named(self) -> tuple[int, int] | None:
        """What has the name now."""
        try:
            there = self.path.lstat()
        except FileNotFoundError:
            return None
        return there.st_dev, there.st_ino

    def _rotate(self) -> None:
        """FILE becomes FILE.1, that FILE.2, and so on; the last one goes. Locked, so that two processes do not both do it."""
        full = self._descriptor
        _lock(full, fcntl.LOCK_EX)
        try:
            ours = os.fstat(full)
            if self._named() == (ours.st_dev, ours.st_ino):
                if self.sync != "no":
                    os.fsync(full)
                for number in range(self.keep - 1, 0, -1):
                    with contextlib.suppress(FileNotFoundError):
                        self._numbered(number).replace(self._numbered(number + 1))
                with contextlib.suppress(FileNotFoundError):  # another program has just put it away, or removed it
                    if self.keep:
                        self.path.replace(self._numbered(1))
                    else:
                        self.path.unlink()
                self.rotations += 1
            self._descriptor = self._open()
        finally:
            if self._descriptor != full:
                _close(full)
            else:
                _lock(full, fcntl.LOCK_UN)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self.sync != "no":
                os.fsync(self._descriptor)
        _close(self._descriptor)


def _lock(descriptor: int, how: int) -> None:
    """Some file systems have no locks. One process writes there as well; two may put a file away twice."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, how)


def _close(descriptor: int) -> None:
    """A file system across a network may say only now that it did not take what was written. The descriptor is gone then, too."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


class Writer:
    """The queue and its thread. `put()` from any one thread, never blocking."""

    def __init__(self, file: LogFile, buffer_bytes: int) -> None:
        self.buffer_bytes = buffer_bytes
        self.written = 0
        self.dropped = 0
        """Lines that found no room, or that the disk did not take."""
        self.untold = 0
        """Of those, once it has ended: which no line tells of, for the disk took that neither."""
        self.failures = 0
        self.rotations = 0
        self._before = 0
        """Those of other files."""
        self._file = file
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._turns: deque[tuple[int, LogFile]] = deque()
        """Files to come, and how many lines, of all that there were, come before each."""
        self._taken = 0
        """Lines that no longer wait."""
        self._missing = 0
        """Dropped since a line last said so."""
        self._lock = threading.Lock()
        self._some = threading.Condition(self._lock)
        self._ended = False
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="agentfw-audit", daemon=True)
        self._thread.start()

    def put(self, lines: Sequence[bytes]) -> None:
        """Lines, without their ends. Those are dropped that would be too much with what waits."""
        with self._lock:  # PERF: the condition's own way in is Python's
            waited, had = len(self._lines), self._size
            for line in lines:
                if self._ended or self._size + len(line) > self.buffer_bytes:
                    self.dropped += 1
                    self._missing += 1
                    continue
                self._lines.append(line)
                self._size += len(line) + 1
            if (self._lines and not waited) or (self._size > self._enough >= had):
                self._some.notify()

    @property
    def _enough(self) -> int:
        """Bytes that do not wait for more: a small buffer would be full before."""
        return min(BATCH, self.buffer_bytes // 2)

    def turn_to(self, file: LogFile, buffer_bytes: int) -> None:
        """What comes next goes into another file; the old one is closed when it has what came before."""
        with self._some:
            before = self._taken + len(self._lines)
            if self._turns and self._turns[-1][0] == before:  # nothing came in between
                self._turns.pop()[1].close()
            self._turns.append((before, file))
            self.buffer_bytes = buffer_bytes
            self._some.notify()

    def stop(self, seconds: float) -> bool:
        """Write what waits, and end. False: it takes longer than `seconds`. Blocks; idempotent."""
        with self._some:
            self._ended = True
            self._some.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._some:
                while not (self._lines or self._missing or self._turns or self._ended):
                    self._some.wait()
                if not self._ended and self._size < self._enough:
                    self._some.wait_for(lambda: self._ended or self._size >= self._enough, GATHER)
                lines, missing = self._take()
                last = self._ended
                other = None if lines or missing else self._turned()
            if lines or missing:
                self._put(lines, missing, last)
            elif other is not None:
                self._go_on_with(other)
            else:
                self._file.close()
                return

    def _take(self) -> tuple[list[bytes], int]:
        """What goes into the file that there is."""
        most = self._turns[0][0] - self._taken if self._turns else len(self._lines)
        if self._size <= BATCH and most == len(self._lines):
            lines = list(self._lines)
            self._lines.clear()
            self._size = 0
        else:
            lines, size = [], 0
            while len(lines) < most and size < BATCH:
                line = self._lines.popleft()
                size += len(line) + 1
                lines.append(line)
            self._size -= size
        self._taken += len(lines)
        missing = 0
        if not self._lines:  # those that were dropped came after the last one kept
            missing, self._missing = self._missing, 0
        return lines, missing

    def _turned(self) -> LogFile | None:
        """The file that comes next."""
        return self._turns.popleft()[1] if self._turns else None

    def _go_on_with(self, file: LogFile) -> None:
        self._file.close()
        self._before += self._file.rotations
        self._file = file

    def _put(self, lines: list[bytes], missing: int, last: bool) -> None:
        """`last`: it had ended before."""
        if missing:
            note = msgspec.json.encode({"time": time.time(), "event": "dropped", "lines": missing})
            lines = [*lines, note]
        try:
            self._file.write(lines)
        except OSError as error:
            self.failures += 1
            told = len(lines) - (1 if missing else 0)
            done = self._file.done
            with self._some:
                self.written += min(done, told)
                if done < len(lines):
                    self._missing += missing
                for line in reversed(lines[done:told]):  # the disk may take them in a while
                    self._lines.appendleft(line)
                    self._size += len(line) + 1
                self._taken -= max(told - done, 0)
            if not self._complained:
                self._complained = True
                log.error("cannot write the audit log %s: %s", self._file.path, error.strerror or error)
            self._wait_after_failure(last)
        else:
            self._complained = False
            self.written += len(lines) - (1 if missing else 0)
        self.rotations = self._before + self._file.rotations

    def _wait_after_failure(self, last: bool) -> None:
        """A full disk is not asked again at once, and at the end once. Another file gets what this one did not take."""
        with self._some:
            self._some.wait_for(lambda: self._ended or self._turns, AGAIN)
            other = self._turned()
            if last and other is None:
                self.dropped += len(self._lines)
                self.untold = self._missing + len(self._lines)
                self._lines.clear()
                self._size = self._missing = 0
        if other is not None:
            self._go_on_with(other)
