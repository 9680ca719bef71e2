"""Secrets with a life of their own are one for a whole pool: a worker's plugin gets them from the one in the router, which alone
runs commands and asks token endpoints. They go over the link between the two processes, to nobody else."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec
from agentfw.errors import AgentfwError

if TYPE_CHECKING:
    from agentfw.pool.authority import PoolLink

log = logging.getLogger("agentfw.credentials")


class Question(msgspec.Struct, frozen=True, array_like=True):
    """`source`: its name ("oauth:NAME"); `rejected`: a value that a server did not accept, "": none was."""

    source: str
    rejected: str


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`value` "": there is none now. `seconds`: for which it is good."""

    value: str
    seconds: float

    def __repr__(self) -> str:  # it may come into a log
        return f"<Answer, good for {self.seconds:g} s>"


encode = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(Question).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


async def ask(link: PoolLink, source: str, rejected: str) -> Answer | None:
    """The router's answer; None: it does not answer."""
    try:
        return _decode_answer(await link.ask("credentials", encode(Question(source, rejected))))
    except AgentfwError as error:
        log.warning("%s: the router does not answer, it is got here instead: %s", source, error)
    except (msgspec.DecodeError, RecursionError):
        log.warning("%s: the router's answer is none, it is got here instead", source)
    return None
