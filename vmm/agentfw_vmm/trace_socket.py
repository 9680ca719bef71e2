"""The socket on which a cell tells of system calls, from the worker's side."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from . import trace
from .report import VmExit

logger = logging.getLogger("agentfw.vmm")

_TURN = 64  # messages of one turn of the loop
_LAST = 1 << 10  # when a VM has ended: more than a full socket holds (278 of the smallest); others of its cell go on sending


class TraceSocket:
    """`tracer` None: nobody wants to know, no socket. The cell's end is added to `opened`: to be inherited, then closed."""

    def __init__(self, tracer: trace.Tracer | None, opened: list[int]) -> None:
        self._tracer = tracer
        self._loop = asyncio.get_running_loop()
        self._ours: socket.socket | None = None
        self.theirs = -1
        if tracer is not None:
            self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            self.theirs = theirs.detach()
            opened.append(self.theirs)

    def open(self, live: Callable[[int], bool], broken: Callable[[str], None]) -> None:
        """The cell runs. `live(vm)`: whether its calls count. `broken(text)`: the cell sends what no cell sends."""
        self._live = live
        self._broken = broken
        if self._ours is not None:
            self._loop.add_reader(self._ours.fileno(), self.drain, _TURN)

    def ended(self, vm: int, report: VmExit) -> None:
        """VM `vm` has; what it did before is told first."""
        if self._tracer is not None:
            self.drain()
        if self._tracer is not None:
            self._tell(self._tracer.ended, vm, report)

    def drain(self, most: int = _LAST) -> None:
        """What has come so far, up to `most` messages."""
        while most and self._ours is not None and self._tracer is not None:
            most -= 1
            try:
                message = self._ours.recv(trace.MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self.close()
                return
            try:
                event = trace.parse(message)
            except ValueError as error:
                self.close()
                self._broken(f"the cell broke its protocol: of a system call it told {error}")
                return
            if self._live(event.vm):
                self._tell(self._tracer.call, event)

    def _tell(self, told: Callable[..., None], *what: object) -> None:
        """It prints, to what may be full or closed: who runs VMs goes on."""
        try:
            told(*what)
        except Exception:
            logger.exception("a tracer failed: it is told of no more system calls")
            self._tracer = None
            self.close()

    def close(self) -> None:
        if self._ours is not None:
            self._loop.remove_reader(self._ours.fileno())
            self._ours.close()
            self._ours = None
