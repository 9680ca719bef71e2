"""Secrets that come back in responses are masked, whatever the pieces they come in."""

from __future__ import annotations

import gzip
import itertools
import re
import zlib

import pytest
from agentfw import Denied, Destination, Headers, RequestHead, ResponseHead
from agentfw.errors import ProtocolError
from agentfw.testing import make_agent
from agentfw_credentials import Config, Plugin, RuleConfig
from agentfw_credentials.redact import EXPANSION, Inflate, Redactor
from hypothesis import given
from hypothesis import strategies as st

from .support import Loopback, Names, Recorder, TlsOnce, async_test, guest, lookup, offload, read_response, running, serving

KEY = "sk-real-0123456789"
AGENT = make_agent()


def plugin(port: int = 443) -> Plugin:
    return Plugin(Config(rule=(RuleConfig(f"api.example:{port}", "authorization", "Bearer ${env:KEY}"),)), {"KEY": KEY})


def response(head: ResponseHead, body: list[bytes], port: int = 443) -> bytes:
    where = Destination.make("https", "api.example", port)
    plugin().response(AGENT, where, RequestHead("GET", "/", Headers()), head)
    out = b""
    for number, piece in enumerate(body):
        for transform in head.transforms:
            piece = transform(piece, number == len(body) - 1)
        out += piece
    return out


@given(
    st.lists(st.sampled_from([b"ab", b"aba", b"b", b"a", b"xy", b"ababab"]), max_size=30),
    st.lists(st.integers(0, 60), max_size=8),
    st.lists(st.sampled_from([b"abab", b"ab", b"aab", b"xyab", b"bbbb"]), min_size=1, max_size=4, unique=True),
)
def test_pieces_make_no_difference(parts: list[bytes], cuts: list[int], values: list[bytes]) -> None:
    whole = b"".join(parts)
    ordered = tuple(sorted(values, key=len, reverse=True))
    pattern = re.compile(b"|".join(map(re.escape, ordered)))
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    counted: list[int] = []
    redact = Redactor(pattern, ordered, counted.append)
    out = b"".join(redact(whole[a:b], False) for a, b in itertools.pairwise(edges)) + redact(b"", True)
    assert len(out) == len(whole)
    assert not pattern.search(out)
    assert out == pattern.sub(lambda match: b"*" * len(match[0]), whole)
    assert sum(counted) == len(pattern.findall(whole))


def test_nothing_is_held_that_cannot_be_a_secret() -> None:
    redact = Redactor(re.compile(KEY.encode()), (KEY.encode(),), lambda number: None)
    assert redact(b"data: {}\n\n", False) == b"data: {}\n\n", "a stream's events pass at once"
    assert redact(b"data: sk-re", False) == b"data: "
    assert redact(b"st\n\n", False) == b"sk-rest\n\n"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("encoding", ["", "gzip", "deflate", "raw"])
def test_bodies(size: int, encoding: str) -> None:
    text = b"you sent Bearer " + KEY.encode() + b", did you? " + KEY.encode()[:-1] + b"!"
    raw = zlib.compressobj(wbits=-15)
    data = {"": text, "gzip": gzip.compress(text), "deflate": zlib.compress(text), "raw": raw.compress(text) + raw.flush()}[
        encoding
    ]
    headers = Headers([("Content-Encoding", "deflate" if encoding == "raw" else encoding)] if encoding else [])
    head = ResponseHead(200, "OK", headers)
    out = response(head, [data[at : at + size] for at in range(0, len(data), size)])
    assert out == text.replace(KEY.encode(), b"*" * len(KEY)) and "content-encoding" not in head.headers


def test_heads() -> None:
    head = ResponseHead(
        302, f"no {KEY}", Headers([("Location", f"https://evil.example/?k={KEY}"), ("X-Echo", "a"), ("X-Echo", f"Bearer {KEY}")])
    )
    response(head, [b""])
    assert KEY not in head.encode().decode() and head.headers.get_all("x-echo") == ["a", "Bearer " + "*" * len(KEY)]


def test_what_cannot_be_looked_into_is_refused() -> None:
    with pytest.raises(Denied):
        response(ResponseHead(200, "OK", Headers([("Content-Encoding", "br")])), [b"x"])
    with pytest.raises(ProtocolError):
        response(ResponseHead(200, "OK", Headers([("Content-Encoding", "gzip")])), [b"\x1f\x8bnonsense-nonsense"])
    with pytest.raises(ProtocolError):
        Inflate()(gzip.compress(bytes(EXPANSION + 1000)), False)


def test_other_routes_are_left_alone() -> None:
    head = ResponseHead(200, "OK", Headers([("Content-Encoding", "br")]))
    assert response(head, [b"x"], port=8443) == b"x" and not head.transforms


@async_test
async def test_an_echo_through_the_relay() -> None:
    echo = (
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Key: %s\r\n\r\n" % (len(KEY) + 2, KEY.encode()) + b"<" + KEY.encode() + b">"
    )
    server = Recorder(echo)
    async with serving(server, "api.example") as port:
        names = Names(**{"api.example": "127.0.0.1"})
        async with running(names, Loopback(), TlsOnce(), plugin(port)) as runtime:
            await lookup(runtime, "api.example")
            async with guest(runtime, "127.0.0.1", port) as flow:
                await offload(flow, "api.example")
                await flow.guest_send(
                    b"GET / HTTP/1.1\r\nHost: api.example\r\nAuthorization: Bearer sk-agentfw-placeholder\r\n\r\n"
                )
                status, fields, body = await read_response(flow)
    assert KEY.encode() in server.requests[0]
    assert fields["content-length"] == str(len(KEY) + 2)
    assert (status, body, fields["x-key"]) == (200, b"<" + b"*" * len(KEY) + b">", "*" * len(KEY))
