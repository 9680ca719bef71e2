"""A job's output on our own stdout and stderr while it runs, and what its end makes of this command."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..pool.jobs import JobInfo, JobResult, PoolError
from .options import RunError
from .output import Kept, Writer, complain, say, standard_input

if TYPE_CHECKING:
    from ..pool.client import HttpBackend

CANCEL_SECONDS = 3.0
SINKS = Mapping[int, Any]
"""By stream, 1 and 2: what has `async write(data)` and `async close()`."""


async def follow(
    pool: HttpBackend, job_id: str, sinks: SINKS, *, until_end: bool = True, end: Awaitable[JobInfo] | None = None
) -> bool:
    """All output into the sinks; False: some was not kept by the pool. `end`: the job's, if somebody waits for it already.
    BrokenPipeError if our own reader has gone."""
    before = None if until_end else await pool.info(job_id)
    at = {1: 0, 2: 0}
    whole = True
    async for piece in pool.output(job_id, follow=until_end):
        whole = whole and piece.offset == at[piece.stream]
        at[piece.stream] = piece.offset + len(piece.data)
        await sinks[piece.stream].write(piece.data)
    for sink in sinks.values():
        await sink.close()
    return whole and reached(before or await (end or pool.wait(job_id)), at)


def reached(info: JobInfo, at: Mapping[int, int]) -> bool:
    """Is that all that a job wrote, as far as is known? Where the last of it was dropped, no gap tells so."""
    if info.result is None:
        return True
    return at[1] >= info.result.usage.stdout and at[2] >= info.result.usage.stderr


def unread(writers: Iterable[Writer]) -> Exception:
    """What to raise when our own output cannot be written: its reader has gone, or a disk is full."""
    for writer in writers:
        if writer.failure is not None:
            return RunError(f"cannot write to {writer.name}: {writer.failure.strerror}")
    return BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


async def feed(pool: HttpBackend, job_id: str) -> None:
    """Our stdin to the job, until either ends."""
    with contextlib.suppress(PoolError):  # the job's end is told elsewhere, and the pool's too
        async for data in standard_input():
            await pool.feed(job_id, data)
        await pool.feed(job_id, b"", True)


def gap(info: JobInfo) -> tuple[str, str]:
    """(what, hint) of output that cannot be had any more."""
    if info.attempt > 1:
        return f"the job was begun {info.attempt} times, and what was written before the last is dropped", ""
    return "not all of its output was kept", "[pool] keep_output says how much is"


class Last:
    """A sink that passes all on, and remembers the end of it."""

    MOST = 1000

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.text = b""

    async def write(self, data: bytes) -> None:
        self.text = (self.text + data[-self.MOST :])[-self.MOST :]
        await self._sink.write(data)

    async def close(self) -> None:
        await self._sink.close()


def not_sent(directory: Path, said: bytes) -> str:
    """What to say if a program ended for want of a module that lies in `directory` here; else ""."""
    match = re.search(rb"(?:^ModuleNotFoundError|python[0-9.]*): No module named '?(\w+)[^\n]*\n?\Z", said, re.MULTILINE)
    if match is None:
        return ""
    path = next((found for end in (".py", "") if (found := directory / (match[1].decode() + end)).exists()), None)
    return f"`{path}` is not sent by itself: `--file {path}`" if path is not None else ""


def result_of(info: JobInfo) -> JobResult:
    """Of a job that is done."""
    return info.result or JobResult(kind="internal", text="it ended, and nobody knows how")


def tell(info: JobInfo, *, named: bool, interrupted: int | None = None) -> None:
    """One line on stderr for an end that the program itself did not explain."""
    result = result_of(info)
    if result.kind == "code" or (interrupted is not None and result.kind in ("killed", "signal")):
        return
    if result.kind == "signal" and result.signal == signal.SIGINT:
        return
    what, hint = explain(result)
    complain(f"{info.name} ({info.id}): {what}" if named else what, hint)


def explain(result: JobResult) -> tuple[str, str]:
    """(what, hint) of an end that is not the program's own."""
    if result.kind == "timeout" and result.text.startswith("CPU time"):
        return result.text, "[pool.limits] cpu_seconds says how much"
    if result.kind == "timeout":
        return result.text or "timed out", "give it more with `--timeout`, or [pool.limits] seconds"
    if result.kind == "memory":
        return f"out of memory: {result.text}", "give its template more `memory`"
    if result.kind == "output":
        return result.text or "it wrote more than it may", "[pool.limits] output says how much"
    if result.kind == "signal":
        return result.text.partition(" (")[0] or f"killed by signal {result.signal}", ""
    if result.kind == "hostile":
        return f"stopped for breaking the VM's protocol: {result.text}", ""
    return result.text or result.kind, ""


def document(info: JobInfo, kept: Mapping[int, Kept] | None = None, whole: bool = True) -> dict[str, Any]:
    """A job for `--json`: its fields, `status`, and its output where that was taken."""
    import msgspec

    row: dict[str, Any] = msgspec.to_builtins(info)
    row["status"] = info.result.status if info.result is not None else None
    if kept is not None:
        row |= {"stdout": kept[1].text, "stderr": kept[2].text, "truncated": kept[1].cut or kept[2].cut or not whole}
    return row


class Interrupts:
    """The first Ctrl-C or SIGTERM goes to the jobs that we wait for, the second kills them."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, pool: HttpBackend, ids: list[str], quiet: bool) -> None:
        self._pool = pool
        self._ids = ids
        self._quiet = quiet
        self._task = asyncio.current_task()
        self._sent: set[asyncio.Task[None]] = set()
        self.last: int | None = None
        self.killed = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        added = []
        for number in self.SIGNALS:
            if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._received, number)
                added.append(number)
        try:
            yield
        finally:
            for number in added:
                loop.remove_signal_handler(number)

    def _received(self, number: int) -> None:
        again, self.last = self.last is not None, number
        if not self._ids or (again and self.killed):
            self._give_up()
        elif again:
            self.killed = True
            self._send(signal.SIGKILL)
            asyncio.get_running_loop().call_later(CANCEL_SECONDS, self._give_up)  # the pool may hang, or our reader
        else:
            self._send(number)
            if not self._quiet and number == signal.SIGINT:
                say("interrupting; press Ctrl-C again to kill")

    def _give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _send(self, number: int) -> None:
        for job_id in self._ids:
            task = asyncio.get_running_loop().create_task(self._signal(job_id, number))
            self._sent.add(task)
            task.add_done_callback(self._sent.discard)

    async def _signal(self, job_id: str, number: int) -> None:
        with contextlib.suppress(PoolError):
            await self._pool.signal(job_id, number)


async def kill_all(pool: HttpBackend, ids: list[str]) -> None:
    """What nobody waits for any more."""

    async def one(job_id: str) -> None:
        with contextlib.suppress(PoolError):
            await pool.signal(job_id, signal.SIGKILL)

    await asyncio.gather(*map(one, ids))
