"""One TLS connection: pyOpenSSL through memory BIOs over a non-blocking socket, driven by the loop's readiness callbacks.

What was read from the socket stays encrypted until `receive()` asks, and only so much is read ahead. So a slow reader stops
the peer (backpressure), and `soiled()` can say at any moment, without waiting, whether there is anything on the connection that
the next borrower must not see.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from agentfw.agents import Agent
from agentfw.destination import Destination
from agentfw.errors import TlsError, UpstreamError
from agentfw.upstream import TlsInfo
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate
from OpenSSL import SSL
from OpenSSL.crypto import X509

from . import trust
from .framing import Framing
from .words import error_word, in_words, not_accepted

READ = 65536
PAUSE = 4 * READ
"""Encrypted bytes that wait in memory before the socket is left alone."""
RECORD = 16384
LINGER = 10.0
BARREN = 256 * 1024
"""Encrypted bytes in a row without one of plaintext after which the peer is taken to be flooding: OpenSSL takes any number of key
updates, session tickets and requests to renegotiate."""
OUT_HIGH = 128 * 1024
"""Encrypted bytes not yet taken by the socket above which `send()` waits."""
ANSWERS = 4 * OUT_HIGH
"""The same, above which the peer is taken to ask without listening. `send()` never leaves so many: they are OpenSSL's answers to
key updates, one for each."""


class Cut(UpstreamError, ConnectionResetError):
    """The peer's stream ended without close_notify. An OSError too: on a reused connection it is as good as a reset."""


