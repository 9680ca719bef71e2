"""The plugin: which lines there are, and what stands in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from agentfw import Agent, ConfigError, Destination, ExitReport, hookimpl
from agentfw.homes import expanded
from agentfw.model_calls import ModelCall
from agentfw.reports import AuditEvent, Decision, ExchangeReport, FlowReport, JobEvent, QuestionReport, shown
from agentfw.runtime import Runtime

from . import decisions
from .answers import addresses
from .config import DEFAULT, Config
from .decisions import Decisions
from .lines import (
    DecisionLine,
    ExchangeLine,
    ExitLine,
    FlowLine,
    JobLine,
    Line,
    ModelCallLine,
    PoolLine,
    QuestionLine,
)
from .outgoing import Outgoing
from .writer import LogFile, Writer, log

STOP_SECONDS = 5.0
ONCE = frozenset({"agent_stopped", "budget_used_up", "budget_warning", "exit", "reload"})
"""What an agent cannot make happen again and again: always written."""
HOOKS = {
    "events": "audit", "decisions": "decided", "exchanges": "exchange_end", "flows": "flow_end", "model_calls": "model_call",
    "jobs": "job_event", "questions": "question_end",
}  # fmt: skip
"""By what `events` names."""
MAX_KNOWN = 8192
OURS = frozenset({*AuditEvent.__struct_fields__, "event", "allowed", "count"})
"""Fields of a line that are not an event's own to name: some are no texts, and who reads would take the line for none."""


