"""The metrics there are: for each statistic what Prometheus is told of it. Whoever adds a counter adds it here.

Labels are bounded by what agentfw itself is made of (states, outcomes) or the operator configured (plugins, tenants, workers):
never an agent, a host or a model, of which there are as many as agents please.
"""

from __future__ import annotations

from ..histograms import HOOK, LONG, SHORT, WARM
from .declared import Declared, by_statistic, counter, gauge, histogram, other_name, several

ENDS = ("succeeded", "failed", "signal", "killed", "memory", "internal", "hostile", "timeout", "output")
"""How jobs end: with status 0, with another one, or as `JobResult.kind` says."""
STATES = ("starting", "ready", "draining", "stopping")
"""A pool's."""
TENANTS = 100
"""Configured tenants with series of their own; all others are `other` together."""
OTHER = "other"

_TENANT = r"(?P<tenant>[A-Za-z0-9][A-Za-z0-9._-]{0,62})"
_PROCESS = r"process\.(?P<process>router|run|worker-[0-9]{1,3})\."
_HOOK = r"hooks\.(?P<plugin>[^.\n][^\n]{0,63})\.(?P<hook>[a-z_]{1,32})"

POOL: tuple[Declared, ...] = (
    gauge("pool_state", "1 for the state that the pool is in, else 0.", {f"pool.state.{name}": name for name in STATES}, "state"),
    gauge("pool_start_time_seconds", "When the pool was started, since the epoch.", "pool.started"),
    gauge("jobs", "Jobs that have not ended, by state.",
          {f"pool.{name}": name for name in ("queued", "starting", "running")}, "state"),
    gauge("jobs_kept", "Jobs that have ended and can still be asked about.", "pool.kept"),
    counter("jobs_submitted", "Jobs taken.", "pool.submitted"),
    counter("jobs_refused", "Jobs refused since the pool, or their tenant's part of it, was full.", "pool.refused"),
    counter("jobs_forked", "Copies made of running jobs.", "pool.forked"),
    counter("jobs_retried", "Further attempts of jobs whose worker or cell was lost.", "pool.retried"),
    counter("jobs_lost", "Jobs that ended since their worker process did.", "pool.lost"),
    counter("jobs_ended", "Jobs that ended, by how: succeeded is exit status 0, failed any other.",
            {f"pool.ended.{name}": name for name in ENDS}, "how"),
    several("gauge", "tenant_jobs", f"Jobs that have not ended, by tenant; `{OTHER}`: those without a table in [pool.tenants].",
            rf"pool\.tenants\.{_TENANT}\.(?P<state>queued|running)"),
    several("counter", "tenant_jobs_ended", "Jobs that ended, by tenant.", rf"pool\.tenants\.{_TENANT}\.ended"),
    gauge("jobs_output_bytes", "Memory that jobs' kept output takes.", "pool.output_bytes"),
    gauge("jobs_payload_bytes", "Files, code and standard input of jobs that have not ended.", "pool.payload_bytes"),
    gauge("workers", "Worker processes that there should be.", "pool.workers"),
    gauge("workers_ready", "Worker processes that take jobs.", "pool.workers_ready"),
    gauge("workers_silent", "Worker processes that did not answer in time: their counters are as they were.",
          "pool.workers_silent"),
    counter("worker_restarts", "Worker processes started anew after one was lost.", "pool.worker_restarts"),
    counter("pool_reloads", "Times that the pool took over a changed agentfw.toml.", "pool.reloads"),
    gauge("physical_memory_bytes", "Physical memory of router, workers and cells, and the kernel's for VMs; shared pages once.",
          "pool.physical_memory"),
    several("counter", "process_cpu_seconds", "CPU time of agentfw's own processes, user and system.",
            rf"{_PROCESS}cpu_seconds"),
    several("gauge", "process_resident_memory_bytes", "Resident memory; pages that several share count in each.",
            rf"{_PROCESS}resident_memory_bytes"),
    several("gauge", "process_proportional_memory_bytes",
            "Resident memory; of a page that several share each has its part (PSS).", rf"{_PROCESS}proportional_memory_bytes"),
    several("gauge", "process_open_fds", "Open file descriptors.", rf"{_PROCESS}open_fds"),
    several("gauge", "process_max_fds", "File descriptors that may be open.", rf"{_PROCESS}max_fds"),
    several("gauge", "process_threads", "Threads.", rf"{_PROCESS}threads"),
    several("gauge", "process_start_time_seconds", "When the process was started, since the epoch.",
            rf"{_PROCESS}start_time_seconds"),
)  # fmt: skip

