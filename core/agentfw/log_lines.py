"""What is written to a log that people read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from .errors import LONGEST
from .texts import shown


class OneLine(logging.Formatter):
    """What agents and servers say, as names and in errors, stays one line, and does nothing to a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return shown(super().formatMessage(record), LONGEST)

    def formatException(self, ei: Any) -> str:
        return "\n".join(shown(line) for line in super().formatException(ei).split("\n"))


class Sparing(logging.Filter):
    """For a handler: lines of `logger` and of those below it are at most `rate` a second on the whole, and `burst` at once. For
    what agents can cause as often as they like. The next one that passes says how many did not. `clock`: seconds, monotonic."""

    def __init__(self, logger: str, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logger)
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left: float = burst
        self._filled = clock()
        self._missing = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):  # another logger's
            return True
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._filled) * self._rate)
        self._filled = now
        if self._left < 1:
            self._missing += 1
            return False
        self._left -= 1
        if self._missing:
            record.msg = f"({self._missing} lines like it were left out before) {record.msg}"
            self._missing = 0
        return True
