"""Table [capture]."""

from __future__ import annotations

import msgspec
from agentfw import ConfigError

MAX_FETCHED = 256 << 20
"""Of a file that a pool's clients ask for: it goes through memory, the router's and theirs."""
MAX_FILE = 1 << 30


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [capture]: HAR files of what single agents say over HTTP."""

    directory: str = ""
    """Where files go, one an agent, named after it, relative to agentfw.toml; mode 0600, and nowhere that agents see. It must be
    there. Without one nobody is captured, but with `agentfw run --har`."""
    file: str = ""
    """One file for all agents instead, written anew at the start; `agentfw run --har FILE` sets it. Not for pools: all of a
    pool's processes would write it."""
    labels: dict[str, str] = {}
    """Agents with all of these are captured though they did not ask. Empty: none is."""
    body_bytes: int = 65536
    """Of each body, at most 1 MiB; the rest is left out, and counted."""
    max_bytes: int = 64 << 20
    """Of a file, at most 256 MiB in a `directory` (what `agentfw har` fetches) and 1 GiB in a `file`; exchanges that come after
    it is full are counted only."""

    def __post_init__(self) -> None:
        for name, least, most in (("body_bytes", 0, 1 << 20), ("max_bytes", 65536, MAX_FETCHED if self.directory else MAX_FILE)):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(name, f"must be from {least} to {most}")
        for name in ("directory", "file"):
            if "\0" in getattr(self, name):
                raise ConfigError(name, "must be a path")
        if self.directory and self.file:
            raise ConfigError("file", "a file for all, or a directory with a file for each")
        if self.labels and not (self.directory or self.file):
            raise ConfigError("labels", "nobody is captured without a `directory`")
