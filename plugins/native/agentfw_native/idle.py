"""Plain HTTP connections that wait for the next request of the same agent to the same host. Never another agent's."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, OrderedDict
from dataclasses import dataclass

from agentfw import Destination


@dataclass(slots=True, eq=False)
class _Waiting:
    sock: socket.socket
    agent: str
    destination: Destination
    address: str
    since: float


class IdleConnections:
    """At most `per_agent` for an agent: the one that waits longest goes. What a peer sends or ends meanwhile closes it."""

    def __init__(self, counters: Counter[str]) -> None:
        self.per_agent = 8
        self.seconds = 30.0
        self._counters = counters
        self._by_agent: dict[str, OrderedDict[_Waiting, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_agent.values()))

    def put(self, sock: socket.socket, agent: str, destination: Destination, address: str) -> bool:
        """Whether it was taken over; it must be as clean as it is said to be."""
        if not self.per_agent:
            return False
        if dirty(sock):
            self._counters["retired"] += 1
            return False
        loop = asyncio.get_running_loop()
        waiting = self._by_agent.setdefault(agent, OrderedDict())
        entry = _Waiting(sock, agent, destination, address, loop.time())
        waiting[entry] = None
        loop.add_reader(sock, self._spoke, entry)
        while len(waiting) > self.per_agent:
            self._close(next(iter(waiting)))
        return True

    def take(self, agent: str, destination: Destination) -> tuple[socket.socket, str] | None:
        """(socket, address) of the newest one that is still clean."""
        for entry in reversed(self._by_agent.get(agent, {})):
            if entry.destination == destination:
                break
        else:
            return None
        while True:
            self._remove(entry)
            if not dirty(entry.sock):
                return entry.sock, entry.address
            self._counters["retired"] += 1
            entry.sock.close()
            left = [each for each in self._by_agent.get(agent, {}) if each.destination == destination]
            if not left:
                return None
            entry = left[-1]

    def drop(self, agent: str | None = None) -> None:
        """Close one agent's, or all."""
        for name in [agent] if agent is not None else list(self._by_agent):
            for entry in list(self._by_agent.get(name, ())):
                self._close(entry)

    def sweep(self) -> None:
        """Close what has waited for too long."""
        now = asyncio.get_running_loop().time()
        for waiting in list(self._by_agent.values()):
            for entry in [each for each in waiting if now - each.since >= self.seconds]:
                self._close(entry)

    def _spoke(self, entry: _Waiting) -> None:
        self._counters["retired"] += 1
        self._close(entry)

    def _remove(self, entry: _Waiting) -> None:
        asyncio.get_running_loop().remove_reader(entry.sock)
        waiting = self._by_agent[entry.agent]
        del waiting[entry]
        if not waiting:
            del self._by_agent[entry.agent]

    def _close(self, entry: _Waiting) -> None:
        self._remove(entry)
        entry.sock.close()


def dirty(sock: socket.socket) -> bool:
    """Something is there to read: bytes that nobody asked for, the end, or an error."""
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
    return True
