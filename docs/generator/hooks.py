"""Hooks: of their specifications, and of the classes that they are given."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import msgspec
from agentfw import hookspecs
from agentfw.plugins.describe import _field_docs, describe
from agentfw.plugins.discovery import available
from agentfw.plugins.limits import DEFAULT_SECONDS, SECONDS

from .markdown import code, table


def specifications() -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in vars(hookspecs).items() if hasattr(value, "agentfw_spec")}


def hooks() -> str:
    users: dict[str, list[str]] = {}
    for name, info in sorted(available().items()):
        if info.origin.startswith("agentfw "):
            for use in describe(name).hooks:
                users.setdefault(use.name, []).append(f"`{name}`")
    return "\n\n".join(_hook(name, function, users.get(name, [])) for name, function in specifications().items())


def _hook(name: str, function: Callable[..., Any], users: list[str]) -> str:
    doc = inspect.getdoc(function) or ""
    text, _, budget = doc.partition("\n\nBudget:")
    signature = inspect.signature(function)
    result = str(signature.return_annotation)
    first = function.agentfw_spec.get("firstresult")  # type: ignore[attr-defined]
    words = ["the first result that is not None counts" if first else "all implementations are called"]
    if "Awaitable" in result:
        words.append(f"may be `async`, at most {SECONDS.get(name, DEFAULT_SECONDS):g} s")
    else:
        words.append("never awaited")
    words.append(f"budget: {' '.join(budget.split()).rstrip('.')}")
    if users:
        words.append(f"implemented by {', '.join(users)}")
    arguments = ", ".join(str(each) for each in signature.parameters.values())
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    shown = f"```python\ndef {name}({arguments}) -> {result}: ...\n```".replace("'", "")
    return "\n\n".join([f"### {name}", shown, *paragraphs, f"*{'; '.join(words)}.*"])


def arguments() -> str:
    """The classes that hooks' signatures name, by the imports of the specifications."""
    tree = ast.parse(inspect.getsource(hookspecs))
    names = [
        (node.module, alias.name)
        for block in tree.body if isinstance(block, ast.If)
        for node in block.body if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]  # fmt: skip
    found = [getattr(importlib.import_module(f"agentfw.{module}"), name) for module, name in names]
    return "\n\n".join(_class(kind) for kind in sorted(found, key=lambda kind: kind.__name__) if _fields(kind))


def _fields(kind: type) -> list[tuple[str, Any]]:
    if dataclasses.is_dataclass(kind):
        return [(field.name, field.type) for field in dataclasses.fields(kind) if not field.name.startswith("_")]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [(name, _annotation(kind, name)) for name in kind.__struct_fields__]
    return []


def _annotation(kind: type, name: str) -> Any:
    return next((base.__annotations__[name] for base in kind.__mro__ if name in vars(base).get("__annotations__", {})), "")


def _class(kind: type) -> str:
    docs = _field_docs(kind)
    text = "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(kind) or "").split("\n\n"))
    rows = [(code(name), code(_type(shape)), re.sub(r"^ ?", "", docs.get(name, ""))) for name, shape in _fields(kind)]
    return f"### {kind.__name__}\n\n`{kind.__module__}.{kind.__name__}`. {text}\n\n" + table(("field", "type", ""), rows)


def _type(shape: Any) -> str:
    return shape if isinstance(shape, str) else getattr(shape, "__name__", str(shape))
