"""Bytes, counted where an agent's sockets meet the host, and limits that cut them.

Every flow of a guest is served through a `MeteredFlow`. What passes is added to the agent's `Traffic` (`Runtime.traffic(agent)`),
to the `Meter`s that plugins attached to it, and to those that the `meters` hook names for the flow's destination. The agent's
side is what counts: heads and framing too, TLS records if the agent makes them itself, questions to the resolver; not the host's
handshakes. One addition a piece and meter.

A meter that is used up raises what its `refuse` raises, before the piece goes on: HTTP answers it if it still can, and resets the
flow otherwise; a raw flow is reset; datagrams are dropped; the resolver refuses; new connections are refused.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from .flows import Flow


class Meter:
    """Bytes and open connections of whatever flows it is attached to. May be shared by agents.

    `refuse(what)` is called when a limit is passed, with "bytes_up", "bytes_down", "bytes" or "connections"; it raises `Denied`,
    or returns to let it pass (and is called again for the next piece). Limits may be changed at any time; None: no limit.
    """

    __slots__ = ("_limited", "_max_bytes", "_max_down", "_max_up", "connections", "down", "max_connections", "refuse", "up")

    def __init__(
        self,
        refuse: Callable[[str], None],
        *,
        max_up: int | None = None,
        max_down: int | None = None,
        max_bytes: int | None = None,
        max_connections: int | None = None,
    ) -> None:
        self.up = 0
        """Bytes that agents sent."""
        self.down = 0
        """Bytes that agents were sent."""
        self.connections = 0
        """TCP flows that are open, and peers of UDP sockets; those to the resolver do not count."""
        self.refuse = refuse
        self.limit(max_up=max_up, max_down=max_down, max_bytes=max_bytes, max_connections=max_connections)

    def limit(
        self,
        *,
        max_up: int | None = None,
        max_down: int | None = None,
        max_bytes: int | None = None,
        max_connections: int | None = None,
    ) -> None:
        """Set all limits anew; what was counted stays. `max_bytes`: both ways together."""
        self._max_up = max_up
        self._max_down = max_down
        self._max_bytes = max_bytes
        self.max_connections = max_connections
        self._limited = max_up is not None or max_down is not None or max_bytes is not None

    def passed(self) -> None:
        """Bytes were added: `refuse()` if that is beyond a limit. They stay counted."""
        if self._limited:
            self._check(0)

    def check(self) -> None:
        """`refuse()` if a limit is used up: not a single byte more would pass one way."""
        if self._limited:
            self._check(1)

    def connect(self) -> None:
        """One connection more; `refuse()` if that is too many, or if nothing could pass on it."""
        self.check()
        if self.max_connections is not None and self.connections >= self.max_connections:
            self.refuse("connections")
        self.connections += 1

    def disconnect(self) -> None:
        """A connection has ended that `connect()` let pass."""
        self.connections -= 1

    def _check(self, more: int) -> None:
        if self._max_up is not None and self.up + more > self._max_up:
            self.refuse("bytes_up")
        if self._max_down is not None and self.down + more > self._max_down:
            self.refuse("bytes_down")
        if self._max_bytes is not None and self.up + self.down + more > self._max_bytes:
            self.refuse("bytes")


class Traffic:
    """All that one agent's flows carried, and the meters that limit it."""

    __slots__ = ("connections", "down", "meters", "up")

    def __init__(self) -> None:
        self.up = 0
        self.down = 0
        self.connections = 0
        self.meters: tuple[Meter, ...] = ()
        """Attached by plugins (`attach`, `detach`), for all flows of the agent, open ones too."""

    def attach(self, meter: Meter) -> None:
        """Let it count, and limit, from now on. The connections that are open are its own, too."""
        if meter not in self.meters:
            self.meters = (*self.meters, meter)
            meter.connections += self.connections

    def detach(self, meter: Meter) -> None:
        """The opposite; nothing if it is not attached."""
        if meter in self.meters:
            self.meters = tuple(each for each in self.meters if each is not meter)
            meter.connections -= self.connections

    def passed(self) -> None:
        """Bytes were added: Denied if that is beyond a limit."""
        for meter in self.meters:
            meter.passed()

    def check(self) -> None:
        """Denied if a limit of bytes is used up."""
        for meter in self.meters:
            meter.check()

    def connect(self) -> None:
        """One connection more: Denied if that is too many."""
        passed: list[Meter] = []
        try:
            for meter in self.meters:
                meter.connect()
                passed.append(meter)
        except BaseException:
            for meter in passed:
                meter.disconnect()
            raise
        self.connections += 1

    def disconnect(self) -> None:
        """A connection has ended that `connect()` let pass."""
        self.connections -= 1
        for meter in self.meters:
            meter.disconnect()


