"""System calls of one job, printed on its stderr (`agentfw.strace`).

A job that is traced has a cell to itself, which is made for it and is used for nothing else (`GroupKey.traced`): in no other
one can anything be traced. What is printed is bounded, and what is left out is counted: neither a job that makes millions of
calls nor who reads them slowly takes more memory of worker and router than other output does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from agentfw_vmm import VmExit
from agentfw_vmm.trace import Copy, Event, Tracer

from ..strace import STRING_MAX, Strace, chosen
from .cells import PoolCell
from .jobs import Trace

MOST = 4 << 20
"""Bytes of lines of one job; a summary has no such limit, it is as long as there are kinds of calls."""
AHEAD = 256 << 10
"""Bytes of lines that wait for those before them to be taken."""


class JobTrace:
    """Of one job. `put(data)`: on its stderr; -> None: taken, else what to wait for."""

    def __init__(self, trace: Trace, put: Callable[[bytes], Awaitable[None] | None]) -> None:
        self._summary = trace.summary
        self._strace = Strace(self, summary=trace.summary, calls=chosen(trace.calls), string=trace.size)
        self.tracer = self._strace.tracer(lambda vm: "")
        self._put = put
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []
        self._waiting = 0
        """Bytes of them."""
        self._left = MOST
        self._skipped = 0
        """Lines that came too fast, since the last that was printed ..."""
        self._over = 0
        """... and beyond MOST."""
        self._due = False
        self._task: asyncio.Future[None] | None = None

    def write(self, text: str) -> None:
        """A line (`strace.Sink`)."""
        data = text.encode("ascii", "replace")
        if len(data) > self._left:
            self._left = 0
            self._over += 1
        elif self._waiting + len(data) > AHEAD:
            self._skipped += 1
        else:
            self._add(data)
            self._left -= len(data)
            if not self._due:
                self._due = True
                self._loop.call_soon(self._flush)

    def _add(self, data: bytes) -> None:
        if self._skipped:
            data = b"(%d lines are left out here: they came faster than they were taken)\n" % self._skipped + data
            self._skipped = 0
        self._lines.append(data)
        self._waiting += len(data)

    def _flush(self) -> None:
        self._due = False
        if self._task is None and self._lines:
            data, self._lines, self._waiting = b"".join(self._lines), [], 0
            waiting = self._put(data)
            if waiting is not None:
                self._task = asyncio.ensure_future(waiting)  # a task of its own, as in runs._Output
                self._task.add_done_callback(self._taken)

    def _taken(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and task.exception() is None and self._task is task:
            self._task = None
            self._flush()

    async def end(self) -> None:
        """After the job's last call, and after its own output: what is left is printed. Raises what `put` does."""
        if self._summary:
            self._add(self._strace.table().encode("ascii", "replace") + b"\n")
        if self._over:
            self._add(b"(%d lines more are left out: of a job %d MiB are printed)\n" % (self._over, MOST >> 20))
        elif self._skipped:
            self._add(b"")
        self._flush()
        while self._task is not None:
            task = self._task
            await task
            self._taken(task)

    def close(self) -> None:
        """Nobody wants it any more."""
        self._left = 0
        self._lines.clear()
        if self._task is not None:
            self._task.cancel()


class CellTrace:
    """A `Tracer` of a cell: what its VM does goes to the job that has it."""

    def __init__(self, cell: PoolCell) -> None:
        self._cell = cell

    def copies(self) -> Iterable[Copy]:
        """The most that a job may ask for: which one comes is not known."""
        return Strace(_Nowhere(), string=STRING_MAX).tracer(str).copies()

    def call(self, event: Event) -> None:
        tracer = self._of(event.vm)
        if tracer is not None:
            tracer.call(event)

    def ended(self, vm: int, report: VmExit) -> None:
        tracer = self._of(vm)
        if tracer is not None:
            tracer.ended(vm, report)

    def _of(self, vm: int) -> Tracer | None:
        user = self._cell.vms[vm].user
        return None if user is None else user.tracer


class _Nowhere:
    def write(self, text: str) -> None:
        pass
