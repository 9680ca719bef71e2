"""TLS that agents make themselves: the own_tls hook, interception under the fleet's authority, and clients that mean no good."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agentfw import Denied, Destination, hookimpl
from agentfw.fleet_ca import FleetCa
from agentfw.relay import own_tls
from agentfw.relay.hello import alpn, client_hello, server_name
from agentfw.relay.tls_flow import BrokenTls, TlsFlow
from agentfw.runtime import Runtime
from agentfw.testing import MemoryFlow, make_agent
from agentfw_credentials import Config, RuleConfig
from agentfw_credentials import Plugin as Credentials
from agentfw_native import Config as NativeConfig
from agentfw_native import Plugin as Native
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given, settings
from hypothesis import strategies as st

from ..guest import openssl_client
from .support import Loopback, Names, Recorder, TlsOnce, async_test, guest, running, serving

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Says:
    """An own_tls hook, and what the other hooks saw."""

    name = "says"

    def __init__(self, verdict: Any = "intercept") -> None:
        self.verdict = verdict
        self.asked: list[Destination] = []
        self.allowed: list[Destination] = []
        self.requests: list[tuple[Destination, str, bool]] = []

    @hookimpl
    def own_tls(self, destination: Destination) -> Any:
        self.asked.append(destination)
        return self.verdict

    @hookimpl
    def allow(self, destination: Destination) -> None:
        self.allowed.append(destination)

    @hookimpl
    def request(self, destination: Destination, head: Any, tls: Any) -> None:
        self.requests.append((destination, head.target, tls is not None and tls.verified))
        head.headers.set("Authorization", "Bearer the-real-one")


class Client:
    """OpenSSL as a guest would run it, over a MemoryFlow."""

    def __init__(self, flow: MemoryFlow, context: ssl.SSLContext, name: str | None) -> None:
        self.flow = flow
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=name)

    async def _drive(self, step: Any, *args: Any) -> Any:
        while True:
            try:
                result = step(*args)
                await self.flush()
                return result
            except ssl.SSLWantReadError:
                await self.flush()
                data = await self.flow.guest_receive()
                self.incoming.write(data) if data else self.incoming.write_eof()
            except ssl.SSLError:
                await self.flush()
                raise

    async def flush(self) -> None:
        if self.outgoing.pending:
            with contextlib.suppress(BrokenPipeError):
                await self.flow.guest_send(self.outgoing.read())

    async def handshake(self) -> None:
        await self._drive(self.tls.do_handshake)

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[await self._drive(self.tls.write, view[:16384]) :]

    async def receive(self) -> bytes:
        """b"" at close_notify; ssl.SSLEOFError if the stream just ends."""
        try:
            data: bytes = await self._drive(self.tls.read, 65536)
        except ssl.SSLZeroReturnError:
            return b""
        return data

    async def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self.receive()
            assert piece
            data += piece
        return data


def trusting(runtime: Runtime, *protocols: str) -> ssl.SSLContext:
    """A client's context that trusts this fleet's authority and no other."""
    context = ssl.create_default_context(cadata=runtime.interceptor.authority.pem.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


@asynccontextmanager
async def intercepting(
    says: Any, handler: Any, *names: str, tls: TlsOnce | None = None, more: tuple[Any, ...] = ()
) -> AsyncIterator[tuple[Runtime, int]]:
    async with serving(handler, *(names or ("api.test",))) as port:
        plugins = (says, tls or TlsOnce(), Names(api_test="127.0.0.1", other_test="127.0.0.1"), Loopback(), *more)
        async with running(*plugins) as runtime:
            runtime.learn(make_agent(), "api.test", ["127.0.0.1"])
            yield runtime, port


@async_test
async def test_requests_inside_are_the_same_as_offloaded_ones() -> None:
    says, server = Says(), Recorder()
    tls = TlsOnce(pooled=True)
    async with intercepting(says, server, tls=tls) as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
        client = Client(flow, trusting(runtime, "h2", "http/1.1"), "api.test")
        await client.handshake()
        assert client.tls.version() == "TLSv1.3"
        for path in (b"/one", b"/two"):
            await client.send(b"GET %s HTTP/1.1\r\nHost: api.test:%d\r\n\r\n" % (path, port))
            assert await client.exactly(len(OK)) == OK
        names = client.tls.getpeercert()
        assert names is not None and names["subjectAltName"] == (("DNS", "api.test"),)
    assert [head.split()[1] for head in server.requests] == [b"/one", b"/two"]
    assert all(b"authorization: bearer the-real-one" in head.lower() for head in server.requests)
    https = Destination("https", "api.test", port)
    assert says.asked == [Destination("tls", "api.test", port)]
    assert says.requests == [(https, "/one", True), (https, "/two", True)]
    # Nothing but https was asked for: a policy that forbids what it cannot see into does not forbid what it can.
    assert {each.scheme for each in says.allowed[1:]} == {"https"}
    assert tls.requests[0].alpn == ("http/1.1",) and server.connections == 1
    assert runtime.counters["tls_intercepted"] == 1


@async_test
async def test_credentials_are_set_and_their_echo_is_masked() -> None:
    class Silent:
        name = "says"

        @hookimpl
        def own_tls(self) -> str:
            return "intercept"

    def echo(head: bytes) -> bytes:
        body = b"you sent " + head.lower().split(b"authorization: ")[1].split(b"\r\n")[0]
        return b"HTTP/1.1 200 OK\r\nX-Echo: %s\r\nContent-Length: %d\r\n\r\n%s" % (body, len(body), body)

    server = Recorder(echo)
    async with serving(server, "api.test") as port:
        rule = RuleConfig(f"api.test:{port}", "authorization", "Bearer ${env:KEY}")
        credentials = Credentials(Config(rule=(rule,)), {"KEY": "sk-real-0123456789"})
        async with running(Silent(), credentials, TlsOnce(), Names(api_test="127.0.0.1"), Loopback()) as runtime:
            for key, status in ((b"sk-agentfw-placeholder", b"200"), (b"sk-of-the-agents-own", b"403")):
                async with guest(runtime, "127.0.0.1", port) as flow:
                    client = Client(flow, trusting(runtime), "api.test")
                    await client.handshake()
                    head = b"GET / HTTP/1.1\r\nHost: api.test:%d\r\nConnection: close\r\nAuthorization: Bearer %s\r\n\r\n"
                    await client.send(head % (port, key))
                    answer = b""
                    while piece := await client.receive():
                        answer += piece
                assert answer.split()[1] == status and b"sk-real" not in answer
    assert len(server.requests) == 1 and b"Bearer sk-real-0123456789" in server.requests[0]


@async_test
async def test_what_the_hook_may_say() -> None:
    passed = "tls_passed_through"
    for verdict, counter in ((None, passed), ("passthrough", passed), ("deny", "flows_denied"), ("x", "flows_broken")):
        server, native = Recorder(), Native(NativeConfig())
        async with (
            intercepting(Says(verdict), server, more=(native,)) as (runtime, port),
            guest(runtime, "127.0.0.1", port) as flow,
        ):
            client = Client(flow, trusting(runtime), "api.test")
            with pytest.raises(ssl.SSLError) as caught:
                await client.handshake()
            # Passed through, the peer is the real one, whose authority this client does not know.
            expected = {"deny": "TLSV1_ALERT_ACCESS_DENIED", "x": "TLSV1_ALERT_INTERNAL_ERROR"}
            assert caught.value.reason == expected.get(verdict or "", "CERTIFICATE_VERIFY_FAILED")
        assert runtime.counters[counter] == 1 and not server.requests, verdict


@async_test
async def test_a_hook_that_denies_names_its_rule() -> None:
    class Denies(Says):
        @hookimpl
        def own_tls(self, destination: Destination) -> Any:
            raise Denied("mine: no TLS of your own", destination.host)

    async with intercepting(Denies(), Recorder()) as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
        with pytest.raises(ssl.SSLError, match="access denied"):
            await Client(flow, trusting(runtime), "api.test").handshake()
    assert runtime.counters["flows_denied"] == 1


@async_test
async def test_a_denied_name_is_not_connected_to() -> None:
    class Refuses(Says):
        @hookimpl
        def allow(self, destination: Destination) -> None:
            if destination.host == "other.test":
                raise Denied("not that one", destination.host)

    server = Recorder()
    async with intercepting(Refuses(), server) as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
        with pytest.raises(ssl.SSLError, match="access denied"):
            await Client(flow, trusting(runtime), "other.test").handshake()
    assert not server.connections


@async_test
async def test_a_bad_peer_is_shown_as_a_failure() -> None:
    """The real peer's certificate is for another name: no leaf is made, the client gets an alert."""
    server = Recorder()
    async with intercepting(Says(), server, "wrong.test") as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
        with pytest.raises(ssl.SSLError) as caught:
            await Client(flow, trusting(runtime), "api.test").handshake()
        assert caught.value.reason == "SSLV3_ALERT_BAD_CERTIFICATE"
    assert runtime.counters["tls_intercepted"] == 0 and not server.requests


