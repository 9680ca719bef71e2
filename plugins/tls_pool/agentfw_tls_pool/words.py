"""OpenSSL's errors told as people write them: which host, what is wrong, what to do about it. One line each."""

from __future__ import annotations

import contextlib
import datetime
import re

from cryptography import x509
from OpenSSL import SSL
from OpenSSL.crypto import X509

_SHOWN_NAMES = 5


# OpenSSL 4 calls all alerts "tls alert ..."; programs know the names that OpenSSL 1 and 3, and Python's ssl, have for them.
_SSLV3 = re.compile(
    "UNEXPECTED_MESSAGE|BAD_RECORD_MAC|DECOMPRESSION_FAILURE|HANDSHAKE_FAILURE|NO_CERTIFICATE|BAD_CERTIFICATE|"
    "UNSUPPORTED_CERTIFICATE|CERTIFICATE_(REVOKED|EXPIRED|UNKNOWN)|ILLEGAL_PARAMETER"
)
_TLSV13 = re.compile("MISSING_EXTENSION|CERTIFICATE_REQUIRED")
_NO_ALERT = re.compile(
    "UNSUPPORTED_EXTENSION|CERTIFICATE_UNOBTAINABLE|UNRECOGNIZED_NAME|BAD_CERTIFICATE_(STATUS_RESPONSE|HASH_VALUE)"
)


def _alert(name: str) -> str:
    if _NO_ALERT.fullmatch(name):
        return f"TLSV1_{name}"
    family = "SSLV3" if _SSLV3.fullmatch(name) else "TLSV13" if _TLSV13.fullmatch(name) else "TLSV1"
    return f"{family}_ALERT_{name}"


def error_word(error: SSL.Error) -> str:
    """OpenSSL's reason as ssl.SSLError.reason has it: "WRONG_VERSION_NUMBER"."""
    if isinstance(error, SSL.SysCallError | SSL.ZeroReturnError):
        return "UNEXPECTED_EOF"
    entries = error.args[0] if error.args and isinstance(error.args[0], list) else []
    for entry in entries:
        if len(entry) == 3 and entry[2]:
            word = str(entry[2]).upper().replace(" ", "_").replace("-", "_")
            return _alert(word.removeprefix("TLS_ALERT_")) if word.startswith("TLS_ALERT_") else word
    return "UNKNOWN"


_CLIENT = "see [[tls.client_certificate]]"
_REASONS = {
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS on this port",
    "PACKET_LENGTH_TOO_LONG": "the peer does not speak TLS on this port",
    "UNSUPPORTED_PROTOCOL": "the peer speaks no TLS version that is allowed here: see `min_version` in [tls]",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer refuses the TLS versions that are allowed here: see `min_version` in [tls]",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": f"the peer refuses all of our ciphers, or wants a client certificate: {_CLIENT}",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": f"the peer wants a client certificate: {_CLIENT}",
    "TLSV1_ALERT_UNKNOWN_CA": f"the peer does not know the authority of our client certificate: {_CLIENT}",
    "SSLV3_ALERT_BAD_CERTIFICATE": f"the peer does not accept our client certificate: {_CLIENT}",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": f"the peer does not accept our kind of client certificate: {_CLIENT}",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": f"the peer says that our client certificate is revoked: {_CLIENT}",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"the peer says that our client certificate has expired: {_CLIENT}",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": f"the peer does not accept our client certificate: {_CLIENT}",
    "TLSV1_ALERT_ACCESS_DENIED": f"the peer denies access to our client certificate: {_CLIENT}",
    "TLSV1_UNRECOGNIZED_NAME": "the peer serves no such name",
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": "the peer speaks no HTTP/1.1 (ALPN)",
    "TLSV1_ALERT_INTERNAL_ERROR": "the peer has a trouble of its own, often that it serves no such name",
    "DH_KEY_TOO_SMALL": "the peer's key exchange is too weak",
    "EE_KEY_TOO_SMALL": "the peer's certificate has a key that is too weak",
    "WRONG_SIGNATURE_TYPE": "the peer offers only signatures that are too weak",
    "UNSAFE_LEGACY_RENEGOTIATION_DISABLED": "the peer only knows the unsafe kind of renegotiation (RFC 5746)",
    "NO_RENEGOTIATION": "the peer wanted to renegotiate, which is not done here",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "what came was garbled or forged on the way",
    "UNEXPECTED_EOF": "the peer closed the connection",
    "UNEXPECTED_EOF_WHILE_READING": "the peer closed the connection",
}  # fmt: skip


def in_words(reason: str) -> str:
    """For people: what such an error usually means."""
    word = reason.lower().replace("_", " ")
    return f"{_REASONS[reason]} ({word})" if reason in _REASONS else word


_TRUST = "add it to `ca_files` in [tls] of agentfw.toml if you trust it"
_ADVICE = {
    9: "this machine's clock may be wrong",
    18: _TRUST,
    19: f"its authority is not among those trusted here; {_TRUST}",
    20: "its authority is not among those trusted here (add it to `ca_files` in [tls] if you trust it), or the server does not "
    "send its intermediate certificates",
    21: "the server does not send its intermediate certificates, or its authority is not trusted here (`ca_files` in [tls])",
    26: "it was not issued for servers",
    66: "its owner needs one with a stronger key",
    67: "its authority's key is too weak",
    68: "its authority's signature is too weak",
}
_ADVICE[2] = _ADVICE[20]


def not_accepted(host: str, code: int, message: str, certificate: X509 | None) -> str:
    """A verdict of verification (an X509_V_ERR_* and OpenSSL's words for it) with what the certificate says and what to do."""
    more = _ADVICE.get(code, "")
    if certificate is not None:
        with contextlib.suppress(Exception):  # it is the peer's, and may be anything
            more = _about(certificate.to_cryptography(), code) or more
    return f"certificate of {host} is not accepted: {message.rstrip('.')}{f' ({more})' if more else ''}"


def _about(certificate: x509.Certificate, code: int) -> str:
    if code == 10:
        left = datetime.datetime.now(datetime.UTC) - certificate.not_valid_after_utc
        since = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        return f"on {since}, {left.days} days ago by this machine's clock; its owner must renew it"
    if code == 9:
        return f"it is from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on; this machine's clock may be wrong"
    if code in (62, 64):
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return "it names no host in subjectAltName; common names do not count (RFC 9525)"
        texts = [ascii(str(each.value))[1:-1][:100] for each in names if isinstance(each, x509.DNSName | x509.IPAddress)]
        if not texts:
            return "it names no host"
        rest = f" and {len(texts) - _SHOWN_NAMES} more" if len(texts) > _SHOWN_NAMES else ""
        return f"it is for {', '.join(texts[:_SHOWN_NAMES])}{rest}"
    return ""
