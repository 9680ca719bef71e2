"""What one VM did: system calls by count and time, files opened, what file rules refused (struct afw_sight of cell.h).

Calls are counted in the guest, operations and files by its cell. Either may be a hostile guest's word: shown, believed by nobody.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from . import rules
from ._lib import lib
from .syscalls import NUMBERS

_HEAD = struct.Struct("<IIIIQ")
_OP = struct.Struct("<IIQQ")
_CALL = struct.Struct("<Q")
_FILE = struct.Struct("<IIIHHHBBI")
_CALLS_FROM = 0x1000  # AFW_OP_CALL
_NAMES = {number: name for name, number in NUMBERS.items()}


def _families(text: str) -> Mapping[int, tuple[str, ...]]:
    """By operation, from lines of its name and of the calls that may come to it."""
    rows = (line.split() for line in text.split("\n") if line)
    return MappingProxyType({getattr(lib, f"AFW_OP_{name.upper()}"): tuple(calls) for name, *calls in rows})


_FAMILIES = _families("""
close close dup2 dup3 close_range
pread read pread64 readv preadv preadv2 sendfile
pwrite write pwrite64 writev pwritev pwritev2 sendfile
fstat fstat newfstatat statx lseek read
readdir getdents64
seek lseek
mknod bind
access connect sendto
commit mmap brk mremap clone clone3
mapfile mmap mremap
zero munmap mmap madvise brk mremap
protect mprotect mmap munmap brk
remap mremap
flow_open connect sendto sendmsg sendmmsg
flow_kick write sendto sendmsg writev sendmmsg recvfrom read recvmsg shutdown close
socket socket getsockopt setsockopt socketpair
ready openat open
exit exit_group exit
random getrandom
cpuid
""")
_OWN_NAMES = {getattr(lib, name): name[7:].lower() for name in dir(lib) if name.startswith("AFW_OP_") and name != "AFW_OP_CALL"}


@dataclass(frozen=True, slots=True)
class SyscallCount:
    """`count`: all, those that never left the VM among them, by the guest's word. `host_count`: operations that the host did for
    it (a call may take several, or none), `errors` of them that failed, `host_seconds` for all of them together, without the way
    there and back. A name in parentheses is no call's: the host did that for the guest itself."""

    name: str
    count: int
    host_count: int = 0
    host_seconds: float = 0.0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Operation:
    """What the host did by one of the ring's operations, and names of the calls that come to it."""

    name: str
    calls: tuple[str, ...]
    count: int
    errors: int
    seconds: float


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """`path` as it really is in the guest, or as the program gave it if there is none such; cut to 255 bytes, without control
    characters. `mode`: "r", "w", "rw"; "p": to be named only (O_PATH); "": not opened, but looked at or changed, and refused.
    `error`: errno's name, "" if it was opened. `rule`: the file rule that refused it ("hide **/.ssh"), "" if none did, or the
    cell's own, which comes of another."""

    path: str
    mode: str
    count: int
    error: str = ""
    rule: str = ""


class Sight:
    """As one VM stood when it was looked at. It keeps a copy of some kilobytes, and reads it when it is asked."""

    __slots__ = ("__dict__", "_raw", "_rules")

    def __init__(self, raw: bytes = b"", table: bytes = b"") -> None:
        self._raw = raw
        self._rules = table

    def __reduce__(self) -> tuple[type[Sight], tuple[bytes, bytes]]:
        return Sight, (self._raw, self._rules)

    @cached_property
    def _head(self) -> tuple[int, int, int, int]:
        """Of operations, calls, files how many; opens that there was no room for."""
        if len(self._raw) < _HEAD.size:
            return 0, 0, 0, 0
        ops, calls, files, _, more = _HEAD.unpack_from(self._raw)
        return ops, calls, files, more

    @property
    def more_files(self) -> int:
        """Opens of files that are not in `opened()`, for there was no room."""
        return self._head[3]

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return len(self._raw) + len(self._rules) + 200

    @property
    def files(self) -> int:
        """How many there are in `opened()`."""
        return self._head[2]

    def counts(self) -> dict[str, int]:
        """Of all calls that the guest has made, by name. Numbers that Linux does not know are in `VmStatistics.n_enosys`."""
        ops, calls, _, _ = self._head
        at = _HEAD.size + ops * _OP.size
        found = (_CALL.unpack_from(self._raw, at + i * _CALL.size)[0] for i in range(calls))
        return {_name(entry >> 48): entry & 0xFFFF_FFFF_FFFF for entry in found}

    def operations(self) -> list[Operation]:
        """Those of the host, most time first."""
        found = []
        for i in range(self._head[0]):
            op, errors, count, ns = _OP.unpack_from(self._raw, _HEAD.size + i * _OP.size)
            if op == lib.AFW_SIGHT_OTHER or op < _CALLS_FROM:
                name = "other" if op == lib.AFW_SIGHT_OTHER else _OWN_NAMES.get(op, "unknown")
                found.append(Operation(name, _FAMILIES.get(op, ()), count, errors, ns / 1e9))
            else:
                name = _name(op - _CALLS_FROM)
                found.append(Operation(name, (name,), count, errors, ns / 1e9))
        return sorted(found, key=lambda each: -each.seconds)

    def syscalls(self) -> list[SyscallCount]:
        """Most first. Where several calls come to the same operation, it is with the one that the guest made most."""
        counts = self.counts()
        host: dict[str, list[float]] = {}
        for each in self.operations():
            if each.count:
                name = max(each.calls, key=lambda call: counts.get(call, 0), default=f"({each.name})")
                row = host.setdefault(name, [0, 0.0, 0])
                row[0] += each.count
                row[1] += each.seconds
                row[2] += each.errors
        rows = []
        for name in {**counts, **host}:
            count, seconds, errors = host.get(name, (0, 0.0, 0))
            rows.append(SyscallCount(name, counts.get(name, 0), int(count), float(seconds), int(errors)))
        return sorted(rows, key=lambda row: (-max(row.count, row.host_count), row.name))

    def opened(self) -> list[OpenedFile]:
        """In the order in which they were opened, or refused, first; each once, as far as their paths can be told apart."""
        ops, calls, files, _ = self._head
        at = _HEAD.size + ops * _OP.size + calls * _CALL.size
        found: dict[tuple[str, str, str, str], int] = {}
        for _ in range(files):
            size, count, _, length, error, rule, mode, action, _ = _FILE.unpack_from(self._raw, at)
            path = self._raw[at + _FILE.size : at + _FILE.size + length].decode("utf-8", "replace")
            text = "".join(c if c.isprintable() else "?" for c in path)
            key = text, _MODES.get(mode, ""), _errno(error), self._rule(rule, action)
            found[key] = found.get(key, 0) + count
            at += size
        return [OpenedFile(path, mode, count, error, rule) for (path, mode, error, rule), count in found.items()]

    def _rule(self, number: int, action: int) -> str:
        if not number and not action:
            return ""
        rule = rules.rule_at(self._rules, number - 1)
        return f"{rule.action} {rule.pattern}" if rule is not None and rules.number_of(rule.action) == action else ""


_MODES = {1: "r", 2: "w", 3: "rw", 4: "p"}


def _name(number: int) -> str:
    return _NAMES.get(number, f"syscall_{number}")


def _errno(number: int) -> str:
    return errno.errorcode.get(number, f"E{number}") if number else ""
