"""The tables of agentfw.toml: of the Structs that they are decoded into."""

from __future__ import annotations

import re
from functools import cache

import msgspec
from agentfw.config import RunConfig
from agentfw.config_words import type_name
from agentfw.plugins.describe import _default, _field_docs, _table_in
from agentfw.plugins.discovery import available
from agentfw.plugins.limits import PluginsConfig
from agentfw.plugins.loading import plugin_class
from agentfw.pool.config import PoolConfig
from msgspec import inspect as shapes

from .markdown import Unknown, code, slug, table

Kind = type[msgspec.Struct]


@cache
def structs() -> dict[str, Kind]:
    """Dotted name -> Struct: "run", "pool.templates.NAME", "policy.rule[]". Each Struct once, where it is met first."""
    found: dict[str, Kind] = {}
    plugins = {name: plugin_class(name)[1] for name, info in sorted(available().items()) if info.origin.startswith("agentfw ")}
    tables = {name: kind.config_type for name, kind in plugins.items() if getattr(kind, "config_type", None)}
    for top, outermost in {"run": RunConfig, "pool": PoolConfig, "plugins": PluginsConfig, **tables}.items():
        waiting = [(top, outermost)]
        for name, kind in waiting:  # those next to the top first
            if kind not in found.values():
                found[name] = kind
                inner = ((field.encode_name, *_table_in(field.type)) for field in _fields(kind))
                waiting += [(f"{name}.{key}{suffix}", within) for key, within, suffix in inner if within is not None]
    return found


def _fields(kind: Kind) -> tuple[shapes.Field, ...]:
    return shapes.type_info(kind).fields  # type: ignore[attr-defined,no-any-return]


def heading(name: str) -> str:
    """As TOML writes it: [pool], [[policy.rule]]."""
    return f"[[{name[:-2]}]]" if name.endswith("[]") else f"[{name}]"


def named() -> list[str]:
    return list(structs())


def keys(name: str, own: str = "") -> str:
    """`own`: without those that it has of the Struct that it is derived from, which are named in one row."""
    if name not in structs():
        raise Unknown(f"no table `{name}` (there are {', '.join(structs())})")
    kind = structs()[name]
    docs = _field_docs(kind)
    above = {field.encode_name for base in kind.__mro__[1:-1] if base is not msgspec.Struct for field in _inherited(base)}
    rows = []
    for field in _fields(kind):
        if own and field.encode_name in above:
            continue
        default = _default(field)
        text = docs.get(field.name, "")
        if not text:
            raise Unknown(f"{kind.__module__}.{kind.__name__}.{field.name} has no text under it that says what it means")
        rows.append((code(field.encode_name), _type(field.type), _shown(default), text))
    if own and above:
        rows.append((", ".join(code(key) for key in _ordered(kind, above)), "", "", f"as in [{own}]"))
    return table(("key", "type", "default", "meaning"), rows)


def _inherited(base: type) -> tuple[shapes.Field, ...]:
    return _fields(base) if issubclass(base, msgspec.Struct) and base.__struct_fields__ else ()


def _ordered(kind: Kind, names: set[str]) -> list[str]:
    return [field.encode_name for field in _fields(kind) if field.encode_name in names]


def _type(shape: object) -> str:
    inner, suffix = _table_in(shape)
    text = type_name(shape).replace(" | ", " or ")
    text = re.sub(r" >= (\S+) and <= (\S+)", r", \1 to \2", text)
    text = re.sub(r" > 0 and <= (\S+)", r", more than 0 and at most \1", text)
    text = re.sub(r" >= (\S+)", r", at least \1", text)
    if inner is not None:
        where = next(name for name, kind in structs().items() if kind is inner)
        place = f"[{heading(where).replace('[', chr(92) + '[').replace(']', chr(92) + ']')}](#{slug(heading(where))})"
        text = {"[]": f"list of tables {place}", ".NAME": f"tables by name {place}"}.get(suffix, f"table {place}")
    return text


def _shown(default: str | None) -> str:
    if default is None:
        return "must be given"
    if default in ("", "null", "[]", "{}", '""'):
        return ""
    number = int(default) if default.isdigit() else 0
    size = f" ({number >> 20} MiB)" if number >= 1 << 20 and not number % (1 << 20) else ""
    return code(default.replace('","', '", "')) + size


def index() -> str:
    """The tables that stand at the file's outermost, and what they are about."""
    rows = []
    for name, kind in structs().items():
        if "." not in name:
            text = (kind.__doc__ or "").strip().partition("\n\n")[0]
            text = re.sub(r"^(The table|Table)( \[\w+\])?( of agentfw\.toml)?[.:]? *", "", " ".join(text.split()))
            rows.append((f"[\\[{name}\\]](#{slug(name)})", _first_sentence(text)))
    return table(("table", "what it says"), rows)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.) ", text)[0]
