"""What the core needs of a guest's connection. `agentfw_vmm.GuestFlow` is the real one, `agentfw.testing.MemoryFlow` one
without a VM."""

from __future__ import annotations

import errno
from typing import Protocol

_TOLD = frozenset({errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN})


def errno_of(error: BaseException) -> int:
    """What a guest is told of an error on its connection's other side: as if it had met with it itself, else ECONNRESET."""
    if isinstance(error, TimeoutError):
        return errno.ETIMEDOUT
    number = getattr(error, "errno", None)
    return number if number in _TOLD else errno.ECONNRESET


class Flow(Protocol):
    """A TCP or UDP socket of a guest, seen from the host. Exactly one of `opened()` and `failed()` is called first.

    All bytes received are private copies: the guest cannot change them afterwards.
    """

    @property
    def kind(self) -> str:
        """ "tcp" or "udp"."""

    @property
    def address(self) -> str:
        """Numeric peer address the guest named; for an unconnected UDP socket that of the first datagram, or ""."""

    @property
    def port(self) -> int: ...

    def opened(self, local_port: int = 0) -> None:
        """connect() succeeds in the guest."""

    def failed(self, error: int) -> None:
        """connect() fails with this (positive) errno; the flow is over."""

    async def receive(self, limit: int = 65536) -> bytes:
        """1..limit bytes, or b"" at the guest's end of stream or close."""

    async def send(self, data: bytes) -> None:
        """Returns once all of it is in the ring: backpressure. BrokenPipeError if the guest closed."""

    async def receive_datagram(self) -> tuple[bytes, str, int]:
        """(payload, peer address, peer port). BrokenPipeError once the guest closed."""

    async def send_datagram(self, data: bytes, address: str, port: int) -> None:
        """To the guest, as from that peer. Dropped when the ring is full, as a network does."""

    async def wait_closed(self) -> None:
        """Returns once the guest has no descriptor left (not at a mere shutdown(SHUT_WR)), or the flow was closed by the host."""

    def send_eof(self) -> None:
        """The guest reads end of stream after what was sent."""

    def send_datagram_error(self, error: int, address: str, port: int) -> None:
        """What the guest sent to that peer met with this errno: told once, in its next call, if its socket is connected."""

    def reset(self, error: int = errno.ECONNRESET) -> None:
        """This errno in the guest's next call."""

    def close(self) -> None:
        """The host is done with it. Idempotent; bytes already sent can still be read by the guest."""
