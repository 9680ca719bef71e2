"""Names that the host's getaddrinfo() is asked for: its few threads are shared fairly."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any

import agentfw_native
import dnslib
import pytest
from agentfw import Agent
from agentfw.errors import ResolveError
from agentfw.testing import make_agent
from agentfw_native import Config, Plugin

from tests.core.support import async_test


class Lookups:
    """The loop's getaddrinfo(), slow: each call ends when it is let go."""

    def __init__(self) -> None:
        self.addresses = ["192.0.2.1"]
        self.asked: list[str] = []
        self.go = asyncio.Event()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, name: str, port: object, **_: Any) -> list[Any]:
        self.asked.append(name)
        whose = name.partition(".")[2]
        self.running[whose] += 1
        self.most[whose] = max(self.most[whose], self.running[whose])
        waiting = asyncio.get_running_loop().create_task(self.go.wait())  # as a thread: a caller who gives up does not end it
        waiting.add_done_callback(lambda _: self.running.subtract([whose]))
        await asyncio.shield(waiting)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in self.addresses]


def ask(plugin: Plugin, agent: Agent, number: int) -> asyncio.Task[bytes | None]:
    name = f"n{number}.{agent.id}"
    query = bytes(dnslib.DNSRecord.question(name).pack())
    return asyncio.get_running_loop().create_task(plugin.resolve(agent, name, dnslib.QTYPE.A, query))


@async_test
async def test_slow_names_of_one_agent_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups, plugin = Lookups(), Plugin(Config())
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookups, raising=False)
    evil, good = make_agent("evil"), make_agent("good")
    tasks = [ask(plugin, evil, number) for number in range(agentfw_native.AGENT_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(ResolveError):
        await ask(plugin, evil, 1000)
    for task in tasks[:20]:  # closing the socket frees no thread
        task.cancel()
    await asyncio.wait(tasks[:20])
    mine = ask(plugin, good, 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert lookups.most == {"evil": agentfw_native.AGENT_LOOKUPS, "good": 1}
    lookups.go.set()
    answers = [dnslib.DNSRecord.parse(reply or b"") for reply in await asyncio.gather(mine, *tasks[20:])]
    assert all(str(answer.a.rdata) == "192.0.2.1" for answer in answers)
    await asyncio.sleep(0)
    assert not plugin._lookups and lookups.most["evil"] == agentfw_native.AGENT_LOOKUPS


@async_test
async def test_what_is_told_of_a_name_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address once, with our TTL; no more than fit into a reply by far."""
    lookups, plugin = Lookups(), Plugin(Config(ttl=7))
    lookups.addresses = ["192.0.2.1", "192.0.2.1", *(f"10.0.{number >> 8}.{number & 255}" for number in range(5000))]
    lookups.go.set()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookups, raising=False)
    reply = dnslib.DNSRecord.parse(await ask(plugin, make_agent("a"), 1) or b"")
    told = [(str(each.rdata), each.ttl) for each in reply.rr]
    assert told[:2] == [("192.0.2.1", 7), ("10.0.0.0", 7)]
    assert len(told) == agentfw_native.ADDRESSES
