"""`agentfw.Upstream` over plain sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import cast

from agentfw import Destination, TlsInfo

HIGH_WATER = 262144
"""Bytes received and not yet taken, after which reading pauses."""
MAX_DATAGRAMS = 256
FLUSH_TIMEOUT = 30.0
"""Seconds that bytes already handed over may still take to leave after `release()`."""


class _Base:
    """What streams and datagram sockets have in common."""

    reused = False
    tls: TlsInfo | None = None

    def __init__(self, destination: Destination, address: str) -> None:
        self.destination = destination
        self.address = address
        self._reader: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._released = False

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def _wait(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _check(self) -> None:
        if self._released:
            raise ConnectionError("the connection was released")


class StreamUpstream(_Base, asyncio.Protocol):
    """A TCP connection. Reading pauses when nobody takes the bytes; `send()` waits when the socket takes none."""

    def __init__(self, destination: Destination, address: str) -> None:
        super().__init__(destination, address)
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._paused = False
        self._eof = False
        self._lost = False
        self._writable: asyncio.Future[None] | None = None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=65536)

    def data_received(self, data: bytes) -> None:
        if self._released:
            return
        self._buffer += data
        if len(self._buffer) > HIGH_WATER and not self._paused:
            self._paused = True
            assert self._transport is not None
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._eof = True
        self._wake()
        return True  # our half stays open

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._error = self._error or exc
        self._wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        waiter, self._writable = self._writable, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- agentfw.Upstream

    async def send(self, data: bytes) -> None:
        self._check()
        if self._lost or self._transport is None or self._transport.is_closing():
            raise self._error or BrokenPipeError("the connection is closed")
        self._transport.write(data)
        while self._writable is not None:
            await asyncio.shield(self._writable)
        if self._lost:
            raise self._error or BrokenPipeError("the connection is closed")

    async def receive(self, limit: int = 65536) -> bytes:
        while not self._buffer and not self._eof:
            self._check()
            if self._lost:
                if self._error is not None:
                    raise self._error
                return b""
            await self._wait()
        data = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        if self._paused and len(self._buffer) <= HIGH_WATER // 2 and self._transport is not None:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return data

    async def send_eof(self) -> None:
        self._check()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def release(self, *, reusable: bool = False) -> None:
        """Closed in any case: there is no pool for plain connections."""
        if self._released:
            return
        self._released = True
        self._buffer.clear()
        self._wake()
        transport = self._transport
        if transport is not None and not self._lost:
            transport.close()  # flushes first
            if transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(FLUSH_TIMEOUT, transport.abort)


class DatagramUpstream(_Base, asyncio.DatagramProtocol):
    """A connected UDP socket. Datagrams that nobody takes in time are dropped, oldest first."""

    def __init__(self, destination: Destination, address: str) -> None:
        super().__init__(destination, address)
        self._transport: asyncio.DatagramTransport | None = None
        self._queue: deque[bytes] = deque(maxlen=MAX_DATAGRAMS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._queue.append(data)
        self._wake()

    def error_received(self, exc: Exception) -> None:
        self._error = exc
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = exc or ConnectionError("the socket is closed")
        self._wake()

    async def send(self, data: bytes) -> None:
        self._check()
        assert self._transport is not None
        self._transport.sendto(data)

    async def receive(self, limit: int = 65536) -> bytes:
        while not self._queue:
            self._check()
            if self._error is not None:  # an ICMP error, once
                error, self._error = self._error, None
                raise error
            await self._wait()
        return self._queue.popleft()[:limit]

    async def send_eof(self) -> None:
        """Datagrams have no end."""

    def release(self, *, reusable: bool = False) -> None:
        if not self._released:
            self._released = True
            self._wake()
            if self._transport is not None:
                self._transport.close()


async def connect_stream(sock: socket.socket, destination: Destination) -> StreamUpstream:
    """Takes over a connected socket."""
    try:
        upstream = StreamUpstream(destination, str(sock.getpeername()[0]))
        await asyncio.get_running_loop().create_connection(lambda: upstream, sock=sock)
    except BaseException:
        sock.close()
        raise
    return upstream


async def connect_datagram(sock: socket.socket, destination: Destination) -> DatagramUpstream:
    """Takes over a connected socket."""
    try:
        upstream = DatagramUpstream(destination, str(sock.getpeername()[0]))
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: upstream, sock=sock)
    except BaseException:
        sock.close()
        raise
    return upstream
