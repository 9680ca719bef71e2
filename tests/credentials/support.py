"""What the tests of the `credentials` plugin share: rules, heads, and the plugin with a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agentfw import Agent, Destination, Headers, RequestHead, ResponseHead, TlsInfo
from agentfw.testing import make_agent
from agentfw_credentials import BasicConfig, Config, Plugin, RuleConfig
from agentfw_credentials.search import Needles

AGENT = make_agent()
KEY = "sk-real-0123456789"
PLACEHOLDER = "sk-agentfw-placeholder"
INFO = TlsInfo("TLSv1.3", ("c", "TLSv1.3", 256), None, b"", True)
UNVERIFIED = TlsInfo("TLSv1.3", ("c", "TLSv1.3", 256), None, b"", False)
HERE = "https://api.example:443"


def rule(**more: Any) -> RuleConfig:
    """A header rule for api.example; naming another kind makes it that."""
    kind: dict[str, Any] = {"header": "Authorization", "value": "Bearer ${env:KEY}"}
    if "basic" in more:
        kind = {}
    elif "query" in more:
        kind = {"value": "${env:KEY}"}
    return RuleConfig(**{"host": "api.example", **kind, **more})


BASIC = BasicConfig("user", "${env:KEY}")
KINDS: dict[str, dict[str, Any]] = {"header": {}, "basic": {"basic": BASIC}, "query": {"query": "key"}}


def credentials(*rules: RuleConfig, environment: dict[str, str] | None = None, **more: Any) -> Plugin:
    return Plugin(Config(rule=rules or (rule(),), **more), {"KEY": KEY, **(environment or {})})


def ask(
    plugin: Plugin,
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    where: str = HERE,
    tls: TlsInfo | None = INFO,
    target: str = "/",
    agent: Agent = AGENT,
    method: str = "GET",
) -> RequestHead:
    """The head after the plugin's `request` hook."""
    scheme, _, rest = where.partition("://")
    host, _, port = rest.partition(":")
    items = headers.items() if isinstance(headers, dict) else headers or ()
    head = RequestHead(method, target, Headers(items))
    waits = plugin.request(agent, Destination.make(scheme, host, port), head, tls)
    if waits is not None:

        async def wait() -> None:
            await waits

        asyncio.run(wait())
    return head


def sent(plugin: Plugin, *args: Any, **more: Any) -> dict[str, str]:
    """Its headers, without the one that asks for plain bodies."""
    fields = {name.lower(): value for name, value in ask(plugin, *args, **more).headers}
    fields.pop("accept-encoding", None)
    return fields


def answer(
    plugin: Plugin, head: ResponseHead, pieces: list[bytes], where: str = HERE, request: RequestHead | None = None
) -> bytes:
    """The body after the plugin's `response` hook."""
    scheme, _, rest = where.partition("://")
    host, _, port = rest.partition(":")
    plugin.response(AGENT, Destination.make(scheme, host, port), request or ask(plugin), head)
    out = b""
    for number, piece in enumerate(pieces):
        for transform in head.transforms:
            piece = transform(piece, number == len(pieces) - 1)
        out += piece
    return out


class Measured(Needles):
    """Says how much it was given to look at."""

    looked_at = 0

    def scan(self, data: bytes, last: bool) -> tuple[list[tuple[int, int, int]], int]:
        self.looked_at += len(data)
        return super().scan(data, last)


@asynccontextmanager
async def other_agents_turns() -> AsyncIterator[list[None]]:
    """One more in it for each turn that the loop gives to others."""
    turns: list[None] = []

    async def another() -> None:
        while True:
            await asyncio.sleep(0)
            turns.append(None)

    task = asyncio.create_task(another())
    yield turns
    task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it, for 30 s at most."""
    for _ in range(1500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to that")
