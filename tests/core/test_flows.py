"""What a guest's flow turns out to be: DNS, TLS of both kinds, raw, UDP. Guests in memory, servers on 127.0.0.1."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Any, cast

import agentfw.relay.udp
import dnslib
import pytest
import trustme
from agentfw import Agent, Denied, Destination, TlsInfo, hookimpl
from agentfw.errors import ProtocolError, ResolveError
from agentfw.relay.flow import classify
from agentfw.relay.hello import alpn, check_open, client_hello, server_name
from agentfw.relay.preface import MAGIC
from agentfw.runtime import Runtime
from agentfw.testing import make_agent
from agentfw_native import Config as NativeConfig
from agentfw_native import Plugin as Native
from hypothesis import given, settings
from hypothesis import strategies as st

from .support import (
    CA,
    RESOLVER,
    Loopback,
    Names,
    Recorder,
    TlsOnce,
    async_test,
    exactly,
    guest,
    lookup,
    offload,
    read_response,
    running,
    serving,
)

HOST = "api.example"
NOT_SPOKEN = "203.0.113.5"


class Rules:
    """An `allow` hook: these names and addresses only."""

    name = "rules"

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self.asked: list[Destination] = []

    @hookimpl
    def allow(self, destination: Destination) -> None:
        self.asked.append(destination)
        if destination.host not in self.hosts:
            raise Denied("rules", f"{destination.host} is not one of ours")


def native() -> Native:
    return Native(NativeConfig())


def names() -> Names:
    return Names(
        **{
            HOST: "127.0.0.1",
            "other.example": "127.0.0.1",
            "private.example": "10.0.0.1",
            "mixed.example": ["127.0.0.1", "10.0.0.1"],
            "six.example": ["::1", "127.0.0.1"],
        }
    )


# -- DNS


def options(record: dnslib.DNSRecord) -> list[tuple[int, bytes]]:
    return [(option.code, bytes(option.data)) for r in record.ar if r.rtype == dnslib.QTYPE.OPT for option in r.rdata]


async def ask(runtime: Runtime, query: bytes) -> bytes | None:
    """Over UDP; None if nothing has come when a question asked afterwards is answered."""
    async with guest(runtime, *RESOLVER, "udp") as flow:
        await flow.guest_send_datagram(query)
        await asyncio.sleep(0.05)
        await flow.guest_send_datagram(bytes(dnslib.DNSRecord(dnslib.DNSHeader(id=0xFFFF), q=dnslib.DNSQuestion(HOST)).pack()))
        reply = None
        while (data := (await flow.guest_receive_datagram())[0])[:2] != b"\xff\xff":
            reply = data
        return reply


@async_test
async def test_dns_answers_over_udp_and_tcp() -> None:
    async with running(names()) as runtime, running(names(), Loopback()) as open_runtime:
        record = await lookup(open_runtime, "API.Example.")
        assert [str(r.rdata) for r in record.rr] == ["10.0.2.2"] and str(record.q.qname) == "API.Example."
        async with guest(open_runtime, *RESOLVER) as flow:
            assert await flow.guest_connected() == 0
            for name in (HOST, "other.example"):
                query = bytes(dnslib.DNSRecord.question(name).pack())
                for byte in len(query).to_bytes(2) + query:
                    await flow.guest_send(bytes([byte]))
                reply = await exactly(flow, int.from_bytes(await exactly(flow, 2)))
                assert reply[:2] == query[:2] and dnslib.DNSRecord.parse(reply).short() == "10.0.2.2"
        record = await lookup(runtime, HOST)  # nobody says that 127.0.0.1 may be dialled
        assert record.header.rcode == dnslib.RCODE.REFUSED and not record.rr


@async_test
async def test_dns_removes_addresses_that_may_not_be_dialled() -> None:
    async with running(names(), Loopback()) as runtime:
        record = await lookup(runtime, "mixed.example")
        assert [str(r.rdata) for r in record.rr] == ["10.0.2.2"]  # 127.0.0.1 is the guest itself
        assert (await lookup(runtime, "private.example")).header.rcode == dnslib.RCODE.REFUSED
        for address in ("127.0.0.1", "10.0.2.2"):
            assert runtime.hosts(make_agent(), address) == ["mixed.example", address]
        assert runtime.hosts(make_agent(), "10.0.0.1") == ["10.0.0.1"]
        assert runtime.hosts(make_agent("somebody else"), "127.0.0.1") == ["127.0.0.1"]


@async_test
async def test_dns_denials_and_failures_are_extended_errors() -> None:
    known = names()
    async with running(known, Rules(HOST, "missing.example"), Loopback()) as runtime:
        query = dnslib.DNSRecord.question("secret-data.attacker.example")
        query.add_ar(dnslib.EDNS0(udp_len=1232))
        reply = await ask(runtime, bytes(query.pack()))
        assert reply is not None
        record = dnslib.DNSRecord.parse(reply)
        assert record.header.rcode == dnslib.RCODE.REFUSED and record.q.qname == query.q.qname
        ((code, data),) = options(record)
        assert code == 15 and data[:2] == b"\0\x0f" and b"rules" in data
        assert known.asked == [HOST], "a denied name must not reach a resolver"
        assert (await lookup(runtime, "missing.example")).header.rcode == dnslib.RCODE.NXDOMAIN
        plain = await lookup(runtime, "attacker.example")
        assert plain.header.rcode == dnslib.RCODE.REFUSED and not plain.ar


@pytest.mark.parametrize("mode", ["raise", "junk", "short", "id"])
@async_test
async def test_a_broken_resolve_hook_is_servfail(mode: str) -> None:
    class Broken:
        name = "broken"

        @hookimpl
        async def resolve(self, query: bytes) -> bytes:
            if mode == "raise":
                raise KeyError("x")
            return {"junk": 7, "short": query[:8], "id": b"\0\0" + query[2:]}[mode]  # type: ignore[return-value]

    async with running(Broken()) as runtime:
        assert (await lookup(runtime, HOST)).header.rcode == dnslib.RCODE.SERVFAIL


def question(*labels: bytes, tail: bytes = b"\0\1\0\1", count: int = 1) -> bytes:
    return (
        b"\x12\x34\x01\0"
        + count.to_bytes(2)
        + bytes(6)
        + b"".join(bytes([len(label)]) + label for label in labels)
        + b"\0"
        + tail
    )


@pytest.mark.parametrize(
    ("query", "rcode"),
    [
        (b"", None),
        (b"\x12\x34\x01\0", None),
        (b"\x12\x34\x81\x80" + question(b"a")[4:], None),  # a reply
        (question(b"api", b"example", count=2), dnslib.RCODE.FORMERR),
        (question(b"api", b"example", count=0), dnslib.RCODE.FORMERR),
        (question(b"api", b"example")[:-3], dnslib.RCODE.FORMERR),
        (b"\x12\x34\x01\0\0\1" + bytes(6) + b"\xc0\x0c\0\1\0\1", dnslib.RCODE.FORMERR),  # a pointer to itself
        (question(b"api.example"), dnslib.RCODE.REFUSED),
        (question(b"api\0x", b"example"), dnslib.RCODE.REFUSED),
        (question(b"a%p", b"example"), dnslib.RCODE.REFUSED),
        (question(b"\xff\xfe", b"example"), dnslib.RCODE.REFUSED),
        (question(b"127", b"1"), dnslib.RCODE.REFUSED),
        (question(), dnslib.RCODE.REFUSED),
        (question(b"api", b"example", tail=b"\0\1\0\3"), dnslib.RCODE.REFUSED),  # class CHAOS
        (b"\x12\x34\x28\0" + question(b"api", b"example")[4:], dnslib.RCODE.NOTIMP),  # UPDATE
        (question(b"api", b"example") + bytes(5000), dnslib.RCODE.FORMERR),
    ],
)  # fmt: skip
@async_test
async def test_odd_queries(query: bytes, rcode: int | None) -> None:
    known = names()
    async with running(known, Loopback()) as runtime:
        reply = await ask(runtime, query)
        assert (None if reply is None else reply[3] & 15) == rcode
        assert reply is None or (reply[:2] == b"\x12\x34" and reply[2] & 0x80)
        assert known.asked == [HOST], "only the question asked afterwards"


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=12, max_size=80))
def test_no_query_breaks_the_resolver(query: bytes) -> None:
    async def body() -> None:
        async with running(names()) as runtime:
            await ask(runtime, query)

    asyncio.run(body())


@async_test
async def test_big_replies_are_truncated_over_udp_only() -> None:
    many = Names(**{HOST: [f"8.8.{n}.1" for n in range(100)]})
    async with running(many, Loopback()) as runtime:
        record = await lookup(runtime, HOST)
        assert record.header.tc and not record.rr
        query = dnslib.DNSRecord.question(HOST)
        query.add_ar(dnslib.EDNS0(udp_len=4096))
        reply = await ask(runtime, bytes(query.pack()))
        assert reply is not None and len(dnslib.DNSRecord.parse(reply).rr) == 100


@async_test
async def test_only_dns_is_spoken_at_the_resolvers_address() -> None:
    async with running(names()) as runtime, guest(runtime, "10.0.2.3", 80) as flow:
        assert await flow.guest_connected() == errno.ECONNREFUSED


# -- what a flow is

_CIPHERS = b"".join(b"\0" + cipher for cipher in (b"\xc0\x2f", b"\x00\x9c", b"\x00\x2f", b"\x00\xff"))
OLD_HELLO = b"\x80%c\x01\x03\x03\0%c\0\0\0\x20" % (9 + len(_CIPHERS) + 32, len(_CIPHERS)) + _CIPHERS + bytes(32)
"""TLS 1.2 offered in the form of SSL 2.0."""


@async_test
async def test_a_hello_in_the_form_of_ssl_2_is_no_way_past_what_is_said_of_tls() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CA.issue_cert(HOST, key_type=trustme.KeyType.RSA).configure_cert(context)
    context.set_ciphers("ALL:@SECLEVEL=0")
    inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
    inside.write(OLD_HELLO)
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(inside, outside, server_side=True).do_handshake()
    assert outside.read(6)[5] == 2, "OpenSSL answers it with a ServerHello"

    met: list[bytes] = []

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append(await reader.read(100))

    async with serving(server) as port, running(names(), Loopback(), native()) as runtime:
        await lookup(runtime, HOST)
        for cut in (len(OLD_HELLO), 1, 9):
            async with guest(runtime, "127.0.0.1", port) as flow:
                await flow.guest_send(OLD_HELLO[:cut])
                await flow.guest_send(OLD_HELLO[cut:])
                assert await flow.guest_read_all() == b"\x15\x03\x03\0\2\2\x31", "access denied"
    assert not met


@pytest.mark.parametrize(
    ("data", "speaks"),
    [
        (b"GET / HTTP/1.1\r\n", "http"), (b"get / http/1.1\r\n", "http"), (b"\r\n\r\n POST /", "http"),
        (b"BREW /pot HTTP/1.1\r\n", "http"), (b"G", None), (b"BREW /pot HT", None),
        (b"EHLO me\r\n", "raw"), (b"SSH-2.0-x\r\n", "raw"), (b"*1\r\n$4\r\nPING\r\n", None),
        (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", "raw"), (MAGIC, "preface"), (MAGIC[:3], None),
        (b"\x16\x03", "hello"), (b"\x16", None), (b"\x16\x04", "raw"), (b"", None), (b"PRI * HTTP/2.0\r\n", "http"),
        (b"USER a b c d\n", "raw"), (b"\x80\x01", "raw"),
        (OLD_HELLO, "hello"), (OLD_HELLO[:11], "hello"), (OLD_HELLO[:10], None), (OLD_HELLO[:1], None),
        (b"\x81" + OLD_HELLO[1:], "raw"),
        (b"<xml", "raw"), (b"OPTIONS\t*", "http"), (b"XGET / HTTP/1.1\n", "http"),
    ],
)  # fmt: skip
def test_classification(data: bytes, speaks: str | None) -> None:
    assert classify(data, False, False, False) == (speaks if data[:1] != b"*" else "raw")
    if data[:1] not in (b"\0", b"\x16", b""):
        assert classify(data, False, True, False) == "http"


@async_test
async def test_raw_both_ways_with_half_close() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        writer.write(data.upper() * 3)

    async with serving(shout) as port, running(names(), Loopback(), native()) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await flow.guest_send(b"\x00hello")
            await flow.guest_send(b" there" * 50000)
            flow.guest_send_eof()
            assert await flow.guest_read_all() == (b"\x00HELLO" + b" THERE" * 50000) * 3


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentfw.relay.flow.SPEAKS_FIRST", 0.05)


@pytest.mark.usefixtures("impatient")
@async_test
async def test_servers_that_speak_first() -> None:
    async def smtp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        writer.write(b"250 " + await reader.readline())

    async with (
        serving(smtp) as port,
        running(names(), Loopback(), native()) as runtime,
        guest(runtime, "127.0.0.1", port) as flow,
    ):
        assert await flow.guest_read_until(b"\r\n") == b"220 hello\r\n"
        await flow.guest_send(b"EHLO me\r\n")
        assert await flow.guest_read_all() == b"250 EHLO me\r\n"


@pytest.mark.usefixtures("impatient")
@async_test
async def test_a_guest_that_is_only_slow_may_still_say_what_is_permitted() -> None:
    class NoRaw:
        name = "noraw"

        @hookimpl
        def allow(self, destination: Destination) -> None:
            if destination.scheme in ("tcp", "tls"):
                raise Denied("noraw", "only what can be looked into")

    async with serving(Recorder(), HOST) as port, running(names(), NoRaw(), Loopback(), TlsOnce(), native()) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await asyncio.sleep(0.2)
            assert (await offload(flow, HOST))["ok"]
        async with guest(runtime, "127.0.0.1", port) as flow:
            await asyncio.sleep(0.2)
            await flow.guest_send(b"\0something else")
            with pytest.raises(ConnectionResetError):
                await flow.guest_read_all()


@pytest.mark.usefixtures("impatient")
@async_test
async def test_a_guest_that_is_only_slow_still_speaks_http() -> None:
    server = Recorder()
    async with serving(server) as port, running(names(), Loopback(), native()) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await asyncio.sleep(0.2)
            for byte in b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n":
                await flow.guest_send(bytes([byte]))
            assert (await read_response(flow))[0] == 400
        async with guest(runtime, "127.0.0.1", port) as flow:
            await asyncio.sleep(0.2)
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            assert (await read_response(flow))[0] == 200
    assert len(server.requests) == 1


@async_test
async def test_what_the_guest_sent_before_it_closed_arrives() -> None:
    got = bytearray()
    ended = asyncio.Event()

    async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            got.extend(data)
        ended.set()

    async with serving(sink) as port, running(Loopback(), native()) as runtime:
        async with guest(runtime, "127.0.0.1", port) as flow:
            await flow.guest_send(b"\1" * 50000)
        await ended.wait()
    assert len(got) == 50000


@async_test
async def test_connects_that_can_never_be_allowed_fail_at_once() -> None:
    rules = Rules(HOST)
    async with running(names(), rules, Loopback(), native()) as runtime:
        agent = make_agent()
        await lookup(runtime, HOST, agent)
        for address, allowed in (
            ("127.0.0.1", True),
            ("127.0.0.2", False),
            ("10.0.0.1", False),
            ("8.8.8.8", False),
            ("::ffff:127.0.0.1", True),
            ("fe80::1%lo", False),
        ):
            async with guest(runtime, address, 443, agent=agent) as flow:
                assert (await flow.guest_connected() == 0) == allowed, address
    async with running(names(), native()) as runtime:  # no rules: public addresses only
        for address in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"):
            async with guest(runtime, address, 443) as flow:
                assert await flow.guest_connected() == errno.EACCES, address


@async_test
async def test_a_hook_that_raises_refuses_the_connect() -> None:
    class Broken:
        name = "broken"

        @hookimpl
        async def allow(self) -> None:
            raise RuntimeError

    async with running(Broken()) as runtime, guest(runtime, "8.8.8.8", 443) as flow:
        assert await flow.guest_connected() == errno.ECONNREFUSED


# -- TLS


@async_test
async def test_offloaded_tls_tells_what_was_negotiated() -> None:
    tls = TlsOnce()
    async with serving(Recorder(), HOST) as port, running(names(), Loopback(), tls) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            answer = await offload(flow, "API.example.", alpn=["h2", "http/1.1"], min=-2, max=-1)
            assert answer["ok"] and answer["version"] == "TLSv1.3" and answer["alpn"] is None and answer["cipher"][2] >= 128
        async with guest(runtime, "127.0.0.1", port) as flow:
            assert (await offload(flow, "API.example.", alpn=["h2"]))["reason"] == "NO_APPLICATION_PROTOCOL"
    (request,) = tls.requests
    assert (request.server_name, request.alpn, request.minimum, request.maximum) == (HOST, ("http/1.1",), 0, 0)


@pytest.mark.parametrize(
    ("server", "name", "code", "reason"),
    [("wrong.example", HOST, 62, "CERTIFICATE_VERIFY_FAILED"), (HOST, "private.example", 0, "AGENTFW_DENIED"),
    (HOST, "missing.example", 0, "AGENTFW_UPSTREAM"),
     (HOST, "nul\0.example", 0, "AGENTFW_UPSTREAM"), (HOST, "2130706433", 0, "AGENTFW_UPSTREAM")],
)  # fmt: skip
@async_test
async def test_refused_handshakes(server: str, name: str, code: int, reason: str) -> None:
    recorder = Recorder()
    async with (
        serving(recorder, server) as port,
        running(names(), Loopback(), TlsOnce()) as runtime,
        guest(runtime, "127.0.0.1", port) as flow,
    ):
        answer = await offload(flow, name, verify=0, check_hostname=False)
        assert (answer["ok"], answer["verify_code"], answer["reason"]) == (False, code, reason), answer
        assert await flow.guest_receive() == b""
    assert recorder.requests == []


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\x40\0" + b'{"x":' + b"[" * 16379,
        b"\0\0\0\2[]",
        b"\0\0\0\2{}",
        b"\0\0\0\1{",
        b'\0\0\0\x13{"server_name": 123}',
        b"\0\0\0\2\xff\xff",
    ],
)
@async_test
async def test_malformed_prefaces_reset_the_flow(data: bytes) -> None:
    async with running(names(), Loopback(), TlsOnce()) as runtime, guest(runtime, "127.0.0.1", 443) as flow:
        await flow.guest_send(MAGIC + data)
        with pytest.raises(ConnectionResetError):
            await flow.guest_read_all()
        assert not runtime.counters["flows_broken"]  # it is the guest's mistake, not one of ours


@async_test
async def test_no_server_name_means_the_name_the_address_was_given_for() -> None:
    async with serving(Recorder(), HOST) as port, running(names(), Loopback(), TlsOnce()) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            assert (await offload(flow, None))["ok"]
            await flow.guest_send(b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n")
            assert (await read_response(flow))[0] == 200


@async_test
async def test_other_protocols_inside_offloaded_tls() -> None:
    async def redis(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"+" + await reader.readline())

    rules = Rules(HOST)
    async with serving(redis, HOST) as port, running(names(), rules, Loopback(), TlsOnce()) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            assert (await offload(flow, HOST, alpn=[]))["ok"]
            await flow.guest_send(b"*1 PING\n")
            assert await flow.guest_receive() == b"+*1 PING\n"
        assert Destination("tls", HOST, port) in rules.asked
        async with guest(runtime, "127.0.0.1", port) as flow:  # with HTTP agreed on, nothing else passes
            assert (await offload(flow, HOST))["ok"]
            await flow.guest_send(b"*1 PING\n")
            assert (await read_response(flow))[0] == 400


def hello_for(name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    channel = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        channel.do_handshake()
    return outgoing.read()


async def handshake(flow: object, name: str) -> ssl.SSLObject:
    from agentfw.testing import MemoryFlow

    assert isinstance(flow, MemoryFlow)
    context = ssl.create_default_context()
    CA.configure_trust(context)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    channel = context.wrap_bio(incoming, outgoing, server_hostname=name)
    while True:
        try:
            channel.do_handshake()
            await flow.guest_send(outgoing.read())
            return channel
        except ssl.SSLWantReadError:
            await flow.guest_send(outgoing.read())
            data = await flow.guest_receive()
            incoming.write(data) if data else incoming.write_eof()


@async_test
async def test_the_agents_own_tls_passes_to_permitted_names_only() -> None:
    rules = Rules(HOST)
    async with serving(Recorder(), HOST) as port, running(names(), rules, Loopback(), native()) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            channel = await handshake(flow, HOST)
            assert channel.version() == "TLSv1.3"
        async with guest(runtime, "127.0.0.1", port) as flow:
            with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
                await handshake(flow, "evil.example")


def test_server_names_of_hellos() -> None:
    for name in ("api.example", "x" * 60 + ".example"):
        data = hello_for(name)
        for at in range(len(data)):
            assert client_hello(data[:at]) is None
        message = client_hello(data)
        assert message is not None and server_name(message) == name
        split = data[:3] + (1).to_bytes(2) + data[5:6] + data[:3] + (len(data) - 6).to_bytes(2) + data[6:]  # a record a byte long
        assert client_hello(split) == message
        doubled = message.replace(name.encode(), b"y" * len(name))
        assert server_name(doubled) == "y" * len(name)
    none = client_hello(hello_for(None))
    assert none is not None and server_name(none) is None


@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(0, 600), st.integers(0, 255))
def test_garbled_hellos_are_refused_or_read(junk: bytes, place: int, byte: int) -> None:
    data = bytearray(hello_for("api.example"))
    data[place % len(data)] = byte
    for candidate in (bytes(data), b"\x16\x03\x01" + len(junk).to_bytes(2) + junk):
        try:
            message = client_hello(candidate)
            if message is not None:
                server_name(message)
                check_open(message)
                alpn(message)
        except ProtocolError:
            pass


def test_hellos_that_hide_or_repeat_their_name() -> None:
    def hello(*extensions: bytes) -> bytes:
        body = b"".join(extensions)
        return b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(body).to_bytes(2) + body

    def sni(*names: bytes) -> bytes:
        entries = b"".join(b"\0" + len(name).to_bytes(2) + name for name in names)
        return b"\0\0" + (len(entries) + 2).to_bytes(2) + len(entries).to_bytes(2) + entries

    assert server_name(hello(sni(b"a.example"))) == "a.example"
    one = sni(b"a.example")
    for bad in (
        hello(one, sni(b"b.example")),
        hello(sni(b"a.example", b"b.example")),
        hello(one, b"\xfe\x0d\0\0"),
        hello(sni(b"\xff")),
        hello(b"\0\0\0\0"),
    ):
        with pytest.raises(ProtocolError):
            check_open(bad)
            server_name(bad)


def test_hellos_in_very_many_pieces_are_refused() -> None:
    """Each look at what has come so far begins at the first piece."""
    message = b"\x01\0\x10\0" + bytes(4096)
    for size, refused in ((128, False), (1, True)):
        records = [b"\x16\3\1" + size.to_bytes(2) + message[at : at + size] for at in range(0, 4096, size)]
        if refused:
            with pytest.raises(ProtocolError, match="pieces"):
                client_hello(b"".join(records))
        else:
            assert client_hello(b"".join(records)) is None


@pytest.mark.parametrize("filler", [b"\r\n", b" ", b"x", b"x y", b"GET"])
def test_what_a_stream_is_gets_decided(filler: bytes) -> None:
    """Whatever the guest goes on sending, only so much is kept."""
    assert classify((filler * 50000)[:50000], False, False, False) is not None


# -- UDP


@async_test
async def test_udp_to_permitted_peers() -> None:
    loop = asyncio.get_running_loop()

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.DatagramTransport, transport)

        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            self.transport.sendto(data[::-1], addr)

    transport, _ = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    try:
        async with running(names(), Loopback(), native()) as runtime, guest(runtime, "", 0, "udp") as flow:
            assert await flow.guest_connected() == 0
            await flow.guest_send_datagram(b"refused", NOT_SPOKEN, 9)
            for text in (b"abc", b"x" * 1400):
                await flow.guest_send_datagram(text, "127.0.0.1", port)
                assert await flow.guest_receive_datagram() == (text[::-1], "127.0.0.1", port)
            await asyncio.sleep(0)
            assert runtime.counters["udp_refused"] == 1
    finally:
        transport.close()


@async_test
async def test_one_agents_udp_peers_are_bounded_over_all_its_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentfw.relay.udp, "MAX_AGENT_PEERS", 3)
    async with running(names(), Loopback(), native()) as runtime:
        async with guest(runtime, "", 0, "udp") as one, guest(runtime, "", 0, "udp") as two:
            for port in (1001, 1002):
                for flow in (one, two):
                    await flow.guest_send_datagram(b"x", "127.0.0.1", port)
            for _ in range(20):
                await asyncio.sleep(0)
            assert (runtime.counters["udp_dropped"], runtime.udp_peers) == (1, {"test": 3})
        assert not runtime.udp_peers


@async_test
async def test_what_waits_for_a_udp_peer_is_bounded_in_bytes_too() -> None:
    class Never:
        name = "never"

        @hookimpl
        async def connect(self) -> None:
            await asyncio.Event().wait()

    async with running(names(), Loopback(), Never()) as runtime, guest(runtime, "", 0, "udp") as flow:
        for _ in range(10):
            await flow.guest_send_datagram(bytes(60000), "127.0.0.1", 1001)
        for _ in range(20):
            await asyncio.sleep(0)
        assert runtime.counters["udp_dropped"] == 10 - agentfw.relay.udp.MAX_QUEUED_BYTES // 60000


# -- runtime


@async_test
async def test_addresses_are_vetted_again_right_before_the_dial() -> None:
    class Flips:
        name = "flips"
        asked = 0

        @hookimpl
        def dial(self) -> bool:
            self.asked += 1
            return self.asked == 1

    flips = Flips()
    async with serving(Recorder()) as port, running(names(), flips) as runtime:
        with pytest.raises(Denied):
            await runtime.dial(make_agent(), Destination("tcp", HOST, port))
    assert flips.asked == 2


@async_test
async def test_addresses_are_tried_in_turn() -> None:
    async with serving(Recorder()) as port, running(names(), Native(NativeConfig())) as runtime:

        class Both:
            name = "both"

            @hookimpl
            def dial(self) -> bool:
                return True

        runtime.plugins.add("both", Both())
        runtime.plugins.compile()
        sock = await runtime.dial(make_agent(), Destination("tcp", "six.example", port))
        assert sock.getpeername()[0] == "127.0.0.1" and not sock.getblocking()
        sock.close()
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        with pytest.raises(Exception, match="ECONNREFUSED"):
            await runtime.dial(make_agent(), Destination("tcp", "six.example", port))


@async_test
async def test_what_is_remembered_of_an_agent_goes_with_it() -> None:
    from agentfw import ExitReport

    async with running(names(), Loopback()) as runtime:
        agent = Agent("7", "seven")
        await lookup(runtime, HOST, agent)
        assert runtime.hosts(agent, "127.0.0.1") == [HOST, "127.0.0.1"]
        runtime.agent_exited(agent, ExitReport("code"))
        assert runtime.hosts(agent, "127.0.0.1") == ["127.0.0.1"]


@async_test
async def test_the_native_plugin_resolves_what_the_host_knows() -> None:
    async with running(native(), Loopback()) as runtime:
        assert "127.0.0.1" in await runtime.resolve_addresses(make_agent(), Destination("tcp", "localhost", 1))
        with pytest.raises(ResolveError):
            await runtime.resolve_addresses(make_agent(), Destination("tcp", "does-not-exist.invalid", 1))
        assert (await lookup(runtime, "localhost", qtype="MX")).header.rcode == dnslib.RCODE.NOTIMP


@pytest.mark.parametrize("wrong", ["cleartext", "elsewhere"])
@async_test
async def test_a_connection_other_than_asked_for_is_not_used(wrong: str) -> None:
    class Swaps:
        name = "swaps"

        def __init__(self) -> None:
            self.inner = native()
            self.given: list[Any] = []

        @hookimpl
        def start(self, runtime: Runtime) -> None:
            self.inner.start(runtime)

        @hookimpl
        async def connect(self, agent: Agent, destination: Destination) -> Any:
            other = Destination("https", "other.example", destination.port) if wrong == "elsewhere" else destination
            upstream = await self.inner.connect(agent, other, None)
            if wrong == "elsewhere":
                upstream.tls = TlsInfo("TLSv1.3", ("c", "TLSv1.3", 256), None, b"", True)  # type: ignore[union-attr]
            self.given.append(upstream)
            return upstream

    recorder, swaps = Recorder(), Swaps()
    async with serving(recorder) as port, running(names(), Loopback(), swaps) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            assert (await offload(flow, HOST))["reason"] == "AGENTFW_UPSTREAM"
        with pytest.raises(ConnectionError):
            await swaps.given[0].send(b"released")
    assert recorder.requests == []
