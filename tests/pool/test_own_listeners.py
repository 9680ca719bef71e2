"""Workers know where the pool listens for operators: from their start on, when it is about to listen elsewhere, after a reload,
and when they are started anew."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from agentfw.config import Config
from agentfw.pool.authority import RouterLink
from agentfw.pool.router import Router

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
