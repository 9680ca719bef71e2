"""What agents may not send: keys of their own on a route with credentials, placeholders elsewhere, secrets anywhere."""

from __future__ import annotations

import base64
import random
from typing import Any
from urllib.parse import quote

import pytest
from agentfw import Denied, TlsInfo
from agentfw.errors import ProtocolError
from agentfw.http1 import parse_request, transformed
from agentfw.testing import FakeServer, Response, fetch, running
from agentfw_credentials.placeholders import BodyScan
from agentfw_credentials.search import PART
from agentfw_credentials.values import Secrets

from tests.core.support import async_test

from .support import (
    BASIC,
    HERE,
    INFO,
    KEY,
    KINDS,
    PLACEHOLDER,
    UNVERIFIED,
    Measured,
    ask,
    credentials,
    other_agents_turns,
    rule,
    sent,
)

OWN = "sk-the-agents-own"


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


OWN_KEYS: list[tuple[list[tuple[str, str]], str]] = [
    ([("Authorization", f"Bearer {OWN}")], "/"),
    ([("Authorization", "")], "/"),
    ([("AUTHORIZATION", OWN)], "/"),
    ([("Authorization", f"Basic {b64(f'user:{OWN}')}")], "/"),
    ([("Authorization", f"Basic {b64(f'{OWN}:')}")], "/"),
    ([("Authorization", f"Basic {b64(f'{PLACEHOLDER}:{OWN}')}")], "/"),
    ([("Authorization", "Basic ====")], "/"),
    ([("Authorization", f"Digest username={OWN}")], "/"),
    ([("Authorization", f"Bearer {PLACEHOLDER} extra")], "/"),
    ([("Authorization", f"Bearer {PLACEHOLDER}"), ("authorization", f"Bearer {OWN}")], "/"),
    ([("X-API-Key", OWN)], "/"),
    ([("X_Api_Key", OWN)], "/"),
    ([("X-Goog-Api-Key", OWN)], "/"),
    ([("x-custom-key", OWN)], "/"),
    ([], f"/?key={OWN}"),
    ([], f"/?API_KEY={OWN}"),
    ([], f"/?%61pi%5Fkey={OWN}"),
    ([], f"/?a=b;access_token={OWN}"),
    ([], f"/?key={PLACEHOLDER}&key={OWN}"),
    ([], "/?key"),
    ([], "/?key="),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("headers", "target"), OWN_KEYS)
def test_an_agents_own_key_is_refused_where_one_is_set(kind: str, headers: list[tuple[str, str]], target: str) -> None:
    plugin = credentials(rule(**KINDS[kind]), rule(header="X_Custom_Key", path="/"))
    with pytest.raises(Denied) as caught:
        ask(plugin, headers, target=target)
    assert caught.value.rule.startswith("credentials: api.example")
    assert KEY not in str(caught.value) and OWN not in str(caught.value)
    assert (plugin.statistics()["injected"], plugin.statistics()["refused"]) == (0, 1)


@pytest.mark.parametrize(("headers", "target"), OWN_KEYS)
def test_elsewhere_agents_may_use_their_own(headers: list[tuple[str, str]], target: str) -> None:
    own = [(name, value) for name, value in headers if PLACEHOLDER not in value and b64(PLACEHOLDER)[:8] not in value]
    if PLACEHOLDER not in target:
        head = ask(credentials(), own, "https://other.example:443", INFO, target)
        assert list(head.headers) == own and head.target == target


def test_lists_of_names_are_the_operators() -> None:
    plugin = credentials(key_parameters=("token",), key_headers=("x-session",))
    assert ask(plugin, {}, target="/?key=a").target == "/?key=a"
    for headers, target in (({"X-Session": "a"}, "/"), ({}, "/?token=a")):
        with pytest.raises(Denied):
            ask(plugin, headers, target=target)


def test_a_folded_header_is_no_header() -> None:
    with pytest.raises(ProtocolError):
        parse_request(f"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n Authorization: {OWN}\r\n\r\n".encode())


FORMS = {
    "plain": lambda text: text,
    "inside": lambda text: f"..{text}..",
    "percent": lambda text: "".join(f"%{ord(c):02x}" for c in text),
    "one percent": lambda text: quote(text[0], safe="").join(["", text[1:]]) if text[0] != "s" else f"%73{text[1:]}",
    "base64": b64,
    "base64, one off": lambda text: b64(f"x{text}yz"),
    "base64, two off": lambda text: b64(f"xy{text}"),
    "basic": lambda text: f"Basic {b64(f'user:{text}')}",
    "hex": lambda text: text.encode().hex(),
    "json": lambda text: "".join(f"\\u{ord(c):04x}" for c in text),
    "html": lambda text: "".join(f"&#{ord(c)};" for c in text),
}


