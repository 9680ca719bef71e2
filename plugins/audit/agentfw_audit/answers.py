"""The addresses in an answer to a DNS question."""

from __future__ import annotations

import functools

from agentfw import dns_reply, dns_wire

MOST = 16
"""That are told of one answer."""
LONG = 4096
"""Bytes; longer replies are read anew each time: a thousand of an agent's own name server would be 64 MB here."""


def addresses(qtype: int, reply: bytes) -> tuple[str, ...]:
    """Those that the agent was told for the name itself, or for what its CNAMEs lead to; () for other types and no answers."""
    if qtype not in (dns_wire.A, dns_wire.AAAA):
        return ()
    return _read(reply[2:]) if len(reply) <= LONG else _read.__wrapped__(reply[2:])


@functools.lru_cache(maxsize=1024)  # a fleet asks for the same names
def _read(tail: bytes) -> tuple[str, ...]:
    """`tail`: the reply without its ID."""
    try:
        return dns_reply.addresses_of(b"\0\0" + tail)[:MOST]
    except dns_wire.WireError:
        return ()
