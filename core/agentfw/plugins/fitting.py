"""Which hooks a plugin implements, and the mistakes in them that can be told before it runs.

What a plugin's author meant as a hook is called, or the plugin is not loaded: a policy that nobody asks permits everything. So
nothing here depends on what the installed pluggy takes for an implementation and what it passes over: it takes plain functions,
and all else that is marked, or could be called and has a hook's name, is an error.
"""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pluggy

from .. import hookspecs
from ..errors import PluginError
from ..hints import did_you_mean
from ..texts import shown, why
from .limits import awaited_hooks

TELLING = frozenset({"audit", "decided", "dispatched", "exchange_end", "flow_end", "job_event", "model_call", "question_end"})
"""Hooks that decide nothing, so that who is not called misses nothing but news: what `idle_hooks` and `later_hooks` may name."""

_MARK = "agentfw_impl"
_ABSENT = object()

log = logging.getLogger("agentfw.plugins")


@dataclass(frozen=True, slots=True)
class Implementation:
    """One of a hook. `attribute`: its name in the plugin; `marks`: what `@hookimpl` was given."""

    hook: str
    attribute: str
    function: types.FunctionType
    marks: Mapping[str, Any]


def check_fit(name: str, plugin: object) -> list[Implementation]:
    """What a plugin implements; of a class: what its instances do. PluginError with a hint for a hook that does not exist, for
    arguments that it does not have or would not be given, and for whatever was meant as a hook and would never be called."""
    try:
        found = _implemented(name, plugin)
        _check_lists(name, plugin)
    except PluginError:
        raise
    except Exception as error:  # whatever its attributes raise when they are looked at
        raise PluginError(f"plugin `{name}` does not fit: {why(error)}") from error
    return found


def _implemented(name: str, plugin: object) -> list[Implementation]:
    known = _known()
    own = type.__dir__(plugin) if isinstance(plugin, type) else object.__dir__(plugin)
    found = []
    for attribute in sorted({*dir(plugin), *own, *known}):
        value, on_instance = _looked_up(plugin, attribute)
        if value is _ABSENT:
            if attribute in known and callable(getattr(plugin, attribute, None)):
                raise _never_called(name, attribute, "comes out of `__getattr__`")
        elif (made := _implementation(name, plugin, attribute, value, on_instance)) is not None:
            found.append(made)
    return found


def _looked_up(plugin: object, attribute: str) -> tuple[object, bool]:
    """An attribute as it stands there, and whether it does in the instance itself, where nothing binds it. Nothing is run."""
    value = inspect.getattr_static(plugin, attribute, _ABSENT)
    if isinstance(plugin, type):
        return value, False
    if isinstance(value, types.MemberDescriptorType):  # __slots__
        try:
            return value.__get__(plugin, type(plugin)), True
        except AttributeError:
            return _ABSENT, True
    return value, attribute in _dict_of(plugin)


def _dict_of(plugin: object) -> Collection[str]:
    try:
        found = object.__getattribute__(plugin, "__dict__")
    except AttributeError:
        return ()
    return found if isinstance(found, dict) else ()


