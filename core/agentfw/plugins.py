"""Finding, loading and calling plugins.

A plugin is a module (named by an entry point of group ``agentfw.plugins``, or a file such as ``./my_policy.py``) that has a class
`Plugin`; an entry point may name the class itself. The class may have

    name: str                                   # default: the entry point's or the file's name
    config_type: type[msgspec.Struct] | None    # the table [name] of agentfw.toml; __init__ gets an instance, and may
                                                # raise ConfigError("key.in.the.table", "what is wrong")
    def __init__(self, config): ...             # without config_type: __init__(self)

    def check_guest(self, file, environment, sees): ...     # ConfigError if the agents, with these variables and seeing the files
                                                # that `sees` says, could read what they must not; `file`: agentfw.toml or None

and implements hooks of `agentfw.hookspecs` with `agentfw.hookimpl`. A misspelt hook is an error at start.

`PluginManager` has one typed method a hook, and nothing else in the core touches pluggy. The hook lists are compiled into plain
callables when loading ends: a hook that nobody implements costs an empty loop.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import importlib_metadata
import msgspec
import pluggy

from . import hookspecs
from .errors import AgentfwError, ConfigError, Denied, HookError, PluginError, UnknownPlugin, UpstreamError
from .reports import Table

if TYPE_CHECKING:
    from .agents import Agent, ExitReport
    from .config import Config
    from .destination import Destination
    from .http1 import RequestHead, ResponseHead
    from .model_calls import ModelCall
    from .reports import AuditEvent, ExchangeReport, FlowReport
    from .runtime import Runtime
    from .upstream import TlsInfo, TlsRequest, Upstream

_NAME = re.compile(r"[\w-]{1,64}\Z")

GROUP = "agentfw.plugins"
DEFAULT = ("dns", "tls", "policy", "credentials", "native")

# Seconds a hook may take before its operation fails closed. Generous: plugins have their own, tighter limits.
TIMEOUTS = {"start": 60.0, "stop": 10.0, "allow": 30.0, "resolve": 30.0, "connect": 120.0, "request": 30.0, "response": 30.0}

log = logging.getLogger("agentfw.plugins")


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin that could be loaded. `origin`: "distribution version" or the file."""

    name: str
    value: str
    origin: str


def available() -> dict[str, PluginInfo]:
    """All installed plugins by name."""
    found = {}
    for point in importlib_metadata.entry_points(group=GROUP):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
        found[point.name] = PluginInfo(point.name, point.value, origin)
    return found


def load_plugins(names: Sequence[str], config: Config) -> PluginManager:
    """Load, configure and register `names` in that order (each an entry point's name or a path to a .py file).

    Raises UnknownPlugin, PluginError (it does not import, has no class Plugin, misspelt a hook) and ConfigError.
    """
    manager = PluginManager()
    config.check_tables({*available(), *(plugin_name(name) for name in names)})
    for name in names:
        manager.add(*_make(name, config))
    manager.compile()
    return manager


def plugin_name(name: str) -> str:
    """The name a plugin given on the command line goes by: a file's is its stem."""
    return Path(name).stem if _is_path(name) else name


def _is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name


def _make(name: str, config: Config) -> tuple[str, object]:
    if _is_path(name):
        module: object = _import_file(Path(name))
    else:
        known = importlib_metadata.entry_points(group=GROUP)
        if name not in known.names:
            raise UnknownPlugin(name, known.names)
        try:
            module = known[name].load()
        except (Exception, SystemExit) as error:
            raise PluginError(f"plugin `{name}` does not import: {type(error).__name__}: {error}") from error
    found = getattr(module, "Plugin", None) if isinstance(module, ModuleType) else module
    if not inspect.isclass(found):
        raise PluginError(f"plugin `{name}` has no class `Plugin`")
    kind: Any = found
    given, name = name, getattr(kind, "name", None) or plugin_name(name)
    if not isinstance(name, str) or not _NAME.match(name):
        raise PluginError(f"plugin `{given}` has a bad name: letters, digits, `_` and `-` are good")
    config_type: type[msgspec.Struct] | None = getattr(kind, "config_type", None)
    try:
        return name, kind() if config_type is None else kind(config.plugin(name, config_type))
    except ConfigError as error:
        if error.file is None and config_type is not None:  # raised by __init__ about a key of its table
            raise config.error(f"{name}.{error.key}" if error.key else name, error.message) from None
        raise
    except AgentfwError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"plugin `{name}` does not start: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise PluginError(f"plugin file {path} does not exist")
    name = f"agentfw_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugin file {path} is not Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PluginError(f"plugin file {path} does not import: {type(error).__name__}: {error}") from error
    return module


class _Call:
    """One hook implementation, called with all of the specification's arguments."""

    __slots__ = ("function", "plugin")

    def __init__(self, plugin: str, function: Callable[..., Any]) -> None:
        self.plugin = plugin
        self.function = function


