"""The plugins of one process, in calling order, and a typed method for each hook.

To add a hook: its specification in `agentfw.hookspecs`, and a method here that calls

    _all(hook, ...)              everybody; who raises ends it; nobody may return anything
    _first(hook, fits, ...)      one after the other until somebody returns something, for which `fits` must hold
    _first_now(hook, fits, ...)  the same for hooks that are never awaited
    _tell(hook, ...)             everybody, never awaited; failures are logged
    _gather(hook, fits, what)    what everybody returns, by plugin, never awaited; failures are logged

A plugin may have an attribute `idle_hooks`, names of hooks of the telling kind (`_tell`) that it has but does not want called: it
is looked at when plugins are compiled, after each reload, and when somebody says so (`arrange()`). Likewise `later_hooks`: those
that it can be told a moment later, many at once (`news`): before `exit`, before counters are asked for, and before the end at the
latest.

All that a hook may do wrong is seen to there.
"""

from __future__ import annotations

import functools
import inspect
import logging
import operator
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pluggy

from .. import hookspecs
from ..errors import AgentfwError, ConfigError, Denied, HookError, PluginError
from ..histograms import BUCKET, HOOK, labels
from ..metering import Meter
from ..reports import Decision, Table
from ..texts import shown, why
from . import tracing
from .calling import Call, Tracer, tell
from .discovery import available
from .failures import FailureLog
from .fitting import TELLING, Registry, telling_hooks
from .limits import Limits, hook_names
from .news import Later
from .reloading import Prepared

if TYPE_CHECKING:
    from ..agents import Agent, ExitReport
    from ..config import Config
    from ..destination import Destination
    from ..guest_rules import GuestRules
    from ..http1 import RequestHead, ResponseHead
    from ..model_calls import ModelCall
    from ..reports import AuditEvent, DispatchReport, ExchangeReport, FlowReport, JobEvent, QuestionReport
    from ..runtime import Runtime
    from ..upstream import TlsInfo, TlsRequest, Upstream

MAX_DECISIONS = 1024
"""Kept for being told again: one for each rule that permits something."""

log = logging.getLogger("agentfw.plugins")

_BOUNDS = labels(HOOK)


