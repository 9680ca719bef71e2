"""Reading what an operator names: a slip (a pipe that nobody writes to, a device without an end) must not hold up all agents."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

PIECE = 1 << 20


def read_small(path: Path, most: int, *, pipes: bool = False) -> bytes:
    """The whole file (or what /dev/null has), of `most` bytes at most. `pipes`: a pipe will do, too, as `<(command)` of a shell
    is one, and is waited for.

    OSError, with a `strerror`, also if it is no file, or too large.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except ValueError:
        raise OSError(0, "its name has a NUL in it", str(path)) from None
    with os.fdopen(descriptor, "rb", buffering=0):
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(21, "Is a directory", str(path))
        if stat.S_ISFIFO(kind):
            if not pipes:
                raise OSError(0, "a pipe", str(path))
            # Not opened a second time without O_NONBLOCK: who waited for a reader may have written, and gone, in between.
            ready = select.poll()
            ready.register(descriptor, select.POLLIN)  # not at its end either while nobody has opened it for writing, fifo(7)
            ready.poll()
            os.set_blocking(descriptor, True)
        return _read(descriptor, path, most)


def _read(descriptor: int, path: Path, most: int) -> bytes:
    data = bytearray()
    while piece := os.read(descriptor, PIECE):
        data += piece
        if len(data) > most:
            raise OSError(27, f"larger than {most >> 20} MiB" if most >= 1 << 20 else f"larger than {most >> 10} KiB", str(path))
    return bytes(data)
