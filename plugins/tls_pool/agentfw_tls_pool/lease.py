"""A connection as one agent sees it, from the lease to its release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentfw.agents import Agent
from agentfw.destination import Destination
from agentfw.errors import AgentfwError, UpstreamError
from agentfw.upstream import TlsInfo

from .connection import Connection
from .groups import Group

if TYPE_CHECKING:
    from .pool import Pool

REPLACE = 8
"""Connections that a lease tries before its first byte."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that ask for nothing to be done (RFC 9110, section 9.2.1)."""


class Lease:
    """`agentfw.upstream.Upstream`, and `Replayable`. After `release()` it leads nowhere."""

    def __init__(self, pool: Pool, group: Group, agent: Agent, connection: Connection, retry: bool = False) -> None:
        self._pool = pool
        self._group = group
        self._agent = agent
        self._connection: Connection | None = connection
        self._address = connection.address
        self._info = connection.info
        self._reused = pool.has_waited(connection)
        self._used = pool.was_used(connection)
        self._touched = False
        self._retry = retry
        self._failure: AgentfwError | None = None
        self._released = False
        self._ended = False
        self.retry_post = False
        """The operator lets this destination get a POST twice."""

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

    def replayable(self, method: str) -> bool:
        """As in Replayable. Not on a connection that nothing was sent on before: that one did not die of idleness."""
        return self._used and (method in SAFE or (method == "POST" and self.retry_post))

    def claim_retry(self) -> bool:
        """As in Replayable."""
        pool = self._pool
        granted = self._group.cluster.claim_retry(self._agent, pool.limits.max_retries, pool.now())
        pool.counters["retry" if granted else "retry_overflow"] += 1
        return granted

    async def send(self, data: bytes) -> None:
        """As in Upstream. A connection that is dead or soiled before the first byte goes out is replaced without a word."""
        connection = self._live()
        if not self._touched:
            self._touched = True
            for _ in range(REPLACE):
                reason = connection.soiled()
                if not reason:
                    break
                connection = await self._replace(connection, reason)
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
        self._released = True
        self._end()
        if connection is not None:
            self._pool.give_back(self._group, connection, reusable=reusable)

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._pool.let_go(self._agent)
        if self._retry:
            self._group.cluster.retries -= 1

    def _live(self) -> Connection:
        if self._connection is None:
            raise self._failure or UpstreamError("the connection was released")
        return self._connection

    async def _replace(self, dead: Connection, reason: str) -> Connection:
        pool, group = self._pool, self._group
        pool.counters["replaced"] += 1
        pool.take_back(group, dead)
        pool.retire(group, dead, reason)
        self._connection = None
        try:
            connection = await pool.acquire(group, self._agent)
        except BaseException as error:
            self._end()
            if not isinstance(error, Exception):
                raise
            self._failure = error if isinstance(error, AgentfwError) else UpstreamError("the configuration has changed")
            raise self._failure from None
        if self._released:
            pool.give_back(group, connection, reusable=True)
            raise UpstreamError("the connection was released")
        self._connection = connection
        self._address = connection.address
        self._info = connection.info
        self._reused = pool.has_waited(connection)
        self._used = pool.was_used(connection)
        return connection


class Known:
    """An answer to `TlsRequest.probe`: an `agentfw.upstream.Upstream` that leads nowhere."""

    reused = True

    def __init__(self, connection: Connection) -> None:
        self.destination = connection.destination
        self.address = connection.address
        self.tls = connection.info

    async def send(self, data: bytes) -> None:
        raise self._refusal()

    async def receive(self, limit: int = 65536) -> bytes:
        raise self._refusal()

    async def send_eof(self) -> None:
        raise self._refusal()

    def _refusal(self) -> UpstreamError:
        return UpstreamError(f"{self.destination} was only asked about, not connected to")

    def release(self, *, reusable: bool = False) -> None:
        pass
