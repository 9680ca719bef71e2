"""An inspector: looks for words in what servers send, as it streams.

    [leak_watch]
    words = ["BEGIN PRIVATE KEY", "internal only"]
    hosts = ["api.example.com"]         # default: all
    block = true                        # break the response off; default: only say so

A word that is cut in two by the network is found as well: as many bytes as the longest word has are kept of each response, and no
more, however long it is. Each find is counted, and told to `audit` plugins.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Annotated

import msgspec
from agentfw import Agent, ConfigError, Denied, Destination, RequestHead, ResponseHead, hookimpl
from agentfw.destination import parse_host
from agentfw.reports import AuditEvent
from agentfw.runtime import Runtime

MOST_WORDS = 256


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [leak_watch]."""

    words: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MOST_WORDS)]
    hosts: tuple[str, ...] = ()
    block: bool = False


class Plugin:
    """See the module."""

    name = "leak_watch"
    api = "1"
    config_type = Config

    def __init__(self, config: Config) -> None:
        if not all(config.words):
            raise ConfigError(f"words.{config.words.index('')}", "is empty")
        try:
            self._hosts = frozenset(map(parse_host, config.hosts))
        except ValueError as error:
            raise ConfigError("hosts", str(error)) from None
        words = [word.encode() for word in config.words]
        self._pattern = re.compile(b"|".join(map(re.escape, sorted(words, key=len, reverse=True))))
        self._overlap = max(map(len, words)) - 1
        self._block = config.block
        self._runtime: Runtime | None = None
        self._counters = Counter({"responses": 0, "bytes": 0, "found": 0, "not_read": 0})

    @hookimpl
    def start(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @hookimpl(trylast=True)
    def request(self, destination: Destination, head: RequestHead) -> None:
        if self._watched(destination):
            head.headers.set("Accept-Encoding", "identity")  # compressed, nothing would be found

    @hookimpl
    def response(self, agent: Agent, destination: Destination, head: ResponseHead) -> None:
        if not self._watched(destination):
            return
        self._counters["responses"] += 1
        if head.headers.tokens("content-encoding") not in ([], ["identity"]):
            self._counters["not_read"] += 1
            if self._block:
                raise Denied("leak_watch", "the response is compressed, though it was not to be")
        else:
            head.transforms.append(self._watch(agent, destination))

    def _watched(self, destination: Destination) -> bool:
        return not self._hosts or destination.host in self._hosts

    def _watch(self, agent: Agent, destination: Destination) -> Callable[[bytes, bool], bytes]:
        """A transform for one response: each piece goes on as it came, at once."""
        tail = b""

        def look(piece: bytes, last: bool) -> bytes:
            nonlocal tail
            self._counters["bytes"] += len(piece)
            seen = tail + piece
            kept = 0
            for match in self._pattern.finditer(seen):
                kept = match.end()  # what was found once is not found again in the next piece
                self._found(agent, destination, match[0].decode())
            tail = seen[max(kept, len(seen) - self._overlap) :] if self._overlap else b""
            return piece

        look.same_length = True  # type: ignore[attr-defined]  # so that a Content-Length stays
        return look

    def _found(self, agent: Agent, destination: Destination, word: str) -> None:
        self._counters["found"] += 1
        if self._runtime is not None:
            self._runtime.audit(AuditEvent.about("leak", agent, destination, rule=f"leak_watch: {word}", plugin=self.name))
        if self._block:
            raise Denied(f"leak_watch: {word}", f"{destination.host} sent what it should not have", self.name)

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return dict(self._counters)
