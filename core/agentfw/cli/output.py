"""Where the command writes: sinks for agents' streams, messages, progress. The rest of agentfw does not know a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import click

from ..errors import LONGEST
from ..texts import Tamed, plain_json, shown, shown_lines

CAPTURE = 16 << 20
"""Bytes of each stream that `--json` keeps."""


def complain(message: str, hint: str = "") -> None:
    """`error: WHAT`, and perhaps a hint, on stderr."""
    message = shown(message, LONGEST)
    say(f"error: {message}" + (f"\n\nhint: {hint}" if hint else ""))


def say(text: str) -> None:
    """Lines for people, on stderr. Whoever's words are in them, they do nothing to a terminal."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(shown_lines(text) + "\n")
        sys.stderr.flush()


def put(text: str) -> None:
    """Lines for people, on stdout: all that a command prints there but JSON, paths for scripts, and programs' output."""
    click.echo(shown_lines(text))


def put_json(data: bytes) -> None:
    """A JSON text that others made: into a file as it is, on a terminal in ASCII."""
    sys.stdout.flush()
    sys.stdout.buffer.write((plain_json(data) if sys.stdout.isatty() else data) + b"\n")
    sys.stdout.buffer.flush()


class Writer:
    """One of our own descriptors, written by a thread: a reader that stalls must not stall the loop, and the descriptor may not
    be made non-blocking, others share it. `write()` returns when its bytes are out, so the agent is held back."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: list[tuple[bytes, asyncio.Future[None]]] = []
        self._some = threading.Condition()
        self._broken = False
        self.name = {1: "standard output", 2: "standard error"}.get(descriptor, f"descriptor {descriptor}")
        self.failure: OSError | None = None
        """Why bytes did not get out, if it was not that the reader had gone."""
        self._thread: threading.Thread | None = None

    async def write(self, data: bytes) -> None:
        if self._broken:
            raise BrokenPipeError
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"agentfw-fd{self._descriptor}", daemon=True)
            self._thread.start()
        done = self._loop.create_future()
        with self._some:
            self._queue.append((data, done))
            self._some.notify()
        await done

    def _work(self) -> None:
        while True:
            with self._some:
                while not self._queue:
                    self._some.wait()
                batch, self._queue = self._queue, []
            error = self._put(b"".join(data for data, _ in batch))
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(_settle, [done for _, done in batch], error)

    def _put(self, data: bytes) -> BaseException | None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # somebody else made it non-blocking
                threading.Event().wait(0.01)
            except OSError as error:
                self._broken = True
                if error.errno != errno.EPIPE:
                    self.failure = error
                return BrokenPipeError()
        return None


def _settle(waiting: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for done in waiting:
        if not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(BrokenPipeError())


class Plain:
    """Bytes as they come: the only agent's."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def write(self, data: bytes) -> None:
        await self._writer.write(data)

    async def close(self) -> None:
        """Each write was out when it returned."""


class Harmless:
    """For a terminal: what a program wrote when nobody sat before it, without what would steer the terminal (`texts.Tamed`)."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._tamed = Tamed()

    async def write(self, data: bytes) -> None:
        await self._writer.write(self._tamed.feed(data).encode("utf-8", "backslashreplace"))

    async def close(self) -> None:
        if rest := self._tamed.end():
            await self._writer.write(rest.encode("utf-8", "backslashreplace"))


class Lines:
    """Whole lines, so that those of many agents do not mix; `prefix` before each (b"": none). With one it is a terminal, and
    whose a line is must be believed: none can be written over another, or leave its colours behind."""

    LONGEST = 1 << 16

    def __init__(self, writer: Writer, prefix: bytes = b"") -> None:
        self._writer = writer
        self._prefix = prefix
        self._rest = b""
        self._tamed = Tamed()

    async def write(self, data: bytes) -> None:
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) < self.LONGEST:
            self._rest = data
            return
        whole, self._rest = (data[:end], data[end:]) if end else (data + b"\n", b"")
        await self._writer.write(self._marked(whole))

    async def close(self) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            await self._writer.write(self._marked(rest + b"\n"))

    def _marked(self, data: bytes) -> bytes:
        if not self._prefix:
            return data
        lines = []
        for whole in data.removesuffix(b"\n").split(b"\n"):
            text = self._tamed.feed(whole.removesuffix(b"\r")) + self._tamed.end()
            lines += [self._prefix + line.encode("utf-8", "backslashreplace") + b"\n" for line in text.split("\n")]
        return b"".join(lines)


class Kept:
    """For `--json`: the first CAPTURE bytes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.cut = False

    async def write(self, data: bytes) -> None:
        room = CAPTURE - len(self.data)
        self.cut = self.cut or len(data) > room
        self.data += data[: max(room, 0)]

    async def close(self) -> None:
        pass

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


async def standard_input() -> AsyncIterator[bytes]:
    """Our own stdin as it comes, read by a thread that nobody waits for in the end."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(1)

    def read() -> None:
        while True:
            try:
                data = os.read(0, 65536)
            except OSError:
                data = b""
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(data), loop).result()
            except BaseException:  # the loop is gone, or the task that waited
                return
            if not data:
                return

    threading.Thread(target=read, name="agentfw-stdin", daemon=True).start()
    while data := await chunks.get():
        yield data


def may_read_stdin() -> bool:
    """Not from a terminal that another job has: reading would stop us."""
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def progress(what: str, seconds: float | None) -> Iterator[None]:
    """A bar on stderr, if that is a terminal and it takes more than a second."""
    if not sys.stderr.isatty() or os.environ.get("AGENTFW_NO_PROGRESS"):
        yield
        return
    shown: list[Any] = []
    timer = asyncio.get_running_loop().call_later(1.0, _show, what, seconds, shown)
    try:
        yield
    finally:
        timer.cancel()
        for stop in shown:
            stop()


def _show(what: str, seconds: float | None, shown: list[Callable[[], None]]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    )
    task = bar.add_task(what, total=None if not seconds else max(seconds, 2.0), completed=1)
    loop = asyncio.get_running_loop()
    handle: list[asyncio.TimerHandle] = []

    def advance() -> None:
        if seconds and bar.tasks[0].completed < bar.tasks[0].total * 0.98:  # type: ignore[operator]  # it has a total then
            bar.advance(task, 0.1)
        handle[:] = [loop.call_later(0.1, advance)]

    def stop() -> None:
        handle[0].cancel()
        bar.stop()

    bar.start()
    advance()
    shown.append(stop)
