"""examples/plugins: each does what its first lines say, by its hooks alone and in an agent's path. No KVM."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import itertools
import os
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from agentfw import ConfigError, Denied, Destination, hookimpl
from agentfw.config import Config, load_config
from agentfw.plugins import load_plugins
from agentfw.plugins.describe import describe
from agentfw.reports import AuditEvent
from agentfw.testing import FakeServer, PathError, Request, Response, fetch, make_agent, make_runtime, running
from hypothesis import given, settings
from hypothesis import strategies as some

from .support import async_test

EXAMPLES = Path(__file__).parents[2] / "examples/plugins"
NAMES = ("office_hours", "helper_token", "leak_watch")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


office_hours, helper_token, leak_watch = map(load, NAMES)


def make(module: ModuleType, table: dict[str, Any], **more: Any) -> Any:
    return module.Plugin(Config({module.Plugin.name: table}).plugin(module.Plugin.name, module.Config), **more)


def tomls(name: str) -> str:
    """The table in the module's own first lines."""
    doc = describe(str(EXAMPLES / f"{name}.py")).doc
    return "\n".join(line[4:] for line in doc.splitlines() if line.startswith("    "))


@pytest.mark.parametrize("name", NAMES)
def test_their_own_tables_are_valid_and_they_load_as_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "agentfw.toml").write_text(tomls(name))
    manager = load_plugins([str(EXAMPLES / f"{name}.py")], load_config(tmp_path / "agentfw.toml"))
    assert manager.names == [name] and manager.hooks(name)


# -- office_hours

MONDAY = datetime(2026, 11, 30, tzinfo=ZoneInfo("UTC"))


class Clock:
    def __init__(self, day: int, hour: int, minute: int = 0) -> None:
        self.now = (
            MONDAY.replace(day=1, month=12, hour=hour, minute=minute) if day == 1 else MONDAY.replace(hour=hour, minute=minute)
        )

    def __call__(self, zone: ZoneInfo) -> datetime:
        return self.now.astimezone(zone)


@pytest.mark.parametrize(
    ("rule", "day", "hour", "minute", "open_"),
    [
        ({"hours": "08:00-18:30"}, 0, 7, 59, False),
        ({"hours": "08:00-18:30"}, 0, 8, 0, True),
        ({"hours": "08:00-18:30"}, 0, 18, 29, True),
        ({"hours": "08:00-18:30"}, 0, 18, 30, False),
        ({"hours": "00:00-24:00", "days": ["tue"]}, 0, 12, 0, False),
        ({"hours": "00:00-24:00", "days": ["tue"]}, 1, 12, 0, True),
        ({"hours": "22:00-06:00", "days": ["mon"]}, 0, 23, 0, True),
        ({"hours": "22:00-06:00", "days": ["mon"]}, 1, 5, 59, True),
        ({"hours": "22:00-06:00", "days": ["mon"]}, 0, 5, 0, False),
        ({"hours": "22:00-06:00", "days": ["mon"]}, 1, 22, 0, False),
        ({"hours": "00:00-24:00", "labels": {"team": "red"}}, 0, 12, 0, True),
        ({"hours": "00:00-24:00", "labels": {"team": "blue"}}, 0, 12, 0, False),
    ],
)
@async_test
async def test_office_hours(rule: dict[str, Any], day: int, hour: int, minute: int, open_: bool) -> None:
    plugin = make(office_hours, {"rule": [{"hosts": ["API.example."], **rule}]}, clock=Clock(day, hour, minute))
    runtime = make_runtime(plugin)
    agent = make_agent(team="red")
    await runtime.plugins.allow(agent, Destination.make("https", "other.example"))
    try:
        await runtime.plugins.allow(agent, Destination.make("https", "api.example"))
        assert open_
    except Denied as error:
        assert not open_ and error.plugin == "office_hours" and rule["hours"] in error.rule
    assert runtime.statistics()["office_hours.closed"] == (not open_)


