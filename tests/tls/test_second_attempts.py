"""A request is sent twice only where that can do no harm, and answers that say "later" pass as they are.

Over the real relay and pool. The server answers the first request of each connection and gives the connection up on a later one,
at a moment of its choice: as idle time-outs do that cross a request on its way.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agentfw.errors import Denied, UpstreamError
from agentfw.testing import make_agent
from agentfw.upstream import TlsRequest

from .hostile import Client, Line, answer, hostile
from .support import ALICE, BOB, HOST, bench, echo, run, serve


class Quits:
    """Reads a whole request on a connection used before, says `says`, and hangs up."""

    def __init__(self, says: bytes = b"") -> None:
        self.says = says
        self.seen: list[bytes] = []

    async def __call__(self, line: Line, request: bytes) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        lower = head.lower()
        if b"content-length: " in lower:
            length = int(lower.split(b"content-length: ")[1].split(b"\r\n")[0])
            while len(body) < length and (piece := await line.read()):
                body += piece
        elif b"chunked" in lower:
            while not body.endswith(b"0\r\n\r\n") and (piece := await line.read()):
                body += piece
        self.seen.append(head + b"\r\n\r\n" + body)
        if len(line.requests) > 1:
            await line.write(self.says)
            line.cut()
        else:
            await line.write(answer(b"done"))


def head(method: str, port: int, *more: str) -> bytes:
    return "\r\n".join([f"{method} /do HTTP/1.1", f"Host: {HOST}:{port}", *more, "", ""]).encode()


async def attempt(
    tmp_path: Path, says: bytes, method: str, pieces: list[bytes], *fields: str, warm: bool = True, **config: Any
) -> tuple[str, Quits, int, int]:
    """(outcome, what the server saw of the request, handshakes, second attempts counted)"""
    quits = Quits(says)
    async with hostile(quits, tmp_path, **config) as stage:
        b = stage.bench
        client = Client(b, ALICE)
        assert (await client.open())["ok"]
        if warm:
            await client.good("first")
        await client.flow.guest_send(head(method, b.port, *fields))
        for piece in pieces:
            await asyncio.sleep(0.01)
            await client.flow.guest_send(piece)
        got, body = await client.judge(method)
        assert got != "200" or body == (b"" if method == "HEAD" else b"done")
        await client.close()
        return got, quits, int(b.handshakes), int(b.retry)


POST = {"retry_post": (HOST,)}
BODY = [b"a" * 1000, b"b" * 70000, b"c"]
LENGTH = f"Content-Length: {sum(map(len, BODY))}"
CHUNKS = [b"3e8\r\n" + BODY[0] + b"\r\n", b"11170\r\n" + BODY[1] + b"\r\n", b"1\r\nc\r\n0\r\n\r\n"]


@pytest.mark.parametrize(
    ("method", "config", "fields", "pieces", "tries"),
    [
        ("GET", {}, [], [], 2),
        ("HEAD", {}, [], [], 2),
        ("OPTIONS", {}, [], [], 2),
        ("DELETE", POST, [], [], 1),
        ("PUT", POST, ["Content-Length: 1"], [b"x"], 1),
        ("PATCH", POST, ["Content-Length: 1"], [b"x"], 1),
        ("POST", {}, ["Content-Length: 0"], [], 1),
        ("POST", {}, [LENGTH], BODY, 1),
        ("POST", POST, [LENGTH], BODY, 2),
        ("POST", POST, [LENGTH], [b"".join(BODY)], 2),
        ("POST", POST, ["Transfer-Encoding: chunked"], CHUNKS, 2),
        ("POST", POST, ["Content-Length: 2000000"], [b"x" * 2_000_000], 1),
        ("POST", {"retry_post": ("other.test",)}, [LENGTH], BODY, 1),
        ("POST", {**POST, "max_retries": 0}, [LENGTH], BODY, 1),
        ("GET", {"max_retries": 0}, [], [], 1),
    ],
)
def test_what_is_sent_again(
    tmp_path: Path, method: str, config: dict[str, Any], fields: list[str], pieces: list[bytes], tries: int
) -> None:
    async def main() -> None:
        got, quits, handshakes, retried = await attempt(tmp_path, b"", method, pieces, *fields, **config)
        assert (got, len(quits.seen), handshakes, retried) == ("200" if tries == 2 else "502", tries, tries, tries - 1)
        if tries == 2 and pieces:
            first, second = (each.partition(b"\r\n\r\n") for each in quits.seen)
            assert first[0] == second[0]
            whole = b"".join(BODY)
            for _, _, body in (first, second):
                assert body == whole or (b"Transfer-Encoding" in first[0] and unchunked(body) == whole)

    run(main)


def unchunked(data: bytes) -> bytes:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        if not int(size, 16):
            assert data == b"\r\n"
            return body
        body += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]


@pytest.mark.parametrize(
    "says", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\n\r\nHTTP"]
)
def test_after_one_byte_of_an_answer_never(tmp_path: Path, says: bytes) -> None:
    async def main() -> None:
        for method, fields, pieces in (("GET", [], []), ("POST", [LENGTH], BODY)):
            got, quits, handshakes, retried = await attempt(tmp_path, says, method, pieces, *fields, **POST)
            assert (got, len(quits.seen), handshakes, retried) == ("502", 1, 1, 0)

    run(main)


def test_on_a_new_connection_never(tmp_path: Path) -> None:
    """It was not idle time that closed it: the server has a trouble with the request."""

    async def main() -> None:
        class Always(Quits):
            async def __call__(self, line: Line, request: bytes) -> None:
                line.requests.append(b"")
                await super().__call__(line, request)

        quits = Always()
        async with hostile(quits, tmp_path, **POST) as stage:
            client = Client(stage.bench, ALICE)
            assert (await client.open())["ok"]
            await client.send("/do")
            assert (await client.judge())[0] == "502"
            assert len(quits.seen) == 1
            await client.close()

    run(main)


def test_twice_at_most(tmp_path: Path) -> None:
    async def main() -> None:
        quits = Quits()
        async with hostile(quits, tmp_path) as stage:
            b = stage.bench
            clients = [Client(b, ALICE) for _ in range(3)]
            for number, client in enumerate(clients):
                assert (await client.open())["ok"]
                await client.send(f"/slow/{number}")
                await asyncio.sleep(0.02)
            stage.server.go.set()
            for client in clients:
                assert (await client.judge())[0] == "200"
            assert b.held == 3  # each of them will be given up at the next request
            await clients[0].send("/do")
            assert (await clients[0].judge())[0] == "502"
            assert len(quits.seen) == 2
            for client in clients:
                await client.close()

    run(main)


LATER = {
    "retry-after": "7", "retry-after-ms": "1500", "x-should-retry": "false",
    "anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "0",
    "anthropic-ratelimit-requests-reset": "2026-01-01T00:00:00Z", "anthropic-ratelimit-tokens-remaining": "9",
    "anthropic-ratelimit-input-tokens-remaining": "3", "anthropic-ratelimit-output-tokens-reset": "2026-01-01T00:00:10Z",
    "x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-tokens": "6m0s",
    "request-id": "req_1", "x-request-id": "req_2", "openai-processing-ms": "12",
}  # fmt: skip


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_answers_that_say_later_pass_unchanged_and_are_not_tried_again(tmp_path: Path, status: int) -> None:
    """SDKs decide by them when they try again; here nobody does (rule 11)."""

    async def main() -> None:
        seen = 0
        body = b'{"error": {"type": "rate_limit_error"}}'
        fields = "".join(f"{name}: {value}\r\n" for name, value in LATER.items())

        async def later(line: Line, request: bytes) -> None:
            nonlocal seen
            seen += 1
            await line.write(f"HTTP/1.1 {status} Later\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body)

        async with hostile(later, tmp_path, **POST) as stage:
            client = Client(stage.bench, ALICE)
            assert (await client.open())["ok"]
            await client.good("first")
            await client.flow.guest_send(head("POST", stage.bench.port, "Content-Length: 1") + b"x")
            got = (await client.flow.guest_read_until(b"\r\n\r\n")).decode()
            assert got.startswith(f"HTTP/1.1 {status} Later\r\n")
            for name, value in LATER.items():
                assert f"\r\n{name}: {value}\r\n" in got
            assert await client.flow.guest_receive() == body
            assert seen == 1
            await client.good("after")  # the connection is as good as before
            assert stage.bench.handshakes == 1
            await client.close()

    run(main)


def test_a_full_queue_is_503_with_retry_after(tmp_path: Path) -> None:
    async def main() -> None:
        async def never(line: Line, request: bytes) -> None:
            raise AssertionError

        async with hostile(never, tmp_path, max_connections=1, max_pending=1) as stage:
            clients = [Client(stage.bench, ALICE) for _ in range(3)]
            for client in clients:
                assert (await client.open())["ok"]
            for number, client in enumerate(clients):
                await client.send(f"/slow/{number}")
                await asyncio.sleep(0.02)
            got = (await clients[2].flow.guest_read_until(b"\r\n\r\n")).decode()
            assert got.startswith("HTTP/1.1 503 ")
            assert 1 <= int(got.split("Retry-After: ")[1].split("\r\n")[0]) <= 30
            document = await clients[2].flow.guest_receive()
            assert b"agentfw_upstream_failed" in document and b"too many requests wait" in document
            stage.server.go.set()
            for number, client in enumerate(clients[:2]):
                assert await client.judge() == ("200", str(number).encode())
            await clients[2].good("later")  # on the flow that was told to come back
            for client in clients:
                await client.close()

    run(main)


def test_where_all_connections_are_busy_new_flows_get_their_tls_and_503(tmp_path: Path) -> None:
    """SDKs understand a 503 that says when to come back better than a handshake that cannot be had. What the peer is, is known
    from a connection that is open."""

    async def main() -> None:
        async def never(line: Line, request: bytes) -> None:
            raise AssertionError

        async with hostile(never, tmp_path, max_connections=1, max_pending=1) as stage:
            first, second, third = (Client(stage.bench, ALICE) for _ in range(3))
            assert (await first.open())["ok"]
            await first.send("/slow/1")
            await asyncio.sleep(0.05)
            assert (await second.open())["ok"]
            await second.send("/slow/2")
            await asyncio.sleep(0.05)
            assert stage.bench.waiting == 1
            told = await third.open()
            assert told["ok"] and told["cert"]
            await third.send("/good/3")
            assert (await third.judge())[0] == "503"
            stage.server.go.set()
            assert await first.judge() == ("200", b"1")
            assert await second.judge() == ("200", b"2")
            await third.good("later")
            assert stage.bench.handshakes == 1
            for client in (first, second, third):
                await client.close()

    run(main)


def test_what_is_known_is_told_to_those_only_who_may_have_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            probe = TlsRequest(HOST, ("http/1.1",), probe=True)
            upstream = await b.lease(ALICE)
            known = await b.lease(BOB, probe)
            assert known.tls == upstream.tls and known.tls and known.address == "127.0.0.1"
            for attempt in (known.send(b"x"), known.receive(), known.send_eof()):
                with pytest.raises(UpstreamError, match="only asked about"):
                    await attempt
            known.release(reusable=True)
            assert (b.handshakes, b.leased, b.held) == (1, 1, 0)
            b.loopback.denied = {("bob", "127.0.0.1")}
            with pytest.raises(Denied):
                await b.lease(BOB, probe)
            other = await b.lease(make_agent("red", tenant="red"), probe)  # never knows what others do
            assert b.handshakes == 2
            other.release(reusable=True)
            upstream.release()
            assert b.leased == 0

    run(main)
