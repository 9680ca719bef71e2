"""The plugin: the hooks, coalescing, prefetching, stale answers, limits per agent.

What is kept and for how long: RFC 2181, 8 (TTLs), RFC 2308 (negative answers), RFC 9520 (failures), RFC 8767 (stale answers).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from agentfw.agents import Agent, ExitReport
from agentfw.errors import ConfigError, Denied, ResolveError
from agentfw.homes import expanded
from agentfw.hookspecs import hookimpl
from agentfw.runtime import Runtime

from . import pool, wire
from .cache import UNIT, Cache, Entry
from .config import DnsConfig, networks, servers, system_servers
from .exchange import Exchange, UpstreamFailed
from .overrides import TTL as OVERRIDE_TTL
from .overrides import Overrides
from .synthetic import Full, Pool

log = logging.getLogger("agentfw.dns")

CACHED_TYPES = frozenset({wire.A, wire.AAAA, wire.CNAME, wire.HTTPS, wire.SVCB})
STALE_TTL = 30
PREFETCH = 0.9
"""Part of its life after which an answer in use is renewed."""
ACTIVE, AGENT_ACTIVE = 256, 64
"""Questions that are with upstreams at a time (each has a socket), and those of them that one agent asked first. The next ones
wait, so that an agent with many, or with slow ones, leaves room for the others'."""
MAX_FAILURES = 4096
MAX_GONE = 1024


@dataclass(slots=True, eq=False)
class _AgentState:
    """Of one agent: what it has waiting, how many of its questions are with an upstream, and its bucket of them."""

    slots: asyncio.Semaphore
    pending: int = 0
    tokens: float = 0.0
    filled: float = 0.0


@dataclass(slots=True)
class _Failure:
    until: float
    rcode: int
    text: str


@dataclass(slots=True)
class _Outcome:
    """Of a question to the upstreams, or to the pool's router: exactly one of the first three."""

    entry: Entry | None = None
    reply: wire.Reply | None = None
    """Not kept."""
    failure: _Failure | None = None
    expired: Entry | None = None
    """What the router had before it failed."""


