"""Hook specifications: where plugins stand in an agent's path.

Signatures and docstrings only. Hooks decide (a name, a connection, a request head, a response head, an exit); none is called per
byte. A plugin is a class `Plugin` in a module named by an entry point of group ``agentfw.plugins``; see `agentfw.plugins`. An
implementation may leave out arguments that it does not use, and use `hookimpl(tryfirst=True)` or `trylast=True`; else plugins are
called in the order in which they were named. Where a result may be awaitable, the caller awaits it.

A hook's budget is what it should not take longer than on the whole, so that all plugins together stay out of an agent's way (a
model call's way through the runtime: 1 ms); what `agentfw run --stats` shows is to be held against it. Beyond its time limit
([plugins.limits]) it fails.

Any hook may raise `agentfw.errors.Denied` (the operation is refused, the agent is told rule and plugin) or
`agentfw.errors.UpstreamError` (the outside failed). Whatever else it raises, a result of the wrong type, or no result within the
hook's time fails that one operation closed, with the plugin's name in the error (`HookError`).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Literal

import pluggy

if TYPE_CHECKING:
    from .agents import Agent, ExitReport
    from .destination import Destination
    from .guest_rules import GuestRules
    from .http1 import RequestHead, ResponseHead
    from .metering import Meter
    from .model_calls import ModelCall
    from .reports import AuditEvent, Decision, DispatchReport, ExchangeReport, FlowReport, JobEvent, QuestionReport, Table
    from .runtime import Runtime
    from .upstream import TlsInfo, TlsRequest, Upstream

API_VERSION = "1.1"
"""major.minor. A minor adds hooks or arguments; a major changes or takes away what there was. A plugin's class may say what it
needs: `api = "1"`, or `api = "1.2"`."""
OwnTls = Literal["passthrough", "intercept", "deny"]

hookspec = pluggy.HookspecMarker("agentfw")
hookimpl = pluggy.HookimplMarker("agentfw")


@hookspec
def start(runtime: Runtime) -> Awaitable[None] | None:
    """Before the first agent, in the running loop. May open connections, start tasks. An error here stops the command.

    `runtime.dial(agent, destination)` gives a connected socket to a vetted address,
    `runtime.resolve_addresses(agent, destination)` vetted addresses.

    Budget: seconds; it may wait.
    """


@hookspec
def stop() -> Awaitable[None] | None:
    """After the last agent. Errors are logged, the other plugins still stop.

    Budget: 10 s.
    """


@hookspec
def admit(agent: Agent) -> Awaitable[None] | None:
    """An agent is about to start; no flow of its has come. Raise `Denied` if it may not run: its end tells why.

    Budget: 10 ms, once an agent; it may wait.
    """


@hookspec
def reloaded(runtime: Runtime) -> Awaitable[None] | None:
    """agentfw.toml was read again, and took effect in every plugin (`reconfigure`). For what follows from it: connections to be
    drained, caches to be emptied. The core asks `allow` and `dial` about all open flows after it. Errors are logged.

    Budget: 1 s, after each reload; it may wait.
    """


@hookspec
def allow(agent: Agent, destination: Destination) -> Awaitable[str | None] | str | None:
    """May this agent talk to `destination` at all? Raise `Denied` to refuse; returning None is no opinion, and a text (since 1.1)
    is the rule that permits it, as `Denied.rule` is the one that does not: `decided` is told the first such text.

    All implementations are called, always before anything leaves: for each DNS question (scheme "dns": the port does not count),
    when a flow opens, and for each connection leased, so for every HTTP request. The place for custom policy.

    Budget: 20 us, a few times a flow and once an HTTP request.
    """


@hookspec(firstresult=True)
def stand_in(agent: Agent, name: str, qtype: int) -> tuple[str, ...] | None:
    """Addresses that the agent is told for `name` instead of its own: connecting to one of them means the name, and they are
    never dialled themselves. `qtype` 1: IPv4, 28: IPv6; () if the name shall have none of that kind, None: no opinion.

    They must lie in a network that the plugin has reserved with `Runtime.reserve()`, be the same for a name as long as the agent
    runs, and stand for one name. Called after `allow`, for an agent's own questions only. Never awaitable.

    Budget: 20 us, once a question.
    """


@hookspec(firstresult=True)
def resolve(agent: Agent, name: str, qtype: int, query: bytes) -> Awaitable[bytes | None] | bytes | None:
    """A DNS question: `name` normalised (lower case, no trailing dot), `query` the wire message it came in. -> wire reply.

    Called after `allow`, for an agent's own queries and, with a query made by the core, before a destination is dialled. The
    reply must carry the query's ID and question as they came. First result wins (an awaited None passes on to the next); raise
    ResolveError to answer with its rcode.

    Budget: 20 us if it is known, else what the network takes.
    """


@hookspec(firstresult=True)
def connect(agent: Agent, destination: Destination, tls: TlsRequest | None) -> Awaitable[Upstream | None] | None:
    """An upstream connection for `destination`, to be used by this agent until `Upstream.release()`.

    `tls` None: no TLS on our side (schemes http, tcp, tls, udp). With it: the handshake is done and the name verified when this
    returns. Called after `allow`, once for each HTTP request and once for each raw flow. First result wins; raise ConnectError,
    ResolveError or TlsError if it cannot be had. `Runtime.dial()` gives the vetted, connected socket to build on. It may say
    which requests can be sent a second time (`agentfw.upstream.Replayable`); else these are GET, HEAD and OPTIONS.

    Budget: 50 us for a connection that is there, else what the network takes.
    """


@hookspec(firstresult=True)
def dial(agent: Agent, destination: Destination, address: str) -> bool | None:
    """May `address` (a numeric one that `destination` resolved to) be dialled? True: yes, even if it is not public; False or
    `Denied`: no. None: no opinion; if nobody has one, only public addresses pass. Never awaitable.

    Called when an agent is given the address in a DNS answer (scheme "dns"), and again right before connect().

    Budget: 10 us, once an address.
    """


@hookspec(firstresult=True)
def own_tls(agent: Agent, destination: Destination) -> Awaitable[OwnTls | None] | OwnTls | None:
    """What to do with TLS that the agent makes itself, to `destination` (scheme "tls"; the host is its SNI's, else what
    its address was resolved from).

    "passthrough": relay it unread, which is what happens if nobody answers. "intercept": be its server, under an authority that
    the guest trusts, so that its requests go the way of all HTTPS. "deny" (or `Denied`): refuse it with an alert. Called before
    `allow`, which follows with scheme "https" for what is intercepted and "tls" for what passes. A plugin that has this hook but
    will never say "intercept" sets its attribute `intercepts = False`: then guests are not given an authority.

    Budget: 20 us, once such a flow.
    """


@hookspec
def meters(agent: Agent, destination: Destination) -> list[Meter] | None:
    """The meters (`agentfw.metering.Meter`) that count, and limit, what this agent's flows to `destination` carry, besides those
    attached to the agent's `Runtime.traffic()`, which are for all its flows (`runtime.traffic(agent).attach(meter)`).
    Called once for a flow, when its destination is known, and again after a reload; all results count. Never awaitable.

    Budget: 20 us, once a flow.
    """


@hookspec
def request(agent: Agent, destination: Destination, head: RequestHead, tls: TlsInfo | None) -> Awaitable[None] | None:
    """An HTTP request head about to be sent over a connection that is already there; may change method, target and headers.

    Framing headers (Content-Length, Transfer-Encoding, Connection) and Host are the core's: changes to them are overwritten.
    Append to `head.transforms` to see or change the body as it streams. `tls` None: plain HTTP. All implementations are called.
    It may be called again for the same request (`head.exchange`), with a fresh head, if a kept connection was found closed.

    Budget: 50 us, once an HTTP request; a transform 5 us a piece and 1 ns a byte.
    """


@hookspec
def recheck(agent: Agent, destination: Destination, head: RequestHead) -> Awaitable[None] | None:
    """agentfw.toml was read again: may this request, which is being answered, go on? Raise `Denied` if it may not; returning is
    no opinion. `head` is as the agent sent it; it is not sent again, and changes to it come to nothing.

    Called after `allow` and `dial`, once for each exchange that is open, upgraded ones too. It must not count as a request.

    Budget: 50 us, once an open exchange after each reload.
    """


@hookspec
def response(agent: Agent, destination: Destination, request: RequestHead, head: ResponseHead) -> Awaitable[None] | None:
    """The response head that came for it (the final one, or that of a switch of protocols, 101), before the agent sees it; may
    change status and headers, and append to `head.transforms` to see or change the body, or what the server sends after the
    switch, as it streams, or to `head.observers` to see what the agent is sent, after all transforms. All implementations are
    called.

    A transform is a function, `transform(piece: bytes, last: bool) -> bytes`. One that makes much of little, or is slow, has
    `parts(piece, last)` besides, an iterator of the same: other agents' turns come in between.

    Budget: 50 us, once an HTTP request; a transform or observer 5 us a piece and 1 ns a byte.
    """


@hookspec
def environment(agent: Agent) -> dict[str, str] | None:
    """Variables that this agent has, unless the operator sets them otherwise; of plugins that name the same one, the first wins.
    Called once, before it starts. Never a secret: the agent reads them. Never awaitable.

    Budget: 10 ms, once an agent.
    """


@hookspec
def guest_rules(agent: Agent) -> GuestRules | None:
    """What this agent's virtual machine may not do with files and system calls (`agentfw.guest_rules.GuestRules`). Called once,
    before it starts; all results count: what one refuses is refused. If a plugin fails here, the agent does not start. Never
    awaitable.

    Budget: 10 ms, once an agent.
    """


@hookspec
def tenant(agent: Agent, destination: Destination) -> str | None:
    """Whom an agent's connections to `destination` speak for, if not for all agents alike: two agents for whom any
    implementation says something different never share a connection. Called for each lease. Never awaitable.

    Budget: 10 us, once a connection leased.
    """


@hookspec
def dispatched(agent: Agent, report: DispatchReport) -> None:
    """An agent has a virtual machine, and its program begins. Since 1.1. Never awaitable; errors are logged.

    Budget: 20 us, once an agent.
    """


@hookspec
def question_end(agent: Agent, question: QuestionReport) -> None:
    """A DNS question of an agent's has been answered, however: once for each that could be read. Since 1.1. Never awaitable;
    errors are logged.

    Budget: 10 us, once a question.
    """


@hookspec
def exchange_end(agent: Agent, exchange: ExchangeReport) -> None:
    """An HTTP request for a known destination is over, however it ended (answered, refused, failed, given up by the agent): once
    for each, the `request` and `response` hooks' among them. Never awaitable; errors are logged.

    Budget: 20 us, once an HTTP request.
    """


@hookspec
def flow_end(agent: Agent, flow: FlowReport) -> None:
    """A guest's socket is over: once for each TCP connection, and for each UDP socket. Never awaitable; errors are logged.

    Budget: 20 us, once a flow.
    """


@hookspec
def model_call(agent: Agent, call: ModelCall) -> None:
    """A call of a model has ended; called by the plugin that recognises them (`inspect`). Never awaitable; errors are logged.

    Budget: 50 us, once a model call.
    """


@hookspec
def audit(event: AuditEvent) -> None:
    """Something was refused, a plugin failed, a report-only rule was met: `Runtime.audit()` was called
    (`runtime.audit(AuditEvent.about("my_kind", agent, destination, reason=...))`). Must not block. Never awaitable; errors are
    logged.

    Budget: 20 us; what takes longer belongs in a thread.
    """


@hookspec
def decided(agent: Agent, destination: Destination | None, decision: Decision) -> None:
    """Something was asked about what an agent may do, and this is the answer: after the `allow` hooks, permitted or not; after
    an address was refused (`dial`), TLS of its own, a start (`admit`), a request or its body, and at an agent's end for files and
    system calls that its guest's rules refused (destination None). A plugin that failed there refused. Since 1.1.

    Never awaitable; errors are logged. A plugin that does not want it at the moment says so in `idle_hooks`.

    Budget: 2 us, as often as `allow`.
    """


@hookspec
def job_event(event: JobEvent) -> None:
    """Something became of a job, a worker or the pool, or somebody did something to them over its control API. Called in the
    router of a pool (embedded ones, too), not in its workers. Since 1.1. Must not block. Never awaitable; errors are logged.

    Budget: 20 us, some four times a job.
    """


@hookspec
def redact(text: bytes) -> bytes | None:
    """`text` is about to be written where people or other programs read it (a log, a capture, a page): the same, of the same
    length, with what nobody must see masked; None: there is nothing in it. Each implementation gets what the one before
    returned. If one fails, the text is not written. Never awaitable. Since 1.1.

    Budget: 5 us, and 2 ns a byte.
    """


@hookspec
def tables() -> list[Table] | None:
    """Tables for `agentfw run --stats` and `--json`: more than the counters of `statistics` can tell.

    Budget: 10 ms, when somebody looks.
    """


@hookspec
def exit(agent: Agent, report: ExitReport) -> None:
    """An agent has ended; what was kept for it can go. Flows of its may still be closing. Never awaitable; errors are logged.

    What its VM did is in `report.vm`: `sight.syscalls()`, `sight.opened()`, `statistics`. While it runs, `await
    runtime.look(agent.id)` gives the same of that moment. (Since 1.1.)

    Budget: 1 ms, once an agent.
    """


@hookspec
def statistics() -> dict[str, int | float] | None:
    """Counters of this plugin, names in lower_snake_case, finite numbers below 2**63. `Runtime.statistics()` puts "plugin."
    before them.

    Budget: 10 ms, when somebody looks.
    """
