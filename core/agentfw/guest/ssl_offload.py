"""The guest's `_ssl`: client handshakes are done by the host, everything else by the real module.

`install()` puts a copy of `_ssl` with another `_SSLContext` into `sys.modules`, before `ssl` is imported. A client object of such
a context writes a preface where the ClientHello would be, reads the host's answer where the ServerHello would come, and then
passes plaintext (docs/internals.md, "TLS in the guest"). The real `_ssl` still does what never leaves the guest or is not a
handshake: servers, loopback peers, certificates, random numbers; clients that bring a certificate or a pre-shared key of their
own, which the host cannot use for them; and those that begin TLS in the middle of a connection.
"""

from __future__ import annotations

import _ssl as real
import base64
import hashlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import offload_local
    from .offload_certificates import der_certificates, is_bundle, pem_certificates, public_digests
    from .offload_client import Client, Session
    from .offload_links import BioLink, SocketLink, ssl_error
    from .offload_server import Server
else:  # beside this file, and forgotten once they are loaded
    import offload_local
    from offload_certificates import der_certificates, is_bundle, pem_certificates, public_digests
    from offload_client import Client, Session
    from offload_links import BioLink, SocketLink, ssl_error
    from offload_server import Server

CA_ROOM = 60000
"""Bytes of base64 that the extra CAs of a preface may take."""

_VERSIONS = (
    (0x0301, "OP_NO_TLSv1"),
    (0x0302, "OP_NO_TLSv1_1"),
    (0x0303, "OP_NO_TLSv1_2"),
    (0x0304, "OP_NO_TLSv1_3"),
)


_RealContext: Any = real._SSLContext  # typeshed keeps its private methods to itself


def _is_public(directory: str) -> bool:
    return os.path.realpath(directory) == os.path.realpath(real.get_default_verify_paths()[3])


