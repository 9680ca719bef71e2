"""Hosts that no agent may talk to.

[my_plugin]
closed = ["example.com"]
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from agentfw import Agent, ConfigError, Denied, Destination, hookimpl
from agentfw.destination import parse_host


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [my_plugin] of agentfw.toml."""

    closed: tuple[str, ...] = ()
    """Hosts, exact names or addresses."""


class Plugin:
    """See the module."""

    name = "my_plugin"
    api = "1"
    config_type = Config

    def __init__(self, config: Config) -> None:
        self._closed = hosts(config)
        self._denied = 0

    def reconfigure(self, config: Config) -> Callable[[], None]:
        """agentfw.toml was read again. Check it here; take it over in what is returned."""
        closed = hosts(config)

        def commit() -> None:
            self._closed = closed

        return commit

    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> None:
        if destination.host in self._closed:
            self._denied += 1
            raise Denied(f"my_plugin.closed: {destination.host}", "this host is closed")

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return {"denied": self._denied}


def hosts(config: Config) -> frozenset[str]:
    """As the core spells them. ConfigError names the key, and agentfw the file and the line."""
    found = set()
    for number, text in enumerate(config.closed):
        try:
            found.add(parse_host(text))
        except ValueError as error:
            raise ConfigError(f"closed.{number}", str(error)) from None
    return frozenset(found)
