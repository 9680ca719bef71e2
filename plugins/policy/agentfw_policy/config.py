"""The table [policy] of agentfw.toml."""

from __future__ import annotations

from typing import Literal

import msgspec

from .guest_config import FilesConfig, SyscallsConfig

Mode = Literal["enforce", "report"]
OwnTls = Literal["passthrough", "intercept", "deny"]
NONE = "none"
"""Of a limit: there is none, whatever is inherited."""


class LimitsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Tables `limits` and `shared_limits`. Left out: inherited, "none": no limit."""

    bytes: int | str | None = None
    """Both ways together; a number, "64K", "10M", "2G"."""
    bytes_up: int | str | None = None
    bytes_down: int | str | None = None
    requests: int | Literal["none"] | None = None
    requests_per_second: float | Literal["none"] | None = None
    requests_per_minute: float | Literal["none"] | None = None
    burst: int | None = None
    """Requests at once before the rates count."""
    concurrent_requests: int | Literal["none"] | None = None
    connections: int | Literal["none"] | None = None


class RuleConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One [[policy.rule]]. What is left out does not narrow it."""

    action: Literal["allow", "deny"]
    name: str = ""
    host: str = ""
    hosts: tuple[str, ...] = ()
    port: int | str = ""
    ports: tuple[int | str, ...] = ()
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    labels: dict[str, str | tuple[str, ...]] = {}
    mode: Mode | None = None
    own_tls: OwnTls | None = None
    raw: bool = False
    """With `methods` or `paths`: what cannot be checked for them (TCP, UDP, TLS passed through) passes as far as it goes."""
    upgrade: bool = False
    """Likewise for what follows a switch of protocols (WebSocket)."""
    limits: LimitsConfig = LimitsConfig()


class RulesConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What [policy] and a profile have in common."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    rule: tuple[RuleConfig, ...] = ()
    allow_addresses: tuple[str, ...] = ()
    default: Literal["deny", "allow"] | None = None
    mode: Mode | None = None
    own_tls: OwnTls | None = None
    limits: LimitsConfig = LimitsConfig()
    shared_limits: LimitsConfig = LimitsConfig()
    files: FilesConfig = FilesConfig()
    syscalls: SyscallsConfig = SyscallsConfig()


class ProfileConfig(RulesConfig, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One [policy.profile.NAME]."""

    extends: str | tuple[str, ...] = ()
    labels: dict[str, str | tuple[str, ...]] = {}
    agents: tuple[str, ...] = ()


class Config(RulesConfig, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [policy]."""

    profile: dict[str, ProfileConfig] = {}
