"""UDP sockets of guests: questions to the resolver, and datagrams to peers that policy allows."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..agents import Agent
from ..destination import parse_address
from ..errors import AgentfwError, ConnectError, Denied, UpstreamError
from ..flows import errno_of
from ..metering import Aim, Meter, MeteredFlow, Traffic
from ..upstream import Upstream
from . import dns
from .record import FlowRecord
from .session import permitted
from .uses import Use

if TYPE_CHECKING:
    from ..runtime import Runtime

MAX_PEERS = 64
"""Peers one socket talks to at once; the one that was silent longest goes."""
MAX_AGENT_PEERS = 256
"""Peers that all sockets of one agent talk to at once: each is a socket of the host's. More are dropped."""
MAX_QUEUED, MAX_QUEUED_BYTES = 256, 256 << 10
"""Datagrams waiting for one peer, and what is in them (a socket's default buffer holds some 200 KiB)."""
MAX_QUESTIONS = 256
"""DNS questions of one socket being answered at once; more are dropped, as a busy resolver does."""
PEER_IDLE = 120.0
"""Seconds without a datagram of the guest's after which a peer goes."""

log = logging.getLogger("agentfw.relay")


class UdpRelay:
    """One UDP socket of a guest: an upstream for each peer that it sends to, as far as policy lets it."""

    def __init__(self, runtime: Runtime, agent: Agent, flow: MeteredFlow, record: FlowRecord) -> None:
        self._runtime = runtime
        self._agent = agent
        self._flow = flow
        self._record = record
        record.kind = "dns"  # until it meets somebody else
        self._questions: set[asyncio.Task[None]] = set()
        self._peers: OrderedDict[tuple[str, int], _Peer] = OrderedDict()
        self._told = False

    async def run(self) -> None:
        """Until the guest closes the socket."""
        try:
            while True:
                data, address, port = await self._flow.receive_datagram()
                self._record.bytes_up += len(data)
                if address == dns.RESOLVER:
                    self._ask(data, address, port)
                elif self._passed(self._flow.traffic):
                    self._send(data, address, port)
        except BrokenPipeError:
            pass
        finally:
            tasks = [*self._questions, *(peer.task for peer in self._peers.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._flow.close()

    def _ask(self, query: bytes, address: str, port: int) -> None:
        if port != dns.PORT or len(self._questions) >= MAX_QUESTIONS:
            self._count("udp_dropped")
            return
        task = asyncio.get_running_loop().create_task(self._answer(query, address, port))
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _answer(self, query: bytes, address: str, port: int) -> None:
        reply = await dns.answer(self._runtime, self._agent, query, udp=True)
        if reply:
            with contextlib.suppress(BrokenPipeError):
                await self._flow.tell_datagram(reply, address, port)
                self._record.bytes_down += len(reply)

    def _passed(self, meter: Traffic | Meter) -> bool:
        """Whether what was just counted may go on. Told once a socket if it may not."""
        try:
            meter.passed()
        except Denied as error:
            self._denied(error)
            return False
        return True

    def _denied(self, error: Denied) -> None:
        self._count("udp_dropped")
        if not self._told:
            self._told = True
            self._record.failed(error)
            self._runtime.counters["flows_denied"] += 1
            self._runtime.note(self._agent, self._record.destination, error, protocol="udp")
            log.info("%s: udp: %s [%s]", self._agent.name, error, error.plugin, extra={"denied": True})

    def _send(self, data: bytes, address: str, port: int) -> None:
        """One datagram of the guest's. Dropped when it may not or cannot go, or its peer is slow, as a network does."""
        self._record.kind = "udp"
        key = (address, port)
        peer = self._peers.get(key)
        if peer is None or peer.task.done():
            held = self._runtime.udp_peers
            if held[self._agent.id] >= MAX_AGENT_PEERS:
                self._count("udp_dropped")
                return
            while len(self._peers) >= MAX_PEERS:
                self._peers.popitem(last=False)[1].task.cancel()
            queue = _Datagrams(MAX_QUEUED)
            peer = self._peers[key] = _Peer(queue, asyncio.get_running_loop().create_task(self._serve(queue, address, port)))
            held[self._agent.id] += 1
            peer.task.add_done_callback(lambda _: self._peer_gone())
        self._peers.move_to_end(key)
        if peer.queue.full() or peer.queue.size + len(data) > MAX_QUEUED_BYTES:
            self._count("udp_dropped")
        else:
            peer.queue.put_nowait(data)

    def _peer_gone(self) -> None:
        held, agent = self._runtime.udp_peers, self._agent.id
        held[agent] -= 1
        if held[agent] <= 0:
            del held[agent]

    async def _serve(self, queue: _Datagrams, address: str, port: int) -> None:
        traffic = self._flow.traffic
        try:
            traffic.connect()
        except AgentfwError as error:
            await self._refuse(address, port, error)
            return
        try:
            with Use(self._runtime, self._agent) as use:
                await self._exchange(use, queue, address, port)
        except AgentfwError as error:
            await self._refuse(address, port, error)
        finally:
            traffic.disconnect()

    async def _refuse(self, address: str, port: int, error: AgentfwError) -> None:
        self._count("udp_refused")
        self._record.failed(error)
        self._runtime.note(self._agent, None, error, protocol="udp", address=address, port=str(port))
        log.info("%s: udp to %s port %s: %s", self._agent.name, address, port, error, extra={"denied": isinstance(error, Denied)})
        number = errno.EACCES if isinstance(error, Denied) else errno_of(error) if isinstance(error, ConnectError) else 0
        self._flow.send_datagram_error(number or errno.EHOSTUNREACH, address, port)
        await asyncio.sleep(1)  # what the guest sends meanwhile is dropped without asking again

    async def _exchange(self, use: Use, queue: _Datagrams, address: str, port: int) -> None:
        """The datagrams of one peer, both ways. AgentfwError if it cannot be had."""
        upstream = await self._connect(use, address, port)
        back: asyncio.Task[None] | None = None
        aim, meters = Aim(), partial(self._runtime.meters, self._agent, upstream.destination)
        try:
            use.meter = lambda: aim.add(meters())
            use.meter()
            back = asyncio.get_running_loop().create_task(self._back(upstream, aim, address, port))
            while True:
                async with asyncio.timeout(PEER_IDLE):
                    data = await queue.get()
                if not self._metered(aim, len(data), 0):
                    continue
                try:
                    await upstream.send(data)
                except (OSError, UpstreamError) as error:
                    self._count("udp_dropped")
                    self._tell(error, address, port)
        except TimeoutError:
            pass
        finally:
            if back is not None:
                back.cancel()
                await asyncio.gather(back, return_exceptions=True)
            upstream.release()
            aim.end()

    def _tell(self, error: OSError | UpstreamError, address: str, port: int) -> None:
        """What an ICMP message said, as the guest's own network would pass it on."""
        if isinstance(error, OSError) and error.errno:
            self._flow.send_datagram_error(error.errno, address, port)

    def _metered(self, aim: Aim, up: int, down: int) -> bool:
        for meter in aim.meters:
            meter.up += up
            meter.down += down
        return all([self._passed(meter) for meter in aim.meters])

    async def _connect(self, use: Use, address: str, port: int) -> Upstream:
        runtime, agent = self._runtime, self._agent
        destination = await permitted(runtime, agent, "udp", runtime.hosts(agent, parse_address(address)), port)
        self._record.met(destination)
        return await use.connect(destination, None)

    async def _back(self, upstream: Upstream, aim: Aim, address: str, port: int) -> None:
        while True:
            try:
                data = await upstream.receive()
            except (OSError, UpstreamError) as error:  # an ICMP error shows once; the socket lives on
                self._tell(error, address, port)
                await asyncio.sleep(0.05)
                continue
            if not self._metered(aim, 0, len(data)):
                continue
            try:
                await self._flow.send_datagram(data, address, port)
            except Denied as error:
                self._denied(error)
                continue
            except BrokenPipeError:
                return
            self._record.bytes_down += len(data)

    def _count(self, name: str) -> None:
        self._runtime.counters[name] += 1


class _Datagrams(asyncio.Queue[bytes]):
    """A queue that knows how many bytes are in it."""

    size = 0

    def _put(self, item: bytes) -> None:
        super()._put(item)
        self.size += len(item)

    def _get(self) -> bytes:
        item = super()._get()
        self.size -= len(item)
        return item


@dataclass(slots=True)
class _Peer:
    queue: _Datagrams
    task: asyncio.Task[None]
