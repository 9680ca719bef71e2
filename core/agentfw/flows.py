"""What the core needs of a guest's connection. `agentfw_vmm.GuestFlow` is the real one, `agentfw.testing.MemoryFlow` one
without a VM."""

from __future__ import annotations

from typing import Protocol


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

    def reset(self) -> None:
        """ECONNRESET in the guest."""

    def close(self) -> None:
        """The host is done with it. Idempotent; bytes already sent can still be read by the guest."""
