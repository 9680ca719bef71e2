"""Lines on their way to the writer: those of one turn of the loop are encoded, counted against their agents' shares and looked
into for secrets all at once. (Most are told of many at once, too: `later_hooks`.)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from agentfw.errors import AgentfwError
from agentfw.plugins import PluginManager
from agentfw.reports import shown

from .config import Config
from .lines import DroppedLine, Line
from .shares import Shares
from .writer import Writer

LINES = 256
"""That wait, at most."""
LINES_BYTES = 256 << 10
"""Of those that are looked into at once, about."""


class Outgoing:
    """Belongs to a loop. Nothing that it is given makes it raise."""

    def __init__(self, config: Config, writer: Writer, plugins: PluginManager, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self._writer = writer
        self._plugins = plugins
        self._loop = loop
        self._encoder = msgspec.json.Encoder()
        self._lines: list[Line | Mapping[str, Any]] = []
        self._whose: list[tuple[str, str] | None] = []
        """Of each line, whose share it takes of: an agent's id, and its name."""
        self._shares = Shares(self._withheld)

    @property
    def withheld(self) -> int:
        return self._shares.withheld

    def put(self, line: Line | Mapping[str, Any], limited: str = "", name: str = "") -> None:
        """`limited`: the agent whose share it takes of; "": it is written in any case."""
        if not self._lines:
            self._loop.call_soon(self.send)
        self._lines.append(line)
        self._whose.append((limited, name) if limited else None)
        if len(self._lines) >= LINES:
            self.send()

    def forget(self, agent: str) -> None:
        """It has ended."""
        self.send()
        self._shares.forget(agent)

    def end(self) -> None:
        """Nothing comes any more."""
        self.send()
        self._shares.end()
        self.send()

    def send(self) -> None:
        """Give the writer what waits, without secrets."""
        lines, self._lines = self._lines, []
        whose, self._whose = self._whose, []
        if not lines:
            return
        encoded = self._encoded(lines)
        rate, burst = self.config.agent_bytes_per_second, self.config.agent_burst
        now, admit = time.monotonic(), self._shares.admit
        encoded = [
            line
            for line, who in zip(encoded, whose, strict=True)
            if who is None or admit(who[0], who[1], len(line), rate, burst, now)
        ]
        if self._plugins.implemented("redact"):
            for some in _in_parts(encoded):
                self._writer.put(self._seen(some))
        else:
            self._writer.put(encoded)

    def _encoded(self, lines: Sequence[Line | Mapping[str, Any]]) -> list[bytes]:
        try:
            return self._encoder.encode_lines(lines).split(b"\n")[:-1]  # JSON has no end of a line within
        except Exception:
            return [self._alone(line) for line in lines]

    def _alone(self, line: Line | Mapping[str, Any]) -> bytes:
        """Of one that cannot be written is told that it was."""
        try:
            return self._encoder.encode(line)
        except Exception as error:  # half of a surrogate pair, in a text that nobody made fit to be shown
            return self._dropped(f"it cannot be written as JSON: {type(error).__name__}")

    def _seen(self, lines: list[bytes]) -> list[bytes]:
        """Without secrets: names, paths and labels are anybody's words. PERF: one search in many lines takes little more than one
        in one line."""
        text = b"\n".join(lines)
        try:
            found = self._plugins.redact(text)
        except AgentfwError:  # of one line, maybe: that one is left out
            found = b""
        if found is text:
            return lines
        seen: list[bytes | None] = [*found.split(b"\n")]
        if len(seen) != len(lines):
            seen = [None] * len(lines)
        return [line if masked == line else self._redacted(line) for line, masked in zip(lines, seen, strict=True)]

    def _redacted(self, line: bytes) -> bytes:
        """Of one that cannot be looked into is told that it was."""
        reason = "what must not be written stood across its fields"
        try:
            found = self._plugins.redact(line)
            if found is not line:
                msgspec.json.decode(found)
            return found
        except AgentfwError as error:
            reason = shown(str(error))
        except ValueError:
            pass
        return self._dropped(reason)

    def _dropped(self, reason: str) -> bytes:
        return self._encoder.encode(DroppedLine(time=time.time(), event="dropped", lines=1, reason=reason))

    def _withheld(self, agent: str, name: str, lines: int) -> None:
        """Of one agent (or client of the pool) that caused more than its share."""
        reason = "more of this agent than agent_bytes_per_second"
        self.put(DroppedLine(time=time.time(), event="dropped", agent_id=agent, agent=name, lines=lines, reason=reason))


def _in_parts(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Each of LINES_BYTES, or a line."""
    begin = size = 0
    for at, line in enumerate(lines):
        if size and size + len(line) > LINES_BYTES:
            yield lines[begin:at]
            begin, size = at, 0
        size += len(line)
    if begin < len(lines):
        yield lines[begin:]
