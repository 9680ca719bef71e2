"""What operators are shown of a pool and of one agent: the shapes that the web page, `agentfw top` and the control API share.

The plugin `dashboard` fills them, from what hooks tell in each worker; nothing here decides anything. Times are seconds since the
epoch, durations seconds, sizes bytes. What an agent wrote itself (names, targets, paths, models) is cut and has no control
characters, but may hold whatever else the agent put there: who shows it escapes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

WARMUP_BUCKET = 0.1
"""Seconds of one bar of the warm-up histogram."""
WARMUP_BUCKETS = 50
"""Bars; the last one has all that took longer."""

StepKind = Literal[
    "queued", "dispatch", "first_syscall", "resolve", "connect", "request", "first_token", "response", "model_call", "denied",
    "exit",
]  # fmt: skip


class _View(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Spread(_View, frozen=True):
    """Of durations: how many there were, and the percentiles. None: there were none."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    most: float | None = None


class Sample(_View, frozen=True):
    """One second of a pool's life. Rates are per second."""

    time: float
    running: int = 0
    started: float = 0.0
    ended: float = 0.0
    questions: float = 0.0
    requests: float = 0.0
    model_calls: float = 0.0
    tokens: float = 0.0
    denials: float = 0.0
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    memory: int = 0


class Denial(_View, frozen=True):
    """Something refused: who, what, by which rule of which plugin, why."""

    time: float
    """Of the latest, if it was refused several times in a row."""
    agent_id: str = ""
    agent: str = ""
    destination: str = ""
    rule: str = ""
    plugin: str = ""
    reason: str = ""
    count: int = 1
    """As often in a row."""


class Overview(_View, frozen=True):
    """A pool at one moment. Totals are since its start."""

    time: float
    started: float
    state: str = "ready"
    workers: int = 0
    workers_missing: int = 0
    """That did not answer in time: they count with what they said last, those that ended with what only grows."""
    silent: list[int] = []
    """Which those are."""
    running: int = 0
    idle: int = 0
    warming: int = 0
    queued: int = 0
    done: int = 0
    failed: int = 0
    """Of those done: that did not exit with status 0."""
    warmup: list[int] = []
    """VMs by the time from asking for one until it was warm, WARMUP_BUCKETS bars of WARMUP_BUCKET seconds."""
    memory: int = 0
    """Physical memory of all processes of the pool, measured on the host: shared pages once, not a sum of RSS."""
    agents_per_gb: float | None = None
    """VMs that are there (running, idle) in a GiB of it."""
    dns_questions: int = 0
    """Of agents, those that were refused among them."""
    dns_hits: int = 0
    """Answers that the cache had: to agents' questions, and to the host's own, which asks again when it connects for an agent."""
    dns_misses: int = 0
    """Those that it had not: somebody had to be asked. What is refused is neither."""
    dns_hit_rate: float | None = None
    """Hits of both."""
    dispatch: Spread = Spread()
    """From the pool's having a job, with a VM ready, to its first bytecode."""
    connect: Spread = Spread()
    """Until a connection was there for a request, pooled ones among them."""
    first_call: Spread = Spread()
    """From dispatch to the head of the first request's going out."""
    tls_sessions: int = 0
    tls_agents: int = 0
    """That have used them."""
    agents_per_session: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    requests: int = 0
    model_calls: int = 0
    model_calls_failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    """None: no prices are known."""
    currency: str = ""
    denials: int = 0
    recent_denials: list[Denial] = []
    """Newest first, at most 100."""
    history: list[Sample] = []
    """Oldest first, a second apart, at most 600."""


class AgentRow(_View, frozen=True):
    """One agent in a table."""

    id: str
    """The job's; of `agentfw run` the agent's."""
    name: str
    tenant: str = ""
    template: str = ""
    labels: dict[str, str] = {}
    state: str = "running"
    """As a job's: "queued", "starting", "running", "done"."""
    worker: int | None = None
    submitted: float = 0.0
    started: float | None = None
    ended: float | None = None
    cpu_seconds: float = 0.0
    memory: int = 0
    """That its VM has been given (committed, in steps of 32 MiB), not what it costs the host: what it did not write is shared."""
    exits: int = 0
    """Of its VM, to the host."""
    questions: int = 0
    connections: int = 0
    requests: int = 0
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    denials: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    last: str = ""
    """What it did last, in words."""
    last_at: float | None = None
    how: str = ""
    """How it ended: "code 0", "signal 11", "timeout", ...; "" while it runs."""


