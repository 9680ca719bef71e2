"""Paths of requests, for rules that name some: one reading, or none.

A server may decode a path twice, fold dots, slashes, cases and parameters, or none of that. So a path counts only if all of them
read it alike; any other is *ambiguous*, and refused where a rule depends on it (RFC 3986, 3.3 and 6.2.2; what servers do beyond).
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote_plus, unquote_to_bytes

from agentfw import Headers

_PATH = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,=:@-]|%[0-9A-Fa-f]{2})*)+\Z")  # pchar without ";"
_SPLITS = re.compile(r"%(?:2[Ff]|5[Cc]|3[Bb]|25|3[Ff]|23)")  # encoded / \ ; % ? #
_EDGES = re.compile(r"(?:\A|/)(?:\.+|[^/]*[. ]| [^/]*)(?=/|\Z)")  # "..", "name.", "name ", " name"

OVERRIDES = frozenset(
    {
        "x-http-method", "x-http-method-override", "x-method-override", "x-original-method", "x-original-uri", "x-original-url",
        "x-rewrite-url", "x-forwarded-uri", "x-forwarded-path", "x-forwarded-prefix", "x-forwarded-method", "x-script-name",
    }
)  # fmt: skip
"""Headers by which some servers take another method or path than the request line's."""
_OVERRIDING = re.compile(r"(?:\A|[&;?])\s*(_method|_httpmethod|x-http-method(?:-override)?)(?=[=&;\[\s]|\Z)", re.IGNORECASE)
"""Parameters of a query that do the same."""


def canonical_path(target: str) -> str | None:
    """The path of an origin-form target, decoded; "*" of OPTIONS as it is; None: ambiguous."""
    path = target.partition("?")[0]
    if path == "*":
        return path
    if not _PATH.match(path) or "//" in path:
        return None
    if "%" in path:
        if _SPLITS.search(path):
            return None
        try:
            path = unquote_to_bytes(path).decode()  # strict: an overlong or cut sequence reads differently elsewhere
        except UnicodeDecodeError:
            return None
        if not all(map(_plain, path)):
            return None
    return None if _EDGES.search(path) else path


def _plain(character: str) -> bool:
    """Nobody takes it for another one, for a separator, or for nothing."""
    if character.isascii():
        return character.isprintable()
    return unicodedata.category(character)[0] not in "CZ" and not any(
        c.isascii() for c in unicodedata.normalize("NFKC", character)
    )


def override(target: str, headers: Headers) -> str | None:
    """What in a request may make a server take another method or path for it: a header's or a parameter's name."""
    for name, _ in headers:
        if name.lower().replace("_", "-") in OVERRIDES:
            return f"header {name.lower()[:40]}"
    _, question, query = target.partition("?")
    if question:
        found = _OVERRIDING.search(unquote_plus(query))  # in one go: thousands of parameters are not worth a loop
        if found:
            return f"parameter {found[1].lower()}"
    return None


def folded(path: str) -> str:
    """For deny rules: servers that do not care about case must not be a way around them."""
    return unicodedata.normalize("NFC", path.casefold())


def parse_prefix(text: str) -> str:
    """A rule's path, decoded. ValueError if requests with it would be ambiguous."""
    if not text.startswith("/"):
        raise ValueError("a path begins with `/`")
    if "?" in text or "#" in text:
        raise ValueError("a path has no query")
    if "*" in text:
        raise ValueError("`*` is nothing special: `/v1` is also all that is below it (write `%2A` for a star)")
    quoted = "".join(c if c.isascii() and c != " " else "".join(f"%{byte:02X}" for byte in c.encode()) for c in text)
    found = canonical_path(quoted)
    if found is None:
        raise ValueError("servers read this path differently (`//`, `.`, `..`, `;`, `\\`, encoded separators)")
    return found


def below(path: str, prefix: str) -> bool:
    """`path` is `prefix`, or lies below it, by whole segments. With "/" at its end: only below."""
    if prefix.endswith("/"):
        return path.startswith(prefix)
    return path.startswith(prefix) and (len(path) == len(prefix) or path[len(prefix)] == "/")


def below_folded(path: str, prefix: str) -> bool:
    """For deny rules: both folded; a slash at the end of `prefix` does not count, and an extension (".json") does not help."""
    prefix = prefix.rstrip("/")
    return path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/", ".")
