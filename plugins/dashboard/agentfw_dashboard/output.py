"""The end of what a job wrote, from the pool's book."""

from __future__ import annotations

import codecs
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agentfw.views import OutputPiece, OutputTail

if TYPE_CHECKING:
    from agentfw.pool.router import Router

SHOWN = 64 << 10
"""Bytes of both streams."""
MAX_PIECES = 2048


def tail_of(router: Router) -> Callable[[str], Awaitable[OutputTail]]:
    """-> `output(job_id)`; PoolError "no_such_job"."""

    async def output(job_id: str) -> OutputTail:
        info = await router.info(job_id)
        pieces, skipped = await router.last_output(job_id, SHOWN, MAX_PIECES)
        decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in (1, 2)}
        shown = [
            OutputPiece(stream=piece.stream, text=text) for piece in pieces if (text := decoders[piece.stream].decode(piece.data))
        ]
        return OutputTail(id=job_id, pieces=shown, skipped=skipped, ended=info.state == "done")

    return output
