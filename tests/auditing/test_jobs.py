"""What becomes of jobs and the pool, and by whom: lines of the router's plugin and of the workers', in one file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from agentfw.pool.api import ApiServer
from agentfw.pool.client import HttpBackend
from agentfw.pool.jobs import PoolError
from agentfw.pool.places import SocketPlace
from agentfw.pool.router import Router

from tests.pool.routers import finish, job, pool_test, running, until_running

ME = f"uid {os.getuid()} pid {os.getpid()}"
TOKEN = b"0123456789abcdef0123456789abcdef"


def lines(path: Path, event: str = "") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in found if line["event"] == event or not event]


def told(path: Path, job_id: str) -> list[tuple[str, str]]:
    """(what, by) of a job, in the order of time."""
    found = sorted((line for line in lines(path, "job") if line["job"] == job_id), key=lambda line: line["time"])
    return [(line["what"], line.get("by", "")) for line in found]


def table(path: Path, **more: Any) -> dict[str, Any]:
    return {"audit": {"file": str(path), **more}}


@asynccontextmanager
async def served(router: Router, socket: Path) -> AsyncIterator[tuple[HttpBackend, int]]:
    """The pool's API over a Unix socket and TCP: a client of the first, the port of the second."""
    api = ApiServer(router, lambda seconds: None, diary=router.diary)
    await api.start()
    place = SocketPlace.take(socket)
    try:
        port = await api.listen_tcp("127.0.0.1", 0, TOKEN)
        await api.listen_unix(place.bind())
        async with HttpBackend(socket=socket) as client:
            yield client, port
    finally:
        await api.close()
        place.close()