ENGINE: tuple[Declared, ...] = (
    gauge("vms", "VMs: running a job, idle (warm, waiting for one), warming (being made).",
          {f"engine.{name}": name for name in ("running", "idle", "warming")}, "state"),
    gauge("vm_waiting_jobs", "Jobs that a worker has and no VM for yet.", "engine.waiting"),
    gauge("cells", "Jailed processes with VMs in them.", "engine.cells"),
    gauge("cells_memory_bytes", "Memory that cells have for themselves, without the snapshot that all share.", "engine.memory"),
    counter("vms_dispatched", "VMs that were given a job.", "engine.dispatched"),
    counter("vms_made", "VMs made ready: restored from a snapshot, or recycled after a job.",
            {"engine.restored": "restored", "engine.recycled": "recycled"}, "how"),
    counter("vms_dropped", "Idle VMs ended: unused, trimmed (memory was short), or lost before they got a job.",
            {"engine.given_up": "unused", "engine.trimmed": "trimmed", "engine.lost_before_use": "lost"}, "why"),
    counter("cells_started", "Cells started.", "engine.cells_started"),
    counter("cells_adopted", "Cells started ahead for a tenant that was yet to come, and came.", "engine.adopted"),
    counter("cells_lost", "Cells that ended by a fault, with all VMs in them.", "engine.cells_lost"),
    histogram("vm_warmup_duration_seconds", "From when a VM is asked for until it waits for a job.",
              "engine.warmup_seconds", WARM),
    histogram("dispatch_duration_seconds", "From a job's having a VM to the start of its program.",
              "core.dispatch_seconds", SHORT),
    histogram("vm_wait_duration_seconds", "That jobs waited for a VM in their worker.", "core.wait_seconds", SHORT),
    histogram("first_request_duration_seconds",
              "From the start of an agent's program until a first HTTP request of its has a connection.",
              "core.first_request_seconds", LONG),
)  # fmt: skip

