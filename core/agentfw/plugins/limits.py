"""The table [plugins] of agentfw.toml: how long hooks may take."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from .. import hookspecs
from .discovery import available

if TYPE_CHECKING:
    from ..config import Config

DEFAULT_SECONDS = 30.0
SECONDS = {"start": 60.0, "stop": 10.0, "connect": 120.0}
"""A hook's time before its operation fails closed, where it is not DEFAULT_SECONDS. Generous: plugins have tighter limits."""
MOST_SECONDS = 86400.0
MAY_BLOCK = frozenset({"start", "stop"})
"""Before the first agent and after the last one there is nobody to hold up."""


class PluginsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [plugins]: how long hooks may take."""

    limits: dict[str, float | dict[str, float]] = {}
    """Seconds that an awaitable hook may take before its operation fails closed: by hook (`resolve = 10`), or for one plugin
    (`my_policy.allow = 2`). Left out: 30; `connect` 120, `start` 60, `stop` 10."""
    blocking: float = 0.1
    """Seconds that a hook may hold up the loop, and so all agents, by not waiting with `await`, before that is counted. The
    log names it, once, if it does so for ten times as long, or for the third time and in one call of ten."""


class Limits:
    """What the table says. Raises ConfigError for names and values that make no sense. `plugins`: those in use."""

    def __init__(self, config: Config, plugins: Collection[str]) -> None:
        table = config.plugin("plugins", PluginsConfig)
        hooks = hook_names()
        self._seconds: dict[tuple[str, str], float] = {}
        for name, value in table.limits.items():
            if isinstance(value, dict):
                if name not in plugins and name not in available():
                    raise config.error(
                        f"plugins.limits.{name}", f"no such hook or plugin (in use: {', '.join(plugins) or 'none'})"
                    )
                entries = {(name, hook): seconds for hook, seconds in value.items()}
            else:
                entries = {("", name): value}
            for (plugin, hook), seconds in entries.items():
                key = ".".join(part for part in ("plugins.limits", plugin, hook) if part)
                if hook not in hooks:
                    raise config.error(key, f"no such hook ({', '.join(sorted(hooks))})")
                if hook not in awaited_hooks():
                    raise config.error(key, f"`{hook}` is never awaited: `plugins.blocking` is for what such a hook takes")
                _check(config, key, seconds)
                self._seconds[plugin, hook] = float(seconds)
        _check(config, "plugins.blocking", table.blocking)
        self._blocking = int(table.blocking * 1e9)

    def seconds(self, plugin: str, hook: str) -> float:
        """For an awaitable of this hook."""
        for key in ((plugin, hook), ("", hook)):
            if key in self._seconds:
                return self._seconds[key]
        return SECONDS.get(hook, DEFAULT_SECONDS)

    def blocking_ns(self, hook: str) -> int:
        return 1 << 62 if hook in MAY_BLOCK else self._blocking


def hook_names() -> frozenset[str]:
    """All hooks that are specified."""
    return frozenset(name for name, value in vars(hookspecs).items() if hasattr(value, "agentfw_spec"))


@functools.cache
def awaited_hooks() -> frozenset[str]:
    """Those that may wait."""
    return frozenset(name for name in hook_names() if "Awaitable" in str(getattr(hookspecs, name).__annotations__["return"]))


def _check(config: Config, key: str, seconds: float) -> None:
    if not 0 < seconds <= MOST_SECONDS:  # nor is NaN
        raise config.error(key, f"must be more than 0 and at most {MOST_SECONDS:g} seconds")
