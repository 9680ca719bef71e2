"""The `tls` plugin over real TLS: mock model server, trustme's authorities, and peers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import random
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import agentfw_tls_pool.pool
import pytest
import trustme
from agentfw.agents import Agent, ExitReport
from agentfw.config import Config
from agentfw.destination import Destination
from agentfw.errors import ConfigError, ConnectError, Denied, TlsError, UpstreamError
from agentfw.hookspecs import hookimpl
from agentfw.mock_llm import CertificateAuthority, MockLLM, MockOptions
from agentfw.runtime import Runtime
from agentfw.testing import make_agent, make_runtime
from agentfw.upstream import TlsRequest, Upstream
from agentfw_dns_cache import DnsConfig
from agentfw_dns_cache import Plugin as Dns
from agentfw_tls_pool import Plugin, TlsConfig
from agentfw_tls_pool.connection import PAUSE, READ, Connection, Framing
from hypothesis import given
from hypothesis import strategies as st

ALICE, BOB = make_agent("alice"), make_agent("bob")
HOST = "api.openai.com"
HTTP = TlsRequest(HOST, ("http/1.1",))


class Loopback:
    """Lets everything be dialled that is not in `denied`, as (agent's name, address) or address."""

    name = "loopback"

    def __init__(self) -> None:
        self.denied: set[str | tuple[str, str]] = set()

    @hookimpl
    def dial(self, agent: Agent, address: str) -> bool:
        return not {address, (agent.name, address)} & self.denied


class Bench:
    """A runtime with dns (overrides only) and tls, trusting `ca_pem`."""

    def __init__(self, runtime: Runtime, plugin: Plugin, loopback: Loopback, port: int) -> None:
        self.runtime = runtime
        self.plugin = plugin
        self.loopback = loopback
        self.port = port

    async def lease(self, agent: Agent = ALICE, tls: TlsRequest = HTTP, host: str = HOST) -> Upstream:
        return await self.runtime.connect(agent, Destination.make("https", host, self.port), tls)

    def __getattr__(self, name: str) -> int | float:
        return self.plugin.statistics()[name]


@contextlib.asynccontextmanager
async def bench(port: int, ca_pem: str, tmp_path: Path, **config: Any) -> AsyncIterator[Bench]:
    ca = tmp_path / "ca.pem"
    ca.write_text(ca_pem or CertificateAuthority().ca_pem)
    config.setdefault("shared", (HOST,))
    config.setdefault("system_ca", False)
    plugin = Plugin(TlsConfig(ca_files=(str(ca),), **config))
    loopback = Loopback()
    hosts = {HOST: "127.0.0.1", "api.anthropic.com": "127.0.0.1", "other.test": "127.0.0.1"}
    runtime = make_runtime(Dns(DnsConfig(upstream=(), hosts=hosts)), plugin, loopback)
    await runtime.start()
    try:
        async with asyncio.timeout(60):
            yield Bench(runtime, plugin, loopback, port)
    finally:
        await runtime.stop()
        assert not plugin.pool or not plugin.pool.groups


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """A TLS server that does what `handler` says and notes what came to it."""

    def __init__(self) -> None:
        self.authority = CertificateAuthority()
        self.port = 0
        self.connections = 0
        self.plaintext = b""
        self.writers: list[asyncio.StreamWriter] = []


@contextlib.asynccontextmanager
async def serve(
    handler: Handler, context: ssl.SSLContext | None = None, *, names: tuple[str, ...] = (HOST,)
) -> AsyncIterator[Peer]:
    peer = Peer()
    if context is None:
        context = peer.authority.server_context(names)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer.connections += 1
        peer.writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        if not writer.is_closing():
            writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0, ssl=context)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        for writer in peer.writers:
            writer.transport.abort()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serve_blocking(handler: Callable[[ssl.SSLSocket], None], context: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    """A server of one connection in a thread: asyncio's TLS knows no half-close and sends no alerts."""
    peer = Peer()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    peer.port = listener.getsockname()[1]
    context = context or peer.authority.server_context([HOST])

    def work() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as raw:
            raw.settimeout(20)
            with context.wrap_socket(raw, server_side=True, suppress_ragged_eofs=False) as tls:
                handler(tls)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield peer
    finally:
        with contextlib.suppress(OSError):  # if it still waits for its one connection
            socket.create_connection(listener.getsockname(), timeout=1).close()
        listener.close()
        await asyncio.to_thread(thread.join)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)


