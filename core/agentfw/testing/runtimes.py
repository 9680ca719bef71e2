"""Agents and runtimes, made in a line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from ..agents import Agent
from ..config import Config
from ..plugins import PluginManager
from ..runtime import Runtime


def make_agent(name: str = "test", **labels: str) -> Agent:
    """An agent; its id is its name."""
    return Agent(name, name, labels)


def make_runtime(*plugins: object, config: Config | Mapping[str, Any] | None = None) -> Runtime:
    """A runtime for the running loop with these plugin instances (named by `.name`, else by their class). Start and stop it.

    `config`: as from agentfw.toml, for `Runtime.config`, time limits ([plugins]) and reloads; the instances have theirs already.
    """
    manager = PluginManager(config if isinstance(config, Config) else Config(config))
    for plugin in plugins:
        manager.add(str(getattr(plugin, "name", type(plugin).__name__)), plugin)
    manager.compile()
    return Runtime(asyncio.get_running_loop(), manager, manager.config)


@asynccontextmanager
async def running(*plugins: object, config: Config | Mapping[str, Any] | None = None) -> AsyncIterator[Runtime]:
    """`make_runtime()`, started and stopped. Plugins are told all at once, also what they could be told later (`later_hooks`)."""
    runtime = make_runtime(*plugins, config=config)
    await runtime.start()
    runtime.plugins.later.end()
    try:
        yield runtime
    finally:
        await runtime.stop()