@async_test
async def test_host_and_server_name_must_agree() -> None:
    server = Recorder()
    async with intercepting(Says(), server) as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
        client = Client(flow, trusting(runtime), "api.test")
        await client.handshake()
        await client.send(b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n")
        assert (await client.receive()).startswith(b"HTTP/1.1 400 ")
        while await client.receive():
            pass
    assert not server.requests


@async_test
async def test_without_a_server_name_the_address_says_who_is_meant() -> None:
    says, server = Says(), Recorder()
    async with intercepting(says, server) as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
        context = trusting(runtime)
        context.check_hostname = False
        client = Client(flow, context, None)
        await client.handshake()
        certificate = client.tls.getpeercert()
        assert certificate is not None and certificate["subjectAltName"] == (("DNS", "api.test"),)
        await client.send(b"GET / HTTP/1.1\r\nHost: api.test:%d\r\n\r\n" % port)
        assert await client.exactly(len(OK)) == OK
    assert says.asked == [Destination("tls", "api.test", port)]


@async_test
async def test_a_client_that_does_not_trust_the_authority(caplog: pytest.LogCaptureFixture) -> None:
    server = Recorder()
    async with intercepting(Says(), server) as (runtime, port):
        with caplog.at_level(logging.WARNING, "agentfw.relay"):
            for closes in (False, True, False):
                async with guest(runtime, "127.0.0.1", port) as flow:
                    with pytest.raises(ssl.SSLCertVerificationError):
                        await Client(flow, ssl.create_default_context(), "api.test").handshake()
                    if not closes:  # else the alert and the close come at once
                        await flow.guest_read_all()
        assert [record.getMessage() for record in caplog.records] == [
            "test: a client for api.test does not trust the fleet's authority (tlsv1_alert_unknown_ca): it brings roots of "
            "its own, or pins a certificate; let it pass through"
        ]
    assert runtime.counters["tls_interception_failed"] == 3 and not server.requests


@async_test
async def test_only_http2_is_refused_in_words(caplog: pytest.LogCaptureFixture) -> None:
    server = Recorder()
    async with intercepting(Says(), server) as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
        with caplog.at_level(logging.WARNING, "agentfw.relay"), pytest.raises(ssl.SSLError) as caught:
            await Client(flow, trusting(runtime, "h2"), "api.test").handshake()
        assert "alert no application protocol" in str(caught.value)
        assert "offers only h2 over TLS of its own" in caplog.text
    assert not server.connections


@async_test
async def test_old_versions_are_refused() -> None:
    async with intercepting(Says(), Recorder()) as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
        context = trusting(runtime)
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError) as caught:
            await Client(flow, context, "api.test").handshake()
        assert caught.value.reason in ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL")
    assert runtime.counters["tls_intercepted"] == 0


