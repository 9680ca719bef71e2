"""A client's TLS object: the handshake by the host, then plaintext."""

from __future__ import annotations

import _ssl as real
import base64
import json
import os
import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .offload_certificates import Certificate, decode_certificate
    from .offload_links import FRAME_MAX, HEAD, MAGIC, BioLink, SocketLink, ssl_error
    from .offload_local import local_peer
    from .ssl_offload import Context
else:
    import offload_local
    from offload_certificates import Certificate, decode_certificate
    from offload_links import FRAME_MAX, HEAD, MAGIC, BioLink, SocketLink, ssl_error

    def local_peer(sock):
        return offload_local.local_peer(sock)


class Session:
    """What `SSLSocket.session` is after a handshake: it can be given to a next one, and be asked for its times. Whether anything
    is resumed is the host's business, which keeps sessions and connections for all."""

    has_ticket = True
    ticket_lifetime_hint = 7200
    timeout = 7200

    def __init__(self, context: Context) -> None:
        self._context = context
        self.id = os.urandom(32)
        self.time = int(time.time())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Session) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)


Session.__name__ = Session.__qualname__ = "SSLSession"
Session.__module__ = "_ssl"


class Client:
    """A client's `_SSLSocket`.

    When the host says that it cannot take over here (the connection carried something else before: STARTTLS, a tunnel), or the
    peer turns out to be in this guest, the real module's object takes this one's place.
    """

    def __init__(
        self, context: Context, link: SocketLink | BioLink, server_hostname: str | None, owner: Any, session: Any = None
    ) -> None:
        if server_hostname is not None:
            if not server_hostname or server_hostname.startswith("."):
                raise ValueError("server_hostname cannot be an empty string or start with a leading dot.")
            if "\0" in server_hostname:
                raise TypeError("argument must be encoded string without null bytes, not str")
        self.context = context
        self.server_hostname = server_hostname
        self.server_side = False
        self._link = link
        self._owner = None if owner is None else weakref.ref(owner)
        self._out = b""
        self._in = bytearray()
        self._asked = False
        self._answer: dict[str, Any] | None = None
        self._failure: BaseException | None = None
        self._verify = int(context.verify_mode)
        self._given: Any = None
        self._session: Session | None = None
        self._real: Any = None
        if session is not None:
            self.session = session

    @property
    def owner(self) -> Any:
        return None if self._owner is None else self._owner()

    # -- handshake

    def do_handshake(self) -> None:
        if self._real is not None:
            self._real.do_handshake()
            return
        if self._answer is not None:
            return
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if not self._asked:
            if isinstance(self._link, SocketLink) and local_peer(self._link.sock()):  # connected only after it was wrapped
                self._become_real()
                return
            self._out = self._preface()
            self._asked = True
        while self._out:
            self._out = self._out[self._link.send(self._out, "handshake") :]
        self._fill(HEAD)
        size = int.from_bytes(self._in[len(MAGIC) : HEAD], "big")
        if self._in[: len(MAGIC)] != MAGIC or size > FRAME_MAX:
            self._fail(ssl_error(real.SSLError, 1, "this connection has no agentfw at its other end", "WRONG_VERSION_NUMBER"))
        self._fill(HEAD + size)
        answer = json.loads(self._in[HEAD:])
        self._in.clear()
        if answer.get("native"):
            self._become_real()
        elif not answer["ok"]:
            self._fail(refusal(answer))
        else:
            self._answer = answer

    def _become_real(self) -> None:
        """TLS from end to end."""
        owner = self.owner
        self._real = self._link.really(self.context, False, self.server_hostname, owner, self._given)
        if owner is not None:
            owner._sslobj = self._real
        self._real.do_handshake()

    def _fail(self, failure: BaseException) -> None:
        self._failure = failure
        raise failure

    def _preface(self) -> bytes:
        context = self.context
        low, high = context._versions()
        request = {
            "server_name": self.server_hostname,
            "alpn": context._afw_alpn,
            "verify": int(context.verify_mode),
            "check_hostname": bool(context.check_hostname),
            **context._trusted(),
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
                self._fail(end_of_file())
            self._in += data

    # -- data

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        if buffer is None:
            if size < 0:
                raise ValueError("size should not be negative")
            if size == 0:
                return b""
        if self._answer is None:
            self.do_handshake()
            if self._real is not None:
                return self._real.read(size) if buffer is None else self._real.read(size, buffer)
        if buffer is None:
            return self._link.receive(size, "read")
        with memoryview(buffer) as view, view.cast("B") as octets:
            room = size if 0 < size < len(octets) else len(octets)
            return self._link.receive_into(octets[:room]) if room else 0

    def write(self, data: Buffer) -> int:
        if self._answer is None:
            self.do_handshake()
            if self._real is not None:
                return int(self._real.write(data))
        return self._link.send(data, "write")

    def pending(self) -> int:
        if self._real is not None:
            return int(self._real.pending())
        return 0 if self._answer is None else self._link.pending()

    def shutdown(self) -> Any:
        if self._real is not None:
            return self._real.shutdown()
        if self._answer is None:
            raise ssl_error(real.SSLError, 1, "shutdown while in init", "SHUTDOWN_WHILE_IN_INIT")
        return self._link.shut()

    # -- what was negotiated

    @property
    def session(self) -> Any:
        """As the real one: None before the handshake, and to be set only then."""
        if self._real is not None:
            return self._real.session
        if self._answer is None:
            return None
        if self._session is None:
            self._session = Session(self.context)
        return self._session

    @session.setter
    def session(self, value: Any) -> None:
        if not isinstance(value, (Session, real.SSLSession)):  # type: ignore[attr-defined,unused-ignore]  # typeshed
            raise TypeError("Value is not a SSLSession.")
        if self._real is not None:
            self._real.session = value
            return
        if isinstance(value, Session) and value._context is not self.context:
            raise ValueError("Session refers to a different SSLContext.")
        if self._answer is not None:
            raise ValueError("Cannot set session after handshake.")
        self._given = value  # a real one, if this client is to talk to a server in this guest again

    @property
    def session_reused(self) -> bool:
        if self._real is not None:
            return bool(self._real.session_reused)
        return bool(self._answer and isinstance(self._given, Session) and self._answer.get("resumed"))

    def getpeercert(self, binary_form: bool = False) -> Any:
        if self._real is not None:
            return self._real.getpeercert(binary_form)
        if self._answer is None:
            raise ValueError("handshake not done yet")
        der = base64.b64decode(self._answer["cert"])
        if binary_form:
            return der
        return decode_certificate(der) if self._verify else {}

    def _chain(self) -> list[Certificate]:
        """As the peer sent it."""
        assert self._answer is not None
        return [Certificate(base64.b64decode(text)) for text in (self._answer["cert"], *self._answer.get("chain", ()))]

    def get_unverified_chain(self) -> Any:
        if self._real is not None:
            return self._real.get_unverified_chain()
        return None if self._answer is None else self._chain()

    def get_verified_chain(self) -> Any:
        """As the host verified it: what it trusts stands at the end."""
        if self._real is not None:
            return self._real.get_verified_chain()
        if self._answer is None:
            return None
        sent = self._chain()
        verified = self._answer.get("verified") or range(len(sent))
        return [sent[each] if isinstance(each, int) else Certificate(base64.b64decode(each)) for each in verified]

    def version(self) -> str | None:
        if self._real is not None:
            return self._real.version()  # type: ignore[no-any-return]
        return self._answer["version"] if self._answer else None

    def cipher(self) -> tuple[Any, ...] | None:
        if self._real is not None:
            return self._real.cipher()  # type: ignore[no-any-return]
        return tuple(self._answer["cipher"]) if self._answer else None

    def selected_alpn_protocol(self) -> str | None:
        if self._real is not None:
            return self._real.selected_alpn_protocol()  # type: ignore[no-any-return]
        return self._answer.get("alpn") if self._answer else None

    def selected_npn_protocol(self) -> None:
        return None

    def shared_ciphers(self) -> Any:
        return None if self._real is None else self._real.shared_ciphers()

    def compression(self) -> None:
        return None

    def get_channel_binding(self, cb_type: str = "tls-unique") -> Any:
        if self._real is not None:
            return self._real.get_channel_binding(cb_type)
        if cb_type != "tls-unique":
            raise ValueError(f"'{cb_type}' channel binding type not implemented")
        return None

    def verify_client_post_handshake(self) -> None:
        raise ssl_error(real.SSLError, 1, "not server", "NOT_SERVER")


Client.__name__ = Client.__qualname__ = "_SSLSocket"
Client.__module__ = "_ssl"


def end_of_file() -> Any:
    return ssl_error(real.SSLEOFError, 8, "EOF occurred in violation of protocol", "UNEXPECTED_EOF_WHILE_READING")


def refusal(answer: dict[str, Any]) -> Any:
    """The exception that a native program would meet for what the host says went wrong."""
    code, text = int(answer["verify_code"]), str(answer["message"])
    if code:
        message = str(answer["verify_message"])
        failure = ssl_error(
            real.SSLCertVerificationError, 1, f"certificate verify failed: {message}", "CERTIFICATE_VERIFY_FAILED"
        )
        failure.verify_code = code
        failure.verify_message = message
        return failure
    if answer.get("errno"):  # connect() would have said so
        return OSError(int(answer["errno"]), f"{os.strerror(int(answer['errno']))} ({text})")
    reason = str(answer.get("reason") or "TLSV1_ALERT_INTERNAL_ERROR")
    if reason.startswith("UNEXPECTED_EOF"):
        return end_of_file()
    return ssl_error(real.SSLError, 1, text, reason)
