"""What is told about agents' traffic once it is over, and about what was refused: `dispatched`, `question_end`, `exchange_end`,
`flow_end`, `audit`, `tables`.

Nothing here has a header or a byte of a body. What an agent wrote itself (methods, targets, names) is cut to a length and has no
control characters, but may hold whatever an agent put there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from .agents import Agent
from .destination import Destination
from .texts import shown as shown


class DispatchReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How an agent came to its virtual machine."""

    job: str
    """As `Agent.job`."""
    tenant: str = ""
    template: str = ""
    worker: int | None = None
    """Its number; None: there are no workers."""
    parent: str = ""
    """The job that it was forked from."""
    queued: float = 0.0
    """Seconds that it waited for a VM, once whoever runs it had it."""
    dispatch: float
    """Seconds from then to its first bytecode: what it had to be told, its rules, the VM's waking."""
    began: float
    """time.perf_counter() at its first bytecode."""


class QuestionReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One DNS question and what the agent was told."""

    name: str
    """As asked, in lower case, fit to be shown."""
    qtype: int
    """As a number (RFC 1035, 3.2.2): 1 A, 28 AAAA."""
    rcode: int
    reply: bytes
    """The answer in wire form, as the agent gets it (over UDP perhaps cut)."""
    began: float
    """time.perf_counter() when it had been read."""
    seconds: float
    error: str = ""
    """Why it was not answered, one line."""
    denied_rule: str = ""
    """The rule that refused it."""


class ExchangeReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One HTTP request and what came of it. `target` is the agent's own, before any hook changed it."""

    exchange: int
    """As `RequestHead.exchange`: unique in the process."""
    destination: Destination
    method: str
    target: str
    status: int
    """Of the response that the agent was sent (ours, if `error` says so); 0: none."""
    bytes_up: int
    """Of the request's body that went up, without its framing; after a switch of protocols, also what was sent then."""
    bytes_down: int
    """Of the response's body as the server sent it, without its framing; likewise."""
    started: float
    """loop.time() when the request's head had been read."""
    first_byte: float | None
    """Seconds from then to the response's head; None: there was none."""
    seconds: float
    """From then to the end of it."""
    error: str = ""
    """Why it did not end well, one line. "": it did, whatever the status."""
    denied_rule: str = ""
    """The rule that refused it."""
    attempts: int = 1
    """Connections that were asked for; 2 if a kept one turned out to be closed."""
    upgraded: bool = False
    """It became another protocol (101)."""
    began: float = 0.0
    """time.perf_counter() at `started`, of which a loop may know milliseconds only. Since 1.1, as what follows."""
    connected: float | None = None
    """Seconds from then until a connection was there for it (the last one, if there were several); None: there was none."""
    reused: bool = False
    """That had served others before."""


class FlowReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One socket of a guest's, from connect() (or the first datagram) to its end."""

    kind: str
    """ "http", "tls" (not HTTP inside, or the agent's own), "tcp", "udp", "dns" (it met the resolver only)."""
    destination: Destination | None
    """None: it was never known, or (UDP) there were several."""
    port: int
    bytes_up: int
    """What the guest sent and we took, all of it: heads, framing."""
    bytes_down: int
    """What the guest was sent."""
    started: float
    """loop.time()"""
    seconds: float
    error: str = ""
    """Why it was broken off or refused, one line."""
    denied_rule: str = ""


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Whether an agent may do something. Texts have no control characters."""

    allowed: bool
    rule: str = ""
    """The one that says so, as the operator wrote it. Permitted: "" if none had to (nobody refused). Refused because a plugin
    failed: "plugin failed: HOOK"."""
    plugin: str = ""
    """Whose rule it is."""
    reason: str = ""
    hook: str = "allow"
    """What was asked; "" for limits on traffic, and others that are no hook's."""
    address: str = ""
    """Of `dial`: the address that may not be dialled."""
    method: str = ""
    target: str = ""
    """Of a request: its own, before any hook changed it."""
    count: int = 1
    """So many at once, which were counted elsewhere."""


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a job, or of the pool, and by whom."""

    time: float
    """Seconds since 1970, UTC."""
    kind: str
    """Of a job: "submitted", "dispatched", "signalled", "fed", "forked" (a copy, of `parent`), "retried", "ended", "read" (its
    output). Of the pool: "refused" (a job, or a client that may not), "started", "draining", "reloaded", "stopping", "stopped",
    "worker_ready", "worker_lost"."""
    by: str = ""
    """Who asked for it: "uid 1000 pid 4711" (the Unix socket's peer), "token from 127.0.0.1" (TCP), "signal SIGTERM", "program"
    (the one that the pool is part of, or the pool itself)."""
    job: str = ""
    name: str = ""
    tenant: str = ""
    template: str = ""
    labels: Mapping[str, str] = {}
    agent_id: str = ""
    """Of this attempt, if it is not the job's."""
    worker: int | None = None
    parent: str = ""
    signal: int = 0
    how: str = ""
    """An end's `JobResult.kind`; a refusal's code."""
    code: int | None = None
    text: str = ""
    """One line: why, or which."""
    usage: Mapping[str, float] = {}
    """`Usage` of what ended, by field; zeros left out."""


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that an operator may want to find again. Make it with `AuditEvent.about()`."""

    time: float
    """Seconds since 1970, UTC."""
    kind: str
    """ "denied", "plugin_failed", "internal_error", "report_only", "reload", "agent_stopped", or a plugin's own."""
    agent_id: str = ""
    agent: str = ""
    labels: Mapping[str, str] = {}
    destination: str = ""
    """As `str(Destination)`."""
    rule: str = ""
    plugin: str = ""
    reason: str = ""
    extra: Mapping[str, str] = {}
    """Further facts by name: "method", "target", "hook", ..."""

    @classmethod
    def about(
        cls,
        kind: str,
        agent: Agent | None = None,
        destination: Destination | None = None,
        *,
        rule: str = "",
        plugin: str = "",
        reason: str = "",
        **extra: str,
    ) -> AuditEvent:
        """An event of now; texts are made fit to be shown."""
        return cls(
            time=time.time(),
            kind=kind,
            agent_id="" if agent is None else agent.id,
            agent="" if agent is None else agent.name,
            labels={} if agent is None else dict(agent.labels),
            destination="" if destination is None else str(destination),
            rule=shown(rule),
            plugin=shown(plugin, 64),
            reason=shown(reason),
            extra={name: shown(value) for name, value in extra.items()},
        )


@dataclass(frozen=True, slots=True)
class Table:
    """For people, and for `--json`: shown by `agentfw run --stats` under its title. `rows`: as many values as `columns` each."""

    name: str
    """In lower_snake_case; its key in `--json`."""
    title: str
    columns: Sequence[str]
    """In lower_snake_case."""
    rows: Sequence[Sequence[str | int | float | None]]

    def fits(self) -> bool:
        """Each row has a value, of a kind that can be shown, for each column."""
        return all(isinstance(text, str) for text in (self.name, self.title, *self.columns)) and all(
            len(row) == len(self.columns) and all(value is None or isinstance(value, (str, int, float)) for value in row)
            for row in self.rows
        )
