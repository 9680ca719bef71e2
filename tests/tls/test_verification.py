"""Peers that must not be believed, and those that speak no proper TLS: no byte of an agent's reaches them."""

from __future__ import annotations

import asyncio
import datetime
import re
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from agentfw.errors import ConnectError, TlsError
from agentfw.mock_llm import CertificateAuthority, MockLLM, MockOptions
from agentfw.upstream import TlsRequest
from agentfw_tls_pool.connection import Connection

from .support import (
    HOST,
    bench,
    echo,
    run,
    serve,
    serve_blocking,
)

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
            assert caught.value.verify_message.rstrip(".") in str(caught.value)
            assert b.handshakes == b.held == b.leased == 0
            await asyncio.sleep(0.02)
        assert got == b""

    run(main)


def trustme_context(ca: trustme.CA, tmp_path: Path, **leaf: Any) -> ssl.SSLContext:
    ca.cert_pem.write_to_path(tmp_path / "trustme.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("unrelated.example", **leaf).configure_cert(context)
    return context


def self_signed(*, names: bool = True) -> tuple[bytes, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW - DAY, NOW + DAY)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
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


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            "expired",
            r"certificate has expired \(on 20\d\d-\d\d-\d\d .* UTC, 1 days ago by this machine's clock; its owner must renew",
        ),
        ("not yet", r"not yet valid \(it is from 20.* on; this machine's clock may be wrong\)"),
        ("wrong name", r"not valid for 'api\.openai\.com' \(it is for a\.example, 127\.0\.0\.9, \*\.b\.example\)"),
        ("many names", r"\(it is for n0\.example, .*, n4\.example and 95 more\)"),
        ("common name only", r"\(it names no host.*\)"),
        (
            "unknown authority",
            r"self-signed certificate in certificate chain \(its authority is not among .*`ca_files` in \[tls\]",
        ),
        ("self-signed", r"self-signed certificate \(add it to `ca_files` in \[tls\] of agentfw\.toml if you trust it\)"),
        ("no chain", r"unable to get local issuer certificate \(.*intermediate certificates\)"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path: Path, kind: str, says: str) -> None:
    """Host, trouble, remedy."""

    async def main() -> None:
        authority = CertificateAuthority()
        trusted = authority.ca_pem
        if kind == "expired":
            context = authority.server_context([HOST], not_before=NOW - 3 * DAY, not_after=NOW - DAY)
        elif kind == "not yet":
            context = authority.server_context([HOST], not_before=NOW + DAY, not_after=NOW + 3 * DAY)
        elif kind == "wrong name":
            context = authority.server_context(["a.example", "127.0.0.9", "*.b.example"])
        elif kind == "many names":
            context = authority.server_context([f"n{i}.example" for i in range(100)])
        elif kind == "unknown authority":
            context = CertificateAuthority().server_context([HOST])
        else:
            chain, key = CertificateAuthority().issue([HOST])
            if kind != "no chain":
                chain, key = self_signed(names=kind == "self-signed")
            if kind == "common name only":
                trusted = chain.decode()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            (tmp_path / "server.pem").write_bytes(key + chain[: chain.index(b"-----END CERTIFICATE-----") + 26])
            context.load_cert_chain(tmp_path / "server.pem")
        async with serve(echo, context) as peer, bench(peer.port, trusted, tmp_path) as b:
            with pytest.raises(TlsError) as caught:
                await b.lease()
            text = str(caught.value)
            assert text.startswith("certificate of api.openai.com is not accepted: ")
            assert "\n" not in text
            assert len(text) < 400
            assert re.search(says, text), text

    run(main)


