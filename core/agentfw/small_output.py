"""What a program that an operator names prints: bounded in bytes and in time, and all that it started ends with it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

PIECE = 65536


class NoOutput(Exception):
    """Why there is none: one line, with nothing of what the program printed."""


def small_output(argv: Sequence[str], seconds: float, most: int, running: set[subprocess.Popen[bytes]] | None = None) -> bytes:
    """Run it to its end; -> what it wrote to stdout, at most `most` bytes. Its errors may quote secrets: they are not looked at.
    `running` has it meanwhile, for who may want to `kill()` it. Blocks; NoOutput, also if it did not end with 0."""
    running = set() if running is None else running
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise NoOutput(f"it cannot be run: {getattr(error, 'strerror', None) or 'bad arguments'}") from None
    assert process.stdout is not None
    running.add(process)
    try:
        deadline = time.monotonic() + seconds
        data = _read(process.stdout.fileno(), most, deadline)
        if data is not None and len(data) > most:
            raise NoOutput("it printed too much")
        if data is None or not _ended(process.pid, deadline):
            raise NoOutput(f"it did not end within {seconds:g} s")
    except ChildProcessError:
        raise NoOutput("how it ended is not known: this process ignores SIGCHLD") from None
    finally:
        kill(process)  # before wait(): until then the number is its own
        running.discard(process)
        code = process.wait()
        process.stdout.close()
    if code:
        raise NoOutput(f"it was ended by signal {-code}" if code < 0 else f"it ended with status {code}")
    return data


def kill(process: subprocess.Popen[bytes]) -> None:
    """It, and all that it started and that is still its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _ended(pid: int, deadline: float) -> bool:
    """It has, by then; its status, and with it its number, are left there."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _read(descriptor: int, most: int, deadline: float) -> bytes | None:
    """Until the end or more than `most` bytes; None if it takes too long."""
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(data) <= most:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return None
            piece = os.read(descriptor, PIECE)
            if not piece:
                break
            data += piece
    return data
