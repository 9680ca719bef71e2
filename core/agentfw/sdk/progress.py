"""The bar of `map`: on a terminal's stderr only, once it takes more than a second."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

AFTER_SECONDS = 1.0


class NoBar:
    """Somewhere else than on a terminal, or not wanted."""

    def advance(self, ok: bool) -> None:
        pass

    def close(self) -> None:
        pass


class Bar:
    """So many of `total` (None: not known) have ended, and how many of them not well. Drawn by a thread of rich's."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._failed = 0
        self._begun = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None

    def advance(self, ok: bool) -> None:
        self._done += 1
        self._failed += not ok
        if self._shown is None and time.monotonic() - self._begun > AFTER_SECONDS:
            self._show()
        if self._shown is not None:
            bar, task = self._shown
            bar.update(task, completed=self._done, failed=f"{self._failed} failed" if self._failed else "")

    def close(self) -> None:
        if self._shown is not None:
            self._shown[0].stop()
            self._shown = None

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]}", style="red"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar.start()
        self._shown = bar, bar.add_task(self._what, total=self._total, failed="")


def bar(wanted: bool, what: str, total: int | None) -> Bar | NoBar:
    try:
        terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        terminal = False
    return Bar(what, total) if wanted and terminal and not os.environ.get("AGENTFW_NO_PROGRESS") else NoBar()