class Connection:
    """Made with a connected, non-blocking socket, which it owns from then on. `handshake()` comes first.

    `may_greet`: what the peer says before anything was sent to it is a greeting (mail, databases), not a byte too many.
    """

    def __init__(
        self, sock: socket.socket, destination: Destination, context: SSL.Context, address: str, *, may_greet: bool = False
    ) -> None:
        self.destination = destination
        self.address = address
        self.may_greet = may_greet
        self.info: TlsInfo | None = None
        self.resumed = False
        self.opened_at = 0.0
        self.idle_since = 0.0
        self.leases = 0
        self.lent_at = 0.0
        self.lent_at_sent = 0
        self.sent = 0
        """Bytes of plaintext, over all leases."""
        self.drained = ""
        """Why it must not be lent again, though nothing is wrong with it."""
        self.borrower: Agent | None = None
        self.on_close: Callable[[Connection], None] | None = None
        self.on_idle_event: Callable[[Connection], None] | None = None
        """Called when something happens that no one waits for."""
        self._received = False  # somebody read from it
        self._greeting = b""  # the beginning of one, read by soiled()
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._tls = SSL.Connection(context, None)
        self._verified_here = False
        self._verdict: tuple[int, str] | None = None
        self._peer: X509 | None = None  # the certificate that the verdict is about
        self._fresh = False  # ciphertext came that SSL_read has not looked at yet
        self._buffered = 0
        self._trouble = ""
        self._barren = 0
        self._fruitful = False
        self._unflushed = 0
        self._framing = Framing()
        self._reading = False
        self._eof = False
        self._closed = False
        self._finished = False  # our close_notify is out
        self._error: OSError | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._out = bytearray()
        self._writing = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    # ---- handshake ----

    async def handshake(
        self, session: SSL.Session | None = None, vouches: Callable[[SSL.Connection], bool] = lambda _: True
    ) -> TlsInfo:
        """Negotiate and verify: the chain, then the name, and only then anything else is sent. TlsError, OSError.

        `vouches`: whether the operator's trust store accepts the peer, if the context trusts more than that.
        """
        destination = self.destination
        tls = self._tls
        tls.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, self._verify)
        tls.set_connect_state()
        if not destination.is_address:
            tls.set_tlsext_host_name(destination.host.encode("ascii"))
        if session is not None:
            tls.set_session(session)
        self._resume_reading()
        while True:
            try:
                tls.do_handshake()
                break
            except SSL.WantReadError:
                self._flush()
                await self._readable("the handshake")
            except SSL.Error as error:
                with suppress(OSError):
                    self._flush()  # the alert
                self._handshake_failed(error)
        certificate = tls.get_peer_certificate(as_cryptography=True)
        if certificate is None:
            raise TlsError(f"{destination.host} presented no certificate", reason="PEER_DID_NOT_RETURN_A_CERTIFICATE")
        # Again, whatever the callback did (a resumed session has no callback). Our last handshake message still waits for this.
        try:
            trust.check_name(certificate, destination.host, is_address=destination.is_address)
        except trust.NameMismatch as mismatch:
            self._verdict = (mismatch.code, str(mismatch))
            self._verification_failed()
        tls.set_verify(SSL.VERIFY_PEER, trust.refuse)  # lets go of self
        self._flush()
        self.resumed = not self._verified_here
        alpn = tls.get_alpn_proto_negotiated().decode("latin-1") or None
        cipher = (tls.get_cipher_name() or "", tls.get_cipher_version() or "", tls.get_cipher_bits() or 0)
        der = certificate.public_bytes(Encoding.DER)
        self.info = TlsInfo(
            tls.get_protocol_version_name(),
            cipher,
            alpn,
            der,
            verified=vouches(tls),
            chain=_ders(tls.get_peer_cert_chain(as_cryptography=True)),
            verified_chain=_ders(tls.get_verified_chain(as_cryptography=True)),
            resumed=self.resumed,
        )
        return self.info

    def _verify(self, _: SSL.Connection, certificate: object, code: int, depth: int, ok: int) -> bool:
        assert isinstance(certificate, X509)
        self._verified_here = True
        if not ok:
            self._verdict = (code, trust.verify_message(code))
            self._peer = certificate
            return False
        if depth == 0:
            self._peer = certificate
            destination = self.destination
            try:
                trust.check_name(certificate.to_cryptography(), destination.host, is_address=destination.is_address)
            except Exception as mismatch:  # some certificates that OpenSSL takes cannot be read
                code = mismatch.code if isinstance(mismatch, trust.NameMismatch) else trust.HOSTNAME_MISMATCH
                self._verdict = (code, str(mismatch))
                return False
        return True

    def _handshake_failed(self, error: SSL.Error) -> NoReturn:
        if self._verdict:
            self._verification_failed()
        if isinstance(error, SSL.SysCallError | SSL.ZeroReturnError):
            raise TlsError(f"{self.destination.host} closed the connection during the handshake", reason="UNEXPECTED_EOF")
        reason = error_word(error)
        raise TlsError(f"TLS handshake with {self.destination.host} failed: {in_words(reason)}", reason=reason) from error

    def _verification_failed(self) -> NoReturn:
        assert self._verdict
        code, message = self._verdict
        raise TlsError(
            not_accepted(self.destination.host, code, message, self._peer),
            reason="CERTIFICATE_VERIFY_FAILED",
            verify_code=code,
            verify_message=message,
        )

    def session(self) -> SSL.Session | None:
        """What a later connection may resume."""
        return None if self._closed else self._tls.get_session()

    # ---- use ----

    async def send(self, data: bytes) -> None:
        """OSError when the connection is gone."""
        if self._closed or self._finished:
            raise UpstreamError(f"connection to {self.destination.host} is closed for writing")
        view = memoryview(data)
        while view:
            batch = 0
            while view and batch < 4 * RECORD:
                try:
                    taken = self._tls.send(view)  # one record: pyOpenSSL turns partial writes on
                except SSL.Error as error:
                    raise UpstreamError(f"connection to {self.destination.host} broke: {in_words(error_word(error))}") from error
                batch += taken
                view = view[taken:]
            self.sent += batch
            self._flush(batch)
            while len(self._out) > OUT_HIGH:
                await self._writable()

    async def receive(self, limit: int = READ) -> bytes:
        """1..limit bytes, b"" at close_notify; UpstreamError at any other end."""
        self._received = True
        if self._greeting:
            greeting, self._greeting = self._greeting, b""
            return greeting
        while True:
            data = self._decrypt(limit)
            if data is not None:
                return data
            await self._readable("the peer's data")

    def send_eof(self) -> None:
        """close_notify; receiving goes on."""
        if not (self._closed or self._finished):
            self._finished = True
            with suppress(SSL.Error, OSError):
                self._tls.shutdown()
                self._flush()

    @property
    def trouble(self) -> str:
        """What broke it, for people; "" if nothing did."""
        return self._trouble

    def soiled(self) -> str:
        """Why this connection must not be lent again, "" if there is no reason: reads all there is to read, never waits."""
        if self._closed or self._eof or self._error or self._finished:
            return "closed"
        if self._out or self._writer or self._reader:
            return "busy"
        while self._buffered <= PAUSE and self._read_socket():
            pass
        try:
            data = None if self._greeting else self._decrypt(1)
        except (UpstreamError, OSError) as error:
            self._trouble = self._trouble or str(error)
            return "flood" if self._barren > BARREN else "closed"
        over = data == b"" or self._eof or self._error is not None
        if self.may_greet and not self.sent and not self._received and not over:
            self._greeting += data or b""
            return ""
        if data or self._framing.inside_record:
            return "bytes"
        return "closed" if over else ""

    def interrupt(self) -> None:
        """Wake whoever still waits on it, with an error: the lease has ended."""
        for waiter in (self._reader, self._writer):
            if waiter and not waiter.done():
                waiter.set_exception(UpstreamError("the connection was released"))

    def close(self) -> None:
        """close_notify, then the socket; bytes that the socket has not taken yet get LINGER seconds. Never waits. Idempotent."""
        if self._closed:
            return
        if self.info and not self._finished:
            with suppress(SSL.Error, OSError):
                self._tls.shutdown()
                self._flush()
        self._closed = True
        self.on_idle_event = None
        gone, self.on_close = self.on_close, None
        if gone:
            gone(self)
        self._stop_reading()
        self.interrupt()
        if self._out and not self._error:
            self._linger = self._loop.call_later(LINGER, self._close_socket)
        else:
            self._close_socket()

    def _close_socket(self) -> None:
        if self._linger:
            self._linger.cancel()
        if self._writing:
            self._loop.remove_writer(self._sock)
            self._writing = False
        with suppress(OSError):  # closing with bytes unread (session tickets) would reset, and undo what was sent
            for _ in range(16):
                if not self._sock.recv(READ):
                    break
        self._sock.close()
        self._out.clear()

    # ---- plaintext ----

    def _decrypt(self, limit: int) -> bytes | None:
        """Up to `limit` bytes; b"" at close_notify; None if more must come first."""
        if not self._fresh:
            if self._eof or self._error:
                self._cut()
            return None
        pieces = []
        left = limit
        try:
            while left > 0:
                piece = self._tls.recv(min(left, RECORD))
                pieces.append(piece)
                left -= len(piece)
        except SSL.WantReadError:
            self._fresh = False
            self._fruitful = self._fruitful or bool(pieces)
            self._digested()
            if not self._reading:
                self._resume_reading()
        except SSL.ZeroReturnError:
            if not pieces:
                return b""
        except SSL.Error as error:
            if not pieces:
                reason = error_word(error)
                raise UpstreamError(f"connection to {self.destination.host} broke: {in_words(reason)}") from error
        if pieces:
            self._fruitful = self._fresh  # of what has not been looked at to the end
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._eof or self._error:
            self._cut()
        return None

    def _digested(self) -> None:
        """All encrypted bytes that came have been looked at. UpstreamError if the peer sends too many of no use,
        or asks without listening."""
        self._barren = 0 if self._fruitful else self._barren + self._buffered
        self._fruitful = False
        self._unflushed += self._buffered
        self._buffered = 0
        if self.info and (self._barren or self._unflushed > BARREN):
            self._unflushed = 0
            try:
                self._flush()  # answers to key updates, alerts: they must not pile up
            except OSError as error:
                self._error = self._error or error
            if self._barren > BARREN:
                self._give_up("sends TLS records that carry nothing")
            if len(self._out) > ANSWERS:
                self._give_up("does not take the answers to its key updates")

    def _give_up(self, why: str) -> NoReturn:
        self._error = ConnectionAbortedError(errno.ECONNABORTED, f"the peer {why}")
        raise UpstreamError(f"{self.destination.host} {why}")

    def _cut(self) -> NoReturn:
        if self._error:
            raise self._error
        raise Cut(f"{self.destination.host} ended the connection without saying so (it may have been cut)")

    # ---- socket ----

    def _resume_reading(self) -> None:
        if not (self._reading or self._closed or self._eof or self._error):
            self._loop.add_reader(self._sock, self._on_readable)
            self._reading = True

    def _on_readable(self) -> None:
        # To the last byte and the error behind it: libuv reports a reset once and lets go of the socket, so that under uvloop
        # one read of what came before the reset would be the last thing heard of it.
        while self._buffered <= PAUSE and self._read_socket():
            pass
        if self._buffered > PAUSE:
            self._stop_reading()
        reader = self._reader
        if reader:
            if not reader.done():
                reader.set_result(None)
        elif self.on_idle_event:
            self.on_idle_event(self)

    def _read_socket(self) -> bool:
        """Take what the kernel has (one read); False if nothing more can come now."""
        if self._eof or self._error or self._closed:
            return False
        try:
            data = self._sock.recv(READ)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._error = error
            self._fresh = True
            self._stop_reading()
            return False
        if not data:
            self._eof = True
            self._fresh = True  # what came before is looked at first
            self._stop_reading()
            return False
        self._tls.bio_write(data)
        self._framing.feed(data)
        self._buffered += len(data)
        self._fresh = True
        return True

    def _stop_reading(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._sock)
            self._reading = False

    async def _readable(self, what: str) -> None:
        if self._closed:
            raise UpstreamError("the connection was released")
        if self._eof or self._error:
            if self.info is None:
                if self._error:
                    raise self._error
                raise TlsError(f"{self.destination.host} closed the connection during {what}", reason="UNEXPECTED_EOF")
            self._cut()
        if self._reader:
            raise RuntimeError("two readers on one connection")
        self._resume_reading()
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _flush(self, plaintext: int = 0) -> None:
        """Hand what OpenSSL wrote to the socket; keep the rest for when it is writable. OSError if it is gone."""
        size = plaintext + (plaintext // RECORD + 1) * 64 + 4096
        while True:
            try:
                data = self._tls.bio_read(size)
            except SSL.WantReadError:
                return
            if self._out:
                self._out += data
            else:
                try:
                    taken = self._sock.send(data)
                except (BlockingIOError, InterruptedError):
                    taken = 0
                if taken < len(data):
                    self._out += memoryview(data)[taken:]
                    self._loop.add_writer(self._sock, self._on_writable)
                    self._writing = True
            if len(data) < size:
                return

    def _on_writable(self) -> None:
        try:
            taken = self._sock.send(self._out)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._error = self._error or error
            taken = len(self._out)
        del self._out[:taken]
        if not self._out:
            self._loop.remove_writer(self._sock)
            self._writing = False
            if self._closed:
                self._close_socket()
        if self._writer and not self._writer.done() and len(self._out) <= OUT_HIGH // 2:
            self._writer.set_result(None)

    async def _writable(self) -> None:
        if self._writer:
            raise RuntimeError("two writers on one connection")
        self._writer = self._loop.create_future()
        try:
            await self._writer
        finally:
            self._writer = None
        if self._error:
            raise self._error


def _ders(chain: Sequence[Certificate] | None) -> tuple[bytes, ...]:
    return tuple(certificate.public_bytes(Encoding.DER) for certificate in chain or ())
