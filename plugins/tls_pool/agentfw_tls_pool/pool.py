"""Who gets which connection: groups of interchangeable connections, leases, a fair queue, and the rules of retirement.

Two requests share a connection one after the other, only if everything that makes connections differ is equal (`Key`), and only
if nothing of the first is left on it. A connection that is not provably clean is closed, never lent.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import islice

from agentfw.agents import Agent
from agentfw.destination import Destination
from agentfw.errors import AgentfwError, ConnectError, Denied, HookError, Overloaded, UpstreamError
from OpenSSL import SSL

from .connection import Connection
from .failures import Abandoned, copy_of
from .groups import RETRY_AFTER, Cluster, Group, Key, Limits, Waiter
from .lease import Known, Lease

log = logging.getLogger("agentfw.tls")

AGENT_IDLE = 32
"""Unused connections held open for one agent alone, over all destinations; the one unused for longest goes. A pool that is shared
has `Limits.max_idle` instead."""
GROUPS = 1024
EAGER = 4
"""Connections of a group that are opened as soon as they are wanted. More only if waiting for those in use would take longer than
`Limits.patience`: a burst of short calls shares a few, long calls get one each."""
AGAIN = 0.01
"""Seconds after which it is looked at again whether those who wait should wait."""
YOUNG = 5.0
"""Seconds that a connection lives at least, unless something is wrong with it."""
STILLBORN = 3
"""Connections in a row that died unused in less than that, after which those who wait are told so."""

OPERATOR = Agent("agentfw", "agentfw")
"""For whom connections are opened ahead of need."""

COUNTERS = (
    "handshakes", "resumed", "reused", "queued", "overflow", "pending_overflow", "cx_overflow", "agent_overflow",
    "queue_timeout", "retry", "retry_overflow", "failed", "retired_dirty", "retired_idle", "retired_age", "retired_requests",
    "retired_denied", "retired_drained", "retired_flood", "closed_by_peer", "replaced",
)  # fmt: skip


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
        self.clusters: dict[Destination, Cluster] = {}
        self._open_connection = open_connection
        self._check_address = check_address
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held_by: Counter[str] = Counter()  # by agent: leases and places in queues
        self._own: dict[str, OrderedDict[Connection, Group]] = {}  # by tenant: those last put to rest, where nobody shares
        self._number = 0
        self._closed = False
        self._abandoned: set[Group] = set()  # still in use

    def now(self) -> float:
        """Loop time."""
        return self._loop.time()

    # ---- leases ----

    async def lease(self, key: Key, agent: Agent, *, shared: bool) -> Lease:
        """A clean, verified connection, held for one agent until `release()`. UpstreamError (Overloaded), Denied, Abandoned."""
        if self._closed:
            raise UpstreamError("the connection pool has been closed")
        group = self.group(key, shared=shared)
        if self._held_by[agent.id] >= self.limits.agent_connections:
            self._overflow("agent_overflow")
            raise Overloaded(f"too many connections of this agent are open or waited for ({self.limits.agent_connections})")
        self._held_by[agent.id] += 1
        try:
            connection = await self.acquire(group, agent)
        except BaseException:
            self.let_go(agent)
            raise
        retry = bool(group.cluster.claims) and group.cluster.begin_retry(agent)
        return Lease(self, group, agent, connection, retry)

    def known(self, key: Key, agent: Agent) -> Known | None:
        """What is known of the peer from a connection that is open and that `agent` could be lent."""
        group = self.groups.get(key)
        if group is not None:
            for connection in (*group.idle[-1:], *islice(group.leased, 1)):
                if not (connection.closed or connection.drained):
                    with suppress(Denied, HookError, OSError):  # another address may be permitted
                        self._check_address(agent, key.destination, connection.address)
                        return Known(connection)
        return None

    def let_go(self, agent: Agent) -> None:
        """A lease, or the wait for one, has ended."""
        self._held_by[agent.id] -= 1
        if self._held_by[agent.id] <= 0:
            del self._held_by[agent.id]

    def group(self, key: Key, *, shared: bool) -> Group:
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= GROUPS:
                for each in [each for each in self.groups.values() if each.unused]:
                    self._forget(each)
            cluster = self.clusters.get(key.destination)
            if cluster is None:
                cluster = self.clusters[key.destination] = Cluster(key.destination)
            group = self.groups[key] = cluster.groups[key] = Group(key, shared, cluster)
        return group

    def _forget(self, group: Group) -> None:
        cluster = group.cluster
        del self.groups[group.key], cluster.groups[group.key]
        if not cluster.groups and not cluster.connections:
            self.clusters.pop(cluster.destination, None)

    async def acquire(self, group: Group, agent: Agent) -> Connection:
        """A connection of this group, lent to `agent`. As `lease()`."""
        if self._closed:
            raise UpstreamError("the connection pool has been closed")
        if group.abandoned:
            raise Abandoned
        cluster = group.cluster
        if not group.waiting and cluster.requests < self.limits.max_requests:
            connection = self._take_idle(group, agent)
            if connection is not None:
                return connection
        if cluster.pending >= self.limits.max_pending:
            self._make_place(cluster, agent)
        self._number += 1
        waiter = Waiter(agent, self._loop.create_future(), self._number, self._loop.time())
        group.enqueue(waiter)
        self.counters["queued"] += 1
        if cluster.connections >= self.limits.max_connections:
            self.counters["cx_overflow"] += 1
        self._pump(group)
        try:
            async with asyncio.timeout(self.limits.queue_timeout):
                return await waiter.future
        except TimeoutError:
            self._withdraw(group, waiter)
            self._overflow("queue_timeout")
            failure = f" ({group.last_failure})" if group.last_failure else ""
            text = f"no connection to {group.key.destination} became free in {self.limits.queue_timeout:g} s{failure}"
            raise Overloaded(text, group.retry_after()) from None
        except asyncio.CancelledError:
            self._withdraw(group, waiter)
            raise

    def _overflow(self, what: str) -> None:
        self.counters["overflow"] += 1
        self.counters[what] += 1

    def _make_place(self, cluster: Cluster, agent: Agent) -> None:
        """The queue is full. Overloaded for the newcomer, unless another agent has a greater part of the queue: then for that
        one's latest request, so that none can fill it alone."""
        self._overflow("pending_overflow")
        greediest, longest, own = None, 1, 0
        for group, queue in cluster.queued():
            if queue[0].agent.id == agent.id:
                own += len(queue)
            elif len(queue) > longest:
                greediest, longest = (group, queue), len(queue)
        text = f"too many requests wait for a connection to {cluster.destination} ({self.limits.max_pending})"
        if greediest is None or longest <= own + 1:
            queues = list(cluster.queues.values())
            raise Overloaded(text, queues[0].retry_after() if queues else RETRY_AFTER[0])
        group, queue = greediest
        waiter = queue[-1]
        group.remove(waiter)
        if not waiter.future.done():
            waiter.future.set_exception(Overloaded(text, group.retry_after()))

    def _withdraw(self, group: Group, waiter: Waiter) -> None:
        """The one who waited is gone; a connection that it had been given meanwhile goes to the next."""
        future = waiter.future
        if future.done() and not future.cancelled():
            if future.exception() is None:
                self.give_back(group, future.result(), reusable=True)
            return
        group.remove(waiter)
        future.cancel()

    def _take_idle(self, group: Group, agent: Agent) -> Connection | None:
        """The newest clean connection, checked to the last byte at this moment."""
        now = self._loop.time()
        while group.idle:
            connection = group.idle.pop()
            connection.on_idle_event = None
            reason = connection.soiled() or self._worn(connection, now)
            if reason:
                self.retire(group, connection, reason)
                continue
            try:
                self._check_address(agent, group.key.destination, connection.address)
            except (Denied, HookError, OSError):
                if group.shared:  # others may use it
                    since = connection.idle_since
                    self._put_idle(group, connection)
                    connection.idle_since = since  # it was not used
                    return None
                self.retire(group, connection, "denied")
                continue
            self._lend(group, connection, agent)
            return connection
        return None

    def has_waited(self, connection: Connection) -> bool:
        """It has been open long enough for the peer to lose interest."""
        return connection.leases > 1 or self._old(connection)

    def was_used(self, connection: Connection) -> bool:
        """The peer may have closed it as idle while a request was on its way: it has served before, or waited long."""
        return connection.sent > 0 or self._old(connection)

    def _old(self, connection: Connection) -> bool:
        return self._loop.time() - connection.opened_at > 1.0

    def _lend(self, group: Group, connection: Connection, agent: Agent) -> None:
        group.leased.add(connection)
        group.cluster.requests += 1
        group.borrowed(agent)
        connection.borrower = agent
        connection.leases += 1
        connection.lent_at = self._loop.time()
        connection.idle_since = 0.0
        connection.lent_at_sent = connection.sent
        if connection.leases > 1:
            self.counters["reused"] += 1

    def take_back(self, group: Group, connection: Connection) -> bool:
        """It is lent no more. False if it was not: the pool has been closed."""
        if connection not in group.leased:
            return False
        group.leased.discard(connection)
        group.cluster.requests -= 1
        connection.borrower = None
        return True

    def give_back(self, group: Group, connection: Connection, *, reusable: bool) -> None:
        """The end of a lease. Lent again only if the borrower vouches for it and nothing contradicts."""
        if not self.take_back(group, connection):
            connection.close()
            return
        group.returned_at = now = self._loop.time()
        if connection.sent != connection.lent_at_sent:
            took = now - connection.lent_at
            group.duration = took if group.duration is None else 0.8 * group.duration + 0.2 * took
        if not reusable or self._closed:
            self.retire(group, connection, "not reusable")
        else:
            reason = connection.soiled() or self._worn(connection, now)
            if reason:
                self.retire(group, connection, reason)
            else:
                group.failures = 0
                group.not_before = 0.0
                group.keep_session(connection, self._loop.time())
                self._put_idle(group, connection)
        self._turn(group)

    def _worn(self, connection: Connection, now: float) -> str:
        limits = self.limits
        if connection.drained:
            return connection.drained
        if connection.leases >= limits.max_requests_per_connection:
            return "requests"
        if now - connection.opened_at >= limits.max_age:
            return "age"
        if connection.idle_since and now - connection.idle_since >= limits.idle_timeout:
            return "idle"
        return ""

    def _put_idle(self, group: Group, connection: Connection) -> None:
        if len(group.idle) >= self.limits.max_idle:
            self.retire(group, group.idle.pop(0), "idle")
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
                    self.retire_idle(its_group, [oldest], "idle")

    def _idle_event(self, group: Group, connection: Connection) -> None:
        """An idle peer said something: a session ticket is fine, anything else is not."""
        reason = connection.soiled()
        if reason:
            self.retire_idle(group, [connection], reason)
            self._pump(group)
        else:
            group.keep_session(connection, self._loop.time())

    def retire_idle(self, group: Group, connections: Iterable[Connection], reason: str) -> None:
        """Close connections of `group.idle`."""
        for connection in connections:
            group.idle.remove(connection)
            self.retire(group, connection, reason)

    def retire(self, group: Group, connection: Connection, reason: str) -> None:
        """Close a connection that is neither idle nor lent (any more)."""
        if reason == "bytes":
            self.counters["retired_dirty"] += 1
            log.warning("%s sent bytes that nobody asked for; the connection is closed, not reused", group.key.destination)
        elif reason == "closed":
            self.counters["closed_by_peer"] += 1
        elif reason in ("idle", "age", "requests", "denied", "drained", "flood"):
            self.counters[f"retired_{reason}"] += 1
        connection.close()
        if reason in ("closed", "bytes") and not connection.leases and self._loop.time() - connection.opened_at < YOUNG:
            self._stillborn(group, connection)

    # ---- the queue ----

    def _turn(self, group: Group) -> None:
        """A connection of `group` became free. If the destination's limit makes other groups wait, it is the next one's turn."""
        queues = group.cluster.queues
        limits = self.limits
        if queues and (group.cluster.connections >= limits.max_connections or group.cluster.requests + 1 >= limits.max_requests):
            first = next(iter(queues.values()))
            queues.move_to_end(first.key)
            if first is not group:
                self._pump(first)
        self._pump(group)

    def _pump(self, group: Group) -> None:
        """Serve who waits with what is idle, and open what is missing."""
        cluster, limits = group.cluster, self.limits
        while group.waiting and cluster.requests < limits.max_requests:
            agent = next(iter(group.waiters.values()))[0].agent
            connection = self._take_idle(group, agent)
            if connection is None:
                break
            self._serve(group, connection)
        if self._closed:
            return
        now = self._loop.time()
        missing = 0
        if not (group.leased and now < group.full_until):
            missing = group.waiting - group.opening
        wanted = missing > 0
        if now >= group.not_before:
            missing = max(missing, group.keep - group.total)
        while missing > 0 and group.opening < limits.max_opening:
            if not self._worth_opening(group, now):
                break
            if cluster.connections >= limits.max_connections and not (wanted and self._make_room(group)):
                break
            missing -= 1
            group.opening += 1
            cluster.connections += 1
            first = next(iter(group.waiters.values()))[0].agent if group.waiters else OPERATOR
            task = self._loop.create_task(self._open(group, first, self._number), name=f"tls {group.key.destination}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not group.again and (group.waiting or group.keep > group.total):
            delay = AGAIN if group.waiting else max(group.not_before - now, AGAIN)
            group.again = self._loop.call_later(delay, self._look_again, group)

    def _make_room(self, group: Group) -> bool:
        """Close an idle connection of another group of this destination."""
        found = group.cluster.oldest_idle()
        if found is None or found[0] is group:
            return False
        self.retire_idle(found[0], [found[1]], "idle")
        return True

    def _look_again(self, group: Group) -> None:
        group.again = None
        if not self._closed:
            self._pump(group)

    def _worth_opening(self, group: Group, now: float) -> bool:
        """Those who wait would wait longer than they should for what is in use. While no call has ended yet, the oldest one tells
        how long they take: so long at least; and while none ends any more, what they took so far says nothing."""
        total = group.total
        if total < max(EAGER, group.keep):
            return True
        if now - max(next(iter(group.waiters.values()))[0].since, group.returned_at) > self.limits.patience:
            return True
        took = group.duration
        if took is None:
            took = max((now - each.lent_at for each in group.leased), default=0.0)
        return group.waiting * took > self.limits.patience * total

    def _serve(self, group: Group, connection: Connection) -> None:
        """`connection` is lent (in group.leased) and goes to the next in turn."""
        waiter = group.next()
        if waiter.future.done():
            self.give_back(group, connection, reusable=True)
        else:
            waiter.future.set_result(connection)

    async def _open(self, group: Group, agent: Agent, newest: int) -> None:
        """One more connection for whoever is next when it is ready; not bound to the life of who caused it."""
        session = group.take_session(self._loop.time())
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
            if connection is None:
                group.cluster.connections -= 1
        now = self._loop.time()
        if connection is not None:
            connection.opened_at = now
            connection.on_close = group.cluster.connection_gone
            group.cluster.seen([connection.address], now)
            self.counters["handshakes"] += 1
            self.counters["resumed"] += connection.resumed
            group.last_failure = None
            if self._closed or group.abandoned:
                connection.close()
                return
            self._put_idle(group, connection)
        else:
            assert failure is not None
            self.counters["failed"] += 1
            group.back_off(self._loop.time())
            self._fail(group, agent, failure, newest)
        self._pump(group)

    def _stillborn(self, group: Group, connection: Connection) -> None:
        """The peer takes connections and gives them up at once: that must not become a loop."""
        group.back_off(self._loop.time())
        if group.failures >= STILLBORN and not group.leased:
            why = f": {connection.trouble}" if connection.trouble else ""
            failure = UpstreamError(f"{group.key.destination} gives connections up as soon as they are open{why}")
            self._fail(group, OPERATOR, failure, self._number)

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
        if agent is OPERATOR and group.keep and (group.failures & (group.failures - 1)) == 0:  # the 1st, 2nd, 4th, ... in a row
            log.warning("cannot open a connection to %s ahead of need: %s", group.key.destination, failure)
        for waiter in concerned:
            if not waiter.future.done():
                waiter.future.set_exception(copy_of(failure))
            group.remove(waiter)

    # ---- upkeep ----

    def keep_open(self, key: Key, count: int) -> None:
        """Hold `count` connections, opened now and again when they go; 0: no more than what is needed."""
        group = self.group(key, shared=True)
        group.keep = min(count, self.limits.max_connections, self.limits.max_idle)
        self._pump(group)

    def replenish(self, group: Group) -> None:
        """Connections of it were closed: open what is missing."""
        if not self._closed:
            self._pump(group)

    def sweep(self) -> None:
        """Every few seconds: close what is old or idle for too long, replace what is to be kept, forget empty groups."""
        now = self._loop.time()
        for group in list(self.groups.values()):
            for connection in list(group.idle):
                reason = connection.soiled() or self._worn(connection, now)
                if reason:
                    self.retire_idle(group, [connection], reason)
                elif now - connection.opened_at > YOUNG:
                    group.failures = 0
            self._pump(group)
            group.forget_sessions(now)
            if group.unused and not group.sessions:
                self._forget(group)
        self._abandoned = {group for group in self._abandoned if not group.unused}
        for tenant, own in list(self._own.items()):
            for connection in [connection for connection in own if connection.closed]:
                del own[connection]
            if not own:
                del self._own[tenant]
        for cluster in [each for each in self.clusters.values() if not each.groups and not each.connections]:
            del self.clusters[cluster.destination]

    def abandon(self, group: Group) -> None:
        """What it stands for is no longer configured: nobody gets its connections, those in use are closed when their lease
        ends, and who waits asks again (Abandoned)."""
        group.abandoned = True
        group.keep = 0
        group.sessions.clear()
        for connection in group.leased:
            connection.drained = "drained"
        self.retire_idle(group, list(group.idle), "drained")
        for waiter in [waiter for queue in group.waiters.values() for waiter in queue]:
            group.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(Abandoned())
        self._forget(group)
        if not group.unused:
            self._abandoned.add(group)

    def agent_gone(self, agent: Agent) -> None:
        """Its own connections are closed. (Its leases end with its flows.)"""
        self._own.pop(agent.id, None)
        for group in self.groups.values():
            group.borrowers.pop(agent.id, None)  # policy is not asked about it any more
        for group in [group for group in self.groups.values() if not group.shared and group.key.tenant == agent.id]:
            self._empty(group)
            group.sessions.clear()
            if group.unused:
                self._forget(group)

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
        for group in (*self.groups.values(), *self._abandoned):
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
        self.clusters.clear()
        self._abandoned.clear()
        self._own.clear()

    def statistics(self) -> dict[str, int | float]:
        groups = (*self.groups.values(), *self._abandoned)
        return {
            **{name: self.counters[name] for name in COUNTERS},
            "held": sum(len(group.idle) for group in groups),
            "leased": sum(len(group.leased) for group in groups),
            "opening": sum(group.opening for group in groups),
            "waiting": sum(group.waiting for group in groups),
        }
