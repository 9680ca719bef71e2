"""Clients of the dashboard that mean ill: refused within bounds, and those who look go on."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time

import pytest
from agentfw_dashboard.web import server as web_server
from agentfw_dashboard.web.events import KEPT
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.support import async_test

from .fake import FakeObservatory
from .serving import Served, served
from .test_server import PAGE, events, get

FIELDS = ["Cookie", "Origin", "Content-Type", "Content-Length", "If-None-Match", "Accept", "Last-Event-ID", "Range", "Expect",
          "Upgrade", "Sec-Fetch-Site", "Content-Encoding", "Accept-Encoding", "Connection", "X"]  # fmt: skip
TARGETS = [
    "/",
    "/login?code=",
    "/login",
    "/logout",
    "/data/overview?",
    "/data/agents?since=",
    "/data/agent?id=",
    "/js/",
    "/metrics",
]


async def raw(found: Served, data: bytes) -> bytes:
    """All that comes back for these bytes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", found.port, limit=1 << 24)
    try:
        writer.write(data)
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


def request(
    found: Served,
    target: str,
    *headers: str,
    method: str = "GET",
    token: bool = True,
    host: str = "localhost",
    close: bool = True,
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *(["Connection: close"] if close else []), *headers]
    if token:
        lines.append(f"Authorization: Bearer {found.server.access.token}")
    return "\r\n".join([*lines, "", ""]).encode()


def status(data: bytes) -> int:
    assert data.startswith(b"HTTP/"), data[:100]
    return int(data.split(b" ", 2)[1])


@async_test
async def test_names_that_were_made_to_resolve_to_us() -> None:
    """DNS rebinding: the browser sends our cookie's host no cookie, but a token that leaked would do."""
    async with served(files=PAGE) as found:
        for host in ("evil.example", f"evil.example:{found.port}", "127.0.0.1.nip.example", ""):
            for path in ("/", "/data/overview", "/events", "/metrics", "/login", "/js/app.js"):
                answer = await raw(found, request(found, path, host=host))
                assert status(answer) == 403 and b"known by the name" in answer
        assert status(await raw(found, request(found, "/data/overview", host=f"127.0.0.1:{found.port}"))) == 200
        two = request(found, "/data/overview", "Host: evil.example")
        assert status(await raw(found, two)) in (400, 403)
        assert status(await raw(found, request(found, "http://evil.example/data/overview"))) in (400, 403)


@async_test
async def test_requests_of_other_pages() -> None:
    async with served(files=PAGE) as found:
        cookie = f"Cookie: {found.server.access.cookie}={found.server.access.new_session()}"
        own = f"http://localhost:{found.port}"
        host = f"localhost:{found.port}"
        assert status(await raw(found, request(found, "/data/overview", cookie, token=False, host=host))) == 200
        for extra in ("Origin: http://evil.example", "Origin: null", "Origin: http://localhost:1", "Sec-Fetch-Site: same-site"):
            for path in ("/data/overview", "/events", "/data/output?id=x"):
                assert status(await raw(found, request(found, path, cookie, extra, token=False, host=host))) == 403
            for path in ("/login", "/logout"):
                posted = request(found, path, cookie, extra, "Content-Length: 0", method="POST", token=False, host=host)
                assert status(await raw(found, posted)) == 403
        assert found.server.access.sessions == 1
        good = request(found, "/data/overview", cookie, f"Origin: {own}", "Sec-Fetch-Site: same-origin", token=False, host=host)
        assert status(await raw(found, good)) == 200
        preflight = request(found, "/data/overview", "Origin: http://evil.example", "Access-Control-Request-Method: GET",
                            method="OPTIONS")  # fmt: skip
        answer = await raw(found, preflight)
        assert status(answer) in (403, 405) and b"access-control-allow" not in answer.lower()


@async_test
async def test_a_link_to_the_page_shows_it_and_no_data() -> None:
    """The cookie does not come along (SameSite=Strict): our own page asks again, and then it does."""
    async with served(files=PAGE) as found:
        followed = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
        answer = await raw(found, request(found, "/", *followed, token=False))
        assert status(answer) == 200 and b'http-equiv="refresh"' in answer and PAGE["index.html"].data not in answer
        assert status(await raw(found, request(found, "/data/overview", *followed))) == 403


@async_test
async def test_wrong_tokens_cookies_and_codes() -> None:
    async with served(files=PAGE) as found:
        token = found.server.access.token
        for given in (
            "Authorization: Bearer wrong", "Authorization: Bearer", f"Authorization: Basic {token}",
            f"Authorization: Bearer {token}x",
            f"Authorization: Bearer {'x' * 3000}", f"X-Token: {token}", f"Cookie: {found.server.access.cookie}={token}",
            f"Cookie: {found.server.access.cookie}=", "Cookie: " + "a=b; " * 500, f"Cookie: agentfw={token}",
        ):  # fmt: skip
            for path in ("/data/overview", "/events", "/metrics", "/data/nothing"):
                answer = await raw(found, request(found, path, given, token=False))
                assert status(answer) == 401 and b"WWW-Authenticate: Bearer" in answer and b"Set-Cookie" not in answer
        for path in (f"/data/overview?token={token}", f"/?token={token}"):  # never in an address
            assert status(await raw(found, request(found, path, token=False))) == 401
        both = request(found, "/data/overview", f"Cookie: {found.server.access.cookie}={found.server.access.new_session()}",
                       "Authorization: Bearer wrong", token=False)  # fmt: skip
        assert status(await raw(found, both)) == 401


