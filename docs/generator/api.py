"""The control API: of its routes and of its OpenAPI document."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
from agentfw.plugins.describe import _field_docs
from agentfw.pool.routes import ROUTES, Route, openapi
from agentfw.pool.wire import ERRORS

from .markdown import code, slug, table

ALWAYS = {"unauthorized", "forbidden", "unavailable", "internal"}


def operations() -> str:
    rows = []
    for route in ROUTES:
        rows.append((code(f"{route.method} {route.path}"), route.summary, _asks(route), _answers(route),
                     ", ".join(code(name) for name in route.errors)))  # fmt: skip
    return table(("request", "", "parameters, body", "answer", "errors besides"), rows)


def _asks(route: Route) -> str:
    words = []
    if route.query is not None:
        words.append(", ".join(code(name) for name in route.query.__struct_fields__))
    if getattr(route, "free_query", False):
        words.append("any")
    if route.body is bytes:
        words.append("body: bytes as they come")
    elif route.body is not None:
        words.append(f"body: {_named(route.body)}" + (", or none" if route.optional_body else ""))
    return "; ".join(words)


def _answers(route: Route) -> str:
    if route.answer is None:
        return str(route.status)
    text = f"{route.status}, {_named(route.answer)}"
    return text + " a line" if route.lines else text


def _named(kind: Any) -> str:
    name = getattr(kind, "__name__", "")
    return f"[{name}](#{slug(name)})" if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else "JSON"


def errors() -> str:
    return table(("code", "status", "meaning"), ((code(name), str(status), text) for name, (status, text) in ERRORS.items()))


def schemas() -> str:
    """Each Struct of requests and answers with its fields, in the document's order."""
    document = openapi()["components"]["schemas"]
    kinds = _kinds()
    parts = []
    for query in (route.query for route in ROUTES if route.query is not None):
        document.setdefault(query.__name__, {"properties": _properties(query)})
        kinds[query.__name__] = query
    for name, schema in sorted(document.items()):
        kind = kinds.get(name)
        if kind is None or "properties" not in schema:
            continue
        docs = _field_docs(kind)
        text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        rows = [
            (code(field), _type(part), _default(part, field in schema.get("required", ())), docs.get(field, ""))
            for field, part in schema["properties"].items()
        ]
        generic = text.startswith(f"{name}(") or not kind.__doc__
        parts.append(
            "\n\n".join(filter(None, [f"### {name}", "" if generic else text, table(("field", "type", "default", ""), rows)]))
        )
    return "\n\n".join(parts)


def _properties(query: type[msgspec.Struct]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.schema_components([query])[1][query.__name__]["properties"]
    return found


def _kinds() -> dict[str, type[msgspec.Struct]]:
    from agentfw.pool import jobs, wire

    return {
        name: value
        for module in (jobs, wire)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
    }


def _type(part: dict[str, Any]) -> str:
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{slug(name)})"
    if "anyOf" in part:
        return " or ".join(_type(each) for each in part["anyOf"])
    if "enum" in part:
        return " or ".join(code(msgspec.json.encode(value).decode()) for value in part["enum"])
    kind = str(part.get("type", "any"))
    if kind == "array":
        return f"list of {_type(part.get('items', {}))}"
    if kind == "object":
        inner = part.get("additionalProperties")
        return f"object of {_type(inner)}" if isinstance(inner, dict) and inner else "object"
    if part.get("contentEncoding") == "base64":
        return "base64"
    low, high = part.get("minimum", part.get("exclusiveMinimum")), part.get("maximum")
    if low is not None and high is not None:
        kind += f", {'more than ' if 'exclusiveMinimum' in part else ''}{low} to {high}"
    if "maxLength" in part:
        kind += f", at most {part['maxLength']} characters"
    return kind


def _default(part: dict[str, Any], required: bool) -> str:
    if required:
        return "required"
    if "default" not in part or part["default"] in ("", [], {}):
        return ""
    return code(msgspec.json.encode(part["default"]).decode())