class PluginManager:
    """The plugins of one process, in calling order, and a typed method for each hook."""

    def __init__(self) -> None:
        self._pluggy = pluggy.PluginManager("agentfw")
        self._pluggy.add_hookspecs(hookspecs)
        self._named: dict[str, object] = {}
        self._calls: dict[str, tuple[_Call, ...]] = {}
        self.compile()

    def add(self, name: str, plugin: object) -> None:
        """Register an instance under a name of its own; `compile()` makes it take effect."""
        if name in self._named:
            raise PluginError(f"plugin `{name}` is named twice")
        self._named[name] = plugin

    def compile(self) -> None:
        """Check all hook implementations against the specifications and build the call lists. PluginError if one does not fit."""
        for name in [name for name, _ in self._pluggy.list_name_plugin()]:
            self._pluggy.unregister(name=name)
        try:
            for name, plugin in reversed(self._named.items()):  # pluggy calls the newest first
                self._pluggy.register(plugin, name)
            self._pluggy.check_pending()
        except Exception as error:  # also whatever a plugin's attributes raise when they are looked at
            raise PluginError(f"plugin does not fit: {error}".replace("\n", " ")) from error
        for hook in (name for name in vars(hookspecs) if hasattr(getattr(hookspecs, name), "agentfw_spec")):
            caller = getattr(self._pluggy.hook, hook)
            found = reversed(caller.get_hookimpls())
            self._calls[hook] = tuple(_compiled(implementation, caller.spec.argnames) for implementation in found)

    @property
    def names(self) -> list[str]:
        return list(self._named)

    def get(self, name: str) -> object | None:
        return self._named.get(name)

    def hooks(self, name: str) -> list[str]:
        """The hooks that this plugin implements."""
        return [hook for hook, calls in self._calls.items() if any(call.plugin == name for call in calls)]

    def implemented(self, hook: str) -> bool:
        return bool(self._calls[hook])

    def check_guest(self, config: Config, environment: Mapping[str, str], sees: Callable[[Path], bool]) -> None:
        """ConfigError if a plugin does not want agents to have these variables and files."""
        for name, plugin in self._named.items():
            check = getattr(plugin, "check_guest", None)
            if check is None:
                continue
            try:
                check(config.file, environment, sees)
            except ConfigError as error:
                located = config.error(f"{name}.{error.key}", error.message)
                located.hint = error.hint
                raise located from None

    async def start(self, runtime: Runtime) -> None:
        """HookError or an AgentfwError of the plugin's stops the start."""
        for call in self._calls["start"]:
            await self._finish(call, "start", self._begin(call, "start", runtime))

    async def stop(self) -> None:
        for call in reversed(self._calls["stop"]):
            try:
                await self._finish(call, "stop", self._begin(call, "stop"))
            except HookError as error:
                log.error("%s", error, exc_info=error.__cause__)
            except AgentfwError as error:
                log.error("plugin `%s` did not stop: %s", call.plugin, error)

    async def allow(self, agent: Agent, destination: Destination) -> None:
        await self._all("allow", agent, destination)

    async def resolve(self, agent: Agent, name: str, qtype: int, query: bytes) -> bytes | None:
        reply = await self._first("resolve", _is_bytes, agent, name, qtype, query)
        return None if reply is None else bytes(cast(bytes, reply))

    async def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> Upstream | None:
        return cast("Upstream | None", await self._first("connect", _is_upstream, agent, destination, tls))

    def dial(self, agent: Agent, destination: Destination, address: str) -> bool | None:
        for call in self._calls["dial"]:
            result = self._begin(call, "dial", agent, destination, address)
            if result is True or result is False:
                return result
            if result is not None:
                _discard(result)
                raise HookError(call.plugin, "dial", f"returned {type(result).__name__}")
        return None

    async def request(self, agent: Agent, destination: Destination, head: RequestHead, tls: TlsInfo | None) -> None:
        await self._all("request", agent, destination, head, tls)

    async def response(self, agent: Agent, destination: Destination, request: RequestHead, head: ResponseHead) -> None:
        await self._all("response", agent, destination, request, head)

    def exit(self, agent: Agent, report: ExitReport) -> None:
        """Errors are logged; all implementations are called."""
        self._tell("exit", agent, report)

    def exchange_end(self, agent: Agent, exchange: ExchangeReport) -> None:
        """As `exit`."""
        self._tell("exchange_end", agent, exchange)

    def flow_end(self, agent: Agent, flow: FlowReport) -> None:
        """As `exit`."""
        self._tell("flow_end", agent, flow)

    def model_call(self, agent: Agent, call: ModelCall) -> None:
        """As `exit`."""
        self._tell("model_call", agent, call)

    def audit(self, event: AuditEvent) -> None:
        """As `exit`."""
        self._tell("audit", event)

    def tables(self) -> list[Table]:
        """Of all plugins, in their order; what is no table is logged and left out."""
        found: list[Table] = []
        for call in self._calls["tables"]:
            try:
                result = self._begin(call, "tables")
                if result is not None:
                    found += _tables(call.plugin, result)
            except AgentfwError as error:
                log.error("%s", error, exc_info=error.__cause__)
        return found

    def _tell(self, hook: str, *args: object) -> None:
        for call in self._calls[hook]:
            try:
                _discard(self._begin(call, hook, *args))
            except AgentfwError as error:
                log.error("%s", error, exc_info=error.__cause__)

    def statistics(self) -> dict[str, int | float]:
        merged: dict[str, int | float] = {}
        for call in self._calls["statistics"]:
            try:
                result = self._begin(call, "statistics")
                merged.update(_numbers(call.plugin, result))
            except AgentfwError as error:
                log.error("%s", error, exc_info=error.__cause__)
        return merged

    async def _all(self, hook: str, *args: object) -> None:
        for call in self._calls[hook]:
            result = await self._finish(call, hook, self._begin(call, hook, *args))
            if result is not None:
                raise HookError(call.plugin, hook, f"returned {type(result).__name__}")

    async def _first(self, hook: str, fits: Callable[[object], bool], *args: object) -> object | None:
        for call in self._calls[hook]:
            result = await self._finish(call, hook, self._begin(call, hook, *args))
            if result is not None:
                if fits(result):
                    return cast(object, result)
                raise HookError(call.plugin, hook, f"returned {type(result).__name__}")
        return None

    @staticmethod
    def _begin(call: _Call, hook: str, *args: object) -> Any:
        try:
            return call.function(*args)
        except BaseException as error:
            _raise(call.plugin, hook, error)

    @staticmethod
    async def _finish(call: _Call, hook: str, result: Any) -> Any:
        if result is None or not inspect.isawaitable(result):
            return result
        try:
            async with asyncio.timeout(TIMEOUTS[hook]) as limit:
                return await result
        except TimeoutError as error:
            if limit.expired():
                raise HookError(call.plugin, hook, f"no answer within {TIMEOUTS[hook]:g} s") from error
            _raise(call.plugin, hook, error)
        except BaseException as error:
            _raise(call.plugin, hook, error)


