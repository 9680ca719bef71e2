"""Upstreams that do their worst below HTTP: renegotiation, floods of records that carry nothing, handshakes that stall.

OpenSSL's own library is the server, by ctypes: neither Python's ssl nor pyOpenSSL sends key updates.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ctypes.util
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentfw.errors import ConnectError, TlsError, UpstreamError
from agentfw.mock_llm import CertificateAuthority
from agentfw.upstream import TlsRequest
from agentfw_tls_pool.connection import ANSWERS, BARREN

from .support import ALICE, BOB, HOST, bench, echo, eventually, exchange, run, serve

NAME = ctypes.util.find_library("ssl")
pytestmark = pytest.mark.skipif(NAME is None, reason="there is no libssl to make a server of")

TLS1_2, TLS1_3 = 0x0303, 0x0304
SET_MIN, SET_MAX = 123, 124  # SSL_CTRL_SET_{MIN,MAX}_PROTO_VERSION


def library() -> Any:
    lib = ctypes.CDLL(NAME)
    for name in ("TLS_server_method", "SSL_CTX_new", "SSL_new"):
        getattr(lib, name).restype = ctypes.c_void_p
    return lib


class Peer:
    """One server's end of a connection, in a thread."""

    def __init__(self, lib: Any, handle: Any, sock: socket.socket, stop: threading.Event) -> None:
        self.stop = stop
        """The test is over."""
        self.lib = lib
        self.handle = handle
        self.sock = sock

    def read(self) -> bytes:
        buffer = ctypes.create_string_buffer(65536)
        got = self.lib.SSL_read(self.handle, buffer, len(buffer))
        return buffer.raw[:got] if got > 0 else b""

    def write(self, data: bytes) -> bool:
        return bool(self.lib.SSL_write(self.handle, data, len(data)) > 0)

    def update_keys(self, ask_back: bool) -> bool:
        """One KeyUpdate message (RFC 8446, section 4.6.3)."""
        return bool(self.lib.SSL_key_update(self.handle, int(ask_back)) == 1 and self.lib.SSL_do_handshake(self.handle) == 1)

    def new_ticket(self) -> bool:
        return bool(self.lib.SSL_new_session_ticket(self.handle) == 1 and self.lib.SSL_do_handshake(self.handle) == 1)

    def write_early(self, data: bytes) -> bool:
        """0.5-RTT data, in one segment with our Finished."""
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        size = ctypes.c_size_t()
        buffer = ctypes.create_string_buffer(100)
        while (state := self.lib.SSL_read_early_data(self.handle, buffer, 100, ctypes.byref(size))) == 1:
            pass
        done = state == 2 and self.lib.SSL_write_early_data(self.handle, data, len(data), ctypes.byref(size)) == 1
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        return bool(done)

    def hello_request(self) -> bool:
        """TLS 1.2: ask for a new handshake."""
        return bool(self.lib.SSL_renegotiate(self.handle) == 1 and self.lib.SSL_do_handshake(self.handle) == 1)


@contextlib.asynccontextmanager
async def openssl(
    handler: Callable[[Peer], None],
    tmp_path: Path,
    version: int = TLS1_3,
    connections: int = 2,
    early: Callable[[Peer], bool] | None = None,
) -> AsyncIterator[tuple[int, str]]:
    """(port, CA); `early` comes before the handshake is done."""
    authority = CertificateAuthority()
    chain, key = authority.issue([HOST])
    (tmp_path / "chain.pem").write_bytes(chain)
    (tmp_path / "key.pem").write_bytes(key)
    lib = library()
    context = ctypes.c_void_p(lib.SSL_CTX_new(ctypes.c_void_p(lib.TLS_server_method())))
    assert lib.SSL_CTX_use_certificate_chain_file(context, str(tmp_path / "chain.pem").encode()) == 1
    assert lib.SSL_CTX_use_PrivateKey_file(context, str(tmp_path / "key.pem").encode(), 1) == 1
    for command in (SET_MIN, SET_MAX):
        assert lib.SSL_CTX_ctrl(context, command, ctypes.c_long(version), None) == 1
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    stop = threading.Event()

    def one() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as sock:
            sock.settimeout(None)
            seconds = (20).to_bytes(8, "little") + bytes(8)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
            handle = ctypes.c_void_p(lib.SSL_new(context))
            lib.SSL_set_fd(handle, sock.fileno())
            if (early is None or early(Peer(lib, handle, sock, stop))) and lib.SSL_accept(handle) == 1:
                handler(Peer(lib, handle, sock, stop))
            lib.SSL_free(handle)

    threads = [threading.Thread(target=one) for _ in range(connections)]
    for thread in threads:
        thread.start()
    try:
        yield listener.getsockname()[1], authority.ca_pem
    finally:
        stop.set()
        for _ in threads:
            with contextlib.suppress(OSError):
                socket.create_connection(listener.getsockname(), timeout=1).close()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        listener.close()
        lib.SSL_CTX_free(context)


