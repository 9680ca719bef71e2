"""The plugin: configuration, the `resolve` hook, coalescing, stale answers, limits per agent."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from agentfw.agents import Agent, ExitReport
from agentfw.destination import parse_address, parse_host, parse_port
from agentfw.errors import ConfigError, DestinationError
from agentfw.hookspecs import hookimpl
from agentfw.runtime import Runtime

from . import wire
from .cache import UNIT, Cache, Entry
from .exchange import Exchange, Server, UpstreamFailed

log = logging.getLogger("agentfw.dns")

CACHED_TYPES = frozenset({wire.A, wire.AAAA, wire.CNAME, wire.HTTPS, wire.SVCB})
STALE_TTL = 30
OVERRIDE_TTL = 60
_LOCALHOST = ("127.0.0.1", "::1")

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class DnsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [dns]. Times in seconds."""

    upstream: tuple[str, ...] | None = None
    """Resolvers, "ADDRESS", "ADDRESS:PORT" or "[IPv6]:PORT"; default: those of the host's /etc/resolv.conf."""
    hosts: dict[str, str | tuple[str, ...]] = {}
    """Names answered here, with these addresses, and asked of nobody."""
    timeout: Seconds = 1.0
    """Of the first try with each upstream; the second gets twice as much."""
    rounds: Annotated[int, msgspec.Meta(ge=1, le=5)] = 2
    entries: Positive = 16_384
    """Size of the cache (a reply of more than 512 bytes counts as several)."""
    agent_entries: Positive = 2048
    """Of these, what names that only one agent asks for may take."""
    min_ttl: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 1
    max_ttl: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 3600
    negative_ttl: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 300
    failure_ttl: Annotated[int, msgspec.Meta(ge=1, le=300)] = 5
    prefetch: bool = True
    stale: bool = True
    """Give an expired answer rather than none."""
    stale_wait: Seconds = 1.8
    stale_keep: Seconds = 3600.0
    agent_pending: Positive = 64
    """Questions of one agent that wait for an upstream."""
    pending: Positive = 1024
    agent_rate: Annotated[float, msgspec.Meta(gt=0)] = 50.0
    """Questions a second that one agent may send upstream, on average."""
    agent_burst: Positive = 500
    name_length: Annotated[int, msgspec.Meta(ge=1, le=253)] = 253
    """Longer names are refused: they carry data, not hosts."""

    def __post_init__(self) -> None:
        for index, text in enumerate(self.upstream or ()):
            try:
                _server(text)
            except DestinationError as error:
                raise ConfigError(f"upstream.{index}", str(error)) from None
        for name, addresses in self.hosts.items():
            try:
                parse_host(name)
                for address in _several(addresses):
                    parse_address(address)
            except DestinationError as error:
                raise ConfigError(f"hosts.{name}", str(error)) from None
        if self.agent_entries > self.entries:
            raise ConfigError("agent_entries", "is more than entries")
        if self.min_ttl > min(self.max_ttl, self.negative_ttl):
            raise ConfigError("min_ttl", "is more than max_ttl or negative_ttl")