def _raise(plugin: str, hook: str, error: BaseException) -> NoReturn:
    """What the pipeline sees of an exception. Messages of unexpected ones stay in `__cause__`: they may quote a header.

    sys.exit() in a hook, and a cancellation that nobody asked for, are mistakes as others are: they must end neither the command
    nor, in silence, a flow.
    """
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)) or (isinstance(error, asyncio.CancelledError) and _cancelled()):
        raise error
    if isinstance(error, Denied):
        error.plugin = error.plugin or plugin
        raise error
    if isinstance(error, (UpstreamError, HookError)) or (hook == "start" and isinstance(error, AgentfwError)):
        raise error
    raise HookError(plugin, hook, type(error).__name__) from error


def _cancelled() -> bool:
    """Somebody is cancelling the running task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def _numbers(plugin: str, result: object) -> dict[str, int | float]:
    """What a `statistics` hook returned, its names put under the plugin's. HookError if it is something else."""
    if result is None:
        return {}
    if not isinstance(result, dict) or not all(
        isinstance(name, str) and isinstance(value, (int, float)) for name, value in result.items()
    ):
        _discard(result)
        raise HookError(plugin, "statistics", f"returned {type(result).__name__}, not numbers by name")
    return {f"{plugin}.{name}": value for name, value in result.items()}


def _tables(plugin: str, result: object) -> list[Table]:
    """What a `tables` hook returned. HookError if it is something else."""
    if not isinstance(result, list) or not all(isinstance(each, Table) for each in result):
        _discard(result)
        raise HookError(plugin, "tables", f"returned {type(result).__name__}, not a list of tables")
    return result


def _compiled(implementation: pluggy.HookImpl, argnames: Iterable[str]) -> _Call:
    if implementation.hookwrapper or implementation.wrapper:
        raise PluginError(f"plugin `{implementation.plugin_name}`: hook wrappers are not supported")
    names = tuple(argnames)
    function = implementation.function
    if tuple(implementation.argnames) != names:
        places = tuple(names.index(name) for name in implementation.argnames)
        function = functools.partial(_pruned, function, places)
    return _Call(implementation.plugin_name, function)


def _pruned(function: Callable[..., Any], places: tuple[int, ...], *args: object) -> Any:
    return function(*[args[place] for place in places])


def _discard(result: object) -> None:
    if inspect.iscoroutine(result):
        result.close()


def _is_bytes(result: object) -> bool:
    return isinstance(result, (bytes, bytearray))  # dnslib packs into a bytearray


def _is_upstream(result: object) -> bool:
    return all(hasattr(result, name) for name in ("send", "receive", "send_eof", "release", "tls"))
