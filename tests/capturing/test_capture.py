"""What an agent says over HTTP as HAR: as it wrote it and as it was answered, bounded, masked, and never in anybody's way."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import stat
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agentfw import Agent, ConfigError, Denied, Destination, RequestHead, hookimpl
from agentfw.agents import ExitReport
from agentfw.config import load_config
from agentfw.plugins import load_plugins
from agentfw.pool.client import MAX_ANSWER
from agentfw.pool.jobs import PoolError
from agentfw.reports import ExchangeReport
from agentfw.testing import FakeServer, Request, Response, fetch, make_agent, make_runtime, running
from agentfw_capture import Config, Plugin, exchanges, har, masks
from agentfw_capture.cli import missing
from agentfw_capture.config import MAX_FETCHED
from agentfw_capture.files import HarFile
from agentfw_capture.plugin import MARGIN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.support import async_test

from .support import load, pairs

HOST = "api.openai.com"
SECRET = "sk-real/0123456789+abcdefXYZ="


def captured(name: str = "a", **labels: str) -> Agent:
    return Agent(name, name, labels, capture=True)


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


class Rules:
    name = "rules"

    @hookimpl
    def request(self, head: RequestHead) -> None:
        head.headers.set("X-Added", "by a plugin")
        if "denied" in head.target:
            raise Denied("rules: no", "not that")


def server(request: Request) -> Response:
    path, _, _ = request.target.partition("?")
    if path == "/stream":
        return Response(200, {"content-type": "text/event-stream"}, [f"data: {n}\n\n".encode() for n in range(3)])
    if path == "/gzip":
        return Response(200, {"content-type": "text/plain", "content-encoding": "gzip"}, gzip.compress(b"hello " * 100))
    if path == "/binary":
        return Response(200, {"content-type": "image/png"}, bytes(range(256)))
    if path == "/big":
        return Response(200, {"content-type": "text/plain"}, b"x" * 300_000)
    if path == "/moved":
        headers = {"location": "https://x.example/?token=abc&a=1", "set-cookie": "sid=hush; Path=/"}
        return Response(302, headers, b"")
    return Response(201, {"content-type": "text/plain", "x-path": path}, "hällo".encode())


async def talk(runtime: Any, agent: Agent) -> None:
    own = {"authorization": "Bearer sk-my-own", "cookie": "sid=hush; b=c", "x-api-key": "sk-agentfw-placeholder", "accept": "*/*"}
    await fetch(runtime, "https://x.example/a?q=1&api_key=mine&key=my-placeholder", method="POST", headers=own, body=b'{"a": 1}',
                agent=agent)  # fmt: skip
    form = {"content-type": "application/x-www-form-urlencoded"}
    await fetch(runtime, "https://x.example/form", method="POST", headers=form, body=b"a=1&password=hush", agent=agent)
    for path in ("stream", "gzip", "binary", "big", "moved", "denied?x=1"):
        await fetch(runtime, f"https://x.example/{path}", agent=agent)


@async_test
async def test_a_file_of_what_was_said(tmp_path: Path) -> None:
    agent = captured("7k2m", team="red")
    plugin = Plugin(Config(str(tmp_path), body_bytes=1000))
    async with running(plugin, Rules(), FakeServer(server)) as runtime:
        await runtime.admit(agent)
        await talk(runtime, agent)
        runtime.agent_exited(agent, ExitReport("code"))
    path = tmp_path / "7k2m.har"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    log = load(path)
    assert [(page["id"], page["title"]) for page in log["pages"]] == [("7k2m", "7k2m")] and log["creator"]["name"] == "agentfw"
    first, form, stream, packed, binary, big, moved, denied = log["entries"]
    text = path.read_text()
    assert "sk-my-own" not in text and "hush" not in text and "mine" not in text and "X-Added" not in text

    asked = first["request"]
    assert asked["method"] == "POST" and asked["url"] == "https://x.example/a?q=1&api_key=(masked)&key=my-placeholder"
    assert pairs(asked["queryString"]) == {"q": "1", "api_key": "(masked)", "key": "my-placeholder"}
    headers = pairs(asked["headers"])
    assert headers["authorization"] == "Bearer (masked)" and headers["cookie"] == "(masked)" and headers["accept"] == "*/*"
    assert headers["x-api-key"] == "sk-agentfw-placeholder" and pairs(asked["cookies"]) == {"sid": "(masked)", "b": "(masked)"}
    assert (asked["postData"]["text"], asked["bodySize"]) == ('{"a": 1}', 8)
    answered = first["response"]
    assert (answered["status"], answered["content"]["text"], answered["content"]["mimeType"]) == (201, "hällo", "text/plain")
    assert pairs(answered["headers"])["x-path"] == "/a"
    assert form["request"]["postData"]["text"] == "a=1&password=(masked)"
    assert stream["response"]["content"]["text"] == "data: 0\n\ndata: 1\n\ndata: 2\n\n"
    content = packed["response"]["content"]
    assert (
        content["text"] == "hello " * 100
        and content["size"] == 600
        and content["compression"] == 600 - packed["response"]["bodySize"]
    )
    content = binary["response"]["content"]
    assert content["encoding"] == "base64" and base64.b64decode(content["text"]) == bytes(range(256))
    content = big["response"]["content"]
    assert content["text"] == "x" * 1000 and content["size"] == 300_000 and content["comment"] == "the first 1000 bytes"
    assert moved["response"]["redirectURL"] == "https://x.example/?token=(masked)&a=1"
    assert pairs(moved["response"]["headers"])["set-cookie"] == "(masked)" and moved["response"]["cookies"][0]["name"] == "sid"
    assert (denied["response"]["status"], denied["_rule"], denied["request"]["url"]) == (
        403,
        "rules: no",
        "https://x.example/denied?x=1",
    )
    assert plugin.statistics() == {"agents": 1, "refused": 0, "exchanges": 8, "left_out": 0, "failures": 0}


@async_test
async def test_only_who_asked_or_whose_labels_are_named(tmp_path: Path) -> None:
    plugin = Plugin(Config(str(tmp_path), labels={"team": "red"}))
    async with running(plugin, FakeServer(server)) as runtime:
        for agent in (make_agent("plain"), make_agent("red", team="red"), make_agent("blue", team="blue"), captured("asked")):
            await runtime.admit(agent)
            await fetch(runtime, "https://x.example/a", agent=agent)
            runtime.agent_exited(agent, ExitReport("code"))
    assert names(tmp_path) == ["asked.har", "red.har"]


@async_test
async def test_one_file_for_all(tmp_path: Path) -> None:
    path = tmp_path / "all.har"
    path.write_text("what was there before")
    async with running(Plugin(Config(file=str(path))), FakeServer(server)) as runtime:
        for name in ("a", "b"):
            await runtime.admit(captured(name))
            await fetch(runtime, "https://x.example/a", agent=captured(name))
    log = load(path)
    assert [entry["pageref"] for entry in log["entries"]] == ["a", "b"] == [page["id"] for page in log["pages"]]


@async_test
async def test_a_job_is_fetched_while_it_runs(tmp_path: Path) -> None:
    plugin = Plugin(Config(str(tmp_path)))
    agent = Agent("abc-1", "n", {}, job="abc", capture=True)
    async with running(plugin, FakeServer(server)) as runtime:
        with pytest.raises(PoolError):
            await plugin.answer_api("har", {"id": "abc"})
        await runtime.admit(agent)
        await fetch(runtime, "https://x.example/a", agent=agent)
        while plugin.statistics()["exchanges"] < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        found = await plugin.answer_api("har", {"id": "abc"})
        assert len(json.loads(msgspec.json.encode(found))["log"]["entries"]) == 1
        for wrong in ("../abc", "", "/etc/passwd", "abc.har", "x" * 500):
            with pytest.raises(PoolError):
                await plugin.answer_api("har", {"id": wrong})
        with pytest.raises(PoolError):
            await plugin.answer_api("secrets", {"id": "abc"})
    assert plugin.captures and not Plugin(Config()).captures


@async_test
async def test_agents_with_one_name_have_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "b.har").symlink_to(tmp_path / "elsewhere")
    async with running(Plugin(Config(str(tmp_path))), FakeServer(server)) as runtime:
        for name, job in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("../c", ""), ("d" * 200, "")):
            agent = Agent(name, name[:50], {}, job=job, capture=True)
            await runtime.admit(agent)
            await fetch(runtime, "https://x.example/a", agent=agent)
    assert names(tmp_path) == ["a-2.har", "a.har", "b-2.har", "b.har"]
    assert not (tmp_path / "elsewhere").exists()


@async_test
async def test_nobody_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it does not keep up with is left out, and told."""
    moves, append = threading.Event(), HarFile.append

    def slow(self: HarFile, entry: bytes) -> None:
        assert moves.wait(30)
        append(self, entry)

    monkeypatch.setattr(HarFile, "append", slow)
    monkeypatch.setattr("agentfw_capture.plugin.MAX_OPEN", 5)
    plugin = Plugin(Config(str(tmp_path)))
    async with running(plugin, FakeServer(server)) as runtime:
        agent = captured()
        await runtime.admit(agent)
        for _ in range(20):
            assert (await fetch(runtime, "https://x.example/a", agent=agent)).status == 201
        assert plugin.statistics()["left_out"] >= 14
        moves.set()
    log = load(tmp_path / "a.har")
    left_out = plugin.statistics()["left_out"]
    assert len(log["entries"]) + left_out == 20 and f"{left_out} exchanges are left out" in log["comment"]
    assert plugin._held == 0 and not plugin._open