FLOODS: dict[str, tuple[int, Callable[[Peer], bool]]] = {
    "key updates": (TLS1_3, lambda peer: peer.update_keys(False)),
    "key updates that want an answer": (TLS1_3, lambda peer: peer.update_keys(True)),
    "session tickets": (TLS1_3, Peer.new_ticket),
    "requests to renegotiate": (TLS1_2, Peer.hello_request),
}


@pytest.mark.parametrize("kind", FLOODS)
@pytest.mark.parametrize("when", ["idle", "in the answer"])
def test_floods_of_records_that_carry_nothing_end_the_connection(tmp_path: Path, kind: str, when: str) -> None:
    """OpenSSL takes any number of them. The loop goes on, what we would answer does not pile up, and nobody waits for ever."""
    version, once = FLOODS[kind]

    async def main() -> None:
        sent = 0

        def flood(peer: Peer) -> None:
            nonlocal sent
            line = peer.read()
            if not line:
                return
            peer.write(line if when == "idle" else b"half")
            if version == TLS1_2:
                peer.sock.setblocking(False)  # it would wait for our answer to each
            while not peer.stop.is_set():
                if not once(peer) and version == TLS1_3:
                    break
                sent += 1
                if version == TLS1_2 and sent % 64 == 0:
                    time.sleep(0.001)
                    with contextlib.suppress(BlockingIOError):
                        if peer.sock.recv(1, socket.MSG_PEEK) == b"":
                            break

        async with openssl(flood, tmp_path, version) as (port, ca), bench(port, ca, tmp_path) as b:
            upstream = await b.lease(ALICE)
            if when == "idle":
                assert await exchange(upstream, b"x") == b"x"
                connection = upstream._connection  # type: ignore[attr-defined]
                upstream.release(reusable=True)
                await eventually(lambda: b.held == 0)
                assert b.retired_flood == 1
            else:
                connection = upstream._connection  # type: ignore[attr-defined]
                await upstream.send(b"x\n")
                with pytest.raises((UpstreamError, OSError)):
                    async with asyncio.timeout(20):
                        while await upstream.receive():
                            assert len(connection._out) <= 2 * BARREN
                upstream.release(reusable=True)
                assert b.held == 0
            assert connection.closed
            assert sent > 100

    run(main)


def test_answers_that_the_peer_does_not_take_do_not_pile_up(tmp_path: Path) -> None:
    """Key updates with a byte of data behind each are no flood of nothing. Still, each one is answered, and held if nobody takes
    the answer."""

    async def main() -> None:
        def ask(peer: Peer) -> None:
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.read()
            while not peer.stop.is_set() and peer.update_keys(True) and peer.write(b"x"):
                pass

        async with openssl(ask, tmp_path) as (port, ca), bench(port, ca, tmp_path) as b:
            upstream = await b.lease(ALICE)
            connection = upstream._connection  # type: ignore[attr-defined]
            connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            await upstream.send(b"x\n")
            with pytest.raises(UpstreamError, match="does not take"):
                while await upstream.receive():
                    assert len(connection._out) <= 2 * ANSWERS
            upstream.release(reusable=True)
            assert b.held == 0
            assert connection.closed

    run(main)


