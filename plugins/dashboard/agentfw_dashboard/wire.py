"""What the router's plugin and the workers' say to each other: msgspec Structs as msgpack, each answer checked before it is used.

An answer is another process's word: numbers are bounded, texts cut, lists counted; one that is not so is no answer.
"""

from __future__ import annotations

import math
from typing import Annotated, TypeVar

import msgspec
from agentfw.errors import PluginError
from agentfw.runtime import Runtime
from agentfw.views import AgentStory
from msgspec import Meta

from .spread import BUCKETS

MAX_ROWS = 20_000
MAX_DENIALS = 100
MAX_STATISTICS = 64

Count = Annotated[int, Meta(ge=0, le=1 << 62)]
Real = Annotated[float, Meta(ge=0, le=1e18)]
Time = Annotated[float, Meta(ge=0, le=1e12)]
Text = Annotated[str, Meta(max_length=1200)]
Id = Annotated[str, Meta(max_length=200)]
Buckets = Annotated[dict[Annotated[int, Meta(ge=0, lt=BUCKETS)], Count], Meta(max_length=BUCKETS)]


class _Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    pass


class Ask(_Message, frozen=True, tag="ask"):
    """For workers' totals, and with `rows` for those of their agents that changed: `heard` has by worker's epoch the version of
    its last answer that came."""

    rows: bool = False
    heard: dict[str, int] = {}


class AskStory(_Message, frozen=True, tag="story"):
    """For all about one agent. Answered with an AgentStory, or nothing."""

    key: str


class Histogram(_Message, frozen=True):
    counts: Buckets = {}
    most: Real = 0.0


class Totals(_Message, frozen=True):
    """Since the worker's start."""

    agents: Count = 0
    """That have a VM now."""
    started: Count = 0
    done: Count = 0
    failed: Count = 0
    questions: Count = 0
    requests: Count = 0
    connections: Count = 0
    model_calls: Count = 0
    model_calls_failed: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    cost: Real = 0.0
    priced: Count = 0
    """Calls whose cost is known."""
    currency: Annotated[str, Meta(max_length=16)] = ""
    denials: Count = 0
    bytes_up: Count = 0
    bytes_down: Count = 0
    tls_agents: Count = 0
    """Of those that have a VM: that have used the host's TLS."""
    dispatch: Histogram = Histogram()
    connect: Histogram = Histogram()
    first_call: Histogram = Histogram()
    statistics: Annotated[dict[Id, Real], Meta(max_length=MAX_STATISTICS)] = {}
    """Of other plugins: those of `collector.STATISTICS` that there are."""


class Row(_Message, frozen=True):
    """One agent, as its worker knows it. Times are seconds since the epoch."""

    key: Id
    name: Id
    tenant: Id
    template: Id
    labels: Annotated[dict[Id, Id], Meta(max_length=80)]
    state: Annotated[str, Meta(pattern="^(starting|running|done)$")]
    submitted: Time
    started: Time | None
    ended: Time | None
    cpu_seconds: Real
    memory: Count
    exits: Count
    questions: Count
    connections: Count
    requests: Count
    model_calls: Count
    input_tokens: Count
    output_tokens: Count
    cost: Real | None
    denials: Count
    bytes_up: Count
    bytes_down: Count
    last: Text
    last_at: Time | None
    how: Text


class Refusal(_Message, frozen=True):
    """A `views.Denial`, of the agent with this key."""

    time: Time
    key: Id
    agent: Id
    destination: Text
    rule: Text
    plugin: Text
    reason: Text
    count: Count


class Told(_Message, frozen=True):
    """A worker's answer. `epoch`: another one if its process is; `version`: for the next question's `since`; `whole`: these are
    all the agents that it knows."""

    epoch: Id
    version: Count
    totals: Totals
    whole: bool = False
    rows: Annotated[list[Row], Meta(max_length=MAX_ROWS)] = []
    gone: Annotated[list[Id], Meta(max_length=MAX_ROWS)] = []
    denials: Annotated[list[Refusal], Meta(max_length=MAX_DENIALS)] = []


encode = msgspec.msgpack.Encoder().encode
_question = msgspec.msgpack.Decoder(Ask | AskStory).decode
_told = msgspec.msgpack.Decoder(Told).decode
_story = msgspec.msgpack.Decoder(AgentStory).decode


def read_question(body: bytes) -> Ask | AskStory:
    """PluginError for nonsense."""
    try:
        return _question(body)
    except (msgspec.DecodeError, RecursionError):
        raise PluginError("a question that is none of the dashboard's") from None


def read_told(body: bytes) -> Told | None:
    """None: it is no answer."""
    try:
        told = _told(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return told if _finite(told) else None


def read_story(body: bytes) -> AgentStory | None:
    """None: there is none, or what came is no story."""
    try:
        return _story(body) if body else None
    except (msgspec.DecodeError, RecursionError):
        return None


Shown = TypeVar("Shown", Told, AgentStory)


def masked(shown: Shown, runtime: Runtime | None) -> Shown:
    """Without secrets: paths, names and models are anybody's words. AgentfwError if it cannot be known whether there are."""
    if runtime is None or not runtime.plugins.implemented("redact"):
        return shown
    data = encode(shown)
    found = runtime.plugins.redact(data)  # of the same length: so it is still an answer
    if found == data:
        return shown
    try:
        return msgspec.msgpack.decode(found, type=type(shown))
    except msgspec.DecodeError:
        raise PluginError("what nobody must see stood across its texts") from None


def _finite(told: Told) -> bool:
    """NaN is neither more nor less than a bound."""
    totals = told.totals
    numbers = [totals.cost, totals.dispatch.most, totals.connect.most, totals.first_call.most, *totals.statistics.values()]
    for row in told.rows:
        numbers += (row.submitted, row.started or 0.0, row.ended or 0.0, row.cpu_seconds, row.cost or 0.0, row.last_at or 0.0)
    numbers += (each.time for each in told.denials)
    return all(map(math.isfinite, numbers))
