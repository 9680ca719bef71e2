"""`agentfw pool start --daemon`: the pool in a session of its own, which logs to a file; this one waits until it is ready."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from .options import RunError
from .output import complain, say

if TYPE_CHECKING:
    from .service import Service

SHOWN = 64 << 10
"""Bytes of the log that are shown of a start that failed."""
LOG_MOST = 16 << 20
"""Bytes: with more the log begins anew, and one old one is kept."""


def in_background(service: Service) -> int:
    """Returns when the pool takes jobs, or has failed to start; what it said meanwhile is on our stderr then."""
    from ..pool.places import log_file

    path = log_file(service.socket)
    descriptor = _open_log(path)
    begin = os.lseek(descriptor, 0, os.SEEK_END)
    reading, writing = os.pipe()
    sys.stderr.flush()
    pid = os.fork()  # nothing has been started that would not survive it: no loop, no thread
    if pid == 0:
        os.close(reading)
        _become(service, path, descriptor, writing)
    os.close(writing)
    os.close(descriptor)
    try:
        document = _await(reading, service, pid)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(reading)
    said = _tail(path, begin)
    if document is None:
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        say(said.rstrip("\n")) if said.strip() else complain(f"the pool ended while it started (status {code})", f"see {path}")
        return code if code > 0 else 125
    if said.strip() and not service.quiet:
        say(said.rstrip("\n"))
    document["log"] = str(path)
    click.echo(json.dumps(document) if service.as_json else str(document["pid"]))
    return 0


def _open_log(path: Path) -> int:
    """RunError if it cannot be written."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        _cut(path, descriptor)
        return descriptor
    except OSError as error:
        raise RunError(
            f"the log {path} cannot be written: {error.strerror}", "set XDG_STATE_HOME to a directory of yours"
        ) from None


def _cut(path: Path, descriptor: int) -> None:
    """A log that has become too long goes on from nothing, what it had is beside it. The file stays the same: workers have it
    open, too, and what appends goes on at its new end."""
    if os.fstat(descriptor).st_size <= LOG_MOST:
        return
    with path.open("rb") as source, path.with_suffix(".log.1").open("wb") as copy:
        shutil.copyfileobj(source, copy)
    os.ftruncate(descriptor, 0)


def _cut_quietly(path: Path) -> None:
    """That of a daemon that runs: its stderr is the log."""
    with contextlib.suppress(OSError):
        _cut(path, 2)


def _become(service: Service, path: Path, descriptor: int, writing: int) -> NoReturn:
    """The child: never returns. What it says goes to the log, what it has reached into the pipe."""
    from . import status_of
    from .service import serve

    status = 125
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for wanted, number in ((null, 0), (descriptor, 1), (descriptor, 2)):
            os.dup2(wanted, number)
        keep = max(descriptor, writing) + 1
        os.closerange(keep, max(keep, 1024))
        for handler in logging.getLogger().handlers[:]:
            logging.getLogger().removeHandler(handler)

        def tell(what: dict[str, Any]) -> None:
            try:
                os.write(writing, json.dumps(what).encode() + b"\n")
                if "pid" in what:
                    os.close(writing)
            except OSError:  # whoever started us did not wait
                pass

        status = status_of(
            lambda: serve(service, tell, lambda warm, of: tell({"warm": warm, "of": of}), lambda: _cut_quietly(path))
        )
    finally:
        sys.stderr.flush()
        os._exit(status)


def _await(reading: int, service: Service, pid: int) -> dict[str, Any] | None:
    """What it says once it is ready; None: it ended. Draws the bar meanwhile."""
    from .service import BAR_AFTER, _new_bar

    began = time.monotonic()
    drawn = not service.quiet and sys.stderr.isatty() and not os.environ.get("AGENTFW_NO_PROGRESS")
    bar: Any = None
    rest = b""
    try:
        while True:
            select.select([reading], [], [])
            data = os.read(reading, 65536)
            if not data:
                return None
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                what: dict[str, Any] = json.loads(line)
                if "pid" in what:
                    return what
                if drawn and time.monotonic() - began > BAR_AFTER:
                    if bar is None:
                        bar = _new_bar(what["of"])
                    bar[0].update(
                        bar[1], description="warming VMs" if what["warm"] else "building templates", completed=what["warm"]
                    )
    finally:
        if bar is not None:
            bar[0].stop()


def _tail(path: Path, begin: int) -> str:
    """What was logged since."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(begin, end - SHOWN))
        return file.read(SHOWN).decode("utf-8", "replace")