@async_test
async def test_paths_that_lead_out() -> None:
    async with served(files=PAGE) as found:
        for path in (
            "/../plugin.py", "/js/../../plugin.py", "/%2e%2e/plugin.py", "/js/%2e%2e%2f%2e%2e%2fetc/passwd", "//etc/passwd",
            "/js//app.js", "/js\\..\\x", "/.hidden.js", "/js/", "/js", "/%00", "/js/app.js%00.css", "/js/app.js/", "/index.html",
            "/JS/app.js",
            "/é", "/%ff", "/js/%61pp.js/..", "/static/js/app.js", "/file:///etc/passwd",
        ):  # fmt: skip
            answer = await raw(found, request(found, path.encode("utf-8").decode("latin-1")))
            assert status(answer) in (400, 404), (path, answer[:200])
            assert b"root:" not in answer


@async_test
async def test_only_what_there_is_can_be_done() -> None:
    async with served(files=PAGE) as found:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "BREW"):
            for path in ("/", "/data/overview", "/data/agent?id=x", "/events", "/metrics", "/js/app.js"):
                assert status(await raw(found, request(found, path, "Content-Length: 0", method=method))) in (400, 404, 405)


@async_test
async def test_two_requests_in_one() -> None:
    """Whatever two parsers could read in two ways is none."""
    async with served(files=PAGE) as found:
        inner = b"GET /data/overview HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for extra in (
            ("Content-Length: 5", "Transfer-Encoding: chunked"), ("Content-Length: 5", "Content-Length: 6"),
            ("Content-Length: +5",),
            ("Content-Length: 5, 5",), ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
            ("Transfer-Encoding: xchunked",),
            ("Content-Length : 5",), ("Content-Length: 0x5",), (" Content-Length: 5",), ("Transfer-Encoding:\x0bchunked",),
        ):  # fmt: skip
            answer = await raw(found, request(found, "/data/overview", *extra) + b"5\r\nhello\r\n0\r\n\r\n" + inner)
            assert status(answer) == 400 and len(re.findall(rb"HTTP/1\.[01] \d", answer)) == 1, (extra, answer[:300])
        answer = await raw(found, request(found, "/data/overview", f"Content-Length: {len(inner)}") + inner)
        assert status(answer) == 400 and len(re.findall(rb"HTTP/1\.[01] \d", answer)) == 1, "a GET has no body here"
        for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /\r\n\r\n",
                     b"\0" * 50,
                     b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n"):  # fmt: skip
            answer = await raw(found, data)
            assert not answer or status(answer) in (400, 401, 403, 405, 505)


@async_test
async def test_heads_without_end() -> None:
    async with served(files=PAGE) as found:
        for data in (
            request(found, "/" + "x" * 5000), request(found, "/", "X: " + "x" * 5000),
            request(found, "/", *(f"X{n}: y" for n in range(70))),
            b"GET /" + b"x" * 100_000,
        ):  # fmt: skip
            assert status(await raw(found, data)) == 400
        body = b"token=" + b"x" * 10_000
        head = request(
            found, "/login", f"Content-Length: {len(body)}", "Content-Type: application/x-www-form-urlencoded", method="POST"
        )
        assert status(await raw(found, head + body)) == 413


@async_test
async def test_a_head_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentfw.pool import guard

    monkeypatch.setattr(guard, "IDLE", 0.2)
    monkeypatch.setattr(web_server, "BODY_SECONDS", 0.2)
    async with served(files=PAGE) as found:
        assert await raw(found, b"GET / HTTP/1.1\r\nHost: loc") == b""
        head = request(found, "/login", "Content-Length: 10", "Content-Type: application/x-www-form-urlencoded", method="POST")
        assert status(await raw(found, head + b"tok")) == 408


@async_test
async def test_who_may_only_connect_keeps_nobody_out() -> None:
    """The oldest of those that have shown neither a token nor a session make room."""
    async with served(files=PAGE, connections=40, period=0.05) as found:
        watching = asyncio.create_task(events(found, 40))
        while not found.server.events.viewers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        held = []
        try:
            for _ in range(39):
                held.append(await asyncio.open_connection("127.0.0.1", found.port))
            for _, writer in held[20:]:  # whatever they are told
                writer.write(request(found, "/data/overview", "Authorization: Bearer no", token=False, close=False))
            for reader, _ in held[20:]:
                assert b"401" in await reader.readline()
            assert found.server.open == 40
            assert (await get(found, "/data/overview"))[0] == 200
            assert await held[0][0].read() == b""
            assert found.server.open <= 40
            assert len(await watching) == 40
        finally:
            for _, writer in held:
                writer.close()