CORE: tuple[Declared, ...] = (
    counter("network_bytes", "Bytes of agents' flows: up, what they sent; down, what they were sent.",
            {"core.bytes_up": "up", "core.bytes_down": "down"}, "direction"),
    counter("flows", "Connections of agents, and sockets of theirs that sent datagrams.",
            {"core.flows_tcp": "tcp", "core.flows_udp": "udp"}, "kind"),
    counter("flow_faults",
            "Flows refused by a plugin, failed (upstream, or by what the agent sent), broken (a fault of a plugin's or ours), or "
            "cut by a reload.",
            {f"core.flows_{name}": name for name in ("denied", "failed", "broken", "cut")}, "fault"),
    counter("connections_dialled", "Sockets opened to upstreams for streams, by whatever plugin.", "core.connections_dialled"),
    histogram("connect_duration_seconds", "Until a connection was there for a request, kept ones among them.",
              "core.connect_seconds", SHORT),
    counter("dns_questions", "Questions of agents.", "core.dns_queries"),
    counter("dns_questions_denied", "Questions refused.", "core.dns_denied"),
    histogram("dns_question_duration_seconds", "Until an agent's question was answered.", "core.dns_seconds", SHORT),
    counter("dns_bad_replies", "Replies of plugins that were none.", "core.dns_bad_replies"),
    counter("dns_removed", "Taken out of replies: addresses that may not be dialled, records that are nobody's business.",
            {"core.dns_addresses_removed": "address", "core.dns_records_removed": "record"}, "what"),
    counter("dns_stand_ins", "Questions answered with addresses that stand for names.", "core.dns_stand_ins"),
    counter("udp_dropped", "Datagrams that could not or must not go.", "core.udp_dropped"),
    counter("udp_refused", "Peers of UDP sockets that could not be had.", "core.udp_refused"),
    counter("tls_streams", "TLS streams of agents: made by the host, passed through, or intercepted.",
            {"core.tls_offloaded": "offloaded", "core.tls_passed_through": "passed_through",
             "core.tls_intercepted": "intercepted"}, "how"),
    counter("tls_stream_faults", "Offers to make TLS turned down, TLS refused, interceptions that failed, and those that broke.",
            {"core.tls_declined": "declined", "core.tls_refused": "refused",
             "core.tls_interception_failed": "interception_failed", "core.tls_broken": "broken"}, "fault"),
    counter("raw_stream_faults", "Streams that are not HTTP: ended by an error; whose upstream took no more.",
            {"core.raw_broken": "broken", "core.raw_send_failed": "send_failed"}, "fault"),
    counter("http_requests", "Well-formed requests of agents.", "core.http_requests"),
    counter("http_responses", "Responses passed on to their ends.", "core.http_responses"),
    counter("http_faults",
            "Requests ambiguous or malformed, denied, answered with 502 or 503 (a plugin failed, the upstream did), and "
            "responses that broke off.",
            {"core.http_bad_requests": "bad_request", "core.http_denied": "denied", "core.http_plugin_failures": "plugin_failed",
             "core.http_upstream_failures": "upstream_failed", "core.http_broken_responses": "broken_response"}, "fault"),
    counter("http_resent_requests", "Requests sent again, since the connection had been closed before.",
            "core.http_stale_connections"),
    counter("http_surplus_closed", "Connections closed for bytes behind a response.", "core.http_extra_bytes"),
    counter("agents_stopped", "Agents ended by a plugin.", "core.agents_stopped"),
    counter("audit_events", "Events told to the hook `audit`: refusals, failures of plugins, reloads.", "core.audit_events"),
    counter("reloads", "Reloads of agentfw.toml, in each process.", "core.reloads"),
    counter("reloads_refused", "Reloads refused, in each process.", "core.reloads_refused"),
)  # fmt: skip

HOOKS: tuple[Declared, ...] = (
    several(
        "histogram",
        "hook_duration_seconds",
        "Calls of plugins' hooks; waiting counts.",
        _HOOK,
        bounds=HOOK,
        sum=".seconds",
        count=".calls",
    ),
    several("gauge", "hook_longest_seconds", "The longest call of a hook.", rf"{_HOOK}\.longest"),
    several("counter", "hook_denied", "Calls of hooks that refused.", rf"{_HOOK}\.denied"),
    several("counter", "hook_errors", "Calls of hooks that failed.", rf"{_HOOK}\.errors"),
    several("counter", "hook_timeouts", "Calls of hooks that took too long and were given up.", rf"{_HOOK}\.timeouts"),
    several("counter", "hook_blocked", "Calls of hooks that held up all agents of a worker.", rf"{_HOOK}\.blocked"),
)

