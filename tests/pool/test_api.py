"""The control API with its own client: every operation, over the Unix socket and TCP; nothing is left of clients that go."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from agentfw.pool import api, places, wire
from agentfw.pool.client import HttpBackend
from agentfw.pool.jobs import Job, Limits, PoolError

from tests.core.support import async_test

from .support import TOKEN, answer, raw, request, served

PROGRAM = b"""
import os, sys
print(sys.argv, os.environ["A"], sys.stdin.buffer.read())
sys.stderr.write("e")
sys.exit(3)
"""


def code(text: str, **more: object) -> Job:
    return Job(mode="code", target=text, **more)  # type: ignore[arg-type]


async def text_of(client: HttpBackend, job_id: str, stream: int = 1) -> bytes:
    return b"".join([piece.data async for piece in client.output(job_id) if piece.stream == stream])


async def refused(awaitable: object) -> PoolError:
    with pytest.raises(PoolError) as caught:
        await awaitable  # type: ignore[misc]
    return caught.value


@async_test
async def test_a_job_from_beginning_to_end(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as pool:
        job = Job(
            mode="script", target="d/a.py", args=("x", "ü"), env={"A": "1"}, stdin=b"\xff\0", name="n", labels={"run": "7"},
            files={"d/a.py": PROGRAM},
        )  # fmt: skip
        info = await pool.client.submit(job)
        assert (info.name, info.labels, info.state) == ("n", {"run": "7"}, "queued")
        ended = await pool.client.wait(info.id)
        assert ended.result is not None and ended.result.status == 3 and ended.state == "done"
        assert await text_of(pool.client, info.id) == "['d/a.py', 'x', 'ü'] 1 b'\\xff\\x00'\n".encode()
        assert await text_of(pool.client, info.id, 2) == b"e"
        assert await pool.client.info(info.id) == ended


@async_test
async def test_output_comes_while_it_runs_and_from_where_one_wants(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as pool:
        job = code("import sys; print('first', flush=True); sys.stdin.readline(); print('last')", interactive=True)
        info = await pool.client.submit(job)
        stream = pool.client.output(info.id)
        first = await anext(stream)
        assert (first.data, first.offset) == (b"first\n", 0)
        await pool.client.feed(info.id, b"go\n")
        assert [piece.data async for piece in stream] == [b"last\n"]
        assert [piece.data async for piece in pool.client.output(info.id, follow=False, stdout=3)] == [b"st\n", b"last\n"]
        assert [piece async for piece in pool.client.output(info.id, stdout=100)] == []


@async_test
async def test_much_output_and_input_whole(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as pool:
        info = await pool.client.submit(
            code("import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)", interactive=True)
        )
        data = bytes(range(256)) * 12_000
        feeding = asyncio.create_task(pool.client.feed(info.id, data, end=True))
        assert await text_of(pool.client, info.id) == data
        await feeding


@async_test
async def test_signals_kills_and_waits(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as pool:
        client = pool.client
        first = await client.submit(code("import time; print('up', flush=True); time.sleep(100)"))
        async for _ in client.output(first.id):
            assert (await client.wait(first.id, 0)).state == (await client.wait(first.id, 0.1)).state == "running"
            await client.signal(first.id, signal.SIGTERM)
        result = (await client.wait(first.id)).result
        assert result is not None and (result.kind, result.signal, result.status) == ("signal", 15, 143)
        second = await client.submit(code("import time; time.sleep(100)"))
        status, headers, body = answer(await raw(pool.path, request("DELETE", f"/v1/jobs/{second.id}")))
        assert (status, body, headers["agentfw-api"]) == (204, None, wire.API_VERSION)
        result = (await client.wait(second.id)).result
        assert result is not None and result.status == 137
        await client.signal(second.id, 9)  # nothing, it has ended
        late = await client.submit(code("import time; time.sleep(100)", limits=Limits(seconds=0.2)))
        result = (await client.wait(late.id)).result
        assert result is not None and result.status == 124


@async_test
async def test_lists_and_forks(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as pool:
        client = pool.client
        ids = [(await client.submit(code("pass", labels={"n": str(number % 2)}))).id for number in range(4)]
        other = await client.submit(
            code("print('x', flush=True); import time; time.sleep(100)", tenant="other", labels={"a/b": "="})
        )
        assert [info.id for info in await client.jobs(tenant="default")] == ids[::-1]
        assert [info.id for info in await client.jobs(labels={"n": "1"}, limit=1)] == [ids[3]]
        assert [info.id for info in await client.jobs(labels={"a/b": "="})] == [other.id]
        await anext(client.output(other.id))
        assert (await client.jobs(state="running"))[0].id == other.id
        forks = await client.fork(other.id, 2)
        assert [info.parent for info in forks] == [other.id, other.id]
        await client.wait(ids[0])
        assert (await refused(client.fork(ids[0], 1))).code == "unsupported"


@async_test
async def test_the_pool_itself(tmp_path: Path) -> None:
    async with served(tmp_path / "s", limit=2) as pool:
        client = pool.client
        assert (await client.describe()).api == wire.API_VERSION
        info = await client.submit(code("import sys; sys.stdin.read()", interactive=True))
        assert (await client.metrics())["pool.jobs"] == 1
        for target in ("/v1/metrics?format=prometheus", "/metrics"):
            head, _, body = (await raw(pool.path, request("GET", target))).partition(b"\r\n\r\n")
            status, headers, _ = answer(head)
            assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
            assert b"\nagentfw_jobs_submitted_total 1.0\n" in body
            accept = "Accept: application/openmetrics-text; version=1.0.0; q=0.9, text/plain; q=0.5"
            head, _, body = (await raw(pool.path, request("GET", target, accept))).partition(b"\r\n\r\n")
            assert answer(head)[1]["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
            assert b"\nagentfw_jobs_submitted_total 1.0\n" in body and body.endswith(b"# EOF\n")
        pool.backend.reloads += [["policy"], PoolError("bad_config", "agentfw.toml:3: policy.alow: unknown key", "did you mean?")]
        assert await client.reload() == ["policy"]
        error = await refused(client.reload())
        assert (error.code, error.hint) == ("bad_config", "did you mean?") and "agentfw.toml:3" in str(error)
        await client.submit(code("pass"))
        assert (await refused(client.submit(code("pass")))).code == "pool_full"
        drained = await client.drained(0.05)
        assert not drained.done and drained.pool.state == "draining"
        assert (await refused(client.submit(code("pass")))).code == "draining"
        draining = asyncio.create_task(client.drain())
        await client.feed(info.id, b"", end=True)
        await draining
        await client.stop()
        await client.stop(0)
        assert pool.stops == [api.STOP_SECONDS, 0]
        status, _, _ = answer(await raw(pool.path, request("POST", "/v1/pool/stop")))
        assert status == 202 and pool.stops[2:] == [api.STOP_SECONDS]


@async_test
async def test_over_tcp_with_the_token_only(tmp_path: Path) -> None:
    async with served(tmp_path / "s", tcp=True) as pool:
        url = f"http://127.0.0.1:{pool.port}"
        async with HttpBackend(url=url, token=TOKEN) as client:
            info = await client.submit(code("print(1)"))
            assert await text_of(client, info.id) == b"1\n"
        async with HttpBackend(url=url, token="b" * 30) as client:
            error = await refused(client.jobs())
            assert error.code == "unauthorized" and "bbb" not in str(error) + error.hint
        for header in ([], ["Authorization: Basic YTpi"], [f"Authorization: {TOKEN.decode()}"], ["Authorization: Bearer \xff"]):
            status, headers, body = answer(await raw(pool.port, request("GET", "/v1/pool", *header)))
            assert (status, body["error"]["code"], headers["www-authenticate"]) == (401, "unauthorized", "Bearer")
        async with HttpBackend(url=url.replace("http", "https"), token=TOKEN) as client:
            error = await refused(client.jobs())
            assert error.code == "unavailable" and "TLS with https://" in str(error) and "http://" in error.hint
        good = f"Authorization: bearer {TOKEN.decode()}"
        assert answer(await raw(pool.port, request("GET", "/v1/pool", good)))[0] == 200
        assert answer(await raw(pool.port, request("GET", "/v1/pool", good, host="evil.example")))[0] == 403
        assert answer(await raw(pool.port, request("GET", "/metrics")))[0] == 401
        assert b"\nagentfw_jobs_submitted_total 1.0\n" in await raw(pool.port, request("GET", "/metrics", good))


@async_test
async def test_a_client_that_goes_away_leaves_nothing(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as pool:
        info = await pool.client.submit(code("print('x', flush=True); import time; time.sleep(100)"))
        run = pool.backend.runs[info.id]
        await anext(pool.client.output(info.id))
        for target in (f"/v1/jobs/{info.id}/output?follow=1", f"/v1/jobs/{info.id}/wait?seconds=300"):
            _, writer = await asyncio.open_unix_connection(pool.path)
            writer.write(request("GET", target))
            for _ in range(200):
                await asyncio.sleep(0.01)
                if ("output" in target) == bool(run.readers):
                    break
            writer.close()
        async with asyncio.timeout(5):
            while run.readers or len(pool.server._runner.server.connections) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@async_test
async def test_a_slow_reader_is_waited_for(tmp_path: Path) -> None:
    """What it does not take stays where it is: the server reads on from the backend only as the client does."""
    async with served(tmp_path / "s") as pool:
        info = await pool.client.submit(code("import os\nfor i in range(300): os.write(1, bytes(65536))"))
        await pool.client.wait(info.id)
        taken = 0
        pieces = pool.backend.output

        async def counted(*args: object, **keywords: object) -> object:
            nonlocal taken
            async for piece in pieces(*args, **keywords):  # type: ignore[arg-type]
                taken += len(piece.data)
                yield piece

        pool.backend.output = counted  # type: ignore[method-assign,assignment]
        reader, writer = await asyncio.open_unix_connection(pool.path, limit=4096)
        writer.write(request("GET", f"/v1/jobs/{info.id}/output"))
        before = -1
        while taken != before or not taken:
            before = taken
            await asyncio.sleep(0.1)
        assert taken < 4 << 20
        while await reader.read(1 << 20):
            pass
        assert taken == 300 * 65536
        writer.close()


@async_test
async def test_a_stream_without_output_has_a_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "HEARTBEAT", 0.02)
    async with served(tmp_path / "s") as pool:
        info = await pool.client.submit(code("import sys; sys.stdin.read(); print('end')", interactive=True))
        reader, writer = await asyncio.open_unix_connection(pool.path)
        writer.write(request("GET", f"/v1/jobs/{info.id}/output?follow=1"))
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(12) == b"1\r\n\n\r\n1\r\n\n\r\n"
        stream = asyncio.create_task(text_of(pool.client, info.id))
        await asyncio.sleep(0.1)
        await pool.client.feed(info.id, b"", end=True)
        assert await stream == b"end\n"
        writer.close()


@async_test
async def test_a_crowd_that_comes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than may wait in the socket's queue: each gets its turn."""
    monkeypatch.setattr(places, "BACKLOG", 8)
    async with served(tmp_path / "s") as pool:
        answers = await asyncio.gather(*(pool.client.describe() for _ in range(300)))
        assert {each.state for each in answers} == {"ready"}


