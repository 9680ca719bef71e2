"""The plugin: which spans there are, and when they end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agentfw import Agent, ConfigError, ExitReport, hookimpl
from agentfw.errors import PluginError
from agentfw.homes import expanded
from agentfw.model_calls import ModelCall
from agentfw.reports import AuditEvent, DispatchReport
from agentfw.runtime import Runtime

from .config import Config

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from .sending import Sending, Way
    from .spans import Spans

MAX_LIVE = 65536
"""Agents with a span; further ones have none."""
STOP_SECONDS = 5.0
TOLD = frozenset({"denied", "plugin_failed", "report_only", "agent_stopped", "budget_used_up"})
"""Kinds of events that a job's span has."""

log = logging.getLogger("agentfw.otel")


class Plugin:
    """See the package."""

    name = "otel"
    api = "1.1"
    config_type = Config

    def __init__(self, config: Config) -> None:
        self._config = config
        self._spans, self._way = _made(config)
        self._way.sending = self._spans.sending
        self._runtime: Runtime | None = None
        self._live: dict[str, Span] = {}
        self._began: dict[str, int] = {}
        """Nanoseconds, by a clock that nobody sets."""
        """By agent's id."""
        self._untold = 0
        self._old: list[Sending] = []
        """Of before a reload, that send what still waits."""
        self._counted: Counter[str] = Counter()
        """By those that are gone."""
        self._sees: Callable[[Path], bool] = lambda path: False
        self._closing: set[asyncio.Task[None]] = set()

    def check_guest(self, file: Path | None, environment: Mapping[str, str], sees: Callable[[Path], bool]) -> None:
        """ConfigError if agents could read the headers."""
        self._sees = sees
        self._check(self._config)

    def _check(self, config: Config) -> None:
        if config.headers_file is None:
            return
        path = expanded(config.headers_file, "headers_file").absolute()
        for place in (path, path.parent, path.resolve(), path.parent.resolve()):
            if self._sees(place):
                error = ConfigError("headers_file", f"the agents see {place}")
                error.hint = "keep it where no agent looks, outside of mounts and of the program's directory"
                raise error

    def reconfigure(self, config: Config) -> Callable[[], None]:
        """Spans from then on as that says, to where that says. A program for headers is run when they are wanted."""
        self._check(config)
        spans, _ = _made(config, self._way)
        if config.headers_file is not None:
            spans.sending.check()

        def commit() -> None:
            old, self._config, self._spans = self._spans, config, spans
            self._way.sending = spans.sending
            spans.redact = self._redact()
            self._counted["spans"] += old.begun
            if self._runtime is not None:
                task = self._runtime.loop.create_task(self._close(old.sending))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

        return commit

    def _redact(self) -> Callable[[bytes], bytes] | None:
        plugins = self._runtime.plugins if self._runtime is not None else None
        return plugins.redact if plugins is not None and plugins.implemented("redact") else None

    async def _close(self, sending: Sending) -> None:
        """Send what waits; what it counted stays."""
        self._old.append(sending)
        try:
            if not await sending.close(STOP_SECONDS):
                log.warning("otel: some spans were not sent before the end")
        finally:
            self._old.remove(sending)
            self._counted.update(sending.last_numbers())

    @hookimpl
    async def start(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._spans.redact = self._redact()
        if self._config.has_headers:
            try:
                await asyncio.to_thread(self._spans.sending.check)
            except ConfigError as error:
                raise runtime.config.error(f"{self.name}.{error.key}", error.message) from None

    @hookimpl
    async def stop(self) -> None:
        for agent_id, span in self._live.items():
            self._spans.end(span, self._began[agent_id])
        self._live.clear()
        self._began.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)
        if not await self._spans.sending.close(STOP_SECONDS):
            log.warning("otel: some spans were not sent before the end")

    @hookimpl(tryfirst=True)
    def admit(self, agent: Agent) -> None:
        if len(self._live) < MAX_LIVE:
            self._began[agent.id] = time.monotonic_ns()
            self._live[agent.id] = self._spans.job(agent)
        else:
            self._untold += 1

    @hookimpl
    def dispatched(self, agent: Agent, report: DispatchReport) -> None:
        span = self._live.get(agent.id)
        if span is not None:
            self._spans.dispatched(span, report)

    @hookimpl
    def environment(self, agent: Agent) -> dict[str, str] | None:
        span = self._live.get(agent.id) if self._config.propagate else None
        text = "" if span is None else self._spans.traceparent(span)
        return {"TRACEPARENT": text} if text else None

    @hookimpl
    def model_call(self, agent: Agent, call: ModelCall) -> None:
        span = self._live.get(agent.id)
        if span is not None and self._runtime is not None:
            self._spans.call(span, call, self._runtime.loop.time())

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        span = self._live.get(event.agent_id) if event.kind in TOLD else None
        if span is not None and span.is_recording():
            self._spans.denied(span, event)

    @hookimpl(trylast=True)
    def exit(self, agent: Agent, report: ExitReport) -> None:
        span = self._live.pop(agent.id, None)
        if span is not None:
            traffic = self._runtime.traffic(agent) if self._runtime is not None else None
            up, down = (traffic.up, traffic.down) if traffic else (0, 0)
            self._spans.exit(span, report, up, down, self._began.pop(agent.id))

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        found = Counter(self._counted)
        for sending in (self._spans.sending, *self._old):
            found.update(sending.numbers())
        found["spans"] += self._spans.begun
        found["dropped"] += self._untold
        return dict(found)


def _made(config: Config, way: Way | None = None) -> tuple[Spans, Way]:
    try:
        from .sending import Way
        from .spans import Spans
    except ImportError as missing:
        error = PluginError(f"plugin `otel` needs OpenTelemetry's packages: {missing}")
        error.hint = "pip install 'agentfw[otel]'"
        raise error from None
    way = way or Way()
    return Spans(config, way), way
