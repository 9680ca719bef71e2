"""What is trusted, how a peer's name is checked, and how OpenSSL's verdicts are put."""

from __future__ import annotations

import hashlib
import ssl
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import certifi
from agentfw.errors import ConfigError, TlsError
from agentfw.small_files import read_small
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto
from service_identity.cryptography import verify_certificate_hostname, verify_certificate_ip_address

AGENTS_CONTEXTS = 16
"""Contexts kept for agents' own authorities; making one takes some 20 ms with the public ones in it."""
MAX_FILE = 16 << 20
"""Bytes of a file with certificates; those of all public authorities are 300 KB."""
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


_KEYS = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey


class ClientCertificate:
    """A chain and its key, as files have them. ConfigError ("cert" or "key") if they cannot be used."""

    def __init__(self, cert: Path, key: Path) -> None:
        pem = _read("cert", cert)
        try:
            found = x509.load_pem_x509_certificates(pem)
        except ValueError:
            raise ConfigError("cert", f"{cert}: holds no PEM certificate") from None
        secret = _read("key", key)
        try:
            private = load_pem_private_key(secret, None)
        except TypeError:
            raise ConfigError("key", f"{key}: the key has a passphrase; keep it without one, out of the agents' sight") from None
        except Exception:  # never with the text of the error, which may quote the file
            raise ConfigError("key", f"{key}: holds no PEM private key") from None
        if not isinstance(private, _KEYS):
            raise ConfigError("key", f"{key}: this kind of key cannot sign a TLS handshake")
        if private.public_key() != found[0].public_key():
            raise ConfigError("key", f"{key}: is not the key of the certificate in {cert}")
        self.identity = hashlib.sha256(pem + b"\0" + secret).hexdigest()
        self._chain = found
        self._key = private

    def configure(self, context: SSL.Context) -> None:
        """Show it to servers that ask."""
        context.use_certificate(self._chain[0])
        for each in self._chain[1:]:
            context.add_extra_chain_cert(each)
        context.use_privatekey(self._key)

    def __repr__(self) -> str:
        return f"<ClientCertificate {self.identity[:12]}>"


def _read(key: str, file: Path) -> bytes:
    try:
        return read_small(file, MAX_FILE)
    except OSError as error:
        raise ConfigError(key, f"{file}: {error.strerror or error}") from None


@dataclass(frozen=True, slots=True)
class Kind:
    """What a context is made for."""

    versions: Versions
    alpn: tuple[str, ...]
    cas: tuple[bytes, ...] = ()
    """DER certificates of the agent's to trust besides."""
    certificate: str = ""


class Trust:
    """The operator's trust store: certifi's, the system's (or SSL_CERT_FILE's) and `ca_files`, read when this is made.

    `certificates`: client certificates by identity. ConfigError ("ca_files.N") if a file cannot be used.
    """

    def __init__(
        self, ca_files: Sequence[Path] = (), *, system: bool = True, certificates: Sequence[ClientCertificate] = ()
    ) -> None:
        self.system = system
        self._certificates = {each.identity: each for each in certificates}
        self._authorities: list[crypto.X509] = []
        digest = hashlib.sha256(b"system" if system else b"")
        for index, file in enumerate(ca_files):
            key = f"ca_files.{index}"
            pem = _read(key, file)
            try:
                self._authorities += [crypto.X509.from_cryptography(each) for each in x509.load_pem_x509_certificates(pem)]
            except Exception:  # InvalidVersion and others are no ValueErrors
                raise ConfigError(key, f"{file}: holds no PEM certificate") from None
            digest.update(len(pem).to_bytes(8) + pem)
        self.digest = digest.hexdigest()
        """Of what is trusted (the system's part by its name only)."""
        self._contexts: dict[Kind, SSL.Context] = {}
        self._agents_contexts: OrderedDict[Kind, SSL.Context] = OrderedDict()

    @property
    def certificates(self) -> set[str]:
        """Identities."""
        return set(self._certificates)

    def context(self, kind: Kind) -> SSL.Context:
        """A client's context, made once for each kind: peer required and verified, no renegotiation, no compression.

        ValueError if kind.cas are no certificates.
        """
        if kind.cas:
            return self._agents_context(kind)
        made = self._contexts.get(kind)
        if made is None:
            made = self._contexts[kind] = self._make(kind)
        return made

    def _agents_context(self, kind: Kind) -> SSL.Context:
        made = self._agents_contexts.get(kind)
        if made is not None:
            self._agents_contexts.move_to_end(kind)
            return made
        try:
            certificates = [crypto.X509.from_cryptography(x509.load_der_x509_certificate(der)) for der in kind.cas]
        except Exception as error:  # as above; the bytes are the agent's
            raise ValueError("no certificate") from error
        made = self._make(kind)
        store = made.get_cert_store()
        assert store is not None
        for certificate in certificates:
            store.add_cert(certificate)
        self._agents_contexts[kind] = made
        while len(self._agents_contexts) > AGENTS_CONTEXTS:
            self._agents_contexts.popitem(last=False)
        return made

    def vouches(self, connection: SSL.Connection) -> bool:
        """The operator's own authorities suffice for this peer's chain (which has been verified with more)."""
        leaf = connection.get_peer_certificate()
        store = self.context(Kind(Versions(ssl.TLSVersion.TLSv1_2), ())).get_cert_store()
        if leaf is None or store is None:
            return False
        try:
            crypto.X509StoreContext(store, leaf, connection.get_peer_cert_chain() or []).verify_certificate()
        except crypto.X509StoreContextError:
            return False
        return True

    def _make(self, kind: Kind) -> SSL.Context:
        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        context.set_min_proto_version(max(kind.versions.minimum, ssl.TLSVersion.TLSv1_2))
        if kind.versions.maximum:
            context.set_max_proto_version(kind.versions.maximum)
        context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
        context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, refuse)  # each connection sets its own
        context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # idle connections are many
        if self.system:
            context.set_default_verify_paths()
            context.load_verify_locations(certifi.where())
        store = context.get_cert_store()
        assert store is not None
        for certificate in self._authorities:
            store.add_cert(certificate)
        store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
        if kind.alpn:
            context.set_alpn_protos([name.encode("ascii") for name in kind.alpn])
        if kind.certificate:
            ours = self._certificates.get(kind.certificate)
            if ours is None:
                raise TlsError("the client certificate was taken away while the connection was opened")
            ours.configure(context)
        return context


def refuse(*_: object) -> bool:
    """A verification callback."""
    return False
