"""The table [dns]."""

from __future__ import annotations

import ipaddress
import logging
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from agentfw.addresses import is_public
from agentfw.destination import parse_address, parse_port
from agentfw.errors import ConfigError, DestinationError

from .exchange import Server
from .overrides import Overrides

log = logging.getLogger("agentfw.dns")

Names = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Questions = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
Seconds = Annotated[float, msgspec.Meta(ge=0.001, le=3600)]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# The guest's own addresses, and those that its kernel would keep to itself.
_GUESTS = [
    ipaddress.ip_network(text)
    for text in ("0.0.0.0/8", "127.0.0.0/8", "10.0.2.0/24", "224.0.0.0/3", "::/64", "fd00::/64", "fe80::/9", "ff00::/8")
]


class DnsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [dns]: how names are resolved, and what is kept of the answers. Times in seconds."""

    mode: Literal["cache", "synthetic"] = "cache"
    """`"synthetic"`: agents are told addresses that only stand for names."""
    upstream: tuple[str, ...] | None = None
    """Resolvers, `"ADDRESS"`, `"ADDRESS:PORT"` or `"[IPv6]:PORT"`, asked in turn; left out: those of the host's
    /etc/resolv.conf, and if there are none, the plugin `native`; `[]`: nobody is asked."""
    hosts: dict[str, str | tuple[str, ...]] = {}
    """Names answered here, each with an address or a list of them; `"*.name"` is every name below `name`. Also the reverse of
    these addresses."""
    hosts_files: tuple[str, ...] = ()
    """Files like /etc/hosts with more such names, relative to agentfw.toml; `hosts` wins. Read again at each reload. At most
    256 addresses a name; the reverse of an address is its first 16 names."""
    timeout: Seconds = 1.0
    """Seconds for the first try with each upstream; the second gets twice as much."""
    rounds: Annotated[int, msgspec.Meta(ge=1, le=5)] = 2
    """How often all of them are tried."""
    entries: Names = 16_384
    """Size of the cache (a reply of more than 512 bytes counts as several)."""
    agent_entries: Names = 2048
    """What names that only one agent asks for may take of it."""
    min_ttl: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 1
    """Seconds to which TTLs are raised, also as told to agents."""
    max_ttl: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 3600
    """Seconds to which TTLs are cut, also as told to agents."""
    negative_ttl: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 300
    """Most seconds for "no such name or type"."""
    failure_ttl: Annotated[int, msgspec.Meta(ge=1, le=300)] = 5
    """Seconds for a failure, which never replaces an answer."""
    prefetch: bool = True
    """Renew answers in use shortly before they expire."""
    stale: bool = True
    """When upstreams fail, or take longer than `stale_wait`, give an answer that has expired, with TTL 30."""
    stale_wait: Seconds = 1.8
    """Seconds."""
    stale_keep: Seconds = 3600.0
    """Seconds that such an answer may have been expired for, at most."""
    agent_pending: Questions = 256
    """Questions of one agent that may wait for an upstream; 64 of them are asked at a time."""
    pending: Questions = 2048
    """Questions of all agents that may wait for an upstream."""
    agent_rate: Annotated[float, msgspec.Meta(ge=0.001, le=1_000_000)] = 50.0
    """Questions a second that one agent may have sent upstream, on average."""
    agent_burst: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 500
    """Such questions at once."""
    name_length: Annotated[int, msgspec.Meta(ge=1, le=253)] = 253
    """Longer names are refused: they carry data, not hosts."""
    synthetic_networks: tuple[str, ...] = ("198.18.0.0/15", "fd4c:8e1b:70a3::/64")
    """Private networks that stand-ins come from, one IPv4 and one IPv6 at most; without one, names have no addresses of that
    kind."""
    synthetic_names: Names = 32_768
    """Names that have stand-ins at a time."""
    agent_names: Annotated[int, msgspec.Meta(ge=1, le=2048)] = 1024
    """Those of one agent. The core remembers 4,096 addresses of an agent, and a name has two."""

    def __post_init__(self) -> None:
        servers(self.upstream or ())
        Overrides.make(self.hosts)
        networks(self.synthetic_networks)
        if self.agent_entries > self.entries:
            raise ConfigError("agent_entries", "is more than entries")
        if self.agent_names > self.synthetic_names:
            raise ConfigError("agent_names", "is more than synthetic_names")
        if self.min_ttl > min(self.max_ttl, self.negative_ttl):
            raise ConfigError("min_ttl", "is more than max_ttl or negative_ttl")


def servers(upstream: tuple[str, ...]) -> list[Server]:
    """ConfigError names the entry."""
    found = []
    for index, text in enumerate(upstream):
        try:
            found.append(_server(text))
        except DestinationError as error:
            raise ConfigError(f"upstream.{index}", str(error)) from None
    return found


def system_servers(file: Path = Path("/etc/resolv.conf")) -> list[Server]:
    """The nameservers that the host itself uses; none if the file cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                ipaddress.ip_address(words[1])
            except ValueError:
                log.warning("%s: nameserver %s is not an address", file, words[1])
            else:
                found.append(Server(words[1], 53))
    return found[:3]


def networks(texts: tuple[str, ...]) -> list[Network]:
    """The networks that stand-ins come from. ConfigError: one that holds anybody's real address, or two of a kind."""
    found: list[Network] = []
    for index, text in enumerate(texts):
        key = f"synthetic_networks.{index}"
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise ConfigError(key, str(error)) from None
        if any(each.version == network.version for each in found):
            raise ConfigError(key, "a second one of its family")
        if not 16 <= network.num_addresses.bit_length() - 1 <= (24 if network.version == 4 else 64):
            raise ConfigError(key, "holds too few or too many addresses (IPv4: /8 to /16; IPv6: /64 to /112)")
        guests = any(each.version == network.version and network.overlaps(each) for each in _GUESTS)
        if guests or not network.is_private or is_public(str(network[1])) or is_public(str(network[-1])):
            raise ConfigError(key, "has addresses that are the guests' own, or somebody's on the internet; take a private one")
        found.append(network)
    return found


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
