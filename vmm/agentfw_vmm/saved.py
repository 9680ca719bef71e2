"""A running VM as it stood: `Cell.save()` makes it, `CellConfig.snapshot_in` takes it."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from .errors import CellError

if TYPE_CHECKING:
    from .config import CellConfig

_SECONDS = 60.0  # that a cell may take to save a VM, others of it running meanwhile
_OVERHEAD = 512 << 20  # bytes of a saved VM that are neither memory nor files, at most

_TEXTS = {
    errno.ETXTBSY: "it writes to a host file through memory (a shared mapping), which two VMs cannot share",
    errno.ETIMEDOUT: "it never stood where it can be saved",
    errno.EOPNOTSUPP: "this cell's VMs cannot be saved",
    errno.E2BIG: "its memory is in too many pieces",
    errno.EFBIG: "it has too many private files",
    errno.ENOMEM: "out of memory",
    errno.ENOSPC: "out of memory",
}


class SavedVm:
    """A sealed memory file (memfd) with all that a VM was: memory, registers, private files, open handles. It lies in no file
    system, and is gone when it is closed and no cell has it any more.

    Of memory only what is not as in the template's snapshot is in it; `base` is a descriptor of that.
    `size`: its length in bytes; holes take none. Secrets that the agent had in memory are in it: hand it to cells of the same
    tenant only, made with `config()`.
    """

    def __init__(self, fd: int, size: int, base: int, config: CellConfig) -> None:
        self.fd = fd
        self.size = size
        self.base = base
        self._config = config
        self._close = weakref.finalize(self, _close_all, fd, base)

    def config(self, vms: int, runners: int = 1) -> CellConfig:
        """Of a cell for `vms` VMs that go on from here: all else as in the cell that it was saved in, but nobody is told of their
        system calls."""
        own = replace(self._config, snapshot_out=None, hot_in=None, hot_out=None, recycle=False, trace=None)
        return replace(own, vms=vms, runners=runners, snapshot_in=self)

    def memory(self) -> int:
        """Bytes of memory that it takes, shared by all VMs that go on from here."""
        return os.fstat(self.fd).st_blocks * 512

    def close(self) -> None:
        """Idempotent. VMs and cells that have it keep it; CellError for one that is started later."""
        self.fd = -1  # the number will be another file's
        self._close()

    def __enter__(self) -> SavedVm:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _close_all(*descriptors: int) -> None:
    for each in descriptors:
        os.close(each)


def save_file() -> int:
    """What a cell writes saved VMs to: empty memory, its descriptor is the caller's."""
    return os.memfd_create("agentfw-save", os.MFD_CLOEXEC)


def refusal(error: int) -> CellError:
    """From the errno with which a cell refused to save a VM."""
    return CellError(f"the VM cannot be saved: {_TEXTS.get(error, os.strerror(error))}")


def take(source: int, size: int, most: int) -> int:
    """A sealed copy of the first `size` bytes of a cell's save file, which is emptied. Blocks; CellError.

    The cell can write to its file whenever it likes: what others are to read is this copy, which nobody can.
    """
    if not 0 < size <= most:
        raise CellError(f"the cell saved a VM of {size} bytes")
    target = os.memfd_create("agentfw-saved", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(target, size)
        _copy(source, target, size)
        os.ftruncate(source, 0)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(target, fcntl.F_ADD_SEALS, seals)
    except BaseException as error:
        os.close(target)
        if isinstance(error, OSError):
            raise CellError(f"the saved VM cannot be copied: {error.strerror}") from None
        raise
    return target


def _copy(source: int, target: int, size: int) -> None:
    """What is not a hole."""
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # holes up to the end
            raise
        end = min(os.lseek(source, at, os.SEEK_HOLE), size)
        os.lseek(target, at, os.SEEK_SET)
        while at < end:
            done = os.sendfile(target, source, at, min(end - at, 16 << 20))
            if not done:
                return  # it was cut meanwhile: the copy will not pass its check
            at += done


class Saver:
    """A cell's file for saved VMs, and who waits for it: one VM after the other."""

    def __init__(self, config: CellConfig, fd: int, ask: Callable[[int, object], None]) -> None:
        self._config = config
        self._fd = fd
        self._ask = ask
        source = config.snapshot_in
        self._base = os.dup(source.base) if isinstance(source, SavedVm) else -1
        self._turn = asyncio.Lock()
        self._answer: asyncio.Future[int] | None = None
        self._vm = -1
        self._broken = False
        self._work: set[asyncio.Task[SavedVm]] = set()

    async def save(self, vm: int, life: object) -> SavedVm:
        """See `Cell.save()`. `life`: which of VM `vm` is meant; when its turn comes another may be running there. Who gives up
        waiting does not disturb the next: what comes all the same is thrown away."""
        work = asyncio.get_running_loop().create_task(self._save(vm, life))
        self._work.add(work)
        work.add_done_callback(self._done)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.cancelled():  # by close(), and who waits here was not
                raise CellError("the cell ended before the VM was saved") from None
            work.add_done_callback(_throw_away)
            raise

    async def _save(self, vm: int, life: object) -> SavedVm:
        async with self._turn:
            if self._broken:
                raise CellError("the cell did not answer when it was asked to save a VM before")
            self._vm = vm
            self._answer = asyncio.get_running_loop().create_future()
            try:
                self._ask(vm, life)
                size = await asyncio.wait_for(self._answer, _SECONDS)
            except TimeoutError:
                self._broken = True  # it may write at any time
                raise CellError(f"the cell did not save the VM within {_SECONDS:.0f} s") from None
            finally:
                self._vm = -1
            most = self._config.memory + self._config.tmp_bytes + _OVERHEAD
            fd = await self._taken(size, most)
            try:
                base = self._open_base()
            except OSError as error:
                os.close(fd)
                raise CellError(f"the template's snapshot has gone: {error.strerror}") from None
            return SavedVm(fd, size, base, self._config)

    async def _taken(self, size: int, most: int) -> int:
        """`take()` in a thread, which goes on when we are cancelled and the cell is closed: so it has a descriptor of its own
        (the number of ours may be another file's by then), and what it made is closed."""
        source = os.dup(self._fd)

        def work() -> int:
            try:
                return take(source, size, most)
            finally:
                os.close(source)

        taking = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_close_taken)
            raise

    def _open_base(self) -> int:
        """The snapshot of the template that the cell's VMs are from."""
        source = self._config.snapshot_in
        if self._base >= 0:
            return os.dup(self._base)
        assert source is not None and not isinstance(source, SavedVm)
        return os.open(source, os.O_RDONLY | os.O_CLOEXEC)

    def _done(self, work: asyncio.Task[SavedVm]) -> None:
        self._work.discard(work)
        if not work.cancelled():
            work.exception()  # seen

    def saved(self, vm: int, size: int, error: int) -> None:
        """The cell's answer."""
        if vm == self._vm and self._answer is not None and not self._answer.done():
            if error:
                self._answer.set_exception(refusal(error))
            else:
                self._answer.set_result(size)

    def gone(self, vm: int) -> None:
        """The VM has ended."""
        if vm == self._vm and self._answer is not None and not self._answer.done():
            self._answer.set_exception(CellError("the VM ended before it was saved"))

    def close(self) -> None:
        for work in list(self._work):
            work.cancel()
        for fd in (self._fd, self._base):
            if fd >= 0:
                os.close(fd)


def _close_taken(taking: asyncio.Future[int]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        os.close(taking.result())


def _throw_away(work: asyncio.Task[SavedVm]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()
