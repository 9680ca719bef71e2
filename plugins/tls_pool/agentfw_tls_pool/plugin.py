"""The plugin: configuration, the `connect` hook, reload, and what a connection needs to be opened."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentfw.agents import Agent, ExitReport
from agentfw.destination import Destination, parse_address, parse_authority
from agentfw.errors import ConfigError, TlsError, UpstreamError
from agentfw.homes import expanded
from agentfw.hookspecs import hookimpl
from agentfw.runtime import Runtime
from agentfw.upstream import TlsRequest, Upstream
from OpenSSL import SSL

from . import drain
from .config import TlsConfig, host_set
from .connection import Connection
from .failures import Abandoned
from .groups import Key, Limits
from .pool import OPERATOR, Pool
from .trust import ClientCertificate, Kind, Trust, Versions

SWEEP = 5.0
KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Seconds, seconds, probes: a peer that vanished without a word (a NAT that forgot, a machine that lost power) is noticed within
half a minute, also while the connection is idle (tcp(7))."""

log = logging.getLogger("agentfw.tls")


@dataclass(slots=True)
class Loaded:
    """A table that was checked, with the files that it names."""

    config: TlsConfig
    trust: Trust
    certificates: dict[tuple[str, int], ClientCertificate]

    @property
    def minimum(self) -> int:
        return ssl.TLSVersion.TLSv1_3 if self.config.min_version == "1.3" else ssl.TLSVersion.TLSv1_2


def load(config: TlsConfig, base: Path) -> Loaded:
    """Read the files, relative to `base`. ConfigError with the key within [tls]."""
    certificates = {}
    for index, each in enumerate(config.client_certificate):
        try:
            made = ClientCertificate(_path(base, each.cert, "cert"), _path(base, each.key, "key"))
        except ConfigError as error:
            raise ConfigError(f"client_certificate.{index}.{error.key}", error.message, hint=error.hint) from None
        certificates[parse_authority(each.host, 443)] = made
    files = [_path(base, file, f"ca_files.{i}") for i, file in enumerate(config.ca_files)]
    trust = Trust(files, system=config.system_ca, certificates=list(certificates.values()))
    return Loaded(config, trust, certificates)


def _path(base: Path, text: str, key: str) -> Path:
    return base / expanded(text, key)


def limits_of(config: TlsConfig) -> Limits:
    return Limits(**{name: getattr(config, name) for name in Limits.__slots__})