@pytest.mark.parametrize("one", [False, True])
@async_test
async def test_a_disk_that_hangs_holds_up_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: bool) -> None:
    """Neither that of the pool nor, as a thread of an executor's would, that of the interpreter."""
    moves, real = threading.Event(), os.pwrite

    def hung(descriptor: int, data: Any, at: int) -> int:
        assert moves.wait(20)
        return real(descriptor, data, at)

    monkeypatch.setattr("agentfw_capture.plugin.STOP_SECONDS", 0.2)
    async with running(
        Plugin(Config(file=str(tmp_path / "a.har")) if one else Config(str(tmp_path))), FakeServer(server)
    ) as runtime:
        await runtime.admit(captured())
        monkeypatch.setattr(os, "pwrite", hung)
        await fetch(runtime, "https://x.example/a", agent=captured())
    writing = [thread for thread in threading.enumerate() if "capture" in thread.name]
    assert writing and all(thread.daemon for thread in writing), "it still hangs, and all else has ended"
    moves.set()
    for thread in writing:
        thread.join(10)
        assert not thread.is_alive()


@async_test
async def test_memory_of_bodies_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentfw_capture.plugin.MAX_HELD", 100_000)
    plugin = Plugin(Config(str(tmp_path), body_bytes=1 << 20))
    async with running(plugin, FakeServer(server)) as runtime:
        agent = captured()
        await runtime.admit(agent)
        await asyncio.gather(*(fetch(runtime, "https://x.example/big", agent=agent) for _ in range(10)))
    assert plugin._held == 0
    assert len(load(tmp_path / "a.har")["entries"]) + plugin.statistics()["left_out"] == 10


