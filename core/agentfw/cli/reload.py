"""SIGHUP to `agentfw run`: agentfw.toml is read again, and takes effect in what runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import AgentfwError, ConfigError
from ..reports import AuditEvent
from .output import complain, say

if TYPE_CHECKING:
    from ..config import Config
    from ..runtime import Runtime


class Terminal:
    """SIGHUP says one of two things: the terminal is gone, or somebody wants us to read our configuration again."""

    def __init__(self) -> None:
        self._had_one = _has_terminal()

    def hung_up(self) -> bool:
        return self._had_one and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:  # ENXIO: there is none, or it hung up
        return False
    return True


class Reloads:
    """`request()` whenever; one after the other, and several that come amid one are one. `load` reads the configuration."""

    def __init__(self, runtime: Runtime, load: Callable[[], Config], quiet: bool) -> None:
        self._runtime = runtime
        self._load = load
        self._quiet = quiet
        self._ready = False
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        self._wanted = True
        if self._ready and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    def begin(self) -> None:
        """The runtime has started: what was asked for meanwhile is done now."""
        self._ready = True
        if self._wanted:
            self.request()

    async def end(self) -> None:
        """No more of them; one that is being done is given up."""
        self._ready = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._wanted:
            self._wanted = False
            await self._reload()

    async def _reload(self) -> None:
        from ..plugins import without_effect

        names = self._runtime.plugins.names
        before = without_effect(self._runtime.config, names)
        try:
            try:
                config = self._load()
            except AgentfwError as error:
                self._runtime.audit(AuditEvent.about("reload", reason=f"refused: {error}"))
                raise
            done = await self._runtime.reload(config)
        except ConfigError as error:
            complain(f"not reloaded, all stays as it was: {error}", error.hint)
        except AgentfwError as error:
            complain(f"reload: {error}")
        except Exception as error:  # ours: agents run on
            complain(f"reload: internal error: {type(error).__name__}")
        else:
            if not self._quiet:
                ended = f"; open connections ended: {done.flows_cut}" if done.flows_cut else ""
                later = "; [run] counts from the next start" if done.run_changed else ""
                say(f"reloaded {config.file or 'without a file'}: {', '.join(done.tables) or 'nothing'} changed{ended}{later}")
                for note in without_effect(config, names):
                    if note not in before:
                        say(f"note: {note}")