@async_test
async def test_office_hours_of_a_zone_and_of_several_rules() -> None:
    table = {
        "timezone": "Asia/Tokyo",  # nine hours on
        "rule": [
            {"hosts": ["api.example"], "hours": "09:00-10:00"},
            {"hosts": ["api.example"], "hours": "00:00-24:00", "labels": {"on": "call"}},
        ],
    }
    runtime = make_runtime(make(office_hours, table, clock=Clock(0, 0, 30)))
    await runtime.plugins.allow(make_agent(), Destination.make("https", "api.example"))
    runtime = make_runtime(make(office_hours, table, clock=Clock(0, 9, 30)))
    await runtime.plugins.allow(make_agent(on="call"), Destination.make("https", "api.example"))
    with pytest.raises(Denied):
        await runtime.plugins.allow(make_agent(), Destination.make("https", "api.example"))


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": "../../etc/passwd"}, "timezone"),
        ({"timezone": "Europe"}, "timezone"),
        ({"rule": [{"hosts": ["a.example"], "hours": "8-18"}]}, "rule.0.hours"),
        ({"rule": [{"hosts": ["a.example"], "hours": "24:30-25:00"}]}, "rule.0.hours"),
        ({"rule": [{"hosts": ["a.example"], "hours": "08:00-24:01"}]}, "rule.0.hours"),
        ({"rule": [{"hosts": ["a.example"], "hours": "08:00-18:00", "days": ["mon", "noday"]}]}, "rule.0.days.1"),
        ({"rule": [{"hosts": ["a b"], "hours": "08:00-18:00"}]}, "rule.0.hosts"),
    ],
)
def test_mistakes_in_office_hours(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(office_hours, table)
    assert caught.value.key == key


@async_test
async def test_office_hours_reload() -> None:
    clock = Clock(0, 12)
    async with running(make(office_hours, {}, clock=clock), FakeServer()) as runtime:
        await fetch(runtime, "https://api.example/")
        await runtime.reload(Config({"office_hours": {"rule": [{"hosts": ["api.example"], "hours": "18:00-19:00"}]}}))
        with pytest.raises(PathError, match=r"dns: REFUSED: .*office_hours"):
            await fetch(runtime, "https://api.example/")


# -- helper_token


def helper(directory: Path, body: str) -> list[str]:
    """A program that counts its runs in `runs`."""
    file = directory / "mint.py"
    file.write_text(f"import json, os, sys, time\nopen({str(directory / 'runs')!r}, 'a').write('x')\n{body}\n")
    return [sys.executable, "-I", "-S", str(file)]


def runs(directory: Path) -> int:
    file = directory / "runs"
    return len(file.read_text()) if file.exists() else 0


SECRET = "t0p-secret-token"
GOOD = f"print(json.dumps({{'token': {SECRET!r}, 'expires_in': 100}}))"


@async_test
async def test_a_token_is_minted_once_for_all_and_again_before_it_ends(tmp_path: Path) -> None:
    now = 1000.0
    plugin = make(helper_token, {"host": "api.example", "command": helper(tmp_path, GOOD)}, clock=lambda: now)
    server = FakeServer()
    async with running(plugin, server) as runtime:
        await asyncio.gather(*(fetch(runtime, "https://api.example/", agent=make_agent(str(n))) for n in range(10)))
        assert runs(tmp_path) == 1
        now += 89
        await fetch(runtime, "https://api.example/")
        assert runs(tmp_path) == 1
        now += 2
        await fetch(runtime, "https://api.example/", headers={"Authorization": "Bearer of-the-agent"})
        assert runs(tmp_path) == 2
        await fetch(runtime, "https://other.example/")
        counted = runtime.statistics()
    *mine, other = server.requests
    assert {request.headers.get("authorization") for request in mine} == {
        f"Bearer {SECRET}"
    } and "authorization" not in other.headers
    assert counted["helper_token.minted"] == 2 and SECRET not in str(counted)


@pytest.mark.parametrize(
    ("more", "key"),
    [({"host": "a b"}, "host"), ({"header": "x y"}, "header"), ({"header": ""}, "header"), ({"prefix": "a\nb"}, "header")],
)
def test_mistakes_in_helper_token(more: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(helper_token, {"host": "api.example", "command": ["x"], **more})
    assert caught.value.key == key


@pytest.mark.parametrize("how", ["unverified", "plain", "tcp", "udp"])
@async_test
async def test_the_token_goes_over_verified_tls_only(tmp_path: Path, how: str) -> None:
    plugin = make(helper_token, {"host": "api.example", "command": helper(tmp_path, GOOD)})
    server = FakeServer(verified=how != "unverified")
    async with running(plugin, server) as runtime:
        if how == "unverified":
            response = await fetch(runtime, "https://api.example/")
            assert response.status == 403 and response.error["plugin"] == "helper_token"
        elif how == "plain":
            assert (await fetch(runtime, "http://api.example/")).status == 200, "port 80 is another place, without a token"
            response = await fetch(runtime, "http://api.example:443/")
            assert response.status == 403
        else:
            with pytest.raises(Denied):
                await runtime.plugins.allow(make_agent(), Destination.make(how, "api.example", 443))
    assert runs(tmp_path) == 0 and not any("authorization" in request.headers for request in server.requests)


@pytest.mark.parametrize(
    "body",
    [
        "sys.exit(3)",
        "pass",
        f"print('not json {SECRET}')",
        f"print(json.dumps({{'token': {SECRET + chr(10)!r}, 'expires_in': 100}}))",
        "print(json.dumps({'token': '', 'expires_in': 100}))",
        f"print(json.dumps({{'token': {SECRET!r}, 'expires_in': -1}}))",
        f"print(json.dumps({{'token': {SECRET!r}}}))",
        f"print({SECRET!r} * 10000)",
        f"print({SECRET!r}, flush=True); time.sleep(60)",
    ],
)
@async_test
async def test_a_command_that_fails_is_told_without_what_it_printed(
    tmp_path: Path, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = {"host": "api.example", "command": helper(tmp_path, body), "timeout": 1.0 if "sleep" in body else 20.0}
    server = FakeServer()
    with caplog.at_level("DEBUG"):
        async with running(make(helper_token, table), server) as runtime:
            response = await fetch(runtime, "https://api.example/")
    assert response.status == 502 and response.error["type"] == "agentfw_upstream_failed" and not server.requests
    assert "command" in response.error["message"] and SECRET.encode() not in response.body and SECRET not in caplog.text


@async_test
async def test_a_command_that_is_not_there() -> None:
    table = {"host": "api.example", "command": ["/nonexistent/mint"]}
    async with running(make(helper_token, table), FakeServer()) as runtime:
        assert (await fetch(runtime, "https://api.example/")).status == 502


@async_test
async def test_stopping_ends_the_command(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    body = f"open({str(ready)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    async with running(make(helper_token, {"host": "api.example", "command": helper(tmp_path, body)}), FakeServer()) as runtime:
        fetching = asyncio.ensure_future(fetch(runtime, "https://api.example/"))
        while not ready.exists() or not ready.read_text():  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.01)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(ready.read_text()), 0)


# -- leak_watch


class Audit:
    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        self.events.append(event)


@async_test
async def test_words_are_found_across_pieces_and_told() -> None:
    audit = Audit()
    plugin = make(leak_watch, {"words": ["TOP SECRET", "key"]})
    body = [b"a key, a TOP SEC", b"RET and a k", b"e", b"y", b" and nothing"]
    async with running(plugin, audit, FakeServer(lambda request: Response(body=body))) as runtime:
        response = await fetch(runtime, "https://api.example/", headers={"Accept-Encoding": "gzip"})
        assert response.body == b"".join(body), "what passes is not touched"
        counted = runtime.statistics()
    assert counted["leak_watch.found"] == 3 and counted["leak_watch.bytes"] == len(response.body)
    assert [event.rule for event in audit.events] == ["leak_watch: key", "leak_watch: TOP SECRET", "leak_watch: key"]
    assert {(event.kind, event.destination) for event in audit.events} == {("leak", "https://api.example:443")}


@settings(max_examples=150, deadline=None)
@given(
    some.lists(some.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    some.text("abc", max_size=60),
    some.lists(some.integers(0, 60), max_size=6),
)
def test_cutting_a_body_anywhere_finds_the_same_places(words: list[str], text: str, cuts: list[int]) -> None:
    """Wherever the network cuts, no end of a first find is missed, and what is kept stays small."""
    found: list[str] = []
    plugin = make(leak_watch, {"words": words})
    plugin._found = lambda agent, destination, word: found.append(word)
    look = plugin._watch(make_agent(), Destination.make("https", "a.example"))
    data, places = text.encode(), sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    out = b""
    for begin, end in itertools.pairwise(places):
        out += look(data[begin:end], end == len(data))
        kept = look.__closure__ and max(len(c.cell_contents) for c in look.__closure__ if isinstance(c.cell_contents, bytes))
        assert (kept or 0) < max(map(len, words))
    assert out == data
    assert bool(found) == any(word in text for word in words)


@async_test
async def test_blocking_breaks_the_response_off() -> None:
    plugin = make(leak_watch, {"words": ["TOP SECRET"], "hosts": ["api.example"], "block": True})

    def answer(request: Request) -> Response:
        if request.target == "/zip":
            return Response(headers={"Content-Encoding": "gzip"}, body=gzip.compress(b"TOP SECRET"))
        return Response(body=[b"fine so far, TOP ", b"SECRET and more"])

    server = FakeServer(answer)
    async with running(plugin, server) as runtime:
        with pytest.raises((ConnectionResetError, EOFError)):
            await fetch(runtime, "https://api.example/")
        response = await fetch(runtime, "https://api.example/zip")
        assert response.status == 403 and response.error["rule"] == "leak_watch"
        assert b"SECRET" in (await fetch(runtime, "https://other.example/")).body
        counted = runtime.statistics()
    assert counted["leak_watch.found"] == 1 and counted["leak_watch.not_read"] == 1
    assert [request.headers.get("accept-encoding") for request in server.requests] == ["identity", "identity", None]


@pytest.mark.parametrize(("table", "key"), [({"words": ["a", ""]}, "words.1"), ({"words": ["a"], "hosts": ["b c"]}, "hosts")])
def test_mistakes_in_leak_watch(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(leak_watch, table)
    assert caught.value.key == key
