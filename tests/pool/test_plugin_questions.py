"""A router's plugin asks the workers', and clients of the control API ask the router's: whoever fails, is late, says too much."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agentfw.config import Config
from agentfw.pool import authority
from agentfw.pool.api import ApiServer
from agentfw.pool.authority import MAX_ANSWER, MAX_BODY, RouterLink, _how_to_have
from agentfw.pool.client import HttpBackend
from agentfw.pool.jobs import PoolError
from agentfw.pool.places import SocketPlace
from agentfw.pool.router import Router

from .routers import finish, job, pool_test, running
from .support import TOKEN, answer, raw, request

PLUGIN = """
import asyncio, json, os, sys
from agentfw import hookimpl
from agentfw.errors import PluginError
from agentfw.pool.jobs import PoolError

class Plugin:
    name = "asker"
    api_local = frozenset({"secret"})

    @hookimpl
    def start(self, runtime):
        self.runtime = runtime

    async def answer_pool(self, body):
        return b"from the router"

    async def answer_router(self, body):
        what, *who = json.loads(body)
        if who and os.getpid() not in who:
            what = "role"
        if what == "role":
            return f"{self.runtime.pool.role} {os.getpid()}".encode()
        if what == "raise":
            raise ValueError("a secret")
        if what == "refuse":
            raise PluginError("not now")
        if what == "exit":
            sys.exit("a secret")
        if what == "cancel":
            raise asyncio.CancelledError
        if what == "late":
            await asyncio.sleep(30)
        if what == "die":
            os._exit(3)
        if what == "text":
            return "text"
        if what == "large":
            return b"x" * (8 << 20)
        if what == "oversize":
            return b"x" * ((8 << 20) + 1)
        return b"?"

    async def answer_api(self, what, query):
        if what == "echo":
            return {"query": dict(query), "role": self.runtime.pool.role}
        if what == "jobs":
            return await self.runtime.pool.backend.jobs()
        if what == "secret":
            return "token"
        if what == "exit":
            sys.exit("a secret")
        if what == "cancel":
            raise asyncio.CancelledError
        if what == "unencodable":
            return object()
        if what == "raise":
            raise ValueError("a secret")
        if what == "late":
            await asyncio.sleep(30)
        raise PoolError("not_found", "no such thing")
