"""`agentfw run --strace`: from options to what prints, and where."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .options import RunError
from .output import complain

if TYPE_CHECKING:
    from ..strace import Sink, Strace


@dataclass(frozen=True)
class StraceOptions:
    """`out` None: stderr. `calls` "": all. `size`: bytes of a string that are shown."""

    summary: bool
    out: Path | None
    calls: str
    size: int


def strace_options(form: str | None, out: Path | None, calls: str | None, size: int) -> StraceOptions | None:
    """None: nothing was asked for. `--strace-out` and `--strace-calls` ask, too."""
    if form is None and out is None and calls is None:
        return None
    return StraceOptions(form == "summary", out, calls or "", size)


class _Stderr:
    """Each line is one write, so that an agent's bytes are never in the middle of it."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            sys.stderr.write(text)
            sys.stderr.flush()


class _File:
    """Each line is one write. What cannot be written ends neither agents nor the command: `error`, after which nothing is."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self.error: OSError | None = None

    def write(self, text: str) -> None:
        if self.error is None:
            try:
                self._file.write(text.encode("ascii", "replace"))
            except OSError as error:
                self.error = error

    def close(self, path: Path) -> None:
        self._file.close()
        if self.error is not None:
            complain(f"{path}: {self.error.strerror}: what came then is not in it")


@contextlib.contextmanager
def tracing(options: StraceOptions | None, several: bool) -> Iterator[Strace | None]:
    """The table of a summary is printed at the end. RunError: the file cannot be written, or a name is no system call's."""
    if options is None:
        yield None
        return
    from ..strace import Strace, chosen

    try:
        calls = chosen(options.calls)
    except ValueError as error:
        raise RunError(f"--strace-calls: {error}", "names as in `man 2 syscalls`, with `*`: `open*,read`") from None
    with contextlib.ExitStack() as stack:
        sink: Sink = _Stderr()
        if options.out is not None:
            try:
                sink = file = _File(options.out)
            except OSError as error:
                raise RunError(f"{options.out}: {error.strerror}") from None
            stack.callback(file.close, options.out)
        strace = Strace(sink, summary=options.summary, calls=calls, string=options.size, several=several)
        try:
            yield strace
        finally:
            if options.summary:
                strace.line(strace.table())