def test_a_few_key_updates_and_tickets_are_fine(tmp_path: Path) -> None:
    async def main() -> None:
        def some(peer: Peer) -> None:
            while line := peer.read():
                for _ in range(5):
                    assert peer.update_keys(True) and peer.new_ticket()
                peer.write(line)

        async with openssl(some, tmp_path) as (port, ca), bench(port, ca, tmp_path) as b:
            for number in range(20):
                upstream = await b.lease(ALICE if number % 2 else BOB)
                assert await exchange(upstream, b"%d" % number) == b"%d" % number
                upstream.release(reusable=True)
            assert (b.handshakes, b.reused, b.retired_dirty) == (1, 19, 0)

    run(main)


def test_nobody_renegotiates(tmp_path: Path) -> None:
    """A TLS 1.2 server that asks for a new handshake is told no (RFC 5246, section 7.2.2). OpenSSL's then gives up, and nobody
    is lent what is left."""

    async def main() -> None:
        got = []

        def ask(peer: Peer) -> None:
            peer.write(peer.read())
            peer.hello_request()
            got.append(peer.read())

        async with openssl(ask, tmp_path, TLS1_2, connections=3) as (port, ca), bench(port, ca, tmp_path) as b:
            upstream = await b.lease()
            assert await exchange(upstream, b"x") == b"x"
            connection = upstream._connection  # type: ignore[attr-defined]
            upstream.release(reusable=True)
            await eventually(lambda: connection.closed)
            again = await b.lease(BOB)
            assert await exchange(again, b"y") == b"y"
            assert (b.handshakes, b.retired_dirty) == (2, 0)
            assert got == [b""]

    run(main)


@pytest.mark.parametrize("bytes_", [0, 1, 5, 40, 90])
def test_a_handshake_that_stalls_ends_in_time_and_holds_nobody_up(tmp_path: Path, bytes_: int) -> None:
    """After any part of the server's first flight: the deadline is for all of it, and other destinations do not wait."""

    async def main() -> None:
        async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            hello = await reader.read(65536)
            assert hello
            # A ServerHello's beginning, as far as it may be believed.
            writer.write((b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + bytes(120))[:bytes_])
            await reader.read()
            writer.close()

        server = await asyncio.start_server(stall, "127.0.0.1", 0)
        stalled: int = server.sockets[0].getsockname()[1]
        async with (
            serve(echo, names=("other.test",)) as good,
            bench(stalled, good.authority.ca_pem, tmp_path, connect_timeout=0.4) as b,
        ):
            waiting = asyncio.ensure_future(b.lease(ALICE))
            await asyncio.sleep(0.05)
            b.port = good.port
            assert b.plugin.pool
            b.plugin.pool.limits = replace(b.plugin.pool.limits, connect_timeout=20.0)  # of those that begin from here on
            other = await b.lease(BOB, TlsRequest("other.test", ("http/1.1",)), "other.test")
            assert await exchange(other, b"x") == b"x"
            other.release(reusable=True)
            with pytest.raises((ConnectError, TlsError)):
                await waiting
            assert b.opening == b.waiting == 0
        server.close()

    run(main)


def test_what_comes_with_the_handshake_is_not_heard(tmp_path: Path) -> None:
    """Data right behind the server's Finished (0.5-RTT, RFC 8446 section 2.3): nobody asked for it."""
    written = []

    def early(peer: Peer) -> bool:
        written.append(peer.write_early(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nSECRET"))
        return True

    async def main() -> None:
        async with (
            openssl(lambda peer: None, tmp_path, early=early, connections=12) as (port, ca),
            bench(port, ca, tmp_path) as b,
        ):
            with pytest.raises(UpstreamError):
                upstream = await b.lease()
                await upstream.send(b"x")
            assert b.held == b.leased == 0
            assert b.retired_dirty >= 3
        assert written[:3] == [True] * 3

    run(main)


def test_what_comes_in_the_clear_is_not_heard(tmp_path: Path) -> None:
    async def main() -> None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(65536)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nSECRET")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        async with bench(server.sockets[0].getsockname()[1], "", tmp_path) as b:
            with pytest.raises(TlsError, match="does not speak TLS on this port"):
                await b.lease()
        server.close()

    run(main)
