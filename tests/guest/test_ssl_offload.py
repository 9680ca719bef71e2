"""The guest's `_ssl` against a fake runtime in front of a real TLS server: no KVM needed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .fake_runtime import FakeRuntime
from .tls_server import TlsServer

HERE = Path(__file__).parent
GUEST = HERE.parents[1] / "core/agentfw/guest"


@pytest.fixture(scope="module")
def server() -> Iterator[TlsServer]:
    server = TlsServer()
    yield server
    server.close()


@pytest.fixture(params=["whole", "dribbling"])
def runtime(server: TlsServer, request: pytest.FixtureRequest) -> Iterator[FakeRuntime]:
    runtime = FakeRuntime(server.address, server.ca, slow=request.param == "dribbling")
    yield runtime
    runtime.close()


@pytest.fixture
def inside(runtime: FakeRuntime, server: TlsServer, tmp_path: Path) -> Callable[..., str]:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(server.ca)

    def run(code: str, *args: str, port: int | None = None, **environment: str) -> str:
        script = tmp_path / "script.py"
        script.write_text(f"PORT = {port or runtime.port}\n" + textwrap.dedent(code))
        done = subprocess.run(
            [sys.executable, HERE / "inside.py", str(port or runtime.port), script, ca, *args],
            env={"PATH": os.environ["PATH"], "AGENTFW_GUEST": str(GUEST), "PYTHONWARNINGS": "default", **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout

    return run


def test_urllib(inside: Callable[..., str], runtime: FakeRuntime, server: TlsServer) -> None:
    out = inside("""
        import urllib.request
        with urllib.request.urlopen("https://model.test/x") as reply:
            print(reply.status, reply.read())
        with urllib.request.urlopen("https://model.test/big") as reply:
            print(reply.read() == bytes(range(256)) * 4096)
        with urllib.request.urlopen("https://model.test/close") as reply:
            print(reply.read())
    """)
    assert out == "200 b'hello'\nTrue\nb'until the end'\n"
    assert runtime.prefaces[0] == {
        "server_name": "model.test", "alpn": ["http/1.1"], "verify": 2, "check_hostname": True, "cas": [], "public": True,
        "min": 0, "max": 0,
    }  # fmt: skip


FACTS = """
    import socket, ssl, sys
    context = ssl.create_default_context(cafile=sys.argv[1])
    context.set_alpn_protocols(["h2", "http/1.1"])
    sock = socket.create_connection(socket.getaddrinfo("model.test", 0, type=socket.SOCK_STREAM)[0][4])
    tls = context.wrap_socket(sock, server_hostname="model.test", do_handshake_on_connect=False)
    print(tls.version(), tls.cipher(), tls.selected_alpn_protocol(), tls.pending(), tls.session_reused, tls.compression())
    try:
        tls.getpeercert()
    except ValueError as error:
        print(error)
    tls.do_handshake()
    print(tls.version(), tls.cipher(), tls.selected_alpn_protocol(), tls.pending(), tls.compression(), tls.shared_ciphers())
    print(sorted(tls.getpeercert().items()), len(tls.getpeercert(True)))
    print(tls.server_hostname, tls.server_side, tls.context is context, type(tls).__name__)
    tls.sendall(b"POST /echo HTTP/1.1\\r\\nHost: model.test\\r\\nContent-Length: 300000\\r\\nConnection: close\\r\\n\\r\\n" + b"x" * 300000)
    with tls.makefile("rb") as file:
        print(file.readline(), len(file.read()) > 300000)
    print(tls.recv(10), tls.recv_into(bytearray(10)), tls.read(0))
    print(len(context.get_ca_certs()), context.cert_store_stats())
    tls.close()
    for wrong in ("", ".x"):
        try:
            context.check_hostname = False
            context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=wrong)
        except ValueError as error:
            print(type(error), error)
    try:
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="a.test").unwrap()
    except ssl.SSLError as error:
        print(type(error).__name__)
