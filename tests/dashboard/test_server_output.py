"""The end of what a job wrote, as the page shows it: bounded, in order, whatever bytes it is made of."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agentfw.pool.jobs import JobInfo, Output, PoolError
from agentfw.pool.kept_output import KeptOutput
from agentfw.views import OutputTail
from agentfw_dashboard.output import MAX_PIECES, SHOWN, tail_of

from tests.core.support import async_test


class Backend:
    """Of one job."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.kept = KeptOutput(limit)
        self.state: Any = "running"

    async def info(self, job_id: str) -> JobInfo:
        if job_id != "j":
            raise PoolError("no_such_job", "no such job")
        return JobInfo(id="j", name="n", tenant="t", template="d", labels={}, state=self.state, submitted=0.0)

    async def last_output(self, job_id: str, size: int, pieces: int) -> tuple[list[Output], int]:
        return self.kept.last(size, pieces)


async def tail(backend: Backend) -> OutputTail:
    return await tail_of(backend)("j")  # type: ignore[arg-type]


@async_test
async def test_both_streams_in_order() -> None:
    backend = Backend()
    assert await tail(backend) == OutputTail(id="j")
    for stream, data in ((1, b"a\n"), (2, b"b\xff"), (1, b"\xe2\x82"), (2, b"!"), (1, b"\xac\x1b[2J")):
        backend.kept.add(stream, data)
    backend.state = "done"
    found = await tail(backend)
    assert [(piece.stream, piece.text) for piece in found.pieces] == [(1, "a\n"), (2, "b\ufffd"), (2, "!"), (1, "€\x1b[2J")]
    assert found.ended and found.skipped == 0
    with pytest.raises(PoolError, match="no such job"):
        await tail_of(backend)("other")  # type: ignore[arg-type]


@async_test
async def test_of_much_the_end() -> None:
    backend = Backend()
    written = 0
    for number in range(40_000):
        data = b"%06d\n" % number
        backend.kept.add(1, data)
        written += len(data)
    found = await tail(backend)
    text = "".join(piece.text for piece in found.pieces)
    assert len(text) == SHOWN and text.endswith("039999\n") and found.skipped == written - SHOWN


@async_test
async def test_of_many_pieces_the_last() -> None:
    backend = Backend()
    for number in range(3 * MAX_PIECES):
        backend.kept.add(1 if number % 2 else 2, b"x")
    found = await tail(backend)
    assert len(found.pieces) == MAX_PIECES and found.skipped == 2 * MAX_PIECES


@async_test
async def test_what_was_not_kept_counts_as_skipped() -> None:
    backend = Backend(limit=100_000)
    for _ in range(100):
        backend.kept.add(2, bytes(10_000))
    found = await tail(backend)
    assert sum(len(piece.text) for piece in found.pieces) == SHOWN and found.skipped == 1_000_000 - SHOWN


@async_test
async def test_what_was_dropped_counts_as_skipped() -> None:
    backend = Backend()
    backend.kept.add(1, b"x" * 1000)
    backend.kept.drop()
    assert await tail(backend) == OutputTail(id="j", skipped=1000)


@async_test
async def test_many_pieces_cost_no_more_than_those_that_are_shown() -> None:
    """An agent can write a byte to this stream and a byte to that: the router looks at none that it does not show."""
    backend = Backend()
    for number in range(200_000):
        backend.kept.add(1 if number % 2 else 2, b"x")
    before = time.process_time()
    for _ in range(20):
        assert (await tail(backend)).skipped == 200_000 - MAX_PIECES
    assert time.process_time() - before < 2
