"""What can be said of a plugin without configuring it: for `agentfw plugins list` and `show`."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect as shapes

from .. import hookspecs
from ..config import is_path
from ..config_words import type_name
from ..errors import PluginError
from .discovery import DEFAULT, available
from .fitting import Implementation, check_fit
from .loading import plugin_class


@dataclass(frozen=True, slots=True)
class HookUse:
    """A hook that a plugin implements. `order`: "first" or "last" if it asked for that, else ""; `awaitable`: it is a coroutine
    function."""

    name: str
    order: str
    awaitable: bool


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a plugin's table. `name`: dotted, `[]` after a list of tables, NAME for a key of the operator's choice; `default`:
    as JSON, "" for a table, None if it must be given; `doc`: one line."""

    name: str
    type: str
    default: str | None
    doc: str


@dataclass(frozen=True, slots=True)
class Description:
    """`origin`: "distribution version" or the file; `others`: who else offers the name; `reloads`: its table may change while it
    runs."""

    name: str
    module: str
    origin: str
    others: tuple[str, ...]
    default: bool
    api: str
    doc: str
    hooks: tuple[HookUse, ...]
    keys: tuple[Key, ...]
    configurable: bool
    reloads: bool


def describe(given: str) -> Description:
    """An installed plugin's name or a file. UnknownPlugin; PluginError if it cannot be loaded or does not fit."""
    name, kind = plugin_class(given)
    implementations = check_fit(name, kind)
    info = None if is_path(given) else available()[given]
    config_type: type[msgspec.Struct] | None = getattr(kind, "config_type", None)
    module = sys.modules.get(info.value.partition(":")[0]) if info else inspect.getmodule(kind)
    doc = (module and inspect.getdoc(module)) or inspect.getdoc(kind) or ""
    return Description(
        name=name,
        module=info.value if info else given,
        origin=info.origin if info else given,
        others=info.others if info else (),
        default=info is not None and given in DEFAULT,
        api=str(getattr(kind, "api", None) or hookspecs.API_VERSION.partition(".")[0]),
        doc=doc,
        hooks=tuple(_hooks(implementations)),
        keys=() if config_type is None else tuple(_keys(given, config_type, {})),
        configurable=config_type is not None,
        reloads=hasattr(kind, "reconfigure"),
    )


def _hooks(implementations: Sequence[Implementation]) -> Iterator[HookUse]:
    for hook in vars(hookspecs):  # in the order of their specifications
        for each in (each for each in implementations if each.hook == hook):
            order = "first" if each.marks.get("tryfirst") else "last" if each.marks.get("trylast") else ""
            if hook == "stop":  # they are called in opposite order
                order = {"first": "last", "last": "first"}.get(order, "")
            yield HookUse(hook, order, inspect.iscoroutinefunction(each.function))


def _keys(plugin: str, kind: type[msgspec.Struct], seen: dict[type, str], prefix: str = "") -> Iterator[Key]:
    """`seen`: the tables that were shown already, and where."""
    try:
        fields = shapes.type_info(kind).fields  # type: ignore[attr-defined]
    except Exception as error:  # annotations that msgspec cannot read: the plugin would not load either
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        raise PluginError(f"plugin `{plugin}` has a bad config_type: {text}") from error
    docs = _field_docs(kind)
    for field in fields:
        name = prefix + field.encode_name
        inner, suffix = _table_in(field.type)
        known = None if inner is None else seen.get(inner)
        more = f", as `{known}`" if known else ""
        yield Key(name, type_name(field.type) + more, _default(field), docs.get(field.name, ""))
        if inner is not None and known is None:
            seen[inner] = name + suffix
            yield from _keys(plugin, inner, seen, f"{name}{suffix}.")


def _table_in(shape: Any) -> tuple[type[msgspec.Struct] | None, str]:
    if isinstance(shape, shapes.StructType):
        return shape.cls, ""
    if isinstance(shape, (shapes.ListType, shapes.VarTupleType, shapes.SetType, shapes.FrozenSetType)):
        return _table_in(shape.item_type)[0], "[]"
    if isinstance(shape, shapes.DictType):
        return _table_in(shape.value_type)[0], ".NAME"
    if isinstance(shape, shapes.UnionType):
        return next((found for each in shape.types if (found := _table_in(each))[0] is not None), (None, ""))
    return None, ""


def _default(field: shapes.Field) -> str | None:
    if field.required:
        return None
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value is None:
        return "null"
    if isinstance(value, msgspec.Struct):
        return ""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return repr(value)


def _field_docs(kind: type) -> dict[str, str]:
    """The text under each field in the class's source, its first paragraph on one line."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError, ValueError):  # made by hand, or no source
            continue
        body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
        for field, text in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                docs[field.target.id] = " ".join(inspect.cleandoc(text.value.value).partition("\n\n")[0].split())
    return docs
