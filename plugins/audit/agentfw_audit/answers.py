"""The addresses in an answer to a DNS question."""

from __future__ import annotations

import functools

from agentfw import dns_reply, dns_wire

MOST = 16
"""That are told of one answer."""


def addresses(qtype: int, reply: bytes) -> tuple[str, ...]:
    """Those that the agent was told for the name itself, or for what its CNAMEs lead to; () for other types and no answers."""
    return _addresses(bytes(reply[2:])) if qtype in (dns_wire.A, dns_wire.AAAA) else ()


@functools.lru_cache(maxsize=1024)  # a fleet asks for the same names
def _addresses(tail: bytes) -> tuple[str, ...]:
    """`tail`: the reply without its ID."""
    try:
        return dns_reply.addresses_of(b"\0\0" + tail)[:MOST]
    except dns_wire.WireError:
        return ()
