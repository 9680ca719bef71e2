"""What is masked by its name, whoever's it is: an agent's own credential is none of a capture's business either.

What `credentials` knows, wherever it stands, is masked besides by the hook `redact`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_plus

MASKED = "(masked)"
_HEADER = re.compile(
    r"authorization|cookie|token|secret|password|passwd|credential|api[-_]?key|access[-_]?key|session|signature|csrf|x-auth|-key\Z",
    re.IGNORECASE,
)
_PARAMETER = re.compile(
    r"(?:.*[-_.])?(?:key|api_?key|token|access_?token|refresh_?token|id_?token|secret|client_?secret|password|passwd|pwd|sig|signature|"
    r"auth|code|session|session_?id|credential|assertion)\Z",
    re.IGNORECASE,
)
_LIMITS = ("x-ratelimit-", "anthropic-ratelimit-")
"""Headers that count tokens of models: numbers, and no secrets."""
_PLACEHOLDER = "placeholder"
"""A value with this in it is shown: what agents are given instead of a key has it."""


def header(name: str, value: str) -> str:
    """The value as it is shown."""
    if not _HEADER.search(name) or not value:
        return value
    lower = name.lower()
    if lower.startswith(_LIMITS) and value.isascii() and value.isdigit() and len(value) <= 12:
        return value
    if "cookie" in lower:
        return MASKED
    if _PLACEHOLDER in value.lower() and len(value) <= 128:
        return value
    scheme, blank, _ = value.partition(" ")
    return f"{scheme} {MASKED}" if blank and "authorization" in lower and scheme.isalnum() and len(scheme) <= 16 else MASKED


def cookie_names(values: Iterable[str], *, set_: bool) -> list[str]:
    """Of the headers Cookie, or Set-Cookie."""
    found = []
    for value in values:
        for part in value.split(";")[: 1 if set_ else None]:
            name, equals, _ = part.partition("=")
            if equals and name.strip():
                found.append(name.strip())
    return found


def query(text: str) -> str:
    """What is behind a `?`, or a form: with the values of parameters masked that carry credentials."""
    return "&".join(_parameter(part) for part in text.split("&"))


def _parameter(part: str) -> str:
    name, equals, value = part.partition("=")
    if not equals or not value or not _PARAMETER.match(unquote_plus(name)) or _PLACEHOLDER in value.lower():
        return part
    return f"{name}={MASKED}"


def target(text: str) -> str:
    path, mark, rest = text.partition("?")
    return f"{path}?{query(rest)}" if mark else text


def pairs(text: str) -> list[tuple[str, str]]:
    """Of a query that was masked: names and values, decoded."""
    found = []
    for part in text.split("&") if text else ():
        name, _, value = part.partition("=")
        found.append((unquote_plus(name), unquote_plus(value)))
    return found
