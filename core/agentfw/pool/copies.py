"""Copies of running jobs while they are being made: the worker saves the job first, which may take a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from .book import Entry
from .link import Channel
from .messages import Done, Fork, Signal
from .workers import Worker


class Copies:
    """`failed(worker, copies)`: they did not come to be. `runs`: names of the runs that are being made."""

    def __init__(self, failed: Callable[[Worker, Sequence[Entry]], None], channel: Callable[[int], Channel | None]) -> None:
        self.runs: set[str] = set()
        self.made = 0
        self._failed = failed
        self._channel = channel
        self._unwanted: set[asyncio.Future[None]] = set()
        """Forks that are being made for callers who have gone."""

    async def make(self, worker: Worker, channel: Channel, entry: Entry, copies: Sequence[Entry]) -> None:
        """Returns when they run. PoolError. If the caller goes away meanwhile they are killed: nobody would know their ids."""
        making = asyncio.ensure_future(self._make(worker, channel, entry, copies))
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            self._unwanted.add(making)
            making.add_done_callback(lambda _: self._kill(making, copies))
            raise

    async def _make(self, worker: Worker, channel: Channel, entry: Entry, copies: Sequence[Entry]) -> None:
        """Signals for copies are kept until the worker knows them."""
        runs = {copy.run for copy in copies}
        self.runs |= runs
        try:
            await channel.ask(Fork(entry.run, tuple(copy.run for copy in copies)), Done)
        except BaseException:
            self._failed(worker, copies)
            raise
        finally:
            self.runs -= runs
        for copy in copies:
            for number in copy.signals if copy.state != "done" else ():
                channel.send(Signal(copy.run, number))
            copy.signals.clear()
        self.made += len(copies)

    def _kill(self, making: asyncio.Future[None], copies: Sequence[Entry]) -> None:
        self._unwanted.discard(making)
        if making.cancelled() or making.exception() is not None:
            return
        for copy in copies:
            if copy.state != "done" and copy.worker is not None:
                channel = self._channel(copy.worker)
                if channel is not None:
                    channel.send(Signal(copy.run, 9))
