"""What the relays of one flow share: its agent, the bytes read ahead, whom it may be meant for, and when the guest has gone."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from ..agents import Agent
from ..destination import Destination
from ..errors import Denied
from ..metering import MeteredFlow
from ..upstream import TlsRequest, Upstream
from .record import FlowRecord
from .uses import Use

if TYPE_CHECKING:
    from ..runtime import Runtime

MAX_ADDRESSES = 4096
"""Addresses remembered for one agent; the least recently used one goes."""
MAX_NAMES = 16
"""Names remembered for one address."""
LINGER = 3.0
"""Seconds in which a connection can still be made for what a guest said before it closed."""


class GuestGone(Exception):
    """The guest closed the flow: nobody waits for what is being done."""


class NameMemory:
    """Which addresses one agent was given for which names, so that a connect to an address is a connect to a name."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def learn(self, name: str, addresses: Iterable[str]) -> None:
        """Both normalised."""
        for address in addresses:
            names = self._names.setdefault(address, OrderedDict())
            self._names.move_to_end(address)
            names[name] = None
            names.move_to_end(name)
            if len(names) > MAX_NAMES:
                names.popitem(last=False)
            if len(self._names) > MAX_ADDRESSES:
                self._names.popitem(last=False)

    def names(self, address: str) -> list[str]:
        """Newest first."""
        names = self._names.get(address)
        if names is None:
            return []
        self._names.move_to_end(address)
        return list(reversed(names))

    def __len__(self) -> int:
        return len(self._names)


class Session:
    """One TCP flow being relayed."""

    def __init__(self, runtime: Runtime, agent: Agent, flow: MeteredFlow, address: str, record: FlowRecord) -> None:
        self.runtime = runtime
        self.agent = agent
        self.flow = flow
        self.record = record
        self.address = address
        """Where the guest connected to, canonical."""
        self.hosts = runtime.hosts(agent, address)
        """Whom that may mean: the names that the agent was given this address for, newest first, then the address itself."""
        self.buffer = bytearray()
        """Bytes of the guest that were read and not yet used."""
        self.ended = False
        """The guest sends no more than what is in `buffer`."""
        self.closed = False
        self.refused: Denied | None = None
        """What the guest sent last was more than a meter lets pass, and it has not been told."""
        self.use = Use(runtime, agent)
        self._aim: Destination | None = None
        self._interrupted: UntilClosed | None = None
        self._watch: asyncio.Task[None] | None = None
        self._filling: asyncio.Task[bytes] | None = None

    async def fill(self) -> bool:
        """Read more into `buffer`. False: the guest sends no more. Denied: more than a meter lets pass."""
        if self.refused is not None:
            raise self.refused
        if self._filling is not None:
            await asyncio.wait([self._filling])
            self.take_fill()
            return not self.ended
        if not self.ended:
            data = await self.flow.receive()
            if data:
                self.buffer += data
                self.record.bytes_up += len(data)
                return True
            self.ended = True
        return False

    async def send(self, data: bytes) -> None:
        """To the guest; as `Flow.send()`."""
        await self.flow.send(data)
        self.record.bytes_down += len(data)

    async def tell(self, data: bytes) -> None:
        """`send()` for what the host itself has to say: no limit refuses it."""
        await self.flow.tell(data)
        self.record.bytes_down += len(data)

    def begin_fill(self) -> asyncio.Task[bytes]:
        """A read that outlives who waits for it; `take_fill()` takes what it got."""
        if self._filling is None:
            self._filling = asyncio.get_running_loop().create_task(self.flow.receive())
        return self._filling

    def take_fill(self) -> None:
        """The read begun by `begin_fill()` is done: into the buffer with it."""
        assert self._filling is not None
        data = self._filling.result()
        self._filling = None
        self.buffer += data
        self.record.bytes_up += len(data)
        self.ended = not data

    def take(self, length: int) -> bytes:
        """The first `length` bytes of `buffer`, or fewer."""
        if length >= len(self.buffer):  # PERF: a piece that is passed on whole is copied once
            data = bytes(self.buffer)
            self.buffer.clear()
            return data
        data = bytes(self.buffer[:length])
        del self.buffer[:length]
        return data

    async def permitted(self, scheme: str) -> Destination:
        """The destination of this flow where nothing in it says which name is meant: the newest permitted one. Denied if none
        is."""
        return await permitted(self.runtime, self.agent, scheme, self.hosts, self.flow.port)

    def aim(self, destination: Destination) -> None:
        """The flow is for `destination`: it is metered as such from its first byte on. Denied if that is too much, HookError."""
        if destination != self._aim:
            self._aim = destination
            self.use.meter = self._meter
            self._meter()

    def _meter(self) -> None:
        assert self._aim is not None
        self.flow.aim(self.runtime.meters(self.agent, self._aim))

    def count(self, name: str) -> None:
        self.runtime.counters[name] += 1

    async def connect(
        self, destination: Destination, tls: TlsRequest | None, *also: Destination, linger: float = 0.0
    ) -> Upstream:
        """`Use.connect()`; GuestGone `linger` seconds after the guest closed the flow. Else a VM's flows would outlive it for
        as long as a connection may take, and those of the next ones in its place come on top of them."""
        async with self.until_closed(linger):
            return await self.use.connect(destination, tls, *also)

    def until_closed(self, linger: float = 0.0) -> UntilClosed:
        """`async with`: the block is cancelled, and GuestGone raised, when the guest closes the flow, or so long after."""
        return UntilClosed(self, linger)

    def watch(self) -> None:
        """Begin to look out for the close; `end()` must follow."""
        self._watch = asyncio.get_running_loop().create_task(self._wait_closed())

    @property
    def gone(self) -> asyncio.Task[None]:
        """Done once the guest has closed the flow, or it was closed. `watch()` comes first."""
        assert self._watch is not None
        return self._watch

    def end(self) -> None:
        """Stop the tasks that this session has begun."""
        for task in (self._watch, self._filling):
            if task is not None:
                task.cancel()

    async def _wait_closed(self) -> None:
        await self.flow.wait_closed()
        self.closed = True
        if self._interrupted is not None:
            self._interrupted.interrupt()


async def permitted(runtime: Runtime, agent: Agent, scheme: str, hosts: list[str], port: int) -> Destination:
    """The first of `hosts` that the agent may talk to. Denied (the first reason) if there is none."""
    denied: Denied | None = None
    for host in hosts:
        destination = Destination(scheme, host, port)
        try:
            await runtime.plugins.allow(agent, destination)
            if destination.is_address:
                runtime.check_address(agent, destination, host)
            return destination
        except Denied as error:
            denied = denied or error
    assert denied is not None
    raise denied


class UntilClosed:
    """As asyncio.timeout(), with the guest's close instead of a time."""

    def __init__(self, session: Session, linger: float = 0.0) -> None:
        self._session = session
        self._linger = linger
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._fired = False

    def interrupt(self) -> None:
        if self._linger:
            self._timer = asyncio.get_running_loop().call_later(self._linger, self._fire)
        else:
            self._fire()

    def _fire(self) -> None:
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel()

    async def __aenter__(self) -> None:
        if self._session.closed and not self._linger:
            raise GuestGone
        self._task = asyncio.current_task()
        assert self._task is not None and self._session._interrupted is None
        self._cancelling = self._task.cancelling()
        self._session._interrupted = self
        if self._session.closed:
            self.interrupt()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._session._interrupted = None
        if self._timer is not None:
            self._timer.cancel()
        assert self._task is not None
        if self._fired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise GuestGone from None