"""
MUTE = "class Plugin:\n    name = 'mute'\n    def answer_api(self):\n        return 1\n"
SILENT = "class Plugin:\n    name = 'silent'\n"


@pytest.fixture
def plugins(tmp_path: Path) -> tuple[str, ...]:
    for name, text in (("asker", PLUGIN), ("mute", MUTE), ("silent", SILENT)):
        (tmp_path / f"{name}.py").write_text(text)
    return tuple(str(tmp_path / f"{name}.py") for name in ("asker", "mute", "silent"))


def link(router: Router) -> RouterLink:
    assert router.runtime is not None and isinstance(router.runtime.pool, RouterLink)
    return router.runtime.pool


async def ask(router: Router, what: str, *who: int, seconds: float = 10.0, plugin: str = "asker") -> dict[int, bytes]:
    return await link(router).ask_workers(plugin, json.dumps([what, *who]).encode(), seconds)


def test_workers_answer_those_that_can(plugins: tuple[str, ...]) -> None:
    @pool_test
    async def body() -> None:
        async with running(workers=3, size=12, plugins=plugins) as router:
            pids = [worker.pid for worker in router.workers]
            assert link(router).role == "router" and link(router).workers == 3 and link(router).backend is router
            everybody = {number: f"worker {pid}".encode() for number, pid in enumerate(pids)}
            assert await ask(router, "role") == everybody
            others = {number: text for number, text in everybody.items() if number != 1}
            for what in ("raise", "refuse", "exit", "cancel", "text", "oversize"):
                assert await ask(router, what, pids[1]) == others, what
            assert await ask(router, "late", pids[1], seconds=1.0) == others
            large = await ask(router, "large", pids[1])
            assert large.pop(1) == b"x" * MAX_ANSWER and large == others
            for plugin in ("nobody", "silent", "x" * 1000):
                assert await ask(router, "role", plugin=plugin) == {}
            with pytest.raises(ValueError, match="bytes"):
                await link(router).ask_workers("asker", b"x" * (MAX_BODY + 1))
            with pytest.raises(PoolError) as caught:
                await link(router).ask("asker", b"x")
            assert caught.value.code == "unsupported"
            assert all(worker.restarts == 0 and worker.pid == pid for worker, pid in zip(router.workers, pids, strict=True))
            # One that dies over it, and one that is killed meanwhile, are missing; the pool goes on.
            assert await ask(router, "die", pids[0]) == {number: text for number, text in everybody.items() if number != 0}
            waiting = asyncio.create_task(ask(router, "late", pids[2], seconds=30.0))
            await asyncio.sleep(0.05)
            os.kill(pids[2], signal.SIGKILL)
            assert (await waiting).get(1) == everybody[1]
            info = await finish(router, ["ask", "asker", "x"], ["exit", 3])
            assert info.result is not None and info.result.code == 3

    body()


def test_an_embedded_pool_asks_itself(plugins: tuple[str, ...]) -> None:
    @pool_test
    async def body() -> None:
        async with running(local=True, plugins=plugins) as router:
            assert await ask(router, "role") == {0: f"router {os.getpid()}".encode()}
            for what in ("raise", "refuse", "exit", "cancel", "text", "oversize"):
                assert await ask(router, what) == {}, what
            assert await ask(router, "late", seconds=0.2) == {}

    body()


class _Channel:
    """Of a worker that says what it likes."""

    def __init__(self, says: Any) -> None:
        self.says = says

    async def ask(self, message: msgspec.Struct, kind: type, seconds: float | None = None) -> Any:
        if isinstance(self.says, BaseException):
            raise self.says
        return authority.Body(self.says)


class _Worker:
    state = "ready"

    def __init__(self, number: int, says: Any) -> None:
        self.number = number
        self.channel = None if says is None else _Channel(says)

    def patience(self, seconds: float) -> float:
        return seconds


def test_what_a_broken_worker_says_is_dropped() -> None:
    """Beyond what its own end of the link would let through."""
    said = [b"good", b"x" * (MAX_ANSWER + 1), PoolError("internal", "no"), RuntimeError("ours"), None]
    workers: Any = [_Worker(number, says) for number, says in enumerate(said)]
    found = asyncio.run(RouterLink(None, lambda: workers).ask_workers("p", b""))  # type: ignore[arg-type]
    assert found == {0: b"good"}


def test_clients_ask_a_plugin(plugins: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "API_SECONDS", 0.2)

    @pool_test
    async def body() -> None:
        async with running(plugins=plugins) as router:
            server = ApiServer(router, lambda seconds: None, grace=0.1)
            place = SocketPlace.take(tmp_path / "s")
            await server.start()
            try:
                await server.listen_unix(place.bind())
                port = await server.listen_tcp("127.0.0.1", 0, TOKEN)
                async with (
                    HttpBackend(socket=tmp_path / "s") as client,
                    HttpBackend(url=f"http://127.0.0.1:{port}", token=TOKEN) as remote,
                ):
                    await _asked(router, client, remote, tmp_path / "s")
            finally:
                await server.close()
                place.close()

    body()


async def _asked(router: Router, client: HttpBackend, remote: HttpBackend, path: Path) -> None:
    strange = {"since": "7", "a b": "é&=#\n", "": ""}
    for backend in (client, remote, router):
        assert await backend.plugin("asker", "echo", strange) == {"query": strange, "role": "router"}

    class Echo(msgspec.Struct):
        role: str

    assert await client.plugin("asker", "echo", kind=Echo) == Echo("router")
    info = await router.submit(job(["exit", 0]))
    assert [each["id"] for each in await client.plugin("asker", "jobs")] == [info.id]
    assert await client.plugin("asker", "secret") == "token"

    async def code(backend: HttpBackend | Router, plugin: str, what: str) -> tuple[str, str]:
        with pytest.raises(PoolError) as caught:
            await backend.plugin(plugin, what)
        assert "a secret" not in str(caught.value) and str(caught.value).isprintable()
        return caught.value.code, str(caught.value)

    with pytest.raises(PoolError) as caught:
        await remote.plugin("asker", "secret")
    assert caught.value.code == "forbidden" and "without `--url`" in caught.value.hint
    for plugin, what, expected, text in (
        ("nobody", "x", "not_found", "there is no such plugin"),
        ("silent", "x", "not_found", "it tells clients nothing"),
        ("asker", "nothing", "not_found", "no such thing"),
        ("asker", "raise", "internal", "ValueError"),
        ("asker", "exit", "internal", "SystemExit"),
        ("asker", "cancel", "internal", "CancelledError"),
        ("asker", "unencodable", "internal", "TypeError"),
        ("asker", "late", "internal", "took more than 0.2 s"),
        ("mute", "x", "internal", "TypeError"),
        ("<b>\n\x1b[31m" * 100, "x" * 1000, "not_found", "no such plugin"),
        ("..", "x", "not_found", "no such plugin"),
        ("a/b", "x/y", "not_found", "no such plugin"),
    ):
        assert (await code(client, plugin, what))[0] == expected, (plugin, what)
        assert text in (await code(client, plugin, what))[1]
    with pytest.raises(PoolError) as caught:
        await client.plugin("nobody", "x")
    assert "[run] `plugins`" in caught.value.hint, "what would have it there"
    for target, status in (
        ("/v1/plugins/asker/echo?a=1&a=2", 400),
        ("/v1/plugins/asker/echo?" + "a" * 9000, 400),
        ("/v1/plugins/asker", 404),
        ("/v1/plugins/asker/", 404),
        ("/v1/plugins//echo", 404),
        ("/v1/plugins/asker/echo/more", 404),
        ("/v1/plugins/%00/%ff", 404),
    ):
        found: tuple[int, Mapping[str, str], Any] = answer(await raw(path, request("GET", target)))
        assert found[0] == status and "error" in found[2], (target, found)


def test_what_a_pool_lacks_a_plugin_for(tmp_path: Path) -> None:
    """A list of plugins is all there is: a table adds nothing to it."""
    file = tmp_path / "agentfw.toml"

    def how(text: str, plugin: str = "dashboard") -> str:
        return _how_to_have(plugin, Config.parsed(text, file))

    listed = '[run]\nplugins = ["dns", "tls"]\n'
    assert how(listed) == how(f"{listed}[dashboard]\n") == "add it to [run] `plugins` (agentfw.toml:2)"
    assert "`--plugins`" in how("") and "table" not in how(""), "pools have it by themselves"
    assert "`--plugins`" in how('[run]\nplugins = ["dns", "dashboard"]\n')
    assert how("", "capture").startswith("give it a table")
    assert "`--plugins`" in how('[capture]\ndirectory = "x"\n', "capture"), "it was not there when the pool was started"