@async_test
async def test_a_body_has_no_gap_and_its_whole_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when there was no room for a piece of it, and there was again for the next one. Its end may be a part of a secret."""
    monkeypatch.setattr("agentfw_capture.plugin.MAX_HELD", 30_000)
    pieces = [b"a" * 29_990 + SECRET[:10].encode(), b"b" * 1000, b"c" * 1000]
    plugin = Plugin(Config(str(tmp_path)))

    def room(request: Request) -> Response:
        async def body() -> Any:
            for piece in pieces:
                yield piece
                await asyncio.sleep(0.05)
                plugin._held = 0 if piece[:1] == b"b" else plugin._held

        return Response(200, {}, body())

    async with running(plugin, FakeServer(room)) as runtime:
        await runtime.admit(captured())
        await fetch(runtime, "https://x.example/a", agent=captured())
    content = load(tmp_path / "a.har")["entries"][0]["response"]["content"]
    assert content["size"] == 32_000 and content["text"] == "a" * 10_000 and content["comment"] == "the first 10000 bytes"


def test_a_file_is_whole_at_any_time_and_bounded(tmp_path: Path) -> None:
    file = HarFile(tmp_path / "a.har", 65536, only=True)
    with pytest.raises(FileExistsError):
        HarFile(tmp_path / "a.har", 65536, only=True)
    assert load(tmp_path / "a.har")["entries"] == []
    file.page(har.Page(startedDateTime=har.moment(0), id="a", title="<b>\x1b", pageTimings={}))
    made = har.encode(
        har.Entry(
            pageref="a", startedDateTime=har.moment(1.5), time=0, cache={},
            timings=har.Timings(connect=-1, send=0, wait=0, receive=0),
            request=har.Request(method="GET", url="https://x/", httpVersion="HTTP/1.1", cookies=[], headers=[], queryString=[],
                                headersSize=-1, bodySize=0),
            response=har.Response(status=0, statusText="", httpVersion="HTTP/1.1", cookies=[], headers=[], redirectURL="",
                                  content=har.Content(size=0, mimeType=""), headersSize=-1, bodySize=-1),
            exchange=1,
        )
    )  # fmt: skip
    for number in range(300):
        file.append(made)
        if not number % 50:
            assert len(load(tmp_path / "a.har")["entries"]) == file.entries
    file.close()
    log = load(tmp_path / "a.har")
    assert 50 < len(log["entries"]) < 200 and len(log["entries"]) + file.left_out == 300
    assert (tmp_path / "a.har").stat().st_size < 65536 + 1024


def test_a_full_disk_leaves_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = HarFile(tmp_path / "a.har", 1 << 20, only=True)
    real, full = os.pwrite, [False]

    def failing(descriptor: int, data: Any, at: int) -> int:
        if full[0] and len(data) > 1000:
            real(descriptor, bytes(data)[:10], at)
            raise OSError(28, "No space left on device")
        return real(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", failing)
    full[0] = True
    with pytest.raises(OSError):
        file.append(b'{"x":"' + b"y" * 2000 + b'"}')
    assert json.loads((tmp_path / "a.har").read_bytes())["log"]["entries"] == [] and file.left_out == 1
    full[0] = False
    file.close()
    assert "1 exchanges are left out" in json.loads((tmp_path / "a.har").read_bytes())["log"]["comment"]


def test_who_was_killed_leaves_word_that_it_was_not_over(tmp_path: Path) -> None:
    """Nobody else knows what it had not written yet."""
    file = HarFile(tmp_path / "a.har", 1 << 20, only=True)
    file.append(b"{}")
    data = (tmp_path / "a.har").read_bytes()
    assert har.GOES_ON in json.loads(data)["log"]["comment"]
    assert missing(data, lost=False) == "" and missing(data, lost=True) == "Its worker was lost: what was said last is missing."
    file.left_out = 3
    file.close()
    data = (tmp_path / "a.har").read_bytes()
    assert har.GOES_ON not in json.loads(data)["log"]["comment"]
    assert missing(data, lost=True) == missing(data, lost=False) == "3 exchanges are left out."


@async_test
async def test_of_a_torn_file_what_is_whole_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a kill amid a write, or a machine that lost its power, at any byte."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    plugin, agent = Plugin(Config(str(tmp_path))), captured("abc")
    async with running(plugin, FakeServer(server)) as runtime:
        await runtime.admit(agent)
        await talk(runtime, agent)
    path = tmp_path / "abc.har"
    data = path.read_bytes()
    log = load(path)
    assert len(log["entries"]) == 8 and log["comment"] == har.ABOUT
    ends = [data.index(line) + len(line) for line in data.split(b"\n")[:-2]]
    for cut in (*ends, ends[0] + 10, ends[3] - 7, ends[-1] + 1, len(data) - 2):
        whole = sum(end <= cut for end in ends[1:])
        for rest in (b"", bytes(100), b"\xff\n{}\n"):
            path.write_bytes(data[:cut] + rest)
            told = bytes(await plugin.answer_api("har", {"id": "abc"}))
            (tmp_path / "told.har").write_bytes(told)
            found = load(tmp_path / "told.har")
            assert len(found["entries"]) in (whole, whole - 1) and found["entries"] == log["entries"][: len(found["entries"])]
            assert missing(told, lost=False) == har.TORN.strip()
        path.write_bytes(data[:cut])
        assert len(json.loads(bytes(await plugin.answer_api("har", {"id": "abc"})))["log"]["entries"]) == whole
    for nothing in (b"", data[:20], bytes(4096)):
        path.write_bytes(nothing)
        with pytest.raises(PoolError, match="lacks its end"):
            await plugin.answer_api("har", {"id": "abc"})


@async_test
async def test_what_cannot_be_read_is_not_said_to_be_absent(tmp_path: Path) -> None:
    plugin = Plugin(Config(str(tmp_path), max_bytes=65536))
    path = tmp_path / "abc.har"

    async def why() -> tuple[str, str]:
        with pytest.raises(PoolError) as caught:
            await plugin.answer_api("har", {"id": "abc"})
        return caught.value.code, str(caught.value)

    assert await why() == ("not_found", "nothing of `abc` was captured")
    os.mkfifo(path)
    assert (await why())[1] == f"the capture of `abc` cannot be read: not a regular file ({path})"
    path.unlink()
    path.mkdir()
    assert (await why())[1] == f"the capture of `abc` cannot be read: not a regular file ({path})"
    path.rmdir()
    path.symlink_to(tmp_path / "elsewhere")
    assert (await why())[0] == "internal"


# ---- never a secret


def saying_it_back(request: Request) -> Response:
    key = (request.headers.get("authorization") or "").removeprefix("Bearer ")
    if "error" in request.target:
        return Response(401, {"x-key": key, "content-type": "application/json"}, json.dumps({"error": f"bad key {key}"}).encode())
    text = f"data: {key} {base64.b64encode(key.encode()).decode()}\n\n".encode()
    return Response(
        200, {"content-type": "text/event-stream", "set-cookie": f"k={key}"}, [text[at : at + 5] for at in range(0, len(text), 5)]
    )


async def with_secret(tmp_path: Path, secret: str) -> str:
    (tmp_path / "secret").write_text(secret)
    directory = tmp_path / f"har-{time.monotonic_ns()}"
    directory.mkdir()
    (tmp_path / "agentfw.toml").write_text(
        f'[capture]\ndirectory = "{directory}"\nbody_bytes = 300\n'
        f'[[credentials.rule]]\nhost = "{HOST}"\nheader = "authorization"\nvalue = "Bearer ${{file:{tmp_path}/secret}}"\n'
    )
    config = load_config(tmp_path / "agentfw.toml")
    named = load_plugins(["credentials", "capture"], config)
    fake = FakeServer(saying_it_back)
    agent = captured()
    async with running(named.get("credentials"), named.get("capture"), fake, config=config) as runtime:
        await runtime.admit(agent)
        placeholder = {"authorization": "Bearer sk-agentfw-placeholder"}
        quoted = urllib.parse.quote(secret, safe="")
        for path, headers, body in (
            ("v1/stream", placeholder, b"{}"),
            ("v1/error", placeholder, b"{}"),
            (f"v1/{quoted}?q={quoted}", placeholder, b"{}"),  # what the agent should not even know
            ("v1/a", {"x-data": secret}, b"{}"),
            ("v1/b", {}, b"x" * 290 + secret.encode() + b"y" * 300),  # across the place where the body is cut
        ):
            await fetch(runtime, f"https://{HOST}/{path}", method="POST", headers=headers, body=body, agent=agent)
    assert any(secret in (request.headers.get("authorization") or "") for request in fake.requests), "it was injected"
    log = load(directory / "a.har")
    assert len(log["entries"]) == 5
    assert pairs(log["entries"][0]["request"]["headers"])["authorization"] == "Bearer sk-agentfw-placeholder"
    return (directory / "a.har").read_text()


def spellings(secret: str) -> set[str]:
    raw = secret.encode()
    return {
        secret, urllib.parse.quote(secret, safe=""), urllib.parse.quote(secret), base64.b64encode(raw).decode().rstrip("="),
        raw.hex(), secret.replace("/", "\\/"), secret[:9],
    }  # fmt: skip


@async_test
async def test_the_injected_secret_is_nowhere_in_it(tmp_path: Path) -> None:
    text = await with_secret(tmp_path, SECRET)
    assert not [each for each in spellings(SECRET) if each in text]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.+/=", min_size=20, max_size=60).filter(lambda text: len(set(text)) > 6))
def test_nor_is_any_other(tmp_path: Path, secret: str) -> None:
    @async_test
    async def run() -> None:
        text = await with_secret(tmp_path, secret)
        assert not [each for each in spellings(secret) - {secret[:9]} if each in text]

    run()


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("Authorization", "Basic dXNlcjpwYXNz", "Basic (masked)"),
        ("Authorization", "whole", "(masked)"),
        ("Proxy-Authorization", "Bearer x y", "Bearer (masked)"),
        ("Cookie", "a=placeholder", "(masked)"),
        ("X-Api-Key", "k", "(masked)"),
        ("x-goog-api-key", "sk-agentfw-placeholder", "sk-agentfw-placeholder"),
        ("X-Amz-Security-Token", "t", "(masked)"),
        ("Content-Type", "text/plain", "text/plain"),
        ("X-Request-Id", "7", "7"),
        ("x-ratelimit-remaining-tokens", "149984", "149984"),
        ("anthropic-ratelimit-input-tokens-remaining", "40000", "40000"),
        ("x-ratelimit-token", "sk-real", "(masked)"),
        ("Location", "https://a.example/cb?x=1#access_token=s3cret&state=7", "https://a.example/cb?x=1#access_token=(masked)&state=7"),
        ("Location", "https://ann:s3@cret@a.example/", "https://ann:(masked)@a.example/"),
        ("Location", "/a?x=1#y", "/a?x=1#y"),
        ("Referer", "https://a.example/?userToken=s3cret&q=a", "https://a.example/?userToken=(masked)&q=a"),
        ("Link", '<https://a.example/?sig=s3cret>; rel="next", <https://b.example/?page=2>',
         '<https://a.example/?sig=(masked)>; rel="next", <https://b.example/?page=2>'),
        ("Refresh", "0; url=https://a.example/?jwt=s3cret", "0; url=https://a.example/?jwt=(masked)"),
        ("Sec-WebSocket-Protocol", "realtime, openai-insecure-api-key.s3cret, openai-beta.realtime-v1",
         "realtime, openai-insecure-api-key.(masked), openai-beta.realtime-v1"),
        ("Sec-WebSocket-Protocol", "a-key.sk-agentfw-placeholder", "a-key.sk-agentfw-placeholder"),
        ("Sec-WebSocket-Protocol", "Bearer, s3cret,chat", "Bearer, (masked), chat"),
        ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.s3cret", "base64url.bearer.(masked)"),
        ("sec-websocket-protocol", "graphql-transport-ws, eyJhbGciOiJ9.e30.s3cret", "graphql-transport-ws, (masked)"),
    ],
)  # fmt: skip
def test_headers_that_are_masked(name: str, value: str, shown: str) -> None:
    assert masks.header(name, value) == shown


def test_parameters_that_are_masked() -> None:
    assert masks.target("/a?key=1&max_tokens=2&access%5Ftoken=3&x-amz-signature=4&q=a=b&&token=&code=5") == (
        "/a?key=(masked)&max_tokens=2&access%5Ftoken=(masked)&x-amz-signature=(masked)&q=a=b&&token=&code=(masked)"
    )


@pytest.mark.parametrize(
    "name",
    [
        "key",
        "apiKey",
        "userToken",
        "clientSecret",
        "AWSAccessKey",
        "x-goog-credential",
        "id_token",
        "PHPSESSIONID",
        "pwd",
        "x" * 99 + "_key",
    ],
)
def test_names_of_parameters_that_carry_keys(name: str) -> None:
    assert masks.query(f"{name}=s3cret") == f"{name}=(masked)"


@pytest.mark.parametrize("name", ["max_tokens", "keys", "monkey", "q", "encode", "author", "design", "tokens"])
def test_names_of_parameters_that_carry_none(name: str) -> None:
    assert masks.query(f"{name}=1") == f"{name}=1"


def test_forms_in_parts() -> None:
    def body(value: str, boundary: str = "b-1") -> bytes:
        parts = {'name="user"': "ann", 'name="password"': value, "name=file; filename=x": "key"}
        fields = "".join(
            f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\n\r\n{text}\r\n" for name, text in parts.items()
        )
        return f"{fields}--{boundary}--\r\n".encode()

    for kind in ('multipart/form-data; boundary="b-1"', "Multipart/Form-Data;charset=x;boundary=b-1", "multipart/form-data"):
        assert masks.form(body("s3\r\ncret"), kind) == body("(masked)")
    assert masks.form(body("s3cret"), "text/plain") == body("s3cret") and masks.form(b"", "multipart/form-data") == b""


@async_test
async def test_a_compressed_request_is_shown_as_it_was_before(tmp_path: Path) -> None:
    """And so what must not be shown is found in it."""
    plugin, agent = Plugin(Config(str(tmp_path))), captured()
    async with running(plugin, FakeServer(lambda request: Response(200))) as runtime:
        await runtime.admit(agent)
        headers = {"content-type": "application/x-www-form-urlencoded", "content-encoding": "gzip"}
        body = gzip.compress(b"grant=x&client_secret=s3cret")
        await fetch(runtime, "https://x.example/", method="POST", headers=headers, body=body, agent=agent)
        runtime.agent_exited(agent, ExitReport("code"))
    (entry,) = load(tmp_path / "a.har")["entries"]
    assert entry["request"]["postData"]["text"] == "grant=x&client_secret=(masked)"
    assert entry["request"]["bodySize"] == len(body)


@pytest.mark.parametrize("reused", [False, True])
def test_who_got_a_connection_that_was_there_did_not_connect(reused: bool) -> None:
    exchange = exchanges.Exchange("a", 100)
    exchange.report = ExchangeReport(
        exchange=1, destination=Destination.make("https", "x.example"), method="GET", target="/", status=0, bytes_up=0,
        bytes_down=0, started=0.0, connected=0.25, first_byte=0.5, seconds=1.0, reused=reused,
    )  # fmt: skip
    timings = exchanges.entry(exchange, 100, bytes).timings
    assert (timings.connect, timings.wait, timings.receive) == (-1.0 if reused else 250.0, 250.0, 500.0)


def test_bodies_that_are_strange() -> None:
    assert (
        har.text_of("ü".encode()[:1]) == ("", "") and har.text_of(b"a\0")[1] == "base64" and har.text_of(b"\xff")[1] == "base64"
    )
    bomb = gzip.compress(bytes(50 << 20))
    data, note = har.inflated(bomb, ["gzip"], 1000)
    assert len(data) == 1000 and note == "cut"
    assert har.inflated(b"no gzip", ["gzip"], 1000)[0] == b"no gzip" and har.inflated(b"x", ["br"], 10) == (
        b"x",
        "in the coding br, as it came",
    )
    body = exchanges.Body(10)
    assert body.add(b"x" * 100_000) == 10 + exchanges.MARGIN and body.add(b"y") == 0 and body.size == 100_001


# ---- configuration


def test_where_agents_look_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "agentfw.toml").write_text('[capture]\ndirectory = "seen"\n')
    (tmp_path / "seen").mkdir()
    config = load_config(tmp_path / "agentfw.toml")
    with pytest.raises(ConfigError) as caught:
        load_plugins(["capture"], config).check_guest(config, {}, lambda path: path.is_relative_to(tmp_path / "seen"))
    assert caught.value.key == "capture.directory" and caught.value.hint and "--har" not in caught.value.hint
    loaded = load_config(tmp_path / "agentfw.toml").with_keys("capture", {"file": str(tmp_path / "seen/a.har"), "directory": ""})
    with pytest.raises(ConfigError) as caught:
        load_plugins(["capture"], loaded).check_guest(loaded, {}, lambda path: path.is_relative_to(tmp_path / "seen"))
    assert caught.value.hint.endswith("`--har ../NAME.har`, say")


@pytest.mark.parametrize("table", ['directory = "a"\nfile = "b"', "body_bytes = -1", "max_bytes = 1", 'directory = "a\\u0000"',
                                   'labels = { team = "red" }'])  # fmt: skip
def test_mistakes_in_the_table(tmp_path: Path, table: str) -> None:
    (tmp_path / "agentfw.toml").write_text(f"[capture]\n{table}\n")
    with pytest.raises(ConfigError):
        load_plugins(["capture"], load_config(tmp_path / "agentfw.toml"))


def test_a_file_that_a_pool_writes_is_one_that_it_sends() -> None:
    """Of all that the configuration lets grow, `agentfw har` fetches the largest; `run --har` is fetched by nobody."""
    assert Config("a", max_bytes=MAX_FETCHED).max_bytes + MARGIN <= MAX_ANSWER
    with pytest.raises(ConfigError) as caught:
        Config("a", max_bytes=MAX_FETCHED + 1)
    assert caught.value.key == "max_bytes" and str(MAX_FETCHED) in str(caught.value)
    assert Config(file="a.har", max_bytes=1 << 30).max_bytes == 1 << 30


@async_test
async def test_what_is_there_and_cannot_be_sent_is_said_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentfw_capture.plugin.time.sleep", lambda seconds: None)
    plugin = Plugin(Config(str(tmp_path), max_bytes=65536))
    with (tmp_path / "large.har").open("wb") as file:
        file.truncate(MAX_FETCHED + MARGIN + 1)
    (tmp_path / "torn.har").write_bytes(b'{"log":{"entries":[')  # its pool was killed
    (tmp_path / "larger.har").write_text(json.dumps("x" * (2 << 20)))  # than what counts since a reload
    for name, text in (("large", "in more bytes than are sent"), ("torn", "lacks its end")):
        with pytest.raises(PoolError, match=text) as caught:
            await plugin.answer_api("har", {"id": name})
        assert str(tmp_path / f"{name}.har") in caught.value.hint
    assert len(msgspec.json.encode(await plugin.answer_api("har", {"id": "larger"}))) > 2 << 20


@async_test
async def test_no_directory_no_start(tmp_path: Path) -> None:
    for config in (Config(str(tmp_path / "none")), Config(file=str(tmp_path / "none" / "a.har")), Config(file=str(tmp_path))):
        with pytest.raises(ConfigError):
            async with running(Plugin(config)):
                pass
    plugin = Plugin(Config(str(tmp_path)))
    async with running(plugin, FakeServer(server)) as runtime:
        with pytest.raises(ConfigError):
            plugin.reconfigure(Config(str(tmp_path / "none")))
        plugin.reconfigure(Config(str(tmp_path), labels={"team": "red"}))()
        await runtime.admit(make_agent("red", team="red"))
    assert load(tmp_path / "red.har")["entries"] == []


@async_test
async def test_who_has_begun_is_captured_where_it_was_said_then(tmp_path: Path) -> None:
    """And not beside agentfw.toml, where agents may look, when no directory is named any more."""
    first, other = tmp_path / "first", tmp_path / "other"
    first.mkdir()
    other.mkdir()
    (tmp_path / "agentfw.toml").write_text("")
    for after in (Config(), Config(str(other))):
        plugin = Plugin(Config(str(first)))
        async with running(plugin, FakeServer(server), config=load_config(tmp_path / "agentfw.toml")) as runtime:
            await runtime.admit(captured())
            plugin.reconfigure(after)()
            await fetch(runtime, "https://x.example/a", agent=captured())
    assert names(first) == ["a-2.har", "a.har"] and names(other) == [] and "a.har" not in names(tmp_path)


@async_test
async def test_one_file_is_not_a_pools(tmp_path: Path) -> None:
    """Its workers and its router would begin it anew, and write over each other."""

    class Link:
        role = "worker"

    runtime = make_runtime(Plugin(Config(file=str(tmp_path / "a.har"))))
    runtime.pool = Link()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="a pool needs a `directory`"):
        await runtime.start()
    assert not names(tmp_path)


@async_test
async def test_one_file_has_all_that_run_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`agentfw run -n 1000` admits them all before the first has a VM."""
    (tmp_path / "own").mkdir()
    for config, most in ((Config(file=str(tmp_path / "all.har")), 300), (Config(str(tmp_path / "own")), 256)):
        plugin = Plugin(config)
        async with running(plugin, FakeServer(server)) as runtime:
            for number in range(300):
                await runtime.admit(captured(f"a{number}"))
        assert (plugin.statistics()["agents"], plugin.statistics()["refused"]) == (most, 300 - most)
    assert len(load(tmp_path / "all.har")["pages"]) == 300 and len(names(tmp_path / "own")) == 256
    assert caplog.text.count("is not captured") == 1


