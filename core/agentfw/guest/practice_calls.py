"""Before the snapshot: what an agent's first call over TLS does, done some times over with a server that only this program plays.

Code that has run is specialised, its caches are full and its counters are at their end: agents write to fewer pages, and run less
(see `_practise()` in bootstrap.py). Nothing of it is kept: no connection, no session, no answer, and no random number.
"""

from __future__ import annotations

import _ssl
import base64
import contextlib
import ctypes
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import offload_local  # type: ignore[import-not-found,unused-ignore]
from offload_links import MAGIC  # type: ignore[import-not-found,unused-ignore]

TIMES = 20
HOST = "practice.invalid"  # RFC 2606: nobody's
BODY = json.dumps({"model": "none", "messages": [{"role": "user", "content": "practice"}]})


@contextlib.contextmanager
def nothing_drawn() -> Iterator[None]:
    """For this thread OpenSSL's random numbers are zeros in here.

    A context draws keys for its tickets as it is made, and leaves them in freed memory, where they would be the same in all VMs
    (bench/uniqueness.py). Where OpenSSL is part of the interpreter and hidden, they are left: nothing was encrypted with them.
    """
    try:
        library = ctypes.CDLL(getattr(_ssl, "__file__", None))
        method, choose = library.RAND_get_rand_method, library.RAND_set_rand_method
        draws = library.RAND_bytes, library.RAND_priv_bytes
    except (AttributeError, OSError):
        yield
        return
    own = ctypes.create_string_buffer(16)
    for draw in draws:  # its generators are made, which is a part of what its first use costs; each VM seeds them anew
        draw(own, len(own))
    ctypes.memset(own, 0, len(own))
    method.restype, choose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    usual = method()
    others = kind.from_address(usual + ctypes.sizeof(ctypes.c_void_p))  # RAND_METHOD: seed, bytes, ...
    thread = threading.get_ident()

    def fill(buffer: int, size: int) -> int:
        if threading.get_ident() != thread:
            return int(others(buffer, size))
        ctypes.memset(buffer, 0, size)
        return 1

    zeros = kind(fill)
    ours = (ctypes.c_void_p * 6)(None, ctypes.cast(zeros, ctypes.c_void_p))
    choose(ctypes.addressof(ours))
    try:
        yield
    finally:
        choose(usual)


def _answers() -> bytes:
    """What the host says to a preface, and behind it a server to a request."""
    certificate = base64.b64encode(bytes(700)).decode()
    accepted = {"ok": True, "version": "TLSv1.3", "cipher": ["TLS_AES_256_GCM_SHA384", "TLSv1.3", 256], "alpn": None}
    accepted |= {"cert": certificate, "chain": [certificate], "verified": [0, 1], "resumed": True}
    body = json.dumps(accepted, separators=(",", ":")).encode()
    content = json.dumps({"choices": [{"message": {"role": "assistant", "content": "practice"}}], "usage": {}}).encode()
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
    head += f"Server: practice\r\nContent-Length: {len(content)}\r\n\r\n"
    answers: bytes = MAGIC + len(body).to_bytes(4, "big") + body + head.encode() + content
    return answers


def _call(server: socket.socket, address: Any, answers: bytes) -> None:
    context = ssl.create_default_context()
    plain = socket.socket()
    with plain:
        plain.settimeout(10)
        plain.connect(address)
        peer, _ = server.accept()
        with peer:
            peer.sendall(answers)
            connection = http.client.HTTPSConnection(HOST, 443, context=context, timeout=10)
            with contextlib.closing(connection):
                connection.sock = context.wrap_socket(plain, server_hostname=HOST)
                connection.request("POST", "/v1/practice", BODY, {"Authorization": "none", "Content-Type": "application/json"})
                json.loads(connection.getresponse().read())


def practise() -> int:
    """-> calls. What fails is for the program to find."""
    done = 0
    local = offload_local.local_peer
    offload_local.local_peer = lambda sock: local(sock) is None  # the server is in this guest, and is to pass for another
    try:
        with contextlib.suppress(Exception), nothing_drawn(), socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(10)
            answers = _answers()
            for _ in range(TIMES):
                _call(server, server.getsockname(), answers)
                done += 1
    finally:
        offload_local.local_peer = local
    return done
