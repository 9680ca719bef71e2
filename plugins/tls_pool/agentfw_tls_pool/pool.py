"""Who gets which connection: groups of interchangeable connections, leases, a fair queue, and the rules of retirement.

Two requests share a connection one after the other, only if everything that makes connections differ is equal (`Key`), and only
if nothing of the first is left on it. A connection that is not provably clean is closed, never lent.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agentfw.agents import Agent
from agentfw.destination import Destination
from agentfw.errors import AgentfwError, ConnectError, Denied, HookError, UpstreamError
from agentfw.upstream import TlsInfo
from OpenSSL import SSL

from .connection import Connection
from .trust import Versions

log = logging.getLogger("agentfw.tls")

SESSIONS = 4
"""TLS sessions kept for resumption a group; each is used once."""
SESSION_AGE = 3600.0
AGENT_IDLE = 32
"""Unused connections held open for one agent alone, over all destinations; the one unused for longest goes. A pool that is shared
has `Limits.max_idle` instead."""
GROUPS = 1024
EAGER = 4
"""Connections of a group that are opened as soon as they are wanted. More only if waiting for those in use would take longer than
`Limits.patience`: a burst of short calls shares a few, long calls get one each."""
AGAIN = 0.01
"""Seconds after which it is looked at again whether those who wait should wait."""
REPLACE = 8
"""Connections that a lease tries before its first byte."""


@dataclass(frozen=True, slots=True)
class Key:
    """Everything that makes two connections differ. Client certificates there are none."""

    destination: Destination
    alpn: tuple[str, ...]
    versions: Versions
    tenant: str
    """Labels for shared hosts; else the agent's id."""
    cas: tuple[bytes, ...] = ()
    """Authorities of the agent's own (DER) that are trusted besides the operator's."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts, and seconds."""

    max_connections: int
    max_pending: int
    max_requests: int
    max_opening: int
    max_idle: int
    agent_connections: int
    idle_timeout: float
    max_age: float
    connect_timeout: float
    queue_timeout: float
    patience: float


@dataclass(slots=True, eq=False)
class _Waiter:
    agent: Agent
    future: asyncio.Future[Connection]
    number: int


@dataclass(slots=True, eq=False)
class Group:
    """Connections of one key. `idle`: newest last."""

    key: Key
    shared: bool
    keep: int = 0
    """Open at least so many, ahead of need."""
    idle: list[Connection] = field(default_factory=list)
    leased: set[Connection] = field(default_factory=set)
    opening: int = 0
    waiters: OrderedDict[str, deque[_Waiter]] = field(default_factory=OrderedDict)
    """By agent; the first agent's turn is next."""
    waiting: int = 0
    sessions: deque[tuple[float, SSL.Session]] = field(default_factory=lambda: deque(maxlen=SESSIONS))
    not_before: float = 0.0
    """Of the next attempt to open ahead of need, after a failure."""
    full_until: float = 0.0
    """The peer takes no more connections; those in use have to do."""
    last_failure: AgentfwError | None = None
    duration: float | None = None
    """Moving average of what a lease that was used took."""
    again: asyncio.TimerHandle | None = None

    @property
    def total(self) -> int:
        return len(self.idle) + len(self.leased) + self.opening

    @property
    def unused(self) -> bool:
        return not (self.idle or self.leased or self.opening or self.waiting or self.keep)


