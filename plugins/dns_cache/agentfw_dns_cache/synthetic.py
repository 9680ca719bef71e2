"""Addresses that stand for names: the agent is told one, connects to it, and the runtime dials the name.

So names work where nobody can or may resolve them in advance (all goes through a proxy, or there is no upstream), no question of
an agent's leaves the host, and as an address stands for one name, it is known of every connection whom it is for.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import wire
from .config import Network


class Full(Exception):
    """No more names for this agent, or for all."""


@dataclass(slots=True)
class _Name:
    index: int
    agents: set[str] = field(default_factory=set)


class Pool:
    """A name has the same addresses for all agents, and keeps them while any agent that was told of them runs; then until they
    are needed. At most `names` at a time, `agent_names` of them one agent's. Numbers are random: how many names others asked for
    does not show."""

    def __init__(self, networks: Sequence[Network], names: int, agent_names: int) -> None:
        self._networks = {network.version: network for network in networks}
        self.size = min((network.num_addresses for network in networks), default=2)
        self.limit(names, agent_names)
        self._names: dict[str, _Name] = {}
        self._used: set[int] = set()
        self._agents: dict[str, set[str]] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        """Names of no running agent, longest idle first."""

    def limit(self, names: int, agent_names: int) -> None:
        self._most = min(names, self.size // 2)  # half of the numbers stay free, so that a random one soon is
        self._most_of_one = agent_names

    def __len__(self) -> int:
        return len(self._names)

    def addresses(self, agent: str, name: str, qtype: int) -> tuple[str, ...]:
        """For an A or AAAA question; () if there is no network of that kind."""
        network = self._networks.get(4 if qtype == wire.A else 6)
        if network is None:
            return ()
        return (str(network[self._index(agent, name)]),)

    def forget(self, agent: str) -> None:
        """It has ended."""
        for name in self._agents.pop(agent, ()):
            told = self._names[name].agents
            told.discard(agent)
            if not told:
                self._idle[name] = None

    def _index(self, agent: str, name: str) -> int:
        told = self._agents.get(agent, set())
        if name not in told:
            if len(told) >= self._most_of_one:
                raise Full("this agent asks for too many names")
            if name not in self._names:
                self._add(name)
            self._names[name].agents.add(agent)
            self._idle.pop(name, None)
            self._agents.setdefault(agent, told).add(name)
        return self._names[name].index

    def _add(self, name: str) -> None:
        while len(self._names) >= self._most:
            if not self._idle:
                raise Full("agents ask for too many names")
            oldest, _ = self._idle.popitem(last=False)
            self._used.discard(self._names.pop(oldest).index)
        while True:
            index = 1 + secrets.randbelow(self.size - 2)  # neither the network's own address nor its broadcast
            if index not in self._used:
                break
        self._used.add(index)
        self._names[name] = _Name(index)
