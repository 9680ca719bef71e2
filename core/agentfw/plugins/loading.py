"""Making plugins: their import, their API version, their table of agentfw.toml."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from .. import hookspecs
from ..config import OWN_TABLES, is_path
from ..errors import AgentfwError, ConfigError, PluginError
from ..texts import why
from .discovery import available, chosen_plugins, entry_point, plugin_name, pool_plugins
from .fitting import check_beside
from .manager import PluginManager

if TYPE_CHECKING:
    from ..config import Config

RESERVED = frozenset({"run", "plugins", "core", "hooks"})
"""Tables of agentfw.toml and groups of counters that are not a plugin's."""

_NAME = re.compile(r"[\w-]{1,64}\Z")
_API = re.compile(r"(\d{1,4})(?:\.(\d{1,4}))?\Z", re.ASCII)


def load_plugins(names: Sequence[str], config: Config) -> PluginManager:
    """Load, configure and register `names` in that order (each an entry point's name or a path to a .py file).

    Raises UnknownPlugin, PluginError (it does not import, has no class Plugin, misspelt a hook) and ConfigError.
    """
    manager = PluginManager(config)
    for name, plugin in made_plugins(names, config):
        manager.add(name, plugin)
    manager.compile()
    manager.chosen_by = next((choose for choose in (chosen_plugins, pool_plugins) if tuple(names) == choose(config)), None)
    return manager


def plugin_class(given: str) -> tuple[str, type[Any]]:
    """Import a plugin: its name, and its class, which fits this API. UnknownPlugin, PluginError."""
    own = False
    if is_path(given):
        module: object = _import_file(Path(given))
    else:
        point, own = entry_point(given)
        try:
            module = point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PluginError(f"plugin `{given}` does not import: {why(error)}") from error
    try:
        return _checked(given, own, module)
    except AgentfwError:
        raise
    except Exception as error:  # a class whose attributes raise
        raise PluginError(f"plugin `{given}` cannot be looked at: {why(error)}") from error


def _checked(given: str, own: bool, module: object) -> tuple[str, type[Any]]:
    found = getattr(module, "Plugin", None) if isinstance(module, ModuleType) else module
    if not inspect.isclass(found):
        raise PluginError(f"plugin `{given}` has no class `Plugin`")
    name = getattr(found, "name", None) or plugin_name(given)
    if not isinstance(name, str) or not _NAME.match(name):
        raise PluginError(f"plugin `{given}` has a bad name: letters, digits, `_` and `-` are good")
    if name in RESERVED:
        raise PluginError(f"plugin `{given}` may not be called `{name}`: agentfw uses that name itself")
    if name != given and not own and not is_path(given) and name in available():
        raise PluginError(f"plugin `{given}` calls itself `{name}`, which is another plugin's name")
    if isinstance(module, ModuleType):
        check_beside(name, module, found)
    check_api(given, getattr(found, "api", None))
    return name, found


def check_api(plugin: str, wanted: object) -> None:
    """PluginError unless the hooks of this agentfw are what a plugin with `api = wanted` was written for. None: no opinion."""
    if wanted is None:
        return
    match = _API.match(wanted) if isinstance(wanted, str) else None
    if match is None:
        raise PluginError(f'plugin `{plugin}` has a bad `api`: {ascii(wanted)[:60]} (write "1", or "1.2" if it needs that minor)')
    has = hookspecs.API_VERSION
    major, minor = map(int, has.split("."))
    if int(match[1]) != major:
        raise PluginError(f"plugin `{plugin}` is for hook API {wanted}, this agentfw has {has}: another major version")
    if int(match[2] or 0) > minor:
        raise PluginError(f"plugin `{plugin}` needs hook API {wanted} or newer, this agentfw has {has}: update agentfw")


def known_tables(given: Sequence[str], config: Config) -> dict[str, str]:
    """Names of plugins' tables, and what loads each. What a plugin calls itself is asked only if there is a table that would be
    nobody's else."""
    known = {name: name for name in available()} | {plugin_name(each): each for each in given}
    for each in given if config.tables.keys() - OWN_TABLES - known.keys() else ():
        with contextlib.suppress(AgentfwError), contextlib.redirect_stdout(sys.stderr):  # what it prints is not data
            known[plugin_class(each)[0]] = each
    return known


def made_plugins(given: Sequence[str], config: Config) -> Iterator[tuple[str, object]]:
    """`make_plugin()` for each; before it, that all tables of the file are somebody's."""
    classes = [(each, *plugin_class(each)) for each in given]
    names = {name for _, name, _ in classes}
    config.check_tables({*available(), *names, *map(plugin_name, given)})
    for each, name, _ in classes:
        if plugin_name(each) not in names and plugin_name(each) in config.tables:  # nobody would ever look at it
            raise config.error(plugin_name(each), f"this plugin calls itself `{name}`: its table is [{name}]")
    for each, name, kind in classes:
        yield name, _configured(each, name, kind, config)


def make_plugin(given: str, config: Config) -> tuple[str, object]:
    """Import and configure one: its name and the instance. Raises as `load_plugins()` does."""
    name, kind = plugin_class(given)
    return name, _configured(given, name, kind, config)


def _configured(given: str, name: str, kind: type[Any], config: Config) -> object:
    config_type: type[msgspec.Struct] | None = getattr(kind, "config_type", None)
    if config_type is not None and not (inspect.isclass(config_type) and issubclass(config_type, msgspec.Struct)):
        raise PluginError(f"plugin `{given}` has a bad config_type: it must be a class derived from msgspec.Struct")
    if config_type is None and config.tables.get(name):
        raise config.error(name, "this plugin has no configuration")
    given_table = () if config_type is None else (config.plugin(name, config_type),)
    try:
        return kind(*given_table)
    except ConfigError as error:
        if error.file is None and config_type is not None:  # raised by __init__ about a key of its table
            raise config.located(name, error) from None
        raise
    except AgentfwError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        trouble = PluginError(f"plugin `{name}` does not start: {why(error)}")
        if config_type is None and isinstance(error, TypeError):
            trouble.hint = "only a class with `config_type` is given a table"
        raise trouble from error


def _import_file(path: Path) -> ModuleType:
    try:
        found = path.is_file()
    except OSError as error:  # a name that is too long
        raise PluginError(f"plugin file {path} cannot be read: {error.strerror}") from None
    if not found:
        raise PluginError(f"plugin file {path} does not exist")
    name = f"agentfw_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugin file {path} is not Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise PluginError(f"plugin file {path} does not import: {why(error)}") from error
    return module
