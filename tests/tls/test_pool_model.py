"""The pool's books, by chance: whatever borrowers, peers and the operator do in whatever order, they balance, limits hold, nobody
waits for nothing, and what was dirty is never lent again."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from agentfw.agents import Agent
from agentfw.destination import Destination
from agentfw.errors import AgentfwError, ConnectError, Denied
from agentfw.testing import make_agent
from agentfw_tls_pool.failures import Abandoned
from agentfw_tls_pool.groups import Group, Key, Limits
from agentfw_tls_pool.lease import Lease
from agentfw_tls_pool.pool import Pool
from agentfw_tls_pool.trust import Versions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

AGENTS = [make_agent(f"a{i}") for i in range(3)]
HOSTS = ["one.test", "two.test"]
LIMITS = Limits(
    max_connections=3, max_pending=3, max_requests=2, max_retries=1, max_requests_per_connection=5, max_opening=2, max_idle=2,
    agent_connections=4, idle_timeout=1000, max_age=1000, connect_timeout=5, queue_timeout=1000, patience=0, dns_drain=60,
)  # fmt: skip


class Fake:
    """What the pool sees of a Connection."""

    def __init__(self, key: Key, world: World) -> None:
        self.key = key
        self.destination = key.destination
        self.address = "192.0.2.1"
        self.info = None
        self.resumed = False
        self.drained = ""
        self.trouble = ""
        self.borrower: Agent | None = None
        self.opened_at = self.idle_since = self.lent_at = 0.0
        self.leases = self.sent = self.lent_at_sent = 0
        self.on_close: Any = None
        self.on_idle_event: Any = None
        self.closed = False
        self.state = ""
        world.connections.append(self)

    def soiled(self) -> str:
        return "closed" if self.closed else self.state

    def session(self) -> None:
        return None

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.on_close:
                self.on_close(self)


class World:
    """A pool and those around it."""

    def __init__(self) -> None:
        self.connections: list[Fake] = []
        self.leases: list[tuple[Lease, Key, Agent]] = []
        self.waiting: list[asyncio.Task[tuple[Lease, Key, Agent]]] = []
        self.fails = False
        self.denied: set[str] = set()
        self.generation = 0
        self.pool = Pool(LIMITS, self.open, self.check, Counter())

    async def open(self, key: Key, agent: Agent, session: object) -> Any:
        await asyncio.sleep(0)
        if self.fails:
            raise ConnectError(key.destination, 111)
        self.check(agent, key.destination, "")
        return Fake(key, self)

    def check(self, agent: Agent, destination: Destination, address: str) -> None:
        if agent.name in self.denied:
            raise Denied("test", "")

    async def lease(self, agent: Agent, host: str) -> tuple[Lease, Key, Agent]:
        shared = host == HOSTS[0]
        key = Key(Destination("https", host, 443), (), Versions(0), "" if shared else agent.id, generation=self.generation)
        return await self.pool.lease(key, agent, shared=shared), key, agent

    async def do(self, what: str, number: int) -> None:
        agent = AGENTS[number % 3]
        open_ones = [each for each in self.connections if not each.closed]
        if what == "lease":
            self.waiting.append(asyncio.ensure_future(self.lease(agent, HOSTS[number // 3 % 2])))
        elif what in ("release", "break") and self.leases:
            lease, _, _ = self.leases.pop(number % len(self.leases))
            assert lease._connection
            lease._connection.sent += 1
            lease.release(reusable=what == "release")
            lease.release(reusable=True)
        elif what == "cancel" and self.waiting:
            self.waiting[number % len(self.waiting)].cancel()
        elif what in ("bytes", "closed") and open_ones:
            each = open_ones[number % len(open_ones)]
            each.state = what
            if each.on_idle_event:
                each.on_idle_event(each)
        elif what == "fail":
            self.fails = number % 2 == 0
        elif what == "deny":
            self.denied ^= {agent.name}
        elif what == "sweep":
            self.pool.sweep()
        elif what == "reload":
            self.generation += 1
            for group in list(self.pool.groups.values()):
                self.pool.abandon(group)
        elif what == "gone":
            self.pool.agent_gone(agent)
        elif what == "retry" and self.leases:
            self.leases[number % len(self.leases)][0].claim_retry()

    async def settle(self, turns: int = 12) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in [task for task in self.waiting if task.done()]:
            self.waiting.remove(task)
            if task.cancelled():
                continue
            if (error := task.exception()) is not None:
                assert isinstance(error, AgentfwError | Abandoned), error
                continue
            self.leases.append(task.result())

    def audit(self) -> None:
        pool = self.pool
        groups: list[Group] = [*pool.groups.values(), *pool._abandoned]
        idle = [each for group in groups for each in group.idle]
        leased = [each for group in groups for each in group.leased]
        assert len(set(map(id, idle + leased))) == len(idle + leased)
        assert {id(each) for each in leased} == {id(lease._connection) for lease, _, _ in self.leases}
        for lease, key, agent in self.leases:
            connection: Any = lease._connection
            assert connection.key == key, "a connection of another kind"
            assert connection.borrower is agent
        for each in idle:
            assert not each.closed and not each.soiled() and not each.drained
        still_open = [each for each in self.connections if not each.closed]
        assert {id(each) for each in still_open} == {id(each) for each in idle + leased}, "a connection nobody keeps"
        assert pool._held_by == Counter(agent.id for _, _, agent in self.leases) + Counter(self._waiters())
        for destination, cluster in pool.clusters.items():
            mine = [group for group in groups if group.cluster is cluster]
            assert cluster.connections == sum(group.total for group in mine) <= LIMITS.max_connections
            assert cluster.requests == sum(len(group.leased) for group in mine) <= LIMITS.max_requests
            assert cluster.pending == sum(group.waiting for group in mine) <= LIMITS.max_pending
            assert set(cluster.queues) == {group.key for group in mine if group.waiting}
            assert cluster.retries + len(cluster.claims) <= LIMITS.max_retries
            assert cluster.destination == destination
        for group in groups:
            assert group.waiting == sum(map(len, group.waiters.values()))
            assert len(group.idle) <= LIMITS.max_idle
            assert pool.groups.get(group.key) is group or (group.abandoned and not group.idle)

    def _waiters(self) -> list[str]:
        return [w.agent.id for group in self.pool.groups.values() for queue in group.waiters.values() for w in queue]

    async def end(self) -> None:
        """Everybody goes on until all are served or refused; then nothing is left."""
        self.fails, self.denied = False, set()
        for _ in range(200):
            while self.leases:
                self.leases.pop()[0].release(reusable=True)
            await self.settle()
            if not self.waiting and not self.leases:
                break
            await asyncio.sleep(0.002)
        assert not self.waiting, "someone waits for nothing"
        self.audit()
        await self.pool.close()
        assert all(each.closed for each in self.connections)
        assert not self.pool._held_by


OPERATIONS = ["lease", "lease", "lease", "release", "release", "break", "cancel", "bytes", "closed", "fail", "deny", "sweep",
              "reload", "gone", "retry"]  # fmt: skip


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 17), st.sampled_from([0, 0, 1, 2, 12])), max_size=60))
def test_the_books_balance(operations: list[tuple[str, int, int]]) -> None:
    """After each operation the loop turns so many times: what is half done is met by the next one."""

    async def main() -> None:
        world = World()
        for what, number, turns in operations:
            await world.do(what, number)
            await world.settle(turns)
            if turns == 12:
                world.audit()
        await world.end()

    asyncio.run(main())