@async_test
async def test_many_at_once_go_to_the_thread_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with its hands full left out three exchanges in four, each of which waited for a thread's turn."""
    go_on, plugin = threading.Event(), Plugin(Config(str(tmp_path)))
    handed: list[object] = []
    async with running(plugin, FakeServer(server)) as runtime:
        thread = plugin._thread
        assert thread is not None
        submit = thread.submit

        def counted(function: Any, *args: Any) -> Any:
            handed.append(function)
            return submit(function, *args)

        monkeypatch.setattr(thread, "submit", counted)
        submit(go_on.wait, 20)
        agent = captured()
        await runtime.admit(agent)
        for number in range(120):
            await fetch(runtime, f"https://x.example/{number}", agent=agent)
        go_on.set()
        runtime.agent_exited(agent, ExitReport("code"))
    assert plugin.statistics()["exchanges"] == 120 and len(handed) <= 6
    entries = load(tmp_path / "a.har")["entries"]
    assert [entry["request"]["url"] for entry in entries] == [f"https://x.example/{number}" for number in range(120)]


@pytest.mark.parametrize("large", [False, True])
@async_test
async def test_all_texts_are_masked_whatever_bodies_there_are(tmp_path: Path, large: bool) -> None:
    class Masks:
        name = "masks"

        @hookimpl
        def redact(self, text: bytes) -> bytes | None:
            return text.replace(b"hush", b"****")

    def answer(request: Request) -> Response:
        return Response(200, {"x-hush": "hush"}, b"hush" * (10_000 if large else 1))

    plugin = Plugin(Config(str(tmp_path)))
    agent = Agent("a", "named hush", {}, capture=True)
    async with running(plugin, Masks(), FakeServer(answer)) as runtime:
        await runtime.admit(agent)
        await fetch(
            runtime, "https://x.example/hush?hush=hush", method="POST", headers={"x-b": "hush"}, body=b"a hush", agent=agent
        )
        runtime.agent_exited(agent, ExitReport("code"))
    log = load(tmp_path / "a.har")
    (entry,) = log["entries"]
    assert "hush" not in (tmp_path / "a.har").read_text() and log["pages"][0]["title"] == "named ****"
    assert entry["request"]["postData"]["text"] == "a ****" and entry["request"]["url"].endswith("/****?****=****")
    assert entry["response"]["content"]["text"] == "****" * (10_000 if large else 1)
