"""Bytes both ways, unlooked at: plain TCP, passed-through TLS, non-HTTP inside offloaded TLS, upgraded connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ..errors import ProtocolError, UpstreamError
from ..flows import errno_of
from ..http1 import BodyTransform, transformed
from ..upstream import Upstream
from . import preface
from .session import Session

log = logging.getLogger("agentfw.relay")


async def relay_raw(
    session: Session,
    upstream: Upstream,
    first: asyncio.Future[bytes] | bytes | None = None,
    transforms: Sequence[BodyTransform] = (),
) -> None:
    """Until both directions have ended, the guest is gone, or the upstream breaks (the guest is then reset). Takes the lease
    over.

    `first`: what the upstream has sent already, or a read of it that was begun. `transforms`: see or change what it sends; an
    error of theirs resets the guest.
    """
    loop = asyncio.get_running_loop()
    up = loop.create_task(_up(session, upstream))
    down = loop.create_task(_down(session, upstream, first, transforms))
    gone = session.gone
    pending: set[asyncio.Task[None]] = {up, down, gone}
    try:
        while not (up.done() and (down.done() or gone.done())):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if gone.done() and down in pending:  # what the guest sent before it closed still goes out; nobody reads answers
                down.cancel()
                pending.discard(down)
        session.flow.close()
    except (OSError, UpstreamError, ProtocolError) as error:
        log.debug("%s: %s: %s", session.agent.name, upstream.destination, error)
        session.count("raw_broken")
        session.record.failed(error)
        session.flow.reset(errno_of(error))
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        upstream.release()


async def _up(session: Session, upstream: Upstream) -> None:
    try:
        while session.buffer or await session.fill():
            at = preface.late(session.buffer)
            if at > 0:
                await upstream.send(session.take(at))
            if at < 0 or not await _declined(session):
                await upstream.send(session.take(65536))
        await upstream.send_eof()
    except (OSError, UpstreamError):  # it may have answered before it closed: reading tells
        session.count("raw_send_failed")


async def _declined(session: Session) -> bool:
    """The guest begins TLS in the middle of its connection (STARTTLS, databases, tunnels), and asks the host for it: it is told
    to do that itself. It waits for the answer, so what goes on behind a preface is none."""
    length = preface.preface_length(session.buffer)
    while length is not None and len(session.buffer) < length:
        if not await session.fill():
            return False
    if length != len(session.buffer):
        return False
    session.take(length)
    session.count("tls_declined")
    await session.tell(preface.declined())
    return True


async def _down(
    session: Session,
    upstream: Upstream,
    first: asyncio.Future[bytes] | bytes | None,
    transforms: Sequence[BodyTransform],
) -> None:
    data = (first or await upstream.receive()) if first is None or isinstance(first, bytes) else await first
    last = False
    while not last:
        last = not data
        turn = False
        try:
            for part, _ in transformed(transforms, data, last):
                if turn:
                    await asyncio.sleep(0)
                turn = True
                if part:
                    await session.send(part)
        except BrokenPipeError:
            return
        if not last:
            data = await upstream.receive()
    session.flow.send_eof()
