"""Table [audit]."""

from __future__ import annotations

from typing import Literal

import msgspec
from agentfw import ConfigError

Kind = Literal["events", "exchanges", "flows", "model_calls", "exits"]


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [audit]."""

    file: str
    """Relative to agentfw.toml."""
    events: tuple[Kind, ...] = ("events", "exchanges", "model_calls", "exits")
    queries: bool = False
    """Targets with what is behind their `?`."""
    max_bytes: int = 64 << 20
    keep: int = 8
    """Full files kept besides: FILE.1 is the newest."""
    sync: Literal["no", "rotate", "always"] = "rotate"
    """fsync(): leave it to the kernel; before a file is put away and at the end; after each batch of lines."""
    buffer_bytes: int = 16 << 20
    """Of lines that wait to be written; beyond that they are dropped."""

    agent_bytes_per_second: int = 64 << 10
    """Of lines about one agent that it can cause as often as it likes; more are counted only."""
    agent_burst: int = 4 << 20
    """Such bytes at once."""

    def __post_init__(self) -> None:
        if not self.file or "\0" in self.file:
            raise ConfigError("file", "must be a path")
        for name, least, most in (("max_bytes", 4096, 1 << 40), ("keep", 0, 1000), ("buffer_bytes", 65536, 1 << 32),
                                  ("agent_bytes_per_second", 1, 1 << 40), ("agent_burst", 4096, 1 << 40)):  # fmt: skip
            if not least <= getattr(self, name) <= most:
                raise ConfigError(name, f"must be from {least} to {most}")
