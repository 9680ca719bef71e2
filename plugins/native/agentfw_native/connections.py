"""`agentfw.Upstream` over plain sockets.

Nothing is kept here: what was sent is in the kernel's buffers when `send()` returns, what was not received stays there, so a slow
reader or a stalled peer holds up its own flow only, and costs no memory of ours.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from agentfw import Destination, TlsInfo

LARGEST = 65536
"""Bytes that one datagram can have."""


class _Ready:
    """Waiting for one direction of a socket. Registered with the loop only while somebody waits."""

    __slots__ = ("_add", "_future", "_remove", "_sock")

    def __init__(self, sock: socket.socket, add: Callable[..., None], remove: Callable[[socket.socket], object]) -> None:
        self._sock = sock
        self._add = add
        self._remove = remove
        self._future: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Until it is ready, or `stop()`."""
        if self._future is not None:
            raise RuntimeError("two tasks wait for one direction of a connection")
        future = self._future = asyncio.get_running_loop().create_future()
        self._add(self._sock, self.stop)
        try:
            await future
        finally:
            self.stop()

    def stop(self) -> None:
        """Who waits goes on; the loop knows the socket no more."""
        future, self._future = self._future, None
        if future is not None:
            self._remove(self._sock)
            if not future.done():
                future.set_result(None)


class _Base:
    """What streams and datagram sockets have in common. `on_release(reusable)` decides what becomes of the socket."""

    tls: TlsInfo | None = None

    def __init__(
        self, sock: socket.socket, destination: Destination, on_release: Callable[[bool], bool], *, reused: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        self.destination = destination
        self.address = str(sock.getpeername()[0])
        self.reused = reused
        self._sock = sock
        self._on_release = on_release
        self._released = False
        self._readable = _Ready(sock, loop.add_reader, loop.remove_reader)
        self._writable = _Ready(sock, loop.add_writer, loop.remove_writer)

    def _check(self) -> None:
        if self._released:
            raise ConnectionError("the connection was released")

    async def receive(self, limit: int = 65536) -> bytes:
        while True:
            self._check()
            try:
                return self._sock.recv(limit)
            except (BlockingIOError, InterruptedError):
                await self._readable.wait()

    def release(self, *, reusable: bool = False) -> None:
        if self._released:
            return
        self._released = True
        self._readable.stop()
        self._writable.stop()
        if not self._on_release(reusable):
            self._sock.close()


class StreamUpstream(_Base):
    """A TCP connection."""

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._check()
            try:
                view = view[self._sock.send(view) :]
            except (BlockingIOError, InterruptedError):
                await self._writable.wait()

    async def send_eof(self) -> None:
        self._check()
        with suppress(OSError):  # it may be gone already: reading tells
            self._sock.shutdown(socket.SHUT_WR)


class DatagramUpstream(_Base):
    """A connected UDP socket. What an ICMP message said about what was sent raises once, in the next call."""

    async def send(self, data: bytes) -> None:
        self._check()
        with suppress(BlockingIOError):  # no room: lost, as on any way
            self._sock.send(data)

    async def receive(self, limit: int = LARGEST) -> bytes:
        return await super().receive(limit)

    async def send_eof(self) -> None:
        """Datagrams have no end."""


async def connect_stream(sock: socket.socket, destination: Destination) -> StreamUpstream:
    """Takes over a connected socket, which is closed in the end."""
    return StreamUpstream(sock, destination, lambda reusable: False)
