"""The lines, one Struct for each kind: what docs/audit.md lists, and a test holds it to.

A field that is not there has its default: that is how much a line says.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What all have before their own."""

    time: float
    """Seconds since 1970, UTC, in whole microseconds."""
    event: str
    """What it tells of: a key of LINES."""
    agent_id: str = ""
    """Of those about an agent; so are these."""
    agent: str = ""
    labels: dict[str, str] = {}


class DecisionLine(Line, frozen=True, kw_only=True):
    """decision: whether the agent may do something. The first of a kind at once, those alike together later (`count`)."""

    allowed: bool
    hook: str
    """What was asked: "allow" (name, flow or connection), "dial" (an address), "request", "own_tls", "admit", "guest_rules"; "":
    a limit."""
    destination: str = ""
    rule: str = ""
    """The one that says so. Allowed without one: nobody refused."""
    plugin: str = ""
    reason: str = ""
    address: str = ""
    method: str = ""
    target: str = ""
    count: int = 1
    """So many, all alike."""
    since: float | None = None
    """When the first of these `count` was; none was before the line's own `time`."""


class QuestionLine(Line, frozen=True, kw_only=True):
    """question: a DNS question of an agent's is answered."""

    name: str
    qtype: int
    """1: A, 28: AAAA, ..."""
    rcode: int
    """0: no error, 3: no such name, 5: refused, ..."""
    seconds: float
    addresses: tuple[str, ...] = ()
    """That the agent was told, if it asked for some."""
    error: str = ""
    rule: str = ""


class ExchangeLine(Line, frozen=True, kw_only=True):
    """exchange: an HTTP request is over."""

    destination: str
    method: str
    target: str
    status: int
    """That the agent was sent; 0: none."""
    bytes_up: int
    bytes_down: int
    seconds: float
    exchange: int
    """Its number in the worker."""
    first_byte: float | None = None
    connected: float | None = None
    """Seconds until there was a connection for it."""
    reused: bool = False
    """That was one that had carried others."""
    error: str = ""
    rule: str = ""
    """That refused it."""


class FlowLine(Line, frozen=True, kw_only=True):
    """flow: a guest's socket is over."""

    kind: str
    """"http", "tls", "tcp", "udp", "dns"."""
    port: int
    bytes_up: int
    bytes_down: int
    seconds: float
    destination: str = ""
    error: str = ""
    rule: str = ""


class ModelCallLine(Line, frozen=True, kw_only=True):
    """model_call: a call of a model has ended; told by the plugin `inspect`."""

    destination: str
    provider: str
    operation: str
    streamed: bool
    status: int
    seconds: float
    estimated: bool
    """Tokens were guessed from lengths."""
    exchange: int
    model: str = ""
    requested_model: str = ""
    """If it is another."""
    first_token: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None
    currency: str = ""
    error_type: str = ""
    error: str = ""


class ExitLine(Line, frozen=True, kw_only=True):
    """exit: an agent has ended."""

    how: str
    """"code", "signal", "killed", "memory", "internal", "hostile", "timeout"."""
    code: int
    signal: int
    seconds: float
    text: str = ""


class JobLine(Line, frozen=True, kw_only=True):
    """job: what became of one. `agent_id` is the attempt's ("ID", "ID.2"), to which the agent's own lines add a number
    ("ID.2-9"); `agent` the job's name, else its id."""

    what: str
    """"submitted", "dispatched", "signalled" (9: killed), "fed", "forked", "retried", "ended", "read" (its output)."""
    job: str
    by: str = ""
    """Who: "uid 1000 pid 4711" (over the Unix socket), "token from 127.0.0.1" (TCP), "signal SIGTERM", "program"."""
    tenant: str = ""
    template: str = ""
    worker: int | None = None
    parent: str = ""
    """The job that it is a copy of."""
    signal: int = 0
    how: str = ""
    code: int | None = None
    text: str = ""
    usage: Mapping[str, float] = {}
    """`seconds`, `cpu_seconds`, `queued_seconds`, `dispatch_seconds`, `memory`, `stdout`, `stderr`, `bytes_up`, `bytes_down`."""


class PoolLine(Line, frozen=True, kw_only=True):
    """pool: what became of it, and who had it done."""

    what: str
    """"started", "refused" (a job: `how` pool_full; or a client), "reloaded" (`how` refused: it was not), "draining", "stopping",
    "stopped", "worker_ready", "worker_lost"."""
    by: str = ""
    worker: int | None = None
    how: str = ""
    text: str = ""


class DroppedLine(Line, frozen=True, kw_only=True):
    """dropped: lines that are not there. With an agent, because it caused more than its share; else the disk did not keep up."""

    lines: int
    reason: str = ""


LINES: dict[str, type[Line]] = {
    "decision": DecisionLine,
    "question": QuestionLine,
    "exchange": ExchangeLine,
    "flow": FlowLine,
    "model_call": ModelCallLine,
    "exit": ExitLine,
    "job": JobLine,
    "pool": PoolLine,
    "dropped": DroppedLine,
}
"""By `event`. What other `event` a line has is an `AuditEvent`'s kind: it has that one's fields."""
