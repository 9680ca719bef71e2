"""Mistakes in a plugin's hooks that can be told from its class: misspelt, or not marked at all. (pluggy finds the rest.)"""

from __future__ import annotations

import inspect
import types
from collections.abc import Collection, Mapping

from .. import hookspecs
from ..errors import PluginError
from ..hints import did_you_mean
from ..texts import shown

TELLING = frozenset({"audit", "decided", "dispatched", "exchange_end", "flow_end", "job_event", "model_call", "question_end"})
"""Hooks that decide nothing, so that who is not called misses nothing but news: what `idle_hooks` and `later_hooks` may name."""


def check_fit(name: str, plugin: object) -> None:
    """PluginError with a hint for a hook that does not exist, for arguments that it does not have, and for a method that has a
    hook's name but no `@hookimpl`: it would never be called, and what it should refuse would pass."""
    known = {hook: _arguments(function) for hook, function in vars(hookspecs).items() if hasattr(function, "agentfw_spec")}
    kind = plugin if inspect.isclass(plugin) else type(plugin)
    for attribute in dir(kind):
        function = inspect.getattr_static(kind, attribute, None)
        marks = getattr(function, "agentfw_impl", None) if isinstance(function, types.FunctionType) else None
        if not isinstance(marks, Mapping):
            if isinstance(function, types.FunctionType) and attribute in known:
                error = PluginError(f"plugin `{name}`: its method `{attribute}` is named as a hook, but is none")
                error.hint = f"put `@hookimpl` before `def {attribute}`, or give it another name"
                raise error
            continue
        hook = marks.get("specname") or attribute
        if hook not in known:
            if marks.get("optionalhook"):
                continue
            error = PluginError(f"plugin `{name}`: there is no hook `{hook}`")
            error.hint = did_you_mean(hook, known) or "see the hooks in docs/plugins.md"
            raise error
        given = _arguments(function)
        strange = [each for each in given[given[:1] == ["self"] :] if each not in known[hook]]
        if strange:
            has = ", ".join(f"`{each}`" for each in known[hook]) or "none"
            error = PluginError(f"plugin `{name}`: the hook `{hook}` has no argument `{strange[0]}` (it has: {has})")
            error.hint = did_you_mean(strange[0], known[hook])
            raise error
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


def _arguments(function: types.FunctionType) -> list[str]:
    """Names of what is given by position, without what has a default (as pluggy sees it)."""
    code = function.__code__
    return list(code.co_varnames[: code.co_argcount - len(function.__defaults__ or ())])
