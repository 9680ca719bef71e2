"""A guest's connection, seen from the worker: byte rings in memory that the guest can write at any time."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from collections.abc import Callable
from typing import Literal, Protocol

from ._lib import RING, Bytes, DgramStruct, Worker, lib, new_datagram, pointer, take, view
from .turns import Turns

_TELL_ABOVE = RING // 4  # bytes that were there: the library has the guest told of the room (flow.c)

logger = logging.getLogger("agentfw.vmm")


class FlowHost(Protocol):
    """What a flow needs of its cell."""

    worker: Worker
    scratch: Bytes  # RING bytes, for the duration of one call

    def changed(self) -> None:
        """A window was written: have its VM woken by the end of this loop iteration."""

    def note(self, vm: int, text: str) -> None:
        """To the log: what a guest did wrong."""

    def released(self, flow: GuestFlow) -> None:
        """Both sides are done: the slot is free."""


class GuestFlow:
    """A TCP or UDP socket of a guest, or one of the streams 0..3. Satisfies `agentfw.flows.Flow`.

    Not thread-safe; at most one task receives and one sends. Data received is a private copy. When the VM ends, what was in
    the ring can still be received, then the stream ends.
    """

    __slots__ = ("__weakref__", "_broken", "_closed", "_closers", "_free", "_host", "_listener", "_rest", "_turns", "_waiters",
                 "address", "gate", "index", "kind", "port", "vm")  # fmt: skip

    def __init__(
        self, host: FlowHost, vm: int, index: int, kind: Literal["tcp", "udp"], address: str, port: int, turns: Turns
    ) -> None:
        self.vm = vm
        self.index = index
        self.kind = kind
        self.address = address
        self.port = port
        self._host = host
        self._rest: bytes | None = None  # the VM is gone: the shared memory is no longer this flow's
        self._closed = False  # by us
        self._broken = False  # reset by us, or the guest corrupted its ring
        self._free = False
        self._waiters: list[asyncio.Future[None]] = []
        self._closers: list[asyncio.Future[None]] = []
        """Who waits for the end alone: not to be woken at each move of the rings."""
        self._listener: Callable[[], None] | None = None
        self._turns = turns
        self.gate: asyncio.Future[None] | None = None
        """Nothing is sent before it is done: the cell has not put the VM's rules into force yet."""

    def __repr__(self) -> str:
        return f"<GuestFlow vm {self.vm} flow {self.index} {self.kind} {self.address}:{self.port}>"

    async def turn(self) -> None:
        """Wait until this VM may have the worker do something. Each call that follows begins with it, before anything is taken
        from a ring: a task cancelled in here has lost nothing."""
        await self._turns.take()

    # -- connecting

    def opened(self, local_port: int = 0) -> None:
        """connect() succeeds in the guest; `local_port` is what getsockname() shows there."""
        if self._live():
            lib.afw_flow_state(self._host.worker, self.vm, self.index, lib.AFW_H_OPEN, 0, local_port)
            self._host.changed()

    def failed(self, error: int) -> None:
        """connect() fails in the guest with this (positive) errno; the flow is over."""
        if self._live():
            lib.afw_flow_state(self._host.worker, self.vm, self.index, lib.AFW_H_FAILED, error, 0)
            self._host.changed()
            self._broken = True
            self.close()

    # -- bytes

    async def receive(self, limit: int = RING) -> bytes:
        """1..limit bytes, or b"" at the guest's end of stream or close, and after `close()` or `reset()`."""
        if limit < 1:
            raise ValueError(f"receive of {limit} bytes")
        await self.turn()
        while True:
            data = self.read(limit)
            if data is not None:
                return data
            await self._wait()

    def read(self, limit: int = RING) -> bytes | None:
        """What is there, at most `limit` bytes, b"" at the end as `receive()` gives it; None: nothing yet.

        At once and without a turn: for who reads all that there is, and no more, each time that it is told (`listen()`).
        """
        if self._rest is not None:
            data, self._rest = self._rest[:limit], self._rest[limit:]
            return data
        if self._closed or self._broken:
            return b""
        host = self._host
        most = limit if limit < RING else RING
        count = lib.afw_flow_read(host.worker, self.vm, self.index, host.scratch, most)
        if count > 0:
            if count == most or count > _TELL_ABOVE:
                host.changed()  # the guest may wait for room
            return take(host.scratch, count)
        if count == -errno.EAGAIN:
            return None
        if count != -errno.ENODATA:
            self._hostile("send ring")
        return b""

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Instead of `receive()` and without a task: called whenever the guest says that there is more, and at the end; not for
        what is there already. None: no more."""
        self._listener = listener

    @property
    def gone(self) -> bool:
        """The VM is: what can be read is all that there will be, and nobody will be told."""
        return self._rest is not None

    def write(self, data: bytes) -> int:
        """As much of it as there is room for, at once; -> bytes. 0 also if the guest takes no more, or its rules are awaited."""
        if not self._live() or self.gate is not None:
            return 0
        count = lib.afw_flow_write(self._host.worker, self.vm, self.index, pointer(data), len(data))
        if count <= 0:
            return 0
        self._host.changed()
        return count

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Returns once all of it is in the ring. BrokenPipeError if the guest closed, reads no more, or is gone."""
        rest = memoryview(data)
        await self.turn()
        if self.gate is not None:
            await asyncio.shield(self.gate)
        while rest:
            if not self._live():
                raise BrokenPipeError(errno.EPIPE, "the guest closed the connection")
            host = self._host
            count = lib.afw_flow_write(host.worker, self.vm, self.index, pointer(rest), len(rest))
            if count > 0:
                host.changed()
                rest = rest[count:]
            elif count == -errno.EAGAIN:
                await self._wait()
            elif count == -errno.EPIPE:
                raise BrokenPipeError(errno.EPIPE, "the guest closed the connection")
            else:
                self._hostile("receive ring")

    # -- datagrams

    async def receive_datagram(self) -> tuple[bytes, str, int]:
        """(payload, peer address, peer port) of one datagram. BrokenPipeError once the guest closed."""
        await self.turn()
        while True:
            if not self._live():
                raise BrokenPipeError(errno.EPIPE, "the guest closed the socket")
            host = self._host
            head = new_datagram()
            count = lib.afw_flow_read_datagram(host.worker, self.vm, self.index, head, host.scratch)
            if count >= 0:
                host.changed()
                data = take(host.scratch, count)
                address, port = _peer(head)
                if not self.address:
                    self.address, self.port = address, port
                return data, address, port
            if count == -errno.EAGAIN:
                await self._wait()
            elif count == -errno.ENODATA:
                raise BrokenPipeError(errno.EPIPE, "the guest closed the socket")
            else:
                self._hostile("datagram ring")

    async def send_datagram(self, data: bytes, address: str, port: int) -> None:
        """To the guest, as from that peer. Dropped when the ring is full, as a network does.

        BrokenPipeError once the guest closed.
        """
        await self.turn()
        if not self._live():
            raise BrokenPipeError(errno.EPIPE, "the guest closed the socket")
        if len(data) > 65507:
            raise ValueError(f"datagram of {len(data)} bytes")
        self._give_datagram(data, address, port, 0)

    def send_datagram_error(self, error: int, address: str, port: int) -> None:
        """What was sent to that peer was refused: this errno, once, if the socket is connected. Dropped as a datagram is."""
        if self._live():
            self._give_datagram(b"", address, port, error)

    def _give_datagram(self, data: bytes, address: str, port: int, error: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        head = new_datagram()  # its own: other threads have cells, too, and C code runs without the GIL
        head.len, head.port, head.family, head.error = len(data), port, family, error
        view(head.addr, 16)[:] = socket.inet_pton(family, address).ljust(16, b"\0")
        count = lib.afw_flow_write_datagram(self._host.worker, self.vm, self.index, head, pointer(data))
        if count > 0:
            self._host.changed()
        elif count == -errno.EPIPE:
            raise BrokenPipeError(errno.EPIPE, "the guest closed the socket")
        elif count == -errno.EPROTO:
            self._hostile("receive ring")

    # -- ending

    def send_eof(self) -> None:
        """The guest reads end of stream after what was sent."""
        if self._live():
            lib.afw_flow_flags(self._host.worker, self.vm, self.index, lib.AFW_HF_RX_EOF)
            self._host.changed()

    def reset(self, error: int = errno.ECONNRESET) -> None:
        """This errno in the guest; nothing more is received or sent."""
        if self._live():
            self._broken = True
            lib.afw_flow_reset(self._host.worker, self.vm, self.index, error)
            self._host.changed()
            self._wake()

    def close(self) -> None:
        """The worker is done with it. Idempotent; the guest can still read bytes sent before, then end of stream."""
        if self._closed:
            return
        if self._live():
            lib.afw_flow_flags(self._host.worker, self.vm, self.index, lib.AFW_HF_RX_EOF)
            self._host.changed()
        self._closed = True
        if self._rest is None:
            self._try_free()
        self._rest = None if self._rest is None else b""
        self._wake()

    async def wait_closed(self) -> None:
        """Returns once the guest has no descriptor left (not at a mere shutdown()), it is gone, or we closed or reset."""
        while not self._over():
            await self._wait(self._closers)

    # -- called by the cell

    def look(self) -> None:
        """The guest says that something changed."""
        if self._rest is not None or self._free:
            return
        if self._closed and not self._try_free():
            self._discard()
        self._wake()

    def end(self, nothing: bool = False) -> None:
        """The VM is gone: keep what it sent, touch its memory no more. `nothing`: that is gone, too."""
        if self._rest is not None:
            return
        rest = b""
        if self.kind == "tcp" and not self._closed and not self._broken and not nothing:
            count = lib.afw_flow_read(self._host.worker, self.vm, self.index, self._host.scratch, RING)
            if count > 0:
                rest = take(self._host.scratch, count)
        self._rest = rest
        self._wake()

    # -- inside

    def _live(self) -> bool:
        return self._rest is None and not self._closed and not self._broken

    def _over(self) -> bool:
        return not self._live() or bool(self._gflags() & lib.AFW_G_CLOSED)

    def _gflags(self) -> int:
        return lib.afw_flow_gflags(self._host.worker, self.vm, self.index)

    def _try_free(self) -> bool:
        if self._free or not self._gflags() & lib.AFW_G_CLOSED:
            return self._free
        self._free = True
        lib.afw_flow_free(self._host.worker, self.vm, self.index)
        self._host.changed()
        self._host.released(self)
        return True

    def _discard(self) -> None:
        """We closed, the guest did not and goes on writing: as TCP, answer with a reset, but let it read what came before."""
        worker, vm, index = self._host.worker, self.vm, self.index
        if lib.afw_flow_pending(worker, vm, index) == 0:
            return
        lib.afw_flow_discard(worker, vm, index)
        if lib.afw_flow_unread(worker, vm, index) <= 0:
            lib.afw_flow_flags(worker, vm, index, lib.AFW_HF_RESET)
        self._host.changed()

    def _hostile(self, what: str) -> None:
        self._host.note(self.vm, f"corrupted the {what} of flow {self.index}: connection reset")
        self.reset()

    async def _wait(self, waiters: list[asyncio.Future[None]] | None = None) -> None:
        """Until the guest said that something changed, or the flow's state did."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters if waiters is None else waiters
        waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in waiters:
                waiters.remove(waiter)

    def _wake(self) -> None:
        _release(self._waiters)
        if self._closers and self._over():
            _release(self._closers)
        if self._listener is not None:
            try:
                self._listener()
            except Exception:  # its own; who tells of events goes on
                logger.exception("%r: a listener failed", self)


def asked(a: int, b: int, c: int) -> tuple[Literal["tcp", "udp"], str, int, int]:
    """Kind, address, port and errno (0: none) of what a guest wants to connect to, from an AFW_EV_FLOW_OPEN."""
    kind, family, port = a & 0xFFFF, a >> 16 & 0xFFFF, a >> 32
    raw = struct.pack("<QQ", b, c)
    error = 0
    address = ""
    if kind not in (lib.AFW_KIND_TCP, lib.AFW_KIND_UDP):
        error = errno.EPROTONOSUPPORT
    elif family == socket.AF_INET:
        address = socket.inet_ntop(family, raw[:4])
    elif family == socket.AF_INET6:
        address = socket.inet_ntop(family, raw)
    else:
        error = errno.EAFNOSUPPORT
    if port > 65535:
        error = errno.EINVAL
    if kind == lib.AFW_KIND_UDP and not port:
        address = ""  # not connected: the first datagram tells
    return "udp" if kind == lib.AFW_KIND_UDP else "tcp", address, port, error


def _release(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


def _peer(head: DgramStruct) -> tuple[str, int]:
    raw = take(head.addr, 16)
    if head.family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[:4]), head.port
    return socket.inet_ntop(socket.AF_INET6, raw), head.port