class Aim:
    """The meters of a flow's destination, or of a datagram socket's peer."""

    __slots__ = ("meters",)

    def __init__(self) -> None:
        self.meters: tuple[Meter, ...] = ()

    def add(self, meters: Sequence[Meter], up: int = 0, down: int = 0) -> None:
        """Connect those that are not there yet, and count what was carried so far. Denied if that is too much for one."""
        for meter in meters:
            if meter not in self.meters:
                meter.connect()
                self.meters = (*self.meters, meter)
                meter.up += up
                meter.down += down
                meter.passed()

    def end(self) -> None:
        """It is over. Idempotent."""
        meters, self.meters = self.meters, ()
        for meter in meters:
            meter.disconnect()


class MeteredFlow:
    """An `agentfw.flows.Flow` that counts for its agent. `receive()`, `send()` and `send_datagram()` raise `Denied` when that is
    more than a meter lets pass."""

    def __init__(self, flow: Flow, traffic: Traffic) -> None:
        self.flow = flow
        self.traffic = traffic
        self.up = 0
        """Bytes that the guest sent on this flow and that were taken."""
        self.down = 0
        self.enforcing = True
        """False: counted only. For the resolver, which says itself why it refuses."""
        self._aim = Aim()

    @property
    def kind(self) -> str:
        return self.flow.kind

    @property
    def address(self) -> str:
        return self.flow.address

    @property
    def port(self) -> int:
        return self.flow.port

    def aim(self, meters: Sequence[Meter]) -> None:
        """The flow's destination is known: these count it too, what it carried so far included. Denied if that, or one flow
        more, is too much. May be called again; `end()` must follow."""
        self._aim.add(meters, self.up, self.down)

    def end(self) -> None:
        """It is over, for the meters of its destination."""
        self._aim.end()

    def _count(self, up: int, down: int, enforcing: bool) -> None:
        self.up += up
        self.down += down
        traffic = self.traffic
        traffic.up += up
        traffic.down += down
        aimed = self._aim.meters
        meters = (*traffic.meters, *aimed) if aimed else traffic.meters
        for meter in meters:  # first all of them: one that refuses hides nothing from the others
            meter.up += up
            meter.down += down
        if enforcing:
            for meter in meters:
                meter.passed()

    def opened(self, local_port: int = 0) -> None:
        self.flow.opened(local_port)

    def failed(self, error: int) -> None:
        self.flow.failed(error)

    async def receive(self, limit: int = 65536) -> bytes:
        data = await self.flow.receive(limit)
        self._count(len(data), 0, self.enforcing)
        return data

    async def send(self, data: bytes) -> None:
        self._count(0, len(data), self.enforcing)
        await self.flow.send(data)

    async def tell(self, data: bytes) -> None:
        """`send()` for what the host itself has to say, as why it refuses: counted, never refused."""
        self._count(0, len(data), False)
        await self.flow.send(data)

    async def receive_datagram(self) -> tuple[bytes, str, int]:
        """Counted only, since it may be for the resolver; `Traffic.passed()` tells whether it may go on."""
        data, address, port = await self.flow.receive_datagram()
        self._count(len(data), 0, False)
        return data, address, port

    async def send_datagram(self, data: bytes, address: str, port: int) -> None:
        self._count(0, len(data), self.enforcing)
        await self.flow.send_datagram(data, address, port)

    async def tell_datagram(self, data: bytes, address: str, port: int) -> None:
        """As `tell`: the resolver's answers."""
        self._count(0, len(data), False)
        await self.flow.send_datagram(data, address, port)

    async def wait_closed(self) -> None:
        await self.flow.wait_closed()

    def send_eof(self) -> None:
        self.flow.send_eof()

    def send_datagram_error(self, error: int, address: str, port: int) -> None:
        self.flow.send_datagram_error(error, address, port)

    def reset(self, error: int = errno.ECONNRESET) -> None:
        self.flow.reset(error)

    def close(self) -> None:
        self.flow.close()