class Plugin:
    """`tls`."""

    name = "tls"
    config_type = TlsConfig

    def __init__(self, config: TlsConfig) -> None:
        self.config = config
        self.counters: Counter[str] = Counter()
        self.pool: Pool | None = None
        self._loaded = Loaded(config, Trust(system=False), {})
        self._generation = 0
        self._sees: Callable[[Path], bool] | None = None
        """What agents see, as `check_guest()` was told."""
        self._runtime: Runtime | None = None
        self._shared = host_set(config.shared)
        self._retry_post = host_set(config.retry_post)
        self._timer: asyncio.TimerHandle | None = None
        self._upkeep: asyncio.Task[None] | None = None

    # ---- life ----

    @hookimpl
    def start(self, runtime: Runtime) -> None:
        self._runtime = runtime
        try:
            self._loaded = load(self.config, self._base())
        except ConfigError as error:
            raise runtime.config.error(f"tls.{error.key}", error.message) from None
        self.pool = Pool(limits_of(self.config), self._open, runtime.check_address, self.counters)
        self._timer = runtime.loop.call_later(SWEEP, self._sweep)
        if self.config.preconnect:
            runtime.loop.call_soon(self._preconnect)  # when all plugins have started: policy and names are needed for it

    @hookimpl
    async def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._upkeep:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        if self.pool:
            await self.pool.close()

    def check_guest(self, file: Path | None, environment: Mapping[str, str], sees: Callable[[Path], bool]) -> None:
        """ConfigError if the agents could read the key of a client certificate; also of one that a reload brings."""
        self._sees = sees
        self._check_keys(self.config, file.parent if file else Path(), sees)

    def _check_keys(self, config: TlsConfig, base: Path, sees: Callable[[Path], bool]) -> None:
        for index, each in enumerate(config.client_certificate):
            key = _path(base, each.key, f"client_certificate.{index}.key").absolute()
            if sees(key):
                hint = "keep it in a directory that is not mounted, outside the script's"
                raise ConfigError(f"client_certificate.{index}.key", f"the agents could read this key, in {key}", hint=hint)

    def reconfigure(self, config: TlsConfig) -> Callable[[], None]:
        """Check a new table and read its files; what is returned makes it take effect and cannot fail."""
        if self._sees:
            self._check_keys(config, self._base(), self._sees)
        loaded = load(config, self._base())
        return lambda: self._commit(loaded)

    def _commit(self, loaded: Loaded) -> None:
        old = self._loaded
        changed = loaded.trust.digest != old.trust.digest or loaded.minimum != old.minimum
        if not changed and loaded.trust.certificates == old.trust.certificates:
            loaded.trust = old.trust  # with its contexts
        self._generation += changed
        self._loaded = loaded
        self.config = loaded.config
        self._shared = host_set(loaded.config.shared)
        self._retry_post = host_set(loaded.config.retry_post)
        pool = self.pool
        if pool is None:
            return
        pool.limits = limits_of(loaded.config)
        keys = {self._preconnect_key(text) for text in loaded.config.preconnect}
        for group in list(pool.groups.values()):
            key = group.key
            place = (key.destination.host, key.destination.port)
            certificate = loaded.certificates.get(place)
            if (
                key.generation != self._generation
                or group.shared != self.is_shared(key.destination)
                or key.certificate != (certificate.identity if certificate else "")
                or (group.shared and loaded.config.separate_by != old.config.separate_by)
                or (key.cas and not loaded.config.agent_ca)
            ):
                pool.abandon(group)
            elif key not in keys:
                group.keep = 0
        pool.sweep()
        self._preconnect()

    @hookimpl
    async def reloaded(self, runtime: Runtime) -> None:
        """Files are read again, though their names are the same; what policy now denies is drained."""
        try:
            loaded = await asyncio.to_thread(load, self.config, self._base())
        except ConfigError as error:
            log.error("[tls] %s: %s; what was read before stays in use", error.key, error.message)
        else:
            if loaded.config is self.config:
                self._commit(loaded)
        if self.pool:
            await drain.check_policy(runtime, self.pool)

    def _base(self) -> Path:
        file = self._runtime.config.file if self._runtime else None
        return file.parent if file else Path()

    # ---- connections ----

    @hookimpl
    def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> Awaitable[Upstream] | None:
        if tls is None or self.pool is None:
            return None
        if tls.server_name is not None and tls.server_name != destination.host:
            raise TlsError(f"the name asked for ({tls.server_name}) is not the destination's ({destination.host})")
        return self._lease(agent, destination, tls)

    async def _lease(self, agent: Agent, destination: Destination, tls: TlsRequest) -> Upstream:
        assert self.pool
        for _ in range(4):
            key = self.key(agent, destination, tls)
            known = self.pool.known(key, agent) if tls.probe else None
            if known is not None:
                return known
            try:
                lease = await self.pool.lease(key, agent, shared=self.is_shared(destination))
            except Abandoned:
                continue
            lease.retry_post = destination.host in self._retry_post or (destination.host, destination.port) in self._retry_post
            return lease
        raise UpstreamError("the configuration changes too often")

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
        minimum = max(self._loaded.minimum, tls.minimum if tls.minimum > ssl.TLSVersion.TLSv1_2 else 0)
        maximum = tls.maximum if 0 < tls.maximum < ssl.TLSVersion.TLSv1_3 else 0
        if minimum > ssl.TLSVersion.TLSv1_3 or (maximum and maximum < minimum):
            raise TlsError("no TLS version is both allowed here and wanted by the agent", reason="NO_PROTOCOLS_AVAILABLE")
        # The relay speaks HTTP/1.1; a client that names no protocol (mail, databases) gets none.
        alpn = ("http/1.1",) if not {"http/1.1", "h2"}.isdisjoint(tls.alpn) else ()
        cas: tuple[bytes, ...] = ()
        if self.is_shared(destination):
            parts = [f"{label}={agent.labels.get(label, '')!r}" for label in self.config.separate_by]
            if self._runtime:
                parts += self._runtime.plugins.tenant(agent, destination)
            tenant = repr(parts)
        else:
            tenant = agent.id
            if self.config.agent_ca:
                cas = tls.cas
        certificate = self._loaded.certificates.get((destination.host, destination.port))
        identity = certificate.identity if certificate else ""
        return Key(destination, alpn, Versions(minimum, maximum), tenant, cas, identity, self._generation)

    def _preconnect_key(self, text: str) -> Key:
        return self.key(OPERATOR, Destination.make("https", *parse_authority(text, 443)), TlsRequest(None, ("http/1.1",)))

    def _preconnect(self) -> None:
        if self.pool:
            for text in self.config.preconnect:
                self.pool.keep_open(self._preconnect_key(text), self.config.preconnect_count)

    def _sweep(self) -> None:
        assert self.pool and self._runtime
        self.pool.sweep()
        if self._upkeep is None or self._upkeep.done():
            self._upkeep = self._runtime.loop.create_task(drain.check_addresses(self._runtime, self.pool), name="tls upkeep")
            self._upkeep.add_done_callback(_log_failure)
        self._timer = self._runtime.loop.call_later(SWEEP, self._sweep)

    async def _open(self, key: Key, agent: Agent, session: SSL.Session | None) -> Connection:
        """For `Pool`: dial a vetted address, negotiate, verify."""
        runtime, trust = self._runtime, self._loaded.trust
        assert runtime
        if agent is OPERATOR:
            await runtime.plugins.allow(agent, key.destination)
        sock = await runtime.dial(agent, key.destination, self.config.connect_timeout)
        try:
            with contextlib.suppress(OSError):  # not a TCP socket after all: a test's
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in KEEPALIVE:
                    sock.setsockopt(socket.IPPROTO_TCP, option, value)
            address = parse_address(sock.getpeername()[0])
            context = trust.context(Kind(key.versions, key.alpn, key.cas, key.certificate))
            connection = Connection(sock, key.destination, context, address, may_greet=not key.alpn)
        except ValueError as error:
            sock.close()
            raise TlsError("an authority that the agent trusts is no X.509 certificate", reason="BAD_CA") from error
        except BaseException:
            sock.close()
            raise
        try:
            if key.cas:
                await connection.handshake(session, trust.vouches)
            else:
                await connection.handshake(session)
        except BaseException:
            connection.close()
            raise
        return connection


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("upkeep of held connections failed", exc_info=task.exception())
