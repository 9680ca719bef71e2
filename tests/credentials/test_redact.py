"""Secrets that come back in responses are masked, in any form and whatever the pieces they come in."""

from __future__ import annotations

import base64
import gzip
import html
import itertools
import json
import random
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable
from urllib.parse import quote, unquote

import pytest
from agentfw import Agent, Denied, Headers, RequestHead, ResponseHead
from agentfw.errors import ProtocolError
from agentfw.http1 import transformed
from agentfw.testing import FakeServer, Response, fetch, running
from agentfw_credentials import values
from agentfw_credentials.redact import EXPANSION, Inflate, Redactor
from agentfw_credentials.search import PART, Needles, forms
from agentfw_credentials.values import MOST_OLD, Secrets
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.support import async_test

from .support import KEY, PLACEHOLDER, Measured, answer, ask, credentials, other_agents_turns, rule

KEYS = (KEY.encode(), b"sk-real-01234567", b"0123456789abcdef", b"A/b+c&d\"e'f\\g%h<", b"aaaaaaaabaaaaaaaa", b"x" * 300)
NEEDLES = Needles(KEYS)


def mask(needles: Needles, pieces: list[bytes]) -> tuple[bytes, int]:
    counted: list[int] = []
    redact = Redactor(lambda: needles, counted.append)
    out = b"".join([*(redact(piece, False) for piece in pieces), redact(b"", True)])
    return out, sum(counted)


def cut(whole: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(each, len(whole)) for each in cuts), len(whole)]
    return [whole[a:b] for a, b in itertools.pairwise(edges)]


def escaped(draw: random.Random, text: bytes) -> bytes:
    """Each character in one of its forms; what begins an escape itself is not left as it is, which would be another text."""

    def one(code: int) -> str:
        c = chr(code)
        named = html.escape(c) if c in "&<>\"'" else c
        slashed = json.dumps(c)[1:-1] if c != "/" else "\\/"
        choices = [c, c, f"%{code:02x}", f"%{code:02X}", f"\\u{code:04x}", f"\\u{code:04X}", f"\\x{code:02x}", f"&#{code};",
                   f"&#0{code};", f"&#x{code:x};", f"&#X0{code:X};", named, slashed]  # fmt: skip
        return draw.choice([each for each in choices if each != c] if c in "%\\&" else choices)

    return "".join(map(one, text)).encode()


FORMS: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "plain": lambda draw, key: key,
    "lower": lambda draw, key: key.lower(),
    "upper": lambda draw, key: key.upper(),
    "base64": lambda draw, key: base64.b64encode(key),
    "basic": lambda draw, key: b"Basic " + base64.b64encode(b"user:" + key),
    "base64 inside": lambda draw, key: base64.b64encode(draw.randbytes(draw.randrange(9)) + key + draw.randbytes(3)),
    "base64url": lambda draw, key: base64.urlsafe_b64encode(draw.randbytes(draw.randrange(9)) + key),
    "hex": lambda draw, key: key.hex().encode(),
    "HEX": lambda draw, key: key.hex().upper().encode(),
    "percent": lambda draw, key: quote(key, safe="").encode(),
    "all percent": lambda draw, key: b"".join(b"%%%02x" % byte for byte in key),
    "json": lambda draw, key: json.dumps({"echo": key.decode()}).encode(),
    "json twice": lambda draw, key: json.dumps(json.dumps({"echo": key.decode()})).encode() if key != KEYS[3] else key,
    "html": lambda draw, key: html.escape(key.decode()).encode(),
    "mixed": escaped,
    "base64 in a url": lambda draw, key: quote(base64.b64encode(b"u:" + key), safe="").encode(),
    "base64 in json": lambda draw, key: base64.b64encode(b"user:" + key).replace(b"/", b"\\/"),
}


def shows(out: bytes, key: bytes) -> bool:
    """Whether the key can be had from it, by any of the ways that the forms above can be undone."""
    warnings.simplefilter("ignore", DeprecationWarning)
    texts = {out, out.lower()}
    for _ in range(2):
        for text in list(texts):
            decoded = text.decode("latin-1")
            for undo in (
                lambda t: t.encode().decode("unicode_escape"),
                html.unescape,
                lambda t: unquote(t, "latin-1"),
                lambda t: t.replace("\\/", "/"),
            ):
                try:
                    texts.add(undo(decoded).encode("latin-1"))
                except (UnicodeError, ValueError):
                    continue
    return any(key in text or key.hex().encode() in text or any(form in text for form in forms(key)) for text in texts)


PRINTABLE = st.characters(min_codepoint=0x20, max_codepoint=0x7E)
ONE_WAY = {name: form for name, form in FORMS.items() if name not in ("mixed", "json twice", "base64 in a url", "base64 in json")}


