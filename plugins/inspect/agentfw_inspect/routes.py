"""Which requests are calls of a model: by host and path. Paths are read as servers read them, in every spelling.

    api.openai.com/v1/chat/completions, completions, responses, embeddings
    api.anthropic.com/v1/messages
    generativelanguage.googleapis.com/v1beta/models/NAME:generateContent, streamGenerateContent, embedContent,
        batchEmbedContents
    REGION-aiplatform.googleapis.com/.../publishers/google|anthropic/models/NAME:...
    NAME.openai.azure.com/openai/deployments/NAME/chat/completions, ...

and the operator's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from agentfw import ConfigError, Destination
from agentfw.destination import parse_authority, parse_host

from .config import RouteConfig

MAX_HOSTS = 1024
"""Hosts whose routes are remembered; when there are more, all are looked up anew."""
MAX_MATCHED, MAX_TARGET = 512, 512
"""Requests likewise, and characters of such a one's target."""

_OPENAI = re.compile(
    r"(?:.*?/deployments/(?P<model>[^/]+)|.*?)/(?P<what>chat/completions|completions|responses|embeddings)\Z", re.I
)
_ANTHROPIC = re.compile(r".*/(?P<what>messages)\Z", re.I)
_GEMINI = re.compile(
    r".*/(?:models|tunedmodels|endpoints)/(?P<model>[^/:]+)"
    r":(?P<what>generatecontent|streamgeneratecontent|embedcontent|batchembedcontents)\Z",
    re.I,
)
_VERTEX = re.compile(r".*/anthropic/models/(?P<model>[^/:]+):(?P<what>rawpredict|streamrawpredict)\Z", re.I)
_OPERATIONS = {
    "chat/completions": "chat",
    "completions": "completion",
    "responses": "response",
    "embeddings": "embedding",
    "messages": "message",
    "rawpredict": "message",
    "streamrawpredict": "message",
    "generatecontent": "generate",
    "streamgeneratecontent": "generate",
    "embedcontent": "embedding",
    "batchembedcontents": "embedding",
}
_PATHS = {"openai": _OPENAI, "anthropic": _ANTHROPIC, "gemini": _GEMINI}
_PLAIN = re.compile(r"/[A-Za-z0-9_:@~-]+(?:/[A-Za-z0-9_:@~-]+(?:\.[A-Za-z0-9_:@~.-]+)?)*\Z")


@dataclass(frozen=True, slots=True)
class Recognised:
    """A call. `model`: what the path says, or ""; `pieces`: its answer streams as a JSON array, not as events."""

    provider: str
    operation: str
    model: str
    pieces: bool
    place: str = ""
    """The destination, as text."""


@dataclass(frozen=True, slots=True)
class _Route:
    provider: str
    pattern: re.Pattern[str]
    prefix: str = "/"
    port: int | None = None


# (host, or "*" and its end; provider; pattern)
_BUILT_IN = (
    ("api.openai.com", "openai", _OPENAI),
    ("*.api.openai.com", "openai", _OPENAI),
    ("api.anthropic.com", "anthropic", _ANTHROPIC),
    ("generativelanguage.googleapis.com", "gemini", _GEMINI),
    ("generativelanguage.googleapis.com", "openai", _OPENAI),
    ("aiplatform.googleapis.com", "gemini", _GEMINI),
    ("aiplatform.googleapis.com", "anthropic", _VERTEX),
    ("aiplatform.googleapis.com", "openai", _OPENAI),
    ("*-aiplatform.googleapis.com", "gemini", _GEMINI),
    ("*-aiplatform.googleapis.com", "anthropic", _VERTEX),
    ("*-aiplatform.googleapis.com", "openai", _OPENAI),
    ("*.openai.azure.com", "openai", _OPENAI),
    ("*.cognitiveservices.azure.com", "openai", _OPENAI),
    ("*.services.ai.azure.com", "openai", _OPENAI),
    ("*.services.ai.azure.com", "anthropic", _ANTHROPIC),
)


