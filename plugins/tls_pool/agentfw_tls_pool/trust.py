"""What is trusted, how a peer's name is checked, and how OpenSSL's verdicts are put."""

from __future__ import annotations

import ssl
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import certifi
from cryptography import x509
from OpenSSL import SSL, crypto
from service_identity.cryptography import verify_certificate_hostname, verify_certificate_ip_address

AGENTS_CONTEXTS = 16
"""Contexts kept for agents' own authorities; making one takes some 20 ms with the public ones in it."""
HOSTNAME_MISMATCH = 62
IP_ADDRESS_MISMATCH = 64

# OpenSSL's own words (X509_verify_cert_error_string), for which pyOpenSSL has no public function.
_MESSAGES = {
    2: "unable to get issuer certificate",
    7: "certificate signature failure",
    9: "certificate is not yet valid",
    10: "certificate has expired",
    13: "format error in certificate's notBefore field",
    14: "format error in certificate's notAfter field",
    18: "self-signed certificate",
    19: "self-signed certificate in certificate chain",
    20: "unable to get local issuer certificate",
    21: "unable to verify the first certificate",
    22: "certificate chain too long",
    23: "certificate revoked",
    24: "issuer certificate doesn't have a public key",
    25: "path length constraint exceeded",
    26: "unsuitable certificate purpose",
    27: "certificate not trusted",
    28: "certificate rejected",
    34: "unhandled critical extension",
    47: "permitted subtree violation",
    48: "excluded subtree violation",
    66: "EE certificate key too weak",
    67: "CA certificate key too weak",
    68: "CA signature digest algorithm too weak",
    79: "invalid CA certificate",
}


def verify_message(code: int) -> str:
    """OpenSSL's words for an X509_V_ERR_*."""
    return _MESSAGES.get(code, f"certificate verification failed (X509_V_ERR {code})")


class NameMismatch(Exception):
    """`code` and `str()`: as Python's ssl module puts it."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


def check_name(certificate: x509.Certificate, host: str, *, is_address: bool) -> None:
    """Raise NameMismatch unless the certificate is for `host` (canonical name or address). Common names do not count."""
    try:
        if is_address:
            verify_certificate_ip_address(certificate, host)
        else:
            verify_certificate_hostname(certificate, host)
    except Exception as error:  # whatever odd extensions make of it, it is not this name's
        code = IP_ADDRESS_MISMATCH if is_address else HOSTNAME_MISMATCH
        what = "IP address" if is_address else "Hostname"
        raise NameMismatch(code, f"{what} mismatch, certificate is not valid for '{host}'.") from error


@dataclass(frozen=True, slots=True)
class Versions:
    """ssl.TLSVersion numbers; `maximum` 0: the newest."""

    minimum: int
    maximum: int = 0


class Trust:
    """The operator's trust store: certifi's, the system's (or SSL_CERT_FILE's) and `ca_files`, which `check()` looks at first."""

    def __init__(self, ca_files: Sequence[Path] = (), *, system: bool = True) -> None:
        self.ca_files = tuple(ca_files)
        self.system = system
        self._contexts: dict[tuple[Versions, tuple[str, ...]], SSL.Context] = {}
        self._agents_contexts: OrderedDict[tuple[Versions, tuple[str, ...], tuple[bytes, ...]], SSL.Context] = OrderedDict()

    def check(self) -> tuple[int, str] | None:
        """(index, what is wrong) of the first file that cannot be used."""
        for index, file in enumerate(self.ca_files):
            try:
                x509.load_pem_x509_certificates(file.read_bytes())
            except OSError as error:
                return index, f"{file}: {error.strerror or error}"
            except ValueError:
                return index, f"{file}: holds no PEM certificate"
        return None

    def context(self, versions: Versions, alpn: tuple[str, ...], cas: tuple[bytes, ...] = ()) -> SSL.Context:
        """A client's context, made once for each kind: peer required and verified, no renegotiation, no compression.

        `cas`: DER certificates to trust besides; ValueError if they are none.
        """
        if cas:
            return self._agents_context(versions, alpn, cas)
        made = self._contexts.get((versions, alpn))
        if made is None:
            made = self._contexts[versions, alpn] = self._make(versions, alpn)
        return made

    def _agents_context(self, versions: Versions, alpn: tuple[str, ...], cas: tuple[bytes, ...]) -> SSL.Context:
        key = (versions, alpn, cas)
        made = self._agents_contexts.get(key)
        if made is not None:
            self._agents_contexts.move_to_end(key)
            return made
        try:
            certificates = [crypto.X509.from_cryptography(x509.load_der_x509_certificate(der)) for der in cas]
        except Exception as error:  # InvalidVersion and others are no ValueErrors; the bytes are the agent's
            raise ValueError("no certificate") from error
        made = self._make(versions, alpn)
        store = made.get_cert_store()
        assert store is not None
        for certificate in certificates:
            store.add_cert(certificate)
        self._agents_contexts[key] = made
        while len(self._agents_contexts) > AGENTS_CONTEXTS:
            self._agents_contexts.popitem(last=False)
        return made

    def vouches(self, connection: SSL.Connection) -> bool:
        """The operator's own authorities suffice for this peer's chain (which has been verified with more)."""
        leaf = connection.get_peer_certificate()
        store = self.context(Versions(ssl.TLSVersion.TLSv1_2), ()).get_cert_store()
        if leaf is None or store is None:
            return False
        try:
            crypto.X509StoreContext(store, leaf, connection.get_peer_cert_chain() or []).verify_certificate()
        except crypto.X509StoreContextError:
            return False
        return True

    def _make(self, versions: Versions, alpn: tuple[str, ...]) -> SSL.Context:
        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        context.set_min_proto_version(max(versions.minimum, ssl.TLSVersion.TLSv1_2))
        if versions.maximum:
            context.set_max_proto_version(versions.maximum)
        context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
        context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, refuse)  # each connection sets its own
        context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # idle connections are many
        if self.system:
            context.set_default_verify_paths()
            context.load_verify_locations(certifi.where())
        store = context.get_cert_store()
        assert store is not None
        for file in self.ca_files:
            for certificate in x509.load_pem_x509_certificates(file.read_bytes()):
                store.add_cert(crypto.X509.from_cryptography(certificate))
        store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
        if alpn:
            context.set_alpn_protos([name.encode("ascii") for name in alpn])
        return context


def refuse(*_: object) -> bool:
    """A verification callback."""
    return False
