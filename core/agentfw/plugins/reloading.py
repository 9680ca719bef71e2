"""Another agentfw.toml for plugins that run: all of it takes effect, or nothing.

Each plugin whose table changed first PREPARES (`reconfigure(config)`: checks, may refuse, changes nothing); if all did, all
commit. Nothing is awaited in between, so no operation sees half of it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ..errors import AgentfwError, ConfigError, HookError, PluginError
from .limits import Limits

if TYPE_CHECKING:
    from ..config import Config
    from .manager import PluginManager

log = logging.getLogger("agentfw.plugins")

Commit = Callable[[], object]


class Prepared:
    """A configuration that every plugin has agreed to. `changed`: the tables in it that are new."""

    def __init__(self, manager: PluginManager, config: Config) -> None:
        """Raises ConfigError and PluginError; nothing has changed then."""
        self._manager = manager
        self._config = config
        self._limits = Limits(config, manager.names)
        self._commits: list[tuple[str, Commit]] = []
        self.changed: list[str] = ["plugins"] if config.tables.get("plugins") != manager.config.tables.get("plugins") else []
        for name in manager.names:
            commit = self._prepare(name, manager.get(name))
            if commit is not None:
                self._commits.append((name, commit))
                self.changed.append(name)

    def _prepare(self, name: str, plugin: object) -> Commit | None:
        config, before = self._config, self._manager.config
        if _same(config.tables.get(name), before.tables.get(name)):
            return None
        kind = getattr(plugin, "config_type", None)
        if kind is None:
            raise config.error(name, "this plugin has no configuration")
        table = config.plugin(name, kind)
        if _same(table, before.plugin(name, kind)):
            return None
        reconfigure = getattr(plugin, "reconfigure", None)
        if reconfigure is None:
            new, old = config.tables.get(name, {}), before.tables.get(name, {})
            key = next((f"{name}.{key}" for key in new if key not in old or new[key] != old[key]), name)
            raise config.error(key, f"plugin `{name}` cannot change its configuration while it runs: a restart is needed")
        try:
            commit = reconfigure(table)
        except ConfigError as error:
            raise config.located(name, error) if error.file is None else error from None
        except (AgentfwError, KeyboardInterrupt):
            raise
        except BaseException as error:  # nothing is awaited here: not even a CancelledError is somebody else's
            raise PluginError(f"plugin `{name}` failed in `reconfigure`: {type(error).__name__}") from error
        if not callable(commit):
            if inspect.iscoroutine(commit):
                commit.close()
            raise PluginError(f"plugin `{name}` failed in `reconfigure`: returned {type(commit).__name__}, nothing to call")
        if inspect.iscoroutinefunction(commit):
            raise PluginError(f"plugin `{name}` failed in `reconfigure`: returned an `async` function: nothing in it would run")
        return commit  # type: ignore[no-any-return]

    def commit(self) -> None:
        """The new configuration takes effect. HookError if a plugin's commit raised, which it may not; the others' did not."""
        failure: HookError | None = None
        self._manager.later.deliver()  # what happened before, while all is as it was
        for name, commit in self._commits:
            try:
                _done(commit())
            except BaseException as error:  # whatever it is, half of a configuration would be worse
                log.error("plugin `%s` failed amid a reload", name, exc_info=error)
                failed = HookError(
                    name, "reconfigure", f"{type(error).__name__} after it had agreed; its state is unknown: restart"
                )
                failed.__cause__ = error
                failure = failure or failed
        self._manager.limit(self._limits)
        self._manager.config = self._config
        self._manager.arrange()
        if failure is not None:
            raise failure


def _same(table: object, before: object) -> bool:
    """Also in the order of what is in them: of a policy's profiles the first that fits an agent is its own. And in its types."""
    if table != before:
        return False
    try:
        return repr(msgspec.to_builtins(table)) == repr(msgspec.to_builtins(before))
    except (TypeError, ValueError):  # it holds something of its own
        return False


def _done(result: object) -> None:
    """TypeError if the commit has only promised to do it."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(type(result).__name__)
