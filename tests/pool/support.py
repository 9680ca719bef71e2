"""A control API over a fake pool, its client, and a raw connection for what no client would say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agentfw.pool import guard
from agentfw.pool.api import ApiServer
from agentfw.pool.client import HttpBackend
from agentfw.pool.guard import Listener
from agentfw.pool.places import SocketPlace

from .fake_backend import FakeBackend

TOKEN = b"a-token-of-the-tests-0123456789"


class Served:
    def __init__(self, server: ApiServer, backend: FakeBackend, client: HttpBackend, path: Path) -> None:
        self.server = server
        self.backend = backend
        self.client = client
        self.path = path
        self.port = 0
        self.stops: list[float] = []


@asynccontextmanager
async def served(path: Path, *, tcp: bool = False, listener: Listener | None = None, limit: int = 1000) -> AsyncIterator[Served]:
    """`path`: of the socket. Nothing waits as long as it would for real clients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "UNREAD", 0.1)
        async with _served(path, tcp, listener, limit) as found:
            yield found


@asynccontextmanager
async def _served(path: Path, tcp: bool, listener: Listener | None, limit: int) -> AsyncIterator[Served]:
    backend = FakeBackend(limit)
    stops: list[float] = []
    server = ApiServer(backend, stops.append, grace=0.1)
    place = SocketPlace.take(path)
    await server.start()
    try:
        await server.listen_unix(place.bind(), listener)
        found = Served(server, backend, HttpBackend(socket=path), path)
        found.stops = stops
        if tcp:
            found.port = await server.listen_tcp("127.0.0.1", 0, TOKEN)
        async with found.client:
            yield found
    finally:
        await server.close()
        place.close()
        await backend.close()


async def raw(path: Path | int, data: bytes, *, wait: float = 5.0) -> bytes:
    """All that comes back for these bytes until the server closes, or for so long."""
    if isinstance(path, int):
        reader, writer = await asyncio.open_connection("127.0.0.1", path)
    else:
        reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(data)
        async with asyncio.timeout(wait):
            return await reader.read()
    finally:
        writer.close()


def request(method: str, target: str, *headers: str, body: bytes = b"", host: str = "localhost") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    if body and not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def answer(data: bytes) -> tuple[int, dict[str, str], Any]:
    """(status, headers, JSON) of a raw answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return int(first.split()[1]), headers, json.loads(body) if body else None
