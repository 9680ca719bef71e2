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
    reply = b"\0\0" + tail
    end = 12
    while end < len(reply) and reply[end]:
        end += 1 + reply[end]
    query = b"\0\0\1\0\0\1" + bytes(6) + reply[12 : end + 5]
    try:
        found = dns_reply.parse_addresses(reply, query, dns_wire.parse_query(query))
    except dns_wire.WireError:
        return ()
    return tuple(address for address, _ in found.found[:MOST])
