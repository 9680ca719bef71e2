"""An agent that names the authorities it trusts gets no peer that others vouch for, be the host content with it or not."""

from __future__ import annotations

import functools
import time

from OpenSSL import crypto

from ..errors import TlsError
from ..upstream import TlsInfo, TlsRequest

STORES = 32
"""Kept; the certificates are the agents', a hundred of them at most."""
SECONDS = 60
"""What was found to be in order is not looked at again for so long: each request on a flow asks."""


def check(tls: TlsRequest, info: TlsInfo) -> None:
    """Raise TlsError if the agent verifies peers, trusts no public authority, and the peer's chain leads to none of its own."""
    if tls.public or not tls.verify or not info.chain:
        return
    _verify(tls.cas, info.chain, int(time.monotonic() / SECONDS))


@functools.lru_cache(maxsize=STORES)  # PERF: 0.09 ms a request without it, with a chain of two
def _verify(cas: tuple[bytes, ...], chain: tuple[bytes, ...], period: int) -> None:
    """TlsError (which is not kept)."""
    try:
        store = _store(cas)
        leaf, *others = (_certificate(der) for der in chain)
    except crypto.Error as error:
        raise TlsError("an authority that the agent trusts is no X.509 certificate", reason="BAD_CA") from error
    try:
        crypto.X509StoreContext(store, leaf, others).verify_certificate()
    except crypto.X509StoreContextError as error:
        code, _, message = error.errors
        raise TlsError(
            f"no authority that the agent trusts vouches for the server: {message}",
            reason="CERTIFICATE_VERIFY_FAILED",
            verify_code=code,
            verify_message=message,
        ) from None


def _certificate(der: bytes) -> crypto.X509:
    # PERF: 0.02 ms; by way of cryptography's own parser 0.1 to 0.2, and an agent can bring a hundred others each time.
    return crypto.load_certificate(crypto.FILETYPE_ASN1, der)


@functools.lru_cache(maxsize=STORES)
def _store(cas: tuple[bytes, ...]) -> crypto.X509Store:
    store = crypto.X509Store()
    for der in cas:
        store.add_cert(_certificate(der))
    store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)  # as the host does; Python's own default from 3.13 on
    return store
