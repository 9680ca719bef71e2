"""Virtual machines take turns: how much one of them may have the worker do in one iteration of its event loop."""

from __future__ import annotations

import asyncio
from collections import deque

EACH = 4
"""Calls of a VM's flows an iteration. What follows such a call may take some 0.2 ms (a request that is refused): with all its 124
flows' in one iteration, again and again, a VM would have the others wait for most of a second at each step of theirs."""


class Turns:
    """One VM's. Its flows wait for each other in the order in which they came, and for no other VM's."""

    __slots__ = ("_beginning", "_left", "_waiting")

    def __init__(self) -> None:
        self._left = EACH
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._beginning = False
        """`_begin` will be called in the next iteration."""

    async def take(self) -> None:
        """At once, or as soon as it is this call's turn."""
        if self._left and not self._waiting:
            self._left -= 1
            self._begin_soon()
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._begin_soon()
        await waiter  # if it is cancelled now, its turn is another's in the next iteration

    def _begin_soon(self) -> None:
        if not self._beginning:
            self._beginning = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """An iteration of the loop begins."""
        self._beginning = False
        self._left = EACH
        while self._left and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._left -= 1
        if self._left < EACH:
            self._begin_soon()
