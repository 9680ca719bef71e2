"""agentfw.toml as operators are shown it: as TOML, without what may be a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

SECRET_WORDS = (
    "secret", "token", "pass", "key", "value", "authorization", "_auth", "credential", "cookie", "dsn", "argv", "parameters",
    "url", "basic",
)  # fmt: skip
"""Of a key with one of these in its name neither its value nor what is below it is shown. Programs are given secrets in their
arguments (`argv`), URLs have them in queries, and users of Basic authentication are keys at some APIs."""


def table_text(name: str, table: Mapping[str, Any]) -> str:
    """A table, a line a key. What may be a secret is taken out before (`masked()`)."""
    lines = [f"{key_text(key)} = {value_text(value)}\n" for key, value in table.items()]
    return f"[{key_text(name)}]\n{''.join(lines)}"


def key_text(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else value_text(name)


def value_text(value: Any) -> str:
    """A value as TOML writes it, in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key_text(key)} = {value_text(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if isinstance(value, str):
        return "".join(map(_letter, json.dumps(value, ensure_ascii=False)))
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _letter(letter: str) -> str:
    """TOML has no `\\x`, which is how what is not printable would be shown."""
    if letter.isprintable():
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 1 << 16 else f"\\U{ord(letter):08x}"


def masked(value: Any, secret: bool = False) -> Any:
    """What is in a file, with `***` for each text that may be secret."""
    if isinstance(value, dict):
        return {key: masked(item, secret or _may_be_secret(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, secret) for item in value]
    return "***" if secret and isinstance(value, str) else value


def _may_be_secret(key: str) -> bool:
    return any(word in key.lower() for word in SECRET_WORDS)