@async_test
async def test_version_1_2_works_and_cannot_renegotiate() -> None:
    async with intercepting(Says(), Recorder()) as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
        from OpenSSL import SSL

        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        context.set_max_proto_version(SSL.TLS1_2_VERSION)
        client = SSL.Connection(context, None)
        client.set_tlsext_host_name(b"api.test")
        client.set_connect_state()

        async def drive(step: Any, *args: Any) -> Any:
            while True:
                try:
                    return step(*args)
                except SSL.WantReadError:
                    pass
                finally:
                    with contextlib.suppress(SSL.WantReadError):
                        await flow.guest_send(client.bio_read(65536))
                client.bio_write(await flow.guest_receive())

        await drive(client.do_handshake)
        assert client.get_protocol_version_name() == "TLSv1.2" and "ECDHE-ECDSA" in str(client.get_cipher_name())
        client.renegotiate()
        with pytest.raises(SSL.Error, match="no renegotiation"):
            await drive(client.do_handshake)
    assert runtime.counters["tls_intercepted"] == 1


@async_test
async def test_garbage_after_the_handshake() -> None:
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x17\x03\x03\x48\x00" + bytes(0x4800), b"\x17\x03\x03\x00\x20" + bytes(32)):
        server = Recorder()
        async with intercepting(Says(), server) as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
            client = Client(flow, trusting(runtime), "api.test")
            await client.handshake()
            await client.send(b"POST / HTTP/1.1\r\nHost: api.test:%d\r\nContent-Length: 10\r\n\r\n12" % port)
            await flow.guest_send(garbage)
            with pytest.raises(ssl.SSLError) as caught:
                while await client.receive():
                    pass
            assert "ALERT" in str(caught.value.reason), garbage[:8]
            assert await flow.guest_receive() == b"" and flow.host_closed
        assert not server.requests  # the body did not come to its end


