"""strace lines: the calls a guest made, as its shim reported them."""

from __future__ import annotations

import errno
import logging

from .syscalls import NUMBERS

logger = logging.getLogger("agentfw.vmm.strace")

_NAMES = {number: name for name, number in NUMBERS.items()}


def syscall_name(number: int) -> str:
    """`openat`, or `syscall_1000` for one that Linux does not have."""
    return _NAMES.get(number, f"syscall_{number}")


def line(a: int, b: int, c: int, arg: int) -> str:
    """One AFW_EV_TRACE as text: the call, its first two arguments (of the second the low 32 bits), its result, who answered."""
    number, host = a & 0xFFFFFFFF, a >> 32
    result = b - (1 << 64) if b >> 63 else b
    text = errno.errorcode.get(-result, str(result)) if -4096 < result < 0 else f"{result:#x}" if result > 9999 else str(result)
    return f"{syscall_name(number)}({c:#x}, {arg:#x}) = {text}{' [host]' if host & 1 else ''}"


def log(vm: int, a: int, b: int, c: int, arg: int) -> None:
    logger.info("vm %d: %s", vm, line(a, b, c, arg))