DNS: tuple[Declared, ...] = (
    counter("dns_cache_hits",
            "Questions answered from the cache, with its \"no\", with a failure of the last seconds, from `hosts`.",
            {"dns.hits": "positive", "dns.negative_hits": "negative", "dns.failure_hits": "failure",
             "dns.override_hits": "override"}, "kind"),
    counter("dns_cache_misses", "Questions that had to be asked, of the types that are kept.", "dns.misses"),
    counter("dns_cache_passed", "Questions of other types, passed on.", "dns.passed"),
    counter("dns_cache_coalesced", "Questions that joined one already under way.", "dns.coalesced"),
    counter("dns_cache_stale", "Expired answers given.", "dns.stale"),
    counter("dns_cache_prefetched", "Answers renewed in advance.", "dns.prefetched"),
    counter("dns_cache_refused", "Questions that no resolver should get.", "dns.refused"),
    counter("dns_cache_limited", "Questions beyond a limit.", "dns.limited"),
    counter("dns_cache_synthetic", "Stand-ins told.", "dns.synthetic"),
    gauge("dns_cache_synthetic_names", "Names that have a stand-in now.", "dns.synthetic_names"),
    counter("dns_upstream_queries", "Questions sent to resolvers.",
            {"dns.upstream_udp": "udp", "dns.upstream_tcp": "tcp"}, "transport"),
    counter("dns_upstream_faults",
            "Resolvers' silence and errors, refusals, replies cut short, wrong, or about what was not asked.",
            {f"dns.upstream_{name}": name for name in ("failures", "refusals", "truncated", "mismatched", "foreign")}, "fault"),
    gauge("dns_cache_entries", "Answers kept.", "dns.entries"),
    gauge("dns_cache_bytes", "Memory that they take.", "dns.bytes"),
    gauge("dns_cache_failed_names", "Failures remembered.", "dns.failures"),
    gauge("dns_cache_pending", "Questions under way.", "dns.pending"),
    counter("dns_cache_evicted", "Answers pushed out.", "dns.evicted"),
    counter("dns_pool_questions",
            "Between workers and router: asked and silent (no answer came), told by workers; answered and hits (from its cache), "
            "told by the router.",
            {f"dns.pool_{name}": name for name in ("asked", "silent", "answered", "hits")}, "what"),
)  # fmt: skip

TLS: tuple[Declared, ...] = (
    gauge("tls_connections", "Connections to upstreams: held (idle), leased, being opened.",
          {f"tls.{name}": name for name in ("held", "leased", "opening")}, "state"),
    gauge("tls_waiting", "Requests that wait for a connection.", "tls.waiting"),
    counter("tls_handshakes", "Handshakes with upstreams.", "tls.handshakes"),
    counter("tls_resumed", "Of these: sessions resumed.", "tls.resumed"),
    counter("tls_reused", "Leases of a connection that was there.", "tls.reused"),
    counter("tls_queued", "Requests that had to wait for a connection.", "tls.queued"),
    counter("tls_overflow", "Requests turned away: too many wait, too many connections, one agent's limit, too many retries.",
            {"tls.pending_overflow": "pending", "tls.cx_overflow": "connections", "tls.agent_overflow": "agent",
             "tls.retry_overflow": "retry"}, "limit"),
    counter("tls_queue_timeouts", "Requests that waited too long.", "tls.queue_timeout"),
    counter("tls_retries", "Further attempts to connect.", "tls.retry"),
    counter("tls_connect_failures", "Connections that could not be had.", "tls.failed"),
    counter("tls_connections_retired", "Connections closed by us.",
            {f"tls.retired_{name}": name for name in ("dirty", "idle", "age", "requests", "denied", "drained", "flood")}, "why"),
    counter("tls_connections_closed_by_peer", "Connections closed by the other end.", "tls.closed_by_peer"),
    counter("tls_connections_replaced", "Leased connections found closed, and replaced.", "tls.replaced"),
)  # fmt: skip

POLICY: tuple[Declared, ...] = (
    counter("policy_decisions", "Destinations that rules permitted, each time they were asked about; refusals, of requests too.",
            {"policy.allowed": "allowed", "policy.denied": "denied"}, "decision"),
    counter("policy_requests", "HTTP requests held against the rules.", "policy.requests"),
    counter("policy_requests_denied", "HTTP requests that the rules refused.", "policy.requests_denied"),
    counter("policy_limited", "What a limit refused.", "policy.limited"),
    counter("policy_reported", "What would have been refused in mode `report`.", "policy.reported"),
)  # fmt: skip

