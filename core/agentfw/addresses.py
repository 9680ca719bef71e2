"""Which addresses are the public internet's. Everything else needs an operator's word.

`ipaddress.is_global` is not used: it says True for 6to4, NAT64, multicast and cloud metadata in public ranges.
"""

from __future__ import annotations

import functools
import ipaddress
import socket

_V4_SPECIAL = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this network; Linux takes 0.0.0.0 for the host itself
            "10.0.0.0/8",
            "100.64.0.0/10",  # shared address space, and 100.100.100.200 (metadata)
            "127.0.0.0/8",
            "168.63.129.16/32",  # Azure's wire server: metadata in a public range
            "169.254.0.0/16",  # link-local, and 169.254.169.254 (metadata)
            "172.16.0.0/12",
            "192.0.0.0/24",  # IETF protocol assignments, and 192.0.0.192 (metadata)
            "192.0.2.0/24",
            "192.88.99.0/24",  # 6to4 relay anycast
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarking
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",  # reserved and broadcast
        ),
    )
)
_V6_PUBLIC = ipaddress.IPv6Network("2000::/3")  # all that IANA has given out as global unicast
_V6_SPECIAL = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # IETF protocol assignments: Teredo, benchmarking, ORCHID
            "2001:db8::/32",
            "2002::/16",  # 6to4: any IPv4 address inside
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)


def is_loopback(host: str) -> bool:
    """What is said to it does not leave this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@functools.lru_cache(maxsize=4096)
def is_public(address: str) -> bool:
    """Of a numeric address: it is unicast on the public internet, whatever it embeds included. Not an address: False."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _V4_SPECIAL)
    if parsed.scope_id is not None:
        return False
    if parsed.ipv4_mapped is not None:
        return is_public(str(parsed.ipv4_mapped))
    low = int(parsed) & 0xFFFFFFFF
    if parsed in _NAT64:  # with DNS64 all of the IPv4 internet is behind it
        return is_public(str(ipaddress.IPv4Address(low)))
    if parsed not in _V6_PUBLIC or any(parsed in network for network in _V6_SPECIAL):
        return False
    if int(parsed) >> 32 & 0xFFFFFFFF in _ISATAP:
        return is_public(str(ipaddress.IPv4Address(low)))
    return True


@functools.lru_cache(maxsize=4096)
def embedded(address: str) -> tuple[str, ...]:
    """The IPv4 addresses that a canonical address carries inside, and that a gateway may lead to: NAT64 (RFC 6052, RFC 8215),
    6to4 (RFC 3056), Teredo's server and client (RFC 4380), ISATAP (RFC 5214), IPv4-compatible (RFC 4291, 2.5.5.1)."""
    if ":" not in address:
        return ()
    number = int(ipaddress.IPv6Address(address))
    low, high = number & 0xFFFFFFFF, number >> 96
    found = []
    if (number >> 32 == 0 and low > 1) or number >> 32 == int(_NAT64.network_address) >> 32:
        found.append(low)
    elif number >> 80 == 0x0064FF9B0001:
        found += [low, (number >> 64 & 0xFFFF) << 16 | (number >> 40 & 0xFFFF)]
    elif high >> 16 == 0x2002:
        found.append(number >> 80 & 0xFFFFFFFF)
    elif high == 0x20010000:
        found += [number >> 64 & 0xFFFFFFFF, low ^ 0xFFFFFFFF]
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        found.append(low)
    return tuple(str(ipaddress.IPv4Address(each)) for each in dict.fromkeys(found))


def is_own(address: str) -> bool:
    """The host itself has this (canonical) address now. Asks the routing table; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect((address, 9))
            own: str = probe.getsockname()[0]
        except OSError:  # no route: not ours
            return False
    return ipaddress.ip_address(own) == ipaddress.ip_address(address)
