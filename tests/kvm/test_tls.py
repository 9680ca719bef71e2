"""`ssl` in a guest and natively: one program, the same servers, the same words."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from OpenSSL import crypto

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm
PROBE = Path(__file__).parents[1] / "guest/tls_probe.py"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"

Serve = Callable[[socket.socket], None]


class Servers:
    """TLS servers of every sort on 127.0.0.1."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self.stack = stack
        self.ca, self.foreign = trustme.CA(), trustme.CA()
        self.middle = self.ca.create_child_ca()
        good = self.context(self.middle.issue_cert("model.test", "inner.test"))
        good.set_alpn_protocols(["http/1.1"])
        tls12 = self.context(self.ca.issue_cert("model.test"))
        tls12.maximum_version = ssl.TLSVersion.TLSv1_2
        past = datetime.now(UTC) - timedelta(days=3)
        lone = trustme.CA()
        selfsigned = self._itself(directory)
        self.ports = {
            "https": self.listen(self.over(good, self.http)),
            "echo": self.listen(self.over(good, self.echo)),
            "tls12": self.listen(self.over(tls12, self.echo)),
            "expired": self.listen(self.over(self.context(self.ca.issue_cert("model.test", not_after=past)), self.echo)),
            "foreign": self.listen(self.over(self.context(self.foreign.issue_cert("model.test")), self.echo)),
            "selfsigned": self.listen(self.over(selfsigned, self.echo)),
            "resets": self.listen(lambda sock: sock.recv(1) and None),  # with the rest unread
            "closes": self.listen(lambda sock: sock.recv(65536) and None),
            "speaks plain": self.listen(lambda sock: sock.sendall(b"220 hello, this is no TLS at all\r\n" * 3)),
            "silent": self.listen(lambda sock: self.stopped.wait(60) and None),
            "starttls": self.listen(lambda sock: self.starttls(sock, good, b"go\n")),
            "starttls at once": self.listen(lambda sock: self.starttls(sock, good, b"")),
            "tunnel": self.listen(self.over(good, lambda sock: self.tunnel(sock, good))),
        }
        with socket.create_server(("127.0.0.1", 0)) as closed:
            self.ports["closed"] = closed.getsockname()[1]
        (directory / "ca.pem").write_bytes(self.ca.cert_pem.bytes())
        (directory / "other.pem").write_bytes(lone.cert_pem.bytes())
        inner = self.middle.issue_cert("model.test")
        (directory / "inner.pem").write_bytes(
            b"".join(blob.bytes() for blob in inner.cert_chain_pems) + inner.private_key_pem.bytes()
        )

    stopped = threading.Event()

    @staticmethod
    def context(certificate: trustme.LeafCert) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(made)
        return made

    @staticmethod
    def _itself(directory: Path) -> ssl.SSLContext:
        from agentfw.fleet_ca import FleetCa  # its root serves as a certificate that vouches for itself

        authority = FleetCa()
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        file = directory.parent / "selfsigned.pem"
        key = authority._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(authority.pem + key)
        made.load_cert_chain(file)
        file.unlink()
        return made

    def listen(self, serve: Serve) -> int:
        listener = self.stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=50))
        self.stack.callback(listener.shutdown, socket.SHUT_RDWR)

        def one(sock: socket.socket) -> None:
            with contextlib.suppress(OSError, ValueError), sock:
                sock.settimeout(60)
                serve(sock)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    threading.Thread(target=one, args=(sock,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return int(listener.getsockname()[1])

    @staticmethod
    def over(context: ssl.SSLContext, serve: Serve) -> Serve:
        def run(sock: socket.socket) -> None:
            with context.wrap_socket(sock, server_side=True) as tls:
                serve(tls)

        return run

    @staticmethod
    def http(sock: socket.socket) -> None:
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            if not (piece := sock.recv(65536)):
                return  # it came for the handshake alone
            data += piece
        sock.sendall(ANSWER)

    @staticmethod
    def echo(sock: socket.socket) -> None:
        while data := sock.recv(65536):
            sock.sendall(data)
        if isinstance(sock, ssl.SSLSocket):
            sock.unwrap()

    @staticmethod
    def line(sock: socket.socket) -> bytes:
        """One line and not a byte more: what follows is another protocol's."""
        data = b""
        while not data.endswith(b"\n"):
            if not (piece := sock.recv(1)):
                raise OSError("no line came")
            data += piece
        return data

    def starttls(self, sock: socket.socket, context: ssl.SSLContext, says: bytes) -> None:
        assert self.line(sock) == b"\1STARTTLS\n"
        sock.sendall(says)
        self.over(context, self.echo)(sock)

    def tunnel(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        """TLS of the client's over this TLS."""
        assert self.line(sock) == b"\1TUNNEL\n"
        sock.sendall(b"go\n")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        inner = context.wrap_bio(incoming, outgoing, server_side=True)

        def drive(step: Callable[..., object], *args: object) -> object:
            while True:
                try:
                    return step(*args)
                except ssl.SSLWantReadError:
                    if outgoing.pending:
                        sock.sendall(outgoing.read())
                    data = sock.recv(65536)
                    if not data:
                        raise OSError("end") from None
                    incoming.write(data)
                finally:
                    if outgoing.pending:
                        sock.sendall(outgoing.read())

        drive(inner.do_handshake)
        drive(inner.write, drive(inner.read, 6))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        made = Servers(tmp_path, stack)
        made.stopped.clear()
        yield made
        made.stopped.set()


def test_ssl_is_the_same_as_natively(agentfw: Agentfw, servers: Servers, tmp_path: Path) -> None:
    shutil.copy(PROBE, tmp_path)
    ca = x509.load_pem_x509_certificate(servers.ca.cert_pem.bytes())
    hashed = f"{crypto.X509.from_cryptography(ca).subject_name_hash():08x}"
    (tmp_path / "agentfw.toml").write_text(f"""
[run]
env = {{ CA_HASH = "{hashed}" }}
[dns.hosts]
"model.test" = "127.0.0.1"
"other.test" = "127.0.0.1"
[tls]
ca_files = ["ca.pem"]
[policy]
allow = ["*.test"]
allow_addresses = ["127.0.0.1/32"]
""")
    command = [
        "tls_probe.py",
        json.dumps(servers.ports),
        *(str(tmp_path / name) for name in ("ca.pem", "other.pem", "inner.pem")),
    ]
    done = agentfw("run", *command)
    assert done.returncode == 0 and done.stdout, done.stderr
    native = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "NATIVE": "1", "CA_HASH": hashed, "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert native.returncode == 0, native.stderr
    # Where a program's line in _ssl.c is part of the message, the guest has none; all else is the same.
    here, there = json.loads(native.stdout), json.loads(done.stdout)
    different = {name: (here[name], there.get(name)) for name in here if here[name] != there.get(name)}
    assert set(here) == set(there) and not different, json.dumps(different, indent=1)
    failing = {name for name, told in here.items() if isinstance(told, dict) and name != "waiting"}
    assert all(name.startswith(("refused: ", "context with")) for name in failing), failing