def _implementation(name: str, plugin: object, attribute: str, value: object, on_instance: bool) -> Implementation | None:
    known = _known()
    inner = value
    if isinstance(value, types.MethodType) or (isinstance(value, (staticmethod, classmethod)) and not on_instance):
        inner = value.__func__
    marks = _marks(inner)
    if not isinstance(inner, types.FunctionType):
        if marks is not None or _marks(value) is not None or (attribute in known and _could_be_called(value)):
            raise _never_called(name, attribute, f"is a {type(inner).__name__}")
        if _marked_below(plugin, attribute) and (value is not None or on_instance):
            error = PluginError(f"plugin `{name}`: its hook `{attribute}` is hidden by a value of that name")
            error.hint = f"give the value another name: `{attribute}` would never be called"
            raise error
        return None
    if marks is None:
        if _marks(value) is not None:
            error = PluginError(f"plugin `{name}`: `@hookimpl` of `{attribute}` stands before `@{type(value).__name__}`")
            error.hint = f"put `@{type(value).__name__}` first, then `@hookimpl`"
            raise error
        if attribute in known or _marked_below(plugin, attribute):
            error = PluginError(f"plugin `{name}`: its method `{attribute}` is named as a hook, but is none")
            error.hint = f"put `@hookimpl` before `def {attribute}`, or give it another name"
            raise error
        return None
    hook = marks.get("specname") or attribute
    if hook not in known:
        if marks.get("optionalhook"):
            guess = did_you_mean(hook, known)
            log.warning("plugin `%s`: no hook is called `%s`, so nobody calls it%s", name, hook, f" ({guess})" if guess else "")
            return None
        error = PluginError(f"plugin `{name}`: there is no hook `{hook}`")
        error.hint = did_you_mean(hook, known) or "see the hooks in docs/plugins.md"
        raise error
    bound = isinstance(value, (types.MethodType, classmethod)) or (value is inner and not on_instance)
    _check_kind(name, hook, inner, marks)
    _check_arguments(name, hook, inner, bound)
    return Implementation(hook, attribute, inner, marks)


def _never_called(name: str, attribute: str, how: str) -> PluginError:
    error = PluginError(f"plugin `{name}`: its `{attribute}` {how}: as a hook it would never be called")
    error.hint = f"write a plain `def {attribute}` with `@hookimpl`, in a .py file, that calls it; or give it another name"
    return error


def _could_be_called(value: object) -> bool:
    """What a descriptor gives, nobody knows."""
    return callable(value) or (hasattr(type(value), "__get__") and not isinstance(value, types.MemberDescriptorType))


def _marks(value: object) -> Mapping[str, Any] | None:
    """What `@hookimpl` left there, or in the function that it was made of. Nothing is run."""
    marks = inspect.getattr_static(value, _MARK, None)
    if isinstance(marks, Mapping):
        return marks
    if isinstance(value, property):
        return _marks(value.fget)
    if isinstance(value, (functools.partial, functools.partialmethod, functools.cached_property, functools.singledispatchmethod)):
        return _marks(value.func)
    return None


def _marked_below(plugin: object, attribute: str) -> bool:
    """In some class of the plugin's it is a hook."""
    kind = plugin if isinstance(plugin, type) else type(plugin)
    for each in kind.__mro__:
        value = vars(each).get(attribute)
        if _marks(value.__func__ if isinstance(value, (staticmethod, classmethod)) else value) is not None:
            return True
    return False


def _check_kind(name: str, hook: str, function: types.FunctionType, marks: Mapping[str, Any]) -> None:
    error = None
    if marks.get("wrapper") or marks.get("hookwrapper"):
        error = PluginError(f"plugin `{name}`: `{hook}`: hook wrappers are not supported")
    elif marks.get("tryfirst") and marks.get("trylast"):
        error = PluginError(f"plugin `{name}`: `{hook}` asks to be called both first and last")
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        error = PluginError(f"plugin `{name}`: `{hook}` has a `yield`: nothing in it would run")
        error.hint = "let it return its result"
    elif inspect.iscoroutinefunction(function) and hook not in awaited_hooks():
        error = PluginError(f"plugin `{name}`: `{hook}` is `async`, but that hook is never awaited: nothing in it would run")
        error.hint = f"write `def {hook}`; what has to wait belongs in a task that `start` makes"
    if error is not None:
        raise error


def _check_arguments(name: str, hook: str, function: types.FunctionType, bound: bool) -> None:
    """They are given by position, and pluggy gives none that has a default: one would be None for ever, and nobody would know."""
    wanted = _known()[hook]
    has = ", ".join(f"`{each}`" for each in wanted) or "none"
    parameters = list(inspect.signature(function).parameters.values())
    if bound and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]
    for each in parameters:
        error = None
        if each.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            error = PluginError(f"plugin `{name}`: the hook `{hook}` has `{each}`, which would be given nothing")
            error.hint = f"name the arguments that it uses, of {has}"
        elif each.name in wanted and (each.default is not each.empty or each.kind is inspect.Parameter.KEYWORD_ONLY):
            how = "has a default" if each.default is not each.empty else "can be given by name only"
            error = PluginError(f"plugin `{name}`: `{each.name}` of the hook `{hook}` {how}: it would never be given")
            error.hint = f"write just `{each.name}`"
        elif each.name not in wanted and each.default is each.empty:
            error = PluginError(f"plugin `{name}`: the hook `{hook}` has no argument `{each.name}` (it has: {has})")
            error.hint = did_you_mean(each.name, wanted)
        if error is not None:
            raise error


