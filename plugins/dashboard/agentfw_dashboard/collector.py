"""In each worker: what its agents did, from hooks. Each of them adds to counters and to the agent's story, and nothing else.

There is no lock: hooks and questions come in the worker's one loop. Memory is bounded: a story by its own bounds, those of ended
agents by `Config.ended` and, with all others, by `Config.memory`; the oldest ended go first, and while there is none to go
stories count what they do not keep.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from itertools import islice

from agentfw import Agent, AgentfwError, Destination, ExitReport, hookimpl
from agentfw.agents import VmReport
from agentfw.model_calls import ModelCall
from agentfw.reports import AuditEvent, DispatchReport, ExchangeReport, FlowReport, QuestionReport
from agentfw.runtime import Runtime
from agentfw.texts import shown
from agentfw.views import AgentStory, SeenModelCall

from . import told
from .spread import Durations
from .story import (
    CALL_BYTES,
    DESTINATION_BYTES,
    DESTINATIONS,
    EVENT_BYTES,
    NAME_BYTES,
    NAMES,
    REFUSAL_BYTES,
    Asked,
    Event,
    Place,
    Refused,
    Story,
    bounded_exchange,
    bounded_flow,
    bounded_question,
    cut,
)
from .wire import MAX_DENIALS, MAX_ROWS, Ask, Histogram, Refusal, Row, Told, Totals, encode, masked

STATISTICS = (
    "dns.hits", "dns.negative_hits", "dns.failure_hits", "dns.override_hits", "dns.stale", "dns.coalesced", "dns.misses",
    "dns.passed", "tls.held", "tls.leased", "tls.handshakes", "tls.reused",
)  # fmt: skip
"""Of other plugins, as `Runtime.statistics()` has them."""
MAX_LIVE = 100_000
"""Agents that are known at once. More than there can be VMs: a bound for mistakes."""
MAX_GONE = 10_000
ROWS_BYTES = 6 << 20
"""Of an answer's rows: what is longer than `agentfw.pool.authority.MAX_ANSWER` is dropped, and the next would be as long."""
LONGEST_ROW = 2048
"""Bytes of one of a job's agent at most: names have 128, what it did last has 300 characters."""

log = logging.getLogger("agentfw.dashboard")