@async_test
async def test_more_connections_than_it_has_room_for() -> None:
    """Those that are open go on, and others are told."""
    async with served(files=PAGE, connections=40, period=0.05) as found:
        watching = asyncio.create_task(events(found, 40))
        while not found.server.events.viewers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        held = [socket.create_connection(("127.0.0.1", found.port)) for _ in range(39)]
        try:
            for sock in held:
                sock.sendall(request(found, "/data/overview", close=False))
            for sock in held:
                assert b"200 OK" in await asyncio.to_thread(sock.recv, 100)
            async with asyncio.timeout(20):
                while found.server.open < 40:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            answer = await raw(found, request(found, "/data/overview"))
            assert status(answer) == 503 and b"more than 40 connections" in answer and b"Content-Security-Policy" in answer
            assert found.server.open == 40
            assert len(await watching) == 40
        finally:
            for sock in held:
                sock.close()
        async with asyncio.timeout(20):
            while found.server.open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await get(found, "/data/overview"))[0] == 200


@async_test
async def test_ten_thousand_connections_take_bounded_room() -> None:
    async with served(files=PAGE, connections=100) as found:
        most = 0
        for _ in range(20):
            held = []
            for _ in range(500):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", found.port))
                held.append(sock)
            await asyncio.sleep(0)
            most = max(most, found.server.open)
            for sock in held:
                sock.close()
        assert 0 < most <= 100
        async with asyncio.timeout(20):
            while found.server.open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await get(found, "/data/overview"))[0] == 200


@async_test
async def test_more_viewers_than_it_has_room_for() -> None:
    async with served(files=PAGE, viewers=3, period=0.05) as found:
        watching = [asyncio.create_task(events(found, 60)) for _ in range(3)]
        while found.server.events.viewers < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        code, headers, body = await get(found, "/events")
        assert code == 503 and headers["Retry-After"] == "1" and json.loads(body)["error"]["code"] == "unavailable"
        assert (await get(found, "/data/overview"))[0] == 200
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        async with asyncio.timeout(20):
            while found.server.events.viewers:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@async_test
async def test_a_viewer_that_takes_nothing_is_dropped_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "TAKE_SECONDS", 1.0)
    async with served(FakeObservatory(1500, steps_itself=False), files=PAGE, period=0.05) as found:
        (listening,) = found.server._servers[0].sockets
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # those that it accepts have the same
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", found.port))
            slow.sendall(request(found, "/events"))
            began = time.monotonic()
            assert len(await events(found, 20)) == 20
            async with asyncio.timeout(10):
                while found.server.events.viewers:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert time.monotonic() - began >= 0.9
        with socket.socket() as slow:  # the same of one that takes no answer
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", found.port))
            slow.sendall(request(found, "/data/agents"))
            async with asyncio.timeout(10):
                while not found.server.open:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while found.server.open:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


@async_test
async def test_a_viewer_that_is_behind_skips_and_gets_all() -> None:
    fake = FakeObservatory(10)
    async with served(fake, files=PAGE, period=0.01) as found:
        view = found.server.events.view()
        await anext(view)
        first = await anext(view)
        assert b'"whole":true' in first
        while found.server.events.frames < 2 * KEPT:  # noqa: ASYNC110  # a number; it takes none of these
            await asyncio.sleep(0.01)
        fake.revision += 1
        fake.set(fake.rows()[0].id, requests=31337)
        later = [await anext(view) for _ in range(3)]
        assert found.server.events.skipped == 1 and b'"whole":true' in later[0]
        assert any(b"31337" in data for data in later)
        await view.aclose()


@async_test
async def test_a_session_that_ends_ends_its_stream() -> None:
    async with served(files=PAGE, period=0.05) as found:
        session = found.server.access.new_session()
        cookie = f"Cookie: {found.server.access.cookie}={session}"
        reader, writer = await asyncio.open_connection("127.0.0.1", found.port, limit=1 << 24)
        writer.write(request(found, "/events", cookie, token=False))
        await reader.readuntil(b"event: agents")
        found.server.access.end_session(session)
        async with asyncio.timeout(20):
            await reader.read()
        writer.close()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(FIELDS), st.binary(max_size=60)), max_size=6),
    st.binary(max_size=40),
    st.sampled_from(TARGETS),
)
def test_nothing_that_is_said_is_our_mistake(fields: list[tuple[str, bytes]], tail: bytes, target: str) -> None:
    async def body() -> None:
        async with served(files=PAGE) as found:
            head = b"".join(
                name.encode() + b": " + value.replace(b"\r", b"").replace(b"\n", b"") + b"\r\n" for name, value in fields
            )
            path = target.encode() + tail.replace(b" ", b"").replace(b"\r", b"").replace(b"\n", b"")
            method = b"POST " if target.startswith("/lo") else b"GET "
            token = f"Authorization: Bearer {found.server.access.token}\r\n".encode()
            data = method + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + token + head + b"\r\n"
            answer = await raw(found, data + b"token=%ff&a" + tail)
            assert not answer or status(answer) < 500 or status(answer) == 501, answer

    asyncio.run(body())
