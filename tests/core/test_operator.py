"""Errands of the operator's own, and what plugins say about an agent before it starts or connects."""

from __future__ import annotations

import asyncio
from ipaddress import ip_network

import pytest
from agentfw import Agent, Destination, hookimpl
from agentfw.agents import Operator
from agentfw.errors import Denied, HookError
from agentfw.testing import make_agent, make_runtime

from .support import Names, async_test, running

WHERE = Destination.make("https", "token.example", 443)


class Strict:
    """Nobody may do anything."""

    name = "strict"

    @hookimpl
    def allow(self, destination: Destination) -> None:
        raise Denied("strict", "no")

    @hookimpl
    def dial(self) -> bool | None:
        return False


@async_test
async def test_what_agents_may_do_is_not_asked_of_the_operator() -> None:
    names = Names(**{"token.example": ["93.184.216.34", "10.1.1.1", "127.0.0.1"]})
    async with running(names, Strict()) as runtime:
        with pytest.raises(Denied, match="strict"):
            await runtime.resolve_addresses(make_agent(), WHERE)
        assert await runtime.resolve_addresses(Operator("o", "o"), WHERE) == ["93.184.216.34"]
        permitted = Operator("o", "o", networks=(ip_network("127.0.0.0/8"),))
        assert await runtime.resolve_addresses(permitted, WHERE) == ["93.184.216.34", "127.0.0.1"]
        names.names["token.example"] = ["127.0.0.1", "169.254.169.254"]
        with pytest.raises(Denied, match="public only"):
            await runtime.resolve_addresses(Operator("o", "o"), WHERE)


class Says:
    def __init__(self, name: str, **said: object) -> None:
        self.name = name
        self.said = said

    @hookimpl
    def environment(self, agent: Agent) -> dict[str, str] | None:
        return self.said.get("environment")  # type: ignore[return-value]

    @hookimpl
    def tenant(self, agent: Agent, destination: Destination) -> str | None:
        return self.said.get("tenant")  # type: ignore[return-value]


def test_what_plugins_say_is_put_together() -> None:
    async def run() -> None:
        plugins = make_runtime(
            Says("a", environment={"A": "1"}, tenant="x"), Says("b"), Says("c", environment={"A": "2", "B": "3"}, tenant="y")
        ).plugins
        assert plugins.environment(make_agent()) == {"A": "1", "B": "3"}
        assert plugins.tenant(make_agent(), WHERE) == ("a=x", "c=y")
        assert make_runtime().plugins.environment(make_agent()) == {}
        for wrong in ({"environment": ["A"]}, {"environment": {"A": 1}}, {"tenant": 5}):
            plugins = make_runtime(Says("bad", **wrong)).plugins
            with pytest.raises(HookError, match="bad"):
                plugins.environment(make_agent())
                plugins.tenant(make_agent(), WHERE)

    asyncio.run(run())
