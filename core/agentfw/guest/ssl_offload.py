"""The guest's `_ssl`: client handshakes are done by the host, everything else by the real module.

`install()` puts a copy of `_ssl` with another `_SSLContext` into `sys.modules`, before `ssl` is imported. A client object of such
a context writes a preface where the ClientHello would be, reads the host's answer where the ServerHello would come, and then
passes plaintext (docs/internals.md, "TLS in the guest"). The real `_ssl` still does what never leaves the guest or is not a
handshake: servers, loopback peers, certificates, random numbers; and clients that bring a certificate or a pre-shared key of
their own, which the host cannot use for them.
"""

from __future__ import annotations

import _socket
import _ssl as real
import base64
import binascii
import errno
import hashlib
import json
import os
import sys
import tempfile
import types
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"\0AFWTLS1"
FRAME_MAX = 65536
CA_ROOM = 60000
"""Bytes of base64 that the extra CAs of a preface may take."""

BUNDLES = (
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
)
"""Public trust stores. The host has its own, so these are neither parsed nor sent unless something needs the real store."""

_VERSIONS = (
    (0x0301, "OP_NO_TLSv1"),
    (0x0302, "OP_NO_TLSv1_1"),
    (0x0303, "OP_NO_TLSv1_2"),
    (0x0304, "OP_NO_TLSv1_3"),
)


def local_peer(sock: Any) -> bool | None:
    """Is the other end inside this guest? None: not connected yet."""
    try:
        peer = sock.getpeername()
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.EINVAL):
            return None
        raise
    if not isinstance(peer, tuple):  # AF_UNIX
        return True
    return local_name(peer[0])


def local_name(name: str | None) -> bool:
    """Does a host name or a numeric address mean this guest itself?"""
    if not name:
        return False
    name = name.lower().rstrip(".")
    if name in ("localhost", "ip6-localhost", "ip6-loopback") or name.endswith(".localhost"):
        return True
    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            packed = _socket.inet_pton(family, name.partition("%")[0])
        except OSError:
            continue
        if len(packed) == 16 and packed[:12] == b"\0" * 10 + b"\xff\xff":
            packed = packed[12:]
        return packed[0] == 127 if len(packed) == 4 else packed == b"\0" * 15 + b"\1"
    return False


def _caller_is_local() -> bool:
    """Memory BIOs do not say who the peer is. asyncio's protocol and anyio's stream, which make most of them, do: their frame,
    a few calls up, has the transport."""
    frame: types.FrameType | None = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            return False
        for name, attribute in (("self", "_transport"), ("transport_stream", "")):
            holder = frame.f_locals.get(name)
            transport: Any = getattr(holder, attribute, None) if attribute else holder
            try:
                if hasattr(transport, "get_extra_info"):
                    peer = transport.get_extra_info("peername")
                elif hasattr(transport, "extra"):
                    import anyio.abc  # type: ignore[import-not-found,unused-ignore]  # it is there: it called us

                    peer = transport.extra(anyio.abc.SocketAttribute.remote_address, None)
                else:
                    continue
            except Exception:
                continue
            if peer is not None:
                return local_name(peer[0]) if isinstance(peer, tuple) else True
        frame = frame.f_back
    return False


def _pem_certificates(data: bytes) -> Iterator[bytes]:
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


def _der_certificates(data: bytes) -> Iterator[bytes]:
    """DER SEQUENCEs one after the other."""
    while len(data) > 4 and data[0] == 0x30:
        size, head = data[1], 2
        if size & 0x80:
            head = 2 + (size & 0x7F)
            size = int.from_bytes(data[2:head], "big")
        yield data[: head + size]
        data = data[head + size :]


def _is_bundle(path: str) -> bool:
    """A public trust store: the system's, or certifi's."""
    defaults = real.get_default_verify_paths()
    if path in BUNDLES or path == defaults[1]:
        return True
    target = os.path.realpath(path)
    *above, name = target.split("/")
    return target in BUNDLES or (name == "cacert.pem" and "certifi" in above[-2:])


