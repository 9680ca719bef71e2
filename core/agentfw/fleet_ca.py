"""The fleet's own certificate authority: what agents with TLS of their own are shown when it is intercepted.

Made in memory when it is first needed, gone with the process. Its private key is never written anywhere; the key of the leaves,
one for all of them, passes through an anonymous file in memory (memfd) because `ssl` loads keys from files only.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import ssl
from collections import OrderedDict
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from OpenSSL import crypto

from .destination import Destination

AUTHORITY_DAYS = 90
LEAF_DAYS = 7
RENEW = timedelta(days=1)
"""A leaf that ends sooner than this is made anew."""
LEAVES = 512
"""Contexts kept; making one takes some 0.7 ms."""
_SLACK = timedelta(hours=25)
"""Certificates begin so long before now: a program may have set its idea of the time, or of its time zone, wrong."""

# TLS 1.2 with forward secrecy and authenticated encryption (RFC 9325, 4.2); TLS 1.3 has nothing else.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:!aRSA"


class FleetCa:
    """An ECDSA P-256 authority for one fleet, and server contexts with its leaves."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_pem = self._leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self._contexts: OrderedDict[tuple[str, str | None], tuple[datetime, ssl.SSLContext]] = OrderedDict()
        # A name of its own: with two fleets' authorities in one bundle an issuer must mean one of them.
        self._name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "agentfw"),
                x509.NameAttribute(NameOID.COMMON_NAME, f"agentfw fleet {secrets.token_hex(8)}"),
            ]
        )
        now = datetime.now(UTC)
        self._end = now + timedelta(days=AUTHORITY_DAYS)
        public = self._key.public_key()
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SLACK)
            .not_valid_after(self._end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, SHA256())
        )

    @property
    def pem(self) -> bytes:
        """The authority's certificate, which is no secret."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def hashed_name(self) -> str:
        """What OpenSSL looks for in a directory of authorities (`openssl x509 -hash`), without the number."""
        return f"{crypto.X509.from_cryptography(self.certificate).subject_name_hash():08x}"

    def context(self, destination: Destination, alpn: str | None) -> ssl.SSLContext:
        """For the server's side of a connection that the client means for `destination`. It chooses `alpn` if the client offers
        it. To be used only once the real peer's name has been verified."""
        key = destination.host, alpn
        now = datetime.now(UTC)
        found = self._contexts.get(key)
        if found is not None and found[0] - now > RENEW:
            self._contexts.move_to_end(key)
            return found[1]
        end = min(now + timedelta(days=LEAF_DAYS), self._end)
        context = self._make(self.leaf(destination, now, end), alpn)
        self._contexts[key] = end, context
        self._contexts.move_to_end(key)
        if len(self._contexts) > LEAVES:
            self._contexts.popitem(last=False)
        return context

    def leaf(self, destination: Destination, now: datetime, end: datetime) -> x509.Certificate:
        """A certificate for one name or address, as RFC 5280 and the strict verifiers (webpki, Go) want it."""
        host = destination.host
        general: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host)) if destination.is_address else x509.DNSName(host)
        common = host if len(host) <= 64 else "agentfw"  # ub-common-name; nobody verifies it
        public = self._leaf_key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)]))
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SLACK)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([general]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )

    def _make(self, leaf: x509.Certificate, alpn: str | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.num_tickets = 0  # a handshake with P-256 is cheap; nothing then outlives a connection
        context.set_ciphers(_CIPHERS)
        if alpn is not None:
            context.set_alpn_protocols([alpn])
        descriptor = os.memfd_create("agentfw-leaf", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, leaf.public_bytes(Encoding.PEM) + self._leaf_pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return context


def _usage(*, signs: bool) -> x509.KeyUsage:
    """`signs`: a handshake (a leaf's); else certificates."""
    return x509.KeyUsage(
        digital_signature=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=not signs,
        crl_sign=not signs,
        encipher_only=False,
        decipher_only=False,
    )
