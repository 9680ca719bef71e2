"""A throw-away certificate authority and the leaves it signs."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)


class CertificateAuthority:
    """Its key exists in this process only. `ca_pem` is what a client is told to trust."""

    def __init__(self, common_name: str = "agentfw mock authority", days: int = 30) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        now = datetime.datetime.now(datetime.UTC)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_pem: str = self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(
        self, names: Iterable[str], *, not_before: datetime.datetime | None = None, not_after: datetime.datetime | None = None
    ) -> tuple[bytes, bytes]:
        """(certificate chain PEM, private key PEM) of a server named `names`: host names and numeric addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        wanted = list(dict.fromkeys(names))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, wanted[0][:64])]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(not_before or now - _DAY)
            .not_valid_after(not_after or now + 30 * _DAY)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in wanted]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        chain = certificate.public_bytes(serialization.Encoding.PEM) + self.ca_pem.encode()
        return chain, key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def server_context(self, names: Iterable[str], **validity: datetime.datetime) -> ssl.SSLContext:
        """A server's SSLContext with a new leaf, ALPN http/1.1."""
        chain, key = self.issue(names, **validity)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        with TemporaryDirectory(prefix="agentfw-mock-") as directory:  # load_cert_chain() takes files only
            path = Path(directory) / "leaf.pem"
            path.touch(mode=0o600)
            path.write_bytes(key + chain)
            context.load_cert_chain(os.fspath(path))
        return context


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