CREDENTIALS: tuple[Declared, ...] = (
    counter("credentials_injected", "Requests that got a credential.", "credentials.injected"),
    counter("credentials_refused", "Requests not sent, for want of a credential or for a secret in them.", "credentials.refused"),
    counter("credentials_missing", "Times that a rule's credential could not be had.", "credentials.missing"),
    counter("credentials_masked", "Secrets masked in what servers sent.", "credentials.echoes_masked"),
    counter("credentials_renewals", "Credentials of files, commands and OAuth: got anew, not to be had, answered with 401.",
            {"credentials.renewed": "renewed", "credentials.failures": "failed", "credentials.rejected": "rejected"}, "outcome"),
)  # fmt: skip

NATIVE: tuple[Declared, ...] = (
    counter("native_connections", "Sockets made for plain TCP, and for datagrams.",
            {"native.connections": "tcp", "native.datagram_sockets": "udp"}, "kind"),
    counter("native_reused", "Kept connections lent again.", "native.reused"),
    counter("native_retired", "Kept connections closed, since the peer spoke or closed.", "native.retired"),
    counter("native_overflow", "Connections refused for an agent's limit.", "native.overflow"),
    counter("native_names_resolved", "Names resolved by the host's resolver.", "native.names_resolved"),
    gauge("native_open", "Sockets in use, and connections kept.",
          {"native.open": "tcp", "native.open_datagram_sockets": "udp", "native.idle": "idle"}, "kind"),
)  # fmt: skip

INSPECT: tuple[Declared, ...] = (
    counter("model_calls", "Calls of models that have ended.", "inspect.calls"),
    counter("model_call_faults", "Calls of models without a good answer, not sent (a budget), whose answer broke off.",
            {"inspect.calls_failed": "failed", "inspect.calls_refused": "refused", "inspect.calls_cut": "cut"}, "fault"),
    counter("model_calls_estimated", "Calls whose tokens are estimated.", "inspect.calls_estimated"),
    counter("model_calls_unpriced", "Calls whose price is not known.", "inspect.calls_unpriced"),
    gauge("model_calls_in_flight", "Calls under way.", "inspect.calls_in_flight"),
    histogram("model_call_duration_seconds", "Calls of models, from the request's head to the answer's end.",
              "inspect.call_seconds", LONG),
    histogram("model_first_token_duration_seconds", "Until the first piece of generated content, of streamed calls.",
              "inspect.first_token_seconds", LONG),
    counter("model_tokens", "Tokens as billed; those of caches and of reasoning among them.",
            {"inspect.input_tokens": "input", "inspect.output_tokens": "output"}, "direction"),
    counter("model_reasoning_tokens", "Output tokens that were reasoning.", "inspect.reasoning_tokens"),
    counter("model_cache_tokens", "Input tokens read from, and written to, the provider's cache.",
            {"inspect.cache_read_tokens": "read", "inspect.cache_write_tokens": "write"}, "what"),
    counter("model_cost", "In the currency of [inspect].", "inspect.cost"),
    counter("model_bodies_unreadable", "Bodies that could not be read.", "inspect.unreadable"),
    counter("model_events_oversize", "Events of streams too long to read.", "inspect.oversize_events"),
    counter("model_budget_warnings", "Budgets about to be used up.", "inspect.budget_warnings"),
)  # fmt: skip

AUDIT: tuple[Declared, ...] = (
    counter("audit_lines", "Lines: written, dropped (a full queue or disk), withheld (an agent that tells more than its share).",
            {f"audit.{name}": name for name in ("written", "dropped", "withheld")}, "outcome"),
    counter("audit_write_failures", "Writes that failed.", "audit.failures"),
    counter("audit_rotations", "Files begun anew.", "audit.rotations"),
)  # fmt: skip