async def exchange(upstream: Upstream, line: bytes) -> bytes:
    """Send a line, get a line; nothing else may come with it."""
    await upstream.send(line + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):
        piece = await upstream.receive()
        assert piece
        answer += piece
    return answer[:-1]


async def eventually(condition: Callable[[], bool]) -> None:
    """Other tasks and threads get to run until it holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (what is waited for is in the kernel)
            await asyncio.sleep(0.005)


async def chat(upstream: Upstream, text: str, **more: Any) -> tuple[int, Any]:
    """A chat completion over a leased connection: (status, document). The connection is clean after it."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer k\r\ncontent-length: {len(body)}\r\n\r\n"
    await upstream.send(head.encode() + body)
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await upstream.receive()
        assert piece
        data += piece
    head_bytes, _, rest = data.partition(b"\r\n\r\n")
    match = re.search(rb"content-length: (\d+)", head_bytes)
    assert match
    while len(rest) < int(match[1]):
        piece = await upstream.receive()
        assert piece
        rest += piece
    assert len(rest) == int(match[1])
    return int(head_bytes[9:12]), json.loads(rest)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def wrapped() -> None:
        await main()

    asyncio.run(wrapped())


# ---- the good case ----


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


# ---- peers that must not be believed ----


NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.mark.parametrize(
    ("kind", "code"),
    [("wrong name", 62), ("wrong address", 64), ("wildcard too wide", 62), ("common name only", 62), ("expired", 10),
     ("not yet", 9), ("unknown authority", 19), ("self-signed", 18), ("no chain", 20)],
)  # fmt: skip
@pytest.mark.parametrize("maximum", [0, 0x0303])
def test_unverified_peers_get_no_byte(tmp_path: Path, kind: str, code: int, maximum: int) -> None:
    """The chain and the name are checked before anything of the agent's leaves; what went wrong is told as OpenSSL tells it."""
    got = b""

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        got += await reader.read()

    async def main() -> None:
        authority = CertificateAuthority()
        trusted = authority.ca_pem
        host = HOST
        if kind == "wrong name":
            context = authority.server_context(["other.example", "openai.com", f"x.{HOST}"])
        elif kind == "wrong address":
            host = "127.0.0.1"
            context = authority.server_context([HOST, "127.0.0.2"])
        elif kind == "wildcard too wide":
            context = authority.server_context(["*.com", "*.*.com", "*"])
        elif kind == "common name only":
            context = trustme_context(trustme.CA(), tmp_path, common_name=HOST)
            trusted = (tmp_path / "trustme.pem").read_text()
        elif kind == "expired":
            context = authority.server_context([HOST], not_before=NOW - 3 * DAY, not_after=NOW - DAY)
        elif kind == "not yet":
            context = authority.server_context([HOST], not_before=NOW + DAY, not_after=NOW + 3 * DAY)
        elif kind == "unknown authority":
            context = CertificateAuthority().server_context([HOST])
        else:
            chain, key = CertificateAuthority().issue([HOST])
            if kind == "self-signed":
                chain, key = self_signed()
            else:
                chain = chain[: chain.index(b"-----END CERTIFICATE-----") + 26]
            file = tmp_path / "server.pem"
            file.write_bytes(key + chain)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(file)
        request = TlsRequest(None if host != HOST else HOST, ("http/1.1",), verify=0, check_hostname=False, maximum=maximum)
        async with serve(note, context) as peer, bench(peer.port, trusted, tmp_path) as b:
            with pytest.raises(TlsError) as caught:
                await b.lease(tls=request, host=host)
            assert caught.value.verify_code == code
            assert caught.value.reason == "CERTIFICATE_VERIFY_FAILED"
            assert caught.value.verify_message in str(caught.value)
            assert b.handshakes == b.held == b.leased == 0
            await asyncio.sleep(0.02)
        assert got == b""

    run(main)