class Routes:
    """The built-in ones and `configured`. ConfigError (key within [inspect]) if one of those makes no sense."""

    def __init__(self, configured: Iterable[RouteConfig] = ()) -> None:
        self._exact: dict[str, list[_Route]] = {}
        self._below: list[tuple[str, _Route]] = []
        self._known: dict[str, tuple[_Route, ...]] = {}
        self._matched: dict[tuple[Destination, str, str], Recognised | None] = {}
        for i, route in enumerate(configured):
            try:
                self._add(*_parsed(route))
            except ValueError as error:
                raise ConfigError(f"route.{i}.host", str(error)) from None
            if not route.path.startswith("/") or any(c in route.path for c in "?#%*"):
                raise ConfigError(f"route.{i}.path", "must begin with `/` and have no `?`, `#`, `%` or `*`")
        for host, provider, pattern in _BUILT_IN:
            self._add(host, _Route(provider, pattern))

    def _add(self, host: str, route: _Route) -> None:
        if host.startswith("*"):
            self._below.append((host[1:], route))
        else:
            self._exact.setdefault(host, []).append(route)

    def _of(self, destination: Destination) -> tuple[_Route, ...]:
        host = destination.host
        found = self._known.get(host)
        if found is None:
            ends = [route for end, route in self._below if host.endswith(end) and len(host) > len(end)]
            found = (*self._exact.get(host, ()), *ends)
            if len(self._known) >= MAX_HOSTS:
                self._known.clear()
            self._known[host] = found
        return found

    def covers(self, destination: Destination) -> bool:
        """Models are called there."""
        return any(route.port in (None, destination.port) for route in self._of(destination))

    def match(self, destination: Destination, method: str, target: str) -> Recognised | None:
        """The call that this request is."""
        key = (destination, method, target)
        try:
            return self._matched[key]  # agents ask the same again and again
        except KeyError:
            found = self._match(destination, method, target)
        if len(target) <= MAX_TARGET:
            if len(self._matched) >= MAX_MATCHED:
                self._matched.clear()
            self._matched[key] = found
        return found

    def _match(self, destination: Destination, method: str, target: str) -> Recognised | None:
        routes = self._of(destination)
        if not routes or method.upper() != "POST":
            return None
        path, _, query = target.partition("?")
        if not _PLAIN.match(path):
            path = normal_path(path)
        for route in routes:
            if route.port not in (None, destination.port) or not _begins(path, route.prefix):
                continue
            found = route.pattern.match(path)
            if found is not None:
                what = found["what"].lower()
                pieces = what == "streamgeneratecontent" and "alt=sse" not in unquote(query).lower().split("&")
                model = found["model"] if "model" in route.pattern.groupindex else None
                return Recognised(route.provider, _OPERATIONS[what], (model or "")[:128], pieces, str(destination))
        return None


def _begins(path: str, prefix: str) -> bool:
    return prefix == "/" or path.lower().startswith(prefix)


def _parsed(route: RouteConfig) -> tuple[str, _Route]:
    below = route.host.startswith("*.")
    text = route.host[2:] if below else route.host
    host, number = parse_authority(text, 0) if ":" in text else (parse_host(text), 0)
    prefix = route.path.rstrip("/").lower() + "/"
    return ("*." if below else "") + host, _Route(route.provider, _PATHS[route.provider], prefix, number or None)


def normal_path(path: str) -> str:
    """As a server reads it: escapes undone, "." and ".." resolved, slashes once, none at the end."""
    parts: list[str] = []
    for part in unquote(path, errors="replace").replace("\\", "/").split("/"):
        name = part.partition(";")[0]  # of matrix parameters (RFC 3986 section 3.3)
        if name == "..":
            del parts[-1:]
        elif name not in ("", "."):
            parts.append(name)
    return "/" + "/".join(parts)
