"""What the policy's tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from agentfw import Agent, Denied, Destination, Headers, RequestHead
from agentfw.testing import make_agent
from agentfw_policy import Config, Plugin

AGENT = make_agent()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def policy(clock: Callable[[], float] | None = None, **table: Any) -> Plugin:
    """The plugin with a table as TOML gives it."""
    config = msgspec.convert(table, Config)
    return Plugin(config) if clock is None else Plugin(config, clock)


def verdict(plugin: Plugin, where: str, agent: Agent = AGENT) -> str:
    """ "allowed", or the rule that denies. `where`: "tcp://host:port"."""
    scheme, _, rest = where.partition("://")
    host, _, port = rest.rpartition(":")
    try:
        plugin.allow(agent, Destination.make(scheme, host.strip("[]"), port))
    except Denied as error:
        return error.rule
    return "allowed"


def asked(
    plugin: Plugin,
    request: str,
    where: str = "https://api.example:443",
    agent: Agent = AGENT,
    headers: dict[str, str] | None = None,
    upgrade: str | None = None,
    exchange: int = 0,
) -> str:
    """The verdict on "METHOD TARGET": "allowed", the rule that denies, or "429 RULE"."""
    scheme, _, rest = where.partition("://")
    host, _, port = rest.rpartition(":")
    method, _, target = request.partition(" ")
    head = RequestHead(method, target, Headers((headers or {}).items()), upgrade=upgrade, exchange=exchange)
    try:
        plugin.request(agent, Destination.make(scheme, host.strip("[]"), port), head)
    except Denied as error:
        return error.rule if error.status == 403 else f"{error.status} {error.rule}"
    return "allowed"