class PluginManager:
    """`add()` each plugin, then `compile()`. `config`: what they were configured with."""

    def __init__(self, config: Config | None = None) -> None:
        from ..config import Config

        self.config = config or Config()
        self.chosen_by: Callable[[Config], tuple[str, ...]] | None = None
        """What says, of a configuration, which plugins there shall be; None: whoever made this named them."""
        self._pluggy = Registry()
        self._named: dict[str, object] = {}
        self._every: dict[str, tuple[Call, ...]] = dict.fromkeys(hook_names(), ())
        self._calls: dict[str, tuple[Call, ...]] = dict(self._every)
        """Without those that are not wanted at the moment."""
        self._told: dict[str, tuple[tuple[Call, ...], tuple[Call, ...]]] = dict.fromkeys(hook_names(), ((), ()))
        """Of hooks that tell: who is told at once, and who later."""
        self.later = Later(self._log)
        self._permissions: dict[tuple[str, str], Decision] = {}
        self._never_started: set[str] = set()
        self.failures = FailureLog()
        self._trace: Tracer | None = tracing.to_stderr if tracing.wanted() else None

    # -- which there are

    def add(self, name: str, plugin: object) -> None:
        """Register an instance under a name of its own; `compile()` makes it take effect."""
        if name in self._named:
            raise PluginError(f"plugin `{name}` is named twice")
        self._named[name] = plugin

    def compile(self) -> None:
        """Check all hook implementations against the specifications and build the call lists. PluginError if one does not fit."""
        for name in [name for name, _ in self._pluggy.list_name_plugin()]:
            self._pluggy.unregister(name=name)
        for name, plugin in self._named.items():
            self._pluggy.take(name, plugin)
        for hook in hook_names():
            caller = getattr(self._pluggy.hook, hook)
            found = sorted(caller.get_hookimpls(), key=self._place)
            self._every[hook] = tuple(_compiled(hook, implementation, caller.spec.argnames) for implementation in found)
        self.arrange()
        self.limit(Limits(self.config, self.names))
        self.trace(self._trace)

    def arrange(self) -> None:
        """Ask the plugins anew which hooks they do not want (`idle_hooks`), and which only later (`later_hooks`)."""
        self.later.deliver()
        idle = {name: _listed(name, plugin, "idle_hooks") for name, plugin in self._named.items()}
        later = {name: _listed(name, plugin, "later_hooks") for name, plugin in self._named.items()}
        for hook, calls in self._every.items():
            wanted = tuple(call for call in calls if hook not in idle[call.plugin]) if hook in TELLING else calls
            self._calls[hook] = wanted
            late = [call for call in wanted if hook in TELLING and hook in later[call.plugin]]
            self._told[hook] = tuple(call for call in wanted if call not in late), tuple(late)

    def _place(self, implementation: pluggy.HookImpl) -> tuple[int, int]:
        """In calling order: who asked to be first, the others, who asked to be last; among them as they were named."""
        group = 0 if implementation.tryfirst else 2 if implementation.trylast else 1
        return group, list(self._named).index(implementation.plugin_name)

    def limit(self, limits: Limits) -> None:
        """Give each hook its time."""
        for call in self._all_calls():
            call.seconds = limits.seconds(call.plugin, call.hook)
            call.blocking_ns = limits.blocking_ns(call.hook)

    def trace(self, tracer: Tracer | None) -> None:
        """Have each call told to `tracer` (`agentfw.plugins.tracing.to_stderr`)."""
        self._trace = tracer
        for call in self._all_calls():
            call.trace = tracer

    @property
    def names(self) -> list[str]:
        return list(self._named)

    def get(self, name: str) -> object | None:
        return self._named.get(name)

    def hooks(self, name: str) -> list[str]:
        """The hooks that this plugin implements, in the order of their specifications."""
        return [hook for hook in _specified() if any(call.plugin == name for call in self._every[hook])]

    def order(self, hook: str) -> list[str]:
        """The plugins that implement a hook, in calling order."""
        return [call.plugin for call in self._every[hook]]

    def implemented(self, hook: str) -> bool:
        """Somebody wants it called."""
        return bool(self._calls[hook])

    def hook_statistics(self) -> dict[str, int | float]:
        """For each plugin and hook that was called: "hooks.policy.allow.calls", ".seconds" (all calls, waiting included) and
        ".longest"; ".denied", ".errors", ".timeouts" and ".blocked" (it held up the loop) where there were any; and a histogram
        (`agentfw.histograms`)."""
        found: dict[str, int | float] = {}
        for call in self._all_calls():
            if not call.calls:
                continue
            name = f"hooks.{call.plugin}.{call.hook}"
            found[f"{name}.calls"] = call.calls
            found[f"{name}.seconds"] = call.total_ns / 1e9
            found[f"{name}.longest"] = call.longest_ns / 1e9
            for what in ("denied", "errors", "timeouts", "blocked"):
                if number := getattr(call, what):
                    found[f"{name}.{what}"] = number
            found |= {f"{name}{BUCKET}{bound}": count for bound, count in zip(_BOUNDS, call.buckets, strict=True) if count}
        return found

    def _all_calls(self) -> Iterable[Call]:
        return (call for hook in _specified() for call in self._every[hook])

    # -- the hooks

    async def start(self, runtime: Runtime) -> None:
        """HookError or an AgentfwError of the plugin's stops the start. Those after it never started, and are not stopped."""
        self._never_started = set(self.order("start"))
        for call in self._calls["start"]:
            self._never_started.discard(call.plugin)
            if (result := await call.later((runtime,))) is not None:
                raise call.nonsense(result)

    async def stop(self) -> None:
        self.later.end()
        for call in reversed(self._calls["stop"]):
            if call.plugin not in self._never_started:
                await self._tell_later(call)

    async def reloaded(self, runtime: Runtime) -> None:
        for call in self._calls["reloaded"]:
            await self._tell_later(call, runtime)

    async def admit(self, agent: Agent) -> None:
        try:
            await self._all("admit", agent)
        except (Denied, HookError) as error:
            self.refused(agent, None, error, hook="admit")
            raise

    async def allow(self, agent: Agent, destination: Destination) -> None:
        rule = plugin = ""
        try:
            for call in self._calls["allow"]:
                if (rest := call.begun((agent, destination))) is not None and (result := await rest) is not None:
                    if not isinstance(result, str):
                        raise call.nonsense(result)
                    if not rule:
                        rule, plugin = result, call.plugin
        except (Denied, HookError) as error:
            self.refused(agent, destination, error)
            raise
        if self._calls["decided"]:
            decision = self._permissions.get((rule, plugin))
            if decision is None:
                if len(self._permissions) >= MAX_DECISIONS:
                    self._permissions.clear()
                decision = Decision(allowed=True, rule=shown(rule), plugin=plugin)
                self._permissions[rule, plugin] = decision
            self._tell("decided", agent, destination, decision)

    def refused(
        self,
        agent: Agent,
        destination: Destination | None,
        error: Denied | HookError,
        *,
        hook: str = "allow",
        address: str = "",
        method: str = "",
        target: str = "",
    ) -> None:
        """Tell `decided` of a refusal, the first time that this error comes here. `hook`: where, if the error does not say."""
        if error.told:
            return
        error.told = True
        error.hook = error.hook or hook
        if self._calls["decided"]:
            decision = Decision(
                allowed=False,
                rule=f"plugin failed: {error.hook}" if isinstance(error, HookError) else shown(error.rule),
                plugin=shown(error.plugin, 64),
                reason=shown(error.reason),
                hook=error.hook,
                address=address,
                method=method,
                target=shown(target),
            )
            self._tell("decided", agent, destination, decision)

    def decided(self, agent: Agent, destination: Destination | None, decision: Decision) -> None:
        """Of what is no hook's word."""
        self._tell("decided", agent, destination, decision)

    def job_event(self, event: JobEvent) -> None:
        self._tell("job_event", event)

    def stand_in(self, agent: Agent, name: str, qtype: int) -> tuple[str, ...] | None:
        return cast("tuple[str, ...] | None", self._first_now("stand_in", _is_texts, agent, name, qtype))

    async def resolve(self, agent: Agent, name: str, qtype: int, query: bytes) -> bytes | None:
        reply = await self._first("resolve", _is_bytes, agent, name, qtype, query)
        return None if reply is None else bytes(cast(bytes, reply))

    async def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> Upstream | None:
        return cast("Upstream | None", await self._first("connect", _is_upstream, agent, destination, tls))

    def dial(self, agent: Agent, destination: Destination, address: str) -> bool | None:
        return cast("bool | None", self._first_now("dial", _is_bool, agent, destination, address))

    def meters(self, agent: Agent, destination: Destination) -> list[Meter]:
        """Of all plugins. Who fails ends it: without its meter nothing may pass."""
        found: list[Meter] = []
        for call in self._calls["meters"]:
            if (result := call.now((agent, destination))) is not None:
                if not isinstance(result, list) or not all(isinstance(each, Meter) for each in result):
                    raise call.nonsense(result, ", not a list of meters")
                found += result
        return found

    async def own_tls(self, agent: Agent, destination: Destination) -> Literal["passthrough", "intercept"]:
        """Denied, by the plugin that said so, if the answer is "deny"."""
        try:
            return await self._own_tls(agent, destination)
        except (Denied, HookError) as error:
            self.refused(agent, destination, error, hook="own_tls")
            raise

    async def _own_tls(self, agent: Agent, destination: Destination) -> Literal["passthrough", "intercept"]:
        for call in self._calls["own_tls"]:
            result = await call.later((agent, destination))
            if isinstance(result, str) and result == "deny":
                raise Denied("own_tls: deny", f"TLS of its own to {destination.host} port {destination.port}", call.plugin)
            if isinstance(result, str) and result in ("passthrough", "intercept"):
                return cast(Literal["passthrough", "intercept"], result)
            if result is not None:
                raise call.nonsense(result)
        return "passthrough"

    @property
    def may_intercept(self) -> bool:
        """Some plugin may say "intercept" to TLS of agents' own."""
        return any(getattr(self._named[call.plugin], "intercepts", True) for call in self._calls["own_tls"])

    @property
    def captures(self) -> bool:
        """Some plugin keeps the traffic of agents that are to be captured."""
        return any(getattr(plugin, "captures", False) is True for plugin in self._named.values())

    async def request(self, agent: Agent, destination: Destination, head: RequestHead, tls: TlsInfo | None) -> None:
        await self._all("request", agent, destination, head, tls)

    async def recheck(self, agent: Agent, destination: Destination, head: RequestHead) -> None:
        await self._all("recheck", agent, destination, head)

    async def response(self, agent: Agent, destination: Destination, request: RequestHead, head: ResponseHead) -> None:
        await self._all("response", agent, destination, request, head)

    def exit(self, agent: Agent, report: ExitReport) -> None:
        self.later.deliver()  # what it did, before its end
        self._tell("exit", agent, report)

    def dispatched(self, agent: Agent, report: DispatchReport) -> None:
        self._tell("dispatched", agent, report)

    def question_end(self, agent: Agent, question: QuestionReport) -> None:
        self._tell("question_end", agent, question)

    def exchange_end(self, agent: Agent, exchange: ExchangeReport) -> None:
        self._tell("exchange_end", agent, exchange)

    def flow_end(self, agent: Agent, flow: FlowReport) -> None:
        self._tell("flow_end", agent, flow)

    def model_call(self, agent: Agent, call: ModelCall) -> None:
        self._tell("model_call", agent, call)

    def audit(self, event: AuditEvent) -> None:
        self._tell("audit", event)

    def environment(self, agent: Agent) -> dict[str, str]:
        """HookError if a plugin fails or returns something else: an agent that lacks it must not start."""
        merged: dict[str, str] = {}
        for call in self._calls["environment"]:
            if (result := call.now((agent,))) is not None:
                if not _is_variables(result):
                    raise call.nonsense(result)
                merged = {**cast("dict[str, str]", result), **merged}
        return merged

    def guest_rules(self, agent: Agent) -> GuestRules:
        """Of all plugins together. Who fails ends it: without its rules the agent must not start."""
        from ..guest_rules import GuestRules

        found: list[GuestRules] = []
        for call in self._calls["guest_rules"]:
            if (result := call.now((agent,))) is not None:
                if not isinstance(result, GuestRules):
                    raise call.nonsense(result)
                found.append(result)
        return GuestRules.merged(found)

    def tenant(self, agent: Agent, destination: Destination) -> tuple[str, ...]:
        """What those say that have something to say. HookError if one fails or returns something else."""
        said = []
        for call in self._calls["tenant"]:
            if (result := call.now((agent, destination))) is not None:
                if not isinstance(result, str):
                    raise call.nonsense(result)
                said.append(f"{call.plugin}={result}")
        return tuple(said)

    def redact(self, text: bytes) -> bytes:
        """Without what must not be written anywhere, of the same length. HookError if a plugin fails: then it must not be."""
        for call in self._calls["redact"]:
            if (result := call.now((text,))) is not None:
                if not isinstance(result, bytes) or len(result) != len(text):
                    raise call.nonsense(result, ", not as many bytes")
                text = result
        return text

    def tables(self) -> list[Table]:
        """Of all plugins, in their order; what is no table is logged and left out."""
        self.later.deliver()
        return [
            table for _, tables in self._gather("tables", _is_tables, "a list of tables") for table in cast("list[Table]", tables)
        ]

    def statistics(self) -> dict[str, int | float]:
        """Counters by "plugin.name"; what is no number is logged and left out."""
        self.later.deliver()
        found = self._gather("statistics", _is_numbers, "numbers by name")
        return {
            f"{plugin}.{name}": value for plugin, numbers in found for name, value in cast("dict[str, float]", numbers).items()
        }

    # -- not hooks, but methods that a plugin may have

    def check_guest(self, config: Config, environment: Mapping[str, str], sees: Callable[[Path], bool]) -> None:
        """ConfigError if a plugin does not want agents to have these variables and files."""
        for name, plugin in self._named.items():
            try:
                check = getattr(plugin, "check_guest", None)
                said = None if check is None else check(config.file, environment, sees)
                if said is not None:  # if it is a coroutine, it has looked at nothing
                    if inspect.iscoroutine(said):
                        said.close()
                    raise PluginError(f"plugin `{name}` failed in check_guest(): returned {type(said).__name__}")
            except ConfigError as error:
                raise config.located(name, error) from None
            except AgentfwError:
                raise
            except (Exception, SystemExit) as error:
                raise PluginError(f"plugin `{name}` failed in check_guest(): {why(error)}") from error

    def served_at(self, *, login: bool = False) -> dict[str, str]:
        """By plugin: the URL where it serves people, of those that do (method `served_at(login)`). `login`: one that lets in
        whoever follows it, once."""
        found: dict[str, str] = {}
        for name, plugin in self._named.items():
            try:
                method = getattr(plugin, "served_at", None)
                url = method(login) if method is not None else ""
            except (Exception, SystemExit) as error:
                log.error("plugin `%s` failed in served_at(): %s", name, why(error))
                continue
            if isinstance(url, str) and url:
                found[name] = url
        return found

    def reload(self, config: Config) -> list[str]:
        """Go on with `config`; -> the tables that changed. ConfigError or PluginError: all is as it was. HookError: a plugin
        broke its word amid it (`Prepared.commit()`)."""
        prepared = self._prepared(config)
        prepared.commit()
        return prepared.changed

    def check(self, config: Config) -> list[str]:
        """-> the tables that would change if this were the configuration. ConfigError, PluginError as from `reload()`; nothing
        changes."""
        return self._prepared(config).changed

    def _prepared(self, config: Config) -> Prepared:
        if self.chosen_by is not None and (chosen := self.chosen_by(config)) != (there := self.chosen_by(self.config)):
            differ = [f"`{name}` is new" for name in chosen if name not in there]
            differ += [f"`{name}` is gone" for name in there if name not in chosen]
            why = f"other plugins, or another order, need a restart ({', '.join(differ) or 'their order'})"
            raise config.error("run.plugins", why)
        config.check_tables({*available(), *self.names})
        return Prepared(self, config)

    # -- how they are called

    async def _all(self, hook: str, *args: object) -> None:
        """Everybody, in order. Who raises ends it; a result is a mistake."""
        for call in self._calls[hook]:
            if (rest := call.begun(args)) is not None and (result := await rest) is not None:
                raise call.nonsense(result)

    async def _first(self, hook: str, fits: Callable[[object], bool], *args: object) -> object | None:
        """One after the other, until somebody returns something; which must be what `fits` says."""
        for call in self._calls[hook]:
            if (rest := call.begun(args)) is not None and (result := await rest) is not None:
                if call.fits(fits, result):
                    return cast(object, result)
                raise call.nonsense(result)
        return None

    def _first_now(self, hook: str, fits: Callable[[object], bool], *args: object) -> object | None:
        """As `_first()`, never awaited: a coroutine is a result of the wrong type."""
        for call in self._calls[hook]:
            if (result := call.now(args)) is not None:
                if call.fits(fits, result):
                    return cast(object, result)
                raise call.nonsense(result)
        return None

    async def _tell_later(self, call: Call, *args: object) -> None:
        """One of many whose failures are logged."""
        try:
            if (result := await call.later(args)) is not None:
                raise call.nonsense(result)
        except AgentfwError as error:
            self._log(call, error)

    def _tell(self, hook: str, *args: object) -> None:
        """Everybody, never awaited, whatever one of them does: failures are logged."""
        now, later = self._told[hook]
        if now:
            tell(((now, args),), self._log)
        if later:
            if self.later.open:
                self.later.add(later, args)
            else:
                tell(((later, args),), self._log)

    def _gather(self, hook: str, fits: Callable[[object], bool], what: str, *args: object) -> list[tuple[str, object]]:
        """(plugin, result) of everybody who returns something; what does not fit, and failures, are logged and left out."""
        found: list[tuple[str, object]] = []
        for call in self._calls[hook]:
            try:
                if (result := call.now(args)) is not None:
                    if not call.fits(fits, result):
                        raise call.nonsense(result, f", not {what}")
                    found.append((call.plugin, result))
            except AgentfwError as error:
                self._log(call, error)
        return found

    def _log(self, call: Call, error: AgentfwError) -> None:
        """Of a hook whose failure ends nothing."""
        if isinstance(error, HookError):
            self.failures.tell(log, error, "%s", error)
        else:
            self.failures.tell(log, error, "plugin `%s` failed in `%s`: %s", call.plugin, call.hook, error)


