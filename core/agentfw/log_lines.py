"""What is written to a log that people read."""

from __future__ import annotations

import logging
from typing import Any

from .errors import LONGEST
from .texts import shown


class OneLine(logging.Formatter):
    """What agents and servers say, as names and in errors, stays one line, and does nothing to a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return shown(super().formatMessage(record), LONGEST)

    def formatException(self, ei: Any) -> str:
        return "\n".join(shown(line) for line in super().formatException(ei).split("\n"))
