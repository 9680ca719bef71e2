"""An event loop in a thread of its own, for callers without one (or with one that they are in the middle of)."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..pool.jobs import PoolError

T = TypeVar("T")

CANCEL_SECONDS = 15.0
"""For what is interrupted, to clean up."""


_CANNOT = "a `SyncPool` cannot be used"


def _closed() -> PoolError:
    return PoolError("unavailable", f"{_CANNOT} here: it is closed, or another process's")


class LoopThread:
    """`call(coroutine)` runs it there and gives its result here. `close()` ends the thread; so does the interpreter's exit,
    after `last` (called there) has run."""

    def __init__(self, name: str) -> None:
        import uvloop

        self._pid = os.getpid()
        self._calls: set[concurrent.futures.Future[Any]] = set()
        """That have not ended."""
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(self._rest())
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
                self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            for done in list(self._calls):  # that came while it was closed
                if not done.done():
                    done.set_exception(_closed())

    async def _rest(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def usable(self) -> bool:
        """Not in a forked child: threads are not copied."""
        return os.getpid() == self._pid and self._thread.is_alive()

    def call(self, body: Coroutine[Any, Any, T]) -> T:
        """What `body` returns or raises. An interrupt (Ctrl-C) here cancels it there, and is raised once it has ended."""
        if not self.usable or threading.current_thread() is self._thread:
            body.close()
            raise _closed() if not self.usable else PoolError("unavailable", f"{_CANNOT} in the loop of the pool itself")
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        begun: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self._loop.create_task(body)
            begun.append(task)
            task.add_done_callback(finish)

        def finish(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                done.set_exception(concurrent.futures.CancelledError())
            elif (error := task.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(task.result())

        self._calls.add(done)
        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:  # closed since we looked
            self._calls.discard(done)
            body.close()
            raise _closed() from None
        try:
            return done.result()
        except BaseException:
            if not done.done():  # it is we who were interrupted
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in begun])
                concurrent.futures.wait([done], timeout=CANCEL_SECONDS)
            raise
        finally:
            self._calls.discard(done)

    def close(self) -> None:
        """Idempotent; nothing in a forked child."""
        if self.usable and threading.current_thread() is not self._thread:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def at_exit(function: Any) -> Any:
    """Call it when this process (not a child of it) exits, while threads still run. -> what takes that back."""
    pid = os.getpid()

    def run() -> None:
        if os.getpid() == pid:
            function()

    atexit.register(run)
    return lambda: atexit.unregister(run)
