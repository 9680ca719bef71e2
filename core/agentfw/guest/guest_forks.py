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
    random.seed()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        with contextlib.suppress(Exception):
            numpy.seed()
