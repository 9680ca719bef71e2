"""Held connections against what is true now: what policy says after a reload, and which addresses the names have."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from agentfw.agents import Agent
from agentfw.errors import AgentfwError, Denied, ResolveError, UpstreamError
from agentfw.runtime import Runtime

from .connection import Connection
from .groups import Cluster, Group
from .pool import OPERATOR, Pool

log = logging.getLogger("agentfw.tls")

RESOLVE_EVERY = 15.0
"""Seconds after which a destination with held connections is resolved again (mostly out of the DNS plugin's cache)."""
TOO_MANY = 429
"""Status of a refusal that only says that it is too often, or too much at once: no reason to close anything."""


async def check_policy(runtime: Runtime, pool: Pool) -> None:
    """Close idle connections that none of those who used them may have any more; keep leased ones of whom is now denied from
    being lent again. (The core cuts the flows of the denied.) A plugin that fails is a no."""
    for group in list(pool.groups.values()):
        for connection in list(group.leased):
            borrower = connection.borrower
            if borrower is not None and not await _permitted(runtime, borrower, group, connection.address):
                connection.drained = connection.drained or "denied"
        if not group.idle:
            continue
        users = [OPERATOR] if group.keep else []
        users += reversed(group.borrowers.values())
        for address in {connection.address for connection in group.idle}:
            for user in users:
                if await _permitted(runtime, user, group, address):
                    break
            else:
                gone = [connection for connection in group.idle if connection.address == address]
                pool.retire_idle(group, gone, "denied")
                group.sessions.clear()


async def _permitted(runtime: Runtime, agent: Agent, group: Group, address: str) -> bool:
    destination = group.key.destination
    try:
        await runtime.plugins.allow(agent, destination)
        runtime.check_address(agent, destination, address)
    except Denied as denied:
        return denied.status == TOO_MANY
    except AgentfwError as error:
        log.error("%s: %s", destination, error, exc_info=error.__cause__)
        return False
    return True


async def check_addresses(runtime: Runtime, pool: Pool) -> None:
    """Drain connections to addresses that their names have not had for `Limits.dns_drain` seconds. Names that cannot be resolved
    now keep what they have."""
    now = pool.now()
    for cluster in list(pool.clusters.values()):
        if cluster.destination.is_address or now - cluster.resolved_at < RESOLVE_EVERY:
            continue
        user = _user(cluster)
        if user is None:
            continue
        try:
            found = await runtime.resolve_addresses(user, cluster.destination)
        except Denied as denied:
            if denied.status == TOO_MANY:
                continue
            found = []
        except (ResolveError, UpstreamError):
            continue
        except AgentfwError as error:
            log.error("%s: %s", cluster.destination, error, exc_info=error.__cause__)
            continue
        if found:
            cluster.has(found, pool.now())
            _drain_moved(pool, cluster)


def _user(cluster: Cluster) -> Agent | None:
    """In whose name to ask; None if no connection is held."""
    for group in cluster.groups.values():
        if group.idle or group.leased:
            if group.borrowers:
                return next(reversed(group.borrowers.values()))
            return OPERATOR
    return None


def _drain_moved(pool: Pool, cluster: Cluster) -> None:
    grace = pool.limits.dns_drain
    for group in list(cluster.groups.values()):
        for connection in _moved(cluster, group.leased, grace):
            connection.drained = connection.drained or "drained"
        pool.retire_idle(group, _moved(cluster, group.idle, grace), "drained")
        pool.replenish(group)


def _moved(cluster: Cluster, connections: Iterable[Connection], grace: float) -> list[Connection]:
    return [connection for connection in connections if cluster.moved(connection.address, grace)]