def trustme_context(ca: trustme.CA, tmp_path: Path, **leaf: Any) -> ssl.SSLContext:
    ca.cert_pem.write_to_path(tmp_path / "trustme.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("unrelated.example", **leaf).configure_cert(context)
    return context


def self_signed() -> tuple[bytes, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, NOW - DAY, NOW + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(serialization.Encoding.PEM), private


@pytest.mark.parametrize("allowed", [False, True])
def test_authorities_of_the_agent_s_own(tmp_path: Path, allowed: bool) -> None:
    """They never make a connection `verified`, take no name check away, and count on hosts that are not shared only."""

    async def main() -> None:
        private = CertificateAuthority()
        mine = TlsRequest("other.test", ("http/1.1",), cas=(ssl.PEM_cert_to_DER_cert(private.ca_pem),))
        context = private.server_context(["other.test", HOST])
        async with serve(echo, context) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, agent_ca=allowed) as b:
            if allowed:
                upstream = await b.lease(tls=mine, host="other.test")
                assert upstream.tls and upstream.tls.verified is False
                upstream.release(reusable=True)
                again = await b.lease(tls=mine, host="other.test")
                assert again.reused
                again.release(reusable=True)
            else:
                with pytest.raises(TlsError) as caught:
                    await b.lease(tls=mine, host="other.test")
                assert caught.value.verify_code == 19
            for request, host in (
                (TlsRequest("other.test", ("http/1.1",)), "other.test"),
                (TlsRequest(HOST, cas=mine.cas), HOST),
            ):
                with pytest.raises(TlsError) as caught:  # the connection above is not lent to who does not trust it
                    await b.lease(tls=request, host=host)
                assert caught.value.verify_code == 19
        if not allowed:
            return
        async with serve(echo, private.server_context([HOST])) as peer, bench(peer.port, "", tmp_path, agent_ca=True) as b:
            with pytest.raises(TlsError) as caught:
                await b.lease(tls=mine, host="other.test")
            assert caught.value.verify_code == 62
            with pytest.raises(TlsError, match=r"no X\.509"):
                await b.lease(tls=TlsRequest("other.test", cas=(b"junk",)), host="other.test")
        async with MockLLM(MockOptions(names=("other.test",))) as llm, bench(llm.port, llm.ca_pem, tmp_path, agent_ca=True) as b:
            upstream = await b.lease(tls=mine, host="other.test")
            assert upstream.tls and upstream.tls.verified is True  # the operator vouches for it as well

    run(main)


def test_the_name_is_checked_even_if_openssl_s_callback_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for resumed sessions, which have no callback. The peer's handshake does not even complete."""
    completed = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        completed.append(await reader.read())

    async def main() -> None:
        monkeypatch.setattr(Connection, "_verify", lambda *args: True)
        async with serve(note, names=("other.test",)) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            with pytest.raises(TlsError) as caught:
                await b.lease()
            assert caught.value.verify_code == 62
            await asyncio.sleep(0.02)
        assert completed == []

    run(main)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("tls 1.1", "PROTOCOL"), ("garbage", "WRONG_VERSION_NUMBER|PACKET_LENGTH"), ("closes", "UNEXPECTED_EOF"), ("silent", "")],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_peers_that_speak_no_proper_tls(tmp_path: Path, kind: str, reason: str) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        if kind == "garbage":
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        elif kind == "silent":
            await reader.read(-1)
        writer.close()

    async def main() -> None:
        authority = CertificateAuthority()
        context = authority.server_context([HOST])
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        async with (
            serve_blocking(lambda tls: None, context) as old,
            bench(
                old.port if kind == "tls 1.1" else port,
                authority.ca_pem,
                tmp_path,
                connect_timeout=0.3 if kind == "silent" else 10,
            ) as b,
        ):
            with pytest.raises(ConnectError if kind == "silent" else TlsError) as caught:
                await b.lease()
            if isinstance(caught.value, TlsError):
                assert re.search(reason, caught.value.reason)
                assert caught.value.verify_code == 0
            assert b.failed == 1
        server.close()

    run(main)


def test_versions_that_nobody_has_and_names_that_differ_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with MockLLM() as server, bench(server.port, server.ca_pem, tmp_path, min_version="1.3") as b:
            for request in (TlsRequest(HOST, maximum=0x0303), TlsRequest(HOST, maximum=0x0302), TlsRequest(HOST, minimum=0x0305)):
                with pytest.raises(TlsError, match="no TLS version"):
                    await b.lease(tls=request)
            with pytest.raises(TlsError, match="not the destination"):
                await b.lease(tls=TlsRequest("other.test"))
            assert server.stats()["connections"] == 0

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


# ---- clean or closed ----


