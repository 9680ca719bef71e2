"""What the log is told of failures that an agent can bring about again and again, as those of hooks: not each, but each kind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ..errors import AgentfwError, HookError

PERIOD = 60.0
"""Seconds."""
MOST = 5
"""Failures of a kind that are told in a PERIOD, with their tracebacks. Counters and `audit` have all of them."""
MOST_KINDS = 256

Kind = tuple[str, str, str, int, str]


class FailureLog:
    """A kind of failure: what was raised, in which plugin's hook, in which line. `now`: seconds, monotonic."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._told: dict[Kind, tuple[float, int]] = {}
        """When the period of a kind began, and how many there were in it; who failed last is last."""

    def tell(self, log: logging.Logger, error: BaseException, text: str, *args: object) -> None:
        """`log.error()` with the traceback of what was not expected; beyond MOST, `log.debug()` without."""
        kind, now = _kind(error), self._now()
        began, times = self._told.pop(kind, (now, 0))
        left_out = 0
        if now - began >= PERIOD:
            left_out, began, times = max(times - MOST, 0), now, 0
        self._told[kind] = began, times + 1
        if len(self._told) > MOST_KINDS:
            del self._told[next(iter(self._told))]
        if times >= MOST:
            log.debug(text, *args)
            return
        if left_out:
            text += f" ({left_out} more since this was told last)"
        elif times == MOST - 1:
            text += f" (the {MOST}th time; more are told in {PERIOD:g} s)"
        log.error(text, *args, exc_info=error.__cause__ if isinstance(error, AgentfwError) else error)


def _kind(error: BaseException) -> Kind:
    plugin, hook = (error.plugin, error.hook) if isinstance(error, HookError) else ("", "")
    raised = error.__cause__ or error
    trace = raised.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file, line = ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return type(raised).__name__, plugin, file, line, hook
