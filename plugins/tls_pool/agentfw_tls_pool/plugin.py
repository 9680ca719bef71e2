"""The plugin: configuration, the `connect` hook, and what a connection needs to be opened."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated

import msgspec
from agentfw.agents import Agent, ExitReport
from agentfw.destination import Destination, parse_address, parse_authority, parse_host
from agentfw.errors import ConfigError, DestinationError, TlsError
from agentfw.hookspecs import hookimpl
from agentfw.runtime import Runtime
from agentfw.upstream import TlsRequest, Upstream
from OpenSSL import SSL

from .connection import Connection
from .pool import OPERATOR, Key, Limits, Pool
from .trust import Trust, Versions

SWEEP = 5.0

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class TlsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [tls]. Times in seconds; counts are per destination unless they say otherwise."""

    ca_files: tuple[str, ...] = ()
    """PEM files of further authorities to trust; relative to agentfw.toml."""
    system_ca: bool = True
    """Trust the system's authorities and certifi's."""
    agent_ca: bool = False
    """Let agents talk to servers that only authorities of their own vouch for (never on shared hosts, never with credentials)."""
    min_version: Annotated[str, msgspec.Meta(pattern=r"\A1\.[23]\Z")] = "1.2"
    shared: tuple[str, ...] = ()
    """Hosts ("api.openai.com", "api.example.com:8443") whose connections serve one agent after the other: those that tell agents
    apart by what each request carries, as model APIs do, and that can be trusted to answer in order: bytes that come before a
    request is out are caught, bytes that come after it are taken for its answer. All others: a connection is one agent's own."""
    preconnect: tuple[str, ...] = ()
    """Shared hosts to open connections to before anyone asks."""
    preconnect_count: Positive = 2
    """For each of them."""
    max_connections: Positive = 1024
    max_pending: Positive = 1024
    """Requests waiting for a connection."""
    max_opening: Positive = 4
    """Handshakes at a time."""
    patience: Annotated[float, msgspec.Meta(ge=0)] = 0.05
    """From the fifth connection on, open another only if waiting for those in use would take longer, as calls took so far."""
    max_idle: Positive = 256
    max_requests: Positive = 1024
    """On one connection."""
    max_age: Seconds = 900.0
    idle_timeout: Seconds = 45.0
    """Below what servers have (60 s and more)."""
    agent_connections: Positive = 256
    """Of one agent, over all destinations."""
    connect_timeout: Seconds = 15.0
    queue_timeout: Seconds = 60.0

    def __post_init__(self) -> None:
        for field, hosts in (("shared", self.shared), ("preconnect", self.preconnect)):
            for index, text in enumerate(hosts):
                try:
                    parse_authority(text, 443)
                except DestinationError as error:
                    raise ConfigError(f"{field}.{index}", str(error)) from None
        shared = shared_hosts(self.shared)
        for index, text in enumerate(self.preconnect):
            host, port = parse_authority(text, 443)
            if host not in shared and (host, port) not in shared:
                raise ConfigError(f"preconnect.{index}", f"{text} is not listed in `shared`")


def shared_hosts(hosts: tuple[str, ...]) -> frozenset[str | tuple[str, int]]:
    """Names without a port stand for all ports."""
    found: set[str | tuple[str, int]] = set()
    for text in hosts:
        host, port = parse_authority(text, 0) if _has_port(text) else (_bare(text), 0)
        found.add((host, port) if port else host)
    return frozenset(found)


def _has_port(text: str) -> bool:
    return not text.endswith("]") and (text.startswith("[") or text.count(":") == 1)


def _bare(text: str) -> str:
    return parse_host(text[1:-1] if text.startswith("[") else text)


