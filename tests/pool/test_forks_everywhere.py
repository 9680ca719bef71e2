"""Forks end to end: through a router, embedded and with workers, and over the control API; what cannot be forked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agentfw import Agent, Denied, hookimpl
from agentfw.config import Config
from agentfw.pool.api import ApiServer
from agentfw.pool.client import HttpBackend
from agentfw.pool.jobs import Job, PoolError
from agentfw.pool.places import SocketPlace
from agentfw.pool.router import Router

from .engines import Heard, engine, in_loop
from .test_forks import BRANCHING, started

pytestmark = [pytest.mark.kvm, pytest.mark.usefixtures("nothing_left")]

SHARED = """
import mmap, os
memory = mmap.mmap(os.open("/m/file", os.O_RDWR), 4096)
print("ready", flush=True)
while True: memory[0] = 1
"""


def test_what_cannot_be_forked(agentfw_environment: dict[str, str], tmp_path: Path) -> None:
    """A host file that is written to through memory; copies that a plugin does not admit. The job goes on."""

    class Gate:
        @hookimpl
        def admit(self, agent: Agent) -> None:
            if agent.id.startswith("denied"):
                raise Denied("gate: denied", "no copies")

    async def main() -> None:
        (tmp_path / "file").write_bytes(bytes(4096))
        store = Path(agentfw_environment["XDG_CACHE_HOME"]) / "agentfw/snapshots"
        async with engine(store, Gate(), size=3, idle=0, run={"mount": (f"{tmp_path}:/m:rw",)}) as pool:
            parent, _ = await started(pool, Job(mode="code", target=SHARED), "parent")
            with pytest.raises(PoolError, match="host file") as caught:
                await pool.fork("parent", ["a"], [Heard()])
            assert caught.value.code == "unsupported" and not parent.done()
            pool.signal("parent", 9)
            assert (await parent).kind == "killed"
            parent, _ = await started(pool, Job(mode="code", target=BRANCHING), "parent")
            copies = await pool.fork("parent", ["denied", "allowed"], [Heard(), Heard()])
            denied, allowed = [await copy for copy in copies]
            assert denied.kind == "internal" and "no copies" in denied.text
            assert (allowed.kind, allowed.code) == ("code", 1)
            pool.signal("parent", 9)
            await parent

    in_loop(main)


@pytest.fixture
def settings(agentfw_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Config:
    for name, value in agentfw_environment.items():
        monkeypatch.setenv(name, value)
    return Config({"pool": {"workers": 1, "size": 6, "idle": 1}})


async def lines(backend: Any, job_id: str) -> AsyncIterator[str]:
    rest = b""
    async for piece in backend.output(job_id):
        rest += piece.data
        while b"\n" in rest:
            line, rest = rest.split(b"\n", 1)
            yield line.decode()


@pytest.mark.parametrize("local", [True, False], ids=["embedded", "workers"])
def test_through_the_router(settings: Config, local: bool) -> None:
    async def main() -> None:
        router = Router(settings, (), load=lambda: settings, local=local)
        await router.start()
        try:
            await through(router)
        finally:
            await router.close()

    in_loop(main)


async def through(backend: Any) -> None:
    job = await backend.submit(Job(mode="code", target=BRANCHING, stdin=b"not for copies"))
    async for line in lines(backend, job.id):
        assert line == "ready"
        break
    copies = await backend.fork(job.id, 2)
    assert [copy.parent for copy in copies] == [job.id] * 2
    seen = []
    for copy in copies:
        info = await backend.wait(copy.id)
        assert info.result is not None and info.result.kind == "code", info
        seen.append([json.loads(line) async for line in lines(backend, copy.id)])
    assert [len(each) for each in seen] == [1, 1]
    assert len({line[0]["next"] for line in seen}) == 2 and [line[0]["in"] for line in seen] == ["", ""]
    await backend.signal(job.id, 9)
    info = await backend.wait(job.id)
    assert info.result is not None and info.result.kind == "killed"


def test_over_the_control_api(settings: Config, tmp_path: Path) -> None:
    async def main() -> None:
        router = Router(settings, (), load=lambda: settings, local=True)
        await router.start()
        try:
            place = SocketPlace.take(tmp_path / "s")
            server = ApiServer(router, lambda seconds: None, grace=0.1)
            await server.start()
            try:
                await server.listen_unix(place.bind())
                async with HttpBackend(socket=tmp_path / "s") as client:
                    await through(client)
            finally:
                await server.close()
                place.close()
        finally:
            await router.close()

    in_loop(main)
