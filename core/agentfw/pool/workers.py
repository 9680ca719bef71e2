"""Workers as the router sees them: processes that are watched, and replaced when they die; or one engine in this process.

A worker is lost when its process ends, when its link breaks, or when it does not answer for HANG seconds (then it is killed). The
next process is started at once, after each further failure later (`Patience`); one that served for a while starts afresh.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from ..runtime import Runtime
from .jobs import PoolError, WorkerInfo
from .link import Channel, Direct, Link
from .messages import Counts, Failed, Ping, Ready, Setup, Stop, ToRouter
from .serving import Serving

GRACE = 1.0
"""Seconds for a process that has closed its link to end by itself."""
KILL = 10.0
"""Seconds for the kernel to take a killed one apart."""
MOMENT = 0.05
"""Seconds that a worker is waited for that did not answer the last time."""

log = logging.getLogger("agentfw.pool")


@dataclass(frozen=True)
class Patience:
    """Seconds."""

    heartbeat: float = 5.0
    """Between two questions whether a worker is there."""
    hang: float = 15.0
    """For its answer."""
    start: float = 300.0
    """Until a worker is ready: it may have to make a snapshot."""
    stop: float = 10.0
    """Until it has ended when it was told to; then it is killed."""
    first_delay: float = 0.1
    """Before a process is started again that did not come far; twice as long each time, up to `longest_delay`."""
    longest_delay: float = 30.0
    good: float = 30.0
    """A process that served so long did come far."""


class Owner(Protocol):
    """The router."""

    def from_worker(self, worker: Worker, message: Any) -> None:
        """An event. An exception costs the worker its life."""

    async def asked(self, worker: Worker, message: Any) -> msgspec.Struct: ...

    def ready(self, worker: Worker) -> None:
        """It has started."""

    def changed(self, worker: Worker) -> None:
        """It may be given jobs again."""

    def worker_lost(self, worker: Worker, reason: str) -> None:
        """All that it did is gone. `worker.runs` is as it was."""

    def setup(self, worker: Worker) -> Setup:
        """What it shall be now."""


class Worker:
    """One of the router's places for jobs (`sharding.Place`), whatever process serves it."""

    def __init__(self, owner: Owner, number: int, patience: Patience) -> None:
        self.number = number
        self.slots = 1
        self.known: dict[tuple[str, str], None] = {}
        self.runs: dict[str, Any] = {}
        """Jobs that it has, by the names of their runs. The router's."""
        self.state: Literal["starting", "ready", "draining", "lost"] = "starting"
        self.counts = Counts()
        self.restarts = 0
        self.generation = 0
        """Of the router's configuration, with which it works. The router's."""
        self.channel: Channel | None = None
        self.went = False
        """It has ended by itself, as it was told to."""
        self._called_silent = False
        self._owner = owner
        self._patience = patience
        self._ready: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[str] | None = None

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def load(self) -> int:
        return len(self.runs)

    @property
    def free(self) -> bool:
        return self.state == "ready" and len(self.runs) < self.slots and self.channel is not None and not self.channel.full

    def link(self) -> Channel:
        """PoolError "unavailable" while there is none."""
        if self.channel is None or self.state != "ready":
            raise PoolError("unavailable", f"worker {self.number} is being replaced", "try again in a moment")
        return self.channel

    @property
    def silent(self) -> bool:
        """It does not answer, and may be lost. (One that starts imports plugins, which is no fault.)"""
        return self.state != "starting" and self.channel is not None and self.channel.silent

    def patience(self, seconds: float) -> float:
        """How long to wait for an answer that somebody looks at: of one that is silent for a moment only, as nobody shall wait
        again and again until it is known to be lost. When it speaks it is waited for as others are."""
        silent = self.silent
        if silent and not self._called_silent:
            log.warning("worker %d (process %d) does not answer: what it counts is told as it was before", self.number, self.pid)
        self._called_silent = silent
        return min(seconds, MOMENT) if silent else seconds

    def info(self) -> WorkerInfo:
        return WorkerInfo(
            number=self.number,
            pid=self.pid,
            state=self.state,
            running=len(self.runs),
            idle=self.counts.idle,
            cells=self.counts.cells,
            restarts=self.restarts,
            silent=self.silent,
        )

    async def look(self, seconds: float) -> None:
        """Ask for its counts. PoolError."""
        if self.channel is not None:
            self.counts = await self.channel.ask(Ping(), Counts, seconds)

    # -- Peer

    def event(self, message: Any) -> None:
        if isinstance(message, Ready):
            if self._ready is not None and not self._ready.done():
                self.state = "ready"
                self._ready.set_result(None)
                self._owner.ready(self)
        elif isinstance(message, Failed):
            if self._ready is not None and not self._ready.done():
                self._ready.set_exception(message.error())
        else:
            self._owner.from_worker(self, message)

    async def request(self, message: Any) -> msgspec.Struct:
        return await self._owner.asked(self, message)

    def lost(self, reason: str) -> None:
        if self._lost is not None:
            _set(self._lost, reason)

    def writable(self) -> None:
        if self.state == "ready":
            self._owner.changed(self)

    # -- life

    async def start(self) -> None:
        """Returns when it is ready. PoolError with its own words if it cannot be."""
        raise NotImplementedError

    async def close(self) -> None:
        """Kill all that runs in it; it does not come back. Idempotent."""
        raise NotImplementedError

    def replace(self, reason: str) -> None:
        """Have another process in its place, at once."""
        raise NotImplementedError

    def _begin(self) -> tuple[asyncio.Future[None], asyncio.Future[str]]:
        loop = asyncio.get_running_loop()
        self._ready, self._lost = loop.create_future(), loop.create_future()
        self.counts = Counts()
        return self._ready, self._lost