@pytest.mark.parametrize("count", [1, 2])
def test_certificates_with_odd_names_are_refused_and_told(tmp_path: Path, count: int) -> None:
    """Names that would garble a message, or that are not what they seem: NUL, blanks, control characters."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "odd")])
    names = x509.SubjectAlternativeName([x509.DNSName("api.openai.com\x00.evil.example"), x509.DNSName("a\nb\x1b[31m")][:count])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW - DAY, NOW + DAY)
    leaf = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem = leaf.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "odd.pem").write_bytes(private + pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "odd.pem")

    async def main() -> None:
        async with serve(echo, context) as peer, bench(peer.port, pem.decode(), tmp_path) as b:
            with pytest.raises(TlsError) as caught:
                await b.lease()
            assert caught.value.verify_code == 62
            assert str(caught.value).isprintable()

    run(main)


@pytest.mark.parametrize(
    ("names", "host", "good"),
    [
        (["*.openai.com"], "api.openai.com", True),
        (["*.openai.com"], "openai.com", False),
        (["*.openai.com"], "a.api.openai.com", False),
        (["a*.openai.com"], "api.openai.com", False),
        (["API.OpenAI.com"], "api.openai.com", True),
        (["api.openai.com."], "api.openai.com", False),
        (["127.0.0.1"], "127.0.0.1", True),
        (["127.0.0.2"], "127.0.0.1", False),
        (["*.0.0.1"], "127.0.0.1", False),
        (["xn--bcher-kva.example"], "xn--bcher-kva.example", True),
        (["*.xn--bcher-kva.example"], "www.xn--bcher-kva.example", True),
    ],
)
def test_names_match_as_rfc_9525_says(names: list[str], host: str, good: bool) -> None:
    from agentfw_tls_pool.trust import NameMismatch, check_name
    from cryptography import x509

    chain, _ = CertificateAuthority().issue(names)
    leaf = x509.load_pem_x509_certificates(chain)[0]
    is_address = host[0].isdigit()
    if good:
        check_name(leaf, host, is_address=is_address)
    else:
        with pytest.raises(NameMismatch):
            check_name(leaf, host, is_address=is_address)


def test_every_alert_has_the_name_that_programs_know(tmp_path: Path) -> None:
    import _ssl

    from agentfw_tls_pool.words import error_word
    from OpenSSL import SSL

    known = set(_ssl.err_codes_to_names.values())  # type: ignore[attr-defined]
    alerts = (
        "handshake failure", "bad certificate", "certificate unknown", "unknown ca", "access denied", "internal error",
        "protocol version", "certificate required", "decrypt error", "unexpected message",
    )  # fmt: skip
    for alert in alerts:
        assert error_word(SSL.Error([("SSL routines", "", f"tls alert {alert}")])) in known
    assert error_word(SSL.Error([("SSL routines", "", "wrong version number")])) == "WRONG_VERSION_NUMBER"
    assert error_word(SSL.Error([])) == "UNKNOWN"


@pytest.mark.parametrize(
    ("kind", "reason", "says"),
    [
        ("1.2 where 1.3 is asked for", "PROTOCOL", r"TLS version.*`min_version` in \[tls\]"),
        ("no common cipher", "HANDSHAKE_FAILURE|NO_CIPHER", "refuses all of our ciphers"),
        ("a name it does not serve", "UNRECOGNIZED_NAME|HANDSHAKE_FAILURE", "serves no such name|refuses all"),
        ("plain", "WRONG_VERSION_NUMBER", "does not speak TLS on this port"),
        ("closes", "UNEXPECTED_EOF", "closed the connection during the handshake"),
    ],
)
def test_handshakes_that_fail_are_told_in_one_line(tmp_path: Path, kind: str, reason: str, says: str) -> None:
    async def main() -> None:
        authority = CertificateAuthority()
        context = authority.server_context([HOST])
        config = {}
        if kind.startswith("1.2"):
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            config["min_version"] = "1.3"
        elif kind == "no common cipher":
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers("ECDHE-RSA-AES256-GCM-SHA384")  # its key is no RSA key
        elif kind.startswith("a name"):
            context.sni_callback = lambda *_: ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(65536)
            writer.write(b"220 mail.example ESMTP\r\n" if kind == "plain" else b"")
            writer.close()

        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        async with serve_blocking(lambda tls: None, context) as peer:
            port = server.sockets[0].getsockname()[1] if kind in ("plain", "closes") else peer.port
            async with bench(port, authority.ca_pem, tmp_path, **config) as b:
                with pytest.raises(TlsError) as caught:
                    await b.lease()
                text = str(caught.value)
                assert HOST in text and "\n" not in text and re.search(says, text), text
                assert re.search(reason, caught.value.reason) and caught.value.verify_code == 0, caught.value.reason
                if kind == "plain" or kind.startswith("1.2"):
                    import _ssl

                    assert caught.value.reason in _ssl.err_codes_to_names.values()  # type: ignore[attr-defined]
        server.close()

    run(main)
