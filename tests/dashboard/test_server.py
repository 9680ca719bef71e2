"""The dashboard's server: who gets in, what there is, and what comes to those who watch."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from agentfw.pool.jobs import PoolError
from agentfw.views import AgentStory, AgentTable, Loaded, OutputTail, Overview, Sample
from agentfw_dashboard.output import SHOWN
from agentfw_dashboard.web import access, shared
from agentfw_dashboard.web import server as web_server
from agentfw_dashboard.web.door import Door
from agentfw_dashboard.web.events import KEPT, MAX_VIEWERS
from agentfw_dashboard.web.files import File, load

from tests.core.support import async_test

from .fake import FakeObservatory
from .serving import Served, served

PAGE = {"index.html": File(b"<!doctype html><title>x</title>", "text/html; charset=utf-8", '"1"'),
        "js/app.js": File(b"let x = 1", "text/javascript; charset=utf-8", '"2"')}  # fmt: skip


async def get(
    found: Served, path: str, *, token: str | None = "", session: aiohttp.ClientSession | None = None, **headers: str
) -> tuple[int, Any, bytes]:
    """Status, headers, body. `token` "": the right one; None: none."""
    if token is not None:
        headers["Authorization"] = f"Bearer {token or found.server.access.token}"
    own = session or aiohttp.ClientSession()
    try:
        async with own.get(found.url + path, headers=headers, allow_redirects=False) as response:
            return response.status, response.headers, await response.read()
    finally:
        if session is None:
            await own.close()


async def events(found: Served, count: int, **headers: str) -> list[dict[str, str]]:
    """The first so many, by field."""
    made: list[dict[str, str]] = []
    headers["Authorization"] = f"Bearer {found.server.access.token}"
    async with (
        aiohttp.ClientSession(read_bufsize=1 << 22) as session,
        session.get(found.url + "/events", headers=headers) as response,
    ):
        assert response.status == 200 and response.content_type == "text/event-stream"
        fields: dict[str, str] = {}
        async for line in response.content:
            text = line.decode().removesuffix("\n")
            if text:
                name, _, value = text.partition(": ")
                fields[name] = value
            elif "event" in fields:
                made.append(fields)
                fields = {}
                if len(made) == count:
                    break
            else:
                fields = {}
    return made


@async_test
async def test_all_data_by_bearer() -> None:
    fake = FakeObservatory(30)
    async with served(fake, files=PAGE) as found:
        for path, kind in (("overview", Overview), ("agents", AgentTable), ("agents?since=0", AgentTable), ("loaded", Loaded)):
            status, headers, body = await get(found, f"/data/{path}")
            assert status == 200 and headers["Content-Type"].startswith("application/json")
            assert headers["Cache-Control"] == "no-store"
            msgspec.json.decode(body, type=kind)
        row = fake.rows()[0]
        status, _, body = await get(found, f"/data/agent?id={row.id}")
        assert status == 200 and msgspec.json.decode(body, type=AgentStory).row.name == row.name
        status, _, body = await get(found, f"/data/output?id={row.id}")
        assert status == 200 and msgspec.json.decode(body, type=OutputTail).id == row.id


@async_test
async def test_only_what_changed_since(tmp_path: Any) -> None:
    fake = FakeObservatory(30)
    async with served(fake, files=PAGE) as found:
        table = msgspec.json.decode((await get(found, "/data/agents"))[2], type=AgentTable)
        assert table.whole and len(table.rows) == 30
        fake.revision += 1
        fake.set(table.rows[3].id, requests=77)
        later = msgspec.json.decode((await get(found, f"/data/agents?since={table.since}"))[2], type=AgentTable)
        assert [row.requests for row in later.rows] == [77] and not later.whole


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/agents?since=x", (400, "bad_request")),
        ("/data/agents?since=-1", (400, "bad_request")),
        ("/data/agents?since=" + "9" * 30, (400, "bad_request")),
        ("/data/agent", (404, "no_such_job")),
        ("/data/agent?id=none", (404, "no_such_job")),
        ("/data/agent?id=../x", (404, "no_such_job")),
        ("/data/agent?id=" + "x" * 500, (404, "no_such_job")),
        ("/data/output?id=none", (404, "no_such_job")),
        ("/data/other", (404, "not_found")),
        ("/metrics", (404, "not_found")),
    ],
)
@async_test
async def test_what_there_is_not(path: str, expected: tuple[int, str]) -> None:
    async with served(files=PAGE) as found:
        status, _, body = await get(found, path)
        assert (status, json.loads(body)["error"]["code"]) == expected


@async_test
async def test_the_page_and_its_files() -> None:
    async with served(files=PAGE) as found:
        status, headers, body = await get(found, "/")
        assert (status, body) == (200, PAGE["index.html"].data)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert "data:" not in policy and "font-src" not in policy, "the page has none"
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
        assert not any(name.lower().startswith("access-control") for name in headers)
        status, headers, body = await get(found, "/js/app.js", token=None)  # the log-in page may want it, and it tells nothing
        assert (status, body, headers["Cache-Control"]) == (200, b"let x = 1", "no-cache")
        status, headers, body = await get(found, "/js/app.js", **{"If-None-Match": headers["ETag"]})
        assert (status, body) == (304, b"")


@async_test
async def test_a_head_has_no_body_and_uses_nothing_up() -> None:
    async with served(files=PAGE) as found, aiohttp.ClientSession() as session:
        bearer = {"Authorization": f"Bearer {found.server.access.token}"}
        for path in ("/", "/js/app.js", "/data/overview", "/data/agents"):
            async with session.head(found.url + path, headers=bearer) as response:
                assert response.status == 200 and int(response.headers["Content-Length"]) > 0 and not await response.read()
        async with session.head(found.url + "/events", headers=bearer) as response:
            assert response.status == 404  # nothing but its stream is there
        url = found.login()
        async with session.head(url) as response:
            assert response.status == 200 and "Set-Cookie" not in response.headers
        async with session.get(url) as response:
            assert response.status == 200 and "Set-Cookie" in response.headers


@async_test
async def test_a_code_opens_once_and_the_cookie_stays() -> None:
    async with served(files=PAGE) as found, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        assert (await get(found, "/data/overview", token=None, session=browser))[0] == 401
        url = found.login()
        async with browser.get(url) as response:
            cookie = response.headers["Set-Cookie"]
            assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie and "Secure" not in cookie
            assert 'http-equiv="refresh"' in await response.text()
        for _ in range(2):  # reloading the page
            assert (await get(found, "/", token=None, session=browser))[0] == 200
            assert (await get(found, "/data/overview", token=None, session=browser))[0] == 200
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as other:
            async with other.get(url) as response:
                assert response.status == 401 and "Set-Cookie" not in response.headers
            assert (await get(found, "/data/overview", token=None, session=other))[0] == 401
        async with browser.post(found.url + "/logout", headers={"Origin": found.url}) as response:
            assert response.status == 200
        assert (await get(found, "/data/overview", token=None, session=browser))[0] == 401


@async_test
async def test_log_in_with_the_token_or_a_code_by_the_form() -> None:
    async with served(files=PAGE) as found:
        for given in (found.server.access.token, found.server.access.new_code()):
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
                async with browser.post(found.url + "/login", data={"token": given}, headers={"Origin": found.url}) as response:
                    assert response.status == 200
                assert (await get(found, "/data/overview", token=None, session=browser))[0] == 200
        async with aiohttp.ClientSession() as browser:
            for data in ({"token": "wrong"}, {}, {"token": "x" * 3000}, {"token": "<script>"}):
                async with browser.post(found.url + "/login", data=data) as response:
                    assert response.status == 401 and "Set-Cookie" not in response.headers
                    assert "<script" not in await response.text()


@async_test
async def test_without_a_session_the_page_is_a_form() -> None:
    async with served(files=PAGE) as found:
        status, headers, body = await get(found, "/", token=None)
        assert status == 401 and b"<form" in body and b"<script" not in body
        assert "script-src" not in headers["Content-Security-Policy"] and headers["Cache-Control"] == "no-store"


@async_test
async def test_viewers_get_all_then_what_changes() -> None:
    fake = FakeObservatory(25)
    async with served(fake, files=PAGE, period=0.05) as found:
        watching = asyncio.create_task(events(found, 6))
        await asyncio.sleep(0.1)
        fake.revision += 1
        fake.set(fake.rows()[4].id, requests=4711)
        made = await watching
        assert [event["event"] for event in made[:2]] == ["overview", "agents"]
        first = msgspec.json.decode(made[1]["data"], type=AgentTable)
        assert first.whole and len(first.rows) == 25
        rows = {row.id: row for row in first.rows}
        for event in made:
            if event["event"] == "agents":
                rows |= {row.id: row for row in msgspec.json.decode(event["data"], type=AgentTable).rows}
        assert rows[fake.rows()[4].id].requests == 4711
        again = await events(found, 2, **{"Last-Event-ID": made[-1]["id"]})  # as EventSource does after a break
        assert msgspec.json.decode(again[1]["data"], type=AgentTable)


@async_test
async def test_the_history_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what is new of it, with what those lack who are some frames behind; whoever comes back gets it whole."""

    class Moving(FakeObservatory):
        async def overview(self) -> Overview:
            self.step(1.0)
            return await super().overview()

    def histories(made: list[dict[str, str]]) -> list[list[Sample]]:
        return [msgspec.json.decode(each["data"], type=Overview).history for each in made if each["event"] == "overview"]

    monkeypatch.setattr(shared, "FRESH", 0.0)
    async with served(Moving(5, now=1_700_000_000.0), files=PAGE, period=0.02) as found:
        watching = asyncio.create_task(events(found, 80))
        made = await events(found, 40)
        first, *later = histories(made)
        assert len(first) > 300 and 0 < len(later[-1]) <= 2 * KEPT
        times = sorted({sample.time for history in (first, *later) for sample in history if sample.time > 1_700_000_000.0})
        assert {after - before for before, after in pairwise(times)} == {1.0}  # nothing is missing
        again = histories(await events(found, 6, **{"Last-Event-ID": made[-1]["id"]}))
        assert len(again[0]) > 300 and len(again[-1]) <= 2 * KEPT
        assert len(histories(await watching)[-1]) <= 2 * KEPT