@pytest.mark.parametrize("when", ["with the answer", "before release", "while idle", "and the end", "unread in the kernel"])
def test_bytes_left_over_reach_nobody(tmp_path: Path, when: str) -> None:
    """Whenever a byte too many comes, the connection is closed, counted, and the next agent gets a new one."""

    async def main() -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line + (b"SECRET OF ALICE\n" if when == "with the answer" else b""))

        async with serve(handler) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease(ALICE)
            await upstream.send(b"one\n")
            assert await upstream.receive(4) == b"one\n"
            if when == "before release":
                peer.writers[0].write(b"SECRET OF ALICE\n")
                await eventually(lambda: bool(upstream._connection._buffered))  # type: ignore[attr-defined]
            upstream.release(reusable=True)
            if when in ("while idle", "and the end"):
                assert b.held == 1
                peer.writers[0].write(b"SECRET OF ALICE\n")
                if when == "and the end":
                    peer.writers[0].close()
                await eventually(lambda: b.held == 0)
            if when == "unread in the kernel":
                connection = next(iter(b.plugin.pool.groups.values())).idle[0]  # type: ignore[union-attr]
                connection._stop_reading()
                peer.writers[0].write(b"SECRET OF ALICE\n")
                await asyncio.sleep(0.05)
                assert b.held == 1
            other = await b.lease(BOB)
            assert await exchange(other, b"two") == (b"two" if when != "with the answer" else b"two\nSECRET OF ALICE")
            assert (b.retired_dirty, peer.connections) == (1, 2)
            other.release(reusable=True)

    run(main)


@pytest.mark.parametrize(("alpn", "kept"), [(("imap",), True), ((), True), (("http/1.1",), False)])
def test_a_greeting_is_for_the_first_who_reads(tmp_path: Path, alpn: tuple[str, ...], kept: bool) -> None:
    """Protocols in which the server speaks first, over a connection that was only looked at before. In HTTP nobody greets."""

    async def main() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"* OK ready\n")
            await echo(reader, writer)

        async with serve(greet) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            request = TlsRequest(HOST, alpn)
            (await b.lease(tls=request)).release(reusable=True)
            if not kept:
                await eventually(lambda: b.held == 0)
                assert b.retired_dirty == 1
                return
            await asyncio.sleep(0.05)
            upstream = await b.lease(tls=request)
            if alpn:
                await upstream.send(b"a LOGIN\n")  # without waiting for the greeting
            got = b""
            while b"ready\n" not in got:
                got += await upstream.receive()
            assert got.startswith(b"* OK ready\n")
            assert (b.handshakes, b.retired_dirty) == (1, 0)
            upstream.release(reusable=True)
            # From here on it is a connection like any other.
            upstream = await b.lease(tls=request)
            peer.writers[-1].write(b"* BYE\n")
            await eventually(lambda: bool(upstream._connection._buffered))  # type: ignore[attr-defined]
            upstream.release(reusable=True)
            assert b.held == 0

    run(main)


def test_long_leases_do_not_count_as_idle(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, idle_timeout=0.05) as b:
            (await b.lease()).release(reusable=True)
            upstream = await b.lease()
            await asyncio.sleep(0.1)
            upstream.release(reusable=True)
            assert (b.held, b.retired_idle) == (1, 0)

    run(main)


def test_connections_that_the_peer_closed_are_not_lent(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            for number, close in enumerate([lambda w: w.close(), lambda w: w.transport.abort()]):
                upstream = await b.lease()
                await exchange(upstream, b"x")
                upstream.release(reusable=True)
                close(peer.writers[-1])
                await eventually(lambda: b.held == 0)
                assert b.closed_by_peer == number + 1
            await exchange(await b.lease(), b"x")
            assert peer.connections == 3

    run(main)


def test_a_connection_that_dies_before_its_first_byte_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            await exchange(upstream, b"x")
            upstream.release(reusable=True)
            upstream = await b.lease(BOB)
            assert upstream.reused
            peer.writers[0].transport.abort()
            await asyncio.sleep(0.05)
            assert await exchange(upstream, b"once") == b"once"
            assert (b.replaced, b.leased, peer.connections) == (1, 1, 2)
            peer.writers[1].transport.abort()  # now something has been sent: never again by itself
            await asyncio.sleep(0.05)
            with pytest.raises((OSError, UpstreamError)):
                await exchange(upstream, b"twice")
            upstream.release(reusable=True)
            assert (b.held, peer.connections) == (0, 2)

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


def test_a_cut_stream_is_not_an_end_of_stream(tmp_path: Path) -> None:
    async def main() -> None:
        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"part")
            await reader.readline()
            # The bare socket is closed under TLS: no close_notify.
            writer.transport.get_extra_info("socket").shutdown(1)

        async with serve(cut) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            assert await upstream.receive() == b"part"
            await upstream.send(b"\n")
            with pytest.raises(UpstreamError, match="cut"):
                await upstream.receive()
            upstream.release(reusable=True)
            assert b.held == 0

    run(main)


