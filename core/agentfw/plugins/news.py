"""What plugins are told a little later, many things at once.

Code that runs once a request, between much other code, finds nothing of its own in the processor's caches, and takes several
times as long as when it runs over and over. A plugin that only watches has no need to know at once: it says so (`later_hooks`),
and what it would be told waits a moment for its like.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..errors import AgentfwError
from .calling import Call, tell

SECONDS = 0.05
"""That news wait at most."""
MOST = 256
"""News that wait. To tell so many takes about a millisecond."""
ROUNDS = 16
"""That news of news are told in a row: a request's end makes a model call known, that a budget's end."""

log = logging.getLogger("agentfw.plugins")

News = tuple[tuple[Call, ...], tuple[object, ...]]
"""Who is told what."""


class Later:
    """Belongs to the loop that `begin()` gives; without one nothing may be added. `failed` is told what went wrong, and never
    raises."""

    def __init__(self, failed: Callable[[Call, AgentfwError], None]) -> None:
        self._failed = failed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[News] = []
        self._timer: asyncio.TimerHandle | None = None
        self._telling = False
        self._endless = False
        """The log has told of news without end."""

    @property
    def open(self) -> bool:
        return self._loop is not None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def end(self) -> None:
        """Tell what waits; nothing is taken any more. Idempotent."""
        self.deliver()
        self._loop = None

    def add(self, calls: tuple[Call, ...], args: tuple[object, ...]) -> None:
        self._waiting.append((calls, args))
        if self._timer is None:
            if self._loop is not None and not self._telling:
                self._timer = self._loop.call_later(SECONDS, self.deliver)
        elif len(self._waiting) >= MOST:
            self.deliver()

    def deliver(self) -> None:
        """Tell all that waits, in order, and what comes of that; if it does not end, the rest is dropped."""
        if self._telling:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._telling = True
        try:
            for _ in range(ROUNDS):
                if not (waiting := self._waiting):
                    return
                self._waiting = []
                tell(waiting, self._failed)
            if self._waiting and not self._endless:
                self._endless = True
                names = sorted({f"{call.plugin}.{call.hook}" for calls, _ in self._waiting for call in calls})
                log.error("what plugins are told makes more news, without end: dropped (%s)", ", ".join(names))
            self._waiting.clear()
        finally:
            self._telling = False
