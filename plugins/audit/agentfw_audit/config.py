"""Table [audit]."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from agentfw import ConfigError

Kind = Literal["events", "decisions", "exchanges", "flows", "model_calls", "exits", "jobs", "questions"]
DEFAULT: tuple[Kind, ...] = ("events", "decisions", "exchanges", "flows", "model_calls", "exits", "jobs")


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [audit]: the file that says what was done and refused."""

    file: str
    """Where JSON lines go, relative to agentfw.toml; mode 0600, and nowhere that agents see."""
    events: Annotated[tuple[Kind, ...], msgspec.Meta(min_length=1)] = DEFAULT
    """What is written: `"events"` (refusals, failures of plugins, reloads, budgets), `"decisions"` (permitted and refused, by
    which rule), `"exchanges"` (HTTP requests), `"flows"` (sockets), `"model_calls"` (needs `inspect`), `"exits"`, `"jobs"` (of a
    pool: from submission to end, and who had a hand in it), `"questions"` (DNS, with the answers). Default: all but the last."""
    queries: bool = False
    """Targets with what is behind their `?`, where agents may have put secrets."""
    max_bytes: int = 64 << 20
    """A file of that size is put away as `FILE.1`."""
    keep: int = 8
    """Full files kept besides: FILE.1 is the newest."""
    sync: Literal["no", "rotate", "always"] = "rotate"
    """fsync(): `"no"`, `"rotate"` (before a file is put away, and at the end), `"always"` (after each batch of lines)."""
    buffer_bytes: int = 16 << 20
    """Of lines that wait for the disk; beyond that they are dropped, and a line `{"event": "dropped", "lines": N}` tells."""

    agent_bytes_per_second: int = 64 << 10
    """Of lines about one agent, so that none pushes out what the log says of others, or of itself before; of more, a line
    `dropped` with the agent's name tells how many. Ends, stops, budgets and reloads are always written."""
    agent_burst: int = 4 << 20
    """Such bytes at once."""

    def __post_init__(self) -> None:
        if not self.file or "\0" in self.file:
            raise ConfigError("file", "must be a path")
        for name, least, most in (("max_bytes", 4096, 1 << 40), ("keep", 0, 1000), ("buffer_bytes", 65536, 1 << 32),
                                  ("agent_bytes_per_second", 1, 1 << 40), ("agent_burst", 4096, 1 << 40)):  # fmt: skip
            if not least <= getattr(self, name) <= most:
                raise ConfigError(name, f"must be from {least} to {most}")
