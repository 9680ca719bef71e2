"""What makes the copies of a running agent differ (docs/pool.md, "Agents that branch")."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import struct
import sys
import types

FORK_SIGNAL = 63  # AFW_FORK_SIGNAL in shim/abi.h
FORK_FILL = 0x204178  # where AFW_CTL has its field fork_fill (tests/test_abi.py)


def prepare() -> None:
    """A copy of a running VM has other random numbers: the cell fills the state of `random`'s own generator before anything runs
    in it, for all threads; what needs Python is done at the main thread's next bytecode."""
    if not os.uname().release.endswith("-agentfw"):
        return
    generator = random._inst
    words = generator.getstate()[1][:-1]
    memory = ctypes.string_at(id(generator), type(generator).__basicsize__)
    at = memory.find(struct.pack(f"{len(words)}I", *words))
    if at >= 0 and len(words) == 624:
        ctypes.c_uint64.from_address(FORK_FILL).value = id(generator) + at
    signal.signal(FORK_SIGNAL, _forked)


def _forked(number: int, frame: types.FrameType | None) -> None:
    """In the copy. As with fork(), generators that the program made itself are not touched."""
    _keep_loops()
    random.seed()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        with contextlib.suppress(Exception):
            numpy.seed()


def _keep_loops() -> None:
    """Up to CPython 3.11 an event loop counts as running only in the process that began to run it: the main thread's goes on."""
    if sys.version_info >= (3, 12):
        return
    address = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_GetDict", ctypes.pythonapi))()  # a borrowed reference
    if not address:
        return
    holder = ctypes.cast(address, ctypes.py_object).value.get("__asyncio_running_event_loop__")
    if type(holder).__name__ == "_RunningLoopHolder" and type(holder).__basicsize__ == 32:
        ctypes.c_int.from_address(id(holder) + 24).value = os.getpid()  # behind the object's head and the loop