@async_test
async def test_nothing_is_collected_while_nobody_looks() -> None:
    async with served(files=PAGE, period=0.02) as found:
        await events(found, 8)
        while found.server.events.viewers:  # noqa: ASYNC110  # a number, not ours to be told of
            await asyncio.sleep(0.01)
        before = found.server.shared.collections
        await asyncio.sleep(0.2)
        assert found.server.shared.collections == before


@async_test
async def test_many_viewers_are_one_collection() -> None:
    async with served(FakeObservatory(100), files=PAGE, period=0.1) as found:
        await asyncio.gather(*(events(found, 8) for _ in range(20)))
        asked, frames = found.server.shared.collections, found.server.events.frames
        assert asked <= 2 * frames + 4


@async_test
async def test_a_failing_source_is_told_and_no_end() -> None:
    class Failing(FakeObservatory):
        failing = False

        async def agents(self, since: int) -> AgentTable:
            if self.failing:
                raise PoolError("unavailable", "no worker answers")
            return await super().agents(since)

        async def loaded(self) -> Loaded:
            raise RuntimeError("a secret")

    fake = Failing(5)
    async with served(fake, files=PAGE, period=0.05) as found:
        status, _, body = await get(found, "/data/loaded")
        assert status == 500 and b"a secret" not in body
        fake.failing = True
        watching = asyncio.create_task(events(found, 5))
        while not found.server.events.frames:  # noqa: ASYNC110  # likewise
            await asyncio.sleep(0.01)
        fake.failing = False
        made = await watching
        assert made[0] == {"event": "trouble", "data": '{"message":"no worker answers"}'}
        assert "agents" in [event["event"] for event in made]


