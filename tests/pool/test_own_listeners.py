"""Workers know where the pool listens for operators: from their start on, when it is about to listen elsewhere, after a reload,
and when they are started anew."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
from pathlib import Path

import pytest
from agentfw.cli.service import Service, _Process
from agentfw.config import Config
from agentfw.errors import ConfigError
from agentfw.pool.api import ApiServer
from agentfw.pool.authority import RouterLink
from agentfw.pool.guard import bind_tcp
from agentfw.pool.places import SocketPlace
from agentfw.pool.router import Router

from .fake_backend import FakeBackend
from .routers import ENGINE, QUICK, pool_test, until

PLUGIN = """
import json
from agentfw import hookimpl

class Plugin:
    name = "told"

    @hookimpl
    def start(self, runtime):
        self.runtime = runtime
        self.at_start = list(runtime.listeners)

    async def answer_router(self, body):
        return json.dumps([self.at_start, list(self.runtime.listeners)]).encode()
"""
API, PAGE, LATER = ("127.0.0.1", 8700), ("127.0.0.1", 8701), ("::1", 8702)


async def told(link: RouterLink) -> list[list[list[tuple[str, int]]]]:
    """Of each worker: the listeners that it knew at its start, and those that it knows."""
    answers = await link.ask_workers("told", b"", 10.0)
    return [[[(host, port) for host, port in each] for each in json.loads(answers[number])] for number in sorted(answers)]


def test_workers_are_told(tmp_path: Path) -> None:
    file = tmp_path / "told.py"
    file.write_text(PLUGIN)

    @pool_test
    async def body() -> None:
        config = Config({"pool": {"workers": 2, "size": 8, "idle": 0}})
        router = Router(config, (str(file),), load=lambda: config, patience=QUICK, engine=ENGINE, listeners=[API])
        await router.start()
        try:
            runtime = router.runtime
            assert runtime is not None and isinstance(runtime.pool, RouterLink)
            assert await told(runtime.pool) == [[[API], [API]]] * 2
            runtime.keep_from_agents("page", [PAGE])
            await runtime.pool.keep_from_agents(runtime.listeners)
            assert await told(runtime.pool) == [[[API], [API, PAGE]]] * 2
            runtime.keep_from_agents("page", [LATER])
            await router.reload()
            assert await told(runtime.pool) == [[[API], [API, LATER]]] * 2
            killed = router.workers[1]
            os.kill(killed.pid, signal.SIGKILL)
            await until(lambda: killed.restarts == 1 and killed.state == "ready")
            assert await told(runtime.pool) == [[[API], [API, LATER]], [[API, LATER], [API, LATER]]]
        finally:
            await router.close()

    body()


def test_an_embedded_pools_are_its_own(tmp_path: Path) -> None:
    @pool_test
    async def body() -> None:
        config = Config({"pool": {"workers": 1, "size": 4, "idle": 0}})
        router = Router(config, (), load=lambda: config, local=True, engine=ENGINE, listeners=[API])
        await router.start()
        try:
            runtime = router.runtime
            assert runtime is not None and isinstance(runtime.pool, RouterLink)
            runtime.keep_from_agents("page", [PAGE])
            await runtime.pool.keep_from_agents(runtime.listeners)
            runtime.keep_from_agents("page", [])
            await router.reload()
            assert runtime.listeners == (API,)
        finally:
            await router.close()

    body()


def test_addresses_that_a_host_does_not_have_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """/etc/hosts has ::1 for localhost where IPv6 is switched off, or not built in, too."""
    here = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
    nowhere = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0))]  # RFC 3849: nobody's
    unknown = [(socket.AF_APPLETALK, socket.SOCK_STREAM, 0, "", ("", 0))]
    answers = iter([nowhere, [*nowhere, *here], [*here, *nowhere], [*unknown, *here], here])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: next(answers))
    with pytest.raises(OSError, match=os.strerror(errno.EADDRNOTAVAIL)):
        bind_tcp("localhost", 0)
    for _ in range(3):
        (sock,) = bind_tcp("localhost", 0)
        with sock:
            assert sock.getsockname()[0] == "127.0.0.1" and sock.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        bind_tcp("localhost", taken.getsockname()[1])


def test_a_port_that_another_one_came_to_listen_at_is_told_as_one_that_is_taken(tmp_path: Path) -> None:
    """Two may be bound to it, as long as none of them listens."""

    async def body() -> None:
        mine, other = bind_tcp("127.0.0.1", 0), []
        try:
            port = mine[0].getsockname()[1]
            other = bind_tcp("127.0.0.1", port)
            other[0].listen()
            service = Service(config=Config(), plugins=(), load=Config, as_json=False, quiet=True, verbose=0)
            place, api = SocketPlace.take(tmp_path / "pool.sock"), ApiServer(FakeBackend(), lambda seconds: None)
            await api.start()
            try:
                with pytest.raises(ConfigError, match=f"pool.listen: cannot listen at 127.0.0.1:{port}: "):
                    listen = "127.0.0.1", port, b"x" * 32
                    await _Process(service, None, None)._open(api, place, listen, mine)
            finally:
                await api.close()
                place.close()
        finally:
            for sock in (*mine, *other):
                sock.close()

    asyncio.run(body())
