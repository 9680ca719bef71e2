"""Mistakes in a plugin's hooks that can be told from its class: misspelt, or not marked at all. (pluggy finds the rest.)"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping

from .. import hookspecs
from ..errors import PluginError
from ..hints import did_you_mean


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


def _arguments(function: types.FunctionType) -> list[str]:
    """Names of what is given by position, without what has a default (as pluggy sees it)."""
    code = function.__code__
    return list(code.co_varnames[: code.co_argcount - len(function.__defaults__ or ())])