class LocalWorker(Worker):
    """An engine in this process, over the same messages."""

    def __init__(self, owner: Owner, runtime: Runtime, patience: Patience) -> None:
        super().__init__(owner, 0, patience)
        self._serving = Serving(runtime)

    async def start(self) -> None:
        ready, _ = self._begin()
        self.channel, self._serving.channel = Direct.pair(self, self._serving)
        setup = self._owner.setup(self)
        self.slots = setup.size
        self.channel.send(setup)
        await ready

    async def close(self) -> None:
        self.state = "draining"
        await self._serving.close()
        if self.channel is not None:
            self.channel.close()

    def replace(self, reason: str) -> None:
        log.error("the engine in this process cannot be replaced: %s", reason)


class ProcessWorker(Worker):
    """A process of its own."""

    def __init__(self, owner: Owner, number: int, patience: Patience) -> None:
        super().__init__(owner, number, patience)
        self._process: subprocess.Popen[bytes] | None = None
        self._life: asyncio.Task[None] | None = None
        self._closing = False
        self._wake = asyncio.Event()
        self._first: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._first = loop.create_future()
        self._life = loop.create_task(self._live(), name=f"worker {self.number}")
        await self._first

    async def close(self) -> None:
        self._closing = True
        self._wake.set()
        life = self._life
        if life is None:
            return
        if self.channel is not None:
            self.state = "draining"
            self.channel.send(Stop())
            await asyncio.wait([life], timeout=self._patience.stop)
        self.lost("it was stopped")
        await asyncio.wait([life])  # never cancelled: it has a process to reap

    def replace(self, reason: str) -> None:
        self.lost(reason)

    async def _live(self) -> None:
        """One process after the other."""
        assert self._first is not None
        try:
            await self._processes(self._first)
        finally:
            if not self._first.done():  # closed before it began
                self._first.set_exception(PoolError("unavailable", "the pool was stopped"))
                self._first.exception()  # whether anybody waits for it or not

    async def _processes(self, first: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        delay = 0.0
        while not self._closing:
            begun = loop.time()
            self.state = "starting"
            try:
                reason = await self._serve()
            except PoolError as error:  # it did not become ready
                if not first.done():
                    first.set_exception(error)
                    return
                reason = str(error)
            except OSError as error:  # no memory, no descriptors
                if not first.done():
                    first.set_exception(PoolError("internal", f"a worker cannot be started: {error.strerror}"))
                    return
                reason = f"it cannot be started: {error.strerror}"
            except Exception as error:
                log.exception("worker %d: a mistake of the router's", self.number)
                reason = f"a mistake of the router's: {type(error).__name__}"
            if self._closing:
                return
            if loop.time() - begun >= self._patience.good:
                delay = 0.0
            log.error("worker %d is lost: %s; the next one starts in %.1f s", self.number, reason, delay)
            self.restarts += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            delay = min(max(2 * delay, self._patience.first_delay), self._patience.longest_delay)

    async def _serve(self) -> str:
        """One process, from its start to its end; -> why it ended."""
        assert self._first is not None
        ready, lost = self._begin()
        pidfd = -1
        heart: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = start_process(theirs)
            pidfd = os.pidfd_open(self._process.pid)
            loop.add_reader(pidfd, self._exited, pidfd, lost)
            self.channel = await Link.open(ours, self, ToRouter)
            setup = self._owner.setup(self)
            self.slots = setup.size
            self.channel.send(setup)
            both: tuple[asyncio.Future[Any], ...] = (ready, lost)
            await asyncio.wait(both, timeout=self._patience.start, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done() and not lost.done():
                raise PoolError("internal", f"worker {self.number} was not ready within {self._patience.start:g} s")
            if ready.done():
                ready.result()
                heart = loop.create_task(self._heart())  # not before: importing plugins holds a worker up, which is no fault
                if not self._first.done():
                    self._first.set_result(None)
            await lost
        finally:
            self.state = "draining" if self._closing else "lost"
            by_us = not lost.done()
            self.lost("it was stopped")
            if heart is not None:
                heart.cancel()
            if ready.done() and not ready.cancelled():
                ready.exception()  # it was looked at
            if self.channel is not None:
                self.channel.close()
                self.channel = None
            else:
                ours.close()
            how = await self._end_process(pidfd, by_us)
            reason = f"{lost.result()} ({how})"
            self._owner.worker_lost(self, reason)
        if not ready.done() and self._closing:
            raise PoolError("unavailable", "the pool was stopped while it started")
        if not ready.done():
            raise PoolError("internal", f"worker {self.number} did not start: {reason}", "its own words are in the log")
        return reason

    @staticmethod
    def _exited(pidfd: int, lost: asyncio.Future[str]) -> None:
        """The process has ended. What it said before is still in the link and goes first; the link ends with it, unless a process
        that it left behind holds it."""
        asyncio.get_running_loop().remove_reader(pidfd)
        asyncio.get_running_loop().call_later(GRACE, _set, lost, "its process ended")

    async def _end_process(self, pidfd: int, by_us: bool) -> str:
        """Kill it, unless it ends by itself right now; -> how it ended."""
        process = self._process
        if process is None:
            return "there was no process"
        try:
            if pidfd >= 0 and process.poll() is None and not by_us:
                await _wait_for(pidfd, GRACE)
        finally:
            if process.poll() is None:
                process.kill()
            if pidfd >= 0:
                await _wait_for(pidfd, KILL)
                os.close(pidfd)
            status = process.wait()
            self._process = None
            self.went = self._closing and not status
        return f"exit status {status}" if status >= 0 else f"killed by signal {-status}"

    async def _heart(self) -> None:
        """Says that it is lost when it does not answer. Asked twice: it may be us who stood still."""
        while True:
            await asyncio.sleep(self._patience.heartbeat)
            for seconds in (self._patience.hang, self._patience.heartbeat):
                with contextlib.suppress(PoolError):
                    await self.look(seconds)
                    break
            else:
                self.lost(f"it did not answer for {self._patience.hang:g} s")
                return


def start_process(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """A worker with this end of a link. It dies with the calling thread."""
    command = [sys.executable, "-P", "-m", "agentfw.pool.worker", str(theirs.fileno())]
    return subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2, process_group=0)


def _set(future: asyncio.Future[str], result: str) -> None:
    if not future.done():
        future.set_result(result)


async def _wait_for(pidfd: int, seconds: float) -> None:
    """Until this process has ended, or the time is over."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(pidfd)