def _public_digests() -> set[bytes]:
    """Digests of the certificates in the public stores this guest can see."""
    found: set[bytes] = set()
    paths = [*BUNDLES, real.get_default_verify_paths()[1]]
    certifi = sys.modules.get("certifi")
    if certifi is not None:
        paths.append(certifi.where())
    for path in paths:
        try:
            with open(path, "rb") as file:
                found.update(hashlib.sha256(der).digest() for der in _pem_certificates(file.read()))
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
        text = base64.b64encode(self._der).decode("ascii")
        lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
        return f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n"

    def get_info(self) -> dict[str, Any]:
        return decode_certificate(self._der)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Certificate) and self._der == other._der

    def __hash__(self) -> int:
        return hash(self._der)


def decode_certificate(der: bytes) -> dict[str, Any]:
    """The dictionary that `getpeercert()` gives. The real module decodes certificates from files only."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(str(Certificate(der).public_bytes()))
        return real._test_decode_cert(path)  # type: ignore[attr-defined,no-any-return,unused-ignore]
    finally:
        os.unlink(path)


def _error(kind: type[Any], number: int, text: str, reason: str | None) -> Any:
    error = kind(number, f"[SSL: {reason}] {text}" if reason else text)
    error.library = "SSL" if reason else None
    error.reason = reason
    return error


def _want_read() -> Any:
    return _error(real.SSLWantReadError, 2, "The operation did not complete (read)", None)


def _want_write() -> Any:
    return _error(real.SSLWantWriteError, 3, "The operation did not complete (write)", None)


class _SocketLink:
    """Bytes over the plain socket under an `ssl.SSLSocket`. Weak, as the real object is: the socket owns us."""

    def __init__(self, sock: Any) -> None:
        self._sock = weakref.ref(sock)

    def sock(self) -> Any:
        sock = self._sock()
        if sock is None or sock.fileno() < 0:
            raise _error(real.SSLError, 1, "Underlying socket connection gone", None)
        return sock

    def receive(self, size: int, what: str) -> bytes:
        try:
            return _socket.socket.recv(self.sock(), size)
        except BlockingIOError:
            raise _want_read() from None
        except TimeoutError as error:
            if error.errno is None:
                raise TimeoutError(f"The {what} operation timed out") from None
            raise

    def receive_into(self, buffer: memoryview) -> int:
        try:
            return _socket.socket.recv_into(self.sock(), buffer)
        except BlockingIOError:
            raise _want_read() from None
        except TimeoutError as error:
            if error.errno is None:
                raise TimeoutError("The read operation timed out") from None
            raise

    def send(self, data: Buffer, what: str) -> int:
        try:
            return _socket.socket.send(self.sock(), data)
        except BlockingIOError:
            raise _want_write() from None
        except TimeoutError as error:
            if error.errno is None:
                raise TimeoutError(f"The {what} operation timed out") from None
            raise

    def pending(self) -> int:
        return 0  # nothing is kept here: select() on the socket tells all

    def shut(self) -> Any:
        sock = self.sock()
        try:
            _socket.socket.shutdown(sock, _socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
        if self.receive(1, "read"):
            text = "application data after close notify"
            raise _error(real.SSLError, 1, text, "APPLICATION_DATA_AFTER_CLOSE_NOTIFY")
        return sock


class _BioLink:
    """Bytes over the two memory BIOs under an `ssl.SSLObject`."""

    def __init__(self, incoming: Any, outgoing: Any) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def receive(self, size: int, what: str) -> bytes:
        data: bytes = self._incoming.read(size)
        if not data and size and not self._incoming.eof:
            raise _want_read()
        return data

    def receive_into(self, buffer: memoryview) -> int:
        data = self.receive(len(buffer), "read")
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: Buffer, what: str) -> int:
        size: int = self._outgoing.write(data)
        return size

    def pending(self) -> int:
        size: int = self._incoming.pending
        return size

    def shut(self) -> None:
        """The owner closes its transport next, and that is the close_notify."""


class Client:
    """A client's `_SSLSocket`: handshake by the host, then plaintext."""

    def __init__(self, context: Context, link: _SocketLink | _BioLink, server_hostname: str | None, owner: Any) -> None:
        if server_hostname is not None:
            if not server_hostname or server_hostname.startswith("."):
                raise ValueError("server_hostname cannot be an empty string or start with a leading dot.")
            if "\0" in server_hostname:
                raise TypeError("argument must be encoded string without null bytes, not str")
        self.context = context
        self.server_hostname = server_hostname
        self.server_side = False
        self.session = None
        self.session_reused = False
        self._link = link
        self._owner = None if owner is None else weakref.ref(owner)
        self._out = b""
        self._in = bytearray()
        self._asked = False
        self._answer: dict[str, Any] | None = None
        self._failure: BaseException | None = None
        self._verify = int(context.verify_mode)

    @property
    def owner(self) -> Any:
        return None if self._owner is None else self._owner()

    # -- handshake

    def do_handshake(self) -> None:
        if self._answer is not None:
            return
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if not self._asked and isinstance(self._link, _SocketLink) and local_peer(self._link.sock()):
            self._become_real()
            return
        if not self._asked:
            self._out = self._preface()
            self._asked = True
        while self._out:
            self._out = self._out[self._link.send(self._out, "handshake") :]
        head = len(MAGIC) + 4
        self._fill(head)
        size = int.from_bytes(self._in[len(MAGIC) : head], "big")
        if self._in[: len(MAGIC)] != MAGIC or size > FRAME_MAX:
            text = "this connection has no agentfw at its other end"
            self._failure = _error(real.SSLError, 1, text, "WRONG_VERSION_NUMBER")
            raise self._failure
        self._fill(head + size)
        answer = json.loads(self._in[head:])
        self._in.clear()
        if not answer["ok"]:
            self._failure = self._refusal(answer)
            raise self._failure
        self._answer = answer

    def _become_real(self) -> None:
        """Connected only after it was wrapped, and to this guest itself: TLS from end to end. The ssl.SSLSocket gets the real
        object in our place."""
        owner = self.owner
        sslobj = self.context._wrap_really(owner, self.server_hostname)
        owner._sslobj = sslobj
        sslobj.do_handshake()

    def _preface(self) -> bytes:
        context = self.context
        low, high = context._versions()
        request = {
            "server_name": self.server_hostname,
            "alpn": context._afw_alpn,
            "verify": int(context.verify_mode),
            "check_hostname": bool(context.check_hostname),
            "cas": context._extra_cas(),
            "min": low,
            "max": high,
        }
        body = json.dumps(request, separators=(",", ":")).encode("ascii")
        return MAGIC + len(body).to_bytes(4, "big") + body

    def _fill(self, size: int) -> None:
        """Until `_in` has `size` bytes; never more, what follows is the peer's plaintext."""
        while len(self._in) < size:
            data = self._link.receive(size - len(self._in), "handshake")
            if not data:
                text = "EOF occurred in violation of protocol"
                self._failure = _error(real.SSLEOFError, 8, text, "UNEXPECTED_EOF_WHILE_READING")
                raise self._failure
            self._in += data

    @staticmethod
    def _refusal(answer: dict[str, Any]) -> BaseException:
        code = int(answer["verify_code"])
        if not code:
            reason = str(answer.get("reason") or "TLSV1_ALERT_INTERNAL_ERROR")
            error: BaseException = _error(real.SSLError, 1, str(answer["message"]), reason)
            return error
        message = str(answer["verify_message"])
        text = f"certificate verify failed: {message}"
        failure = _error(real.SSLCertVerificationError, 1, text, "CERTIFICATE_VERIFY_FAILED")
        failure.verify_code = code
        failure.verify_message = message
        error = failure
        return error

    # -- data

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        if buffer is None:
            if size < 0:
                raise ValueError("size should not be negative")
            if size == 0:
                return b""
        if self._answer is None:
            self.do_handshake()
            if self._answer is None:  # became real
                owner = self.owner
                return owner._sslobj.read(size) if buffer is None else owner._sslobj.read(size, buffer)
        if buffer is None:
            return self._link.receive(size, "read")
        with memoryview(buffer) as view, view.cast("B") as octets:
            room = size if 0 < size < len(octets) else len(octets)
            return self._link.receive_into(octets[:room]) if room else 0

    def write(self, data: Buffer) -> int:
        if self._answer is None:
            self.do_handshake()
            if self._answer is None:
                return int(self.owner._sslobj.write(data))
        return self._link.send(data, "write")

    def pending(self) -> int:
        return 0 if self._answer is None else self._link.pending()

    def shutdown(self) -> Any:
        if self._answer is None:
            raise _error(real.SSLError, 1, "shutdown while in init", "SHUTDOWN_WHILE_IN_INIT")
        return self._link.shut()

    # -- what was negotiated

    def _certificate(self) -> bytes | None:
        if self._answer is None:
            raise ValueError("handshake not done yet")
        text = self._answer.get("cert")
        return base64.b64decode(text) if text else None

    def getpeercert(self, binary_form: bool = False) -> Any:
        der = self._certificate()
        if der is None or binary_form:
            return der
        return decode_certificate(der) if self._verify else {}

    def get_verified_chain(self) -> list[Certificate] | None:
        der = self._certificate()
        return None if der is None else [Certificate(der)]

    get_unverified_chain = get_verified_chain

    def version(self) -> str | None:
        return self._answer["version"] if self._answer else None

    def cipher(self) -> tuple[Any, ...] | None:
        return tuple(self._answer["cipher"]) if self._answer and self._answer.get("cipher") else None

    def selected_alpn_protocol(self) -> str | None:
        return self._answer.get("alpn") if self._answer else None

    def selected_npn_protocol(self) -> None:
        return None

    def shared_ciphers(self) -> None:
        return None

    def compression(self) -> None:
        return None

    def get_channel_binding(self, cb_type: str = "tls-unique") -> None:
        if cb_type != "tls-unique":
            raise ValueError(f"'{cb_type}' channel binding type not implemented")
        return None

    def verify_client_post_handshake(self) -> None:
        raise _error(real.SSLError, 1, "not server", "NOT_SERVER")


