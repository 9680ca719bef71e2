"""A plugin, a mock authority, and a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import dnslib
import pytest
from agentfw.agents import Agent
from agentfw.errors import Denied
from agentfw.mock_dns import MockDNS
from agentfw.testing import make_agent
from agentfw_dns_cache import DnsConfig, Plugin

ALICE, BOB = make_agent("alice"), make_agent("bob")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A mock authority, a plugin that asks it, a clock that the test moves."""

    def __init__(self, server: MockDNS, **config: Any) -> None:
        self.dns = server
        self.clock = Clock()
        defaults: dict[str, Any] = {"upstream": (server.address,), "timeout": 5.0}
        self.plugin = Plugin(DnsConfig(**{**defaults, **config}), self.clock)

    async def ask(self, name: str, qtype: str = "A", *, agent: Agent = ALICE, **options: Any) -> dns.message.Message:
        """As dnspython asks, checked as dnspython checks it (ID and question)."""
        query = dns.message.make_query(name, qtype, **options)
        reply = dns.message.from_wire(await self.raw(query.to_wire(), agent), ignore_trailing=False)
        assert query.is_response(reply)
        assert reply.flags & dns.flags.RA
        return reply

    async def denied(self, name: str, *, agent: Agent = ALICE) -> Denied:
        """The refusal that the core turns into REFUSED with an extended error."""
        with pytest.raises(Denied) as caught:
            await self.ask(name, agent=agent)
        return caught.value

    async def raw(self, query: bytes, agent: Agent = ALICE, name: str | None = None) -> bytes:
        if name is None:
            name = str(dnslib.DNSRecord.parse(query).q.qname).rstrip(".").lower()
        result: Awaitable[bytes] | bytes = self.plugin.resolve(agent, name, 0, query)
        return result if isinstance(result, bytes) else await result

    async def settled(self) -> None:
        """No question to the upstream is open."""
        await asyncio.gather(*self.plugin._inflight.values())

    def statistics(self) -> dict[str, int | float]:
        return self.plugin.statistics()


def bench(test: Callable[[Bench], Coroutine[Any, Any, None]] | None = None, **config: Any) -> Any:
    """Run the coroutine with a Bench; keywords are [dns]'s."""

    def wrap(function: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def run() -> None:
            async with MockDNS({"api.test": "192.0.2.1"}) as server:
                made = Bench(server, **config)
                await asyncio.wait_for(function(made), 30)
                await made.plugin.stop()

        def test_function() -> None:
            asyncio.run(run())

        test_function.__name__ = function.__name__
        test_function.__doc__ = function.__doc__
        return test_function

    return wrap if test is None else wrap(test)


def addresses(reply: dns.message.Message) -> list[str]:
    return [item.to_text() for rrset in reply.answer if rrset.rdtype in (1, 28) for item in rrset]