@settings(max_examples=400, deadline=None)
@given(
    st.text(PRINTABLE, min_size=8, max_size=80).filter(lambda text: text == text.strip()),
    st.sampled_from(sorted(ONE_WAY)),
    st.randoms(use_true_random=False),
    st.sampled_from([b"", b"%41&amp;\\n\\u0041", b"\\", b"%", b"&#65;", b"&"]),
    st.lists(st.integers(0, 500), max_size=12),
)
def test_any_secret_at_all(secret: str, form: str, draw: random.Random, beside: bytes, cuts: list[int]) -> None:
    """Also one that looks like an escape itself."""
    key = secret.encode()
    needles = Needles([key])
    said = ONE_WAY[form](draw, key)
    whole = beside + b" " + said + b" " + beside
    start = len(beside) + 1
    out, count = mask(needles, cut(whole, cuts))
    assert count >= 1 and len(out) == len(whole)
    assert not needles.find(out) and key not in out
    assert out[start : start + len(said)] != said
    assert (out, count) == mask(needles, [whole])


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(KEYS),
    st.sampled_from(sorted(FORMS)),
    st.randoms(use_true_random=False),
    st.binary(max_size=30),
    st.binary(max_size=30),
    st.lists(st.integers(0, 900), max_size=12),
)
def test_no_form_and_no_cut_lets_a_secret_through(
    key: bytes, form: str, draw: random.Random, before: bytes, after: bytes, cuts: list[int]
) -> None:
    whole = before + b" " + FORMS[form](draw, key) + b" " + after
    out, count = mask(NEEDLES, cut(whole, cuts))
    assert count >= 1 and len(out) == len(whole)
    assert out.startswith(before + b" ") or shows(before, key) or NEEDLES.find(before + b" ")
    assert not NEEDLES.find(out)
    if key != b"x" * 300:
        assert not shows(out, key), out
    assert (out, count) == mask(NEEDLES, [whole]), "pieces make no difference"


PARTS = [b"abcdefgh", b"cdefghij", b"abcdefghab", b"b", b"%61", b"%6", b"\\u006", b"1", b"xy", b"&#9", b"7;"]
VALUES = [b"abcdefgh", b"abcdefghab", b"hcdefghij", b"bbbbbbbb", b"aabcdefg"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(PARTS), max_size=25),
    st.lists(st.integers(0, 150), max_size=8),
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=4, unique=True),
)
def test_pieces_make_no_difference(parts: list[bytes], cuts: list[int], values: list[bytes]) -> None:
    whole = b"".join(parts)
    needles = Needles(values)
    out, count = mask(needles, cut(whole, cuts))
    assert (out, count) == mask(needles, [whole])
    assert len(out) == len(whole) and not any(value in out for value in values)


def test_nothing_is_held_that_cannot_be_a_secret() -> None:
    redact = Redactor(lambda: Needles([KEY.encode()]), lambda number: None)
    assert redact(b"data: {}\n\n", False) == b"data: {}\n\n", "a stream's events pass at once"
    assert redact(b"data: sk-re", False) == b"data: "
    assert redact(b"st\n\n", False) == b"sk-rest\n\n"
    assert redact(b"50%", False) == b"50"
    assert redact(b" of it\n\n", False) == b"% of it\n\n"


def test_what_is_held_is_not_looked_at_again_with_each_byte() -> None:
    """A long secret's beginning in escapes, a byte a packet: 1.3 ms of all agents' time for each."""
    key = random.Random(1).randbytes(500).hex().encode()
    needles = Measured([key])
    text = b"".join(b"&#%07d;" % code for code in key)
    out, count = mask(needles, [text[at : at + 1] for at in range(len(text))])
    assert (out, count) == (b"*" * len(text), 1)
    assert needles.looked_at < 100 * len(text)
    redact = Redactor(lambda: needles, lambda number: None)
    assert redact(text[:-9], False) == b""
    assert redact(b"&#", False) == b"" and redact(b"\n\n", False) == text[:-9] + b"&#\n\n", "an event's end decides"


def test_nothing_to_mask() -> None:
    out, count = mask(Needles(()), [b"a%41\\u0041", b"b"])
    assert (out, count) == (b"a%41\\u0041b", 0)