_RealContext: Any = real._SSLContext  # typeshed keeps its private methods to itself


class Context(_RealContext):  # type: ignore[misc]  # ssl.SSLContext derives from it just so
    """`_ssl._SSLContext`, with client handshakes done by the host."""

    _afw_alpn: list[str]
    _afw_cas: list[bytes]
    _afw_later: list[str | None]  # public stores not loaded yet; None: the default paths
    _afw_own_key: bool

    def __new__(cls, protocol: int, /) -> Context:
        self: Context = super().__new__(cls, protocol)
        self._afw_alpn = []
        self._afw_cas = []
        self._afw_later = []
        self._afw_own_key = False
        return self

    # -- trust

    def set_default_verify_paths(self) -> None:
        names = real.get_default_verify_paths()
        file, directory = os.environ.get(names[0]), os.environ.get(names[2])
        if file and os.path.isfile(file) and not _is_bundle(file):
            self._take_file(file)
        if directory and directory != names[3]:
            self._take_directory(directory)
        self._afw_later.append(None)

    def load_verify_locations(self, cafile: Any = None, capath: Any = None, cadata: Any = None) -> None:
        if cafile is not None and capath is None and cadata is None:
            path = os.fsdecode(cafile)
            if _is_bundle(path):
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))  # it must be there, as ever
                self._afw_later.append(path)
                return
        super().load_verify_locations(cafile, capath, cadata)
        if cafile is not None and not _is_bundle(os.fsdecode(cafile)):
            self._take_file(os.fsdecode(cafile))
        if capath is not None and os.fsdecode(capath) != real.get_default_verify_paths()[3]:
            self._take_directory(os.fsdecode(capath))
        if isinstance(cadata, str):
            self._afw_cas.extend(_pem_certificates(cadata.encode("ascii")))
        elif cadata is not None:
            self._afw_cas.extend(_der_certificates(bytes(cadata)))

    def _take_file(self, path: str) -> None:
        with open(path, "rb") as file:
            self._afw_cas.extend(_pem_certificates(file.read()))

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

    def _extra_cas(self) -> list[str]:
        """Base64 DER of the authorities the program named, without public ones where there are many."""
        ders = list(dict.fromkeys(self._afw_cas))
        if sum(map(len, ders)) * 4 // 3 > CA_ROOM // 2:
            public = _public_digests()
            ders = [der for der in ders if hashlib.sha256(der).digest() not in public]
        texts = [base64.b64encode(der).decode("ascii") for der in ders]
        if sum(map(len, texts)) + 3 * len(texts) > CA_ROOM:
            text = f"{len(texts)} certificate authorities of its own are more than a client may hand to agentfw"
            raise _error(real.SSLError, 1, text, "TOO_MANY_AUTHORITIES")
        return texts

    def _load_later(self) -> None:
        later, self._afw_later = self._afw_later, []
        for path in later:
            if path is None:
                super().set_default_verify_paths()
            else:
                super().load_verify_locations(path)

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
            raise _error(real.SSLError, 1, "no protocols available", "NO_PROTOCOLS_AVAILABLE")
        return (allowed[0] if allowed[0] > 0x0303 else 0), (allowed[-1] if allowed[-1] < 0x0304 else 0)

    # -- objects

    def _wrap_really(self, sock: Any, server_hostname: str | None) -> Any:
        self._load_later()
        return super()._wrap_socket(sock, False, server_hostname, owner=sock)

    def _wrap_socket(
        self, sock: Any, server_side: bool, server_hostname: str | None = None, *, owner: Any = None, session: Any = None
    ) -> Any:
        if server_side or self._afw_own_key or local_peer(sock):
            self._load_later()
            return super()._wrap_socket(sock, server_side, server_hostname, owner=owner, session=session)
        self._check_client()
        return Client(self, _SocketLink(sock), server_hostname, owner)

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
        if server_side or self._afw_own_key or local_name(server_hostname) or _caller_is_local():
            self._load_later()
            return super()._wrap_bio(incoming, outgoing, server_side, server_hostname, owner=owner, session=session)
        self._check_client()
        for bio in (incoming, outgoing):
            if not isinstance(bio, real.MemoryBIO):
                raise TypeError(f"_wrap_bio() argument must be _ssl.MemoryBIO, not {type(bio).__name__}")
        return Client(self, _BioLink(incoming, outgoing), server_hostname, owner)

    def _check_client(self) -> None:
        if self.protocol == real.PROTOCOL_TLS_SERVER:
            text = "Cannot create a client socket with a PROTOCOL_TLS_SERVER context"
            raise _error(real.SSLError, 1, text, None)


if not hasattr(real._SSLContext, "set_psk_client_callback"):
    del Context.set_psk_client_callback
Context.__name__ = Context.__qualname__ = "_SSLContext"
Context.__module__ = "_ssl"
Client.__name__ = Client.__qualname__ = "_SSLSocket"
Client.__module__ = "_ssl"


def install() -> None:
    """Make this `_ssl`. `ssl` must not have been imported."""
    if "ssl" in sys.modules:
        raise RuntimeError("ssl was imported before its replacement")
    module = types.ModuleType("_ssl", real.__doc__)
    module.__dict__.update(vars(real))
    module.__dict__.update(_SSLContext=Context, _SSLSocket=Client)
    sys.modules["_ssl"] = module
