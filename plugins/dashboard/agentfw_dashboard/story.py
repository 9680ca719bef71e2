"""What is kept of one agent while it lives and for a while after: numbers, and of what it did the first and the latest.

Events come from hooks, in an agent's path: they are kept as they come, and become what people read (`told.py`) when somebody
looks. Nothing here grows with what an agent does beyond the bounds below; what an agent wrote itself is cut to MAX_TEXT.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Generic, TypeVar

import msgspec
from agentfw import Agent, Destination, ExitReport
from agentfw.reports import DispatchReport, ExchangeReport, FlowReport, QuestionReport
from agentfw.views import SeenModelCall

MAX_TEXT = 256
"""Characters of a target, an error, a name."""
FIRST, LATEST = 96, 96
"""Of events (questions, exchanges, flows, calls, refusals)."""
CALLS = 48
"""First ones of model calls, and as many latest."""
REFUSALS = 32
NAMES = 64
DESTINATIONS = 64
MAX_REPLY = 512
"""Bytes of a DNS answer that is kept to be read later."""

STORY_BYTES = 2600
"""About what a story takes with nothing in it, and what things in it take beside their text; measured by tests/dashboard."""
EVENT_BYTES = 420
CALL_BYTES = 420
NAME_BYTES = 700
DESTINATION_BYTES = 620
REFUSAL_BYTES = 500

Item = TypeVar("Item")


class Kept(Generic[Item]):
    """The first `first` of many, the latest `latest`, and how many there were."""

    __slots__ = ("_most", "count", "first", "latest")

    def __init__(self, first: int, latest: int) -> None:
        self.count = 0
        self.first: list[Item] = []
        self.latest: deque[Item] | None = None
        self._most = (first, latest)

    def add(self, item: Item) -> bool:
        """-> whether more is kept than before."""
        self.count += 1
        if len(self.first) < self._most[0]:
            self.first.append(item)
            return True
        if not self._most[1]:
            return False
        if self.latest is None:
            self.latest = deque(maxlen=self._most[1])
        grows = len(self.latest) < self._most[1]
        self.latest.append(item)
        return grows

    def items(self) -> list[Item]:
        return [*self.first, *(self.latest or ())]

    @property
    def dropped(self) -> int:
        return self.count - len(self.first) - len(self.latest or ())


class Asked:
    """A name, and what came of it."""

    __slots__ = ("count", "denied_rule", "last", "slowest")

    def __init__(self) -> None:
        self.count = 0
        self.slowest = 0.0
        self.last: QuestionReport | None = None
        self.denied_rule = ""


class Place:
    """A destination."""

    __slots__ = ("connections", "denials", "down", "errors", "requests", "up")

    def __init__(self) -> None:
        self.connections = self.requests = self.errors = self.denials = self.up = self.down = 0


class Refused:
    """Something refused, so often in a row. `at`: time.perf_counter() of the first; `time`: when the latest was."""

    __slots__ = ("at", "count", "destination", "plugin", "reason", "rule", "time")

    def __init__(self, at: float, when: float, destination: str, rule: str, plugin: str, reason: str) -> None:
        self.at = at
        self.time = when
        self.destination = destination
        self.rule = rule
        self.plugin = plugin
        self.reason = reason
        self.count = 1

    def again(self, when: float) -> None:
        self.count += 1
        self.time = when


Event = QuestionReport | ExchangeReport | FlowReport | SeenModelCall | Refused
"""Of a model call `at` is time.perf_counter() of its request, here."""


class Story:
    """One agent's. `base` is time.perf_counter() when it was first heard of, `time` the same in seconds since the epoch."""

    __slots__ = (
        "agent", "base", "bytes_down", "bytes_up", "call_tokens_in", "call_tokens_out", "calls", "calls_failed", "connections",
        "cost", "denials", "destinations", "dirty", "dispatch", "ended", "events", "exit", "first_call", "glanced", "kept",
        "key", "last", "last_at", "model_calls", "names", "names_dropped", "places_dropped", "priced", "questions", "refusals",
        "requests", "size", "time", "tls", "traffic",
    )  # fmt: skip

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.key = agent.job or agent.id
        self.base = time.perf_counter()
        self.time = time.time()
        self.kept = False
        """The collector counts it in."""
        self.dirty = False
        """Something has changed since it was told last."""
        self.dispatch: DispatchReport | None = None
        self.exit: ExitReport | None = None
        self.ended: float | None = None
        """time.perf_counter()"""
        self.glanced: tuple[float, int, int] | None = None
        """CPU seconds, memory and exits of its VM, told last while it lives."""
        self.traffic: Any = None
        """Its `Runtime.traffic()` while it lives."""
        self.bytes_up = self.bytes_down = 0
        self.questions = self.connections = self.requests = self.denials = 0
        self.calls = self.calls_failed = self.call_tokens_in = self.call_tokens_out = self.priced = 0
        self.cost = 0.0
        self.first_call = False
        """The head of a request of its has gone out."""
        self.tls = False
        """It has used the host's TLS."""
        self.last: Event | None = None
        self.last_at = 0.0
        self.size = STORY_BYTES
        self.events: Kept[Event] = Kept(FIRST, LATEST)
        self.model_calls: Kept[SeenModelCall] = Kept(CALLS, CALLS)
        self.refusals: Kept[Refused] = Kept(REFUSALS, REFUSALS)
        self.names: dict[tuple[str, int], Asked] = {}
        self.names_dropped = 0
        self.destinations: dict[Destination, Place] = {}
        self.places_dropped = 0

    def when(self, at: float) -> float:
        """time.perf_counter() of its life in seconds since the epoch."""
        return self.time + at - self.base


def bounded_exchange(report: ExchangeReport) -> ExchangeReport:
    """As it is kept."""
    if len(report.target) + len(report.error) + len(report.denied_rule) + len(report.method) <= MAX_TEXT:
        return report
    return msgspec.structs.replace(
        report,
        method=cut(report.method, 32),
        target=cut(report.target),
        error=cut(report.error, 128),
        denied_rule=cut(report.denied_rule, 128),
    )


def bounded_question(report: QuestionReport) -> QuestionReport:
    if len(report.reply) <= MAX_REPLY and len(report.name) + len(report.error) + len(report.denied_rule) <= MAX_TEXT:
        return report
    reply = report.reply if len(report.reply) <= MAX_REPLY else b""
    error, rule = cut(report.error, 128), cut(report.denied_rule, 128)
    return msgspec.structs.replace(report, reply=reply, name=cut(report.name), error=error, denied_rule=rule)


def bounded_flow(report: FlowReport) -> FlowReport:
    if len(report.error) + len(report.denied_rule) <= MAX_TEXT:
        return report
    return msgspec.structs.replace(report, error=cut(report.error, 128), denied_rule=cut(report.denied_rule, 128))


def cut(text: str, most: int = MAX_TEXT) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