@functools.cache
def _specified() -> tuple[str, ...]:
    """All hooks, in the order of their specifications."""
    known = hook_names()
    return tuple(name for name in vars(hookspecs) if name in known)


def _compiled(hook: str, implementation: pluggy.HookImpl, argnames: Iterable[str]) -> Call:
    names = tuple(argnames)
    function = implementation.function
    if tuple(implementation.argnames) != names:
        function = _pruned(function, tuple(names.index(name) for name in implementation.argnames))
    return Call(implementation.plugin_name, hook, function, names)


def _listed(name: str, plugin: object, attribute: str) -> frozenset[str]:
    """One that does not say it right wants all, and at once."""
    try:
        return telling_hooks(getattr(plugin, attribute, ()))
    except Exception as error:
        log.error("plugin `%s` failed in `%s`: %s", name, attribute, type(error).__name__)
        return frozenset()


def _pruned(function: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """`function`, given all arguments, called with those at `places`."""
    if not places:
        return lambda *args: function()
    if len(places) == 1:
        (place,) = places
        return lambda *args: function(args[place])
    pick = operator.itemgetter(*places)
    return lambda *args: function(*pick(args))


def _is_numbers(result: object) -> bool:
    """Such as can be told another process, and be shown: finite, of 63 bits, by names that can be read."""
    return isinstance(result, dict) and all(
        isinstance(name, str) and name.isprintable() and isinstance(value, (int, float)) and abs(value) < 1 << 63
        for name, value in result.items()
    )


def _is_variables(result: object) -> bool:
    return isinstance(result, dict) and all(isinstance(each, str) for pair in result.items() for each in pair)


def _is_tables(result: object) -> bool:
    return isinstance(result, list) and all(isinstance(each, Table) and each.fits() for each in result)


def _is_bytes(result: object) -> bool:
    return isinstance(result, (bytes, bytearray))  # dnslib packs into a bytearray


def _is_texts(result: object) -> bool:
    return isinstance(result, tuple) and all(isinstance(each, str) for each in result)


def _is_bool(result: object) -> bool:
    return isinstance(result, bool)


def _is_upstream(result: object) -> bool:
    return all(hasattr(result, name) for name in ("send", "receive", "send_eof", "release", "tls"))
