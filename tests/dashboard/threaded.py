"""The dashboard's own web server around a made-up pool, in a thread: a browser's driver has an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from agentfw_dashboard.web.access import Access
from agentfw_dashboard.web.files import load
from agentfw_dashboard.web.server import WebServer

from .fake import FakeObservatory
from .serving import STATIC, output_of

T = TypeVar("T")


class Serving:
    """`with Serving(fake) as serving: serving.url`. `access` and `port` may be those of one before, as after a restart."""

    def __init__(self, fake: FakeObservatory, *, access: Access | None = None, port: int = 0, period: float = 0.4) -> None:
        self.fake = fake
        self.access = access or Access.random()
        self.port = port
        self._period = period
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self._trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dashboard of a test")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def cookie(self) -> dict[str, str | bool]:
        """Of somebody who has logged in, for a browser."""
        value = self.access.new_session()
        return {"name": self.access.cookie, "value": value, "url": self.url, "httpOnly": True, "sameSite": "Strict"}

    def login(self) -> str:
        """A link that logs in, once."""
        return f"{self.url}login?code={self.access.new_code()}"

    def do(self, action: Callable[[], T]) -> T:
        """Between two of the server's own steps, so that it sees the made-up pool whole."""

        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self.loop).result(20)

    def __enter__(self) -> Serving:
        self._thread.start()
        self._ready.wait(20)
        if self._trouble is not None:
            raise self._trouble
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)

    def _run(self) -> None:
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException as error:
            self._trouble = error
        finally:
            self._ready.set()
            self.loop.close()

    async def _serve(self) -> None:
        server = WebServer(self.fake, self.access, files=load(STATIC), output=output_of(self.fake), period=self._period)
        await server.start()
        try:
            self.port = (await server.listen("127.0.0.1", self.port))[0][1]
            self._ready.set()
            await self._end.wait()
        finally:
            await server.close()