@dataclass(slots=True, eq=False)
class _AgentState:
    """Of one agent: what it has waiting, and its bucket of upstream questions."""

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
    """Of a question to the upstreams: exactly one of the three."""

    entry: Entry | None = None
    reply: wire.Reply | None = None
    """Not kept."""
    failure: _Failure | None = None


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
        self._inflight: dict[bytes, asyncio.Task[_Outcome]] = {}
        self._failures: dict[bytes, _Failure] = {}
        self._hosts = {parse_host(name): _records(_several(addresses)) for name, addresses in config.hosts.items()}
        self._hosts.setdefault("localhost", _records(_LOCALHOST))
        servers = [_server(text) for text in config.upstream] if config.upstream is not None else system_servers()
        self.exchange = Exchange(servers, config.timeout, config.rounds, self.counters)

    @hookimpl
    def start(self, runtime: Runtime) -> None:
        if not self.exchange.servers:
            log.warning("no upstream DNS server: only names in [dns.hosts] will resolve")

    @hookimpl
    async def stop(self) -> None:
        tasks = list(self._inflight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        self._agents.pop(agent.id, None)
        self.cache.owner_gone(agent.id)

    @hookimpl
    def resolve(self, agent: Agent, name: str, qtype: int, query: bytes) -> Awaitable[bytes] | bytes:
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
            "refused",
            "limited",
        )
        upstream = ("udp", "tcp", "failures", "mismatched", "truncated")
        return {
            "hits": self._hits + counters["hits"],
            **{name: counters[name] for name in names},
            "upstream_queries": counters["upstream_udp"] + counters["upstream_tcp"],
            **{f"upstream_{name}": counters[f"upstream_{name}"] for name in upstream},
            "entries": len(self.cache),
            "evicted": self.cache.evicted,
            "pending": len(self._inflight),
        }

    # ---- the slow path ----

    def _resolve(self, agent: Agent, name: str, wire_query: bytes, now: float) -> Awaitable[bytes] | bytes:
        try:
            query = wire.parse_query(wire_query)
        except wire.Refused as refusal:
            self.counters["refused"] += 1
            return refusal.reply
        if query.name != name:  # policy has judged `name`
            raise ValueError("the query is for another name than the hook's argument")
        if len(query.name) > self.config.name_length:
            self.counters["refused"] += 1
            return self._error(query, wire.REFUSED, (wire.EDE_PROHIBITED, "the name is too long"))
        override = self._hosts.get(name)
        if override is not None:
            self.counters["override_hits"] += 1
            return wire.made_reply(query, [record for record in override if record[0] == query.qtype], OVERRIDE_TTL)
        entry = self.cache.entries.get(query.key)
        if entry is not None and now < entry.expires:
            entry.hits += 1
            self.counters["hits" if entry.reply.positive else "negative_hits"] += 1
            return self._answer(agent, query, entry, now)
        failure = self._failures.get(query.key)
        if failure is not None and now < failure.until:
            if entry is not None and failure.rcode == wire.SERVFAIL and self._may_be_stale(entry, now):
                return self._stale(agent, query, entry)
            self.counters["failure_hits"] += 1
            return self._error(query, failure.rcode, (wire.EDE_CACHED_ERROR, failure.text))
        state = self._agents.get(agent.id)
        if state is None:
            state = self._agents[agent.id] = _AgentState(tokens=self.config.agent_burst, filled=now)
        task = self._inflight.get(query.key)
        if state.pending >= self.config.agent_pending:
            self.counters["limited"] += 1
            return self._error(query, wire.SERVFAIL, (wire.EDE_OTHER, "too many questions of this agent are waiting"))
        if task is None:
            limit = self._limited(state, now)
            if limit:
                self.counters["limited"] += 1
                return self._error(query, wire.REFUSED, (wire.EDE_PROHIBITED, limit))
            self.counters["misses"] += 1
            task = self._start(query, agent.id)
        else:
            self.counters["coalesced"] += 1
        return self._wait(agent, state, query, entry, task)

    def _limited(self, state: _AgentState, now: float) -> str:
        """Why this agent may not ask upstream now; "" if it may."""
        config = self.config
        if len(self._inflight) >= config.pending:
            return "too many questions are waiting"
        state.tokens = min(config.agent_burst, state.tokens + (now - state.filled) * config.agent_rate)
        state.filled = now
        if state.tokens < 1:
            return "this agent asks for too many names"
        state.tokens -= 1
        return ""

    def _start(self, query: wire.Query, owner: str) -> asyncio.Task[_Outcome]:
        """A task of its own: whoever asked first may go away, the others still get the answer."""
        task = asyncio.get_running_loop().create_task(self._fetch(query, owner), name=f"dns {query.name}")
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
        if outcome.entry is not None:
            return self._answer(agent, query, outcome.entry, self._clock())
        if outcome.failure is not None:
            if entry is not None and outcome.failure.rcode == wire.SERVFAIL and self._may_be_stale(entry, self._clock()):
                return self._stale(agent, query, entry)
            return self._error(query, outcome.failure.rcode, (wire.EDE_NETWORK, outcome.failure.text))
        assert outcome.reply is not None
        return wire.render(outcome.reply, query, 0, 0, self.config.max_ttl)

    async def _fetch(self, query: wire.Query, owner: str) -> _Outcome:
        config = self.config
        try:
            reply = await self.exchange.ask(query)
        except UpstreamFailed as error:
            return self._failed(query, wire.SERVFAIL, "no answer in time" if error.timed_out else "no upstream server answers")
        except Exception:
            log.exception("asking upstream for %s failed", query.name)
            return self._failed(query, wire.SERVFAIL, "internal error")
        if reply.failed:
            return self._failed(query, reply.rcode, "the upstream server failed")
        now = self._clock()
        lifetime = reply.lifetime(config.min_ttl, config.max_ttl, config.negative_ttl)
        if lifetime is None or query.qtype not in CACHED_TYPES:
            return _Outcome(reply=reply)
        cost = 1 + len(reply.wire) // UNIT
        entry = Entry(query.key, reply, now, now + lifetime, now + 0.9 * lifetime, owner, cost)
        self._failures.pop(query.key, None)
        self.cache.put(entry)
        return _Outcome(entry=entry)

    def _failed(self, query: wire.Query, rcode: int, text: str) -> _Outcome:
        """Kept for a few seconds beside the cache, so that it never replaces an answer."""
        failure = _Failure(self._clock() + self.config.failure_ttl, rcode, text)
        self._failures[query.key] = failure
        while len(self._failures) > 4096:
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
            self._prefetch(query, entry)
        elif until > entry.prefetch_from:
            until = entry.prefetch_from
        self.cache.remember_shape(entry, query, answer, until)
        return answer

    def _prefetch(self, query: wire.Query, entry: Entry) -> None:
        if (
            not self.config.prefetch
            or entry.hits < 2
            or query.key in self._inflight
            or len(self._inflight) >= self.config.pending
        ):
            return
        failure = self._failures.get(query.key)
        if failure is None or failure.until <= self._clock():
            self.counters["prefetched"] += 1
            self._start(query, entry.owner)

    def _may_be_stale(self, entry: Entry, now: float) -> bool:
        return self.config.stale and entry.reply.positive and now < entry.expires + self.config.stale_keep

    def _stale(self, agent: Agent, query: wire.Query, entry: Entry) -> bytes:
        self.counters["stale"] += 1
        self.cache.used_by(entry, agent.id)
        return wire.render(entry.reply, query, 0, 0, STALE_TTL, ttl=STALE_TTL, ede=(wire.EDE_STALE, ""))

    def _error(self, query: wire.Query, rcode: int, ede: tuple[int, str]) -> bytes:
        return wire.error_reply(query.wire, query.end, rcode, edns=query.edns, do=query.do, ede=ede)


def system_servers(file: Path = Path("/etc/resolv.conf")) -> list[Server]:
    """The nameservers that the host itself uses; none if the file cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    servers = []
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                ipaddress.ip_address(words[1])
            except ValueError:
                log.warning("%s: nameserver %s is not an address", file, words[1])
            else:
                servers.append(Server(words[1], 53))
    return servers[:3]


def _server(text: str) -> Server:
    host, port = text, "53"
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        if rest and not rest.startswith(":"):
            raise DestinationError("upstream", text, "expected ADDRESS, ADDRESS:PORT or [IPv6]:PORT")
        port = rest[1:] or "53"
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    return Server(parse_address(host), parse_port(port))


def _several(addresses: str | tuple[str, ...]) -> tuple[str, ...]:
    return (addresses,) if isinstance(addresses, str) else addresses


def _records(addresses: tuple[str, ...]) -> list[tuple[int, bytes]]:
    parsed = [ipaddress.ip_address(parse_address(address)) for address in addresses]
    return [(wire.A if address.version == 4 else wire.AAAA, address.packed) for address in parsed]


__all__ = ["DnsConfig", "Plugin", "system_servers"]
