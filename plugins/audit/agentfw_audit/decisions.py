"""Decisions that are alike: the first is told at once, those after it are counted and told now and then.

An agent that makes a thousand calls is permitted a thousand times to do the same. Who reads wants to know that it was permitted,
by which rule, since when and how often; each call has its own line of another kind.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from agentfw import Agent, Destination
from agentfw.reports import Decision

SECONDS = 60.0
"""After which those alike are told at the latest."""
MAX_KINDS = 256
"""Kinds of one agent that are told apart; of more each is told by itself."""
MAX_AGENTS = 8192

Tell = Callable[[Agent, Destination | None, Decision, int, float | None], None]
"""(agent, destination, decision, how many, when the first of them was; None: now)"""


class _Alike:
    __slots__ = ("agent", "count", "decision", "destination", "since")

    def __init__(self, agent: Agent, destination: Destination | None, decision: Decision) -> None:
        self.agent = agent
        self.destination = destination
        self.decision = decision
        self.count = 0
        self.since = 0.0


class Decisions:
    """`clock`: seconds since 1970."""

    def __init__(self, tell: Tell, clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._agents: OrderedDict[str, dict[tuple[Destination | None, Decision], _Alike]] = OrderedDict()
        self._counted: dict[_Alike, None] = {}
        """Those that have not been told, oldest first."""

    def met(self, agent: Agent, destination: Destination | None, decision: Decision) -> None:
        kinds = self._agents.get(agent.id)
        if kinds is None:
            kinds = self._agents[agent.id] = {}
            if len(self._agents) > MAX_AGENTS:
                self.forget(next(iter(self._agents)))
        key = (destination, decision)
        alike = kinds.get(key)
        if alike is not None:
            if not alike.count:
                alike.since = self._clock()
                self._counted[alike] = None
            alike.count += decision.count
            return
        if len(kinds) < MAX_KINDS:
            kinds[key] = _Alike(agent, destination, decision)
        self._tell(agent, destination, decision, decision.count, None)

    def tell(self) -> None:
        """All that was counted."""
        counted, self._counted = self._counted, {}
        for alike in counted:
            self._told(alike)

    def forget(self, agent: str) -> None:
        """It has ended."""
        for alike in self._agents.pop(agent, {}).values():
            if alike.count:
                self._counted.pop(alike, None)
                self._told(alike)

    def _told(self, alike: _Alike) -> None:
        count, alike.count = alike.count, 0
        self._tell(alike.agent, alike.destination, alike.decision, count, alike.since)