class _Who(msgspec.Struct, frozen=True, gc=False):
    """An agent, as lines name it."""

    id: str
    name: str
    labels: dict[str, str]


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
        self._out: Outgoing | None = None
        self._decisions = Decisions(self._decided, time.time)
        self._known: dict[str, _Who] = {}
        """By agent's id."""
        self._telling: asyncio.TimerHandle | None = None

    def check_guest(self, file: Path | None, environment: Mapping[str, str], sees: Callable[[Path], bool]) -> None:
        """ConfigError if agents could read, or worse, write the log."""
        self._base = file.parent if file else Path()
        self._sees = sees
        self._check(self._path(self._config))

    def _path(self, config: Config) -> Path:
        return (self._base / expanded(config.file, "file")).absolute()

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
            if self._out is not None:
                self._out.send()  # what happened before goes into the old file
                self._out.config = config
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
        self._out = Outgoing(self._config, self._writer, runtime.plugins, runtime.loop)
        self._tell_again(runtime.loop)
        if "model_calls" in self._wanted and self._config.events != DEFAULT and runtime.plugins.get("inspect") is None:
            log.warning("[audit]: `model_calls` are written only if `inspect` is among the plugins")

    def _tell_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._decisions.tell()
        self._telling = loop.call_later(decisions.SECONDS, self._tell_again, loop)

    @hookimpl(tryfirst=True)  # plugins stop in the opposite order: this one last
    async def stop(self) -> None:
        writer = self._writer
        if self._telling is not None:
            self._telling.cancel()
        self._decisions.tell()
        if self._out is not None:
            self._out.end()
        self._close_prepared()
        if writer is not None and not await asyncio.get_running_loop().run_in_executor(None, writer.stop, STOP_SECONDS):
            log.error("the audit log %s lacks its end: the disk took longer than %g s", self._config.file, STOP_SECONDS)
        elif writer is not None and writer.untold:
            log.error("the audit log %s lacks its end, %d lines: the disk did not take them", self._config.file, writer.untold)

    # -- lines

    later_hooks = frozenset(HOOKS.values())

    @property
    def idle_hooks(self) -> frozenset[str]:
        """What the table does not ask for is not called."""
        return frozenset(hook for kind, hook in HOOKS.items() if kind not in self._wanted)

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        facts: dict[str, Any] = msgspec.to_builtins(event)
        kind = facts.pop("kind")
        extra = facts.pop("extra", {})
        if "target" in extra:
            extra["target"] = self._target(extra["target"])
        more = {f"{name}_" if name in OURS else name: value for name, value in extra.items()}
        line = {"time": _micros(facts.pop("time")), "event": kind, **facts, **more}
        self._put(line, "" if kind in ONCE else event.agent_id, event.agent)

    @hookimpl
    def decided(self, agent: Agent, destination: Destination | None, decision: Decision) -> None:
        if decision.target and (target := self._target(decision.target)) != decision.target:
            # before they are told apart: or each of an agent's queries is a kind of its own, of lines that read the same
            decision = msgspec.structs.replace(decision, target=target)
        self._decisions.met(agent, destination, decision)

    def _decided(
        self, agent: Agent, destination: Destination | None, decision: Decision, count: int, since: float | None
    ) -> None:
        who = self._who(agent)
        line = DecisionLine(
            time=_micros(time.time()),
            event="decision",
            agent_id=who.id,
            agent=who.name,
            labels=who.labels,
            allowed=decision.allowed,
            hook=decision.hook,
            destination="" if destination is None else str(destination),
            rule=decision.rule,
            plugin=decision.plugin,
            reason=decision.reason,
            address=decision.address,
            method=decision.method,
            target=decision.target,
            count=count,
            since=since,
        )
        self._put(line, agent.id, agent.name)

    @hookimpl
    def question_end(self, agent: Agent, question: QuestionReport) -> None:
        who = self._who(agent)
        line = QuestionLine(
            time=_micros(time.time()),
            event="question",
            agent_id=who.id,
            agent=who.name,
            labels=who.labels,
            name=question.name,
            qtype=question.qtype,
            rcode=question.rcode,
            seconds=_micros(question.seconds),
            addresses=addresses(question.qtype, question.reply),
            error=question.error,
            rule=question.denied_rule,
        )
        self._put(line, agent.id, agent.name)

    @hookimpl
    def exchange_end(self, agent: Agent, exchange: ExchangeReport) -> None:
        who = self._who(agent)
        line = ExchangeLine(
            time=_micros(time.time()),
            event="exchange",
            agent_id=who.id,
            agent=who.name,
            labels=who.labels,
            destination=str(exchange.destination),
            method=exchange.method,
            target=self._target(exchange.target),
            status=exchange.status,
            bytes_up=exchange.bytes_up,
            bytes_down=exchange.bytes_down,
            first_byte=_seconds(exchange.first_byte),
            connected=_seconds(exchange.connected),
            reused=exchange.reused,
            seconds=_micros(exchange.seconds),
            error=exchange.error,
            rule=exchange.denied_rule,
            exchange=exchange.exchange,
        )
        self._put(line, agent.id, agent.name)

    @hookimpl
    def flow_end(self, agent: Agent, flow: FlowReport) -> None:
        who = self._who(agent)
        line = FlowLine(
            time=_micros(time.time()),
            event="flow",
            agent_id=who.id,
            agent=who.name,
            labels=who.labels,
            kind=flow.kind,
            port=flow.port,
            destination="" if flow.destination is None else str(flow.destination),
            bytes_up=flow.bytes_up,
            bytes_down=flow.bytes_down,
            seconds=_micros(flow.seconds),
            error=flow.error,
            rule=flow.denied_rule,
        )
        self._put(line, agent.id, agent.name)

    @hookimpl
    def model_call(self, agent: Agent, call: ModelCall) -> None:
        who = self._who(agent)
        line = ModelCallLine(
            time=_micros(time.time()),
            event="model_call",
            agent_id=who.id,
            agent=who.name,
            labels=who.labels,
            destination=str(call.destination),
            provider=call.provider,
            operation=call.operation,
            model=call.model,
            requested_model=call.requested_model if call.requested_model != call.model else "",
            streamed=call.streamed,
            status=call.status,
            seconds=_micros(call.seconds),
            first_token=_seconds(call.first_token),
            input_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
            cache_read_tokens=call.cache_read_tokens,
            cache_write_tokens=call.cache_write_tokens,
            reasoning_tokens=call.reasoning_tokens,
            estimated=call.estimated,
            cost=call.cost,
            currency=call.currency,
            error_type=call.error_type,
            error=call.error,
            exchange=call.exchange,
        )
        self._put(line, agent.id, agent.name)

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        self._decisions.forget(agent.id)
        if "exits" in self._wanted:
            who = self._who(agent)
            line = ExitLine(
                time=_micros(time.time()),
                event="exit",
                agent_id=who.id,
                agent=who.name,
                labels=who.labels,
                how=report.kind,
                code=report.code,
                signal=report.signal,
                text=shown(report.text),
                seconds=_micros(report.seconds),
            )
            self._put(line)
        self._known.pop(agent.id, None)
        if self._out is not None:
            self._out.forget(agent.id)

    @hookimpl
    def job_event(self, event: JobEvent) -> None:
        if not event.job:
            told = PoolLine(
                time=_micros(event.time),
                event="pool",
                what=event.kind,
                by=event.by,
                worker=event.worker,
                how=event.how,
                text=event.text,
            )
            self._put(told, event.by if event.kind == "refused" else "")
            return
        line = JobLine(
            time=_micros(event.time),
            event="job",
            agent_id=event.agent_id or event.job,
            agent=event.name or event.job,
            labels=dict(event.labels),
            what=event.kind,
            job=event.job,
            by=event.by,
            tenant=event.tenant,
            template=event.template,
            worker=event.worker,
            parent=event.parent,
            signal=event.signal,
            how=event.how,
            code=event.code,
            text=event.text,
            usage=event.usage,
        )
        self._put(line)

    def _put(self, line: Line | Mapping[str, Any], limited: str = "", name: str = "") -> None:
        if self._out is not None:
            self._out.put(line, limited, name)

    def _who(self, agent: Agent) -> _Who:
        found = self._known.get(agent.id)
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            found = self._known[agent.id] = _Who(agent.id, agent.name, dict(agent.labels))
        return found

    def _target(self, target: str) -> str:
        return target if self._config.queries else target.partition("?")[0]

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        writer, out = self._writer, self._out
        if writer is None or out is None:
            return {}
        out.send()
        return {
            "written": writer.written,
            "dropped": writer.dropped,
            "withheld": out.withheld,
            "failures": writer.failures,
            "rotations": writer.rotations,
        }


def _seconds(value: float | None) -> float | None:
    return None if value is None else _micros(value)


def _micros(seconds: float) -> float:
    """To microseconds. PERF: round(seconds, 6) goes by way of decimal digits and takes 0.7 us."""
    return int(seconds * 1e6 + 0.5) / 1e6