class Context(_RealContext):  # type: ignore[misc]  # ssl.SSLContext derives from it just so
    """`_ssl._SSLContext`, with client handshakes done by the host."""

    _afw_alpn: list[str]
    _afw_cas: list[bytes]
    _afw_later: list[tuple[str | None, str | None] | None]  # public stores not loaded yet; None: the default paths
    _afw_own_key: bool
    _afw_public: bool  # public authorities are trusted, too

    def __new__(cls, protocol: int, /) -> Context:
        self: Context = super().__new__(cls, protocol)
        self._afw_alpn = []
        self._afw_cas = []
        self._afw_later = []
        self._afw_own_key = False
        self._afw_public = False
        return self

    # -- trust

    def set_default_verify_paths(self) -> None:
        names = real.get_default_verify_paths()
        file, directory = os.environ.get(names[0]), os.environ.get(names[2])
        if file and os.path.isfile(file) and not is_bundle(file):
            self._take_file(file)
        if directory and directory != names[3]:
            self._take_directory(directory)
        self._afw_later.append(None)
        self._afw_public = self._afw_public or not (file and directory) or is_bundle(file)

    def load_verify_locations(self, cafile: Any = None, capath: Any = None, cadata: Any = None) -> None:
        file = None if cafile is None else os.fsdecode(cafile)
        directory = None if capath is None else os.fsdecode(capath)
        public = (file is None or is_bundle(file)) and (directory is None or _is_public(directory))
        if public and cadata is None and (file or directory):
            if file is not None:
                os.close(os.open(file, os.O_RDONLY | os.O_CLOEXEC))  # it must be there, as ever (a directory need not)
            self._afw_later.append((file, directory))
            self._afw_public = True
            return
        super().load_verify_locations(cafile, capath, cadata)
        if file is not None:
            if is_bundle(file):
                self._afw_public = True
            else:
                self._take_file(file)
        if directory is not None:
            if _is_public(directory):
                self._afw_public = True
            else:
                self._take_directory(directory)
        if isinstance(cadata, str):
            self._afw_cas.extend(pem_certificates(cadata.encode("ascii")))
        elif cadata is not None:
            self._afw_cas.extend(der_certificates(bytes(cadata)))

    def _take_file(self, path: str) -> None:
        with open(path, "rb") as file:
            self._afw_cas.extend(pem_certificates(file.read()))

    def _take_directory(self, path: str) -> None:
        try:
            names = sorted(os.listdir(path))
        except OSError:
            return
        for name in names:
            if len(name) == 10 and name[8] == "." and name[9].isdigit():  # OpenSSL's hashed names: 9d66eef0.0
                try:
                    self._take_file(os.path.join(path, name))
                except OSError:
                    continue

    def _trusted(self) -> dict[str, Any]:
        """For the preface: DER in base64 of the authorities that the program named, without public ones where there are many;
        and whether it trusts public ones."""
        ders, public = list(dict.fromkeys(self._afw_cas)), self._afw_public
        if sum(map(len, ders)) * 4 // 3 > CA_ROOM // 2:
            known = public_digests()
            own = [der for der in ders if hashlib.sha256(der).digest() not in known]
            ders, public = own, public or len(own) < len(ders)
        texts = [base64.b64encode(der).decode("ascii") for der in ders]
        if sum(map(len, texts)) + 3 * len(texts) > CA_ROOM:
            text = f"{len(texts)} certificate authorities of its own are more than a client may hand to agentfw"
            raise ssl_error(real.SSLError, 1, text, "TOO_MANY_AUTHORITIES")
        return {"cas": texts, "public": public}

    def _load_later(self) -> None:
        later, self._afw_later = self._afw_later, []
        for place in later:
            if place is None:
                super().set_default_verify_paths()
            else:
                super().load_verify_locations(*place)

    def cert_store_stats(self) -> Any:
        self._load_later()
        return super().cert_store_stats()

    def get_ca_certs(self, binary_form: bool = False) -> Any:
        self._load_later()
        return super().get_ca_certs(binary_form)

    # -- what the handshake depends on

    def _set_alpn_protocols(self, protos: Any, /) -> None:
        super()._set_alpn_protocols(protos)
        names, at = [], 0
        while at < len(protos):
            names.append(bytes(protos[at + 1 : at + 1 + protos[at]]).decode("ascii"))
            at += 1 + protos[at]
        self._afw_alpn = names

    def load_cert_chain(self, *args: Any, **kwargs: Any) -> None:
        super().load_cert_chain(*args, **kwargs)
        self._afw_own_key = True

    def set_psk_client_callback(self, callback: Any) -> None:
        super().set_psk_client_callback(callback)  # type: ignore[misc,unused-ignore]  # from 3.13 on
        self._afw_own_key = callback is not None

    def _versions(self) -> tuple[int, int]:
        """Lowest and highest protocol version allowed, as on the wire (0x0304 is TLS 1.3); 0: what everybody has."""
        low, high = int(self.minimum_version), int(self.maximum_version)
        allowed = [
            version
            for version, name in _VERSIONS
            if (low < 0x300 or version >= low)
            and (high < 0x300 or version <= high)
            and not (int(self.options) & getattr(real, name, 0))
        ]
        if not allowed:
            raise ssl_error(real.SSLError, 1, "no protocols available", "NO_PROTOCOLS_AVAILABLE")
        return (allowed[0] if allowed[0] > 0x0303 else 0), (allowed[-1] if allowed[-1] < 0x0304 else 0)

    # -- objects

    def _really_socket(self, sock: Any, server_side: bool, hostname: str | None, owner: Any, session: Any = None) -> Any:
        self._load_later()
        return super()._wrap_socket(sock, server_side, hostname, owner=owner, session=_known(session))

    def _really_bio(
        self, incoming: Any, outgoing: Any, server_side: bool, hostname: str | None, owner: Any, session: Any = None
    ) -> Any:
        self._load_later()
        return super()._wrap_bio(incoming, outgoing, server_side, hostname, owner=owner, session=_known(session))

    def _wrap_socket(
        self, sock: Any, server_side: bool, server_hostname: str | None = None, *, owner: Any = None, session: Any = None
    ) -> Any:
        if server_side and self.protocol != real.PROTOCOL_TLS_CLIENT:
            return Server(self, SocketLink(sock), owner, session)
        if server_side or self._afw_own_key or offload_local.local_peer(sock):
            return self._really_socket(sock, server_side, server_hostname, owner, session)
        self._check_client()
        return Client(self, SocketLink(sock), server_hostname, owner, session)

    def _wrap_bio(
        self,
        incoming: Any,
        outgoing: Any,
        server_side: bool,
        server_hostname: str | None = None,
        *,
        owner: Any = None,
        session: Any = None,
    ) -> Any:
        for bio in (incoming, outgoing):
            if not isinstance(bio, real.MemoryBIO):
                raise TypeError(f"_wrap_bio() argument must be _ssl.MemoryBIO, not {type(bio).__name__}")
        if server_side and self.protocol != real.PROTOCOL_TLS_CLIENT:
            return Server(self, BioLink(incoming, outgoing), owner, session)
        local = offload_local.local_name(server_hostname) or offload_local.caller_is_local()
        if server_side or self._afw_own_key or local:
            return self._really_bio(incoming, outgoing, server_side, server_hostname, owner, session)
        self._check_client()
        return Client(self, BioLink(incoming, outgoing), server_hostname, owner, session)

    def _check_client(self) -> None:
        if self.protocol == real.PROTOCOL_TLS_SERVER:
            text = "Cannot create a client socket with a PROTOCOL_TLS_SERVER context"
            raise ssl_error(real.SSLError, 1, text, None)


if not hasattr(real._SSLContext, "set_psk_client_callback"):
    del Context.set_psk_client_callback
Context.__name__ = Context.__qualname__ = "_SSLContext"
Context.__module__ = "_ssl"


def _known(session: Any) -> Any:
    """A session that the real module knows."""
    return None if isinstance(session, Session) else session


def install() -> None:
    """Make this `_ssl`. `ssl` must not have been imported."""
    if "ssl" in sys.modules:
        raise RuntimeError("ssl was imported before its replacement")
    module = types.ModuleType("_ssl", real.__doc__)
    module.__dict__.update(vars(real))
    module.__dict__.update(_SSLContext=Context, _SSLSocket=Client)
    sys.modules["_ssl"] = module