@pytest.mark.parametrize("value", [PLACEHOLDER, KEY])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["header", "name", "path", "query", "cookie"])
@pytest.mark.parametrize(
    ("where", "tls"),
    [("https://other.example:443", INFO), ("http://api.example:80", None), (HERE, UNVERIFIED)],
)
def test_placeholders_and_secrets_elsewhere(value: str, form: str, place: str, where: str, tls: TlsInfo | None) -> None:
    text = FORMS[form](value)
    headers: dict[str, Any] = {}
    target = "/"
    if place == "header":
        headers["X-Note"] = text
    elif place == "cookie":
        headers["Cookie"] = f"a=b; c={text}"
    elif place == "name":
        if not text.replace("-", "").isalnum():
            return
        headers[f"X-{text}"] = "1"
    elif place == "path":
        target = f"/a/{text.replace(' ', '%20')}"
    else:
        target = f"/?x={text.replace(' ', '+')}"
    plugin = credentials()
    with pytest.raises(Denied) as caught:
        ask(plugin, headers, where, tls, target)
    assert caught.value.rule == "credentials: scope" and KEY not in str(caught.value)
    assert ("a placeholder" in str(caught.value)) == (value == PLACEHOLDER)
    assert ("verified TLS" in str(caught.value)) == (value == PLACEHOLDER and tls is UNVERIFIED)


@pytest.mark.parametrize("value", [PLACEHOLDER, KEY])
@pytest.mark.parametrize("where", ["X-Note", "path"])
def test_on_its_own_route_it_goes_where_the_key_does_only(value: str, where: str) -> None:
    plugin = credentials()
    with pytest.raises(Denied):
        ask(plugin, {where: value} if where != "path" else {}, target=f"/{value}" if where == "path" else "/")
    assert sent(plugin, {"X-API-Key": PLACEHOLDER, "Api_Key": f"Bearer {PLACEHOLDER}"}, target=f"/?api_key={PLACEHOLDER}") == {
        "authorization": f"Bearer {KEY}"
    }, "an SDK that sends it twice"


def test_the_real_secret_is_not_taken_for_the_placeholder() -> None:
    with pytest.raises(Denied):
        ask(credentials(), {"Authorization": f"Bearer {KEY}"})


def test_cookies_do_not_pass_where_a_key_is_set() -> None:
    """A session that the key bought would be as good as the key."""
    assert "cookie" not in sent(credentials(), {"Cookie": "session=1"})
    assert sent(credentials(rule(cookies=True)), {"Cookie": "session=1"})["cookie"] == "session=1"
    assert sent(credentials(), {"Cookie": "session=1"}, "https://other.example:443")["cookie"] == "session=1"


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("body", "refused"),
    [
        (f'{{"a": "{KEY}"}}', True), (f"x={quote(KEY)}&{b64(KEY)}", True), ("y" * 60_000 + KEY, True),
        (f"a={PLACEHOLDER}", False), (KEY[:-1], False), ("z" * 70_000 + KEY, False),
    ],
)  # fmt: skip
def test_secrets_in_bodies(size: int, body: str, refused: bool) -> None:
    if len(body) > 1000 and size == 1:
        size = 4096
    data = body.encode()
    for where in (HERE, "https://other.example:443", "http://plain.example:80"):
        head = ask(credentials(), where=where, tls=INFO if "https" in where else None)
        passed = b""
        denied = False
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            try:
                for transform in head.transforms:
                    piece = transform(piece, at + size >= len(data))
            except Denied as error:
                denied = "secret" in error.reason
                break
            passed += piece
        assert denied == refused and KEY.encode() not in passed[:65536]
        assert refused or passed == data
    assert not ask(credentials(scan_body=0)).transforms


def test_basic_rules_take_any_users_placeholder() -> None:
    plugin = credentials(rule(basic=BASIC))
    good = f"Basic {b64(f'user:{KEY}')}"
    assert sent(plugin, {"Authorization": f"Basic {b64(f'me:{PLACEHOLDER}')}"}) == {"authorization": good}
    with pytest.raises(Denied):
        ask(credentials(), {"Authorization": f"Basic {b64(f'me:{PLACEHOLDER}')}"})


@async_test
async def test_an_agents_body_of_escapes_stops_no_other_agent() -> None:
    body = b"%61" * 20_000
    server = FakeServer(lambda request: Response(200))
    async with running(credentials(), server) as runtime:
        async with other_agents_turns() as few:
            await fetch(runtime, "https://other.example/", method="POST", body=b"a" * len(body))
        async with other_agents_turns() as turns:
            await fetch(runtime, "https://other.example/", method="POST", body=body)
    assert server.requests[1].body == body and len(turns) > len(few) + len(body) // PART - 2


def test_of_a_piece_with_a_secret_nothing_is_sent() -> None:
    transforms = ask(credentials()).transforms
    passed = b""
    with pytest.raises(Denied):
        for part, _ in transformed(transforms, b"%61" * 10_000 + KEY.encode(), True):
            passed += part
    assert passed == b""
    assert b"".join(part for part, _ in transformed(ask(credentials()).transforms, b"%61" * 30_000, True)) == b"%61" * 30_000


@pytest.mark.parametrize("whole", [True, False])
def test_a_long_secrets_beginning_is_not_looked_at_again_with_each_byte(whole: bool) -> None:
    key = random.Random(1).randbytes(500).hex().encode()
    needles = Measured([key])
    secrets = Secrets(0)
    secrets._needles, secrets._stale = needles, False
    scan = BodyScan(secrets, 65536, lambda: Denied("scope", "a secret"))
    text = b"".join(b"&#%07d;" % code for code in (key if whole else key[:-1]))
    passed = b""
    try:
        for at in range(len(text)):
            passed += scan(text[at : at + 1], False)
        passed += scan(b"", True)
    except Denied:
        assert whole and passed == text[: len(passed)] and len(passed) < len(text)
    else:
        assert not whole and passed == text
    assert needles.looked_at < 100 * len(text)
