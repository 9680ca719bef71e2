"""Whose requests are looked at: those of our own page, and of programs. A web page of somebody else gets nothing, whatever cookie
its browser would add, and whatever its name resolves to.

- `Host` must be a numeric address of this listener, `localhost`, or a configured name: a page whose name was made to resolve to
  us (DNS rebinding) says its own.
- `Origin`, where there is one, must be what `Host` says; `null` is nobody.
- `Sec-Fetch-Site` (W3C Fetch Metadata) must be "same-origin" or "none"; "same-site" is another port of this host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import urlsplit

from agentfw.pool.jobs import PoolError

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_-][a-z0-9._-]{0,252})(?::([0-9]{1,5}))?\Z")
DEFAULT_PORTS = {"http": "80", "https": "443"}

Arrival = Literal["own", "navigation"]
"""How a request came: from our own page or from no page at all; or by following another page's link to a page of ours."""


class Headers(Protocol):
    """A request's, as aiohttp has them."""

    def getall(self, key: str, default: list[str]) -> list[str]: ...

    def get(self, key: str) -> str | None: ...


@dataclass(frozen=True)
class Door:
    """`names`: names that the page is known by, besides "localhost"; `url`: where a proxy serves it, "https://dash.example"."""

    names: frozenset[str] = frozenset()
    url: str = ""

    @classmethod
    def of(cls, names: Iterable[str] = (), url: str = "") -> Door:
        outer = urlsplit(url).hostname if url else None
        return cls(frozenset(name.lower() for name in (*names, *([outer] if outer else []))), url.lower().rstrip("/"))

    def is_secure(self, host: str) -> bool:
        """Whoever names this host has come by HTTPS: it is that of the proxy before us."""
        found = urlsplit(self.url)
        return found.scheme == "https" and host.lower().removesuffix(":443") == found.netloc.removesuffix(":443")

    def check(self, headers: Headers, address: str, *, page: bool = False) -> Arrival:
        """PoolError "forbidden". `address`: the numeric one that the request came to; `page`: it is for a page of ours, which
        people may follow a link to: nothing in it is anybody's secret."""
        host = self._host(headers, address)
        origins = headers.getall("Origin", [])
        if origins and (len(origins) > 1 or not self._is_own(origins[0].lower(), host)):
            raise PoolError("forbidden", "requests of other web pages are refused")
        site = headers.getall("Sec-Fetch-Site", ["none"])
        if site in (["none"], ["same-origin"]):
            return "own"
        if page and headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document" and not origins:
            return "navigation"
        raise PoolError("forbidden", "requests of other web pages are refused")

    def _host(self, headers: Headers, address: str) -> str:
        """`Host`, lower case. PoolError."""
        given = headers.getall("Host", [])
        found = _HOST.match(given[0].lower()) if len(given) == 1 else None
        if found is None or not self._answers_to(found[1], address):
            raise PoolError("forbidden", "the dashboard is not known by the name in `Host`", "see [dashboard] `names` and `url`")
        return found[0]

    def _answers_to(self, name: str, address: str) -> bool:
        if name == "localhost" or name in self.names:
            return True
        try:
            numeric = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
            own = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(own, "ipv4_mapped", None)
        return numeric.is_loopback or numeric == (mapped or own)

    def _is_own(self, origin: str, host: str) -> bool:
        scheme, _, rest = origin.partition("://")
        if scheme not in DEFAULT_PORTS:
            return False
        port = f":{DEFAULT_PORTS[scheme]}"
        if rest.removesuffix(port) != host.removesuffix(port):
            return False
        return scheme == "http" or (self.url.startswith("https:") and origin.removesuffix(port) == self.url.removesuffix(port))


def bearer(headers: Headers) -> str | None:
    """The token of `Authorization: Bearer`; "" for another scheme, None without the field."""
    given = headers.get("Authorization")
    if given is None:
        return None
    scheme, _, token = given.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
