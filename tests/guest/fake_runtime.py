"""The host's side of a guest's TLS, without agentfw and without KVM: answers the preface, then relays plaintext to a real TLS server."""

from __future__ import annotations

import base64
import contextlib
import json
import select
import socket
import ssl
import threading
from typing import Any

MAGIC = b"\0AFWTLS1"


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError(f"{len(data)} of {size} bytes")
        data += part
    return data


class FakeRuntime:
    """Listens on `port`; every connection is one flow, forwarded to `upstream` (host, port) over TLS verified against `ca`."""

    def __init__(self, upstream: tuple[str, int], ca: bytes, *, slow: bool = False, declines: bool = False) -> None:
        self.upstream, self.ca, self.slow, self.declines = upstream, ca, slow, declines
        self.prefaces: list[dict[str, Any]] = []
        self.first_bytes: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._flow, args=(sock,), daemon=True).start()

    def _flow(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = exactly(sock, 12)
            self.first_bytes.append(head)
            if head[:8] != MAGIC:
                return
            request = json.loads(exactly(sock, int.from_bytes(head[8:], "big")))
            self.prefaces.append(request)
            if self.declines:
                self._answer(sock, {"ok": False, "native": True, "verify_code": 0, "message": ""})
                with socket.create_connection(self.upstream) as plain:
                    relay_raw(sock, plain)
                return
            self._serve(sock, request)

    def _answer(self, sock: socket.socket, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        frame = MAGIC + len(body).to_bytes(4, "big") + body
        if self.slow:
            for at in range(len(frame)):
                sock.sendall(frame[at : at + 1])
        else:
            sock.sendall(frame)

    def _serve(self, sock: socket.socket, request: dict[str, Any]) -> None:
        context = ssl.create_default_context(cadata=self.ca.decode("ascii"))
        if request["alpn"]:
            context.set_alpn_protocols(request["alpn"])
        try:
            tls = context.wrap_socket(socket.create_connection(self.upstream), server_hostname=request["server_name"])
        except ssl.SSLCertVerificationError as error:
            self._answer(sock, {"ok": False, "verify_code": error.verify_code, "verify_message": error.verify_message,
                                "reason": "CERTIFICATE_VERIFY_FAILED", "message": "certificate verify failed"})  # fmt: skip
            return
        except OSError as error:
            self._answer(sock, {"ok": False, "verify_code": 0, "verify_message": "", "reason": "UPSTREAM", "message": str(error)})
            return
        with tls:
            der = tls.getpeercert(True)
            assert der is not None
            self._answer(sock, {"ok": True, "version": tls.version(), "cipher": tls.cipher(), "alpn": tls.selected_alpn_protocol(),
                                "cert": base64.b64encode(der).decode()})  # fmt: skip
            relay(sock, tls)


def relay_raw(one: socket.socket, other: socket.socket) -> None:
    """Bytes both ways, until either side ends."""
    while True:
        for ready in select.select([one, other], [], [])[0]:
            data = ready.recv(65536)
            if not data:
                return
            (other if ready is one else one).sendall(data)


def relay(sock: socket.socket, tls: ssl.SSLSocket) -> None:
    """Both ways in one thread: an SSL object is not for two."""
    readers: list[socket.socket] = [sock, tls]
    while tls in readers:
        ready = [tls] if tls.pending() else select.select(readers, [], [])[0]
        if sock in ready:
            if data := sock.recv(65536):
                tls.sendall(data)
            else:  # our close_notify would be here; the plain half stays open for what is still coming
                readers.remove(sock)
                with contextlib.suppress(OSError), socket.socket(fileno=socket.dup(tls.fileno())) as raw:
                    raw.shutdown(socket.SHUT_WR)
        if tls in ready:
            tls.setblocking(False)
            try:
                data = tls.recv(65536)
            except ssl.SSLWantReadError:  # a session ticket, not data
                continue
            finally:
                tls.setblocking(True)
            if data:
                sock.sendall(data)
            else:
                readers.remove(tls)
    sock.shutdown(socket.SHUT_WR)
    while sock in readers and sock.recv(65536):
        pass
