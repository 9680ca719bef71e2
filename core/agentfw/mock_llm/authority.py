"""A throw-away certificate authority and the leaves it signs."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .. import certificates

_DAY = datetime.timedelta(days=1)


class CertificateAuthority:
    """Its key exists in this process only. `ca_pem` is what a client is told to trust."""

    def __init__(self, common_name: str = "agentfw mock authority", days: int = 30) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        now = datetime.datetime.now(datetime.UTC)
        self._certificate = certificates.authority(self._key, name, now - _DAY, now + days * _DAY)
        self.ca_pem: str = self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(
        self, names: Iterable[str], *, not_before: datetime.datetime | None = None, not_after: datetime.datetime | None = None
    ) -> tuple[bytes, bytes]:
        """(certificate chain PEM, private key PEM) of a server named `names`: host names and numeric addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        begin, end = not_before or now - _DAY, not_after or now + 30 * _DAY
        certificate = certificates.leaf(self._key, self._certificate.subject, key.public_key(), names, begin, end)
        chain = certificate.public_bytes(serialization.Encoding.PEM) + self.ca_pem.encode()
        return chain, certificates.key_pem(key)

    def server_context(self, names: Iterable[str], **validity: datetime.datetime) -> ssl.SSLContext:
        """A server's SSLContext with a new leaf, ALPN http/1.1."""
        chain, key = self.issue(names, **validity)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        certificates.load(context, key + chain)
        return context
