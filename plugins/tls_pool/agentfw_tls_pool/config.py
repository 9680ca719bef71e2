"""The table [tls]."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from agentfw.destination import parse_authority
from agentfw.errors import ConfigError, DestinationError

MOST = 1_000_000
DAY = 86_400
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=DAY)]
SecondsOrNone = Annotated[float, msgspec.Meta(ge=0, le=DAY)]


class ClientCertificateConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One [[tls.client_certificate]]: what we show to a server that asks who we are."""

    host: str
    """Exact name or address, port 443; "name:port" for another."""
    cert: str
    """PEM file with our certificate, then its intermediate ones; relative to agentfw.toml."""
    key: str
    """PEM file with its private key, without a passphrase. Agents must not see it."""


class TlsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [tls]: whom the host trusts, and which connections agents share. Times in seconds; counts are per destination unless
    they say otherwise. Names and defaults of limits are Envoy's (circuit breakers, HTTP connection options)."""

    ca_files: tuple[str, ...] = ()
    """PEM files of further authorities to trust; relative to agentfw.toml."""
    system_ca: bool = True
    """Trust the system's authorities and certifi's."""
    agent_ca: bool = False
    """Agents may talk to servers that only authorities which they loaded themselves vouch for; not on shared hosts, and no
    credentials are set there."""
    client_certificate: tuple[ClientCertificateConfig, ...] = ()
    """What is shown to servers that ask who we are."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest version of TLS that is spoken."""
    shared: tuple[str, ...] = ()
    """Hosts, `"name"` or `"name:port"`, whose connections serve one agent after the other. For hosts that tell agents apart
    by what each request carries, as model APIs do, and can be trusted to answer in order: bytes that come before a request is out
    are caught, bytes that come after it are taken for its answer. All others: a connection is one agent's own."""
    separate_by: tuple[str, ...] = ("tenant", "policy")
    """Agents that differ in one of these labels never share a connection."""
    preconnect: tuple[str, ...] = ()
    """Shared hosts to which connections are opened before anyone asks, and kept; after failures they are tried again after
    0.5 s to 60 s."""
    preconnect_count: Positive = 2
    """So many for each of them."""
    retry_post: tuple[str, ...] = ()
    """Hosts where a POST, too, may be sent a second time, if a reused connection turned out to be closed before any answer."""
    max_connections: Positive = 1024
    """Open to one destination."""
    max_pending: Positive = 1024
    """Requests that may wait for one."""
    max_requests: Positive = 1024
    """Requests at once; more wait."""
    max_retries: Count = 3
    """Second attempts at once."""
    max_opening: Positive = 4
    """Handshakes with one destination at a time."""
    patience: SecondsOrNone = 0.05
    """Seconds: from the fifth connection to a destination on, another one is opened only if waiting for those in use would
    take longer, as calls took so far."""
    max_idle: Positive = 256
    """Connections of a destination kept open without use."""
    max_requests_per_connection: Positive = 1024
    """After so many requests a connection is replaced."""
    max_age: Seconds = 900.0
    """After so many seconds a connection is replaced."""
    idle_timeout: Seconds = 45.0
    """Seconds that a connection is kept without use; stay below the servers' time-outs (60 s and more)."""
    dns_drain: SecondsOrNone = 60.0
    """Seconds: a connection to an address that the name has not had for so long is replaced."""
    agent_connections: Positive = 256
    """One agent's, to all destinations, places in queues included."""
    connect_timeout: Seconds = 15.0
    """Seconds that a connection and its handshake may take."""
    queue_timeout: Seconds = 60.0
    """Seconds that a request may wait for a connection."""

    def __post_init__(self) -> None:
        for field, hosts in (("shared", self.shared), ("preconnect", self.preconnect), ("retry_post", self.retry_post)):
            for index, text in enumerate(hosts):
                _check_authority(f"{field}.{index}", text)
        shared = host_set(self.shared)
        for index, text in enumerate(self.preconnect):
            host, port = parse_authority(text, 443)
            if host not in shared and (host, port) not in shared:
                raise ConfigError(f"preconnect.{index}", f"{text} is not listed in `shared`")
        places = set()
        for index, each in enumerate(self.client_certificate):
            _check_authority(f"client_certificate.{index}.host", each.host)
            place = parse_authority(each.host, 443)
            if place in places:
                raise ConfigError(f"client_certificate.{index}.host", f"{each.host} has two client certificates")
            places.add(place)


def _check_authority(key: str, text: str) -> None:
    try:
        parse_authority(text, 443)
    except DestinationError as error:
        raise ConfigError(key, str(error)) from None


HostSet = frozenset[str | tuple[str, int]]


def host_set(hosts: tuple[str, ...]) -> HostSet:
    """Names without a port stand for all ports."""
    places = (parse_authority(text, 0) for text in hosts)
    return frozenset((host, port) if port else host for host, port in places)