def test_old_values_are_masked_for_a_while() -> None:
    now = 0.0
    secrets = Secrets(60, lambda: now)
    secrets.use("a", ["first-secret"])
    secrets.use("b", ["other-secret"])
    redact = Redactor(secrets.needles, lambda number: None)
    assert redact(b"first-secret other-secret", True) == b"************ ************"
    secrets.use("a", ["second-secret"])
    secrets.forget("b")
    now = 59.0
    text = b"first-secret second-secret other-secret."
    assert redact(text, True) == b"************ ************* ************.", "also what a stream began before the change says"
    now = 61.0
    assert redact(text, True) == b"first-secret ************* other-secret."
    assert secrets.values() == {"second-secret"}
    secrets.use("c", ["first-secret"])
    secrets.use("a", ["third-secret-"])
    assert redact(text, True) == b"************ ************* other-secret."


def test_secrets_are_compiled_when_they_change_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counted(Needles):
        def __init__(self, secrets: Iterable[bytes]) -> None:
            super().__init__(secrets)
            made.append(len(self.secrets))

    monkeypatch.setattr(values, "Needles", Counted)
    secrets = Secrets(60)
    for number in range(100):
        secrets.use(number, [f"sk-real-{number:032}"])
    made.clear()
    for _ in range(10):
        assert not secrets.found(b"a line of a log")
        assert not secrets.needles().find(b"a line of a log")
    assert made == [100]
    secrets.watch(["sk-placeholder", f"sk-real-{7:032}"])
    assert secrets.found(b"sk-placeholder") == [("sk-placeholder", True)]
    assert secrets.found(f"sk-real-{7:032}".encode())[0] == (f"sk-real-{7:032}", False)
    assert made == [100, 2], "placeholders are others'"


@pytest.mark.parametrize("escape", [b"%41", b"\\u0041", b"&#65;", b"&#999;", b"%41\\u0041&#65;"])
def test_what_is_all_escapes_is_no_work_of_ours_for_each(escape: bytes) -> None:
    """A body or a line that an agent wrote: the loop is everybody's."""
    needles = Needles([b"sk-real/0123456789+abcdefXYZ%="])
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    needles.find(escape)
    sys.setprofile(count)
    try:
        assert not needles.find(escape * 10_000)
    finally:
        sys.setprofile(None)
    assert calls < 500


def test_old_values_are_so_many() -> None:
    """A token server whose tokens last seconds had 900 old ones compiled into one automaton, 1.4 s of all agents' time."""
    secrets = Secrets(3600)
    secrets.use("other", ["other-secret"])
    secrets.use("other", ["other-secret-2"])
    for number in range(1000):
        secrets.use("a", [f"token-number-{number}"])
    kept = {f"token-number-{number}" for number in range(999 - MOST_OLD, 1000)}
    assert secrets.values() == kept | {"other-secret", "other-secret-2"}, "the newest of each owner"
    secrets.use("a", [f"token-number-{999 - MOST_OLD}"])
    secrets.use("a", ["the-last-one"])
    assert f"token-number-{999 - MOST_OLD}" in secrets.values() and len(secrets.values()) == MOST_OLD + 3


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("encoding", ["", "gzip", "deflate", "raw", "members", "gzip, deflate"])
def test_bodies(size: int, encoding: str) -> None:
    text = b"you sent Bearer " + KEY.encode() + b", did you? " + KEY.encode()[:-1] + b"!"
    raw = zlib.compressobj(wbits=-15)
    data = {
        "": text,
        "gzip": gzip.compress(text),
        "deflate": zlib.compress(text),
        "raw": raw.compress(text) + raw.flush(),
        "members": gzip.compress(text[:20]) + gzip.compress(text[20:]),
        "gzip, deflate": zlib.compress(gzip.compress(text)),
    }[encoding]
    named = {"raw": "deflate", "members": "x-gzip"}.get(encoding, encoding)
    head = ResponseHead(200, "OK", Headers([("Content-Encoding", named)] if named else []))
    out = answer(credentials(), head, [data[at : at + size] for at in range(0, len(data), size)])
    assert out == text.replace(KEY.encode(), b"*" * len(KEY)) and "content-encoding" not in head.headers


def test_heads() -> None:
    plugin = credentials(rule(query="key"), rule())
    fields = [
        ("Location", f"https://evil.example/?k={KEY}&x=1"),
        ("Link", f"<https://api.example/?key={KEY[:9]}%31{KEY[10:]}>"),
        ("X-Echo", "a"),
        ("X-Echo", f"Bearer {KEY}"),
        ("X-Basic", base64.b64encode(f"user:{KEY}".encode()).decode()),
        (f"X-{KEY}", "name"),
    ]
    head = ResponseHead(302, f"no {KEY}", Headers(fields))
    answer(plugin, head, [b""])
    text = head.encode()
    assert not Needles([KEY.encode()]).find(text) and b"0123456" not in text
    assert head.headers.get_all("x-echo") == ["a", "Bearer " + "*" * len(KEY)] and "x-1=1" not in head.headers
    assert head.headers.get("location") == f"https://evil.example/?k={'*' * len(KEY)}&x=1"
    assert head.headers.get("x-" + "*" * len(KEY)) == "name" and len(head.headers) == len(fields)
    assert plugin.statistics()["echoes_masked"] == 6


