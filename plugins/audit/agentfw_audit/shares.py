"""What each agent may have written: one that has itself refused ten thousand times a second must not push out what the log says
of others, nor what it says of that agent from before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MAX_AGENTS = 4096
TELL = 1.0
"""Seconds between two lines that tell of the same agent's missing ones."""

Tell = Callable[[str, str, int], None]
"""(agent's id, its name, how many lines of its are missing)"""


class _Share:
    __slots__ = ("filled", "left", "missing", "name", "told")

    def __init__(self, name: str, left: float, now: float) -> None:
        self.name = name
        self.left = left
        self.filled = now
        self.missing = 0
        self.told = float("-inf")


class Shares:
    """Token buckets, of bytes."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._shares: OrderedDict[str, _Share] = OrderedDict()
        self.withheld = 0

    def admit(self, agent: str, name: str, size: int, rate: int, burst: int, now: float) -> bool:
        """Whether a line of `size` bytes about this agent may be written. `now` in seconds, monotonic."""
        share = self._shares.get(agent)
        if share is None:
            share = self._shares[agent] = _Share(name, burst, now)
            if len(self._shares) > MAX_AGENTS:
                self.forget(next(iter(self._shares)))
        self._shares.move_to_end(agent)
        if now != share.filled or share.left > burst:  # PERF: of lines that go out together the first fills it; or a reload did
            share.left = min(burst, share.left + (now - share.filled) * rate)
            share.filled = now
        if share.missing and now - share.told >= TELL:
            self._about(agent, share)
            share.told = now
        if size > share.left:
            share.missing += 1
            self.withheld += 1
            return False
        share.left -= size
        return True

    def forget(self, agent: str) -> None:
        """It has ended; what is missing is told."""
        share = self._shares.pop(agent, None)
        if share is not None and share.missing:
            self._about(agent, share)

    def end(self) -> None:
        for agent in list(self._shares):
            self.forget(agent)

    def _about(self, agent: str, share: _Share) -> None:
        missing, share.missing = share.missing, 0
        self._tell(agent, share.name, missing)