class Collector:
    """`memory`: bytes that stories may take; `stories`: of ended agents that are kept at most."""

    def __init__(self, memory: int, stories: int) -> None:
        self.memory = memory
        self.stories = stories
        self.epoch = secrets.token_hex(8)
        self.runtime: Runtime | None = None
        self.live: dict[str, Story] = {}
        """By agent's id."""
        self.ended: dict[str, Story] = {}
        """Likewise; who ended first is first."""
        self.keys: dict[str, Story] = {}
        self.size = 0
        """Bytes that stories take, about."""
        self.forgotten = 0
        """Ended agents whose stories went."""
        self.dispatch, self.connect, self.first_call = Durations(), Durations(), Durations()
        self.recent: dict[Refused, tuple[str, str]] = {}
        """Of all agents, at most MAX_DENIALS, the latest last: what, whose (its story's key, "" if it has none), its name."""
        self._running = self._started = self._done = self._failed = 0
        self._questions = self._requests = self._connections = self._denials = 0
        self._calls = self._calls_failed = self._inputs = self._outputs = self._priced = 0
        self._cost = 0.0
        self._currency = ""
        self._up = self._down = 0
        """Of agents that have ended."""
        self._tls_agents = 0
        self._dirty: dict[Story, None] = {}
        """Those that changed since they were told; nobody need ask for a long time: a forgotten one is not among them."""
        self._gone: list[str] = []
        self._version = 1
        self._whole = True
        """More went than is remembered: the next answer has all."""

    def bound(self, memory: int, stories: int) -> None:
        """Other bounds."""
        self.memory, self.stories = memory, stories
        self._make_room()

    # -- hooks

    later_hooks = frozenset({"audit", "exchange_end", "flow_end", "model_call", "question_end"})

    @hookimpl
    def admit(self, agent: Agent) -> None:
        self._known(agent)

    @hookimpl
    def dispatched(self, agent: Agent, report: DispatchReport) -> None:
        story = self._known(agent)
        story.dispatch = report
        if self.runtime is not None:
            story.traffic = self.runtime.traffic(agent)
        self._started += 1
        self._running += 1
        self.dispatch.add(report.dispatch)
        self._touch(story)

    @hookimpl
    def question_end(self, agent: Agent, question: QuestionReport) -> None:
        story = self._story(agent)
        self._questions += 1
        story.questions += 1
        question = bounded_question(question)
        key = (question.name, question.qtype)
        asked = story.names.get(key)
        if asked is None and len(story.names) < NAMES and self.size < self.memory:
            asked = story.names[key] = Asked()
            self._grow(story, NAME_BYTES + len(question.name))
        if asked is None:
            story.names_dropped += 1
        else:
            asked.count += 1
            asked.last = question
            if question.seconds > asked.slowest:
                asked.slowest = question.seconds
            if question.denied_rule:
                asked.denied_rule = question.denied_rule
        self._event(story, question, question.began + question.seconds)

    @hookimpl
    def exchange_end(self, agent: Agent, exchange: ExchangeReport) -> None:
        story = self._story(agent)
        self._requests += 1
        story.requests += 1
        connected = exchange.connected
        if connected is not None:
            self.connect.add(connected)
            if not story.first_call:
                story.first_call = True
                if story.dispatch is not None:
                    self.first_call.add(exchange.began + connected - story.dispatch.began)
            if not story.tls and exchange.destination.scheme == "https":
                story.tls = True
                if agent.id in self.live:  # what is told after its end would be taken away by nothing
                    self._tls_agents += 1
        place = story.destinations.get(exchange.destination) or self._place(story, exchange.destination)
        if place is not None:
            place.requests += 1
            place.up += exchange.bytes_up
            place.down += exchange.bytes_down
            if exchange.error:
                place.errors += 1
                if exchange.denied_rule:
                    place.denials += 1
        self._event(story, bounded_exchange(exchange), exchange.began + exchange.seconds)

    @hookimpl
    def flow_end(self, agent: Agent, flow: FlowReport) -> None:
        kind = flow.kind
        if kind == "dns":
            return
        story = self._story(agent)
        self._connections += 1
        story.connections += 1
        place = None
        if flow.destination is not None:
            place = story.destinations.get(flow.destination) or self._place(story, flow.destination)
        if place is not None:
            place.connections += 1
            if kind != "http":  # else its exchanges have told
                place.up += flow.bytes_up
                place.down += flow.bytes_down
                if flow.error:
                    place.errors += 1
                    if flow.denied_rule:
                        place.denials += 1
        if kind != "http":
            self._event(story, bounded_flow(flow), time.perf_counter())
        else:
            self._touch(story)

    @hookimpl
    def model_call(self, agent: Agent, call: ModelCall) -> None:
        story = self._story(agent)
        self._calls += 1
        story.calls += 1
        if call.failed:
            self._calls_failed += 1
            story.calls_failed += 1
        if call.input_tokens:
            self._inputs += call.input_tokens
            story.call_tokens_in += call.input_tokens
        if call.output_tokens:
            self._outputs += call.output_tokens
            story.call_tokens_out += call.output_tokens
        if call.cost is not None:
            self._cost += call.cost
            story.cost += call.cost
            self._priced += 1
            story.priced += 1
            self._currency = call.currency
        now = time.perf_counter()
        error = call.error_type and cut(f"{call.error_type}: {call.error}" if call.error else call.error_type)
        called = SeenModelCall(
            at=now - call.seconds, provider=call.provider, model=call.model, operation=call.operation, status=call.status,
            seconds=call.seconds, first_token=call.first_token, input_tokens=call.input_tokens,
            output_tokens=call.output_tokens, cost=call.cost, estimated=call.estimated, error=error,
        )  # fmt: skip
        if self.size < self.memory:
            if story.model_calls.add(called):
                self._grow(story, CALL_BYTES + len(error))
        else:
            story.model_calls.count += 1
        self._event(story, called, now)

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        if event.kind != "denied":
            return
        self._denials += 1
        story = self.live.get(event.agent_id) or self.ended.get(event.agent_id)
        now = time.perf_counter()
        refused = Refused(now, event.time, cut(event.destination), cut(event.rule), event.plugin, cut(event.reason))
        if story is None:
            before = next(reversed(self.recent), None)
            if before is not None and not self.recent[before][0] and _same(before, refused):
                before.again(event.time)
            else:
                self._refused(refused, "", event.agent)
            return
        story.denials += 1
        kept = story.refusals
        last = story.last if isinstance(story.last, Refused) else (kept.latest or kept.first or (None,))[-1]
        if last is not None and _same(last, refused):
            last.again(event.time)
            self._refused(last, story.key, event.agent)
            story.last, story.last_at = last, now
            self._touch(story)
            return
        if self.size >= self.memory:
            kept.count += 1
        elif kept.add(refused):
            self._grow(story, REFUSAL_BYTES + len(refused.destination) + len(refused.rule) + len(refused.reason))
        self._refused(refused, story.key, event.agent)
        self._event(story, refused, now)

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        story = self._known(agent)  # also of one that was refused before this plugin was asked
        if story.exit is not None:
            return
        story.exit = report
        story.ended = time.perf_counter()
        if self.runtime is not None:
            traffic = self.runtime.traffic(agent)
            story.bytes_up, story.bytes_down = traffic.up, traffic.down
        story.traffic = None
        self._up += story.bytes_up
        self._down += story.bytes_down
        self._done += 1
        if report.kind != "code" or report.code:
            self._failed += 1
        if story.dispatch is not None:
            self._running -= 1
        if story.tls and agent.id in self.live:
            self._tls_agents -= 1
        if self.live.pop(agent.id, None) is not None:
            self.ended[agent.id] = story
        if report.vm is not None:
            self._grow(story, report.vm.sight.size)
        self._touch(story)
        self._make_room()

    # -- stories

    def _story(self, agent: Agent) -> Story:
        """The agent's. One that has been forgotten (its last flows are told after its end), or that there was no place for, has
        one that nobody keeps."""
        found = self.live.get(agent.id)
        if found is None:
            found = self.ended.get(agent.id) or Story(agent)
        return found

    def _known(self, agent: Agent) -> Story:
        """Of one that begins: kept from now on."""
        story = self._story(agent)
        if not story.kept and len(self.live) < MAX_LIVE:
            story.kept = True
            self.live[agent.id] = self.keys[story.key] = story
            self.size += story.size
            self._touch(story)
        return story

    def _place(self, story: Story, destination: Destination) -> Place | None:
        """A new one; None: there are too many."""
        if len(story.destinations) >= DESTINATIONS or self.size >= self.memory:
            story.places_dropped += 1
            return None
        found = story.destinations[destination] = Place()
        self._grow(story, DESTINATION_BYTES + len(destination.host))
        return found

    def _refused(self, refused: Refused, key: str, name: str) -> None:
        """It is the latest, whether it is new or has happened once more."""
        self.recent.pop(refused, None)
        self.recent[refused] = key, name
        if len(self.recent) > MAX_DENIALS:
            del self.recent[next(iter(self.recent))]

    def _event(self, story: Story, event: Event, at: float) -> None:
        story.last = event
        story.last_at = at
        if self.size >= self.memory:
            story.events.count += 1
        elif story.events.add(event):
            self._grow(story, EVENT_BYTES)
        if not story.dirty:
            self._touch(story)

    def _touch(self, story: Story) -> None:
        if not story.dirty and story.kept:
            story.dirty = True
            self._dirty[story] = None

    def _grow(self, story: Story, size: int) -> None:
        if not story.kept:
            return
        story.size += size
        self.size += size
        if self.size > self.memory:
            self._make_room()

    def _make_room(self) -> None:
        while self.ended and (self.size > self.memory or len(self.ended) > self.stories):
            self._forget(next(iter(self.ended)))

    def _forget(self, agent_id: str) -> None:
        story = self.ended.pop(agent_id)
        story.kept = False
        self._dirty.pop(story, None)
        self.size -= story.size
        self.forgotten += 1
        if self.keys.get(story.key) is story:
            del self.keys[story.key]
            if len(self._gone) < MAX_GONE:
                self._gone.append(story.key)
            else:
                self._whole = True

    # -- answers

    async def story(self, key: str) -> AgentStory | None:
        """All about the agent with this key (its run of a job, or without a pool its id), its VM as it stands now."""
        if self.runtime is not None:
            self.runtime.plugins.later.deliver()  # what it has just done, too
        found = self.keys.get(key)
        if found is None:
            return None
        vm = None
        if found.exit is None and found.dispatch is not None and self.runtime is not None:
            vm = await self.runtime.look(found.agent.id)
        try:
            return masked(told.story(found, vm), self.runtime)
        except AgentfwError as error:
            log.error("a story is not shown: %s", error)
            return None

    def answer(self, ask: Ask, statistics: dict[str, float]) -> Told:
        """What is known now. `statistics`: of other plugins."""
        found = self._answer(ask, statistics)
        try:
            return masked(found, self.runtime)
        except AgentfwError as error:
            log.error("what agents do is not shown: %s", error)
            self._whole = self._whole or ask.rows
            return Told(epoch=self.epoch, version=self._version, totals=found.totals)

    def _answer(self, ask: Ask, statistics: dict[str, float]) -> Told:
        totals = self._totals(statistics)
        if not ask.rows:
            return Told(epoch=self.epoch, version=self._version, totals=totals, denials=self._refusals())
        vms = self._glance()
        whole = self._whole or ask.heard.get(self.epoch) != self._version
        if whole:
            changed = list(self._dirty)
            rows, _ = self._rows([*self.ended.values(), *self.live.values()][: -MAX_ROWS - 1 : -1], vms)  # the newest first
        else:
            changed = list(islice(self._dirty, MAX_ROWS))
            rows, held = self._rows(changed, vms)
            del changed[held:]  # more: with the next answer
        gone = [] if whole else self._gone
        for story in changed:
            story.dirty = False
            del self._dirty[story]
        self._gone, self._whole = [], False
        self._version += 1
        return Told(
            epoch=self.epoch, version=self._version, totals=totals, whole=whole, rows=rows, gone=gone,
            denials=self._refusals(),
        )  # fmt: skip

    def _rows(self, stories: Sequence[Story], vms: dict[Story, VmReport]) -> tuple[list[Row], int]:
        """Of as many of `stories` as an answer holds, and how many these are."""
        rows: list[Row] = []
        measured, room = len(stories) * LONGEST_ROW > ROWS_BYTES, ROWS_BYTES
        for number, story in enumerate(stories):
            if self.keys.get(story.key) is not story:
                continue
            row = told.row(story, vms.get(story))
            if measured:
                room -= len(encode(row))
                if room < 0:
                    return rows, number
            rows.append(row)
        return rows, len(stories)

    def _glance(self) -> dict[Story, VmReport]:
        """How the VMs of those stand that run. Rows that it changes are told."""
        vms: dict[Story, VmReport] = {}
        if self.runtime is None:
            return vms
        for story in self.live.values():
            vm = self.runtime.glance(story.agent.id) if story.dispatch is not None else None
            if vm is None:
                continue
            vms[story] = vm
            seen = vm.cpu_seconds, vm.statistics.memory_committed, vm.statistics.exits
            if story.glanced != seen:
                story.glanced = seen
                self._touch(story)
        return vms

    def _refusals(self) -> list[Refusal]:
        """Newest first."""
        return [
            Refusal(
                time=each.time, key=key, agent=shown(name, 128), destination=each.destination,
                rule=each.rule, plugin=each.plugin, reason=each.reason, count=each.count,
            )
            for each, (key, name) in reversed(self.recent.items())
        ]  # fmt: skip

    def _totals(self, statistics: dict[str, float]) -> Totals:
        up, down = self._up, self._down
        for story in self.live.values():
            traffic = story.traffic
            if traffic is not None:
                if traffic.up + traffic.down != story.bytes_up + story.bytes_down:
                    story.bytes_up, story.bytes_down = traffic.up, traffic.down
                    self._touch(story)
                up += story.bytes_up
                down += story.bytes_down
        return Totals(
            agents=self._running, started=self._started, done=self._done, failed=self._failed, questions=self._questions,
            requests=self._requests, connections=self._connections, model_calls=self._calls,
            model_calls_failed=self._calls_failed, input_tokens=self._inputs, output_tokens=self._outputs, cost=self._cost,
            priced=self._priced, currency=self._currency[:16], denials=self._denials, bytes_up=up, bytes_down=down,
            tls_agents=self._tls_agents, dispatch=_histogram(self.dispatch), connect=_histogram(self.connect),
            first_call=_histogram(self.first_call),
            statistics={name: statistics[name] for name in STATISTICS if name in statistics},
        )  # fmt: skip


def _histogram(durations: Durations) -> Histogram:
    return Histogram(counts=durations.counts, most=durations.most)


def _same(one: Refused, other: Refused) -> bool:
    return one.destination == other.destination and one.rule == other.rule and one.plugin == other.plugin
