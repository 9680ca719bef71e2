"""Where this host listens for its operators: no agent is connected to such a place, whatever a policy says."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from . import addresses

Listener = tuple[str, int]
"""A numeric address and a port."""


def reached(address: str, port: int, listeners: Iterable[Listener]) -> Listener | None:
    """The listener that a connection to `address` (canonical) and `port` would come to; None: none of them.

    An address that carries another one (NAT64, 6to4, ...) counts as that one, too. 0.0.0.0 and :: are the host itself: connect()
    takes them for its loopback address (Linux, net/ipv4/route.c and net/ipv6/tcp_ipv6.c).
    """
    found = [each for each in listeners if each[1] == port]
    if not found:
        return None
    address = address.partition("%")[0]  # a link's name says which of them has it, and is written in several ways
    meant = [ipaddress.ip_address(each) for each in (address, *addresses.embedded(address))]
    meant = [getattr(each, "ipv4_mapped", None) or each for each in meant]
    anything = any(each.is_unspecified for each in meant)
    for listener in found:
        at = ipaddress.ip_address(listener[0].partition("%")[0])
        if anything or any(each == at for each in meant):
            return listener
        if at.is_unspecified and any(each.is_loopback or addresses.is_own(str(each)) for each in meant):
            return listener
    return None
