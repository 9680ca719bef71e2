"""An asyncio server in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar


class Server(Protocol):
    @property
    def port(self) -> int: ...
    async def start(self) -> None: ...
    async def close(self) -> None: ...


T = TypeVar("T")
ServerT = TypeVar("ServerT", bound=Server)


class ServerThread(Generic[ServerT]):
    """Runs `server` from `with` to the end of the block. What `start()` raises is raised by `with`."""

    def __init__(self, server: ServerT) -> None:
        self.server = server
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=type(server).__name__, daemon=True)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """function(*args) in the server's thread; once it has ended, here."""
        if self._loop is None or not self._thread.is_alive():
            return function(*args)

        async def run() -> T:
            return function(*args)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure:
            raise self._failure
        return self

    def __exit__(self, *exc: object) -> None:
        if self._loop and self._stop and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        try:
            await self.server.start()
        except BaseException as trouble:
            self._failure = trouble
            self._started.set()
            return
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.port = self.server.port
        self._started.set()
        await self._stop.wait()
        await self.server.close()