def test_worn_connections_are_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, max_requests=2) as b:
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


# ---- sharing, queues, limits ----


def test_fifty_agents_share_few_connections(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            MockLLM(MockOptions(latency=0.01)) as server,
            bench(server.port, server.ca_pem, tmp_path, max_connections=8) as b,
        ):

            async def agent(number: int) -> None:
                me = make_agent(f"agent{number}")
                for call in range(4):
                    upstream = await b.lease(me)
                    _, document = await chat(upstream, f"{number}/{call}")
                    assert document["choices"][0]["message"]["content"] == f"echo: {number}/{call}"
                    upstream.release(reusable=True)

            await asyncio.gather(*(agent(number) for number in range(50)))
            stats = server.stats()
            assert stats["requests"] == 200
            assert stats["handshakes"] == b.held == b.handshakes <= 8
            assert b.waiting == b.leased == 0

    run(main)


def test_only_listed_hosts_are_shared_and_tenants_never_meet(tmp_path: Path) -> None:
    async def main() -> None:
        async with MockLLM() as server, bench(server.port, server.ca_pem, tmp_path) as b:
            red, blue = make_agent("red", tenant="red"), make_agent("blue", tenant="blue")

            async def use(agent: Agent, host: str) -> bool:
                upstream = await b.lease(agent, TlsRequest(host, ("http/1.1",)), host)
                upstream.release(reusable=True)
                return upstream.reused

            assert [await use(agent, HOST) for agent in (ALICE, BOB, ALICE)] == [False, True, True]
            assert [await use(agent, "api.anthropic.com") for agent in (ALICE, BOB, ALICE)] == [False, False, True]
            assert [await use(agent, HOST) for agent in (red, blue, red)] == [False, False, True]
            assert b.held == 5
            b.runtime.agent_exited(ALICE, ExitReport("code"))
            assert b.held == 4  # its own to the host that is not shared

    run(main)


def test_the_queue_is_fair(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, max_connections=1) as b:
            first = await b.lease()
            order = []

            async def queue(agent: Agent, number: int) -> None:
                upstream = await b.lease(agent)
                order.append(f"{agent.name}{number}")
                upstream.release(reusable=True)

            greedy = [asyncio.ensure_future(queue(ALICE, i)) for i in range(5)]
            await asyncio.sleep(0.01)
            modest = [asyncio.ensure_future(queue(BOB, i)) for i in range(2)]
            await asyncio.sleep(0.01)
            assert b.waiting == 7
            first.release(reusable=True)
            await asyncio.gather(*greedy, *modest)
            assert order == ["alice0", "bob0", "alice1", "bob1", "alice2", "alice3", "alice4"]
            assert peer.connections == 1

    run(main)


def test_limits(tmp_path: Path) -> None:
    async def main() -> None:
        limits = {"max_connections": 1, "max_pending": 2, "queue_timeout": 0.1, "agent_connections": 2}
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, **limits) as b:
            held = await b.lease()
            slow = asyncio.ensure_future(b.lease())
            await asyncio.sleep(0)
            with pytest.raises(ConnectError, match="too many connections open"):
                await b.lease()
            other = asyncio.ensure_future(b.lease(BOB))
            await asyncio.sleep(0)
            with pytest.raises(ConnectError, match="too many requests wait"):
                await b.lease(make_agent("carol"))
            for waiting in (slow, other):
                with pytest.raises(ConnectError, match="became free in time"):
                    await waiting
            assert b.overflow == 4
            assert b.waiting == 0
            held.release(reusable=True)
            (await b.lease()).release(reusable=True)

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


def test_policy_counts_for_held_connections_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            (await b.lease(ALICE)).release(reusable=True)
            b.loopback.denied = {("bob", "127.0.0.1")}
            with pytest.raises(Denied):
                await b.lease(BOB)
            assert b.held == 1
            (await b.lease(ALICE)).release(reusable=True)
            assert peer.connections == 1

        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, shared=()) as b:
            (await b.lease(ALICE)).release(reusable=True)
            b.loopback.denied = {"127.0.0.1"}
            with pytest.raises(Denied):
                await b.lease(ALICE)
            assert (b.held, b.retired_denied) == (0, 1)

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