class Plugin:
    """`tls`."""

    name = "tls"
    config_type = TlsConfig

    def __init__(self, config: TlsConfig) -> None:
        self.config = config
        self.counters: Counter[str] = Counter()
        self.pool: Pool | None = None
        self.trust = Trust()
        self._runtime: Runtime | None = None
        self._shared = shared_hosts(config.shared)
        self._minimum = ssl.TLSVersion.TLSv1_3 if config.min_version == "1.3" else ssl.TLSVersion.TLSv1_2
        self._timer: asyncio.TimerHandle | None = None

    @hookimpl
    def start(self, runtime: Runtime) -> None:
        config = self.config
        self._runtime = runtime
        base = runtime.config.file.parent if runtime.config.file else Path()
        self.trust = Trust([base / Path(file).expanduser() for file in config.ca_files], system=config.system_ca)
        trouble = self.trust.check()
        if trouble:
            raise runtime.config.error(f"tls.ca_files.{trouble[0]}", trouble[1])
        limits = Limits(
            max_connections=config.max_connections,
            max_pending=config.max_pending,
            max_requests=config.max_requests,
            max_opening=config.max_opening,
            max_idle=config.max_idle,
            agent_connections=config.agent_connections,
            idle_timeout=config.idle_timeout,
            max_age=config.max_age,
            connect_timeout=config.connect_timeout,
            queue_timeout=config.queue_timeout,
            patience=config.patience,
        )
        self.pool = Pool(limits, self._open, runtime.check_address, self.counters)
        self._timer = runtime.loop.call_later(SWEEP, self._sweep)
        if config.preconnect:
            runtime.loop.call_soon(self._preconnect)  # when all plugins have started: policy and names are needed for it

    @hookimpl
    async def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self.pool:
            await self.pool.close()

    @hookimpl
    def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> Awaitable[Upstream] | None:
        if tls is None or self.pool is None:
            return None
        if tls.server_name is not None and tls.server_name != destination.host:
            raise TlsError(f"the name asked for ({tls.server_name}) is not the destination's ({destination.host})")
        key = self.key(agent, destination, tls)
        return self.pool.lease(key, agent, shared=self.is_shared(destination))

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        if self.pool:
            self.pool.agent_gone(agent)

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return self.pool.statistics() if self.pool else {}

    def is_shared(self, destination: Destination) -> bool:
        return destination.host in self._shared or (destination.host, destination.port) in self._shared

    def key(self, agent: Agent, destination: Destination, tls: TlsRequest) -> Key:
        """What an agent asks for can narrow what the host does, not widen it."""
        minimum = max(self._minimum, tls.minimum if tls.minimum > ssl.TLSVersion.TLSv1_2 else 0)
        maximum = tls.maximum if 0 < tls.maximum < ssl.TLSVersion.TLSv1_3 else 0
        if minimum > ssl.TLSVersion.TLSv1_3 or (maximum and maximum < minimum):
            raise TlsError("no TLS version is both allowed here and wanted by the agent", reason="NO_PROTOCOLS_AVAILABLE")
        # The relay speaks HTTP/1.1; a client that names no protocol (mail, databases) gets none.
        alpn = ("http/1.1",) if not {"http/1.1", "h2"}.isdisjoint(tls.alpn) else ()
        if self.is_shared(destination):
            labels = agent.labels
            tenant = f"tenant={labels.get('tenant', '')} policy={labels.get('policy', '')}"
            if self._runtime:
                tenant = " ".join((tenant, *self._runtime.plugins.tenant(agent, destination)))
        else:
            tenant = agent.id
            if self.config.agent_ca:
                return Key(destination, alpn, Versions(minimum, maximum), tenant, tls.cas)
        return Key(destination, alpn, Versions(minimum, maximum), tenant)

    def _preconnect(self) -> None:
        if self.pool:
            request = TlsRequest(None, ("http/1.1",))
            for text in self.config.preconnect:
                destination = Destination.make("https", *parse_authority(text, 443))
                self.pool.keep_open(self.key(OPERATOR, destination, request), self.config.preconnect_count)

    def _sweep(self) -> None:
        assert self.pool and self._runtime
        self.pool.sweep()
        self._timer = self._runtime.loop.call_later(SWEEP, self._sweep)

    async def _open(self, key: Key, agent: Agent, session: SSL.Session | None) -> Connection:
        """For `Pool`: dial a vetted address, negotiate, verify."""
        runtime = self._runtime
        assert runtime
        if agent is OPERATOR:
            await runtime.plugins.allow(agent, key.destination)
        sock = await runtime.dial(agent, key.destination, self.config.connect_timeout)
        try:
            address = parse_address(sock.getpeername()[0])
            context = self.trust.context(key.versions, key.alpn, key.cas)
            connection = Connection(sock, key.destination, context, address, may_greet=not key.alpn)
        except ValueError as error:
            sock.close()
            raise TlsError("an authority that the agent trusts is no X.509 certificate", reason="BAD_CA") from error
        except BaseException:
            sock.close()
            raise
        try:
            if key.cas:
                await connection.handshake(session, self.trust.vouches)
            else:
                await connection.handshake(session)
        except BaseException:
            connection.close()
            raise
        return connection
