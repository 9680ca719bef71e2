"""Which plugins there are: entry points, and whose. A name has one plugin, and agentfw's own plugins keep theirs.

Nothing is imported here. Only what the operator names is ever loaded; that something is installed, or lies beside a script, does
nothing.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import importlib_metadata

from ..config import OWN_TABLES, is_path
from ..errors import PluginError, UnknownPlugin

if TYPE_CHECKING:
    from ..config import Config

GROUP = "agentfw.plugins"
DEFAULT = ("dns", "tls", "policy", "credentials", "native")
WITH_TABLE = ("inspect", "audit", "capture", "otel")
"""These are used besides when agentfw.toml has their table."""
IN_POOLS = ("inspect", "dashboard")
"""These are used besides in a pool that is a service (`agentfw pool start`)."""
WITHOUT_POLICY = "without the `policy` plugin agents may talk to every public address that the other plugins reach"
OWN = "agentfw"
"""The distribution whose plugins keep their names, whatever else is installed."""

log = logging.getLogger("agentfw.plugins")


def chosen_plugins(config: Config) -> tuple[str, ...]:
    """The plugins that a configuration asks for: those of its [run], else the default ones."""
    return _chosen(config, {name for name in WITH_TABLE if name in config.tables})


def pool_plugins(config: Config) -> tuple[str, ...]:
    """`chosen_plugins()` for a pool that is a service."""
    return _chosen(config, {*IN_POOLS, *(name for name in WITH_TABLE if name in config.tables)})


def _chosen(config: Config, more: set[str]) -> tuple[str, ...]:
    if config.run.plugins is not None:
        return config.run.plugins
    return (*DEFAULT, *(name for name in dict.fromkeys((*WITH_TABLE, *IN_POOLS)) if name in more))


def without_effect(config: Config, names: Collection[str]) -> list[str]:
    """What operators are told of tables whose plugins are not among `names`. Not of those that only pools use: one file may be
    that of pools and of `agentfw run`."""
    ours = {*OWN_TABLES, *names, *(name for name in IN_POOLS if name not in WITH_TABLE)}
    return [f"[{name}] has no effect: `{name}` is not among the plugins" for name in config.tables if name not in ours]


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin that could be loaded. `origin`: "distribution version" or the file; `others`: origins of those that would have the
    same name. One of agentfw's own goes before them, else it cannot be loaded."""

    name: str
    value: str
    origin: str
    others: tuple[str, ...] = ()
    own: bool = False

    @property
    def ambiguous(self) -> bool:
        return bool(self.others) and not self.own


def available() -> dict[str, PluginInfo]:
    """All installed plugins by name."""
    return {name: info for name, (info, _) in _installed(tuple(sys.path)).items()}


@functools.lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> dict[str, tuple[PluginInfo, importlib_metadata.EntryPoint]]:
    """By name. Looking through all that is installed on `path` takes 10 ms, and reading each one's name one more."""
    found: dict[str, dict[tuple[bool, str, str], importlib_metadata.EntryPoint]] = {}
    for point in importlib_metadata.entry_points(group=GROUP):
        distribution = point.dist.name if point.dist is not None else ""
        origin = f"{distribution} {point.dist.version}" if point.dist is not None else ""
        found.setdefault(point.name, {})[distribution.lower() != OWN, origin, point.value] = point
    installed = {}
    for name, points in found.items():
        (foreign, origin, value), *others = sorted(points)
        info = PluginInfo(name, value, origin, tuple(other for _, other, _ in others), not foreign)
        installed[name] = info, points[foreign, origin, value]
    return installed


def entry_point(name: str) -> tuple[importlib_metadata.EntryPoint, bool]:
    """The one of this name, and whether it is agentfw's own."""
    installed = _installed(tuple(sys.path))
    if name not in installed:
        raise UnknownPlugin(name, installed)
    info, point = installed[name]
    if info.ambiguous:
        raise PluginError(f"plugin `{name}` is offered by {' and '.join((info.origin, *info.others))}: uninstall all but one")
    if info.others:
        log.warning("plugin `%s` is agentfw's own; that of %s is not used", name, ", ".join(info.others))
    return point, info.own


def plugin_name(name: str) -> str:
    """The name a plugin given on the command line goes by: a file's is its stem."""
    return Path(name).stem if is_path(name) else name
