"""Leases over real TLS: what is told, held, lent again and let go."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import Any

import agentfw_tls_pool.pool
import pytest
from agentfw.destination import Destination
from agentfw.errors import ConnectError, UpstreamError
from agentfw.mock_llm import MockLLM, MockOptions
from agentfw.testing import make_agent
from agentfw.upstream import Replayable, TlsRequest
from agentfw_tls_pool.connection import Connection

from .support import (
    ALICE,
    BOB,
    HOST,
    bench,
    chat,
    echo,
    eventually,
    exchange,
    run,
    serve,
    serve_blocking,
)


@pytest.mark.parametrize("uvloop", [False, True])
def test_a_connection_serves_agents_one_after_the_other(tmp_path: Path, uvloop: bool) -> None:
    async def main() -> None:
        async with MockLLM() as server, bench(server.port, server.ca_pem, tmp_path) as b:
            for number, agent in enumerate([ALICE, BOB, ALICE]):
                upstream = await b.lease(agent)
                assert upstream.reused == (number > 0)
                assert upstream.address == "127.0.0.1"
                assert upstream.destination == Destination("https", HOST, server.port)
                status, document = await chat(upstream, f"n{number}")
                assert (status, document["choices"][0]["message"]["content"]) == (200, f"echo: n{number}")
                upstream.release(reusable=True)
                upstream.release()
            assert server.stats()["handshakes"] == server.stats()["connections"] == 1
            assert server.stats()["server_names"] == {HOST: 1}
            assert (b.handshakes, b.reused, b.held, b.leased) == (1, 2, 1, 0)
        await asyncio.sleep(0)

    if uvloop:
        pytest.importorskip("uvloop").run(main())
    else:
        asyncio.run(main())


def test_what_was_negotiated_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with MockLLM() as server, bench(server.port, server.ca_pem, tmp_path) as b:
            info = (await b.lease()).tls
            assert info and info.verified
            assert info.version == "TLSv1.3"
            assert info.alpn == "http/1.1"
            name, protocol, bits = info.cipher
            assert (name[:4], protocol, bits >= 128) == ("TLS_", "TLSv1.3", True)
            pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", server.port))
            assert info.certificate == ssl.PEM_cert_to_DER_cert(pem)
            older = (await b.lease(tls=TlsRequest(HOST, ("h2",), maximum=0x0303))).tls
            assert older and (older.version, older.alpn, older.cipher[1]) == ("TLSv1.2", "http/1.1", "TLSv1.2")
            bare = (await b.lease(tls=TlsRequest(HOST, ("imap",)))).tls
            assert bare and bare.alpn is None
            address = (await b.lease(tls=TlsRequest(None), host="127.0.0.1")).tls
            assert address and address.verified

    run(main)


def test_without_tls_it_is_somebody_else_s(tmp_path: Path) -> None:
    async def main() -> None:
        async with MockLLM() as server, bench(server.port, server.ca_pem, tmp_path) as b:
            assert b.plugin.connect(ALICE, Destination.make("http", HOST), None) is None

    run(main)


def test_sessions_are_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with MockLLM() as server, bench(server.port, server.ca_pem, tmp_path) as b:
            for maximum in (0, 0x0303):
                for _ in range(2):
                    upstream = await b.lease(tls=TlsRequest(HOST, ("http/1.1",), maximum=maximum))
                    assert upstream.tls and upstream.tls.verified and upstream.tls.certificate
                    await chat(upstream, "x", max_tokens=1)
                    upstream.release(reusable=True)
                    for group in b.plugin.pool.groups.values():  # type: ignore[union-attr]
                        b.plugin.pool._empty(group)  # type: ignore[union-attr]
            assert b.resumed == server.stats()["resumed"] == 2
            assert b.handshakes == 4

    run(main)


def test_preconnected(tmp_path: Path) -> None:
    async def main() -> None:
        async with MockLLM() as server:
            target = f"{HOST}:{server.port}"
            async with bench(server.port, server.ca_pem, tmp_path, preconnect=(target,), preconnect_count=3) as b:
                await eventually(lambda: b.held == 3)
                upstream = await b.lease()
                await chat(upstream, "x")
                upstream.release(reusable=True)
                assert server.stats()["handshakes"] == 3
                for connection in list(server._connections)[:2]:
                    connection.abort()
                await eventually(lambda: b.handshakes == 5 and b.held == 3)

    run(main)


def test_closing_the_pool_ends_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, max_connections=1) as b:
            upstream = await b.lease()
            reading = asyncio.ensure_future(upstream.receive())
            waiting = asyncio.ensure_future(b.lease(BOB))
            await asyncio.sleep(0.01)
            await b.runtime.stop()
            for task in (reading, waiting):
                with pytest.raises(UpstreamError):
                    await task
            upstream.release(reusable=True)
            with pytest.raises(UpstreamError):
                await b.lease()

    run(main)


def test_released_means_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            await exchange(upstream, b"x")
            upstream.release(reusable=True)
            for attempt in (upstream.send(b"x"), upstream.receive(), upstream.send_eof()):
                with pytest.raises(UpstreamError, match="released"):
                    await attempt
            upstream.release()
            assert b.held == 1
            reader = await b.lease()
            waiting = asyncio.ensure_future(reader.receive())
            await asyncio.sleep(0)
            reader.release(reusable=True)  # with a reader on it
            with pytest.raises(UpstreamError, match="released"):
                await waiting
            assert b.held == b.leased == 0

    run(main)


def test_not_reusable_unless_said_and_after_eof_never(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            await exchange(upstream, b"x")
            upstream.release()
            assert b.held == 0

        def last(tls: ssl.SSLSocket) -> None:
            line = tls.recv(100)
            assert tls.recv(100) == b""
            tls.sendall(line)
            tls.unwrap()

        async with serve_blocking(last) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            await upstream.send(b"last\n")
            await upstream.send_eof()
            assert await upstream.receive() == b"last\n"
            assert await upstream.receive() == b""
            upstream.release(reusable=True)
            assert b.held == 0

    run(main)


def test_worn_connections_are_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, max_requests_per_connection=2) as b:
            pool = b.plugin.pool
            assert pool
            for _ in range(4):
                upstream = await b.lease()
                await exchange(upstream, b"x")
                upstream.release(reusable=True)
            assert (b.handshakes, b.retired_requests, b.held) == (2, 2, 0)
            upstream = await b.lease()
            upstream.release(reusable=True)
            connection = next(iter(pool.groups.values())).idle[0]
            connection.idle_since -= 46
            upstream = await b.lease()
            assert (b.retired_idle, b.handshakes) == (1, 4)
            upstream._connection.opened_at -= 901  # type: ignore[attr-defined]
            upstream.release(reusable=True)
            assert (b.retired_age, b.held) == (1, 0)
            upstream = await b.lease()
            upstream.release(reusable=True)
            next(iter(pool.groups.values())).idle[0].idle_since -= 46
            pool.sweep()
            assert (b.retired_idle, b.held) == (2, 0)

    run(main)


def test_long_leases_do_not_count_as_idle(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            (await b.lease()).release(reusable=True)
            assert b.plugin.pool
            next(iter(b.plugin.pool.groups.values())).idle[0].idle_since -= 40  # of 45 s
            upstream = await b.lease()
            connection = upstream._connection  # type: ignore[attr-defined]
            connection.idle_since = connection.idle_since and connection.idle_since - 40  # if it counts still, it has been 80 s
            upstream.release(reusable=True)
            assert (b.held, b.retired_idle) == (1, 0)

    run(main)


def test_idle_connections_of_one_agent_are_bounded_over_all_destinations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentfw_tls_pool.pool, "AGENT_IDLE", 2)
    hosts = (HOST, "api.anthropic.com", "other.test")

    async def main() -> None:
        async with serve(echo, names=hosts) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, shared=()) as b:
            for agent in (ALICE, BOB):
                for host in hosts:
                    request = TlsRequest(host, ("http/1.1",))
                    (await b.lease(agent, request, host)).release(reusable=True)
            assert (b.held, b.retired_idle) == (4, 2)
            (await b.lease(ALICE, TlsRequest(hosts[2], ("http/1.1",)), hosts[2])).release(reusable=True)  # the newest stayed
            assert (b.handshakes, b.held) == (6, 4)

    run(main)


def test_cancelled_waiters_leave_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, max_connections=1) as b:
            waiting = asyncio.ensure_future(b.lease())
            await asyncio.sleep(0)
            waiting.cancel()
            await eventually(lambda: b.held == 1)  # what was begun for it is there for the next
            upstream = await b.lease()
            cancelled = asyncio.ensure_future(b.lease(BOB))
            kept = asyncio.ensure_future(b.lease(make_agent("carol")))
            await asyncio.sleep(0.01)
            upstream.release(reusable=True)  # given to BOB, who is cancelled before it runs
            cancelled.cancel()
            (await kept).release(reusable=True)
            reading = await b.lease()
            task = asyncio.ensure_future(reading.receive())
            await asyncio.sleep(0.01)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            reading.release()
            assert (b.leased, b.held, b.waiting, peer.connections) == (0, 0, 0, 1)
            assert not b.plugin.pool._held_by  # type: ignore[union-attr]

    run(main)


def test_when_the_peer_takes_no_more_the_others_are_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        full = False

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await echo(reader, writer)

        async with serve(handler) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            first = await b.lease()
            b.loopback.denied = set()
            original = b.plugin._open

            async def refused(*args: Any) -> Connection:
                if full:
                    raise ConnectionRefusedError(111, "refused")
                return await original(*args)

            b.plugin.pool._open_connection = refused  # type: ignore[union-attr]
            full = True
            waiting = [asyncio.ensure_future(b.lease(make_agent(f"a{i}"))) for i in range(5)]
            await asyncio.sleep(0.05)
            assert b.waiting == 5
            assert b.failed > 0
            first.release(reusable=True)
            for each in waiting:
                (await each).release(reusable=True)
            assert peer.connections == 1

    run(main)


def test_nobody_listens(tmp_path: Path) -> None:
    async def main() -> None:
        async with MockLLM() as server:
            port = server.port
        async with bench(port, server.ca_pem, tmp_path) as b:
            results = await asyncio.gather(*(b.lease(make_agent(f"a{i}")) for i in range(50)), return_exceptions=True)
            assert all(isinstance(result, ConnectError) for result in results)
            assert b.waiting == b.opening == 0

    run(main)


def test_sessions_are_never_resumed_across_keys(tmp_path: Path) -> None:
    """Another agent (where it does not share), tenant, version or authority begins anew, though the server offers tickets."""

    async def main() -> None:
        async with MockLLM(MockOptions(names=("api.anthropic.com",))) as server, bench(server.port, server.ca_pem, tmp_path) as b:
            pool = b.plugin.pool
            assert pool
            red, blue = make_agent("red", tenant="red"), make_agent("blue", tenant="blue")
            uses = [
                (ALICE, HOST, 0), (red, HOST, 0), (blue, HOST, 0), (ALICE, HOST, 0x0303),
                (ALICE, "api.anthropic.com", 0), (BOB, "api.anthropic.com", 0), (ALICE, "127.0.0.1", 0),
            ]  # fmt: skip
            for round_ in range(2):
                for agent, host, maximum in uses:
                    request = TlsRequest(None if host[0].isdigit() else host, ("http/1.1",), maximum=maximum)
                    upstream = await b.lease(agent, request, host)
                    await chat(upstream, "x", max_tokens=1)
                    upstream.release(reusable=True)
                for group in pool.groups.values():
                    pool._empty(group)
                assert b.resumed == server.stats()["resumed"] == round_ * len(uses)
            assert b.handshakes == 2 * len(uses)

    run(main)


def test_second_attempts_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, max_retries=2) as b:
            agents = [make_agent(f"a{i}") for i in range(3)]
            leases = [await b.lease(agent) for agent in agents]
            for upstream in leases:
                assert isinstance(upstream, Replayable)
            assert [upstream.claim_retry() for upstream in leases] == [True, True, False]  # type: ignore[attr-defined]
            assert (b.retry, b.retry_overflow) == (2, 1)
            for upstream in leases:
                upstream.release()
            second = await b.lease(agents[0])
            other = await b.lease(agents[2])  # not a second attempt
            cluster = next(iter(b.plugin.pool.clusters.values()))  # type: ignore[union-attr]
            assert (cluster.retries, len(cluster.claims)) == (1, 1)
            assert not other.claim_retry()  # type: ignore[attr-defined]
            second.release(reusable=True)
            assert other.claim_retry()  # type: ignore[attr-defined]
            cluster.claims = [(agent, 0.0) for agent, _ in cluster.claims]  # they never came back
            assert other.claim_retry()  # type: ignore[attr-defined]
            other.release(reusable=True)

    run(main)


def test_silence_of_a_vanished_peer_is_noticed(tmp_path: Path) -> None:
    """Keepalive probes are on for held connections: the kernel finds out, and the loop is told."""

    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            sock = upstream._connection._sock  # type: ignore[attr-defined]
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, interval, count = (
                sock.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + interval * count <= 30
            upstream.release(reusable=True)

    run(main)
