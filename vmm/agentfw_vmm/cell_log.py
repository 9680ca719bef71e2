"""What a cell writes to its standard error."""

from __future__ import annotations

import asyncio
import logging
import os

logger = logging.getLogger("agentfw.vmm")

_LINES = 2_000


class CellLog:
    """A cell's stderr: to the log by lines, the last of them kept for error texts."""

    def __init__(self) -> None:
        self.fd = -1
        self._pid = 0
        self._rest = b""
        self._last: list[str] = []
        self._lines = 0

    def open(self, fd: int, pid: int) -> None:
        self.fd, self._pid = fd, pid

    def drain(self) -> None:
        for _ in range(16):  # a cell that floods its stderr must not hold the loop
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self.fd)
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-4096:]
            for line in lines:
                text = "".join(c if c.isprintable() else "?" for c in line[:1000].decode("utf-8", "replace"))
                self._lines += 1
                if self._lines <= _LINES:
                    logger.warning("cell %d: %s", self._pid, text)
                self._last = [*self._last[-2:], text]

    def tail(self) -> str:
        return ": " + " | ".join(self._last) if self._last else ""

    def close(self) -> None:
        os.close(self.fd)
