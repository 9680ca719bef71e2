"""Who shares with whom, in what order, and up to which limits."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import agentfw_tls_pool.groups
import agentfw_tls_pool.pool
import pytest
from agentfw.agents import Agent, ExitReport
from agentfw.destination import Destination
from agentfw.errors import Denied, Overloaded, UpstreamError
from agentfw.mock_llm import MockLLM, MockOptions
from agentfw.testing import make_agent
from agentfw.upstream import TlsRequest
from agentfw_tls_pool.groups import ADDRESSES, Cluster

from .support import (
    ALICE,
    BOB,
    HOST,
    bench,
    chat,
    echo,
    eventually,
    exchange,
    run,
    serve,
)


def test_fifty_agents_share_few_connections(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            MockLLM(MockOptions(latency=0.01)) as server,
            bench(server.port, server.ca_pem, tmp_path, max_connections=8) as b,
        ):

            async def agent(number: int) -> None:
                me = make_agent(f"agent{number}")
                for call in range(4):
                    upstream = await b.lease(me)
                    _, document = await chat(upstream, f"{number}/{call}")
                    assert document["choices"][0]["message"]["content"] == f"echo: {number}/{call}"
                    upstream.release(reusable=True)

            await asyncio.gather(*(agent(number) for number in range(50)))
            stats = server.stats()
            assert stats["requests"] == 200
            assert stats["handshakes"] == b.held == b.handshakes <= 8
            assert b.waiting == b.leased == 0

    run(main)


def test_only_listed_hosts_are_shared_and_tenants_never_meet(tmp_path: Path) -> None:
    async def main() -> None:
        async with MockLLM() as server, bench(server.port, server.ca_pem, tmp_path) as b:
            red, blue = make_agent("red", tenant="red"), make_agent("blue", tenant="blue")

            async def use(agent: Agent, host: str) -> bool:
                upstream = await b.lease(agent, TlsRequest(host, ("http/1.1",)), host)
                upstream.release(reusable=True)
                return upstream.reused

            assert [await use(agent, HOST) for agent in (ALICE, BOB, ALICE)] == [False, True, True]
            assert [await use(agent, "api.anthropic.com") for agent in (ALICE, BOB, ALICE)] == [False, False, True]
            assert [await use(agent, HOST) for agent in (red, blue, red)] == [False, False, True]
            assert b.held == 5
            b.runtime.agent_exited(ALICE, ExitReport("code"))
            assert b.held == 4  # its own to the host that is not shared

    run(main)


def test_the_queue_is_fair(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, max_connections=1) as b:
            first = await b.lease()
            order = []

            async def queue(agent: Agent, number: int) -> None:
                upstream = await b.lease(agent)
                order.append(f"{agent.name}{number}")
                upstream.release(reusable=True)

            greedy = [asyncio.ensure_future(queue(ALICE, i)) for i in range(5)]
            await asyncio.sleep(0.01)
            modest = [asyncio.ensure_future(queue(BOB, i)) for i in range(2)]
            await asyncio.sleep(0.01)
            assert b.waiting == 7
            first.release(reusable=True)
            await asyncio.gather(*greedy, *modest)
            assert order == ["alice0", "bob0", "alice1", "bob1", "alice2", "alice3", "alice4"]
            assert peer.connections == 1

    run(main)


def test_limits(tmp_path: Path) -> None:
    async def main() -> None:
        limits = {"max_connections": 1, "max_pending": 2, "queue_timeout": 0.1, "agent_connections": 2}
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, **limits) as b:
            held = await b.lease()
            slow = asyncio.ensure_future(b.lease())
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="too many connections of this agent"):
                await b.lease()
            other = asyncio.ensure_future(b.lease(BOB))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="too many requests wait"):
                await b.lease(make_agent("carol"))
            for waiting in (slow, other):
                with pytest.raises(Overloaded, match="became free in"):
                    await waiting
            assert b.overflow == 4
            assert b.waiting == 0
            held.release(reusable=True)
            (await b.lease()).release(reusable=True)

    run(main)


def test_policy_counts_for_held_connections_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            (await b.lease(ALICE)).release(reusable=True)
            b.loopback.denied = {("bob", "127.0.0.1")}
            with pytest.raises(Denied):
                await b.lease(BOB)
            assert b.held == 1
            (await b.lease(ALICE)).release(reusable=True)
            assert peer.connections == 1

        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, shared=()) as b:
            (await b.lease(ALICE)).release(reusable=True)
            b.loopback.denied = {"127.0.0.1"}
            with pytest.raises(Denied):
                await b.lease(ALICE)
            assert (b.held, b.retired_denied) == (0, 1)

    run(main)


def test_one_agent_cannot_fill_the_queue(tmp_path: Path) -> None:
    """A newcomer takes the place of the latest request of whoever has most; those with as little as it has stay."""

    async def main() -> None:
        limits = {"max_connections": 1, "max_pending": 3}
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, **limits) as b:
            held = await b.lease()
            greedy = [asyncio.ensure_future(b.lease(ALICE)) for _ in range(3)]
            await asyncio.sleep(0.01)
            modest = [asyncio.ensure_future(b.lease(make_agent(name))) for name in ("bob", "carol", "dave")]
            await asyncio.sleep(0.01)
            done = [task for task in (*greedy, *modest) if task.done()]
            assert set(done) == {greedy[2], greedy[1], modest[2]}
            for task in done:
                error = task.exception()
                assert isinstance(error, Overloaded)
                assert 1 <= error.retry_after <= 30
            assert (b.waiting, b.pending_overflow) == (3, 3)
            held.release(reusable=True)
            for task in (greedy[0], *modest[:2]):
                (await task).release(reusable=True)
            assert peer.connections == 1

    run(main)


def test_limits_count_over_all_agents_of_a_destination(tmp_path: Path) -> None:
    """Where nobody shares, too: an idle connection of another agent makes room, a busy one is waited for, in turn."""

    async def main() -> None:
        async with (
            serve(echo) as peer,
            bench(peer.port, peer.authority.ca_pem, tmp_path, shared=(), max_connections=2) as b,
        ):
            agents = [make_agent(f"a{i}") for i in range(6)]
            for agent in agents:
                upstream = await b.lease(agent)
                await exchange(upstream, b"x")
                upstream.release(reusable=True)
                assert b.held <= 2
            assert b.held == 2
            first = [await b.lease(agent) for agent in agents[:2]]
            assert (b.held, b.leased) == (0, 2)
            order: list[str] = []

            async def one(agent: Agent) -> None:
                upstream = await b.lease(agent)
                order.append(agent.name)
                await exchange(upstream, b"x")
                upstream.release(reusable=True)

            waiting = [asyncio.ensure_future(one(agent)) for agent in agents[2:]]
            await asyncio.sleep(0.01)
            greedy = [asyncio.ensure_future(one(agents[0])) for _ in range(3)]
            await asyncio.sleep(0.01)
            assert b.waiting == 7
            assert b.cx_overflow >= 7
            for upstream in first:
                upstream.release(reusable=True)
            await asyncio.gather(*waiting, *greedy)
            assert set(order[:5]) >= {"a2", "a3", "a4"}  # not all of a0's first, though it holds a connection
            cluster = next(iter(b.plugin.pool.clusters.values()))  # type: ignore[union-attr]
            assert cluster.connections == b.held <= 2
            assert cluster.requests == cluster.pending == 0

    run(main)


def test_requests_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, max_requests=2) as b:
            held = [await b.lease(), await b.lease(BOB)]
            waiting = asyncio.ensure_future(b.lease(make_agent("carol")))
            await asyncio.sleep(0.05)
            assert (b.waiting, b.leased) == (1, 2)
            held[0].release(reusable=True)
            (await waiting).release(reusable=True)
            held[1].release(reusable=True)

    run(main)


@pytest.mark.parametrize("kind", ["closes", "greets"])
def test_a_peer_that_gives_connections_up_at_once_is_not_hammered(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async def useless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if kind == "greets":
                writer.write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
                await reader.read()

        async with serve(useless) as peer:
            config = {"preconnect": (f"{HOST}:{peer.port}",), "queue_timeout": 10.0}
            async with bench(peer.port, peer.authority.ca_pem, tmp_path, **config) as b:
                await eventually(lambda: peer.connections > 0)
                await asyncio.sleep(0.3)
                assert peer.connections <= 4
                before = peer.connections
                for _ in range(10):
                    with contextlib.suppress(UpstreamError, OSError):
                        upstream = await b.lease()
                        await asyncio.sleep(0.005)
                        with contextlib.suppress(UpstreamError, OSError):
                            await upstream.send(b"x")
                        upstream.release(reusable=True)
                assert peer.connections - before < 60

    run(main)


def test_kept_connections_come_back_after_an_outage_ever_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentfw_tls_pool.groups, "BACKOFF", (0.02, 0.1))

    async def main() -> None:
        down = True
        asked: list[float] = []
        async with serve(echo) as peer:
            config = {"preconnect": (f"{HOST}:{peer.port}",), "preconnect_count": 1}
            async with bench(peer.port, peer.authority.ca_pem, tmp_path, **config) as b:
                assert b.plugin.pool
                original = b.plugin.pool._open_connection

                async def refused(*args: Any) -> Any:
                    asked.append(asyncio.get_running_loop().time())
                    if down:
                        raise ConnectionRefusedError(111, "refused")
                    return await original(*args)

                b.plugin.pool._open_connection = refused  # type: ignore[assignment]
                await eventually(lambda: len(asked) >= 6)
                gaps = [later - earlier for earlier, later in pairwise(asked)]
                assert gaps[0] >= 0.014
                assert min(gaps[3:]) >= 0.07  # 0.1 less the dice
                down = False
                await eventually(lambda: b.held == 1)

    run(main)


def test_stuck_calls_do_not_hold_up_the_others(tmp_path: Path) -> None:
    """All calls so far were short, and then as many as are opened eagerly take for ever."""

    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            for _ in range(30):
                upstream = await b.lease()
                await exchange(upstream, b"x")
                upstream.release(reusable=True)
            stuck = [await b.lease(make_agent(f"stuck{i}")) for i in range(agentfw_tls_pool.pool.EAGER)]
            for upstream in stuck:
                await upstream.send(b"and then nothing")
            async with asyncio.timeout(10):
                for _ in range(3):
                    upstream = await b.lease(BOB)
                    assert await exchange(upstream, b"y") == b"y"
                    upstream.release(reusable=True)
            assert b.handshakes == agentfw_tls_pool.pool.EAGER + 1

    run(main)


def test_one_who_may_not_have_it_keeps_no_connection_alive(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            (await b.lease(ALICE)).release(reusable=True)
            b.loopback.denied.add((BOB.name, "127.0.0.1"))
            connection = next(iter(b.plugin.pool.groups.values())).idle[0]  # type: ignore[union-attr]
            since = connection.idle_since = connection.idle_since - 40
            with pytest.raises(Denied):
                await b.lease(BOB)
            assert (b.held, connection.idle_since) == (1, since)

    run(main)


def test_addresses_remembered_of_a_destination_are_bounded() -> None:
    """Those it had last stay."""
    cluster = Cluster(Destination.make("https", HOST))
    for number in range(2 * ADDRESSES):
        cluster.seen([f"192.0.2.{number}"], float(number))
        cluster.seen(["198.51.100.1"], float(number))
    assert len(cluster.addresses) == ADDRESSES
    assert not cluster.moved("198.51.100.1", 0.0)
    cluster.has([f"192.0.2.{2 * ADDRESSES - 1}"], 1e6)
    assert list(cluster.addresses)[-2:] == ["198.51.100.1", f"192.0.2.{2 * ADDRESSES - 1}"]
    assert cluster.moved("198.51.100.1", 60.0)
