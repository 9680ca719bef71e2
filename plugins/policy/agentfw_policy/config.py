"""The table [policy] of agentfw.toml."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from .guest_config import FilesConfig, SyscallsConfig

Mode = Literal["enforce", "report"]
OwnTls = Literal["passthrough", "intercept", "deny"]
NONE = "none"
"""Of a limit: there is none, whatever is inherited."""
Word = Annotated[str, msgspec.Meta(min_length=1)]
Words = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
"""What narrows a rule is left out if it narrows nothing: an empty list, which somebody's program wrote perhaps, would allow all
where nobody was meant, and one of labels would deny nobody."""


class LimitsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Tables `limits` and `shared_limits`. Left out: inherited, "none": no limit."""

    bytes: int | str | None = None
    """Both ways together; a number, `"64K"`, `"10M"`, `"2G"`. The agents' sockets count: heads and framing too."""
    bytes_up: int | str | None = None
    """Likewise, from the agent."""
    bytes_down: int | str | None = None
    """Likewise, to the agent."""
    requests: int | Literal["none"] | None = None
    """HTTP requests in all."""
    requests_per_second: float | Literal["none"] | None = None
    """A rate, at least 0.000001."""
    requests_per_minute: float | Literal["none"] | None = None
    """A rate, at least 0.000001."""
    burst: int | None = None
    """Requests at once before the rates count; left out: the rate's number."""
    concurrent_requests: int | Literal["none"] | None = None
    """HTTP requests being answered."""
    connections: int | Literal["none"] | None = None
    """TCP connections open, and peers of UDP sockets."""


class RuleConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One [[policy.rule]]. What is left out does not narrow it; what is empty is a mistake."""

    action: Literal["allow", "deny"]
    """What becomes of what fits."""
    name: str = ""
    """What denials and logs call it."""
    host: Word = ""
    """A pattern as in `allow`; without `host` and `hosts`: every name and every address."""
    hosts: Words = ()
    """Several of them."""
    port: int | Word = ""
    """`443`, `"8000-8999"`."""
    ports: Annotated[tuple[int | str, ...], msgspec.Meta(min_length=1)] = ()
    """Several of them."""
    methods: Words = ()
    """`["GET", "HEAD"]`."""
    paths: Words = ()
    """Prefixes by whole segments: `"/v1"` is `/v1` and `/v1/...`, not `/v10`; `"/v1/"` only what is below. (No `*`.)"""
    labels: dict[str, str | Words] = {}
    """Only for agents with these labels; a value or a list of them."""
    mode: Mode | None = None
    """As in [policy], for this rule; of an allow rule, for its limits and `own_tls`."""
    own_tls: OwnTls | None = None
    """As in [policy], for the hosts of an allow rule; of several the strictest counts."""
    raw: bool = False
    """With `methods` or `paths`: what cannot be held against them (TCP, UDP, TLS passed through) passes as far as it goes."""
    upgrade: bool = False
    """Likewise for what follows a switch of protocols (WebSocket)."""
    limits: LimitsConfig = LimitsConfig()
    """What each agent may use under this allow rule. Bytes and connections count for the hosts as a whole."""


class RulesConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What [policy] and a profile have in common."""

    allow: tuple[str, ...] = ()
    """`"name"`, `"*.name"` (below it, not itself), `"*"` (every name), `"address"`, networks `"10.0.0.0/8"`, each with
    `":port"` (`"[IPv6]:port"`, `"[IPv6/64]:port"`) or for all ports."""
    deny: tuple[str, ...] = ()
    """Likewise; deny wins."""
    rule: tuple[RuleConfig, ...] = ()
    """Finer rules, by method, path, label."""
    allow_addresses: tuple[str, ...] = ()
    """Addresses or networks that are not public but that permitted names may resolve to."""
    default: Literal["deny", "allow"] | None = None
    """For what no list and no rule names; left out: `"deny"`."""
    mode: Mode | None = None
    """`"enforce"` (if left out) or `"report"`: what would be refused passes, is counted (`policy.reported`), logged once for
    each agent, rule and destination, and audited as `report_only`."""
    own_tls: OwnTls | None = None
    """TLS that agents make themselves: `"passthrough"` (if left out; the server's name is checked, nothing else can be),
    `"intercept"` (the host is its server and looks into it) or `"deny"`."""
    limits: LimitsConfig = LimitsConfig()
    """What each agent may use."""
    shared_limits: LimitsConfig = LimitsConfig()
    """What all agents together may use; of a profile, all of its agents."""
    files: FilesConfig = FilesConfig()
    """What they may not do with files."""
    syscalls: SyscallsConfig = SyscallsConfig()
    """System calls that are refused."""


class ProfileConfig(RulesConfig, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One [policy.profile.NAME]."""

    extends: str | tuple[str, ...] = ()
    """A profile or a list of them, whose rules it has too; `"default"` is [policy] itself. At most 32 one by one."""
    labels: dict[str, str | Words] = {}
    """For agents that have these labels; a value or a list of them."""
    agents: Words = ()
    """And, if given, one of these names: `["agent-1", "worker-*"]`."""


class Config(RulesConfig, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [policy]: who may be talked to, how, and how much."""

    profile: dict[str, ProfileConfig] = {}
    """Other rules for some agents."""