@pytest.mark.parametrize("local", [True, False], ids=["embedded", "workers"])
@pool_test
async def test_a_jobs_life(local: bool, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with running(local=local, plugins=("audit",), tables=table(path)) as router:
        info = await finish(router, ["out", "x"], ["exit", 3], name="n", labels={"run": "7"}, tenant="t")
        slow = await router.submit(job(["sleep", 60]))
        await until_running(router, slow.id)
        await router.signal(slow.id, 9)
        await router.wait(slow.id)
        await router.signal(slow.id, 9)  # it has ended: nothing is done
    assert told(path, info.id) == [("submitted", "program"), ("dispatched", ""), ("ended", "")]
    assert told(path, slow.id) == [("submitted", "program"), ("dispatched", ""), ("signalled", "program"), ("ended", "")]
    submitted, dispatched, ended = sorted(
        (line for line in lines(path, "job") if line["job"] == info.id), key=lambda line: line["time"]
    )
    who = {"agent_id": info.id, "agent": "n", "labels": {"run": "7"}, "job": info.id, "tenant": "t", "template": "default"}
    assert who.items() <= submitted.items() and who.items() <= ended.items() and dispatched["worker"] == 0
    assert (ended["how"], ended["code"], ended["usage"]["stdout"]) == ("code", 3, 1)
    killed = [line for line in lines(path, "job") if line["job"] == slow.id]
    assert [line["signal"] for line in killed if line["what"] == "signalled"] == [9]
    pool = [line["what"] for line in sorted(lines(path, "pool"), key=lambda line: line["time"])]
    assert pool == [*([] if local else ["worker_ready"]), *(["worker_ready"] if local else []), "started", "stopping",
                    "stopped"]  # fmt: skip


@pool_test
async def test_who_did_it_over_the_api(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with (
        running(local=True, plugins=("audit",), tables=table(path)) as router,
        served(router, tmp_path / "s") as (pool, port),
    ):
        info = await pool.submit(job(["sleep", 60]))
        await until_running(router, info.id)
        assert [piece async for piece in pool.output(info.id, follow=False)] == []
        where, head = f"http://127.0.0.1:{port}/v1/jobs/{info.id}", {"Authorization": f"Bearer {TOKEN.decode()}"}
        async with aiohttp.ClientSession() as session:
            async with session.delete(where, headers={"Authorization": "Bearer not-the-token"}) as answer:
                assert answer.status == 401
            async with session.delete(where, headers=head) as answer:
                assert answer.status == 204
        await router.wait(info.id)
        assert await pool.reload() == []
        await pool.drain()
        with pytest.raises(PoolError):
            await pool.submit(job(["exit", 0]))
    assert told(path, info.id) == [
        ("submitted", ME), ("dispatched", ""), ("read", ME), ("signalled", "token from 127.0.0.1"), ("ended", ""),
    ]  # fmt: skip
    pool_lines = [(line["what"], line["by"], line.get("how", "")) for line in lines(path, "pool") if line.get("by")]
    assert pool_lines == [
        ("started", "program", ""), ("refused", "nobody known from 127.0.0.1", "unauthorized"), ("reloaded", ME, ""),
        ("draining", ME, ""), ("stopping", "program", ""), ("stopped", "program", ""),
    ]  # fmt: skip
    assert "not-the-token" not in path.read_text() and TOKEN.decode() not in path.read_text()


@pool_test
async def test_clients_that_are_refused_fill_no_disk(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    tables = table(path, agent_burst=4096, agent_bytes_per_second=1)
    async with (
        running(local=True, plugins=("audit",), tables=tables) as router,
        served(router, tmp_path / "s") as (_, port),
        aiohttp.ClientSession() as session,
    ):
        for _ in range(200):
            async with session.get(f"http://127.0.0.1:{port}/v1/pool") as answer:
                assert answer.status == 401
    refused = len([line for line in lines(path, "pool") if line["what"] == "refused"])
    missing = sum(line["lines"] for line in lines(path, "dropped"))
    assert 5 < refused < 50 and refused + missing == 200


@pool_test
async def test_a_worker_dies_and_jobs_go_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with running(plugins=("audit",), tables=table(path)) as router:
        again = await router.submit(job(["kill"], retries=1))
        ended = await router.wait(again.id)
        assert ended.attempt == 2
    # (whether it was seen to begin before its worker died is the kernel's affair)
    found = [line for line in sorted(lines(path, "job"), key=lambda line: line["time"]) if line["what"] != "dispatched"]
    assert [(line["what"], line["agent_id"]) for line in found] == [
        ("submitted", again.id), ("retried", f"{again.id}.2"), ("ended", f"{again.id}.2"),
    ]  # fmt: skip
    lost = [line["text"] for line in lines(path, "pool") if line["what"] == "worker_lost"]
    assert len(lost) >= 2 and "signal 9" in lost[0]


@pool_test
async def test_copies_and_what_is_fed_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with running(local=True, plugins=("audit",), tables=table(path), size=4, queue=1) as router:
        first = await router.submit(job(["cat"], interactive=True))
        await until_running(router, first.id)
        copies = await router.fork(first.id, 2)
        await router.feed(first.id, b"a")
        await router.feed(first.id, b"", True)
        await router.wait(first.id)
        for copy in copies:
            await router.wait(copy.id)
        for _ in range(5):
            await router.submit(job(["sleep", 60]))
        with pytest.raises(PoolError):
            await router.submit(job(["exit", 0]))
    assert [what for what, _ in told(path, first.id)] == ["submitted", "dispatched", "fed", "ended"]
    for copy in copies:
        assert [what for what, _ in told(path, copy.id)] == ["forked", "dispatched", "ended"]
        assert {line["parent"] for line in lines(path, "job") if line["job"] == copy.id} == {first.id}
    full = [line for line in lines(path, "pool") if line["what"] == "refused"]
    assert [(line["how"], line["by"]) for line in full] == [("pool_full", "program")] and "queue" in full[0]["text"]


@pool_test
async def test_router_and_workers_write_and_rotate_one_file(tmp_path: Path) -> None:
    """No line is torn or lost, though all put files away."""
    path = tmp_path / "audit.jsonl"
    tables = table(path, max_bytes=4096, keep=1000, events=["jobs", "exits", "events"])
    async with running(plugins=("audit",), tables=tables, workers=2) as router:
        infos = await asyncio.gather(*(router.submit(job(["out", "x"], ["exit", 0], name=f"n{number}")) for number in range(80)))
        for info in infos:
            await router.wait(info.id)
    files = [path, *(file for number in range(1, 1000) if (file := tmp_path / f"audit.jsonl.{number}").exists())]
    found = [line for file in files for line in lines(file)]
    assert len(files) > 5
    for info in infos:
        mine = sorted(line["what"] for line in found if line["event"] == "job" and line["job"] == info.id)
        assert mine == ["dispatched", "ended", "submitted"]
    exits = [line["agent_id"] for line in found if line["event"] == "exit"]
    assert sorted(exits) == sorted(info.id for info in infos)


@pool_test
async def test_nobody_listening_costs_nothing(tmp_path: Path) -> None:
    async with running(local=True) as router:
        assert router.diary.plugins is not None and not router.diary.plugins.implemented("job_event")
        await finish(router, ["exit", 0])
    assert router.diary.plugins is None
    router.diary.pool("stopped")
