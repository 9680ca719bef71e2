"""UDP sockets of guests: questions to the resolver, and datagrams to peers that policy allows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..agents import Agent
from ..destination import parse_address
from ..errors import AgentfwError, UpstreamError
from ..flows import Flow
from ..upstream import Upstream
from . import dns
from .record import FlowRecord
from .session import permitted

if TYPE_CHECKING:
    from ..runtime import Runtime

MAX_PEERS = 64
"""Peers one socket talks to at once; the one that was silent longest goes."""
MAX_AGENT_PEERS = 256
"""Peers that all sockets of one agent talk to at once: each is a socket of the host's. More are dropped."""
MAX_QUEUED = 256
"""Datagrams waiting for one peer."""
MAX_QUESTIONS = 64
"""DNS questions of one socket being answered at once; more are dropped, as a busy resolver does."""
PEER_IDLE = 120.0
"""Seconds without a datagram of the guest's after which a peer goes."""

log = logging.getLogger("agentfw.relay")


class UdpRelay:
    """One UDP socket of a guest: an upstream for each peer that it sends to, as far as policy lets it."""

    def __init__(self, runtime: Runtime, agent: Agent, flow: Flow, record: FlowRecord) -> None:
        self._runtime = runtime
        self._agent = agent
        self._flow = flow
        self._record = record
        record.kind = "dns"  # until it meets somebody else
        self._questions: set[asyncio.Task[None]] = set()
        self._peers: OrderedDict[tuple[str, int], _Peer] = OrderedDict()

    async def run(self) -> None:
        """Until the guest closes the socket."""
        try:
            while True:
                data, address, port = await self._flow.receive_datagram()
                self._record.bytes_up += len(data)
                if address == dns.RESOLVER:
                    self._ask(data, address, port)
                else:
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
                await self._flow.send_datagram(reply, address, port)
                self._record.bytes_down += len(reply)

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
            queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED)
            peer = self._peers[key] = _Peer(queue, asyncio.get_running_loop().create_task(self._serve(queue, address, port)))
            held[self._agent.id] += 1
            peer.task.add_done_callback(lambda _: self._peer_gone())
        self._peers.move_to_end(key)
        if peer.queue.full():
            self._count("udp_dropped")
        else:
            peer.queue.put_nowait(data)

    def _peer_gone(self) -> None:
        held, agent = self._runtime.udp_peers, self._agent.id
        held[agent] -= 1
        if held[agent] <= 0:
            del held[agent]

    async def _serve(self, queue: asyncio.Queue[bytes], address: str, port: int) -> None:
        try:
            upstream = await self._connect(address, port)
        except AgentfwError as error:
            self._count("udp_refused")
            self._record.failed(error)
            self._runtime.note(self._agent, None, error, protocol="udp", address=address, port=str(port))
            log.info("%s: udp to %s port %s: %s", self._agent.name, address, port, error)
            await asyncio.sleep(1)  # what the guest sends meanwhile is dropped without asking again
            return
        back = asyncio.get_running_loop().create_task(self._back(upstream, address, port))
        try:
            while True:
                async with asyncio.timeout(PEER_IDLE):
                    data = await queue.get()
                try:
                    await upstream.send(data)
                except (OSError, UpstreamError):
                    self._count("udp_dropped")
        except TimeoutError:
            pass
        finally:
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)
            upstream.release()

    async def _connect(self, address: str, port: int) -> Upstream:
        runtime, agent = self._runtime, self._agent
        destination = await permitted(runtime, agent, "udp", runtime.hosts(agent, parse_address(address)), port)
        self._record.met(destination)
        return await runtime.connect(agent, destination, None)

    async def _back(self, upstream: Upstream, address: str, port: int) -> None:
        while True:
            try:
                data = await upstream.receive()
            except (OSError, UpstreamError):  # an ICMP error shows once; the socket lives on
                await asyncio.sleep(0.05)
                continue
            try:
                await self._flow.send_datagram(data, address, port)
            except BrokenPipeError:
                return
            self._record.bytes_down += len(data)

    def _count(self, name: str) -> None:
        self._runtime.counters[name] += 1


@dataclass(slots=True)
class _Peer:
    queue: asyncio.Queue[bytes]
    task: asyncio.Task[None]
