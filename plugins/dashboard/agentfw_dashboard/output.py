"""The end of what a job wrote, from the pool's book."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Awaitable, Callable

from agentfw.pool.backend import Backend
from agentfw.pool.jobs import Output
from agentfw.views import OutputPiece, OutputTail

SHOWN = 64 << 10
"""Bytes of both streams."""
MAX_PIECES = 2048


def tail_of(backend: Backend) -> Callable[[str], Awaitable[OutputTail]]:
    """-> `output(job_id)`; PoolError "no_such_job"."""

    async def output(job_id: str) -> OutputTail:
        info = await backend.info(job_id)
        pieces: deque[Output] = deque()
        size = 0
        ends = {1: 0, 2: 0}
        async for piece in backend.output(job_id, follow=False):
            ends[piece.stream] = max(ends[piece.stream], piece.offset + len(piece.data))
            pieces.append(piece)
            size += len(piece.data)
            while pieces and (size - len(pieces[0].data) >= SHOWN or len(pieces) > MAX_PIECES):
                size -= len(pieces.popleft().data)
        kept = [piece.data for piece in pieces]
        if size > SHOWN:
            kept[0] = kept[0][size - SHOWN :]
        decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in ends}
        shown = [
            OutputPiece(stream=piece.stream, text=text)
            for piece, data in zip(pieces, kept, strict=True)
            if (text := decoders[piece.stream].decode(data))
        ]
        skipped = sum(ends.values()) - sum(map(len, kept))
        return OutputTail(id=job_id, pieces=shown, skipped=skipped, ended=info.state == "done")

    return output