# ---- bytes ----


def test_large_bodies_both_ways(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3_000_000)

    async def main() -> None:
        async def back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while piece := await reader.read(100_000):
                writer.write(piece)
                await writer.drain()

        async with serve(back) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()

            async def receive() -> bytes:
                got = b""
                while len(got) < len(data):
                    piece = await upstream.receive(random.choice([1, 100, 16384, 65536]))
                    assert piece
                    got += piece
                return got

            reading = asyncio.ensure_future(receive())
            for start in range(0, len(data), 700_000):
                await upstream.send(data[start : start + 700_000])
            assert await reading == data
            upstream.release(reusable=True)
            assert b.held == 1

    run(main)


def test_a_slow_reader_stops_the_peer(tmp_path: Path) -> None:
    async def main() -> None:
        written = 0

        async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            for _ in range(1000):
                writer.write(b"x" * 65536)
                await writer.drain()
                written += 65536

        async with serve(flood) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            await upstream.receive(1)
            last = -1
            while written != last:
                last = written
                await asyncio.sleep(0.1)
            assert upstream._connection._buffered <= PAUSE + READ  # type: ignore[attr-defined]
            assert written < 1000 * 65536
            for _ in range(1000):
                await upstream.receive()
            assert written > last

    run(main)


def test_a_stalled_peer_stops_the_sender(tmp_path: Path) -> None:
    async def main() -> None:
        go = threading.Event()

        def stall(tls: ssl.SSLSocket) -> None:
            go.wait(20)
            got = 0
            while piece := tls.recv(1 << 16):
                got += len(piece)
            tls.sendall(b"%d\n" % got)

        async with serve_blocking(stall) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            sent = 0

            async def send() -> None:
                nonlocal sent
                for _ in range(500):
                    await upstream.send(b"x" * 65536)
                    sent += 65536

            sending = asyncio.ensure_future(send())
            last = -1
            while sent != last:
                last = sent
                await asyncio.sleep(0.1)
            assert sent < 500 * 65536
            go.set()
            await sending
            await upstream.send_eof()
            assert await upstream.receive() == b"%d\n" % (500 * 65536)
            upstream.release()

    run(main)


def test_what_was_sent_before_release_arrives(tmp_path: Path) -> None:
    async def main() -> None:
        total = 0
        done = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal total
            await asyncio.sleep(0.1)
            while piece := await reader.read(1 << 16):
                total += len(piece)
            done.set()

        async with serve(slow) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            sent = 0
            while not upstream._connection._out:  # type: ignore[attr-defined]
                await upstream.send(b"y" * 50_000)
                sent += 50_000
            upstream.release()
            await asyncio.wait_for(done.wait(), 10)
            assert total == sent

    run(main)


@pytest.mark.parametrize("part", [1, 5, 6, 20])
def test_the_beginning_of_a_record_is_a_byte_too_many(tmp_path: Path, part: int) -> None:
    """OpenSSL has nothing to show for it yet; the rest could come when the next agent waits for its answer."""

    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            upstream = await b.lease()
            await exchange(upstream, b"x")
            upstream.release(reusable=True)
            record = b"\x17\x03\x03\x01\x00" + b"?" * 256
            peer.writers[0].transport.get_extra_info("socket")._sock.send(record[:part])
            await eventually(lambda: b.held == 0)
            assert b.retired_dirty == 1

    run(main)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.lists(st.integers(1, 400), max_size=30))
def test_framing(sizes: list[int], cuts: list[int]) -> None:
    """However the stream is cut, it is inside a record exactly when a record's last byte was not the last one fed."""
    records = [b"\x17\x03\x03" + size.to_bytes(2, "big") + b"x" * size for size in sizes]
    stream = b"".join(records)
    ends = {sum(map(len, records[:i])) for i in range(len(records) + 1)}
    framing = Framing()
    at = 0
    for cut in [*cuts, len(stream)]:
        framing.feed(stream[at : at + cut])
        at = min(at + cut, len(stream))
        assert framing.inside_record == (at not in ends)


