"""One job that was submitted: to read, feed, signal, fork and wait for."""

from __future__ import annotations

import asyncio
import codecs
import signal as signals
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from ..pool.backend import Backend
from ..pool.jobs import JobInfo, Output
from .results import Result

if TYPE_CHECKING:
    from .pool import Pool

Stream = Literal["stdout", "stderr"]


class Handle:
    """A job of a pool. Iterating over it gives its output as it comes, from the beginning, until its end.

        job = await pool.submit("agent.py")
        async for piece in job: ...
        result = await job.wait()

    It may be dropped: the job goes on. All methods may raise PoolError: "no_such_job" when the pool has forgotten it.
    """

    def __init__(self, pool: Pool, job_id: str, kept: JobInfo | None = None) -> None:
        self._pool = pool
        self._kept = kept
        self.id = job_id

    @property
    def _backend(self) -> Backend:
        return self._pool.backend

    async def info(self) -> JobInfo:
        """Where it stands now."""
        return await self._backend.info(self.id)

    def output(self, *, follow: bool = True, stdout: int = 0, stderr: int = 0) -> AsyncIterator[Output]:
        """What it wrote, from these offsets on, in the order in which it came; `follow`: until its end, else what there is."""
        return self._backend.output(self.id, follow=follow, stdout=stdout, stderr=stderr)

    def __aiter__(self) -> AsyncIterator[Output]:
        return self.output()

    async def lines(self, stream: Stream = "stdout") -> AsyncGenerator[str, None]:
        """Its lines on one stream, as text without the line ends, as they come."""
        number = 1 if stream == "stdout" else 2
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        begun: list[str] = []
        async with aclosing(_generator(self.output())) as pieces:
            async for piece in pieces:
                if piece.stream != number:
                    continue
                *whole, rest = decoder.decode(piece.data).split("\n")
                for part in whole:
                    yield ("".join(begun) + part).removesuffix("\r")
                    begun.clear()
                begun.append(rest)
        last = "".join(begun) + decoder.decode(b"", final=True)
        if last:
            yield last

    async def wait(self, timeout: float | None = None, *, check: bool = False) -> Result:  # noqa: ASYNC109
        """Its end, with all that it wrote. `timeout`: seconds to wait here, then TimeoutError; the job goes on. `check`: raise
        JobFailed if it ended badly."""
        async with asyncio.timeout(timeout):
            result = await collect(self._backend, self.id)
        return result.check() if check else result

    async def feed(self, data: bytes | str, end: bool = False) -> None:
        """More standard input, of a job that was submitted `interactive`; `end`: and no more after it. Waits while the pool has
        enough of it."""
        await self._backend.feed(self.id, data.encode() if isinstance(data, str) else data, end)

    async def signal(self, number: int) -> None:
        """A signal to its program (SIGINT is KeyboardInterrupt there). Nothing, if it has ended."""
        await self._backend.signal(self.id, int(number))

    async def kill(self) -> None:
        """End it now, also while it waits for its turn."""
        await self._backend.signal(self.id, signals.SIGKILL)

    async def fork(self, count: int = 1) -> list[Handle]:
        """`count` copies, each going on from where it stands now, with output, pid, seed and clock of its own; connections are
        reset in them. PoolError "unsupported" where it does not run."""
        return [Handle(self._pool, info.id, info) for info in await self._backend.fork(self.id, count)]

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"


async def collect(backend: Backend, job_id: str, given: Any = None) -> Result:
    """Wait for a job's end, and take all that it wrote."""
    streams: dict[int, list[bytes]] = {1: [], 2: []}
    sizes = {1: 0, 2: 0}
    gap = False
    async with aclosing(_generator(backend.output(job_id))) as pieces:
        async for piece in pieces:
            gap = gap or piece.offset != sizes[piece.stream]
            sizes[piece.stream] = piece.offset + len(piece.data)
            streams[piece.stream].append(piece.data)
    info = await backend.wait(job_id)
    out, err = b"".join(streams[1]), b"".join(streams[2])
    usage = info.result.usage if info.result is not None else None
    short = usage is not None and (len(out) < usage.stdout or len(err) < usage.stderr)
    return Result(info, out, err, gap or short, given)


def _generator(pieces: AsyncIterator[Output]) -> Any:
    """To be closed at once when its reader stops, not when it happens to be collected."""
    return pieces if hasattr(pieces, "aclose") else _through(pieces)


async def _through(pieces: AsyncIterator[Output]) -> AsyncIterator[Output]:
    async for piece in pieces:
        yield piece