@async_test
async def test_a_stream_that_just_ends_and_one_half_closed() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async with intercepting(Says(), echo) as (runtime, port):
        async with guest(runtime, "127.0.0.1", port) as flow:
            client = Client(flow, trusting(runtime), "api.test")
            await client.handshake()
            await client.send(b"\0\1raw protocol\n")
            assert await client.exactly(15) == b"\0\1raw protocol\n"
            flow.guest_send_eof()
            assert await client.receive() == b""  # close_notify
        async with guest(runtime, "127.0.0.1", port) as flow:
            client = Client(flow, trusting(runtime), "api.test")
            await client.handshake()
            flow.guest_send_eof()  # nothing was said
            await flow.guest_read_all()


@async_test
async def test_raw_protocols_inside_need_the_permission_for_tls() -> None:
    class Sighted(Says):
        @hookimpl
        def allow(self, destination: Destination) -> None:
            if destination.scheme == "tls":
                raise Denied("nothing unseen", destination.host)

    server = Recorder()
    async with intercepting(Sighted(), server) as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
        client = Client(flow, trusting(runtime), "api.test")
        await client.handshake()
        await client.send(b"\0\1raw protocol\n")
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            assert await client.receive()
    assert runtime.counters["flows_denied"] == 1


@async_test
async def test_big_bodies_both_ways_through_a_small_ring() -> None:
    body = bytes(range(256)) * 8000

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        data = await reader.readexactly(len(body))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        await writer.drain()

    async with intercepting(Says(), handler) as (runtime, port), guest(runtime, "127.0.0.1", port, ring=5000) as flow:
        client = Client(flow, trusting(runtime), "api.test")
        await client.handshake()
        head = b"POST / HTTP/1.1\r\nHost: api.test:%d\r\nContent-Length: %d\r\n\r\n" % (port, len(body))
        await client.send(head + body)
        answer = await client.exactly(len(body) + len(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)))
        assert answer.endswith(body)


@async_test
async def test_a_client_that_dawdles_or_floods_in_its_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_tls, "HANDSHAKE_SECONDS", 0.2)
    async with intercepting(Says(), Recorder()) as (runtime, port):
        async with guest(runtime, "127.0.0.1", port) as flow:
            client = Client(flow, trusting(runtime), "api.test")
            with contextlib.suppress(ssl.SSLWantReadError):
                client.tls.do_handshake()
            await client.flush()  # and never a Finished
            await flow.guest_read_all()
        assert runtime.counters["tls_interception_failed"] == 1
        monkeypatch.setattr(own_tls, "HANDSHAKE_SECONDS", 20.0)
        async with guest(runtime, "127.0.0.1", port) as flow:
            client = Client(flow, trusting(runtime), "api.test")
            with contextlib.suppress(ssl.SSLWantReadError):
                client.tls.do_handshake()
            await client.flush()
            with contextlib.suppress(BrokenPipeError):
                for _ in range(100000):
                    await flow.guest_send(b"\x14\x03\x03\0\1\1" * 1000)
            assert flow.host_closed
        assert runtime.counters["tls_interception_failed"] == 2