@async_test
async def test_a_source_that_breaks_is_told_to_who_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose stream has begun: there is no status to be told by."""
    monkeypatch.setattr(shared, "FRESH", -1.0)

    class Breaks(FakeObservatory):
        broken = False

        async def agents(self, since: int) -> AgentTable:
            if self.broken:
                raise RuntimeError("a secret")
            return await super().agents(since)

    fake = Breaks(5)
    async with served(fake, files=PAGE, period=0.05) as found:
        first, late = found.server.events.view(), found.server.events.view()
        assert [b"retry" in await anext(first), b"agents" in await anext(first)] == [True, True]
        fake.broken = True
        assert b"retry" in await anext(late)
        assert await anext(late) == b'event: trouble\ndata: {"message":"an internal error: RuntimeError"}\n\n'
        fake.broken = False
        assert b'"whole":true' in await anext(late)
        for view in (late, first):
            await view.aclose()


@async_test
async def test_closing_does_not_wait_for_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "GRACE", 30.0)  # it would be seen
    async with served(files=PAGE) as found:
        watching = [asyncio.create_task(events(found, 1000)) for _ in range(5)]
        while found.server.events.viewers < 5:  # noqa: ASYNC110  # a number, not ours to be told of
            await asyncio.sleep(0.01)
        await asyncio.wait_for(found.server.close(), 10)
        await asyncio.gather(*watching, return_exceptions=True)


def test_files_are_those_that_a_page_has_a_use_for(tmp_path: Any) -> None:
    (tmp_path / "js").mkdir()
    (tmp_path / "js/app.js").write_text("x")
    (tmp_path / "page.py").write_text("x")
    (tmp_path / ".hidden.js").write_text("x")
    (tmp_path / "link.txt").symlink_to("/etc/passwd")
    assert list(load(tmp_path)) == ["js/app.js"]


@async_test
async def test_the_cookie_of_those_who_come_by_https_is_for_that_only() -> None:
    async with served(files=PAGE, door=Door.of(url="https://dash.example")) as found, aiohttp.ClientSession() as session:
        for host, secure in (("dash.example", True), (f"127.0.0.1:{found.port}", False)):
            async with session.get(found.login(), headers={"Host": host}) as response:
                assert ("Secure" in response.headers["Set-Cookie"]) is secure


def test_the_documentation_tells_its_numbers() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs/dashboard.md").read_text().split())
    assert f"At most {MAX_VIEWERS} watch at once, over at most {web_server.MAX_CONNECTIONS} connections" in text
    assert (web_server.TAKE_SECONDS, "for twenty seconds" in text) == (20, True)
    assert (access.CODE_SECONDS, "good once, for ten minutes" in text) == (600, True)
    assert (access.IDLE_SECONDS, "twelve hours after it was last used" in text) == (12 * 3600, True)
    assert (access.LONGEST_SECONDS, "seven days after its login" in text) == (7 * 86400, True)
    assert (SHOWN, "the last 64 KiB" in text) == (64 << 10, True)