def test_sessions_that_the_key_bought_are_kept_from_agents() -> None:
    for cookies, kept in ((False, []), (True, ["session=1"])):
        head = ResponseHead(200, "OK", Headers([("Set-Cookie", "session=1")]))
        answer(credentials(rule(cookies=cookies)), head, [b""])
        assert head.headers.get_all("set-cookie") == kept


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, br", "gzip, gzip, gzip, gzip"])
def test_what_cannot_be_looked_into_is_refused(encoding: str) -> None:
    with pytest.raises(Denied, match="encoding"):
        answer(credentials(), ResponseHead(200, "OK", Headers([("Content-Encoding", encoding)])), [b"x"])


def test_broken_compression() -> None:
    for data in (b"\x1f\x8bnonsense-nonsense", gzip.compress(b"a") + b"more", zlib.compress(b"a") + gzip.compress(b"b")):
        with pytest.raises(ProtocolError):
            answer(credentials(), ResponseHead(200, "OK", Headers([("Content-Encoding", "gzip")])), [data])
    with pytest.raises(ProtocolError):
        Inflate()(gzip.compress(bytes(EXPANSION + 1000)), False)
    bomb = gzip.compress(bytes(EXPANSION // 2))
    with pytest.raises(ProtocolError):
        Inflate()(bomb + bomb + bomb, False)


def test_other_routes_are_left_alone() -> None:
    head = ResponseHead(200, "OK", Headers([("Content-Encoding", "br"), ("Set-Cookie", "a")]))
    plugin = credentials()
    where = "https://api.example:8443"
    assert answer(plugin, head, [b"x"], where, ask(plugin, where=where)) == b"x" and not head.transforms
    assert head.headers.get("set-cookie") == "a"


def test_what_a_request_carried_is_masked_though_its_rule_is_gone() -> None:
    plugin = credentials()
    request = ask(plugin, {"Authorization": PLACEHOLDER})
    plugin.reconfigure(type(plugin._state.config)())()
    head = ResponseHead(200, "OK", Headers())
    assert answer(plugin, head, [f"you sent {KEY}".encode()], request=request) == b"you sent " + b"*" * len(KEY)
    head = ResponseHead(200, "OK", Headers())
    assert answer(plugin, head, [b"nothing"], request=RequestHead("GET", "/", Headers())) == b"nothing" and not head.transforms


def test_little_that_becomes_much_comes_in_parts() -> None:
    body = b"%61" * 1_000_000 + KEYS[1] + b"x"
    inflate, redact = Inflate(), Redactor(lambda: NEEDLES, lambda number: None)
    parts = list(transformed([inflate, redact], gzip.compress(body), True))
    assert b"".join(part for part, _ in parts) == body.replace(KEYS[1], b"*" * len(KEYS[1]))
    assert [end for _, end in parts] == [False] * (len(parts) - 1) + [True]
    assert max(len(part) for part, _ in parts) < 2 * PART
    plain = bytes(1_000_000)
    assert [part for part, _ in transformed([redact], plain, True)] == [plain], "what is quick is not taken apart"


@async_test
async def test_a_bomb_stops_no_other_agent() -> None:
    """15 KB from a server were 16 s of all agents' time."""
    bomb = gzip.compress(b"%61" * 100_000)
    server = FakeServer(lambda request: Response(200, {"content-encoding": "gzip"}, bomb))
    async with running(credentials(), server) as runtime, other_agents_turns() as turns:
        response = await fetch(runtime, "https://api.example/")
    assert response.body == b"%61" * 100_000 and len(turns) > 300_000 // PART


def test_an_agent_without_a_rule_does_not_see_the_secret_of_others() -> None:
    """A server that logs what it is sent may show it to whoever asks; only some agents' requests carry it."""
    plugin = credentials(rule(labels={"team": "red"}))
    request = ask(plugin, {"Accept-Encoding": "br"}, agent=Agent("b", "b", {"team": "blue"}))
    assert request.headers.get("accept-encoding") == "identity" and "authorization" not in request.headers
    head = ResponseHead(200, KEY, Headers([("Set-Cookie", "kept")]))
    assert answer(plugin, head, [b"last: Bearer " + KEY.encode()], request=request) == b"last: Bearer " + b"*" * len(KEY)
    assert KEY not in head.reason and head.headers.get("set-cookie") == "kept"
