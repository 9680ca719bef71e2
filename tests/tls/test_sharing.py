"""Who shares with whom, in what order, and up to which limits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agentfw.agents import Agent, ExitReport
from agentfw.errors import Denied, Overloaded
from agentfw.mock_llm import MockLLM, MockOptions
from agentfw.testing import make_agent
from agentfw.upstream import TlsRequest

from .support import (
    ALICE,
    BOB,
    HOST,
    bench,
    chat,
    echo,
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
