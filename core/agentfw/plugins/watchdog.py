"""A thread that says who holds up the loop while it does: a hook that never returns would say nothing itself.

Every two seconds it asks the loop for a sign. If there is none for some time, it looks where the loop's thread is, and names the
plugin and the hook on its stack, file and line. It cannot end them: nothing in a process can.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from types import FrameType

from .calling import Call

PERIOD = 2.0
PATIENCE = 5.0
"""Seconds without a sign."""

log = logging.getLogger("agentfw.plugins")


class Watchdog:
    """`start()` it in the loop's thread. At most one line for each time that the loop is held up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, period: float = PERIOD, patience: float = PATIENCE) -> None:
        self._loop = loop
        self._period = period
        self._patience = patience
        self._watched = 0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="agentfw-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """It ends soon; nobody has to wait for it."""
        self._end.set()

    def _watch(self) -> None:
        while not self._end.wait(self._period):
            sign = threading.Event()
            try:
                self._loop.call_soon_threadsafe(sign.set)
            except RuntimeError:  # the loop is closed
                return
            if sign.wait(self._patience):
                continue
            frame = sys._current_frames().get(self._watched)
            if frame is not None and not self._end.is_set():
                log.error("all agents are held up for %g s and more: %s", self._patience, where(frame))
            del frame
            while not sign.wait(self._period):
                if self._end.is_set() or self._loop.is_closed():
                    return


def where(frame: FrameType) -> str:
    """Plugin and hook that a stack is in, if it is in one, and the innermost line."""
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    at: FrameType | None = frame
    while at is not None:
        here = at.f_locals if at.f_globals.get("__name__") == Call.__module__ else {}
        call = here.get("self", here.get("call"))  # the method's, or that of `tell()`
        if isinstance(call, Call):
            return f"plugin `{call.plugin}` does not return from `{call.hook}` ({place})"
        at = at.f_back
    return f"outside of hooks ({place})"
