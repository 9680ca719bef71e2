"""The plugin: which lines there are, and what stands in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from agentfw import Agent, ConfigError, Destination, ExitReport, hookimpl
from agentfw.errors import AgentfwError
from agentfw.model_calls import ModelCall
from agentfw.plugins import PluginManager
from agentfw.reports import AuditEvent, Decision, ExchangeReport, FlowReport, JobEvent, QuestionReport, shown
from agentfw.runtime import Runtime

from . import decisions
from .answers import addresses
from .config import Config
from .decisions import Decisions
from .lines import (
    DecisionLine,
    DroppedLine,
    ExchangeLine,
    ExitLine,
    FlowLine,
    JobLine,
    ModelCallLine,
    PoolLine,
    QuestionLine,
)
from .shares import Shares
from .writer import LogFile, Writer, log

STOP_SECONDS = 5.0
LINES = 256
"""That are looked into for secrets at once, at most."""
LINES_BYTES = 256 << 10
"""Likewise, about."""
ONCE = frozenset({"agent_stopped", "budget_used_up", "budget_warning", "exit", "reload"})
"""What an agent cannot make happen again and again: always written."""
HOOKS = {
    "events": "audit", "decisions": "decided", "exchanges": "exchange_end", "flows": "flow_end", "model_calls": "model_call",
    "jobs": "job_event", "questions": "question_end",
}  # fmt: skip
"""By what `events` names."""
MAX_PREFIXES = 8192


class Plugin:
    """See the package."""

    name = "audit"
    config_type = Config

    def __init__(self, config: Config) -> None:
        self._config = config
        self._base = Path()
        self._sees: Callable[[Path], bool] = lambda path: False
        self._writer: Writer | None = None
        self._plugins: PluginManager | None = None
        self._prepared: LogFile | None = None
        """Of a reload that has not been committed; maybe it never is, for another plugin refused."""
        self._wanted = frozenset(config.events)
        self._encoder = msgspec.json.Encoder()
        self._shares = Shares(self._withheld)
        self._decisions = Decisions(self._decided, time.time)
        self._prefixes: dict[str, bytes] = {}
        """By agent's id."""
        self._telling: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unread: list[bytes] = []
        """Lines that have not been looked into for secrets; they are in this turn of the loop, all at once (`_look()`)."""
        self._unread_bytes = 0

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
            self._look()  # what happened before goes into the old file
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
        self._plugins = runtime.plugins
        self._loop = runtime.loop
        file = runtime.config.file
        self._base = file.parent if file else Path()
        try:
            self._writer = Writer(self._open(self._config), self._config.buffer_bytes)
        except ConfigError as error:
            raise runtime.config.error(f"{self.name}.{error.key}", error.message) from None
        self._tell_again(runtime.loop)

    def _tell_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._decisions.tell()
        self._telling = loop.call_later(decisions.SECONDS, self._tell_again, loop)

    @hookimpl(tryfirst=True)  # plugins stop in the opposite order: this one last
    async def stop(self) -> None:
        writer = self._writer
        if self._telling is not None:
            self._telling.cancel()
        self._decisions.tell()
        self._shares.end()
        self._look()
        self._close_prepared()
        if writer is not None and not await asyncio.get_running_loop().run_in_executor(None, writer.stop, STOP_SECONDS):
            log.error("the audit log %s lacks its end: the disk took longer than %g s", self._config.file, STOP_SECONDS)

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
        more = {name: value for name, value in extra.items() if name not in facts and name != "event"}
        line = self._encoder.encode({"time": facts.pop("time"), "event": kind, **facts, **more})
        self._put(line, "" if kind in ONCE else event.agent_id, event.agent)

    @hookimpl
    def decided(self, agent: Agent, destination: Destination | None, decision: Decision) -> None:
        self._decisions.met(agent, destination, decision)

    def _decided(
        self, agent: Agent, destination: Destination | None, decision: Decision, count: int, since: float | None
    ) -> None:
        line = DecisionLine(
            allowed=decision.allowed,
            hook=decision.hook,
            destination="" if destination is None else str(destination),
            rule=decision.rule,
            plugin=decision.plugin,
            reason=decision.reason,
            address=decision.address,
            method=decision.method,
            target=self._target(decision.target),
            count=count,
            since=since,
        )
        self._about("decision", agent, line)

    @hookimpl
    def question_end(self, agent: Agent, question: QuestionReport) -> None:
        line = QuestionLine(
            name=question.name,
            qtype=question.qtype,
            rcode=question.rcode,
            seconds=_micros(question.seconds),
            addresses=addresses(question.qtype, question.reply),
            error=question.error,
            rule=question.denied_rule,
        )
        self._about("question", agent, line)

    @hookimpl
    def exchange_end(self, agent: Agent, exchange: ExchangeReport) -> None:
        line = ExchangeLine(
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
        self._about("exchange", agent, line)

    @hookimpl
    def flow_end(self, agent: Agent, flow: FlowReport) -> None:
        line = FlowLine(
            kind=flow.kind,
            port=flow.port,
            destination="" if flow.destination is None else str(flow.destination),
            bytes_up=flow.bytes_up,
            bytes_down=flow.bytes_down,
            seconds=_micros(flow.seconds),
            error=flow.error,
            rule=flow.denied_rule,
        )
        self._about("flow", agent, line)

    @hookimpl
    def model_call(self, agent: Agent, call: ModelCall) -> None:
        line = ModelCallLine(
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
        self._about("model_call", agent, line)

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        self._decisions.forget(agent.id)
        self._shares.forget(agent.id)
        if "exits" in self._wanted:
            line = ExitLine(
                how=report.kind,
                code=report.code,
                signal=report.signal,
                text=shown(report.text),
                seconds=_micros(report.seconds),
            )
            self._about("exit", agent, line)
        self._prefixes.pop(agent.id, None)

    @hookimpl
    def job_event(self, event: JobEvent) -> None:
        if not event.job:
            line: msgspec.Struct = PoolLine(what=event.kind, by=event.by, worker=event.worker, how=event.how, text=event.text)
            self._put(_line(event.time, "pool", b"", self._encoder.encode(line)), event.by if event.kind == "refused" else "")
            return
        line = JobLine(
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
        prefix = self._prefix(event.agent_id or event.job, event.name or event.job, event.labels)
        self._put(_line(event.time, "job", prefix, self._encoder.encode(line)))

    def _about(self, event: str, agent: Agent, line: msgspec.Struct) -> None:
        prefix = self._prefixes.get(agent.id)
        if prefix is None:
            if len(self._prefixes) >= MAX_PREFIXES:
                self._prefixes.clear()
            prefix = self._prefixes[agent.id] = self._prefix(agent.id, agent.name, agent.labels)
        text = _line(time.time(), event, prefix, self._encoder.encode(line))
        self._put(text, "" if event in ONCE else agent.id, agent.name)

    def _prefix(self, agent_id: str, name: str, labels: Mapping[str, str]) -> bytes:
        """The fields that say whom a line is about, which are the same in each."""
        who: dict[str, object] = {"agent_id": agent_id, "agent": name}
        if labels:
            who["labels"] = dict(labels)
        return b"," + self._encoder.encode(who)[1:-1]

    def _target(self, target: str) -> str:
        return target if self._config.queries else target.partition("?")[0]

    def _withheld(self, agent: str, name: str, lines: int) -> None:
        """Of one agent (or client of the pool) that caused more than its share."""
        line = DroppedLine(lines=lines, reason="more of this agent than agent_bytes_per_second")
        self._put(_line(time.time(), "dropped", self._prefix(agent, name, {}), self._encoder.encode(line)))

    def _put(self, line: bytes, limited: str = "", name: str = "") -> None:
        """`limited`: the agent whose share it takes of; "": it is written in any case."""
        if self._writer is None or self._plugins is None:
            return
        if limited:
            rate, burst = self._config.agent_bytes_per_second, self._config.agent_burst
            if not self._shares.admit(limited, name, len(line), rate, burst, time.monotonic()):
                return
        if not self._plugins.implemented("redact"):
            self._writer.put(line)
            return
        if not self._unread and self._loop is not None:
            self._loop.call_soon(self._look)
        self._unread.append(line)
        self._unread_bytes += len(line)
        if len(self._unread) >= LINES or self._unread_bytes > LINES_BYTES:
            self._look()

    def _look(self) -> None:
        """Write the lines that wait, without secrets. PERF: one search in many lines takes little more than one in one line."""
        lines, self._unread, self._unread_bytes = self._unread, [], 0
        if not lines or self._writer is None or self._plugins is None:
            return
        text = b"\n".join(lines)  # no line has that in it: it is JSON
        try:
            found = self._plugins.redact(text)
        except AgentfwError:  # of one line, maybe: that one is left out
            found = b""
        seen = lines if found is text else found.split(b"\n")
        for line, masked in zip(lines, seen if len(seen) == len(lines) else [None] * len(lines), strict=True):
            self._writer.put(line if masked == line else self._redacted(line))

    def _redacted(self, line: bytes) -> bytes:
        """Without secrets: names, paths and labels are anybody's words. Of one that cannot be looked into is told that it was."""
        assert self._plugins is not None
        reason = "what must not be written stood across its fields"
        try:
            found = self._plugins.redact(line)
            if found is not line:
                msgspec.json.decode(found)
            return found
        except AgentfwError as error:
            reason = shown(str(error))
        except ValueError:
            pass
        return _line(time.time(), "dropped", b"", self._encoder.encode(DroppedLine(lines=1, reason=reason)))

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        self._look()
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


def _line(when: float, event: str, prefix: bytes, rest: bytes) -> bytes:
    """`rest`: an encoded object, with one field at least."""
    return b'{"time":%.6f,"event":"%b"%b,%b' % (when, event.encode(), prefix, rest[1:])


def _seconds(value: float | None) -> float | None:
    return None if value is None else _micros(value)


def _micros(seconds: float) -> float:
    """To microseconds. PERF: round(seconds, 6) goes by way of decimal digits and takes 0.7 us."""
    return int(seconds * 1e6 + 0.5) / 1e6