"""


def test_the_same_facts_as_natively(inside: Callable[..., str], runtime: FakeRuntime, server: TlsServer) -> None:
    """One script through the offload and, straight to the server, through the real module."""
    native = inside(FACTS, port=server.address[1], AGENTFW_REAL="1")
    assert inside(FACTS) == native
    assert "('subjectAltName', (('DNS', 'model.test'),))" in native
    assert len(runtime.prefaces) == 1 and len(runtime.prefaces[0]["cas"]) == 1


PUBLIC = """
    import certifi, os, socket, ssl, sys
    directory = ssl.get_default_verify_paths().openssl_capath
    for file, place in ((certifi.where(), None), (certifi.where(), directory), (None, directory), (None, b"/nothing")):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(file, place)
        if "tls" in sys.argv:
            context.check_hostname = False
            sock = socket.create_connection(socket.getaddrinfo("model.test", 0, type=socket.SOCK_STREAM)[0][4])
            context.wrap_socket(sock, server_hostname="model.test").close()
        else:
            print(context.cert_store_stats(), len(context.get_ca_certs()))
    for wrong in ((None, None), ("/nothing", directory)):
        try:
            context.load_verify_locations(*wrong)
        except (TypeError, OSError) as error:
            print(type(error).__name__)
"""


def test_public_stores_are_not_loaded_before_they_are_asked_for(inside: Callable[..., str], runtime: FakeRuntime) -> None:
    """Parsing them costs tens of milliseconds, and megabytes of each agent."""
    assert inside(PUBLIC) == inside(PUBLIC, AGENTFW_REAL="1")
    inside(PUBLIC, "tls")
    assert [(each["public"], each["cas"]) for each in runtime.prefaces] == [(True, [])] * 3 + [(False, [])]


REFUSED = """
    import socket, ssl, sys
    context = ssl.create_default_context(cafile=sys.argv[1])
    address = socket.getaddrinfo("model.test", 0, type=socket.SOCK_STREAM)[0][4]
    sock = socket.create_connection(address)
    try:
        context.wrap_socket(sock, server_hostname="other.test")
    except ssl.SSLCertVerificationError as error:
        print(error.verify_code, error.verify_message, error.reason, error.library, error.errno, str(error).split(" (_ssl")[0])
        print(isinstance(error, ValueError), isinstance(error, ssl.SSLError))
    print(sock.fileno())
    sock = socket.create_connection(address)
    sock.settimeout(0)
    tls = context.wrap_socket(sock, server_hostname="model.test", do_handshake_on_connect=False)
    import select
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError as error:
            assert error.errno == ssl.SSL_ERROR_WANT_READ, error.errno
            select.select([tls], [], [])
        except ssl.SSLWantWriteError:
            select.select([], [tls], [])
    try:
        tls.recv(1)
    except ssl.SSLWantReadError as error:
        print("want read", error)
    tls.settimeout(0.05)
    try:
        tls.recv(1)
    except TimeoutError as error:
        print(error)
    tls.close()
