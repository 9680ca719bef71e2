"""What a VM did, made up: the bytes that a worker gets of a cell."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from agentfw.agents import VmReport
from agentfw_vmm import Sight, VmStatistics
from agentfw_vmm.syscalls import NUMBERS

from .cell_peer import C


def made(
    calls: Mapping[str, int] | None = None,
    ops: Iterable[tuple[str, int, int, float]] = (),
    files: Iterable[tuple[str, int, int, int, int, int]] = (),
    more: int = 0,
    table: bytes = b"",
) -> Sight:
    """`ops`: an operation ("pread") or call ("openat"), count, errors, seconds; `files`: path, AFW_SIGHT_* mode, count, errno,
    rule + 1, AFW_RULE_*."""
    counted = b"".join(struct.pack("<Q", NUMBERS[name] << 48 | count) for name, count in (calls or {}).items())
    done, opened = b"", b""
    done_n = opened_n = 0
    for name, count, errors, seconds in ops:
        op = C.get(f"AFW_OP_{name.upper()}", 0x1000 + NUMBERS.get(name, 0))
        done += struct.pack("<IIQQ", op, errors, count, round(seconds * 1e9))
        done_n += 1
    for path, mode, count, error, rule, action in files:
        data = path.encode("utf-8", "surrogateescape")[:255]
        size = 24 + len(data) + 7 & ~7
        head = struct.pack("<IIIHHHBBI", size, count, len(data), len(data), error, rule, mode, action, 0)
        opened += (head + data).ljust(size, b"\0")
        opened_n += 1
    return Sight(struct.pack("<IIIIQ", done_n, len(calls or {}), opened_n, 0, more) + done + counted + opened, table)


def report(sight: Sight, **counters: int) -> VmReport:
    return VmReport(VmStatistics(**{**dict.fromkeys(VmStatistics._fields, 0), **counters}), sight, 0.5)