class Step(_View, frozen=True):
    """Something in an agent's life. `at`: seconds from its submission to the step's begin."""

    at: float
    kind: StepKind
    text: str = ""
    seconds: float | None = None
    """How long it took; None: a moment."""
    ok: bool = True


class Syscall(_View, frozen=True):
    name: str
    count: int
    """All, those that the shim answered among them: counted in the guest, believed by nobody."""
    host_count: int = 0
    """That left the guest, counted by the host."""
    host_seconds: float = 0.0
    """In the host, all of those together."""
    errors: int = 0
    """Of those of the host: how many failed."""


class OpenedFile(_View, frozen=True):
    path: str
    mode: str = "r"
    """As it was asked for: "r", "w", "rw"; "p": to be named only; "": it was not opened, but looked at, and refused."""
    count: int = 1
    error: str = ""
    """The errno's name, if it failed."""
    rule: str = ""
    """The file rule that refused it: "hide **/.ssh"."""


class SeenName(_View, frozen=True):
    """A name that was asked for."""

    name: str
    qtype: str
    count: int = 1
    answer: str = ""
    """Addresses, or the rcode."""
    seconds: float = 0.0
    """Of the slowest."""
    denied_rule: str = ""


class SeenDestination(_View, frozen=True):
    destination: str
    connections: int = 0
    requests: int = 0
    errors: int = 0
    denials: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class SeenModelCall(_View, frozen=True, gc=False):
    at: float
    """Seconds from the agent's submission."""
    provider: str
    model: str
    operation: str
    status: int
    seconds: float
    first_token: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    estimated: bool = False
    error: str = ""


class AgentStory(_View, frozen=True):
    """One agent's life. Lists are bounded; `dropped` says by list's name how much more there was."""

    row: AgentRow
    timeline: list[Step] = []
    syscalls: list[Syscall] = []
    """Most first."""
    files: list[OpenedFile] = []
    names: list[SeenName] = []
    destinations: list[SeenDestination] = []
    model_calls: list[SeenModelCall] = []
    denials: list[Denial] = []
    dropped: dict[str, int] = {}
    exit_text: str = ""
    exit_kind: str = ""
    exit_code: int = 0
    exit_signal: int = 0
    counters: dict[str, int] = {}
    """Of its VM (`VmStatistics`)."""


class OutputPiece(_View, frozen=True):
    """Text of one stream, in the order in which it came; bytes that are no UTF-8 are U+FFFD."""

    stream: Literal[1, 2]
    text: str


class OutputTail(_View, frozen=True):
    """The end of what a job wrote."""

    id: str
    pieces: list[OutputPiece] = []
    skipped: int = 0
    """Bytes of both streams before that."""
    ended: bool = False
    """Nothing more will come."""


class AgentTable(_View, frozen=True):
    """`rows`: those that changed since `since` was handed out; all, if it was 0 or is too old."""

    time: float
    since: int
    """To be given with the next question."""
    whole: bool
    """All rows: what is not among them is gone."""
    rows: list[AgentRow] = []
    gone: list[str] = []
    """Ids no longer known."""
    total: int = 0


class LoadedPlugin(_View, frozen=True):
    name: str
    version: str = ""
    hooks: list[str] = []
    table: str = ""
    """Its table as TOML, without what may be secret."""
    counters: dict[str, float] = {}


class Loaded(_View, frozen=True):
    """Configuration in force: plugins in calling order, and the policy's rules in words."""

    file: str = ""
    plugins: list[LoadedPlugin] = []
    policy: str = ""


def dns_cache(statistics: Mapping[str, float]) -> tuple[int, int]:
    """Of the plugin dns's counters: hits and misses. What a worker's cache had not, but its router's had, is a hit."""

    def whole(*names: str) -> int:
        return int(sum(statistics.get(f"dns.{name}", 0) for name in names))

    hits, misses = whole("hits", "negative_hits", "failure_hits", "override_hits"), whole("misses", "passed", "coalesced")
    shared = min(whole("pool_hits"), misses)
    return hits + shared, misses - shared


def failed_jobs(statistics: Mapping[str, float]) -> int:
    """Of a pool's counters: jobs that ended in another way than with status 0, those that no worker lived to tell of among
    them; one that was begun several times is one."""
    ends = {name: value for name, value in statistics.items() if name.startswith("pool.ended.")}
    return int(sum(ends.values()) - ends.get("pool.ended.succeeded", 0))


def how_of(kind: str, code: int, signal: int) -> str:
    """`AgentRow.how` of an end: an ExitReport's, a JobResult's."""
    if kind == "code":
        return f"code {code}"
    return f"signal {signal}" if kind == "signal" else kind
