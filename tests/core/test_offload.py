"""The TLS offload seen from the host: what it declines, what an agent's own authorities mean, and how refusals are told."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import ssl
from pathlib import Path

import msgspec
import pytest
import trustme
from agentfw.errors import ConnectError, TlsError
from agentfw.relay import agents_trust, preface
from agentfw.testing import MemoryFlow
from agentfw.upstream import TlsInfo, TlsRequest
from agentfw_native import Config as NativeConfig
from agentfw_native import Plugin as Native
from agentfw_tls_pool.plugin import Plugin as Pool
from agentfw_tls_pool.plugin import TlsConfig
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from .support import CA, Loopback, Names, Recorder, async_test, exactly, guest, offload, running, serving

WISH = {"server_name": "api.test", "alpn": [], "verify": 2, "check_hostname": True, "cas": [], "public": True, "min": 0, "max": 0}


def frame(**more: object) -> bytes:
    body = json.dumps({**WISH, **more}, separators=(",", ":")).encode()
    return preface.MAGIC + len(body).to_bytes(4, "big") + body


async def answer(flow: MemoryFlow) -> dict[str, object]:
    head = await exactly(flow, len(preface.MAGIC) + 4)
    assert head.startswith(preface.MAGIC)
    told: dict[str, object] = msgspec.json.decode(await exactly(flow, int.from_bytes(head[8:])))
    return told


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_late_preface_is_found_wherever_it_stands(before: bytes, after: bytes) -> None:
    assert preface.late(before) == -1 or preface.MAGIC in before
    assert preface.late(before + frame() + after) == len(before)
    assert preface.late(before * 100 + frame()) == 100 * len(before)
    assert preface.late(preface.MAGIC + before) == -1 or before[4:].startswith(b'{"server_name":')


@async_test
async def test_tls_in_the_middle_of_a_connection_is_the_guests_own() -> None:
    """Before and behind an answer of the server's, in one piece with what came before it, and in many."""
    seen = bytearray()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            seen.extend(data)
            writer.write(b"ok")
            await writer.drain()

    async with serving(server) as port, running(Native(NativeConfig()), Names(), Loopback()) as runtime:
        for at_once in (True, False):
            for pieces in (1, 3):
                seen.clear()
                async with guest(runtime, "127.0.0.1", port) as flow:
                    wish = frame(server_name="x" * 300)
                    if at_once:
                        await flow.guest_send(b"\1begin" + wish[:100])
                        await asyncio.sleep(0)
                        assert await exactly(flow, 2) == b"ok"
                    else:
                        await flow.guest_send(b"\1begin")
                        assert await exactly(flow, 2) == b"ok"
                        await flow.guest_send(wish[:100])
                    size = -(-len(wish[100:]) // pieces)
                    for at in range(100, len(wish), size):
                        await asyncio.sleep(0.01)
                        await flow.guest_send(wish[at : at + size])
                    assert (await answer(flow))["native"] is True
                    await flow.guest_send(b"\x16\x03\x01 and so on")
                    assert await exactly(flow, 2) == b"ok"
                assert bytes(seen) == b"\1begin\x16\x03\x01 and so on", (at_once, pieces)
    assert runtime.counters["tls_declined"] == 4


@async_test
async def test_what_only_looks_like_a_preface_passes() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async with serving(echo) as port, running(Native(NativeConfig()), Names(), Loopback()) as runtime:
        for data in (b"\1" + frame() + b"more", b"\1" + preface.MAGIC * 3, b"\1" + frame()[:-1]):
            async with guest(runtime, "127.0.0.1", port) as flow:
                await flow.guest_send(data)
                flow.guest_send_eof()
                assert await flow.guest_read_all() == data
    assert not runtime.counters["tls_declined"]


def info(*certificates: trustme.LeafCert) -> TlsInfo:
    chain = [x509.load_pem_x509_certificate(blob.bytes()).public_bytes(Encoding.DER) for blob in certificates[0].cert_chain_pems]
    return TlsInfo("TLSv1.3", ("c", "TLSv1.3", 256), None, chain[0], True, tuple(chain))


def der(authority: trustme.CA) -> bytes:
    return ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode())


