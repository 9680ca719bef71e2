"""Clients that mean ill, or are not ours: refused in the API's own form, within bounds of time and memory; the rest go on."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from agentfw.pool import api, guard, tokens, wire
from agentfw.pool.guard import Listener
from agentfw.pool.jobs import MAX_PAYLOAD
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.support import async_test

from .support import TOKEN, answer, raw, request, served

JOB = b'{"mode": "code", "target": "pass"}'


def error(data: bytes) -> tuple[int, str]:
    status, headers, body = answer(data)
    assert headers["agentfw-api"] == wire.API_VERSION and set(body["error"]) == {"code", "message", "hint"}
    return status, body["error"]["code"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (request("GET", "/"), (404, "not_found")),
        (request("GET", "/v1/jobs/../pool"), (404, "not_found")),
        (request("GET", "/v2/jobs"), (404, "not_found")),
        (request("PUT", "/v1/jobs"), (405, "method_not_allowed")),
        (request("HEAD", "/v1/pool") + request("TRACE", "/v1/pool"), None),
        (request("GET", "/v1/jobs/none"), (404, "no_such_job")),
        (request("GET", "/v1/jobs/%2e%2e%2fpool"), (404, "no_such_job")),
        (request("GET", "/v1/jobs/a%00b/wait"), (404, "no_such_job")),
        (request("GET", "/v1/jobs/%ff%fe/output"), (404, "no_such_job")),
        (request("GET", f"/v1/jobs/{'x' * 200}"), (404, "no_such_job")),
        (request("GET", "/v1/jobs?limit=0"), (400, "bad_request")),
        (request("GET", "/v1/jobs?limit=x"), (400, "bad_request")),
        (request("GET", "/v1/jobs?limit=1&limit=2"), (400, "bad_request")),
        (request("GET", "/v1/jobs?state=lost"), (400, "bad_request")),
        (request("GET", "/v1/jobs?label=x"), (400, "bad_request")),
        (request("GET", "/v1/jobs?tenant=../x"), (400, "bad_request")),
        (request("GET", "/v1/jobs?colour=1"), (400, "bad_request")),
        (request("GET", "/v1/pool?x=%ff"), (400, "bad_request")),
        (request("GET", "/v1/jobs/none/wait?seconds=nan"), (400, "bad_request")),
        (request("GET", "/v1/jobs/none/wait?seconds=1e9"), (400, "bad_request")),
        (request("GET", "/v1/jobs/none/output?stdout=-1"), (400, "bad_request")),
        (request("POST", "/v1/jobs"), (400, "bad_job")),
        (request("POST", "/v1/jobs", body=b"{"), (400, "bad_job")),
        (request("POST", "/v1/jobs", body=b'{"mode": "code", "target": "\xff"}'), (400, "bad_job")),
        (request("POST", "/v1/jobs", body=b'{"mode": "code", "target": "\\ud800"}'), (400, "bad_job")),
        (request("POST", "/v1/jobs", body=b'{"mode": "code", "target": "x", "uid": 0}'), (400, "bad_job")),
        (request("POST", "/v1/jobs", body=b'{"mode": "code", "target": "x", "files": {"a": "?"}}'), (400, "bad_job")),
        (request("POST", "/v1/jobs", body=b'{"mode": "code", "target": "x", "files": {"../a": ""}}'), (400, "bad_job")),
        (request("POST", "/v1/jobs", body=b'{"mode": "code", "target": "x", "args": ' + b"[" * 60_000), (400, "bad_job")),
        (request("POST", "/v1/jobs", body=b"[" * 500_000), (400, "bad_job")),
        (request("POST", "/v1/jobs", "Content-Encoding: deflate", body=zlib.compress(bytes(1 << 20))), (400, "bad_request")),
        (request("POST", "/v1/jobs", f"Content-Length: {1 << 40}"), (413, "too_large")),
        (request("POST", "/v1/jobs/none/signal", body=b'{"signal": 0}'), (400, "bad_request")),
        (request("POST", "/v1/jobs/none/signal", body=b'{"signal": 9}'), (404, "no_such_job")),
        (request("POST", "/v1/jobs/none/signal", body=bytes(70_000)), (413, "too_large")),
        (request("POST", "/v1/jobs/none/fork", body=b'{"count": 100000}'), (400, "bad_request")),
        (request("POST", "/v1/jobs/none/stdin", body=b"x"), (404, "no_such_job")),
        (request("POST", "/v1/pool/stop", body=b'{"seconds": -1}'), (400, "bad_request")),
        (request("GET", "/v1/pool", "Origin: http://localhost"), (403, "forbidden")),
        (request("GET", "/v1/pool", "Origin: null"), (403, "forbidden")),
        (request("GET", "/v1/pool", "Sec-Fetch-Site: cross-site"), (403, "forbidden")),
        (request("GET", "/v1/pool", host="evil.example"), (403, "forbidden")),
        (request("GET", "/v1/pool", host=""), (403, "forbidden")),
        (request("GET", "/v1/pool", host="localhost.evil.example:80"), (403, "forbidden")),
        (request("GET", "/v1/pool", host="127.0.0.1"), (403, "forbidden")),  # nobody comes to a Unix socket by an address
        (b"GET /v1/pool HTTP/1.1\r\nConnection: close\r\n\r\n", (400, "bad_request")),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400, "bad_request")),
        (b"GET /v1/pool HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", (400, "bad_request")),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", (400, "bad_request")),
        (b"GET /v1/pool HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 5_000 + b"\r\n", (400, "bad_request")),
        (request("POST", "/v1/jobs", "Content-Length: 1", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"), (400, "bad_request")),
        (request("POST", "/v1/jobs", "Content-Length: -1", body=b"x"), (400, "bad_request")),
    ],
)  # fmt: skip
@async_test
async def test_refused(data: bytes, expected: tuple[int, str] | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    async with served(tmp_path_factory.mktemp("a") / "s") as pool:
        got = await raw(pool.path, data)
        if expected is not None:
            assert error(got) == expected, got
        assert not pool.backend.runs and not pool.stops
        assert (await pool.client.describe()).state == "ready"


@async_test
async def test_bodies_are_bounded_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_BODY", 1 << 20)
    monkeypatch.setattr(api, "BODIES", 1 << 20)
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    head = request("POST", "/v1/jobs", "Transfer-Encoding: chunked")
    async with served(tmp_path / "s") as pool:
        got = await raw(pool.path, head + chunk * 40, wait=10)
        assert error(got) in ((413, "too_large"), (503, "unavailable"))
        assert not pool.server._held
        # Two that are half done leave no room for a third; when they go, their room is free.
        writers = []
        for _ in range(2):
            _, writer = await asyncio.open_unix_connection(pool.path)
            writer.write(head + chunk * 6)
            writers.append(writer)
        async with asyncio.timeout(5):
            while pool.server._held < 12 * 65536:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert error(await raw(pool.path, head + chunk * 8)) == (503, "unavailable")
        for writer in writers:
            writer.close()
        async with asyncio.timeout(5):
            while pool.server._held:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert answer(await raw(pool.path, request("POST", "/v1/jobs", body=JOB)))[0] == 201


@async_test
async def test_slow_heads_bodies_and_idle_connections_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "IDLE", 0.2)
    monkeypatch.setattr(api, "BODY_SECONDS", 0.2)
    async with served(tmp_path / "s") as pool:
        assert await raw(pool.path, b"") == b""
        reader, writer = await asyncio.open_unix_connection(pool.path)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            for byte in request("GET", "/v1/pool", *["X: y"] * 100):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.005)
            await reader.readexactly(1)
        writer.close()
        assert error(await raw(pool.path, request("POST", "/v1/jobs", "Content-Length: 1000"))) == (408, "timeout")
        keep = request("GET", "/v1/pool").replace(b"Connection: close\r\n", b"")
        assert answer(await raw(pool.path, keep))[0] == 200  # and closed, though it did not ask for that


@async_test
async def test_pipelines_are_not_kept_without_bound(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as pool:
        info = await pool.client.submit(api.Job(mode="code", target="import sys; sys.stdin.read()", interactive=True))
        _, writer = await asyncio.open_unix_connection(pool.path)
        writer.write(request("GET", f"/v1/jobs/{info.id}/wait?seconds=60").replace(b"Connection: close\r\n", b""))
        more = request("GET", "/v1/pool").replace(b"Connection: close\r\n", b"") * 1000
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                for _ in range(1000):
                    writer.write(more)
                    await writer.drain()
        (connection,) = (each for each in pool.server._runner.server.connections if each._current_request is not None)
        assert len(connection._messages) < 1000
        writer.transport.abort()


@async_test
async def test_upgrades_come_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "IDLE", 0.3)
    async with served(tmp_path / "s") as pool:
        for kind in ("h2c", "websocket"):
            head = request("GET", "/v1/pool", f"Upgrade: {kind}", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA").replace(
                b"Connection: close", b"Connection: Upgrade, HTTP2-Settings"
            )
            got = await raw(pool.path, head + bytes(200_000) + request("GET", "/v1/pool"))
            assert got.startswith(b"HTTP/1.1 200 OK") and b"Python" not in got.partition(b"\r\n\r\n")[0]
        assert (await pool.client.describe()).state == "ready"


@async_test
async def test_so_many_connections_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "CONNECTIONS", 3)
    async with served(tmp_path / "s") as pool:
        held = [await asyncio.open_unix_connection(pool.path) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert error(await raw(pool.path, request("GET", "/v1/pool"))) == (503, "unavailable")
        for _, writer in held:
            writer.close()
        await asyncio.sleep(0.05)
        assert answer(await raw(pool.path, request("GET", "/v1/pool")))[0] == 200


@async_test
async def test_who_has_no_token_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "CONNECTIONS", 3)
    async with served(tmp_path / "s", tcp=True) as pool:
        token = f"Authorization: Bearer {TOKEN.decode()}"
        known = await asyncio.open_connection("127.0.0.1", pool.port)
        known[1].write(request("GET", "/v1/pool", token).replace(b"Connection: close\r\n", b""))
        assert (await known[0].readline()).startswith(b"HTTP/1.1 200")
        held = [await asyncio.open_connection("127.0.0.1", pool.port) for _ in range(6)]
        assert answer(await raw(pool.port, request("GET", "/v1/pool", token)))[0] == 200
        assert await held[0][0].read() == b"" and not known[0].at_eof()
        known[1].write(request("GET", "/v1/pool", token))
        async with asyncio.timeout(5):
            assert (await known[0].read()).count(b"HTTP/1.1 200") == 1
        for _, writer in held:
            writer.close()


@async_test
async def test_other_users_are_refused(tmp_path: Path) -> None:
    """As if we were another: whoever connects is not one of the listener's."""
    async with served(tmp_path / "s", listener=Listener(users=frozenset({os.getuid() + 1}))) as pool:
        assert error(await raw(pool.path, request("POST", "/v1/jobs", body=JOB))) == (403, "forbidden")
        assert not pool.backend.runs


