"""A thread that writes files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class WriterThread(Executor):
    """As ThreadPoolExecutor(1), but nobody waits for it, not even the interpreter at its end: a disk may hang."""

    def __init__(self, name: str) -> None:
        self._todo: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, fn: Callable[_Args, _Result], /, *args: _Args.args, **kwargs: _Args.kwargs) -> Future[_Result]:
        future: Future[_Result] = Future()
        self._todo.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """It ends when what was submitted is done."""
        self._todo.put(None)

    def _run(self) -> None:
        while (todo := self._todo.get()) is not None:
            future, function = todo
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del todo, future, function
