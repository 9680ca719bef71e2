"""Hosts in what proxies tell a server about the request that they got: an agent is no proxy, and some servers believe it."""

from __future__ import annotations

import re

from ..http1 import Headers

_NAMING = frozenset({"x-forwarded-host", "x-host", "x-http-host-override", "x-original-host", "x-real-host"})
_FORWARDED = re.compile(r"""(?:\A|[;,])\s*host\s*=\s*"?([^";,\s]*)""", re.IGNORECASE)
"""RFC 7239, 5.3."""


def also_named(headers: Headers) -> list[str]:
    """What such headers name, as it stands there. Servers behind CGI and WSGI take `_` for `-`."""
    found: list[str] = []
    for name, value in headers:
        plain = name.lower().replace("_", "-")
        if plain in _NAMING:
            found += [part for part in (part.strip(" \t") for part in value.split(",")) if part]
        elif plain == "forwarded":
            found += _FORWARDED.findall(value)
    return found