INTRUDER = r"""
import os, socket, sys
intruder = socket.socket(socket.AF_UNIX)
os.chdir(sys.argv[1])
os.setuid(65534)
intruder.connect("s")
intruder.sendall(b"GET /v1/pool HTTP/1.1\r\nHost: localhost\r\n\r\n")
sys.stdout.buffer.write(intruder.recv(65536))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@async_test
async def test_another_user_on_an_open_socket(tmp_path: Path) -> None:
    listener = Listener(users=frozenset({12345, 0}))
    async with served(tmp_path / "s", listener=listener) as pool:
        assert answer(await raw(pool.path, request("GET", "/v1/pool")))[0] == 200  # root
        pool.path.chmod(0o666)
        pool.path.parent.chmod(0o755)
        process = await asyncio.create_subprocess_exec("python3", "-c", INTRUDER, tmp_path, stdout=asyncio.subprocess.PIPE)
        got, _ = await process.communicate()
        assert error(got) == (403, "forbidden") and b"65534" in got


def test_tokens_in_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  a-token-of-twenty-four-ch\n")
    file.chmod(0o600)
    assert tokens.read_token(file) == b"a-token-of-twenty-four-ch"
    spoilers: list[Callable[[], object]] = [
        lambda: file.chmod(0o640),
        lambda: (file.chmod(0o600), file.write_text("short")),
        lambda: file.write_text("two lines of some length\nand another one"),
        lambda: file.write_text("ü" * 30),
        lambda: file.write_text("x" * 5000),
        lambda: file.unlink(),
    ]
    for spoil in spoilers:
        spoil()
        with pytest.raises(tokens.ConfigError) as caught:
            tokens.read_token(file)
        assert "another" not in str(caught.value) and caught.value.file == str(file)


@given(name=st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_only_names_that_are_ours(name: str) -> None:
    """A name under which a page could reach us is none of them, whatever its spelling."""
    tcp, unix = Listener.tcp("pool.internal", b"x" * 20), Listener()
    evil = name + ".example"
    assert not any(each._answers_to(text) for each in (tcp, unix) for text in (evil, evil + ":80", "localhost." + name + "x"))
    for good in ("localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:80", "[::1]", "pool.internal:7"):
        assert tcp._answers_to(good)


@given(data=st.binary(max_size=300))
@settings(max_examples=25, deadline=None)
def test_any_bytes_get_an_answer_or_none(data: bytes) -> None:
    """Whatever it is, the next one is served."""

    async def body() -> None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="agentfw-c-") as place:
            async with served(Path(place) / "s") as pool:
                for text in (data, b"GET " + data + b"\r\n\r\n", request("POST", "/v1/jobs", body=data or b"x")):
                    _, writer = await asyncio.open_unix_connection(pool.path)
                    writer.write(text)
                    writer.close()
                assert (await pool.client.describe()).state == "ready" and not pool.stops

    asyncio.run(body())


@async_test
async def test_a_job_of_the_largest_kind(tmp_path: Path) -> None:
    """With all its base64 it fits into a body."""
    async with served(tmp_path / "s") as pool:
        data = base64.b64encode(bytes(MAX_PAYLOAD - 1000)).decode()
        body = json.dumps({"mode": "code", "target": "pass", "files": {"f": data}}).encode()
        assert answer(await raw(pool.path, request("POST", "/v1/jobs", body=body), wait=30))[0] == 201
