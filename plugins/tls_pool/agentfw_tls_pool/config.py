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
    """Table [tls]. Times in seconds; counts are per destination unless they say otherwise. Names and defaults of limits are
    Envoy's (circuit breakers, HTTP connection options)."""

    ca_files: tuple[str, ...] = ()
    """PEM files of further authorities to trust; relative to agentfw.toml."""
    system_ca: bool = True
    """Trust the system's authorities and certifi's."""
    agent_ca: bool = False
    """Let agents talk to servers that only authorities of their own vouch for (never on shared hosts, never with credentials)."""
    client_certificate: tuple[ClientCertificateConfig, ...] = ()
    min_version: Literal["1.2", "1.3"] = "1.2"
    shared: tuple[str, ...] = ()
    """Hosts ("api.openai.com", "api.example.com:8443") whose connections serve one agent after the other: those that tell agents
    apart by what each request carries, as model APIs do, and that can be trusted to answer in order: bytes that come before a
    request is out are caught, bytes that come after it are taken for its answer. All others: a connection is one agent's own."""
    separate_by: tuple[str, ...] = ("tenant", "policy")
    """Agents that differ in one of these labels never share a connection."""
    preconnect: tuple[str, ...] = ()
    """Shared hosts to open connections to before anyone asks."""
    preconnect_count: Positive = 2
    """For each of them."""
    retry_post: tuple[str, ...] = ()
    """Hosts where a POST may be sent a second time, too, if a reused connection turned out to be closed before any answer."""
    max_connections: Positive = 1024
    max_pending: Positive = 1024
    """Requests waiting for a connection."""
    max_requests: Positive = 1024
    """At once; more wait."""
    max_retries: Count = 3
    """At once."""
    max_opening: Positive = 4
    """Handshakes at a time."""
    patience: SecondsOrNone = 0.05
    """From the fifth connection on, open another only if waiting for those in use would take longer, as calls took so far."""
    max_idle: Positive = 256
    max_requests_per_connection: Positive = 1024
    max_age: Seconds = 900.0
    idle_timeout: Seconds = 45.0
    """Below what servers have (60 s and more)."""
    dns_drain: SecondsOrNone = 60.0
    """A connection to an address that the name has not had for so long is not used again."""
    agent_connections: Positive = 256
    """Of one agent, over all destinations, places in queues included."""
    connect_timeout: Seconds = 15.0
    queue_timeout: Seconds = 60.0

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
