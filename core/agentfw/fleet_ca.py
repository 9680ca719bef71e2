"""The fleet's own certificate authority: what agents with TLS of their own are shown when it is intercepted.

Made in memory when it is first needed, gone with the process. Its private key is never written anywhere; the leaves have one
key of their own.
"""

from __future__ import annotations

import secrets
import ssl
from collections import OrderedDict
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from OpenSSL import crypto

from . import certificates
from .destination import Destination

AUTHORITY_DAYS = 3650
"""Longer than any fleet: what its agents trust cannot be changed while they run."""
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
        self._leaf_pem = certificates.key_pem(self._leaf_key)
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
        self.certificate = certificates.authority(self._key, self._name, now - _SLACK, self._end)

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
        """A certificate for one name or address."""
        return certificates.leaf(self._key, self._name, self._leaf_key.public_key(), [destination.host], now - _SLACK, end)

    def _make(self, leaf: x509.Certificate, alpn: str | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.num_tickets = 0  # a handshake with P-256 is cheap; nothing then outlives a connection
        context.set_ciphers(_CIPHERS)
        if alpn is not None:
            context.set_alpn_protocols([alpn])
        certificates.load(context, leaf.public_bytes(Encoding.PEM) + self._leaf_pem)
        return context
