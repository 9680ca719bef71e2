"""OpenSSL of the system, not Python's: what a wheel with its own TLS does, without such a wheel. Runs in guests, too.

client = Client("host.test"); client.trust(FILE); client.step() -> bytes to send, ...
python openssl_client.py HOST PORT   one GET, with the system's default authorities; prints the answer, or what went wrong
"""

from __future__ import annotations

import ctypes
import ctypes.util

WANT_READ = 2
_ssl = ctypes.CDLL("libssl.so.3")
_crypto = ctypes.CDLL("libcrypto.so.3")
for library, names in (
    (_ssl, "TLS_client_method SSL_CTX_new SSL_new"),
    (_crypto, "BIO_new BIO_s_mem X509_verify_cert_error_string"),
):
    for name in names.split():
        getattr(library, name).restype = ctypes.c_void_p
_ssl.SSL_get_version.restype = _crypto.ERR_reason_error_string.restype = _crypto.X509_verify_cert_error_string.restype = (
    ctypes.c_char_p
)
_crypto.ERR_get_error.restype = ctypes.c_ulong
_ssl.SSL_get_verify_result.restype = ctypes.c_long


class TlsFailure(Exception):
    pass


class Client:
    """A connection over memory; `hostname` is verified."""

    def __init__(self, hostname: str, cafile: str | None = None) -> None:
        self._context = ctypes.c_void_p(_ssl.SSL_CTX_new(ctypes.c_void_p(_ssl.TLS_client_method())))
        if cafile is None:
            assert _ssl.SSL_CTX_set_default_verify_paths(self._context) == 1
        else:
            assert _ssl.SSL_CTX_load_verify_locations(self._context, cafile.encode(), None) == 1
        _ssl.SSL_CTX_set_verify(self._context, 1, None)
        self._tls = ctypes.c_void_p(_ssl.SSL_new(self._context))
        self._in = ctypes.c_void_p(_crypto.BIO_new(ctypes.c_void_p(_crypto.BIO_s_mem())))
        self._out = ctypes.c_void_p(_crypto.BIO_new(ctypes.c_void_p(_crypto.BIO_s_mem())))
        _crypto.BIO_ctrl(self._in, 130, ctypes.c_long(-1), None)  # BIO_set_mem_eof_return: empty is "later"
        _ssl.SSL_set_bio(self._tls, self._in, self._out)
        _ssl.SSL_ctrl(self._tls, 55, ctypes.c_long(0), hostname.encode())  # SNI
        assert _ssl.SSL_set1_host(self._tls, hostname.encode()) == 1
        _ssl.SSL_set_connect_state(self._tls)

    def feed(self, data: bytes) -> None:
        _crypto.BIO_write(self._in, data, len(data))

    def output(self) -> bytes:
        buffer = ctypes.create_string_buffer(1 << 20)
        size = _crypto.BIO_read(self._out, buffer, len(buffer))
        return buffer.raw[: max(size, 0)]

    def handshake(self) -> bool:
        """False: more bytes are needed."""
        return self._done(_ssl.SSL_do_handshake(self._tls))

    def write(self, data: bytes) -> None:
        assert self._done(_ssl.SSL_write(self._tls, data, len(data)))

    def read(self) -> bytes | None:
        """None: more bytes are needed; b"": close_notify."""
        buffer = ctypes.create_string_buffer(65536)
        size = _ssl.SSL_read(self._tls, buffer, len(buffer))
        if size > 0:
            return buffer.raw[:size]
        if _ssl.SSL_get_error(self._tls, size) == 6:
            return b""
        self._done(size)
        return None

    def update_keys(self) -> None:
        """TLS 1.3: new keys, and please the same of you."""
        assert _ssl.SSL_key_update(self._tls, 1) == 1
        self._done(_ssl.SSL_do_handshake(self._tls))

    def version(self) -> str:
        return str(_ssl.SSL_get_version(self._tls).decode())

    def _done(self, result: int) -> bool:
        if result > 0:
            return True
        if _ssl.SSL_get_error(self._tls, result) == WANT_READ:
            return False
        verdict = _ssl.SSL_get_verify_result(self._tls)
        if verdict:
            raise TlsFailure(_crypto.X509_verify_cert_error_string(ctypes.c_long(verdict)).decode())
        reason = _crypto.ERR_reason_error_string(ctypes.c_ulong(_crypto.ERR_get_error()))
        raise TlsFailure(reason.decode() if reason else "the connection broke")


def get(host: str, port: int, cafile: str | None = None, path: str = "/", headers: str = "") -> str:
    """One GET; -> version and whole answer."""
    import socket

    client = Client(host, cafile)
    with socket.create_connection((host, port), 30) as sock:

        def more() -> None:
            sock.sendall(client.output())
            data = sock.recv(65536)
            if not data:
                raise TlsFailure("end of stream")
            client.feed(data)

        try:
            while not client.handshake():
                more()
        except TlsFailure:
            sock.sendall(client.output())  # the alert
            raise
        client.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{headers}Connection: close\r\n\r\n".encode())
        answer = b""
        while (piece := client.read()) != b"":
            if piece is None:
                more()
            else:
                answer += piece
    return client.version() + " " + answer.decode()


if __name__ == "__main__":
    import sys

    try:
        print(get(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
    except (TlsFailure, OSError) as error:
        print(type(error).__name__, error)
