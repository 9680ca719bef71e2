"""Secrets with a life of their own: what a command prints, and (oauth.py) tokens."""

from __future__ import annotations

import asyncio
import logging
import random
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from agentfw import ConfigError
from agentfw.small_output import NoOutput, kill, small_output

from . import shared
from .config import CommandConfig
from .sources import READ, Source
from .values import check_secret, one_line

if TYPE_CHECKING:
    from agentfw.runtime import Runtime

log = logging.getLogger("agentfw.credentials")

EARLY = 0.8
"""Part of its life after which a value is renewed, less up to a tenth of that by chance."""
RETRY = 5.0
"""Seconds after a failure, doubled each time up to RETRY_MOST."""
RETRY_MOST = 120.0
SHORTEST = 5.0
"""Seconds before a worker asks again for a value that is about to end, or has."""
DOUBT = 30.0
"""Seconds between renewals because a server did not accept a value."""


class Renewed(Source):
    """A value with a life of its own, renewed by one task at a time, ahead of its end as long as it is in use.

    Subclasses say how in `_renew()`, which returns (value, seconds it is good for) or raises Unavailable.
    """

    keeps = True
    """After its end it is used until there is another."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expires = float("inf")
        self._used = False
        self._lapsed = False
        """It should have been renewed, but nobody had asked for it: when somebody does."""
        self._failures = 0
        self._not_before = 0.0
        self._no_doubt_before = 0.0
        self._doubted = ""
        """The value that was rejected last: not renewed for that again until one is accepted."""
        self._stopped = False
        self._runtime: Runtime | None = None

    async def start(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def _renew(self) -> tuple[str, float]:
        raise NotImplementedError

    @property
    def value(self) -> str | None:
        self._used = True
        if self._lapsed and not self._stopped:
            self._begin()
        if self._value is not None and not self.keeps and time.monotonic() >= self._expires:
            return None
        return self._value

    async def get(self) -> str | None:
        if self.value is None and not self._stopped:
            if self._task is None and time.monotonic() < self._not_before:
                return None  # it failed a moment ago
            await asyncio.shield(self._begin())
        return self.value

    def rejected(self, value: str) -> None:
        if value == self._value and self._doubted != value and not self._stopped:
            self.counters["rejected"] += 1
            known, self._doubted = self._doubted, value
            now = time.monotonic()
            if known or now < self._no_doubt_before:
                return  # the one before it was rejected, too: another would be no better; or agents make it so again and again
            self._no_doubt_before = now + DOUBT
            if not self.keeps:
                self._expires = 0.0
            self._begin()

    def accepted(self, value: str) -> None:
        if value == self._value:
            self._doubted = ""

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def _begin(self) -> asyncio.Task[None]:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)
        return self._task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None

    async def _run(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._used = self._lapsed = False
        began = time.monotonic()
        try:
            value, seconds = await self._obtain()
        except Exception as error:
            self.counters["failures"] += 1
            # No text that may quote the secret.
            why = str(error) if isinstance(error, Unavailable) else f"it failed ({type(error).__name__})"
            wait = min(RETRY * 2**self._failures, RETRY_MOST) * random.uniform(0.8, 1.0)
            self._failures += 1
            self._not_before = time.monotonic() + wait
            usable = self._value is not None and (self.keeps or time.monotonic() < self._expires)
            log.warning("%s: %s%s", self.name, why, "; the last good value stays in use" if usable else "")
        else:
            self.counters["renewed"] += 1
            self._failures, self._not_before = 0, 0.0
            self._expires = began + seconds
            wait = seconds * EARLY * random.uniform(0.9, 1.0)
            self._set(value)
        if not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(wait, self._due)

    async def _obtain(self) -> tuple[str, float]:
        """From the router, in a worker of a pool."""
        link = self._runtime.pool if self._runtime is not None else None
        if link is not None and link.role == "worker":
            known = self._value or ""
            answer = await shared.ask(link, self.name, known if self._doubted == known else "")
            if answer is not None and not answer.value:
                raise Unavailable("the router has none (its log says why)")
            if answer is not None:
                return answer.value, answer.seconds
        return await self._renew()

    async def told(self, rejected: str) -> tuple[str | None, float]:
        """In the router, for a worker: the value, and for how many seconds it is good. `rejected`: see `rejected()`."""
        if rejected:
            self.rejected(rejected)
        if self._task is not None:
            await asyncio.shield(self._task)
        value = await self.get()
        return value, max(self._expires - time.monotonic(), SHORTEST)

    def _due(self) -> None:
        self._timer = None
        if self._used:
            self._begin()
        else:
            self._lapsed = True


class Unavailable(Exception):
    """Why there is no value; one line, without secrets."""


class Command(Renewed):
    """What a program of the operator's prints. Its errors may quote the secret: they are not looked at."""

    def __init__(self, name: str, config: CommandConfig) -> None:
        super().__init__(f"command:{name}")
        self.config = config
        self._running: set[subprocess.Popen[bytes]] = set()

    async def start(self, runtime: Runtime) -> None:
        await super().start(runtime)
        if self._value is None:
            await self._begin()
            if self._value is None:
                raise ConfigError(f"command.{self.name.partition(':')[2]}", "it gave no secret (the log says why)")

    async def _renew(self) -> tuple[str, float]:
        return await asyncio.to_thread(_output, self.config, self._running), self.config.ttl

    async def stop(self) -> None:
        self._stopped = True
        for process in list(self._running):  # or its thread would hold up the end
            kill(process)
        await super().stop()


def _output(config: CommandConfig, running: set[subprocess.Popen[bytes]]) -> str:
    """Run it to its end. `running` has it meanwhile. Unavailable."""
    try:
        data = small_output(config.argv, config.timeout, READ, running)
        return check_secret(one_line(data.decode("utf-8")), "what it printed")
    except NoOutput as error:
        raise Unavailable(str(error)) from None
    except UnicodeDecodeError:
        raise Unavailable("what it printed is not text") from None
    except ConfigError as error:
        raise Unavailable(error.message) from None
