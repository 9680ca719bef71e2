"""The Python interface: what `agentfw` exports, of its docstrings and signatures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import agentfw
from agentfw.plugins.describe import _field_docs

from .hooks import _fields, _type
from .markdown import Unknown, table

GROUPS = {
    "pools": ("Pool", "SyncPool", "Handle", "SyncHandle", "Result", "Input"),
    "programs": ("Code", "Module", "Mounted", "Limits", "Trace"),
    "errors": ("AgentfwError", "PoolError", "ConfigError", "Denied", "JobFailed", "JobSignaled", "JobKilled", "JobTimeout",
               "OutOfMemory", "TooMuchOutput", "JobHostile", "JobBroken"),
    "plugins": ("Agent", "Destination", "ExitReport", "Headers", "RequestHead", "ResponseHead", "TlsInfo", "TlsRequest",
                "Upstream", "hookimpl"),
}  # fmt: skip


def public(group: str = "") -> str:
    if not group:
        untold = set(agentfw.__all__) - {name for names in GROUPS.values() for name in names}
        if untold:
            raise Unknown(f"in no group of docs/generator/python.py: {', '.join(sorted(untold))}")
        return table(("what", "names"), ((what, ", ".join(f"`{name}`" for name in names)) for what, names in GROUPS.items()))
    if group not in GROUPS:
        raise Unknown(f"no group `{group}` (there are {', '.join(GROUPS)})")
    return "\n\n".join(_class(name, getattr(agentfw, name)) for name in GROUPS[group])


def _class(name: str, kind: Any) -> str:
    rows = [(f"`{_signature(label, value)}`", text) for label, value, text in _members(kind)]
    fields = [(f"`{field}`", f"`{_type(shape)}`", _field_docs(kind).get(field, "")) for field, shape in _fields(kind)]
    parts = [f"### {name}", _text(inspect.getdoc(kind) or ""), table(("field", "type", ""), fields), table(("method", ""), rows)]
    return "\n\n".join(filter(None, parts))


def _text(doc: str) -> str:
    """Paragraphs on one line each; examples as they are."""
    parts = inspect.cleandoc(doc).split("\n\n")
    return "\n\n".join(part if part.startswith("    ") else " ".join(part.split()) for part in parts)


def _members(kind: Any) -> Iterator[tuple[str, Any, str]]:
    for name, value in vars(kind).items() if isinstance(kind, type) else ():
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        doc = inspect.getdoc(function.fget if isinstance(function, property) else function)
        public_one = not name.startswith("_") and (inspect.isfunction(function) or isinstance(function, property))
        if public_one and doc:
            yield name, function, " ".join(doc.split("\n\n")[0].split())


def _signature(name: str, value: Any) -> str:
    if isinstance(value, property):
        return name
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return f"{name}(...)"
    names = [
        str(each.replace(annotation=inspect.Parameter.empty))
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]
    text = re.sub(r"=<[^>]*>", "=...", ", ".join(names))
    return f"{'await ' if inspect.iscoroutinefunction(value) else ''}{name}({text})"
