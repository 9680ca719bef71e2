"""What is wrong in agentfw.toml, in the words of TOML: "list of text", not msgspec's "array"; and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect as shapes

from .hints import did_you_mean
from .sizes import parse_size

_WORDS: tuple[tuple[type, str], ...] = (
    (shapes.StrType, "text"),
    (shapes.IntType, "integer"),
    (shapes.FloatType, "number"),
    (shapes.BoolType, "true or false"),
    (shapes.StructType, "table"),
    (shapes.AnyType, "anything"),
)
_OF_MSGSPEC = {
    "array": "list", "object": "table", "str": "text", "int": "integer", "float": "number", "bool": "true or false",
}  # fmt: skip
_LISTS = (shapes.ListType, shapes.VarTupleType, shapes.SetType, shapes.FrozenSetType)


def type_name(shape: Any) -> str:
    """A msgspec.inspect type in the words of TOML: "text", "number >= 1", "list of text", `"a" | "b"`."""
    if isinstance(shape, shapes.Metadata):
        return type_name(shape.type)
    for kind, word in _WORDS:
        if isinstance(shape, kind):
            return word + _bounds(shape)
    if isinstance(shape, _LISTS):
        return f"list of {type_name(shape.item_type)}"
    if isinstance(shape, shapes.TupleType):
        return f"list of ({', '.join(map(type_name, shape.item_types))})"
    if isinstance(shape, shapes.DictType):
        return f"table of {type_name(shape.value_type)}"
    if isinstance(shape, shapes.LiteralType):
        return " | ".join(msgspec.json.encode(value).decode() for value in sorted(shape.values, key=str))
    if isinstance(shape, shapes.EnumType):
        return " | ".join(msgspec.json.encode(each.value).decode() for each in shape.cls)
    if isinstance(shape, shapes.UnionType):
        return " or ".join(type_name(each) for each in shape.types if not isinstance(each, shapes.NoneType))
    return type(shape).__name__.removesuffix("Type").lower()


def unknown_key(kind: type[msgspec.Struct], path: Sequence[str | int], key: str) -> tuple[str, str]:
    """Message and hint for a `key` that the table at `path` (of a table that is a `kind`) does not have."""
    table = _at(kind, path)
    keys = [field.encode_name for field in table.fields] if isinstance(table, shapes.StructType) else []
    hint = did_you_mean(key, keys)
    return "unknown key" if hint or not keys else f"unknown key (known: {', '.join(keys)})", hint


def wrong_value(kind: type[msgspec.Struct], path: Sequence[str | int], value: Any, said: str) -> tuple[str, str]:
    """Message and hint for a `value` at `path` of which msgspec `said` that it will not do."""
    missing = re.fullmatch(r"Object missing required field `(.*)`", said)
    if missing:
        return f"the key `{missing[1]}` is missing", ""
    shape = _at(kind, path)
    choices = _choices(shape)
    if isinstance(value, str) and value not in choices and said.startswith("Invalid enum value"):
        return f"expected {type_name(shape)}, got {_quoted(value)}", did_you_mean(value, choices, '"{}"')
    got = re.search(r", got `(\w+)`\Z", said)
    if shape is not None and got:
        return f"expected {type_name(shape)}, got {_OF_MSGSPEC.get(got[1], got[1])}", _as_meant(shape, value, str(path[-1]))
    said = re.sub(r" \| null\b", "", said[:1].lower() + said[1:])
    return re.sub(r"`(\w+)`", lambda match: _OF_MSGSPEC.get(match[1], match[0]), said), ""


def _as_meant(shape: Any, value: Any, key: str) -> str:
    """A hint for a text in the place of another kind: some keys have sizes as "64M", others bytes. A list's is not repeated: it
    may be a command with a secret."""
    if not isinstance(value, str):
        return ""
    sized = re.search("bytes|output", key) is not None or re.fullmatch("[0-9]{1,19}", value) is not None
    if isinstance(shape, shapes.IntType) and sized and (size := parse_size(value)) is not None:
        return f"write {size}, without quotes"
    if isinstance(shape, _LISTS) and isinstance(_bare(shape.item_type), shapes.StrType):
        return 'write `["..."]`'
    return ""


def _at(kind: type[msgspec.Struct], path: Sequence[str | int]) -> Any:
    """The type that msgspec expects at `path`, without what is said about it; None if that cannot be told."""
    try:
        shape: Any = shapes.type_info(kind)
    except Exception:  # annotations that msgspec cannot read
        return None
    for step in path:
        shape = _inside(shape, step)
    return _bare(shape)


def _bare(shape: Any) -> Any:
    while True:
        if isinstance(shape, shapes.Metadata):
            shape = shape.type
        elif isinstance(shape, shapes.UnionType):
            some = [each for each in shape.types if not isinstance(each, shapes.NoneType)]
            if len(some) != 1:
                return shape
            shape = some[0]
        else:
            return shape


def _inside(shape: Any, step: str | int) -> Any:
    shape = _bare(shape)
    if isinstance(shape, shapes.UnionType):
        found = (_inside(each, step) for each in shape.types)
        return next((each for each in found if each is not None), None)
    if isinstance(shape, shapes.StructType):
        return next((field.type for field in shape.fields if field.encode_name == step), None)
    if isinstance(shape, _LISTS):
        return shape.item_type if isinstance(step, int) else None
    if isinstance(shape, shapes.TupleType):
        return shape.item_types[step] if isinstance(step, int) and step < len(shape.item_types) else None
    return shape.value_type if isinstance(shape, shapes.DictType) else None


def _choices(shape: Any) -> list[str]:
    if isinstance(shape, shapes.UnionType):
        return [choice for each in shape.types for choice in _choices(each)]
    if isinstance(shape, shapes.LiteralType):
        return [value for value in shape.values if isinstance(value, str)]
    return [str(each.value) for each in shape.cls] if isinstance(shape, shapes.EnumType) else []


def _quoted(value: str) -> str:
    return msgspec.json.encode(value if len(value) <= 60 else value[:60] + "...").decode()


def _bounds(shape: Any) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = ((sign, getattr(shape, name, None)) for name, sign in signs.items())
    texts = [f"{sign} {bound if isinstance(bound, int) else f'{bound:g}'}" for sign, bound in found if bound is not None]
    return " " + " and ".join(texts) if texts else ""
