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
    r"(?:.*[-_.])?(?:key|pwd|sig|auth|code|session|jwt|sid)\Z"
    r"|.*(?:token|secret|password|passwd|signature|credentials?|assertion|session_?id|(?:api|access|secret|private|auth)_?key)\Z",
    re.IGNORECASE | re.DOTALL,
)
_PASSWORD = re.compile(r"(?<=://)([^/?#\s:]*):[^/?#\s]*@")
_WORD = re.compile(r"[^\s\"'<>]+")
_PROTOCOL = re.compile(r"key|token|bearer|auth|secret|jwt|credential", re.IGNORECASE)
_FIELD = re.compile(rb"""^content-disposition:[^\r\n]*?[;\s]name="?([^";\r\n]*)""", re.IGNORECASE | re.MULTILINE)
LONGEST_NAME = 64
"""Characters of a parameter's that are looked at."""
LONGEST_PROTOCOL = 48
"""Characters of the name of a WebSocket's protocol; longer ones are none."""
_LIMITS = ("x-ratelimit-", "anthropic-ratelimit-")
"""Headers that count tokens of models: numbers, and no secrets."""
_PLACEHOLDER = "placeholder"
"""A value with this in it is shown: what agents are given instead of a key has it."""


def header(name: str, value: str) -> str:
    """The value as it is shown."""
    lower = name.lower()
    if lower == "sec-websocket-protocol":
        return _protocols(value)
    if not _HEADER.search(name) or not value:
        return _WORD.sub(lambda word: target(word[0]), value) if "?" in value or "#" in value or "://" in value else value
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
    if not equals or not value or not _carries(unquote_plus(name)) or _PLACEHOLDER in value.lower():
        return part
    return f"{name}={MASKED}"


def _carries(name: str) -> bool:
    """A credential is in what has this name. Its end says so, and a long one would take long."""
    return _PARAMETER.match(name[-LONGEST_NAME:]) is not None


def target(text: str) -> str:
    """A URL, or the end of one. What is behind a `#` is as what is behind a `?`: some servers give tokens there."""
    whole, mark, fragment = text.partition("#")
    path, asked, rest = whole.partition("?")
    path = _PASSWORD.sub(rf"\1:{MASKED}@", path) if "@" in path else path
    return f"{path}{asked}{query(rest)}{mark}{query(fragment)}"


def _protocols(value: str) -> str:
    """A browser's WebSocket has no other header to put a key into: "openai-insecure-api-key.KEY", "bearer, TOKEN"."""
    found, next_too = [], False
    for text in map(str.strip, value.split(",")):
        carries = _PROTOCOL.search(text)
        dot = text.find(".", carries.end()) + 1 if carries is not None else 0
        secret = text[dot:]
        if _PLACEHOLDER in secret.lower() and len(text) <= 128:
            found.append(text)
        elif next_too or (carries is None and (len(text) > LONGEST_PROTOCOL or text.startswith("eyJ"))):
            found.append(MASKED)
        else:
            found.append(text[:dot] + MASKED if dot and secret else text)
        next_too = carries is not None and not dot
    return ", ".join(found)


def form(data: bytes, kind: str) -> bytes:
    """A body of this `Content-Type`: if it is a form, with the values of fields masked that carry credentials."""
    media, _, parameters = kind.partition(";")
    media = media.strip().lower()
    if media == "application/x-www-form-urlencoded":
        return query(data.decode("latin-1")).encode("latin-1")
    if media != "multipart/form-data":
        return data
    found = re.search(r"""boundary="?([^";\s]+)""", parameters, re.IGNORECASE)
    line = b"\r\n--" + (found[1].encode("latin-1") if found is not None else b"")
    return line.join(map(_field, data.split(line)))


def _field(part: bytes) -> bytes:
    head, blank, value = part.partition(b"\r\n\r\n")
    name = _FIELD.search(head)
    if not blank or name is None or not _carries(name[1].decode("latin-1")) or _PLACEHOLDER.encode() in value.lower():
        return part
    return head + blank + MASKED.encode()


def pairs(text: str) -> list[tuple[str, str]]:
    """Of a query that was masked: names and values, decoded."""
    found = []
    for part in text.split("&") if text else ():
        name, _, value = part.partition("=")
        found.append((unquote_plus(name), unquote_plus(value)))
    return found
