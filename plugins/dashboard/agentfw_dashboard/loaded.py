"""Plugins and policy as loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import version

from agentfw.config_shown import masked, table_text
from agentfw.plugins import available
from agentfw.runtime import Runtime
from agentfw.views import Loaded, LoadedPlugin

MAX_POLICY = 100_000

log = logging.getLogger("agentfw.dashboard")


def loaded(runtime: Runtime, counters: Mapping[str, float]) -> Loaded:
    """`counters`: "plugin.name" -> of all processes."""
    plugins, config = runtime.plugins, runtime.config
    installed = available()
    found = []
    for name in plugins.names:
        table = config.tables.get(name)
        origin = installed[name].origin if name in installed else ""
        own = f"{name}."
        found.append(
            LoadedPlugin(
                name=name,
                version=origin or version("agentfw"),
                hooks=plugins.hooks(name),
                table=table_text(name, masked(table)) if isinstance(table, dict) else "",
                counters={key[len(own) :]: float(value) for key, value in counters.items() if key.startswith(own)},
            )
        )
    return Loaded(file=str(config.file or ""), plugins=found, policy=_policy(runtime))


def _policy(runtime: Runtime) -> str:
    """What plugins say of the rules in force: an optional method `in_words() -> str`."""
    said = []
    for name in runtime.plugins.names:
        method = getattr(runtime.plugins.get(name), "in_words", None)
        if method is None:
            continue
        try:
            said.append(str(method()))
        except (Exception, SystemExit):  # a mistake of its must not hide the rest
            log.exception("plugin `%s` failed in in_words()", name)
    return "\n".join(said)[:MAX_POLICY]
