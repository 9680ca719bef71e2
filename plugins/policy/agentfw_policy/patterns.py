"""Patterns of hosts, networks and ports, as rules write them, and an index of them by place.

A *place* is a key of the index: a name or canonical address as it is, ".example.com" (every name below it), "" (every name), or
`ANYTHING`. Networks are kept by prefix length, so that looking an address up costs one dict access a length in use.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentfw.addresses import embedded
from agentfw.destination import is_address, parse_authority, parse_host, parse_port

ANYTHING = "*"
"""The place of a rule without a host: every name and every address."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Item = TypeVar("Item")

_V4_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One host pattern. `port` 0: all."""

    text: str
    place: str
    network: Network | None = None
    port: int = 0

    @property
    def of_address(self) -> bool:
        """It is written for addresses."""
        return self.network is not None or is_address(self.place)


def parse_pattern(text: str) -> Pattern:
    """ "name", "*.name" (below it), "*" (every name), "address", each with ":port"; "10.0.0.0/8", "10.0.0.0/8:443",
    "[2001:db8::/32]:443". ValueError says what is wrong."""
    if "://" in text:
        raise ValueError("a URL; wanted is just the host, or host:port (paths are for `paths` of a [[policy.rule]])")
    if "/" in text:
        return _parse_network(text)
    if text == "*" or text.startswith("*:"):
        return Pattern(text, "", None, parse_authority("any" + text[1:], 0)[1])
    if text.startswith("*."):
        host, port = parse_authority(text[2:], 0)
        if is_address(host):
            raise ValueError("an address has no subdomains")
        return Pattern(text, "." + host, None, port)
    if text.count(":") > 1 and not text.startswith("["):
        return Pattern(text, parse_host(text))
    host, port = parse_authority(text, 0)
    return Pattern(text, host, None, port)


def _parse_network(text: str) -> Pattern:
    inside, port = text, 0
    if text.startswith("["):
        inside, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("unbalanced brackets")
        port = parse_port(rest[1:]) if rest else 0
    else:
        address, _, length = text.partition("/")
        if ":" in length:
            length, _, number = length.partition(":")
            inside, port = f"{address}/{length}", parse_port(number)
    return Pattern(text, "", parse_network(inside), port)


def parse_network(text: str) -> Network:
    """A network, or an address as the network of it alone; an IPv4-mapped one as IPv4, which is what addresses are parsed to."""
    try:
        network = ipaddress.ip_network(text if "/" in text else parse_host(text))
    except ValueError as error:
        raise ValueError(f"{error} (write a name, an address or a network, without a path)") from None
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_V4_MAPPED):
        low = int(network.network_address) & 0xFFFFFFFF
        return ipaddress.IPv4Network((low, network.prefixlen - 96))
    return network


Ports = tuple[tuple[int, int], ...]
"""Ranges, both ends included; empty: all."""


def parse_ports(values: Iterable[int | str]) -> Ports:
    """443, "443", "8000-8999" -> ranges in order. ValueError."""
    found = []
    for value in values:
        low, dash, high = value.partition("-") if isinstance(value, str) else (value, "", "")
        first = parse_port(low)
        last = parse_port(high) if dash else first
        if last < first:
            raise ValueError(f"bad port range `{value}`: the first is larger than the last")
        found.append((first, last))
    return tuple(sorted(found))


def port_in(port: int, ports: Ports) -> bool:
    return not ports or any(low <= port <= high for low, high in ports)


def ports_cover(outer: Ports, inner: Ports) -> bool:
    """Every port of `inner` is one of `outer`."""
    if not outer:
        return True
    if not inner:
        return False
    merged: list[list[int]] = []
    for low, high in outer:
        if merged and low <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return all(any(low <= first and last <= high for low, high in merged) for first, last in inner)


def places(host: str) -> list[str]:
    """The places of a name, the narrowest first: itself, ".parent", ..., "". Without ANYTHING."""
    found = [host]
    dot = host.find(".")
    while dot >= 0:
        found.append(host[dot:])
        dot = host.find(".", dot + 1)
    found.append("")
    return found


class Index(Generic[Item]):
    """Items by the pattern they were added with."""

    def __init__(self) -> None:
        self._hosts: dict[str, list[Item]] = {}
        self._networks: dict[int, dict[int, dict[int, list[Item]]]] = {4: {}, 6: {}}
        """version -> prefix length -> the prefix as a number -> items"""

    def add(self, pattern: Pattern | None, item: Item) -> None:
        """`pattern` None: ANYTHING."""
        if pattern is None:
            self._hosts.setdefault(ANYTHING, []).append(item)
        elif pattern.network is not None:
            self.add_network(pattern.network, item)
        else:
            self._hosts.setdefault(pattern.place, []).append(item)

    def add_network(self, network: Network, item: Item) -> None:
        shift = network.max_prefixlen - network.prefixlen
        by_length = self._networks[network.version].setdefault(network.prefixlen, {})
        by_length.setdefault(int(network.network_address) >> shift, []).append(item)

    def name(self, host: str) -> list[Item]:
        """Those for a name, ANYTHING's included."""
        hosts = self._hosts
        found: list[Item] = []
        for place in (*places(host), ANYTHING):
            if place in hosts:
                found += hosts[place]
        return found

    def anything(self) -> list[Item]:
        return self._hosts.get(ANYTHING, [])

    def place(self, place: str) -> list[Item]:
        return self._hosts.get(place, [])

    def address(self, address: str, length: int | None = None) -> list[Item]:
        """Those written for this address or a network that holds it (with `length`: all of `address`/`length`); not
        ANYTHING's."""
        found = list(self._hosts.get(address, ())) if length is None else []
        version, number, bits = _number(address)
        for prefix, networks in self._networks[version].items():
            if length is None or prefix <= length:
                found += networks.get(number >> (bits - prefix), ())
        return found

    def embedded(self, address: str) -> list[Item]:
        """As `address()`, for it and for every IPv4 address that it carries inside."""
        found = self.address(address)
        for inside in embedded(address):
            found += self.address(inside)
        return found


@functools.lru_cache(maxsize=4096)
def _number(address: str) -> tuple[int, int, int]:
    """Version, number and bits of a canonical address. ValueError if it is none. PERF: each connection's is looked up."""
    parsed = ipaddress.ip_address(address)
    return parsed.version, int(parsed), parsed.max_prefixlen
