"""Certificates: out of files, against public trust stores, and as `ssl` shows them."""

from __future__ import annotations

import _ssl as real
import base64
import binascii
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

BUNDLES = (
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
)
"""Public trust stores. The host has its own, so these are neither parsed nor sent unless something needs the real store."""


def pem_certificates(data: bytes) -> Iterator[bytes]:
    end = 0
    while True:
        start = data.find(b"-----BEGIN CERTIFICATE-----", end)
        if start < 0:
            return
        end = data.find(b"-----END CERTIFICATE-----", start)
        if end < 0:
            return
        try:
            yield binascii.a2b_base64(data[start + 27 : end])
        except binascii.Error:
            continue


def der_certificates(data: bytes) -> Iterator[bytes]:
    """DER SEQUENCEs one after the other."""
    while len(data) > 4 and data[0] == 0x30:
        size, head = data[1], 2
        if size & 0x80:
            head = 2 + (size & 0x7F)
            size = int.from_bytes(data[2:head], "big")
        yield data[: head + size]
        data = data[head + size :]


def is_bundle(path: str) -> bool:
    """A public trust store: the system's, or certifi's."""
    defaults = real.get_default_verify_paths()
    if path in BUNDLES or path == defaults[1]:
        return True
    target = os.path.realpath(path)
    *above, name = target.split("/")
    return target in BUNDLES or (name == "cacert.pem" and "certifi" in above[-2:])


def public_digests() -> set[bytes]:
    """Digests of the certificates in the public stores this guest can see."""
    found: set[bytes] = set()
    paths = [*BUNDLES, real.get_default_verify_paths()[1]]
    certifi = sys.modules.get("certifi")
    if certifi is not None:
        paths.append(certifi.where())
    for path in paths:
        try:
            with open(path, "rb") as file:
                found.update(hashlib.sha256(der).digest() for der in pem_certificates(file.read()))
        except OSError:
            continue
    return found


class Certificate:
    """What `get_verified_chain()` lists, with the methods of `_ssl.Certificate`."""

    def __init__(self, der: bytes) -> None:
        self._der = der

    def public_bytes(self, format: int = 1) -> bytes | str:
        if format == 2:  # ENCODING_DER
            return self._der
        if format != 1:
            raise ValueError("Unsupported format")
        text = base64.b64encode(self._der).decode("ascii")
        lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
        return f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n"

    def get_info(self) -> dict[str, Any]:
        return decode_certificate(self._der)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Certificate) and self._der == other._der

    def __hash__(self) -> int:
        return hash(self._der)


_DECODED: dict[bytes, dict[str, Any]] = {}
_DECODED_MAX = 64


def decode_certificate(der: bytes) -> dict[str, Any]:
    """The dictionary that `getpeercert()` gives. The real module decodes certificates from files only, and asyncio asks at every
    handshake: what it said is kept."""
    found = _DECODED.get(der)
    if found is None:
        found = _decoded(der)
        if len(_DECODED) >= _DECODED_MAX:
            _DECODED.clear()
        _DECODED[der] = found
    return dict(found)


def _decoded(der: bytes) -> dict[str, Any]:
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(str(Certificate(der).public_bytes()))
        return real._test_decode_cert(path)  # type: ignore[attr-defined,no-any-return,unused-ignore]
    finally:
        os.unlink(path)
