"""Bytes both ways, unlooked at: plain TCP, passed-through TLS, non-HTTP inside offloaded TLS, upgraded connections, UDP."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..agents import Agent
from ..destination import parse_address
from ..errors import AgentfwError, UpstreamError
from ..flows import Flow
from ..upstream import Upstream
from .session import Session, permitted

if TYPE_CHECKING:
    from ..runtime import Runtime

MAX_PEERS = 64
"""Peers one UDP socket talks to at once; the one that was silent longest goes."""
PEER_IDLE = 120.0
"""Seconds without a datagram of the guest's after which a peer goes."""

log = logging.getLogger("agentfw.relay")


async def relay_raw(session: Session, upstream: Upstream) -> None:
    """Until both directions have ended, the guest is gone, or the upstream breaks (the guest is then reset). Takes the lease over."""
    loop = asyncio.get_running_loop()
    up = loop.create_task(_up(session, upstream))
    down = loop.create_task(_down(session, upstream))
    gone = loop.create_task(session.flow.wait_closed())
    pending: set[asyncio.Task[None]] = {up, down, gone}
    try:
        while not (up.done() and (down.done() or gone.done())):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if gone.done() and down in pending:  # what the guest sent before it closed still goes out; nobody reads answers
                down.cancel()
                pending.discard(down)
        session.flow.close()
    except (OSError, UpstreamError) as error:
        log.debug("%s: %s: %s", session.agent.name, upstream.destination, error)
        session.count("raw_broken")
        session.flow.reset()
    finally:
        for task in (up, down, gone):
            task.cancel()
        await asyncio.gather(up, down, gone, return_exceptions=True)
        upstream.release()


async def _up(session: Session, upstream: Upstream) -> None:
    try:
        while session.buffer or await session.fill():
            await upstream.send(session.take(65536))
        await upstream.send_eof()
    except (OSError, UpstreamError):  # it may have answered before it closed: reading tells
        session.count("raw_send_failed")


async def _down(session: Session, upstream: Upstream) -> None:
    while data := await upstream.receive():
        try:
            await session.flow.send(data)
        except BrokenPipeError:
            return
    session.flow.send_eof()


class UdpRelay:
    """One UDP socket of a guest: an upstream for each peer that it sends to, as far as policy lets it."""

    def __init__(self, runtime: Runtime, agent: Agent, flow: Flow) -> None:
        self._runtime = runtime
        self._agent = agent
        self._flow = flow
        self._peers: OrderedDict[tuple[str, int], _Peer] = OrderedDict()

    async def run(self) -> None:
        """Until the guest closes the socket."""
        try:
            while True:
                data, address, port = await self._flow.receive_datagram()
                await self.send(data, address, port)
        except BrokenPipeError:
            pass
        finally:
            for peer in self._peers.values():
                peer.task.cancel()
            await asyncio.gather(*(peer.task for peer in self._peers.values()), return_exceptions=True)
            self._flow.close()

    async def send(self, data: bytes, address: str, port: int) -> None:
        """One datagram of the guest's. Dropped when it may not or cannot go, or its peer is slow, as a network does."""
        key = (address, port)
        peer = self._peers.get(key)
        if peer is None or peer.task.done():
            while len(self._peers) >= MAX_PEERS:
                self._peers.popitem(last=False)[1].task.cancel()
            queue: asyncio.Queue[bytes] = asyncio.Queue(256)
            peer = self._peers[key] = _Peer(queue, asyncio.get_running_loop().create_task(self._serve(queue, address, port)))
        self._peers.move_to_end(key)
        if peer.queue.full():
            self._count("udp_dropped")
        else:
            peer.queue.put_nowait(data)

    async def _serve(self, queue: asyncio.Queue[bytes], address: str, port: int) -> None:
        try:
            upstream = await self._connect(address, port)
        except AgentfwError as error:
            self._count("udp_refused")
            log.info("%s: udp to %s port %s: %s", self._agent.name, ascii(address), port, error)
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
        return await runtime.connect(agent, destination, None)

    async def _back(self, upstream: Upstream, address: str, port: int) -> None:
        while True:
            try:
                data = await upstream.receive()
            except (OSError, UpstreamError):  # an ICMP error shows once; the socket lives on
                await asyncio.sleep(0.05)
                continue
            await self._flow.send_datagram(data, address, port)


    def _count(self, name: str) -> None:
        self._runtime.counters[name] += 1


@dataclass(slots=True)
class _Peer:
    queue: asyncio.Queue[bytes]
    task: asyncio.Task[None]
