"""Table [pool] of agentfw.toml: how large a pool is, what its VMs are made of, who may use it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ..config import check_variables, load_config, path_beside
from ..errors import ConfigError
from ..sizes import parse_size, vm_memory
from .jobs import DEFAULT_TEMPLATE, Isolation

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


class TemplateConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [pool.templates.NAME]: what jobs that name it start from. None: as [run] says."""

    preload: tuple[str, ...] | None = None
    """Modules imported before the snapshot is taken."""
    memory: str | None = None
    """Limit of a VM."""
    mount: tuple[str, ...] | None = None
    """What its agents see: `"HOST:GUEST[:rw]"`."""
    env: dict[str, str] | None = None
    """Variables for its agents."""
    python: str | None = None
    """Interpreter, with the packages of its venv."""
    snapshot: str | None = None
    """A snapshot of the store (`agentfw snapshot ls`), by name or digest, instead of one made here."""
    idle: Annotated[int, Meta(ge=0)] | None = None
    """VMs kept warm for it (for the default tenant). Left out: none; for the template `default` the pool's `idle`."""

    def beside(self, directory: Path) -> TemplateConfig:
        python, mount = self.python, self.mount
        if python is not None and "/" in python:  # else a name, to be found as a shell does
            python = path_beside(directory, python)
        if mount is not None:
            parts = [text.partition(":") for text in mount]
            mount = tuple(path_beside(directory, host) + colon + guest if host else colon + guest for host, colon, guest in parts)
        return msgspec.structs.replace(self, python=python, mount=mount)


class TenantConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [pool.tenants.NAME]: what a tenant may have of the pool."""

    share: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    """Of the CPU, against other tenants' shares, when there is not enough for all."""
    running: Annotated[int, Meta(ge=1)] | None = None
    """Jobs at once; left out: as many as there are VMs."""
    queued: Annotated[int, Meta(ge=0)] | None = None
    """Jobs that may wait; more are refused (`pool_full`). Left out: the pool's `queue`."""


class LimitsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [pool.limits]: of each job that does not name its own; a job may ask for less, not for more."""

    seconds: Annotated[float, Meta(gt=0, le=30 * 86400)] | None = 3600.0
    """Wall time from dispatch, in seconds."""
    cpu_seconds: Annotated[float, Meta(gt=0, le=30 * 86400)] | None = None
    """CPU time, in seconds; left out: no limit."""
    cpu: Annotated[float, Meta(ge=0.01, le=1)] | None = None
    """At most this part of a core; left out: no limit."""
    output: Annotated[int, Meta(ge=0, le=1 << 40)] = 64 << 20
    """Bytes of stdout and stderr together."""


class PoolConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [pool]: how large a pool is, what its VMs are made of, who may use it."""

    workers: Annotated[int, Meta(ge=1, le=256)] | None = None
    """Worker processes; left out: one a CPU."""
    size: Annotated[int, Meta(ge=1, le=100_000)] = 256
    """VMs at once, warm or running, in the whole pool; more jobs wait."""
    idle: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    """VMs kept warm, waiting for a job: made at the start, and again when fewer are left. Left out: 32, but not more than
    `size`."""
    memory: str | None = None
    """What the VMs may take in sum, their private files with them, `"8G"`, measured, not promised; left out: what the host
    has. With less than a tenth of the host's memory left, or while its kernel reports that tasks wait for memory, idle VMs go
    first."""
    isolation: Isolation = "cell"
    """`"cell"`: VMs of one tenant and template share jailed processes; `"process"`: a process a VM."""
    recycle: bool = True
    """A VM is used again for a job of the same tenant and template once its memory was put back; `false`: each job has a new
    VM."""
    queue: Annotated[int, Meta(ge=0, le=1_000_000)] = 10_000
    """Jobs that may wait; more are refused (`pool_full`)."""
    keep_jobs: Annotated[int, Meta(ge=0, le=1_000_000)] = 2_000
    """Ended jobs whose state can still be asked for. Those that ended within the last ten seconds always can."""
    keep_output: Annotated[int, Meta(ge=0, le=1 << 40)] = 256 << 20
    """Bytes of output kept in sum; that of the oldest ended jobs goes first. Of one job at most its limit."""
    socket: str | None = None
    """Of the control API; left out: `$XDG_RUNTIME_DIR/agentfw/pool.sock`, else `/tmp/agentfw-UID/pool.sock`."""
    listen: str | None = None
    """`"HOST:PORT"`: the control API over TCP, too; needs `token_file`. Left out: the socket only."""
    token_file: str | None = None
    """File with the token that TCP clients must show (`Authorization: Bearer`)."""
    templates: dict[str, TemplateConfig] = {}
    """What jobs may start from."""
    tenants: dict[str, TenantConfig] = {}
    """Who shares the pool, and how."""
    limits: LimitsConfig = LimitsConfig()
    """Of each job that names none."""
    log: Literal["error", "warning", "info", "debug"] = "info"
    """What the pool's log has."""

    def __post_init__(self) -> None:
        for what, names in (("templates", self.templates), ("tenants", self.tenants)):
            for name in names:
                if not _NAME.match(name):
                    raise ConfigError(what, f"`{name}` cannot be a name: letters, digits, `.`, `_`, `-`, at most 63")
        if self.memory is not None and not parse_size(self.memory):
            raise ConfigError("memory", f"`{self.memory}` is no size (write 8G)")
        for name, template in self.templates.items():
            check_variables(template.env or {}, f"templates.{name}.env")
            try:
                vm_memory(template.memory)
            except ValueError as error:
                raise ConfigError(f"templates.{name}.memory", f"`{template.memory}` {error}") from None
        if self.idle is not None and self.idle > self.size:
            raise ConfigError("idle", f"{self.idle} idle VMs in a pool of {self.size}")
        if self.listen is not None and self.token_file is None:
            raise ConfigError("listen", "TCP needs a token", hint='name a file with one: `token_file = "pool.token"`')

    @property
    def warm(self) -> int:
        """What `idle` comes to."""
        return min(32, self.size) if self.idle is None else self.idle

    def beside(self, directory: Path) -> PoolConfig:
        """Relative paths begin at the file's directory."""
        place = {
            name: None if value is None else path_beside(directory, value)
            for name, value in (("socket", self.socket), ("token_file", self.token_file))
        }
        templates = {name: template.beside(directory) for name, template in self.templates.items()}
        return msgspec.structs.replace(self, **place, templates=templates)

    def template(self, name: str) -> TemplateConfig | None:
        """None: there is no such one. "default" always is."""
        return self.templates.get(name) or (TemplateConfig() if name == DEFAULT_TEMPLATE else None)


def configured_socket() -> str | None:
    """[pool] socket of the nearest agentfw.toml."""
    config = load_config()
    table = config.tables.get("pool")
    return config.plugin("pool", PoolConfig).socket if isinstance(table, dict) and "socket" in table else None