OTEL: tuple[Declared, ...] = (
    counter("otel_spans_begun", "Spans of jobs and model calls that are traced.", "otel.spans"),
    counter("otel_spans", "Spans that ended: taken by the collector, not taken, lost to a full queue.",
            {f"otel.{name}": name for name in ("exported", "failed", "dropped")}, "outcome"),
    gauge("otel_spans_waiting", "Spans that wait to be sent.", "otel.waiting"),
)  # fmt: skip

DASHBOARD: tuple[Declared, ...] = (
    gauge("dashboard_agents", "Agents whose lives are kept: running ones, and ended ones.",
          {"dashboard.agents": "running", "dashboard.ended": "ended"}, "state"),
    counter("dashboard_agents_forgotten", "Ended agents whose lives went, for others'.", "dashboard.forgotten"),
    gauge("dashboard_bytes", "Memory that lives take, about.", "dashboard.bytes"),
    gauge("tls_agents", "Running agents that have used TLS of the host's.", "dashboard.tls_agents"),
    gauge("dashboard_connections", "Connections to the page.", "dashboard.connections"),
    gauge("dashboard_viewers", "Those that watch.", "dashboard.viewers"),
    gauge("dashboard_sessions", "Logins that are good.", "dashboard.sessions"),
    counter("dashboard_logins", "Logins.", "dashboard.logins"),
    counter("dashboard_requests_refused", "Requests to the page that were refused.", "dashboard.requests_refused"),
    counter("dashboard_collections", "Times that the pool was asked for all viewers together.", "dashboard.collections"),
    counter("dashboard_frames", "Messages to viewers: sent, and left out for slow ones.",
            {"dashboard.frames": "sent", "dashboard.frames_skipped": "skipped"}, "outcome"),
)  # fmt: skip

CAPTURE: tuple[Declared, ...] = (
    counter("capture_agents", "Agents whose traffic was to be kept: captured, refused (too many others are).",
            {"capture.agents": "captured", "capture.refused": "refused"}, "outcome"),
    counter("capture_exchanges", "HTTP exchanges of captured agents: written, left out (the disk did not keep up, or is full).",
            {"capture.exchanges": "written", "capture.left_out": "left_out"}, "outcome"),
    counter("capture_failures", "Writes that failed.", "capture.failures"),
)  # fmt: skip

SECTIONS: dict[str, tuple[Declared, ...]] = {
    "Pool": POOL,
    "VMs": ENGINE,
    "Network": CORE,
    "Hooks": HOOKS,
    "Plugin dns": DNS,
    "Plugin tls": TLS,
    "Plugin policy": POLICY,
    "Plugin credentials": CREDENTIALS,
    "Plugin native": NATIVE,
    "Plugin inspect": INSPECT,
    "Plugin audit": AUDIT,
    "Plugin otel": OTEL,
    "Plugin dashboard": DASHBOARD,
    "Plugin capture": CAPTURE,
}
CATALOG: tuple[Declared, ...] = tuple(declared for section in SECTIONS.values() for declared in section)

IN_OTHERS = frozenset({"dns.upstream_queries", "tls.overflow", "pool.done", "pool.uptime_seconds"})
"""Statistics that say what metrics say already: sums of theirs, ages of start times."""

_KIND = {statistic: declared.kind for statistic, declared in by_statistic(CATALOG)}


def grows(statistic: str) -> bool:
    """It is a counter (that of a plugin that is not ours, if its name says so), or a part of a histogram: what is lost with a
    worker stays counted."""
    if statistic.startswith("hooks."):
        return not statistic.endswith(".longest")
    kind = _KIND.get(statistic)
    if kind is None:
        kind = _KIND.get(statistic.partition(".bucket.")[0]) or _KIND.get(statistic.removesuffix(".sum"))
        return kind == "histogram" or other_name(statistic).endswith("_total")
    return kind == "counter"
