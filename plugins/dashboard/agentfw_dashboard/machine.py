"""`agentfw doctor`: can the page listen where [dashboard] says?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from agentfw.addresses import is_loopback
from agentfw.config import Config as File
from agentfw.pool.guard import bind_hint, bind_tcp

from .config import Config

Found = tuple[Literal["ok", "warn", "fail"], str, str]


def check(file: File) -> Iterator[Found]:
    """Status, what is so, what mends it. ConfigError for a table that is none."""
    config = file.plugin("dashboard", Config)
    if config.address is None:
        yield "ok", "no page: [dashboard] `listen` is empty", ""
        return
    host, port = config.address
    try:
        for sock in bind_tcp(host, port):
            sock.close()
    except OSError as error:
        taken = "if it is not a pool of yours that listens there, name another port in [dashboard] `listen`; 0 is any"
        yield "warn", f"the page cannot listen at {config.listen}: {error.strerror or error}", bind_hint(error, taken)
        return
    if not is_loopback(host):
        yield "warn", f"the page at {config.listen} is not encrypted", "put a TLS server before it: docs/dashboard.md"
    else:
        yield "ok", f"the page can listen at {config.listen}{', any port' if not port else ''}", ""
