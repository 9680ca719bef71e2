"""A guest's socket without a guest."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable


class MemoryFlow:
    """Both ends of a guest's connection in memory. The host's end is `agentfw.flows.Flow`; the guest's methods begin with
    `guest_`.

    `ring`: bytes (or datagrams' bytes) that fit each way before the sender waits, as in the I/O window.
    """

    def __init__(self, address: str, port: int, kind: str = "tcp", ring: int = 65536) -> None:
        self.kind = kind
        self.address = address
        self.port = port
        self.ring = ring
        self.error: int | None = None
        """errno of `failed()`"""
        self.was_reset = False
        self.reset_error = 0
        """errno of `reset()`"""
        self.datagram_errors: list[tuple[int, str, int]] = []
        """What `send_datagram_error()` was called with."""
        self.host_closed = False
        self.guest_closed = False
        self._opened = False
        self._to_host = bytearray()
        self._to_guest = bytearray()
        self._guest_eof = False
        self._host_eof = False
        self._datagrams_in: deque[tuple[bytes, str, int]] = deque()
        self._datagrams_out: deque[tuple[bytes, str, int]] = deque()
        self._waiters: set[asyncio.Future[None]] = set()

    # -- host

    def opened(self, local_port: int = 0) -> None:
        assert not self._opened and self.error is None, "opened() or failed() was called before"
        self._opened = True
        self._wake()

    def failed(self, error: int) -> None:
        assert not self._opened and self.error is None, "opened() or failed() was called before"
        self.error = error
        self.host_closed = True
        self._wake()

    async def receive(self, limit: int = 65536) -> bytes:
        await self._until(lambda: bool(self._to_host) or self._guest_eof or self.guest_closed or self.host_closed)
        data = bytes(self._to_host[:limit])
        del self._to_host[:limit]
        self._wake()
        return data

    async def send(self, data: bytes) -> None:
        assert self._opened, "send() before opened()"
        view = memoryview(data)
        while view:
            await self._until(lambda: len(self._to_guest) < self.ring or self.guest_closed or self.host_closed)
            if self.guest_closed or self.host_closed:
                raise BrokenPipeError("the guest closed the flow")
            room = self.ring - len(self._to_guest)
            self._to_guest += view[:room]
            view = view[room:]
            self._wake()

    async def receive_datagram(self) -> tuple[bytes, str, int]:
        await self._until(lambda: bool(self._datagrams_in) or self.guest_closed or self.host_closed)
        if not self._datagrams_in:
            raise BrokenPipeError("the guest closed the flow")
        return self._datagrams_in.popleft()

    async def send_datagram(self, data: bytes, address: str, port: int) -> None:
        if self.guest_closed or self.host_closed:
            raise BrokenPipeError("the guest closed the flow")
        if sum(len(each[0]) for each in self._datagrams_out) + len(data) <= self.ring:
            self._datagrams_out.append((data, address, port))
            self._wake()

    async def wait_closed(self) -> None:
        await self._until(lambda: self.guest_closed or self.host_closed)

    def send_eof(self) -> None:
        self._host_eof = True
        self._wake()

    def send_datagram_error(self, error: int, address: str, port: int) -> None:
        self.datagram_errors.append((error, address, port))
        self._wake()

    def reset(self, error: int = errno.ECONNRESET) -> None:
        self.was_reset = True
        self.reset_error = error
        self.host_closed = True
        self._wake()

    def close(self) -> None:
        self.host_closed = True
        self._wake()

    # -- guest

    async def guest_connected(self) -> int:
        """0, or the errno that connect() gives."""
        await self._until(lambda: self._opened or self.error is not None)
        return self.error or 0

    async def guest_send(self, data: bytes) -> None:
        """BrokenPipeError once the host closed, as EPIPE."""
        view = memoryview(data)
        while view:
            await self._until(lambda: len(self._to_host) < self.ring or self.host_closed)
            if self.host_closed:
                raise BrokenPipeError("the host closed the flow")
            room = self.ring - len(self._to_host)
            self._to_host += view[:room]
            view = view[room:]
            self._wake()

    async def guest_receive(self, limit: int = 65536) -> bytes:
        """OSError (a ConnectionResetError, if no other errno was given) after `reset()`; b"" at the end."""
        await self._until(lambda: bool(self._to_guest) or self._host_eof or self.host_closed)
        if self.was_reset:
            raise OSError(self.reset_error, "reset by the host")
        data = bytes(self._to_guest[:limit])
        del self._to_guest[:limit]
        self._wake()
        return data

    async def guest_read_all(self) -> bytes:
        """Everything up to the end of stream."""
        pieces = []
        while piece := await self.guest_receive():
            pieces.append(piece)
        return b"".join(pieces)

    async def guest_read_until(self, marker: bytes) -> bytes:
        """Up to and with `marker`; EOFError if the stream ends before."""
        await self._until(lambda: marker in self._to_guest or self._host_eof or self.host_closed)
        end = self._to_guest.find(marker)
        if end < 0:
            raise EOFError(bytes(self._to_guest))
        data = bytes(self._to_guest[: end + len(marker)])
        del self._to_guest[: len(data)]
        self._wake()
        return data

    async def guest_send_datagram(self, data: bytes, address: str | None = None, port: int | None = None) -> None:
        self._datagrams_in.append((data, self.address if address is None else address, self.port if port is None else port))
        self._wake()

    async def guest_receive_datagram(self) -> tuple[bytes, str, int]:
        await self._until(lambda: bool(self._datagrams_out) or self.host_closed)
        if not self._datagrams_out:
            raise BrokenPipeError("the host closed the flow")
        return self._datagrams_out.popleft()

    def guest_send_eof(self) -> None:
        """shutdown(SHUT_WR)"""
        self._guest_eof = True
        self._wake()

    def guest_close(self) -> None:
        self.guest_closed = True
        self._wake()

    # -- both

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