@functools.cache
def _known() -> Mapping[str, tuple[str, ...]]:
    """All hooks, and their arguments."""
    return {hook: _arguments(spec) for hook, spec in vars(hookspecs).items() if hasattr(spec, "agentfw_spec")}


def _arguments(spec: types.FunctionType) -> tuple[str, ...]:
    return spec.__code__.co_varnames[: spec.__code__.co_argcount]


def _check_lists(name: str, plugin: object) -> None:
    for attribute in ("idle_hooks", "later_hooks"):
        # Not by getattr(): one that is computed changes while the plugin lives, and is looked at when it is asked for.
        said = inspect.getattr_static(plugin, attribute, ())
        if not hasattr(type(said), "__get__"):
            try:
                telling_hooks(said)
            except (TypeError, ValueError) as trouble:
                error = PluginError(f"plugin `{name}`: `{attribute}` {trouble}")
                error.hint = f'write `{attribute} = {{"exchange_end", "model_call"}}`; it may name {", ".join(sorted(TELLING))}'
                raise error from None


def telling_hooks(said: object) -> frozenset[str]:
    """What a plugin's `idle_hooks` or `later_hooks` names; TypeError or ValueError, worded to follow the attribute's name, for
    what names none: it would have no effect, and nobody would know."""
    if isinstance(said, str) or not isinstance(said, Collection):
        raise TypeError("is no set of hooks' names")
    for hook in said:
        if not isinstance(hook, str) or hook not in TELLING:
            guess = did_you_mean(hook, TELLING) if isinstance(hook, str) else ""
            raise ValueError(f"names {shown(str(hook), 64)!r}, which is no hook that only tells{f' ({guess})' if guess else ''}")
    return frozenset(said)


def check_beside(name: str, module: types.ModuleType, kind: type) -> None:
    """PluginError for a function of a plugin's module that is marked, but stands beside the class."""
    inside = {id(value) for each in kind.__mro__ for value in vars(each).values()}
    for attribute, value in vars(module).items():
        ours = isinstance(value, types.FunctionType) and value.__module__ == module.__name__
        if ours and _marks(value) is not None and id(value) not in inside:
            error = PluginError(f"plugin `{name}`: the hook `{attribute}` stands outside of its class: it would never be called")
            error.hint = f"make it a method of `{kind.__name__}`"
            raise error


class Registry(pluggy.PluginManager):
    """Takes for implementations what `check_fit()` does, whatever pluggy's version would."""

    def __init__(self) -> None:
        super().__init__("agentfw")
        self._fits: Mapping[str, Implementation] = {}
        self.add_hookspecs(hookspecs)

    def take(self, name: str, plugin: object) -> None:
        """Register it. PluginError if it does not fit, or not all of it was taken."""
        if isinstance(plugin, type):
            raise PluginError(f"plugin `{name}` is a class, not an instance of one")
        try:
            self._fits = {each.attribute: each for each in check_fit(name, plugin)}
            self.register(plugin, name)
            taken = {caller.name for caller in self.get_hookcallers(plugin) or ()}
            for each in self._fits.values():
                if each.hook not in taken:
                    raise _never_called(name, each.attribute, "is not seen by pluggy")
        except PluginError:
            raise
        except Exception as error:  # pluggy's own words
            raise PluginError(f"plugin `{name}` does not fit: {why(error)}") from error

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        found = self._fits.get(name)
        return None if found is None else cast("pluggy.HookimplOpts", dict(found.marks))