@async_test
async def test_an_agents_handshakes_have_a_rate() -> None:
    interceptor = own_tls.Interceptor()
    greedy, modest = make_agent("greedy"), make_agent("modest")
    loop = asyncio.get_running_loop()
    turns = [loop.create_task(interceptor.turn(greedy)) for _ in range(int(own_tls.BURST) + 50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting = [task for task in turns if not task.done()]
    assert 0 < len(waiting) <= 50
    await asyncio.wait_for(interceptor.turn(modest), 0.2)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for number in range(2 * own_tls.MAX_WAITING):
        await interceptor.turn(make_agent(str(number)))
    assert len(interceptor._turns) == own_tls.MAX_WAITING


@async_test
async def test_key_updates_are_answered_and_do_not_starve_others(tmp_path: Path) -> None:
    """TLS 1.3 lets a client ask for new keys at any time, as often as it likes; Python's ssl has no call for it."""
    async with intercepting(Says(), Recorder()) as (runtime, port), guest(runtime, "127.0.0.1", port) as flow:
        (tmp_path / "ca.pem").write_bytes(runtime.interceptor.authority.pem)
        client = openssl_client.Client("api.test", str(tmp_path / "ca.pem"))
        while not client.handshake():
            await flow.guest_send(client.output())
            client.feed(await flow.guest_receive())
        for _ in range(500):
            client.update_keys()
            await flow.guest_send(client.output())
        client.write(b"GET / HTTP/1.1\r\nHost: api.test:%d\r\n\r\n" % port)
        await flow.guest_send(client.output())
        while (answer := client.read()) is None:
            client.feed(await flow.guest_receive())
        assert answer == OK


@async_test
async def test_a_client_that_sends_and_does_not_read_begins_one_task() -> None:
    inner = MemoryFlow("127.0.0.1", 443, ring=4096)
    inner.opened()
    flow = TlsFlow(inner, SERVER.context(Destination("https", "api.test", 443), None))
    client = Client(inner, TRUSTING, "api.test")
    await asyncio.gather(flow.handshake(b""), client.handshake())
    sending = asyncio.create_task(flow.send(bytes(65536)))
    await asyncio.sleep(0)
    assert flow._out.pending
    before = len(asyncio.all_tasks())
    for _ in range(50):
        await client.send(b"x")
        assert await flow.receive() == b"x"
    assert len(asyncio.all_tasks()) <= before + 1
    assert await client.exactly(65536) == bytes(65536)
    await sending
    await flow.finish()


def test_the_authority_and_its_leaves_satisfy_a_strict_verifier() -> None:
    """cryptography's verifier follows RFC 5280 and the CA/B forum's profile, as webpki does."""
    authority = FleetCa()
    assert isinstance(authority.certificate.public_key(), ec.EllipticCurvePublicKey)
    store = Store([authority.certificate])
    for host in ("api.test", "10.2.3.4", "::1", "a" * 60 + ".example.test"):
        destination = Destination.make("https", host, 443)
        leaf = authority.leaf(destination, datetime.now(UTC), datetime.now(UTC) + timedelta(days=1))
        name = x509.IPAddress(ipaddress.ip_address(host)) if destination.is_address else x509.DNSName(host)
        PolicyBuilder().store(store).build_server_verifier(name).verify(leaf, [])
    assert FleetCa().certificate.subject != authority.certificate.subject


def test_contexts_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentfw.fleet_ca.LEAVES", 3)
    authority = FleetCa()
    made = [authority.context(Destination("https", f"h{n}.test", 443), None) for n in range(5)]
    assert len(authority._contexts) == 3
    assert authority.context(Destination("https", "h4.test", 8443), None) is made[4]
    assert authority.context(Destination("https", "h0.test", 443), None) is not made[0]
    monkeypatch.setattr("agentfw.fleet_ca.LEAF_DAYS", 0)
    short = authority.context(Destination("https", "short.test", 443), None)
    assert authority.context(Destination("https", "short.test", 443), None) is not short


def test_a_fleet_may_run_for_years(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=1000)

    authority = FleetCa()
    monkeypatch.setattr("agentfw.fleet_ca.datetime", Later)
    destination = Destination("https", "h.test", 443)
    assert authority.context(destination, None) is authority.context(destination, None)


def test_protocols_of_hellos() -> None:
    def hello(*protocols: str) -> bytes:
        context = ssl.create_default_context()
        if protocols:
            context.set_alpn_protocols(protocols)
        out = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="a.test").do_handshake()
        message = client_hello(out.read())
        assert message is not None
        return message

    assert alpn(hello("h2", "http/1.1")) == ("h2", "http/1.1")
    assert alpn(hello()) == () and server_name(hello()) == "a.test"


def with_extension(hello: bytes, extension: bytes) -> bytes:
    """The one record `hello`, with an extension more."""
    at = 5 + 4 + 2 + 32
    for size in (1, 2, 1):  # session, cipher suites, compression
        at += size + int.from_bytes(hello[at : at + size])
    body = hello[at + 2 :] + extension
    message = hello[9:at] + len(body).to_bytes(2) + body
    return hello[:3] + (len(message) + 4).to_bytes(2) + b"\1" + len(message).to_bytes(3) + message


@async_test
async def test_an_encrypted_hello_means_its_outer_name_where_it_ends() -> None:
    """Clients that pose as browsers send the extension for nothing. Passed through, it might mean another server."""
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="api.test").do_handshake()
    data = with_extension(out.read(), b"\xfe\x0d\0\x08" + bytes(8))
    for verdict, record in (("intercept", 0x16), ("passthrough", 0x15)):
        server, native = Recorder(), Native(NativeConfig())
        async with (
            intercepting(Says(verdict), server, more=(native,)) as (runtime, port),
            guest(runtime, "127.0.0.1", port) as flow,
        ):
            await flow.guest_send(data)
            assert (await flow.guest_receive())[0] == record
        assert verdict == "intercept" or not server.connections


