"""What the heads of a call say of it: how bodies are encoded, and how much more may be asked for."""

from __future__ import annotations

from agentfw import Headers
from agentfw.reports import shown

MOST_LIMITS = 32
"""Headers of one response that are kept."""
NAME, VALUE = 64, 128
"""Characters of one such that are."""
_LIMITS = ("x-ratelimit-", "anthropic-ratelimit-", "retry-after", "x-should-retry")
_BODY = frozenset({"content-type", "content-encoding"})
_CODINGS = frozenset({"content-encoding", "accept-encoding"})


class _Of(dict[str, str]):
    """Of names of headers in lower case, what is to be done about them: "limit", "body", or "". PERF: each server says the same
    names again and again."""

    MOST = 1024

    def __missing__(self, name: str) -> str:
        found = "limit" if name.startswith(_LIMITS) else "body" if name in _BODY else ""
        if len(self) < self.MOST and len(name) <= NAME:
            self[name] = found
        return found


_of_response = _Of()


def of_request(headers: Headers) -> tuple[bool, tuple[str, ...]]:
    """Whether the body can be read as it is, and the values of `Accept-Encoding`."""
    readable, accepted = True, []
    for name, value in headers.among(_CODINGS):
        if name == "accept-encoding":
            accepted.append(value)
        elif value.lower() != "identity":
            readable = False
    return readable, tuple(accepted)


def of_response(headers: Headers) -> tuple[bool, dict[str, str]]:
    """Whether the body is plain JSON, and the headers about rates, names in lower case."""
    json = other = False
    limits: dict[str, str] = {}
    for name, value in headers.picked(_of_response):
        if name == "content-type" and not json and value.startswith("application/json"):
            json = True
        elif name in _BODY:
            other = True
        elif len(limits) < MOST_LIMITS:
            good = len(name) <= NAME and len(value) <= VALUE and value.isascii() and value.isprintable()
            limits[name if good else name[:NAME]] = value if good else shown(value, VALUE)
    return json and not other, limits
