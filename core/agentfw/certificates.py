"""Certificates that agentfw makes itself: an authority's, and those of the servers it vouches for. As RFC 5280 has them, and as
strict verifiers (webpki, Go) want them."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterable
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def authority(key: EllipticCurvePrivateKey, name: x509.Name, begin: datetime, end: datetime) -> x509.Certificate:
    """Self-signed; it may sign leaves only."""
    made = _begun(name, name, key.public_key(), begin, end, ca=True)
    return made.sign(key, SHA256())


def leaf(
    issuer: EllipticCurvePrivateKey,
    issuer_name: x509.Name,
    public: EllipticCurvePublicKey,
    names: Iterable[str],
    begin: datetime,
    end: datetime,
) -> x509.Certificate:
    """For a server that goes by `names`, one at least: host names and numeric addresses."""
    wanted = list(dict.fromkeys(names))
    common = wanted[0] if len(wanted[0]) <= 64 else "agentfw"  # ub-common-name; nobody verifies it
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    return (
        _begun(subject, issuer_name, public, begin, end, ca=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in wanted]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)
        .sign(issuer, SHA256())
    )


def key_pem(key: EllipticCurvePrivateKey) -> bytes:
    """PKCS #8, not encrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def load(context: ssl.SSLContext, pem: bytes) -> None:
    """A key and its chain from memory: `ssl` loads them from files only, so they pass through an anonymous one (memfd)."""
    descriptor = os.memfd_create("agentfw-leaf", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _begun(
    subject: x509.Name, issuer: x509.Name, public: EllipticCurvePublicKey, begin: datetime, end: datetime, *, ca: bool
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
