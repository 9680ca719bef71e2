"""strace lines: the calls a guest made, as its shim reported them."""

from __future__ import annotations

import logging

logger = logging.getLogger("agentfw.vmm.strace")


def log(vm: int, a: int, b: int, c: int, arg: int) -> None:
    number, host = a & 0xFFFFFFFF, a >> 32
    result = b - (1 << 64) if b >> 63 else b
    logger.info("vm %d syscall %d(%#x, %#x) = %d%s", vm, number, c, arg, result, " (host)" if host else "")
