"""The bytes under a TLS object: of a socket or of two memory BIOs, with the errors that the real module raises for them."""

from __future__ import annotations

import _socket
import _ssl as real
import errno
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"\0AFWTLS1"
HEAD = len(MAGIC) + 4
FRAME_MAX = 65536


def ssl_error(kind: type[Any], number: int, text: str, reason: str | None) -> Any:
    """An exception with the attributes that `_ssl` gives it."""
    error = kind(number, f"[SSL: {reason}] {text}" if reason else text)
    error.library = "SSL" if reason else None
    error.reason = reason
    return error


def want_read() -> Any:
    return ssl_error(real.SSLWantReadError, 2, "The operation did not complete (read)", None)


def want_write() -> Any:
    return ssl_error(real.SSLWantWriteError, 3, "The operation did not complete (write)", None)


class SocketLink:
    """Bytes over the plain socket under an `ssl.SSLSocket`. Weak, as the real object is: the socket owns us."""

    def __init__(self, sock: Any) -> None:
        self._sock = weakref.ref(sock)

    def sock(self) -> Any:
        sock = self._sock()
        if sock is None or sock.fileno() < 0:
            raise ssl_error(real.SSLError, 1, "Underlying socket connection gone", None)
        return sock

    def receive(self, size: int, what: str) -> bytes:
        try:
            return _socket.socket.recv(self.sock(), size)
        except BlockingIOError:
            raise want_read() from None
        except TimeoutError as failure:
            if failure.errno is None:
                raise TimeoutError(f"The {what} operation timed out") from None
            raise

    def receive_into(self, buffer: memoryview) -> int:
        try:
            return _socket.socket.recv_into(self.sock(), buffer)
        except BlockingIOError:
            raise want_read() from None
        except TimeoutError as failure:
            if failure.errno is None:
                raise TimeoutError("The read operation timed out") from None
            raise

    def send(self, data: Buffer, what: str) -> int:
        try:
            return _socket.socket.send(self.sock(), data)
        except BlockingIOError:
            raise want_write() from None
        except TimeoutError as failure:
            if failure.errno is None:
                raise TimeoutError(f"The {what} operation timed out") from None
            raise

    def really(self, context: Any, server_side: bool, hostname: str | None, owner: Any, session: Any = None) -> Any:
        """The real module's object over the same bytes."""
        return context._really_socket(self.sock(), server_side, hostname, owner, session)

    def first(self) -> bytes:
        """The next byte, which stays where it is."""
        try:
            return _socket.socket.recv(self.sock(), 1, _socket.MSG_PEEK)
        except BlockingIOError:
            raise want_read() from None
        except TimeoutError as failure:
            if failure.errno is None:
                raise TimeoutError("The handshake operation timed out") from None
            raise

    def pending(self) -> int:
        return 0  # nothing is kept here: select() on the socket tells all

    def shut(self) -> Any:
        sock = self.sock()
        try:
            _socket.socket.shutdown(sock, _socket.SHUT_WR)
        except OSError as failure:
            if failure.errno != errno.ENOTCONN:
                raise
        if self.receive(1, "read"):
            text = "application data after close notify"
            raise ssl_error(real.SSLError, 1, text, "APPLICATION_DATA_AFTER_CLOSE_NOTIFY")
        return sock


class BioLink:
    """Bytes over the two memory BIOs under an `ssl.SSLObject`."""

    def __init__(self, incoming: Any, outgoing: Any) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def receive(self, size: int, what: str) -> bytes:
        data: bytes = self._incoming.read(size)
        if not data and size and not self._incoming.eof:
            raise want_read()
        return data

    def receive_into(self, buffer: memoryview) -> int:
        data = self.receive(len(buffer), "read")
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: Buffer, what: str) -> int:
        size: int = self._outgoing.write(data)
        return size

    def really(self, context: Any, server_side: bool, hostname: str | None, owner: Any, session: Any = None) -> Any:
        return context._really_bio(self._incoming, self._outgoing, server_side, hostname, owner, session)

    def first(self) -> bytes:
        data: bytes = self._incoming.read()
        if data:
            if self._incoming.eof:  # nothing can be put back; nor could a handshake come to its end
                raise ssl_error(real.SSLEOFError, 8, "EOF occurred in violation of protocol", "UNEXPECTED_EOF_WHILE_READING")
            self._incoming.write(data)
        elif not self._incoming.eof:
            raise want_read()
        return data[:1]

    def pending(self) -> int:
        size: int = self._incoming.pending
        return size

    def shut(self) -> None:
        """The owner closes its transport next, and that is the close_notify."""
