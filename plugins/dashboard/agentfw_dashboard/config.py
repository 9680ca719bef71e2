"""Table [dashboard]."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from agentfw import ConfigError
from agentfw.config import path_beside
from agentfw.sizes import parse_size

_LISTEN = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})\Z")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}\Z")


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The web page that shows what agents do: where it listens, and who gets in."""

    listen: str = "127.0.0.1:0"
    """`"HOST:PORT"` of the page; port 0: one that is free. `""`: no page."""
    token_file: str | None = None
    """File with the token that programs show, and people without a code; None: a new one each time, beside the pool's socket."""
    names: tuple[str, ...] = ()
    """Host names that the page is known by, besides `localhost` and its addresses."""
    url: str = ""
    """Where a proxy before it serves the page, `"https://dash.example"`."""

    memory: str = "64M"
    """What may be kept of agents' lives in each worker; those that ended first go first when it is full."""
    ended: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 2000
    """Agents that have ended whose lives are kept, at most: in each worker, and in the table."""

    def __post_init__(self) -> None:
        if not parse_size(self.memory):
            raise ConfigError("memory", f"`{self.memory}` is no size", hint="write 64M")
        if self.listen and self.address is None:
            raise ConfigError("listen", f"`{self.listen}` is not HOST:PORT", hint="write `127.0.0.1:8701`, or `[::1]:8701`")
        for name in self.names:
            if not _NAME.match(name):
                raise ConfigError("names", f"`{name}` is no host name", hint="a name alone, without a port")
        if self.url:
            try:
                parts = urlsplit(self.url)
                good = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/") and parts.port != 0
            except ValueError:
                good = False
            if not good or parts.username or parts.query or parts.fragment:
                raise ConfigError(
                    "url", f"`{self.url}` is no URL of a page at a host's root", hint='write "https://dash.example"'
                )

    @property
    def memory_bytes(self) -> int:
        return parse_size(self.memory) or 0

    @property
    def address(self) -> tuple[str, int] | None:
        """Host (IPv6 without brackets) and port; None: nothing is listened at."""
        found = _LISTEN.match(self.listen)
        if found is None or int(found[2]) > 65535:
            return None
        return found[1].removeprefix("[").removesuffix("]"), int(found[2])

    def beside(self, directory: Path) -> Config:
        """Relative paths begin at the file's directory."""
        if self.token_file is None:
            return self
        return msgspec.structs.replace(self, token_file=path_beside(directory, self.token_file))