def test_what_needs_no_authority() -> None:
    from agentfw.plugins import PluginManager

    class Never:
        intercepts = False

        @hookimpl
        def own_tls(self) -> str:
            return "passthrough"

    for plugin, may in ((Never(), False), (Says(), True), (Loopback(), False)):
        manager = PluginManager()
        manager.add("it", plugin)
        manager.compile()
        assert manager.may_intercept is may


SERVER = FleetCa()
TRUSTING = ssl.create_default_context(cadata=SERVER.pem.decode())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=40000), max_size=6),
    st.lists(st.integers(1, 20000), min_size=1, max_size=5),
    st.integers(200, 70000),
    st.none() | st.tuples(st.integers(0, 100000), st.integers(1, 255)),
)
def test_what_comes_out_of_a_tls_flow_is_what_went_in(
    messages: list[bytes], sizes: list[int], ring: int, flip: tuple[int, int] | None
) -> None:
    """Cut as the ring likes; with a byte changed, a beginning of it and an error. And the same bytes back."""

    async def body() -> None:
        inner = MemoryFlow("127.0.0.1", 443, ring=ring)
        inner.opened()
        flow = TlsFlow(inner, SERVER.context(Destination("https", "api.test", 443), None))
        client = Client(inner, TRUSTING, "api.test")
        await asyncio.gather(flow.handshake(b""), client.handshake())
        for message in messages:
            client.tls.write(message)
        sealed = bytearray(client.outgoing.read())
        if flip is not None and sealed:
            sealed[flip[0] % len(sealed)] ^= flip[1]
        whole = b"".join(messages)

        async def write() -> None:
            with contextlib.suppress(BrokenPipeError):
                for at, size in cut(len(sealed), sizes):
                    await inner.guest_send(sealed[at : at + size])
                    await asyncio.sleep(0)
                inner.guest_send_eof()

        got = bytearray()
        writing = asyncio.create_task(write())
        broken = False
        try:
            while data := await flow.receive(sizes[0]):
                got += data
        except BrokenTls:
            broken = True
        if flip is not None and sealed:  # a length may have grown beyond the end: then it is cut off, not broken
            assert whole.startswith(got) and got != whole
        else:
            assert got == whole and not broken
            reading = asyncio.create_task(client.exactly(len(whole)))
            await flow.send(whole)
            assert await reading == whole
        if broken:
            while await inner.guest_receive():
                pass
        await asyncio.wait_for(flow.finish(), 10)
        assert inner.host_closed
        await asyncio.wait_for(writing, 10)

    asyncio.run(body())


def cut(length: int, sizes: list[int]) -> list[tuple[int, int]]:
    """[(where, how much)], the sizes taken in turn."""
    found, at = [], 0
    while at < length:
        found.append((at, sizes[len(found) % len(sizes)]))
        at += found[-1][1]
    return found
