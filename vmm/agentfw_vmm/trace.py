"""System calls of VMs as their cell tells them (vmm/native/cell/tracing.c): what the messages hold.

All of it is the guest's word. A cell that was taken over may send anything, so a message is checked as it is taken apart.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .report import VmExit

#: Bytes of a message at most (RECORD in tracing.c).
MESSAGE = 32 << 10
#: Places of chunks: argument n, or pieces of vectors (cell.h).
NAME = 31
PIECES = 32

TEXT, BYTES, COUNTED, RESULT, LENGTH, VECTOR, MESSAGE_HEADER = range(1, 8)

_HEAD = struct.Struct("<IIIIQQQQ6QII")
_CHUNK = struct.Struct("<HHI")
_COPY = struct.Struct("<IBBBBII")
_ENTRY, _LEAVE, _SIGNAL = 1, 2, 3


@dataclass(frozen=True)
class Copy:
    """What to copy for call `number` (struct afw_trace_copy): `limit` bytes at most, of elements of `unit` bytes."""

    number: int
    leave: bool
    kind: int
    arg: int
    size: int = 0
    limit: int = 4096
    unit: int = 1

    def packed(self) -> bytes:
        return _COPY.pack(self.number, self.leave, self.kind, self.arg, self.size, self.limit, self.unit)


@dataclass
class Chunk:
    """Guest memory. `broken`: what comes after these bytes cannot be read."""

    data: bytes
    broken: bool = False


@dataclass
class Event:
    """A call's beginning (`entry`), its end, or a signal that is delivered (`signal`): `number` is it, `result` its si_code, and
    `args` begin with the words of its siginfo at 16 and 24. `ns`: CLOCK_MONOTONIC; `lost`: messages before it that nobody
    took."""

    vm: int
    entry: bool
    tid: int
    host: bool
    number: int
    result: int
    ns: int
    args: tuple[int, ...]
    lost: int = 0
    memory: dict[int, Chunk] = field(default_factory=dict)
    signal: bool = False


class Tracer(Protocol):
    """Who is told of the system calls of a cell's VMs (CellConfig.trace). Called on the loop of the cell; must not raise."""

    def copies(self) -> Iterable[Copy]:
        """What is to be copied for which call; asked once, before the cell starts."""

    def call(self, event: Event) -> None:
        """A call began or ended, or a signal was delivered."""

    def ended(self, vm: int, report: VmExit) -> None:
        """After the last of them."""


def plan(fd: int, copies: Iterable[Copy]) -> bytes:
    """Content of AFW_REC_TRACE."""
    return struct.pack("<II", fd, 0) + b"".join(copy.packed() for copy in copies)


def parse(message: bytes) -> Event:
    """ValueError: it is not one of the cell's messages."""
    if len(message) < _HEAD.size:
        raise ValueError(f"{len(message)} bytes")
    vm, kind, tid, host, number, result, ns, _, *args, lost, chunks = _HEAD.unpack_from(message)
    if kind not in (_ENTRY, _LEAVE, _SIGNAL):
        raise ValueError(f"kind {kind}")
    event = Event(vm, kind == _ENTRY, tid, bool(host), number, _signed(result), ns, tuple(args), lost, signal=kind == _SIGNAL)
    at = _HEAD.size
    for _ in range(chunks):
        if len(message) - at < _CHUNK.size:
            raise ValueError("a chunk lies outside")
        place, error, size = _CHUNK.unpack_from(message, at)
        at += _CHUNK.size
        if size > len(message) - at:
            raise ValueError(f"a chunk of {size} bytes lies outside")
        event.memory[place] = Chunk(message[at : at + size], bool(error))
        at += size
    return event


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