class Plugin:
    """`dns`. Given a clock, it uses that one (seconds, monotonic) for TTLs."""

    name = "dns"
    config_type = DnsConfig

    def __init__(self, config: DnsConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.cache = Cache(config.entries, config.agent_entries)
        self.counters: Counter[str] = Counter()
        self._clock = clock
        self._shapes = self.cache.shapes
        self._hits = 0
        self._agents: dict[str, _AgentState] = {}
        self._gone: dict[str, None] = {}
        """Agents that ended last, oldest first: nothing is kept for what still comes of them."""
        self._slots = asyncio.Semaphore(ACTIVE)
        self._inflight: dict[bytes, asyncio.Task[_Outcome]] = {}
        self._failures: dict[bytes, _Failure] = {}
        self._overrides = Overrides.make(config.hosts)
        self._synthetic = config.mode == "synthetic"
        self._pool = Pool(networks(config.synthetic_networks), config.synthetic_names, config.agent_names)
        self._runtime: Runtime | None = None
        self.exchange = self._exchange(config)

    @hookimpl
    def start(self, runtime: Runtime) -> None:
        self._runtime = runtime
        try:
            self._overrides = self._read_overrides(self.config)
        except ConfigError as error:
            raise runtime.config.error(f"dns.{error.key}", error.message) from None
        self._reserve(self.config)
        if not self.exchange.servers:
            log.warning("no upstream DNS server: only names in [dns.hosts], or that another plugin knows, will resolve")

    def reconfigure(self, config: DnsConfig) -> Callable[[], None]:
        """Prepare to go on with another table; the callable commits it. What is in the cache stays, within the new limits and
        TTLs; overrides and upstreams hold from the next question on, and questions under way end with the old ones."""
        if config.synthetic_networks != self.config.synthetic_networks:
            raise ConfigError("synthetic_networks", "cannot change while agents run: they were told addresses of the old ones")
        overrides = self._read_overrides(config)
        exchange = self._exchange(config)

        def commit() -> None:
            self.config = config
            self.exchange = exchange
            self._overrides = overrides
            self._synthetic = config.mode == "synthetic"
            self._pool.limit(config.synthetic_names, config.agent_names)
            self._reserve(config)
            self.cache.resize(config.entries, config.agent_entries)
            self.cache.forget_shapes()
            for entry in self.cache.entries.values():
                lifetime = entry.reply.lifetime(config.min_ttl, config.max_ttl, config.negative_ttl) or 0
                entry.expires, entry.prefetch_from = entry.stored + lifetime, entry.stored + PREFETCH * lifetime

        return commit

    @hookimpl
    def reloaded(self) -> None:
        """Files may say something else though the table does not; if they cannot be read, it goes on with what they said."""
        try:
            self.reconfigure(self.config)()
        except ConfigError as error:
            log.error("dns.%s: %s; going on with what there was", error.key, error.message)

    def _exchange(self, config: DnsConfig) -> Exchange:
        found = system_servers() if config.upstream is None else servers(config.upstream)
        return Exchange(found, config.timeout, config.rounds, self.counters)

    def _read_overrides(self, config: DnsConfig) -> Overrides:
        file = self._runtime.config.file if self._runtime is not None else None
        base = Path() if file is None else Path(file).parent
        files = [(f"hosts_files.{i}", base / expanded(name, f"hosts_files.{i}")) for i, name in enumerate(config.hosts_files)]
        return Overrides.make(config.hosts, files)

    def _reserve(self, config: DnsConfig) -> None:
        if config.mode == "synthetic" and self._runtime is not None:
            for network in networks(config.synthetic_networks):
                self._runtime.reserve(network)

    @hookimpl
    async def stop(self) -> None:
        tasks = list(self._inflight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        self._gone[agent.id] = None
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
        self._agents.pop(agent.id, None)
        self.cache.owner_gone(agent.id)
        self._pool.forget(agent.id)

    @hookimpl
    def stand_in(self, agent: Agent, name: str, qtype: int) -> tuple[str, ...] | None:
        if not self._synthetic:
            return None
        override = self._overrides.find(name)
        if override is not None and not override[1]:
            return None  # a special name that is none
        self._check_length(name)
        if agent.id in self._gone:
            raise ResolveError(name, "the agent has ended")
        try:
            found = self._pool.addresses(agent.id, name, qtype)
        except Full as error:
            self.counters["limited"] += 1
            raise ResolveError(name, str(error)) from None
        self.counters["synthetic"] += 1
        return found

    @hookimpl
    def resolve(self, agent: Agent, name: str, qtype: int, query: bytes) -> Awaitable[bytes] | bytes | None:
        # PERF: these lines are the whole of a hit; see Cache.get().
        now = self._clock()
        shape = self._shapes.get(query[2:])
        if shape is not None and shape.until > now and shape.name == name:
            shape.entry.hits += 1
            self._hits += 1
            return query[:2] + shape.answer
        return self._resolve(agent, name, query, now)

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        counters = self.counters
        names = (
            "misses",
            "coalesced",
            "negative_hits",
            "failure_hits",
            "override_hits",
            "stale",
            "prefetched",
            "passed",
            "refused",
            "limited",
            "synthetic",
            "pool_asked",
            "pool_silent",
            "pool_answered",
            "pool_hits",
        )
        upstream = ("udp", "tcp", "failures", "refusals", "mismatched", "truncated", "foreign")
        return {
            "hits": self._hits + counters["hits"],
            **{name: counters[name] for name in names},
            "upstream_queries": counters["upstream_udp"] + counters["upstream_tcp"],
            **{f"upstream_{name}": counters[f"upstream_{name}"] for name in upstream},
            "entries": len(self.cache),
            "bytes": self.cache.bytes,
            "failures": len(self._failures),
            "synthetic_names": len(self._pool),
            "evicted": self.cache.evicted,
            "pending": len(self._inflight),
        }

    # ---- the slow path ----

    async def answer_pool(self, body: bytes) -> bytes:
        """In the router of a pool: a question of a worker's, whose limits for its agents have been applied there."""
        question = pool.decode_question(body)
        query = wire.parse_query(question.query)
        self.counters["pool_answered"] += 1
        now = self._clock()
        entry = self.cache.entries.get(query.key)
        for known in (entry, self.cache.no_name(query.key)):
            if known is not None and now < (known.prefetch_from if question.renew else known.expires):
                self.counters["pool_hits"] += not question.renew  # which no agent waits for
                self.cache.used_by(known, question.owner)
                return self._told(known, now)
        failure = self._failures.get(query.key)
        if failure is not None and now < failure.until:
            self.counters["pool_hits"] += not question.renew  # which no agent waits for
            return self._told(entry, now, failure)
        task = self._inflight.get(query.key)
        if task is None:
            if len(self._inflight) >= self.config.pending:
                self.counters["limited"] += 1
                return self._told(entry, now, _Failure(now, wire.SERVFAIL, "too many questions are waiting"))
            task = self._start(query, question.owner)
        stale = entry is not None and self._may_be_stale(entry, now)
        done, _ = await asyncio.wait({task}, timeout=self.config.stale_wait if stale else None)
        now = self._clock()
        if not done:
            return self._told(entry, now, _Failure(now, wire.SERVFAIL, "no answer in time"))
        if task.cancelled() or task.exception():
            return self._told(None, now, _Failure(now, wire.SERVFAIL, "the resolver is stopping"))
        outcome = task.result()
        if outcome.reply is not None:
            return pool.encode(pool.Answer(outcome.reply))
        return self._told(outcome.entry or entry, now, outcome.failure)

    def _told(self, entry: Entry | None, now: float, failure: _Failure | None = None) -> bytes:
        """To a worker: an entry, with a failure one that may only be used since there is nothing better."""
        if failure is not None and entry is not None and not self._may_be_stale(entry, now):
            entry = None
        told = None if failure is None else pool.Failure(max(0.0, failure.until - now), failure.rcode, failure.text)
        if entry is None:
            return pool.encode(pool.Answer(failure=told))
        return pool.encode(pool.Answer(entry.reply, now - entry.stored, entry.expires - entry.stored, told))

    def _resolve(self, agent: Agent, name: str, wire_query: bytes, now: float) -> Awaitable[bytes] | bytes | None:
        try:
            query = wire.parse_query(wire_query)
        except wire.Refused as refusal:
            self.counters["refused"] += 1
            return refusal.reply
        if query.name != name:  # policy has judged `name`
            raise ValueError("the query is for another name than the hook's argument")
        self._check_length(name)
        override = self._override(query)
        if override is not None:
            return override
        if self._synthetic and query.qtype in (wire.HTTPS, wire.SVCB):  # with hints and ports of its own
            return wire.made_reply(query, [], OVERRIDE_TTL)
        entry = self.cache.entries.get(query.key)
        if entry is not None and now < entry.expires:
            entry.hits += 1
            self.counters["hits" if entry.reply.positive else "negative_hits"] += 1
            return self._answer(agent, query, entry, now)
        no_name = self.cache.no_name(query.key)
        if no_name is not None and now < no_name.expires:
            no_name.hits += 1
            self.counters["negative_hits"] += 1
            return self._answer(agent, query, no_name, now)
        failure = self._failures.get(query.key)
        if failure is not None and now < failure.until:
            if entry is not None and failure.rcode == wire.SERVFAIL and self._may_be_stale(entry, now):
                return self._stale(agent, query, entry)
            self.counters["failure_hits"] += 1
            return self._error(query, failure.rcode, (wire.EDE_CACHED_ERROR, failure.text))
        state = self._state(agent, now)
        task = self._inflight.get(query.key)
        if state.pending >= self.config.agent_pending:
            self.counters["limited"] += 1
            return self._error(query, wire.SERVFAIL, (wire.EDE_OTHER, "too many questions of this agent are waiting"))
        if task is None:
            if len(self._inflight) >= self.config.pending:
                self.counters["limited"] += 1
                return self._error(query, wire.SERVFAIL, (wire.EDE_OTHER, "too many questions are waiting"))
            if not self._take_token(state, now):
                self.counters["limited"] += 1
                wait = (1 - state.tokens) / self.config.agent_rate
                raise Denied("dns.agent_rate", "this agent asks for too many names", status=429, retry_after=wait)
            if not self.exchange.servers and self.config.upstream is None:
                self.counters["passed"] += 1
                return None  # the host has no resolvers that could be asked by hand; the native stack may have other ways
            self.counters["misses" if query.qtype in CACHED_TYPES else "passed"] += 1
            task = self._start(query, agent.id, state.slots)
        else:
            self.counters["coalesced"] += 1
        return self._wait(agent, state, query, entry, task)

    def _override(self, query: wire.Query) -> bytes | None:
        found = self._overrides.find(query.name)
        if found is None:
            return None
        self.counters["override_hits"] += 1
        rcode, records = found
        return wire.made_reply(query, [record for record in records if record[0] == query.qtype], OVERRIDE_TTL, rcode)

    def _state(self, agent: Agent, now: float) -> _AgentState:
        state = self._agents.get(agent.id)
        if state is None:
            state = _AgentState(asyncio.Semaphore(AGENT_ACTIVE), tokens=self.config.agent_burst, filled=now)
            if agent.id not in self._gone:
                self._agents[agent.id] = state
        return state

    def _check_length(self, name: str) -> None:
        if len(name) > self.config.name_length:
            self.counters["refused"] += 1
            raise Denied("dns.name_length", f"the name has {len(name)} characters")

    def _take_token(self, state: _AgentState, now: float) -> bool:
        """For a question that this agent has sent upstream; False: it has none left."""
        config = self.config
        state.tokens = min(config.agent_burst, state.tokens + (now - state.filled) * config.agent_rate)
        state.filled = now
        if state.tokens < 1:
            return False
        state.tokens -= 1
        return True

    def _start(
        self, query: wire.Query, owner: str, slots: asyncio.Semaphore | None = None, *, renew: bool = False
    ) -> asyncio.Task[_Outcome]:
        """A task of its own: whoever asked first may go away, the others still get the answer. `slots`: the agent's."""
        fetching = self._fetch(query, owner, slots or contextlib.nullcontext(), renew)
        task = asyncio.get_running_loop().create_task(fetching, name=f"dns {query.name}")
        self._inflight[query.key] = task
        task.add_done_callback(lambda _: self._inflight.pop(query.key, None))
        return task

    async def _wait(
        self, agent: Agent, state: _AgentState, query: wire.Query, entry: Entry | None, task: asyncio.Task[_Outcome]
    ) -> bytes:
        state.pending += 1
        try:
            if entry is not None and self._may_be_stale(entry, self._clock()):
                done, _ = await asyncio.wait({task}, timeout=self.config.stale_wait)
                if not done:
                    return self._stale(agent, query, entry)
            else:
                await asyncio.wait({task})  # unlike awaiting the task, this neither cancels it nor is cancelled with it
        finally:
            state.pending -= 1
        if task.cancelled() or task.exception():
            return self._error(query, wire.SERVFAIL, (wire.EDE_OTHER, "the resolver is stopping"))
        outcome = task.result()
        override = self._override(query)
        if override is not None:  # since the question was asked
            return override
        if outcome.entry is not None:
            return self._answer(agent, query, outcome.entry, self._clock())
        if outcome.failure is not None:
            entry = outcome.expired or entry
            if entry is not None and outcome.failure.rcode == wire.SERVFAIL and self._may_be_stale(entry, self._clock()):
                return self._stale(agent, query, entry)
            return self._error(query, outcome.failure.rcode, (wire.EDE_NETWORK, outcome.failure.text))
        assert outcome.reply is not None
        return wire.render(outcome.reply, query, 0, 0, self.config.max_ttl)

    async def _fetch(self, query: wire.Query, owner: str, slots: AbstractAsyncContextManager[object], renew: bool) -> _Outcome:
        config = self.config
        try:
            async with slots, self._slots:
                link = self._runtime.pool if self._runtime is not None else None
                if link is not None and link.role == "worker":
                    answer = await pool.ask(link, query, owner, renew)
                    if answer is not None:
                        self.counters["pool_asked"] += 1
                        return self._taken(query, owner, answer)
                    self.counters["pool_silent"] += 1
                reply = await self.exchange.ask(query)
        except UpstreamFailed as error:
            return self._failed(query, wire.SERVFAIL, "no answer in time" if error.timed_out else "no upstream server answers")
        except Exception:
            log.exception("asking upstream for %s failed", query.name)
            return self._failed(query, wire.SERVFAIL, "internal error")
        if reply.failed:
            return self._failed(query, reply.rcode, "the upstream server failed")
        lifetime = reply.lifetime(config.min_ttl, config.max_ttl, config.negative_ttl)
        if lifetime is None or query.qtype not in CACHED_TYPES:
            self.cache.discard(query.key)  # what was known before holds no longer, though the news cannot be kept
            return _Outcome(reply=reply)
        return _Outcome(entry=self._keep(query, owner, reply, self._clock(), lifetime))

    def _keep(self, query: wire.Query, owner: str, reply: wire.Reply, stored: float, lifetime: float) -> Entry:
        cost = 1 + len(reply.wire) // UNIT
        entry = Entry(query.key, reply, stored, stored + lifetime, stored + PREFETCH * lifetime, owner, cost)
        self._failures.pop(query.key, None)
        self.cache.put(entry)
        return entry

    def _taken(self, query: wire.Query, owner: str, answer: pool.Answer) -> _Outcome:
        """What the router said, as if it had come from upstream when it did."""
        now = self._clock()
        if answer.reply is None or answer.lifetime is None:
            if answer.failure is not None:
                return self._failed(query, answer.failure.rcode, answer.failure.text, answer.failure.seconds)
            self.cache.discard(query.key)
            return _Outcome(reply=answer.reply)
        entry = self._keep(query, owner, answer.reply, now - answer.age, answer.lifetime)
        if answer.failure is None:
            return _Outcome(entry=entry)
        failed = self._failed(query, answer.failure.rcode, answer.failure.text, answer.failure.seconds)
        return _Outcome(failure=failed.failure, expired=entry)

    def _failed(self, query: wire.Query, rcode: int, text: str, seconds: float | None = None) -> _Outcome:
        """Kept for a few seconds beside the cache, so that it never replaces an answer."""
        rcode = rcode if rcode < 16 else wire.SERVFAIL  # else it could not be told without EDNS
        failure = _Failure(self._clock() + (self.config.failure_ttl if seconds is None else seconds), rcode, text)
        self._failures[query.key] = failure
        while len(self._failures) > MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
        return _Outcome(failure=failure)

    def _answer(self, agent: Agent, query: wire.Query, entry: Entry, now: float) -> bytes:
        config = self.config
        age = int(now - entry.stored)
        high = config.max_ttl if entry.reply.positive else config.negative_ttl
        answer = wire.render(entry.reply, query, age, config.min_ttl, high)
        self.cache.used_by(entry, agent.id)
        until = min(entry.stored + age + 1, entry.expires)
        if now >= entry.prefetch_from:
            if config.prefetch and entry.hits < 2:
                return answer  # the next one is to be seen here, too
            self._prefetch(agent, query, entry, now)
        elif until > entry.prefetch_from:
            until = entry.prefetch_from
        self.cache.remember_shape(entry, query, answer, until)
        return answer

    def _prefetch(self, agent: Agent, query: wire.Query, entry: Entry, now: float) -> None:
        """At the cost of the agent that makes it worth while: short TTLs would else be a way past its limit."""
        if not self.config.prefetch or query.key in self._inflight:
            return
        failure = self._failures.get(query.key)
        if failure is not None and failure.until > now:
            return
        state = self._state(agent, now)
        if len(self._inflight) < self.config.pending and self._take_token(state, now):
            self.counters["prefetched"] += 1
            self._start(query, entry.owner, state.slots, renew=True)

    def _may_be_stale(self, entry: Entry, now: float) -> bool:
        return self.config.stale and entry.reply.positive and now < entry.expires + self.config.stale_keep

    def _stale(self, agent: Agent, query: wire.Query, entry: Entry) -> bytes:
        self.counters["stale"] += 1
        self.cache.used_by(entry, agent.id)
        return wire.render(entry.reply, query, 0, 0, STALE_TTL, ttl=STALE_TTL, ede=(wire.EDE_STALE, ""))

    def _error(self, query: wire.Query, rcode: int, ede: tuple[int, str]) -> bytes:
        return wire.error_reply(query, rcode, ede)


__all__ = ["Plugin"]