class Pool:
    """`open_connection(key, agent, session)` dials, negotiates and verifies; `check_address(agent, destination, address)` raises
    Denied when `agent` must not talk to the address that a held connection leads to."""

    def __init__(
        self,
        limits: Limits,
        open_connection: Callable[[Key, Agent, SSL.Session | None], Awaitable[Connection]],
        check_address: Callable[[Agent, Destination, str], None],
        counters: Counter[str],
    ) -> None:
        self.limits = limits
        self.counters = counters
        self.groups: dict[Key, Group] = {}
        self._open_connection = open_connection
        self._check_address = check_address
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held_by: Counter[str] = Counter()  # by agent: leases and places in queues
        self._own: dict[str, OrderedDict[Connection, Group]] = {}  # by tenant: those last put to rest, where nobody shares
        self._number = 0
        self._closed = False

    # ---- leases ----

    async def lease(self, key: Key, agent: Agent, *, shared: bool) -> Lease:
        """A clean, verified connection, held for one agent until `release()`. UpstreamError, Denied."""
        if self._closed:
            raise UpstreamError("the connection pool has been closed")
        group = self.group(key, shared=shared)
        if self._held_by[agent.id] >= self.limits.agent_connections:
            self.counters["overflow"] += 1
            raise ConnectError(key.destination, errno.EAGAIN, "this agent has too many connections open")
        self._held_by[agent.id] += 1
        try:
            connection = await self._acquire(group, agent)
        except BaseException:
            self._let_go(agent)
            raise
        return Lease(self, group, agent, connection)

    def _let_go(self, agent: Agent) -> None:
        self._held_by[agent.id] -= 1
        if self._held_by[agent.id] <= 0:
            del self._held_by[agent.id]

    def group(self, key: Key, *, shared: bool) -> Group:
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= GROUPS:
                for each in [each for each in self.groups.values() if each.unused]:
                    del self.groups[each.key]
            group = self.groups[key] = Group(key, shared)
        return group

    async def _acquire(self, group: Group, agent: Agent) -> Connection:
        if self._closed:
            raise UpstreamError("the connection pool has been closed")
        if not group.waiting:
            connection = self._take_idle(group, agent)
            if connection is not None:
                return connection
        if group.waiting >= self.limits.max_pending:
            self.counters["overflow"] += 1
            raise ConnectError(group.key.destination, errno.EAGAIN, "too many requests wait for a connection")
        self._number += 1
        waiter = _Waiter(agent, self._loop.create_future(), self._number)
        group.waiters.setdefault(agent.id, deque()).append(waiter)
        group.waiting += 1
        self.counters["queued"] += 1
        self._pump(group)
        try:
            async with asyncio.timeout(self.limits.queue_timeout):
                return await waiter.future
        except TimeoutError:
            self._withdraw(group, waiter)
            self.counters["overflow"] += 1
            failure = group.last_failure
            reason = f"no connection became free in time{f' ({failure})' if failure else ''}"
            raise ConnectError(group.key.destination, errno.ETIMEDOUT, reason) from None
        except asyncio.CancelledError:
            self._withdraw(group, waiter)
            raise

    def _withdraw(self, group: Group, waiter: _Waiter) -> None:
        """The one who waited is gone; a connection that it had been given meanwhile goes to the next."""
        future = waiter.future
        if future.done() and not future.cancelled():
            if future.exception() is None:
                self.give_back(group, future.result(), reusable=True)
            return
        queue = group.waiters.get(waiter.agent.id)
        if queue and waiter in queue:
            queue.remove(waiter)
            group.waiting -= 1
            if not queue:
                del group.waiters[waiter.agent.id]
        future.cancel()

    def _take_idle(self, group: Group, agent: Agent) -> Connection | None:
        """The newest clean connection, checked to the last byte at this moment."""
        now = self._loop.time()
        while group.idle:
            connection = group.idle.pop()
            connection.on_idle_event = None
            reason = connection.soiled() or self._worn(connection, now)
            if reason:
                self._retire(group, connection, reason)
                continue
            try:
                self._check_address(agent, group.key.destination, connection.address)
            except (Denied, HookError, OSError):
                if group.shared:  # others may use it
                    self._put_idle(group, connection)
                    return None
                self._retire(group, connection, "denied")
                continue
            self._lend(group, connection)
            return connection
        return None

    def has_waited(self, connection: Connection) -> bool:
        """It has been open long enough for the peer to lose interest."""
        return connection.leases > 1 or self._loop.time() - connection.opened_at > 1.0

    def _lend(self, group: Group, connection: Connection) -> None:
        group.leased.add(connection)
        connection.leases += 1
        connection.lent_at = self._loop.time()
        connection.idle_since = 0.0
        connection.lent_at_sent = connection.sent
        if connection.leases > 1:
            self.counters["reused"] += 1

    def give_back(self, group: Group, connection: Connection, *, reusable: bool) -> None:
        """The end of a lease. Lent again only if the borrower vouches for it and nothing contradicts."""
        group.leased.discard(connection)
        if connection.sent != connection.lent_at_sent:
            took = self._loop.time() - connection.lent_at
            group.duration = took if group.duration is None else 0.8 * group.duration + 0.2 * took
        if not reusable or self._closed:
            self._retire(group, connection, "not reusable")
        else:
            reason = connection.soiled() or self._worn(connection, self._loop.time())
            if reason:
                self._retire(group, connection, reason)
            else:
                self._keep_session(group, connection)
                self._put_idle(group, connection)
        self._pump(group)

    def _worn(self, connection: Connection, now: float) -> str:
        limits = self.limits
        if connection.leases >= limits.max_requests:
            return "requests"
        if now - connection.opened_at >= limits.max_age:
            return "age"
        if connection.idle_since and now - connection.idle_since >= limits.idle_timeout:
            return "idle"
        return ""

    def _put_idle(self, group: Group, connection: Connection) -> None:
        if len(group.idle) >= self.limits.max_idle:
            self._retire(group, group.idle.pop(0), "idle")
        connection.idle_since = self._loop.time()
        connection.on_idle_event = lambda each: self._idle_event(group, each)
        group.idle.append(connection)
        if not group.shared:
            own = self._own.setdefault(group.key.tenant, OrderedDict())
            own[connection] = group
            own.move_to_end(connection)
            while len(own) > AGENT_IDLE:
                oldest, its_group = own.popitem(last=False)
                if oldest in its_group.idle:  # not lent again, nor closed
                    its_group.idle.remove(oldest)
                    self._retire(its_group, oldest, "idle")

    def _idle_event(self, group: Group, connection: Connection) -> None:
        """An idle peer said something: a session ticket is fine, anything else is not."""
        reason = connection.soiled()
        if reason:
            group.idle.remove(connection)
            self._retire(group, connection, reason)
            self._pump(group)
        else:
            self._keep_session(group, connection)

    def _retire(self, group: Group, connection: Connection, reason: str) -> None:
        if reason == "bytes":
            self.counters["retired_dirty"] += 1
            log.warning("%s sent bytes that nobody asked for; the connection is closed, not reused", group.key.destination)
        elif reason == "closed":
            self.counters["closed_by_peer"] += 1
        elif reason in ("idle", "age", "requests", "denied"):
            self.counters[f"retired_{reason}"] += 1
        connection.close()

    def _keep_session(self, group: Group, connection: Connection) -> None:
        if connection.leases > 1 or (group.sessions and len(group.sessions) == SESSIONS):
            return
        session = connection.session()
        if session is not None:
            group.sessions.append((self._loop.time(), session))

    # ---- the queue ----

    def _pump(self, group: Group) -> None:
        """Serve who waits with what is idle, and open what is missing."""
        while group.waiting:
            agent = next(iter(group.waiters.values()))[0].agent
            connection = self._take_idle(group, agent)
            if connection is None:
                break
            self._serve(group, connection)
        now = self._loop.time()
        missing = 0
        if not (group.leased and now < group.full_until):
            missing = group.waiting - group.opening
        if now >= group.not_before:
            missing = max(missing, group.keep - group.total)
        if self._closed:
            return
        while missing > 0 and group.opening < self.limits.max_opening and group.total < self.limits.max_connections:
            if not self._worth_opening(group, now):
                break
            missing -= 1
            group.opening += 1
            first = next(iter(group.waiters.values()))[0].agent if group.waiters else OPERATOR
            task = self._loop.create_task(self._open(group, first, self._number), name=f"tls {group.key.destination}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        if group.waiting and not group.again:
            group.again = self._loop.call_later(AGAIN, self._look_again, group)

    def _look_again(self, group: Group) -> None:
        group.again = None
        if not self._closed:
            self._pump(group)

    def _worth_opening(self, group: Group, now: float) -> bool:
        """Those who wait would wait longer than they should for what is in use. While no call has ended yet, the oldest one tells
        how long they take: so long at least."""
        total = group.total
        if total < max(EAGER, group.keep):
            return True
        took = group.duration
        if took is None:
            took = max((now - each.lent_at for each in group.leased), default=0.0)
        return group.waiting * took > self.limits.patience * total

    def _next(self, group: Group) -> _Waiter:
        """The next in turn: agents one after the other, each agent's own in order."""
        agent_id, queue = next(iter(group.waiters.items()))
        waiter = queue.popleft()
        group.waiting -= 1
        if queue:
            group.waiters.move_to_end(agent_id)
        else:
            del group.waiters[agent_id]
        return waiter

    def _serve(self, group: Group, connection: Connection) -> None:
        """`connection` is lent (in group.leased) and goes to the next in turn."""
        waiter = self._next(group)
        if waiter.future.done():
            self.give_back(group, connection, reusable=True)
        else:
            waiter.future.set_result(connection)

    async def _open(self, group: Group, agent: Agent, newest: int) -> None:
        """One more connection for whoever is next when it is ready; not bound to the life of who caused it."""
        session = self._session(group)
        connection: Connection | None = None
        failure: AgentfwError | None = None
        try:
            async with asyncio.timeout(self.limits.connect_timeout):
                connection = await self._open_connection(group.key, agent, session)
        except TimeoutError:
            failure = ConnectError(group.key.destination, errno.ETIMEDOUT)
        except AgentfwError as error:
            failure = error
        except OSError as error:
            failure = ConnectError(group.key.destination, error.errno or errno.EIO)
        except Exception as error:
            log.exception("opening a connection to %s failed", group.key.destination)
            failure = UpstreamError(f"opening a connection to {group.key.destination} failed: {type(error).__name__}")
        finally:
            group.opening -= 1
        if connection is not None:
            now = self._loop.time()
            connection.opened_at = now
            self.counters["handshakes"] += 1
            self.counters["resumed"] += connection.resumed
            group.not_before = 0.0
            group.last_failure = None
            if self._closed:
                connection.close()
                return
            self._put_idle(group, connection)
        else:
            assert failure is not None
            self.counters["failed"] += 1
            group.not_before = self._loop.time() + 5.0
            self._fail(group, agent, failure, newest)
        self._pump(group)

    def _session(self, group: Group) -> SSL.Session | None:
        now = self._loop.time()
        while group.sessions:
            stored, session = group.sessions.pop()
            if now - stored < SESSION_AGE:
                return session
        return None

    def _fail(self, group: Group, agent: Agent, failure: AgentfwError, newest: int) -> None:
        """A refusal concerns the agent that was refused. While other connections are in use, who waits goes on waiting for those;
        else the failure is that of all who were waiting when the attempt began."""
        group.last_failure = failure
        if isinstance(failure, Denied | HookError):
            concerned = list(group.waiters.get(agent.id, ()))
        elif group.leased:
            group.full_until = self._loop.time() + 1.0
            concerned = []
        else:
            concerned = [waiter for queue in group.waiters.values() for waiter in queue if waiter.number <= newest]
        if agent is OPERATOR:
            log.warning("cannot open a connection to %s ahead of need: %s", group.key.destination, failure)
        for waiter in concerned:
            if not waiter.future.done():
                waiter.future.set_exception(failure)
            queue = group.waiters[waiter.agent.id]
            queue.remove(waiter)
            group.waiting -= 1
            if not queue:
                del group.waiters[waiter.agent.id]

    # ---- upkeep ----

    def keep_open(self, key: Key, count: int) -> None:
        """Hold `count` connections, opened now and again when they go."""
        group = self.group(key, shared=True)
        group.keep = min(count, self.limits.max_connections)
        self._pump(group)

    def sweep(self) -> None:
        """Every few seconds: close what is old or idle for too long, replace what is to be kept, forget empty groups."""
        now = self._loop.time()
        for group in list(self.groups.values()):
            for connection in list(group.idle):
                reason = connection.soiled() or self._worn(connection, now)
                if reason:
                    group.idle.remove(connection)
                    self._retire(group, connection, reason)
            self._pump(group)
            while group.sessions and now - group.sessions[0][0] >= SESSION_AGE:
                group.sessions.popleft()
            if group.unused and not group.sessions:
                del self.groups[group.key]

    def agent_gone(self, agent: Agent) -> None:
        """Its own connections are closed. (Its leases end with its flows.)"""
        self._own.pop(agent.id, None)
        for group in [group for group in self.groups.values() if not group.shared and group.key.tenant == agent.id]:
            self._empty(group)
            group.sessions.clear()
            if group.unused:
                del self.groups[group.key]

    def _empty(self, group: Group) -> None:
        for connection in group.idle:
            connection.close()
        group.idle.clear()

    async def close(self) -> None:
        """All connections, leased ones too; who waits gets an error. Idempotent."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for group in self.groups.values():
            self._empty(group)
            for connection in list(group.leased):
                connection.close()
            group.leased.clear()
            for queue in group.waiters.values():
                for waiter in queue:
                    if not waiter.future.done():
                        waiter.future.set_exception(UpstreamError("the connection pool has been closed"))
            group.waiters.clear()
            group.waiting = 0
            if group.again:
                group.again.cancel()
        self.groups.clear()
        self._own.clear()

    def statistics(self) -> dict[str, int | float]:
        counters = self.counters
        names = (
            "handshakes", "resumed", "reused", "queued", "overflow", "failed", "retired_dirty", "retired_idle", "retired_age",
            "retired_requests", "retired_denied", "closed_by_peer", "replaced",
        )  # fmt: skip
        groups = self.groups.values()
        return {
            **{name: counters[name] for name in names},
            "held": sum(len(group.idle) for group in groups),
            "leased": sum(len(group.leased) for group in groups),
            "opening": sum(group.opening for group in groups),
            "waiting": sum(group.waiting for group in groups),
        }


OPERATOR = Agent("agentfw", "agentfw")
"""For whom connections are opened ahead of need."""


class Lease:
    """`agentfw.upstream.Upstream`: a connection as one agent sees it. After `release()` it leads nowhere."""

    def __init__(self, pool: Pool, group: Group, agent: Agent, connection: Connection) -> None:
        self._pool = pool
        self._group = group
        self._agent = agent
        self._connection: Connection | None = connection
        self._address = connection.address
        self._info = connection.info
        self._reused = pool.has_waited(connection)
        self._touched = False

    @property
    def destination(self) -> Destination:
        return self._group.key.destination

    @property
    def tls(self) -> TlsInfo | None:
        return self._info

    @property
    def address(self) -> str:
        return self._address

    @property
    def reused(self) -> bool:
        return self._reused

    async def send(self, data: bytes) -> None:
        """As in Upstream. A connection that is dead or soiled before the first byte goes out is replaced without a word."""
        connection = self._live()
        if not self._touched:
            self._touched = True
            for _ in range(REPLACE):
                if not connection.soiled():
                    break
                connection = await self._replace(connection)
            else:
                raise UpstreamError(f"connections to {connection.destination.host} die as soon as they are used")
        await connection.send(data)

    async def receive(self, limit: int = 65536) -> bytes:
        self._touched = True
        return await self._live().receive(limit)

    async def send_eof(self) -> None:
        self._touched = True
        self._live().send_eof()

    def release(self, *, reusable: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._pool._let_go(self._agent)
        if connection not in self._group.leased:  # the pool has been closed
            connection.close()
            return
        self._pool.give_back(self._group, connection, reusable=reusable)

    def _live(self) -> Connection:
        if self._connection is None:
            raise UpstreamError("the connection was released")
        return self._connection

    async def _replace(self, dead: Connection) -> Connection:
        pool, group = self._pool, self._group
        pool.counters["replaced"] += 1
        group.leased.discard(dead)
        pool._retire(group, dead, dead.soiled())
        self._connection = None
        try:
            connection = await pool._acquire(group, self._agent)
        except BaseException:
            pool._let_go(self._agent)
            raise
        self._connection = connection
        self._address = connection.address
        self._info = connection.info
        self._reused = pool.has_waited(connection)
        return connection