def test_adversarial_exchanges_never_mix(tmp_path: Path) -> None:
    """Thousands of exchanges with a peer that sends too much, too late or not enough: no agent reads another's byte."""
    dice = random.Random(7)

    async def main() -> None:
        late = 0
        # By the client's port. What comes after the next request is out is its answer for all that anyone can tell, so it does
        # not happen here: nothing late is sent on a connection in use, and what was sent is there before the next use.
        busy: set[int] = set()
        late_on: set[int] = set()

        async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal late
            while line := await reader.readline():
                kind = dice.random()
                if kind < 0.05:
                    writer.write(line + line)  # twice
                elif kind < 0.1:
                    writer.write(line)
                    await asyncio.sleep(dice.random() * 0.002)
                    port = writer.get_extra_info("peername")[1]
                    if port not in busy:
                        late += 1
                        late_on.add(port)
                        writer.write(b"late " + line)
                elif kind < 0.13:
                    writer.write(line[:5])
                    writer.transport.abort()
                elif kind < 0.16:
                    writer.write(line)
                    return
                elif kind < 0.18:
                    await asyncio.sleep(0.003)
                    writer.write(line)
                else:
                    writer.write(line)

        async with (
            serve(hostile) as peer,
            bench(peer.port, peer.authority.ca_pem, tmp_path, max_connections=6, max_opening=2) as b,
        ):
            good = 0

            async def agent(number: int) -> None:
                nonlocal good
                me = make_agent(f"agent{number}")
                for call in range(100):
                    try:
                        upstream = await b.lease(me)
                    except UpstreamError:
                        continue
                    port = upstream._connection._sock.getsockname()[1]  # type: ignore[attr-defined]
                    busy.add(port)
                    if port in late_on:
                        late_on.discard(port)
                        await asyncio.sleep(0.05)
                    token = f"{number}.{call}.{dice.random()}".encode()
                    clean = False
                    try:
                        async with asyncio.timeout(0.002 if dice.random() < 0.02 else 10):
                            await upstream.send(token + b"\n")
                            busy.discard(port)
                            port = upstream._connection._sock.getsockname()[1]  # type: ignore[attr-defined]
                            busy.add(port)  # another one, if the first was replaced
                            answer = b""
                            while (left := len(token) + 1 - len(answer)) and (piece := await upstream.receive(left)):
                                answer += piece
                        assert (token + b"\n").startswith(answer)
                        clean = len(answer) == len(token) + 1
                        good += clean
                    except (UpstreamError, OSError, TimeoutError):
                        pass
                    finally:
                        busy.discard(port)
                        upstream.release(reusable=clean)

            await asyncio.gather(*(agent(number) for number in range(30)))
            assert late
            assert good > 2000
            assert b.retired_dirty > 20
            assert b.reused > 500
            assert b.leased == b.waiting == 0

    run(main)


# ---- configuration ----


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"shared": ["a b"]}, "tls.shared.0"),
        ({"shared": ["ok.test", "x:99999"]}, "tls.shared.1"),
        ({"preconnect": ["api.openai.com"]}, "tls.preconnect.0"),
        ({"shared": ["api.openai.com:444"], "preconnect": ["api.openai.com"]}, "tls.preconnect.0"),
        ({"min_version": "1.1"}, "tls.min_version"),
        ({"max_connections": 0}, "tls.max_connections"),
        ({"nonsense": 1}, "tls.nonsense"),
    ],
)
def test_bad_configuration_names_the_key(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config({"tls": table}).plugin("tls", TlsConfig)
    assert caught.value.key == key


@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_bad_ca_files_stop_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.pem"
    if content:
        file.write_text(content)

    async def main() -> None:
        runtime = make_runtime(Plugin(TlsConfig(ca_files=(str(file),))))
        with pytest.raises(ConfigError, match=r"tls\.ca_files\.0.*ca\.pem"):
            await runtime.start()

    run(main)


def test_shared_hosts_with_and_without_ports() -> None:
    config = TlsConfig(
        shared=("a.test", "B.test:8443", "[2001:db8::1]", "[2001:db8::2]:444"), preconnect=("a.test:444", "b.test:8443")
    )
    plugin = Plugin(config)
    expected = {
        ("a.test", 443): True, ("a.test", 1): True, ("b.test", 8443): True, ("b.test", 443): False,
        ("2001:db8::1", 9): True, ("2001:db8::2", 444): True, ("2001:db8::2", 443): False, ("c.test", 443): False,
    }  # fmt: skip
    assert {(host, port): plugin.is_shared(Destination.make("https", host, port)) for host, port in expected} == expected


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
