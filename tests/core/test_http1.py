"""HTTP/1 heads and bodies, with h11 as the oracle: what we accept, it accepts and reads the same."""

from __future__ import annotations

import contextlib

import h11
import pytest
from agentfw.errors import ProtocolError
from agentfw.http1 import (
    BodyReader,
    Framing,
    Headers,
    RequestHead,
    ResponseHead,
    find_head_end,
    parse_request,
    parse_response,
    request_framing,
    response_framing,
)
from hypothesis import example, given
from hypothesis import strategies as st

PIECES = [b"GET", b"POST", b"HEAD", b" ", b"  ", b"\t", b"/", b"/a?b=c", b"*", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.2", b"\r\n",
          b"\n", b"\r", b"\r\n\r\n", b"Host", b"host", b":", b": ",
          b"a.example", b"Content-Length", b"Transfer-Encoding", b"chunked", b"gzip, chunked", b"0", b"5", b"05", b"+5",
          b"5, 5", b"Connection", b"close", b"X", b"\0", b"\x7f",
          b"\xff", b",", b";", b"0\r\n\r\n", b"5\r\nhello\r\n", b"hello"]  # fmt: skip
LINES = [b"Host: a.example", b"Host: b.example", b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: 05",
          b"Content-Length: 5, 5", b"Transfer-Encoding: chunked", b"X: y",
         b"Transfer-Encoding: gzip", b"X : y", b" folded", b"X:", b": y", b"X: \x01", b"Connection: close",
         b"TRANSFER-ENCODING: Chunked", b"content-length:5"]  # fmt: skip
BODIES = [
    b"",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"0\r\n\r\n",
    b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n",
    b"5\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"6\r\nhello\r\n0\r\n\r\n",
]

soup = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)
requests = st.builds(
    lambda line, lines, body: b"\r\n".join([line, *lines, b"", b""]) + body,
    st.sampled_from([b"GET / HTTP/1.1", b"POST /x HTTP/1.1", b"POST / HTTP/1.0", b"GET  / HTTP/1.1", b"GET / HTTP/2.0"]),
    st.lists(st.sampled_from(LINES), max_size=5),
    st.sampled_from(BODIES),
)


def ours(data: bytes) -> tuple[RequestHead, bytes, bool, bytes] | None:
    """(head, body, complete, leftover), or None if refused or incomplete."""
    try:
        end = find_head_end(data)
        if end < 0:
            return None
        head = parse_request(data[:end])
        reader = BodyReader(request_framing(head))
        body = reader.feed(data[end:])
        return head, body, reader.done, reader.leftover
    except ProtocolError:
        return None


def theirs(data: bytes) -> tuple[h11.Request, bytes, bool, bytes] | None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=100000)
    connection.receive_data(data)
    body = b""
    request = None
    with contextlib.suppress(h11.RemoteProtocolError):
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                return request, body, True, bytes(connection.trailing_data[0])
            else:
                break
    return (request, body, False, b"") if request is not None else None


