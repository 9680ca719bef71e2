"""What the plugin in a worker of a pool asks the one in its router, and the answer: one upstream query a question and TTL.

The router's answer has its age, so that TTLs go on where they stand. If the router does not answer, a worker asks the upstreams
itself: many queries are better than none.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec
from agentfw.errors import AgentfwError

from . import wire

if TYPE_CHECKING:
    from agentfw.pool.authority import PoolLink

log = logging.getLogger("agentfw.dns")


class Question(msgspec.Struct, frozen=True, array_like=True):
    """`query`: as the agent sent it; `owner`: the agent; `renew`: one that is to expire soon will not do."""

    query: bytes
    owner: str
    renew: bool


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """`seconds`: for which the question need not be asked again."""

    seconds: float
    rcode: int
    text: str


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`age`: seconds since `reply` came; `lifetime`: seconds from then on, None: it is not to be kept. Beside a failure it is an
    expired one."""

    reply: wire.Reply | None = None
    age: float = 0.0
    lifetime: float | None = None
    failure: Failure | None = None


encode = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(Question).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


async def ask(link: PoolLink, query: wire.Query, owner: str, renew: bool) -> Answer | None:
    """The router's answer; None: it has none to give."""
    try:
        body = await link.ask("dns", encode(Question(query.wire, owner, renew)))
        answer = _decode_answer(body)
    except (AgentfwError, msgspec.DecodeError, RecursionError) as error:
        log.warning("the router answers no questions, asking upstream instead: %s", error)
        return None
    return answer if answer.reply is not None or answer.failure is not None else None
