"""The plugin: which lines there are, and what stands in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from agentfw import Agent, ConfigError, Destination, ExitReport, hookimpl
from agentfw.model_calls import ModelCall
from agentfw.reports import AuditEvent, ExchangeReport, FlowReport, shown
from agentfw.runtime import Runtime

from .config import Config
from .shares import Shares
from .writer import LogFile, Writer, log

STOP_SECONDS = 5.0
ONCE = frozenset({"agent_stopped", "budget_used_up", "budget_warning", "exit", "reload"})
"""What an agent cannot make happen again and again: always written."""


class Plugin:
    """See the package."""

    name = "audit"
    config_type = Config

    def __init__(self, config: Config) -> None:
        self._config = config
        self._base = Path()
        self._sees: Callable[[Path], bool] = lambda path: False
        self._writer: Writer | None = None
        self._prepared: LogFile | None = None
        """Of a reload that has not been committed; maybe it never is, for another plugin refused."""
        self._wanted = frozenset(config.events)
        self._encoder = msgspec.json.Encoder()
        self._shares = Shares(lambda facts: self._put({"time": time.time(), "event": "dropped", **facts}))

    def check_guest(self, file: Path | None, environment: Mapping[str, str], sees: Callable[[Path], bool]) -> None:
        """ConfigError if agents could read, or worse, write the log."""
        self._base = file.parent if file else Path()
        self._sees = sees
        self._check(self._path(self._config))

    def _path(self, config: Config) -> Path:
        return (self._base / Path(config.file).expanduser()).absolute()

    def _check(self, path: Path) -> None:
        for place in (path, path.parent, path.resolve(), path.parent.resolve()):
            if self._sees(place):
                error = ConfigError("file", f"the agents see {place}")
                error.hint = "write the log where no agent looks, outside of mounts and of the program's directory"
                raise error

    def _open(self, config: Config) -> LogFile:
        path = self._path(config)
        try:
            return LogFile(path, config.max_bytes, config.keep, config.sync)
        except OSError as error:
            raise ConfigError("file", f"cannot be written: {error.strerror or error} ({path})") from None

    def reconfigure(self, config: Config) -> Callable[[], None]:
        """Another file, or other events. The new file is opened first; the old one has what happened before."""
        self._check(self._path(config))
        self._close_prepared()
        self._prepared = self._open(config) if self._writer is not None else None

        def commit() -> None:
            self._config, self._wanted = config, frozenset(config.events)
            file, self._prepared = self._prepared, None
            if self._writer is not None and file is not None:
                self._writer.turn_to(file, config.buffer_bytes)

        return commit

    def _close_prepared(self) -> None:
        if self._prepared is not None:
            self._prepared.close()
            self._prepared = None

    @hookimpl(tryfirst=True)
    def start(self, runtime: Runtime) -> None:
        file = runtime.config.file
        self._base = file.parent if file else Path()
        try:
            self._writer = Writer(self._open(self._config), self._config.buffer_bytes)
        except ConfigError as error:
            raise runtime.config.error(f"{self.name}.{error.key}", error.message) from None

    @hookimpl(tryfirst=True)  # plugins stop in the opposite order: this one last
    async def stop(self) -> None:
        writer = self._writer
        self._shares.end()
        self._close_prepared()
        if writer is not None and not await asyncio.get_running_loop().run_in_executor(None, writer.stop, STOP_SECONDS):
            log.error("the audit log %s lacks its end: the disk took longer than %g s", self._config.file, STOP_SECONDS)

    # -- lines

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        if "events" in self._wanted:
            facts: dict[str, Any] = msgspec.to_builtins(event)
            kind = facts.pop("kind")
            extra = facts.pop("extra", {})
            if "target" in extra:
                extra["target"] = self._target(extra["target"])
            more = {name: value for name, value in extra.items() if name not in facts and name != "event"}
            self._put({"time": facts.pop("time"), "event": kind, **facts, **more}, limited=kind not in ONCE)

    @hookimpl
    def exchange_end(self, agent: Agent, exchange: ExchangeReport) -> None:
        if "exchanges" in self._wanted:
            facts = {
                "method": exchange.method,
                "target": self._target(exchange.target),
                "status": exchange.status,
                "bytes_up": exchange.bytes_up,
                "bytes_down": exchange.bytes_down,
                "first_byte": _seconds(exchange.first_byte),
                "seconds": _seconds(exchange.seconds),
                "error": exchange.error,
                "rule": exchange.denied_rule,
                "exchange": exchange.exchange,
            }
            self._about("exchange", agent, exchange.destination, facts)

    @hookimpl
    def flow_end(self, agent: Agent, flow: FlowReport) -> None:
        if "flows" in self._wanted:
            facts = {
                "kind": flow.kind,
                "port": flow.port,
                "bytes_up": flow.bytes_up,
                "bytes_down": flow.bytes_down,
                "seconds": _seconds(flow.seconds),
                "error": flow.error,
                "rule": flow.denied_rule,
            }
            self._about("flow", agent, flow.destination, facts)

    @hookimpl
    def model_call(self, agent: Agent, call: ModelCall) -> None:
        if "model_calls" in self._wanted:
            facts = {
                "provider": call.provider,
                "operation": call.operation,
                "model": call.model,
                "requested_model": call.requested_model if call.requested_model != call.model else "",
                "streamed": call.streamed,
                "status": call.status,
                "seconds": _seconds(call.seconds),
                "first_token": _seconds(call.first_token),
                "input_tokens": call.input_tokens,
                "output_tokens": call.output_tokens,
                "cache_read_tokens": call.cache_read_tokens,
                "cache_write_tokens": call.cache_write_tokens,
                "reasoning_tokens": call.reasoning_tokens,
                "estimated": call.estimated,
                "cost": call.cost,
                "currency": call.currency,
                "error_type": call.error_type,
                "error": call.error,
                "exchange": call.exchange,
            }
            self._about("model_call", agent, call.destination, facts)

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        self._shares.forget(agent.id)
        if "exits" in self._wanted:
            facts = {"how": report.kind, "code": report.code, "signal": report.signal, "text": shown(report.text)}
            self._about("exit", agent, None, {**facts, "seconds": _seconds(report.seconds)})

    def _about(self, event: str, agent: Agent, destination: Destination | None, facts: Mapping[str, object]) -> None:
        line: dict[str, object] = {"time": time.time(), "event": event, "agent_id": agent.id, "agent": agent.name}
        if agent.labels:
            line["labels"] = dict(agent.labels)
        if destination is not None:
            line["destination"] = str(destination)
        line |= {name: value for name, value in facts.items() if value is not None and value != ""}
        self._put(line, limited=event not in ONCE)

    def _target(self, target: str) -> str:
        return target if self._config.queries else target.partition("?")[0]

    def _put(self, line: Mapping[str, object], *, limited: bool = False) -> None:
        if self._writer is None:
            return
        text = self._encoder.encode(line)
        agent = str(line.get("agent_id", "")) if limited else ""
        if agent:
            rate, burst = self._config.agent_bytes_per_second, self._config.agent_burst
            if not self._shares.admit(agent, str(line.get("agent", "")), len(text), rate, burst, time.monotonic()):
                return
        self._writer.put(text)

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        writer = self._writer
        if writer is None:
            return {}
        return {
            "written": writer.written,
            "dropped": writer.dropped,
            "withheld": self._shares.withheld,
            "failures": writer.failures,
            "rotations": writer.rotations,
        }


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