@given(requests | soup)
@example(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n\r\n")
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\nrest")
def test_what_we_accept_h11_reads_the_same(data: bytes) -> None:
    mine = ours(data)
    if mine is None:
        return
    head, body, complete, leftover = mine
    other = theirs(data)
    hosts = len(head.headers.get_all("host"))
    if hosts > 1 or (head.version == "1.1" and not hosts):
        return  # the relay refuses these, h11 too
    assert other is not None, "we accept what h11 refuses"
    request, their_body, their_complete, their_leftover = other
    assert (head.method.encode(), head.target.encode()) == (request.method, request.target)
    mine_fields = [(n.lower(), v.lower() if n.lower() == "transfer-encoding" else v) for n, v in head.headers]  # h11 lowers that
    assert mine_fields == [(n.decode(), v.decode("latin-1")) for n, v in request.headers]
    if complete:
        assert (their_complete, their_body, their_leftover) == (True, body, leftover)


@given(requests | soup, st.integers(1, 7))
def test_pieces_make_no_difference(data: bytes, size: int) -> None:
    whole = ours(data)
    if whole is None:
        return
    head, body, done, leftover = whole
    end = find_head_end(data)
    for at in range(1, end):
        assert find_head_end(data[:at]) == -1, "a good head must not be refused while it comes"
    reader = BodyReader(request_framing(head))
    pieces = [reader.feed(data[at : at + size]) for at in range(end, len(data), size)]
    assert (b"".join(pieces), reader.done, reader.leftover) == (body, done, leftover)


@given(requests)
def test_what_is_written_reads_back(data: bytes) -> None:
    mine = ours(data)
    if mine is not None:
        again = parse_request(mine[0].encode())
        assert (again.method, again.target, again.headers) == (mine[0].method, mine[0].target, mine[0].headers)


@given(st.text(max_size=20), st.text(max_size=20))
def test_headers_cannot_be_split(name: str, value: str) -> None:
    headers = Headers()
    try:
        headers.add(name, value)
    except ValueError:
        return
    data = RequestHead("GET", "/", headers).encode()
    assert find_head_end(data) == len(data)
    assert list(parse_request(data).headers) == [(name, value.strip(" \t"))]


def test_headers() -> None:
    headers = Headers([("A", "1"), ("B", "2"), ("a", "3"), ("Authorization", "Bearer secret")])
    assert headers.get("a") == "1" and headers.get_all("A") == ["1", "3"] and "b" in headers and "c" not in headers
    assert headers.among(frozenset({"a", "c"})) == [("a", "1"), ("a", "3")]
    assert headers.picked({"a": "", "b": 1, "authorization": 0}) == [("b", "2")]
    headers.set("A", "4")
    assert list(headers)[:2] == [("A", "4"), ("B", "2")] and len(headers) == 3
    assert "secret" not in repr(headers) and "secret" not in repr(RequestHead("GET", "/?key=secret", headers)) + repr(
        ResponseHead(200, "", headers)
    )
    with pytest.raises(ValueError) as caught:
        headers.set("X", "secret\r\nY: z")
    assert "secret" not in str(caught.value)
    for bad in ("a\nb", "a\0b", "a\r", "\u0100"):
        with pytest.raises(ValueError):
            headers.set("X", bad)
    connection = Headers(
        [("Connection", "close, X-Mine"), ("x-mine", "1"), ("Keep-Alive", "5"), ("Proxy-Authorization", "x"), ("Z", "2")]
    )
    connection.strip_hop_by_hop()
    assert list(connection) == [("Z", "2")]


@given(st.lists(st.tuples(st.sampled_from("aAbBc"), st.sampled_from("12")), max_size=8), st.sampled_from("abC"))
def test_one_that_is_set_stands_where_the_first_was(fields: list[tuple[str, str]], name: str) -> None:
    headers = Headers(fields)
    headers.set(name, "new")
    others = [field for field in fields if field[0].lower() != name.lower()]
    places = [at for at, field in enumerate(fields) if field[0].lower() == name.lower()]
    others.insert(places[0] if places else len(others), (name, "new"))
    assert list(headers) == others


def test_hooks_cannot_smuggle_through_the_first_line() -> None:
    for head in (
        RequestHead("GET /", "/", Headers()),
        RequestHead("GET", "/ HTTP/1.1\r\nX: y", Headers()),
        RequestHead("GET", "", Headers()),
    ):
        with pytest.raises(ValueError):
            head.encode()
    for response in (
        ResponseHead(200, "OK\r\nX: y", Headers()),
        ResponseHead(1000, "", Headers()),
        ResponseHead(200, "\u0100", Headers()),
    ):
        with pytest.raises(ValueError):
            response.encode()


def test_response_framing() -> None:
    def framing(text: bytes, method: str = "GET") -> Framing:
        return response_framing(parse_response(text), method)

    assert framing(b"HTTP/1.1 200\r\n\r\n") == Framing(False, None)
    assert framing(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").empty
    assert framing(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", "HEAD").empty
    assert framing(b"HTTP/1.1 304 OK\r\nTransfer-Encoding: chunked\r\n\r\n").empty
    assert framing(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n").chunked


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"bc"]), max_size=12).map(b"".join), st.data())
def test_a_head_ends_at_the_same_place_however_it_comes(data: bytes, pick: st.DataObject) -> None:
    """With `seen`, as without."""

    def found(piece: bytes, seen: int) -> int | str:
        try:
            return find_head_end(piece, 20, seen)
        except ProtocolError as error:
            return str(error)

    seen = 0
    for at in [*sorted(pick.draw(st.sets(st.integers(0, len(data)), max_size=6))), len(data)]:
        now = found(data[:at], seen)
        assert now == found(data[:at], 0)
        if now != -1:
            break
        seen = at


def test_a_cut_body_is_noticed() -> None:
    for framing, data in ((Framing(False, 3), b"ab"), (Framing(True, None), b"2\r\nab\r\n")):
        reader = BodyReader(framing)
        reader.feed(data)
        with pytest.raises(ProtocolError):
            reader.end()
    reader = BodyReader(Framing(False, None))
    assert reader.feed(b"ab") == b"ab"
    reader.end()
    assert reader.done


def test_long_heads_cost_linear_time() -> None:
    line = b"X: " + b" " * 60000 + b"y"
    head = b"GET / HTTP/1.1\r\n" + line + b"\r\n\r\n"
    assert parse_request(head[: find_head_end(head)]).headers.get("x") == "y"
