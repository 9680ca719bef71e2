"""What the pool keeps: connections of one key (`Group`), and what all keys of one destination have in common (`Cluster`)."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentfw.agents import Agent
from agentfw.destination import Destination
from agentfw.errors import AgentfwError
from OpenSSL import SSL

from .connection import Connection
from .trust import Versions

SESSIONS = 4
"""TLS sessions kept for resumption a group; each is used once (RFC 8446, appendix C.4)."""
SESSION_AGE = 3600.0
BACKOFF = (0.5, 60.0)
"""Seconds to the second attempt to open ahead of need, doubled with each further failure, and at most."""
RETRY_AFTER = (1.0, 30.0)
"""Seconds that those who are turned away are told to wait, at least and at most."""
BORROWERS = 64
"""Agents remembered of a shared group, to ask whether policy still lets any of them have its connections."""
ADDRESSES = 256
"""Addresses of a destination remembered with the time they were last its."""


@dataclass(frozen=True, slots=True)
class Key:
    """Everything that makes two connections differ. The name verified and sent as SNI is the destination's host; what changes
    with a reload (the operator's trust store) is `generation`."""

    destination: Destination
    alpn: tuple[str, ...]
    versions: Versions
    tenant: str
    """Labels for shared hosts; else the agent's id."""
    cas: tuple[bytes, ...] = ()
    """Authorities of the agent's own (DER) that are trusted besides the operator's."""
    certificate: str = ""
    """Identity of the client certificate that is shown."""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts, and seconds; see TlsConfig."""

    max_connections: int
    max_pending: int
    max_requests: int
    max_retries: int
    max_requests_per_connection: int
    max_opening: int
    max_idle: int
    agent_connections: int
    idle_timeout: float
    max_age: float
    connect_timeout: float
    queue_timeout: float
    patience: float
    dns_drain: float


@dataclass(slots=True, eq=False)
class Waiter:
    """A request in the queue of its group."""

    agent: Agent
    future: asyncio.Future[Connection]
    number: int
    since: float
    """Loop time."""


@dataclass(slots=True, eq=False)
class Group:
    """Connections of one key. `idle`: newest last."""

    key: Key
    shared: bool
    cluster: Cluster
    keep: int = 0
    """Open at least so many, ahead of need."""
    idle: list[Connection] = field(default_factory=list)
    leased: set[Connection] = field(default_factory=set)
    opening: int = 0
    waiters: OrderedDict[str, deque[Waiter]] = field(default_factory=OrderedDict)
    """By agent; the first agent's turn is next."""
    waiting: int = 0
    sessions: deque[tuple[float, SSL.Session]] = field(default_factory=lambda: deque(maxlen=SESSIONS))
    borrowers: OrderedDict[str, Agent] = field(default_factory=OrderedDict)
    """By id: who has used it, the latest last."""
    not_before: float = 0.0
    """Of the next attempt to open ahead of need, after a failure."""
    failures: int = 0
    """In a row."""
    full_until: float = 0.0
    """The peer takes no more connections; those in use have to do."""
    last_failure: AgentfwError | None = None
    duration: float | None = None
    """Moving average of what a lease that was used took."""
    returned_at: float = 0.0
    """Loop time of the last end of a lease."""
    again: asyncio.TimerHandle | None = None
    abandoned: bool = False

    @property
    def total(self) -> int:
        return len(self.idle) + len(self.leased) + self.opening

    @property
    def unused(self) -> bool:
        return not (self.idle or self.leased or self.opening or self.waiting or self.keep)

    def borrowed(self, agent: Agent) -> None:
        """Remember who used it."""
        borrowers = self.borrowers
        if agent.id in borrowers:
            borrowers.move_to_end(agent.id)
        else:
            borrowers[agent.id] = agent
            if len(borrowers) > BORROWERS:
                borrowers.popitem(last=False)

    def keep_session(self, connection: Connection, now: float) -> None:
        """For a later handshake, if there is a new one and there are few."""
        if connection.leases > 1 or connection.drained or len(self.sessions) == SESSIONS:
            return
        session = connection.session()
        if session is not None:
            self.sessions.append((now, session))

    def take_session(self, now: float) -> SSL.Session | None:
        """The newest; each is used once."""
        while self.sessions:
            stored, session = self.sessions.pop()
            if now - stored < SESSION_AGE:
                return session
        return None

    def forget_sessions(self, now: float) -> None:
        """Those that are too old."""
        while self.sessions and now - self.sessions[0][0] >= SESSION_AGE:
            self.sessions.popleft()

    def back_off(self, now: float) -> None:
        """A failure: the next attempt to open ahead of need has to wait."""
        first, most = BACKOFF
        self.not_before = now + min(first * 2.0 ** min(self.failures, 16), most) * random.uniform(0.75, 1.25)
        self.failures += 1

    def retry_after(self) -> float:
        """Seconds until the queue will be about empty, as calls took so far."""
        estimate = (self.waiting + 1) * (self.duration or 1.0) / max(1, self.total)
        return min(max(estimate, RETRY_AFTER[0]), RETRY_AFTER[1])

    def enqueue(self, waiter: Waiter) -> None:
        self.waiters.setdefault(waiter.agent.id, deque()).append(waiter)
        self.waiting += 1
        self.cluster.pending += 1
        self.cluster.queues.setdefault(self.key, self)

    def remove(self, waiter: Waiter) -> None:
        """Does nothing if it waits no more."""
        queue = self.waiters.get(waiter.agent.id)
        if queue and waiter in queue:
            queue.remove(waiter)
            self._removed(waiter.agent.id, queue)

    def next(self) -> Waiter:
        """The next in turn, taken out: agents one after the other, each agent's own in order."""
        agent_id, queue = next(iter(self.waiters.items()))
        waiter = queue.popleft()
        if queue:
            self.waiters.move_to_end(agent_id)
        self._removed(agent_id, queue)
        return waiter

    def _removed(self, agent_id: str, queue: deque[Waiter]) -> None:
        self.waiting -= 1
        self.cluster.pending -= 1
        if not queue:
            del self.waiters[agent_id]
        if not self.waiting:
            self.cluster.queues.pop(self.key, None)


@dataclass(slots=True, eq=False)
class Cluster:
    """One destination (Envoy's word): its limits count over all groups that lead there."""

    destination: Destination
    groups: dict[Key, Group] = field(default_factory=dict)
    queues: OrderedDict[Key, Group] = field(default_factory=OrderedDict)
    """Groups in which someone waits; the first one's turn is next when the limit is reached."""
    connections: int = 0
    """Open and being opened."""
    pending: int = 0
    requests: int = 0
    """Leases."""
    retries: int = 0
    """Leases that are second attempts."""
    claims: list[tuple[str, float]] = field(default_factory=list)
    """Retries announced and not begun: (agent's id, loop time at which it is void)."""
    addresses: dict[str, float] = field(default_factory=dict)
    """Loop time at which the name last had each of them."""
    resolved_at: float = 0.0

    def connection_gone(self, _: Connection) -> None:
        self.connections -= 1

    def oldest_idle(self) -> tuple[Group, Connection] | None:
        """What is given up when another group needs a connection."""
        candidates = [(group.idle[0].idle_since, group) for group in self.groups.values() if group.idle and not group.keep]
        if not candidates:
            return None
        group = min(candidates, key=lambda each: each[0])[1]
        return group, group.idle[0]

    def queued(self) -> Iterator[tuple[Group, deque[Waiter]]]:
        """The queues of all agents."""
        for group in self.queues.values():
            for queue in group.waiters.values():
                yield group, queue

    def claim_retry(self, agent: Agent, limit: int, now: float) -> bool:
        """Announce a second attempt, if there are fewer than `limit`."""
        self.claims = [claim for claim in self.claims if claim[1] > now]
        if self.retries + len(self.claims) >= limit:
            return False
        self.claims.append((agent.id, now + 60.0))
        return True

    def begin_retry(self, agent: Agent) -> bool:
        """This lease is the one that `agent` announced."""
        for claim in self.claims:
            if claim[0] == agent.id:
                self.claims.remove(claim)
                self.retries += 1
                return True
        return False

    def has(self, addresses: list[str], now: float) -> None:
        """The name has these addresses now."""
        self.resolved_at = now
        self.seen(addresses, now)

    def seen(self, addresses: list[str], now: float) -> None:
        """It had these, at least; there may be others."""
        for address in addresses:
            self.addresses.pop(address, None)  # the latest last
            self.addresses[address] = now
        while len(self.addresses) > ADDRESSES:
            del self.addresses[next(iter(self.addresses))]

    def moved(self, address: str, grace: float) -> bool:
        """The name has not had `address` for `grace` seconds, as of the last answer."""
        return self.resolved_at - self.addresses.get(address, 0.0) > grace and bool(self.addresses)
