"""`map`: one job an input, so many at once, results in order or as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R", covariant=True)

AHEAD = 4
"""Results that may wait for an earlier one, times `concurrency`."""
GIVE_UP_SECONDS = 5.0


class Progress(Protocol):
    def advance(self, ok: bool) -> None: ...
    def close(self) -> None: ...


class Results(Generic[R]):
    """What `map` returns. `async for` gives results one by one; `await` all of them, in a list. Nothing runs before that; what
    still runs when the iteration is given up is killed. For one use."""

    def __init__(self, make: Callable[[], AsyncIterator[R]]) -> None:
        self._make = make
        self._used = False

    def __aiter__(self) -> AsyncIterator[R]:
        if self._used:
            raise RuntimeError("results can be gone through once; `await` them to have a list")
        self._used = True
        return self._make()

    def __await__(self) -> Generator[Any, None, list[R]]:
        return self._all().__await__()

    async def _all(self) -> list[R]:
        return [result async for result in self]


async def mapped(
    inputs: Iterable[Any] | AsyncIterable[Any],
    work: Callable[[int, Any], Awaitable[T]],
    *,
    concurrency: int,
    ordered: bool,
    progress: Progress,
    ok: Callable[[T], bool],
) -> AsyncIterator[T]:
    """`work(index, input)` for each input, at most `concurrency` at once; inputs are taken as there is room, so they may be
    endless. What `work` raises is raised here, and all others are cancelled."""
    source = _source(inputs)
    ended: asyncio.Queue[tuple[int, asyncio.Task[T]] | None] = asyncio.Queue()
    running: set[asyncio.Task[T]] = set()
    slots = asyncio.Semaphore(concurrency)
    window = asyncio.Semaphore(concurrency * (1 + AHEAD))
    """Of jobs whose results have not been taken: a reader who is slow, or one job that is, must not fill the memory."""
    begun = 0

    def begin(index: int, each: Any) -> None:
        def done(task: asyncio.Task[T]) -> None:
            slots.release()
            ended.put_nowait((index, task))

        task = asyncio.ensure_future(_awaited(work(index, each)))
        running.add(task)
        task.add_done_callback(done)

    async def feed() -> None:
        nonlocal begun
        try:
            while True:
                await window.acquire()
                await slots.acquire()
                try:
                    each = await anext(source)
                except StopAsyncIteration:
                    return
                begin(begun, each)
                begun += 1
                await asyncio.sleep(0)  # a source that never waits
        finally:
            ended.put_nowait(None)

    feeder = asyncio.ensure_future(feed())
    waiting: dict[int, T] = {}
    given, more = 0, True
    try:
        while more or given < begun:
            item = await ended.get()
            if item is None:
                more = False
                feeder.result()  # what taking an input raised
                continue
            index, task = item
            running.discard(task)
            result = task.result()
            progress.advance(ok(result))
            waiting[index] = result
            while waiting and (not ordered or given in waiting):
                given += 1
                window.release()
                yield waiting.pop(given - 1 if ordered else index)
    finally:
        progress.close()
        left: list[asyncio.Task[Any]] = [feeder, *running]
        for other in left:
            other.cancel()
        await asyncio.wait(left, timeout=GIVE_UP_SECONDS)
        for other in left:
            if other.done() and not other.cancelled():
                other.exception()  # it was cancelled for another's error, which is the one that is told
        close = getattr(source, "aclose", None)
        if close is not None:
            with contextlib.suppress(Exception):
                await close()


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _source(inputs: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(inputs, AsyncIterable):
        async for each in inputs:
            yield each
    else:
        for each in inputs:
            yield each