"""


def test_refusals_and_waits_as_natively(inside: Callable[..., str], server: TlsServer) -> None:
    native = inside(REFUSED, port=server.address[1], AGENTFW_REAL="1").replace(" (_ssl.c:", "\0").split("\0")
    assert inside(REFUSED).split()[:10] == native[0].split()[:10]
    out = inside(REFUSED)
    assert "certificate is not valid for 'other.test'" in out and "want read The operation did not complete (read)" in out
    assert out.endswith("The read operation timed out\n")


def test_asyncio(inside: Callable[..., str]) -> None:
    out = inside("""
        import asyncio, ssl
        async def one(n):
            reader, writer = await asyncio.open_connection("model.test", 443, ssl=ssl.create_default_context())
            writer.write(b"POST /echo HTTP/1.1\\r\\nHost: model.test\\r\\nContent-Length: 200000\\r\\nConnection: close\\r\\n\\r\\n" + bytes([n]) * 200000)
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            body = await reader.read()
            facts = writer.get_extra_info("cipher"), writer.get_extra_info("peercert")["subjectAltName"]
            writer.close()
            await writer.wait_closed()
            assert body == bytes([n]) * 200000 and b" 200 " in head, (head, len(body))
            return facts[1]
        async def main():
            print(set(await asyncio.gather(*(one(n) for n in range(8)))))
        asyncio.run(main())
    """)
    assert out == "{(('DNS', 'model.test'),)}\n"


def test_loopback_keeps_real_tls(inside: Callable[..., str], runtime: FakeRuntime, server: TlsServer) -> None:
    """A server inside the guest: blocking, asyncio on both ends, and a context that has the default store deferred."""
    certificate = server.authority.issue_cert("localhost", "127.0.0.1", "inner.test")
    pem = b"".join(blob.bytes() for blob in certificate.cert_chain_pems) + certificate.private_key_pem.bytes()
    out = inside(
        """
        import asyncio, socket, ssl, sys, threading
        import offload_local
        offload_local.local_peer = offload_local.local_peer.__globals__["is_local"]
        pem = "/".join(sys.argv[1].split("/")[:-1]) + "/inner.pem"
        with open(pem, "w") as file:
            file.write(sys.argv[2])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pem)
        client = ssl.create_default_context(cafile=sys.argv[1])
        listener = socket.create_server(("127.0.0.1", 0))
        def serve():
            sock, _ = listener.accept()
            with context.wrap_socket(sock, server_side=True) as tls:
                tls.sendall(tls.recv(10))
        thread = threading.Thread(target=serve)
        thread.start()
        tls = client.wrap_socket(socket.socket(), server_hostname="inner.test")
        tls.connect(listener.getsockname())
        tls.sendall(b"ping")
        print(tls.recv(10), tls.version(), type(tls._sslobj).__module__, tls.cipher()[0][:3])
        tls.close()
        thread.join()
        listener.close()
        async def main():
            async def handler(reader, writer):
                writer.write(await reader.read(4))
                await writer.drain()
                writer.close()
            async with await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context) as server:
                address = server.sockets[0].getsockname()
                for host in ("localhost", "127.0.0.1"):
                    reader, writer = await asyncio.open_connection(host, address[1], ssl=client)
                    writer.write(b"pong")
                    print(await reader.read(), writer.get_extra_info("cipher")[1])
                    writer.close()
                    await writer.wait_closed()
        asyncio.run(main())
        """,
        pem.decode(),
    )
    assert out == "b'ping' TLSv1.3 _ssl TLS\nb'pong' TLSv1.3\nb'pong' TLSv1.3\n"
    assert not runtime.first_bytes


def test_declined_the_client_makes_its_tls_itself(inside: Callable[..., str], runtime: FakeRuntime, server: TlsServer) -> None:
    """As in the middle of a connection: the real object takes over, sockets and memory alike, and verifies for itself."""
    runtime.declines = True
    out = inside("""
        import asyncio, socket, ssl, sys, urllib.request
        context = ssl.create_default_context(cafile=sys.argv[1])
        print(urllib.request.urlopen("https://model.test/x", context=context).read())
        address = socket.getaddrinfo("model.test", 0, type=socket.SOCK_STREAM)[0][4]
        with context.wrap_socket(socket.create_connection(address), server_hostname="model.test") as tls:
            print(type(tls._sslobj).__name__ == "_SSLSocket", tls.version(), tls.getpeercert()["subjectAltName"], tls.session_reused)
            session = tls.session
        with context.wrap_socket(socket.create_connection(address), server_hostname="model.test", session=session) as tls:
            print(tls.version())
        for hostname in ("other.test", "model.test"):
            made = context if hostname == "other.test" else ssl.create_default_context()
            try:
                made.wrap_socket(socket.create_connection(address), server_hostname=hostname)
            except ssl.SSLCertVerificationError as error:
                print(error.verify_code)
        async def main():
            reader, writer = await asyncio.open_connection("model.test", 443, ssl=context)
            writer.write(b"GET /x HTTP/1.1\\r\\nHost: model.test\\r\\nConnection: close\\r\\n\\r\\n")
            print((await reader.read()).endswith(b"hello"), writer.get_extra_info("cipher")[1])
            writer.close()
        asyncio.run(main())
    """)
    assert out.splitlines() == [
        "b'hello'", "True TLSv1.3 (('DNS', 'model.test'),) False", "TLSv1.3", "62", "20", "True TLSv1.3",
    ]  # fmt: skip


def test_over_memory_nothing_says_who_the_peer_is(inside: Callable[..., str], runtime: FakeRuntime, server: TlsServer) -> None:
    certificate = server.authority.issue_cert("inner.test")
    pem = b"".join(blob.bytes() for blob in certificate.cert_chain_pems) + certificate.private_key_pem.bytes()
    out = inside(
        """
        import ssl, sys
        pem = "/".join(sys.argv[1].split("/")[:-1]) + "/inner.pem"
        with open(pem, "w") as file:
            file.write(sys.argv[2])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pem)
        def pair(step):
            a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = ssl.create_default_context(cafile=sys.argv[1]).wrap_bio(a, b, server_hostname="inner.test")
            server = context.wrap_bio(b, a, server_side=True)
            for _ in range(10):
                for each in (client, server):
                    try:
                        step(each)
                    except ssl.SSLWantReadError:
                        pass
            return client, server, b
        client, server, _ = pair(lambda each: each.do_handshake())
        client.write(b"ping")
        print(server.read(10), client.version(), server.cipher()[1], server.pending(), server.context is context)
        client, server, _ = pair(lambda each: each.read(1))
        server.write(b"pong")
        print(client.read(10), client.getpeercert()["subjectAltName"])
        for junk in (b"\\0" * 40, b"\\0AFWTLS1\\xff\\xff\\xff\\xff" + b"x" * 40, b"GET / HTTP/1.1\\r\\n\\r\\n"):
            a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
            a.write(junk)
            try:
                context.wrap_bio(a, b, server_side=True).do_handshake()
            except ssl.SSLError as error:
                print(error.reason)
        a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
        a.write_eof()
        try:
            context.wrap_bio(a, b, server_side=True).do_handshake()
        except ssl.SSLEOFError as error:
            print(error.reason)
        """,
        pem.decode(),
    )
    assert out.splitlines() == [
        "b'ping' TLSv1.3 TLSv1.3 0 True", "b'pong' (('DNS', 'inner.test'),)",
        "WRONG_VERSION_NUMBER", "WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING",
    ]  # fmt: skip
    assert not runtime.first_bytes


@pytest.mark.parametrize("library", ["requests", "aiohttp", "openai", "anthropic", "httpx"])
def test_libraries_from_pypi(inside: Callable[..., str], runtime: FakeRuntime, library: str) -> None:
    pytest.importorskip(library)
    code = {
        "requests": """
            import requests
            with requests.Session() as session:
                for _ in range(2):
                    print(session.post("https://model.test/echo", data="you said hi").text)
                try:
                    session.get("https://other.test/")
                except requests.exceptions.SSLError as error:
                    print("not valid for 'other.test'" in str(error))
        """,
        "httpx": """
            import httpx
            with httpx.Client() as client:
                for _ in range(2):
                    print(client.post("https://model.test/echo", content="you said hi").text)
                try:
                    client.get("https://other.test/")
                except httpx.ConnectError as error:
                    print("not valid for 'other.test'" in str(error))
        """,
        "aiohttp": """
            import aiohttp, asyncio
            async def main():
                async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=aiohttp.ThreadedResolver())) as session:
                    for _ in range(2):
                        async with session.post("https://model.test/echo", data="you said hi") as reply:
                            print(await reply.text())
                    try:
                        await session.get("https://other.test/")
                    except aiohttp.ClientConnectorCertificateError as error:
                        print("not valid for 'other.test'" in str(error))
            asyncio.run(main())
        """,
        "openai": """
            import asyncio, openai
            messages = [{"role": "user", "content": "hi"}]
            with openai.OpenAI(base_url=f"https://model.test:{PORT}/v1", api_key="sk-placeholder", max_retries=0) as client:
                print(client.chat.completions.create(model="m", messages=messages).choices[0].message.content)
                print("".join(c.choices[0].delta.content for c in client.chat.completions.create(model="m", messages=messages, stream=True)))
            async def main():
                async with openai.AsyncOpenAI(base_url=f"https://model.test:{PORT}/v1", api_key="sk-placeholder", max_retries=0) as client:
                    reply = await client.chat.completions.create(model="m", messages=messages)
                    print(reply.choices[0].message.content == "you said hi")
            asyncio.run(main())
        """,
        "anthropic": """
            import asyncio, anthropic
            arguments = dict(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
            with anthropic.Anthropic(base_url=f"https://model.test:{PORT}", api_key="k", max_retries=0) as client:
                print(client.messages.create(**arguments).content[0].text)
                print(client.messages.create(**arguments).content[0].text)
            async def main():
                async with anthropic.AsyncAnthropic(base_url=f"https://model.test:{PORT}", api_key="k", max_retries=0) as client:
                    print((await client.messages.create(**arguments)).content[0].text == "you said hi")
            asyncio.run(main())
        """,
    }[library]
    assert inside(code, PYTHONWARNINGS="ignore") == "you said hi\nyou said hi\nTrue\n"
    assert all(head.startswith(b"\0AFWTLS1") for head in runtime.first_bytes)


def test_what_is_sent_of_the_programs_own_trust(inside: Callable[..., str], runtime: FakeRuntime, server: TlsServer) -> None:
    inside("""
        import socket, ssl, sys, certifi
        pem = open(sys.argv[1]).read()
        address = socket.getaddrinfo("model.test", 0, type=socket.SOCK_STREAM)[0][4]
        def shake(context):
            context.wrap_socket(socket.create_connection(address), server_hostname="model.test").close()
        shake(ssl.create_default_context(cadata=pem))
        shake(ssl.create_default_context(cadata=ssl.PEM_cert_to_DER_cert(pem) * 2))
        shake(ssl.create_default_context(cafile=certifi.where()))
        both = sys.argv[1] + ".both"
        open(both, "w").write(open(certifi.where()).read() + pem)
        shake(ssl.create_default_context(cafile=both))
        import os
        os.environ["SSL_CERT_FILE"] = sys.argv[1]
        context = ssl.create_default_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        shake(context)
    """, PYTHONWARNINGS="ignore")  # fmt: skip
    one = runtime.prefaces[0]["cas"]
    assert [preface["cas"] for preface in runtime.prefaces] == [one, one, [], one, one] and len(one) == 1
    assert [runtime.prefaces[4][key] for key in ("verify", "check_hostname", "min", "max")] == [0, False, 0, 0x0303]


def test_a_peer_that_is_no_runtime(inside: Callable[..., str], server: TlsServer) -> None:
    """Straight to a TLS server: its alert is not an answer, and the program learns so."""
    out = inside(
        """
        import socket, ssl
        try:
            sock = socket.create_connection(socket.getaddrinfo("model.test", 0, type=socket.SOCK_STREAM)[0][4])
            ssl.create_default_context().wrap_socket(sock, server_hostname="model.test")
        except ssl.SSLError as error:
            print(error.reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING"))
        except ConnectionResetError:
            print(True)
        """,
        port=server.address[1],
    )
    assert out == "True\n"