@async_test
async def test_an_error_in_the_middle_of_a_stream_is_told(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as pool:
        info = await pool.client.submit(code("print(1)"))

        async def broken(*_: object, **__: object) -> object:
            yield (await pool.backend.wait(info.id) and pool.backend.runs[info.id].output[0])
            raise PoolError("worker_lost", "its worker died")

        pool.backend.output = broken  # type: ignore[method-assign,assignment]
        got = []
        with pytest.raises(PoolError) as caught:
            async for piece in pool.client.output(info.id):
                got.append(piece.data)
        assert got == [b"1\n"] and caught.value.code == "worker_lost"


@async_test
async def test_a_pool_that_goes_away_is_told(tmp_path: Path) -> None:
    client = HttpBackend(socket=tmp_path / "s")
    async with served(tmp_path / "s") as pool:
        info = await client.submit(code("print(1, flush=True); import time; time.sleep(100)"))
        stream = client.output(info.id)
        await anext(stream)
        waiting = asyncio.create_task(client.wait(info.id))
        await asyncio.sleep(0.05)
        await pool.server.close()
        assert (await refused(anext(stream))).code == "unavailable"
        assert (await refused(waiting)).code == "unavailable"
    error = await refused(client.jobs())
    assert (error.code, error.hint) == ("unavailable", "start one with `agentfw pool start`")
    await client.close()
    async with HttpBackend(socket=tmp_path / "none") as other:
        assert (await refused(other.jobs())).code == "unavailable"
    async with HttpBackend(url="http://127.0.0.1:1", token=TOKEN) as other:
        assert (await refused(other.jobs())).code == "unavailable"


@async_test
async def test_what_answers_may_be_no_pool(tmp_path: Path) -> None:
    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nAgentfw-Api: 1.0\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nAgentfw-Api: 1.0\r\nContent-Length: 20\r\n\r\n{}",
        b"HTTP/1.1 302 Found\r\nAgentfw-Api: 1.0\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 No\r\nAgentfw-Api: 1.0\r\nContent-Length: 2\r\n\r\n{}",
        b"220 mail.example ESMTP\r\n",
        b"",
    ]

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers[0])
        writer.close()

    server = await asyncio.start_unix_server(speak, tmp_path / "s")
    async with server:
        while answers:
            async with HttpBackend(socket=tmp_path / "s") as client:
                assert (await refused(client.describe())).code == "unavailable", answers[0]
            del answers[0]
        answers.append(b"HTTP/1.1 200 OK\r\nAgentfw-Api: 2.0\r\nContent-Length: 2\r\n\r\n{}")
        async with HttpBackend(socket=tmp_path / "s") as client:
            assert (await refused(client.describe())).code == "unsupported"


@pytest.mark.parametrize(
    "where",
    [
        {"url": "ftp://x", "token": TOKEN},
        {"url": "http://", "token": TOKEN},
        {"url": "http://[", "token": TOKEN},
        {"url": "http://u:p@127.0.0.1:1", "token": TOKEN},
        {"url": "http://127.0.0.1:1"},
        {"url": "http://127.0.0.1:1", "token": ""},
        {"url": "http://127.0.0.1:1", "token": "a\r\nX: y"},
        {"url": "http://127.0.0.1:1", "token": TOKEN, "socket": "s"},
    ],
)
def test_where_no_pool_can_be(where: dict[str, object]) -> None:
    with pytest.raises(PoolError) as caught:
        HttpBackend(**where)  # type: ignore[arg-type]
    assert caught.value.code == "bad_config" and TOKEN.decode() not in str(caught.value)
