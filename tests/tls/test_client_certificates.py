"""[[tls.client_certificate]]: shown where the operator says, kept from agents, part of the pool key."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from agentfw.config import Config
from agentfw.errors import ConfigError, UpstreamError
from agentfw.mock_llm import CertificateAuthority
from agentfw.testing import make_runtime
from agentfw_tls_pool import Plugin, TlsConfig
from agentfw_tls_pool.config import ClientCertificateConfig
from agentfw_tls_pool.trust import ClientCertificate

from .support import ALICE, BOB, HOST, bench, echo, exchange, run, serve, serve_blocking

OURS = trustme.CA()


def identity(tmp_path: Path, name: str = "fleet@agents.test", ca: trustme.CA = OURS) -> tuple[str, str]:
    made = ca.issue_cert(name)
    cert, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    made.private_key_pem.write_to_path(key)
    return str(cert), str(key)


def demanding(authority: CertificateAuthority, maximum: ssl.TLSVersion) -> ssl.SSLContext:
    context = authority.server_context([HOST])
    OURS.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = maximum
    return context


def certificates(port: int, cert: str, key: str) -> tuple[ClientCertificateConfig, ...]:
    return (ClientCertificateConfig(host=f"{HOST}:{port}", cert=cert, key=key),)


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shared", [True, False])
def test_it_is_shown_to_a_server_that_demands_one(tmp_path: Path, version: ssl.TLSVersion, shared: bool) -> None:
    async def main() -> None:
        authority = CertificateAuthority()
        seen = []

        async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            subject = writer.get_extra_info("peercert")["subjectAltName"]
            seen.append(subject)
            await echo(reader, writer)

        async with serve(note, demanding(authority, version)) as peer:
            config: dict[str, Any] = {"client_certificate": certificates(peer.port, *identity(tmp_path))}
            if not shared:
                config["shared"] = ()
            async with bench(peer.port, authority.ca_pem, tmp_path, **config) as b:
                for agent in (ALICE, BOB):
                    upstream = await b.lease(agent)
                    assert upstream.tls and upstream.tls.verified
                    assert await exchange(upstream, b"x") == b"x"
                    upstream.release(reusable=True)
                assert seen == [(("email", "fleet@agents.test"),)] * (1 if shared else 2)
                assert all(group.key.certificate for group in b.plugin.pool.groups.values())  # type: ignore[union-attr]

    run(main)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["none", "of an unknown authority", "for another port"])
def test_without_the_right_one_the_error_says_what_is_wanted(tmp_path: Path, version: ssl.TLSVersion, kind: str) -> None:
    """TLS 1.3 servers say it after the handshake: then it is the answer that fails."""

    async def main() -> None:
        authority = CertificateAuthority()
        async with serve_blocking(lambda tls: None, demanding(authority, version), connections=4) as peer:
            config: dict[str, Any] = {}
            if kind == "of an unknown authority":
                config["client_certificate"] = certificates(peer.port, *identity(tmp_path, ca=trustme.CA()))
            elif kind == "for another port":
                config["client_certificate"] = certificates(1, *identity(tmp_path))
            async with bench(peer.port, authority.ca_pem, tmp_path, **config) as b:
                with pytest.raises(UpstreamError, match=r"client certificate.*tls\.client_certificate"):
                    upstream = await b.lease()
                    await upstream.receive()

    run(main)


def test_the_agents_must_not_see_the_key(tmp_path: Path) -> None:
    plugin = Plugin(TlsConfig(client_certificate=(ClientCertificateConfig(host="a.test", cert="c.pem", key="secret/k.pem"),)))
    file = tmp_path / "agentfw.toml"
    hidden: Callable[[Path], bool] = {tmp_path / "c.pem"}.__contains__
    plugin.check_guest(file, {}, hidden)
    with pytest.raises(ConfigError, match="could read this key") as caught:
        plugin.check_guest(file, {}, {tmp_path / "secret/k.pem"}.__contains__)
    assert caught.value.key == "client_certificate.0.key"
    assert caught.value.hint
    later = Plugin(TlsConfig())
    later.check_guest(None, {}, {Path("secret/k.pem").absolute()}.__contains__)
    with pytest.raises(ConfigError, match="could read this key"):  # a reload brings it
        later.reconfigure(plugin.config)


def bad_files(tmp_path: Path) -> dict[str, tuple[str, str, str]]:
    """By kind: certificate file, key file, what the error names."""
    cert, key = identity(tmp_path)
    _, other = identity(tmp_path, "other@agents.test")
    junk = tmp_path / "junk.pem"
    junk.write_text("sk-secret-text")
    locked = tmp_path / "locked.pem"
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec, x25519

    made = ec.generate_private_key(ec.SECP256R1())
    locked.write_bytes(made.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"pw")))
    agreement = tmp_path / "x25519.pem"
    exchange_key = x25519.X25519PrivateKey.generate()
    agreement.write_bytes(exchange_key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    return {
        "no certificate": (str(tmp_path / "none"), key, "cert"),
        "no PEM certificate": (str(junk), key, "cert"),
        "no key": (cert, str(tmp_path / "none"), "key"),
        "no PEM key": (cert, str(junk), "key"),
        "another's key": (cert, other, "key"),
        "passphrase": (cert, str(locked), "key"),
        "cannot sign": (cert, str(agreement), "key"),
    }


@pytest.mark.parametrize(
    "kind", ["no certificate", "no PEM certificate", "no key", "no PEM key", "another's key", "passphrase", "cannot sign"]
)
def test_files_that_cannot_be_used_stop_the_start(tmp_path: Path, kind: str) -> None:
    cert, key, named = bad_files(tmp_path)[kind]

    async def main() -> None:
        tables = {"tls": {"client_certificate": [{"host": "a.test", "cert": cert, "key": key}]}}
        config = Config(tables, tmp_path / "agentfw.toml")
        runtime = make_runtime(Plugin(config.plugin("tls", TlsConfig)), config=config)
        with pytest.raises(ConfigError, match=rf"tls\.client_certificate\.0\.{named}: ") as caught:
            await runtime.start()
        assert "sk-secret-text" not in str(caught.value)

    run(main)


def test_no_secret_is_shown(tmp_path: Path) -> None:
    made = ClientCertificate(*map(Path, identity(tmp_path)))
    assert "PRIVATE" not in repr(made) and "PRIVATE" not in repr(vars(made))