def test_whom_an_agent_trusts() -> None:
    root, other = trustme.CA(), trustme.CA()
    peer = info(root.create_child_ca().issue_cert("api.test"))
    for good in (
        TlsRequest(None),
        TlsRequest(None, cas=(der(other),)),
        TlsRequest(None, cas=(der(root),), public=False),
        TlsRequest(None, cas=(der(other), der(root)), public=False),
        TlsRequest(None, cas=(peer.chain[0],), public=False),  # a pinned certificate
        TlsRequest(None, verify=0, public=False),
    ):
        agents_trust.check(good, peer)
    for bad in (TlsRequest(None, public=False), TlsRequest(None, cas=(der(other),), public=False)):
        with pytest.raises(TlsError) as caught:
            agents_trust.check(bad, peer)
        assert (caught.value.verify_code, caught.value.verify_message) == (20, "unable to get local issuer certificate")
    with pytest.raises(TlsError, match="is no X"):
        agents_trust.check(TlsRequest(None, cas=(b"junk",), public=False), peer)
    for number in range(2 * agents_trust.STORES):
        agents_trust.check(TlsRequest(None, cas=(der(root),) * (number + 1), public=False), peer)
    assert agents_trust._store.cache_info().currsize == agents_trust._verify.cache_info().currsize == agents_trust.STORES


def test_a_peer_is_verified_once_a_minute_and_a_refusal_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    root, now, parsed = trustme.CA(), 1000.0, []
    good, bad = info(root.issue_cert("api.test")), info(trustme.CA().issue_cert("api.test"))
    real = agents_trust._certificate
    monkeypatch.setattr(agents_trust, "_certificate", lambda der: parsed.append(der) or real(der))
    monkeypatch.setattr(agents_trust.time, "monotonic", lambda: now)
    own = TlsRequest(None, cas=(der(root),), public=False)
    for _ in range(2):
        agents_trust.check(own, good)
        assert parsed.count(good.chain[0]) == 1
        for times in (1, 2):
            with pytest.raises(TlsError):
                agents_trust.check(own, bad)
            assert parsed.count(bad.chain[0]) == times
        now += agents_trust.SECONDS
        parsed.clear()


@async_test
async def test_an_agent_is_told_the_whole_chain_and_its_own_choice_counts(tmp_path: Path) -> None:
    """With the plugin that tells it."""
    other = base64.b64encode(der(trustme.CA())).decode()
    async with serving(Recorder(), "api.test") as port:
        CA.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        tls = Pool(TlsConfig(ca_files=(str(tmp_path / "ca.pem"),)))
        async with running(tls, Names(api_test="127.0.0.1"), Loopback()) as runtime:
            wishes: tuple[tuple[dict[str, object], int | None], ...] = (
                ({}, None),
                ({"cas": [base64.b64encode(der(CA)).decode()], "public": False}, None),
                ({"cas": [other]}, None),
                ({"cas": [other], "public": False}, 20),
                ({"public": False}, 20),
                ({"public": False, "verify": 0}, None),
            )
            for wish, code in wishes:
                async with guest(runtime, "127.0.0.1", port) as flow:
                    told = await offload(flow, "api.test", **wish)
                    assert told.get("verify_code") == code, (wish, told)
                    if code is not None:
                        assert tls.pool is not None and tls.statistics()["held"], "good for others"
                    else:
                        assert told["verified"] == [0, base64.b64encode(der(CA)).decode()] and told["chain"] == []
    whole = TlsInfo("TLSv1.3", ("c", "TLSv1.3", 256), None, b"a", True, (b"a", b"b"), (b"a", b"b", b"root"), True)
    told = msgspec.json.decode(preface.accepted(whole, resumed=True)[12:])
    assert (told["chain"], told["verified"], told["resumed"]) == (["Yg=="], [0, 1, "cm9vdA=="], True)


def test_connect_errors_carry_their_number() -> None:
    for code, told in (
        (errno.ECONNREFUSED, errno.ECONNREFUSED),
        (errno.ETIMEDOUT, errno.ETIMEDOUT),
        (errno.EPROTONOSUPPORT, None),
    ):
        assert msgspec.json.decode(preface.refused(ConnectError("x", code))[12:]).get("errno") == told
