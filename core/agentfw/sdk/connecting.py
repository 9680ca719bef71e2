"""Which pool `connect()` means: as the commands find it (docs/reference/cli.md)."""

from __future__ import annotations

import os
from pathlib import Path

from ..pool import places
from ..pool.client import HttpBackend
from ..pool.config import configured_socket
from ..pool.jobs import PoolError
from ..pool.tokens import read_token


def backend(socket: str | None, url: str | None, token: str | None, token_file: str | None) -> HttpBackend:
    """What is given goes before the variables AGENTFW_POOL_SOCKET, AGENTFW_POOL_URL and AGENTFW_POOL_TOKEN_FILE, these before
    [pool] socket of the nearest agentfw.toml, and that before this user's own place. PoolError, ConfigError."""
    if socket is None and url is None:
        socket, url = (os.environ.get(f"AGENTFW_POOL_{name}") or None for name in ("SOCKET", "URL"))
    if socket is not None and url is not None:
        raise PoolError("bad_config", "a socket and a URL name two pools", "give one of them")
    if url is None:
        return HttpBackend(socket=socket if socket is not None else configured_socket() or places.default_socket())
    if token is None:
        file = token_file if token_file is not None else os.environ.get("AGENTFW_POOL_TOKEN_FILE")
        return HttpBackend(url=url, token=None if not file else read_token(Path(file)))
    return HttpBackend(url=url, token=token)
