"""What programs do with `ssl`, told as JSON: run natively and in a guest, against the same servers, it must say the same.

`python tls_probe.py PORTS CA OTHER_CA`; NATIVE=1: names ending in .test are this machine.
"""

import asyncio
import hashlib
import json
import os
import select
import socket
import ssl
import sys
import tempfile
import threading
import warnings

PORTS, CA, OTHER_CA = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
PEM = sys.argv[4] if len(sys.argv) > 4 else None
TOLD = {}
warnings.simplefilter("ignore")

if os.environ.get("NATIVE"):
    resolve = socket.getaddrinfo

    def getaddrinfo(host, *args, **kwargs):
        return resolve(
            "127.0.0.1" if (host.decode() if isinstance(host, bytes) else host or "").endswith(".test") else host, *args, **kwargs
        )

    socket.getaddrinfo = getaddrinfo


def describe(error):
    text = str(error).partition(" (_ssl")[0]
    facts = {"type": [kind.__name__ for kind in type(error).__mro__[:-3]], "errno": getattr(error, "errno", None)}
    if isinstance(error, ssl.SSLError):
        facts |= {"reason": error.reason, "library": error.library}
        if isinstance(error, ssl.SSLCertVerificationError):
            facts |= {"verify": [error.verify_code, error.verify_message], "text": text}
    return facts


def tell(name):
    def run(function):
        try:
            result = function()
            TOLD[name] = asyncio.run(result) if asyncio.iscoroutine(result) else result
        except Exception as error:
            TOLD[name] = describe(error)
        return function

    return run


def context(cafile=CA, **more):
    made = ssl.create_default_context(cafile=cafile)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def plain(name, host="model.test", timeout=30):
    return socket.create_connection((host, PORTS[name]), timeout)


def wrapped(name="https", made=None, host="model.test", server_hostname=None, **more):
    return (made or context()).wrap_socket(plain(name, host), server_hostname=server_hostname or host, **more)


GET = b"GET / HTTP/1.1\r\nHost: model.test:%d\r\nConnection: close\r\n\r\n"


def get(tls, name="https"):
    tls.sendall(GET % PORTS[name])
    with tls.makefile("rb") as file:
        return file.read().partition(b"\r\n\r\n")[2].decode()


@tell("facts")
def _():
    made = context()
    made.set_alpn_protocols(["h2", "http/1.1"])
    tls = wrapped(made=made, do_handshake_on_connect=False)
    before = [tls.version(), tls.cipher(), tls.selected_alpn_protocol(), tls.session, tls.pending()]
    tls.do_handshake()
    chain = getattr(tls, "get_unverified_chain", lambda: [cert.public_bytes(2) for cert in tls._sslobj.get_unverified_chain()])()
    verified = getattr(tls, "get_verified_chain", lambda: [cert.public_bytes(2) for cert in tls._sslobj.get_verified_chain()])()
    facts = [
        before, tls.version(), tls.cipher(), tls.selected_alpn_protocol(), tls.server_hostname, tls.server_side, tls.compression(),
        tls.shared_ciphers(), tls.getpeercert(), hashlib.sha256(tls.getpeercert(True)).hexdigest(), tls.session_reused,
        [hashlib.sha256(der).hexdigest() for der in chain], [hashlib.sha256(der).hexdigest() for der in verified],
        type(tls.session).__name__, tls.context is made, len(tls._sslobj.get_unverified_chain()[0].get_info()["subjectAltName"]),
        tls._sslobj.get_unverified_chain()[0].public_bytes(1).splitlines()[0],
    ]  # fmt: skip
    try:
        tls.session = "x"
    except TypeError as error:
        facts.append(str(error))
    try:
        ssl.create_default_context().wrap_socket(plain("https"), server_hostname="model.test", session=tls.session)
    except ValueError as error:
        facts.append(str(error))
    again = made.wrap_socket(plain("https"), server_hostname="model.test", session=tls.session)
    facts.append(again.session == again.session)
    return [*facts, get(tls), get(again)]


@tell("before the handshake")
def _():
    tls = wrapped(do_handshake_on_connect=False)
    facts = [tls._sslobj.get_verified_chain(), tls._sslobj.get_unverified_chain()]
    for call in (tls.getpeercert, tls.unwrap):
        try:
            call()
        except Exception as error:
            facts.append(describe(error)["type"])
    return facts


for name, host, server_hostname in (
    ("wrong name", "model.test", "other.test"),
    ("expired", "model.test", None),
    ("selfsigned", "model.test", None),
    ("foreign", "model.test", None),
    ("closes", "model.test", None),
    ("resets", "model.test", None),
    ("speaks plain", "model.test", None),
    ("closed", "model.test", None),
):

    @tell(f"refused: {name}")
    def _(name=name, host=host, server_hostname=server_hostname):
        return wrapped("https" if name == "wrong name" else name, host=host, server_hostname=server_hostname).version()


@tell("context without authorities")
def _():
    return wrapped(made=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)).version()


@tell("context with another authority only")
def _():
    return wrapped(made=context(OTHER_CA)).version()


@tell("context with the server's certificate only")
def _():
    unverified = ssl._create_unverified_context()
    der = wrapped(made=unverified).getpeercert(True)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(cadata=der)
    made.verify_flags |= 0x80000  # X509_V_FLAG_PARTIAL_CHAIN
    return [wrapped(made=made).version(), made.cert_store_stats(), len(made.get_ca_certs())]


@tell("authorities by directory and by data")
def _():
    with tempfile.TemporaryDirectory() as directory:
        digest = os.environ["CA_HASH"]
        with open(CA) as file, open(f"{directory}/{digest}.0", "w") as out:
            out.write(file.read())
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.load_verify_locations(capath=directory)
        first = get(wrapped(made=made))
    with open(CA) as file:
        second = get(wrapped(made=ssl.create_default_context(cadata=file.read())))
    return [first, second]


@tell("versions")
def _():
    old = context(maximum_version=ssl.TLSVersion.TLSv1_2)
    found = [wrapped(made=old).version(), wrapped("tls12").version()]
    try:
        wrapped("tls12", made=context(minimum_version=ssl.TLSVersion.TLSv1_3))
    except ssl.SSLError as error:
        found.append(describe(error)["type"])
    return found


@tell("unverified")
def _():
    tls = wrapped(made=ssl._create_unverified_context())
    return [tls.getpeercert(), len(tls.getpeercert(True)) > 100, get(tls)]


@tell("waiting")
def _():
    tls = wrapped("silent", do_handshake_on_connect=False)
    tls.setblocking(False)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError as error:
        facts = describe(error)
    tls = wrapped("echo", do_handshake_on_connect=False)
    tls.setblocking(False)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            select.select([tls], [], [], 30)
    try:
        tls.recv(1)
    except ssl.SSLWantReadError as error:
        facts["read"] = str(error).partition(" (_ssl")[0]
    tls.settimeout(0.05)
    for call in (lambda: tls.recv(1), lambda: tls.recv_into(bytearray(5))):
        try:
            call()
        except TimeoutError as error:
            facts["late"] = str(error)
    return facts


@tell("a handshake that nobody answers")
def _():
    sock = plain("silent")
    sock.settimeout(0.3)
    try:
        context().wrap_socket(sock, server_hostname="model.test")
    except TimeoutError as error:
        return [type(error).__name__, str(error).partition(": ")[2] or str(error), error.errno]


@tell("files and buffers")
def _():
    tls = wrapped("echo")
    with tempfile.TemporaryFile() as file:
        file.write(b"\1" + b"x" * 200000)
        file.seek(0)
        sent = tls.sendfile(file)
    buffer = bytearray(10)
    got = tls.recv_into(buffer, 5)
    total = got
    while total < sent:
        total += len(tls.recv(65536))
    tls.send(memoryview(b"ab"))
    return [sent, got, bytes(buffer[:got]).decode(), tls.read(2).decode(), tls.recv(0).decode()]


@tell("unwrap")
def _():
    tls = wrapped("echo")
    tls.sendall(b"\1bye")
    got = tls.recv(4)
    sock = tls.unwrap()
    return [got.decode(), type(sock).__name__, sock.recv(1).decode()]


@tell("key log")
def _():
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SSLKEYLOGFILE"] = f"{directory}/keys"
        try:
            return get(wrapped())
        finally:
            del os.environ["SSLKEYLOGFILE"]


for name, pipelined in (("starttls", False), ("starttls, without waiting", True)):

    @tell(name)
    def _(pipelined=pipelined):
        where = "starttls at once" if pipelined else "starttls"
        sock = plain(where)
        sock.sendall(b"\1STARTTLS\n")
        if not pipelined:
            sock.recv(3)
        tls = context().wrap_socket(sock, server_hostname="model.test")
        tls.sendall(b"inside")
        facts = [tls.recv(6).decode(), tls.version(), tls.session_reused, tls.getpeercert()["subjectAltName"]]
        try:
            other = plain(where)
            other.sendall(b"\1STARTTLS\n")
            if not pipelined:
                other.recv(3)
            context().wrap_socket(other, server_hostname="other.test")
        except ssl.SSLError as error:
            facts.append(describe(error))
        return facts


@tell("starttls with asyncio")
async def _():
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection("model.test", PORTS["starttls"])
    writer.write(b"\1STARTTLS\n")
    await reader.readexactly(3)
    await writer.start_tls(context(), server_hostname="model.test")
    writer.write(b"inside")
    facts = [(await reader.readexactly(6)).decode(), writer.get_extra_info("cipher")[1], loop.is_running()]
    writer.close()
    return facts


@tell("asyncio")
async def _():
    async def one(n):
        reader, writer = await asyncio.open_connection("model.test", PORTS["echo"], ssl=context())
        writer.write(b"\1" + bytes([n]) * 100000)
        await writer.drain()
        got = await reader.readexactly(100001)
        facts = [
            writer.get_extra_info("cipher")[1],
            writer.get_extra_info("peercert")["subjectAltName"],
            got[1:2] * 3 == got[-3:],
        ]
        writer.close()
        await writer.wait_closed()
        return facts

    facts = await asyncio.gather(*map(one, range(5)))
    try:
        await asyncio.open_connection("model.test", PORTS["https"], ssl=context(), server_hostname="other.test")
    except ssl.SSLError as error:
        facts.append(describe(error))
    return facts


def server_context():
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(PEM)
    made.set_alpn_protocols(["mine"])
    return made


@tell("a server in this process, over memory")
def _():
    """Two objects, four BIOs and no socket: nothing says that they are for each other."""
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = context()
    made.set_alpn_protocols(["mine"])
    client = made.wrap_bio(a, b, server_hostname="model.test")
    server = server_context().wrap_bio(b, a, server_side=True)
    done = set()
    for _ in range(12):
        for each in (client, server):
            try:
                each.do_handshake()
                done.add(each)
            except ssl.SSLWantReadError:
                pass
    client.write(b"ping")
    server.write(server.read(4)[::-1])
    facts = [len(done), client.read(4).decode(), client.version(), client.selected_alpn_protocol(), server.selected_alpn_protocol(),
             client.getpeercert()["subjectAltName"], server.session_reused, server.context.protocol.name]  # fmt: skip
    return facts


@tell("a server in this process, of asyncio")
async def _():
    async def handler(reader, writer):
        writer.write((await reader.read(4))[::-1])
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(handler, "127.0.0.1", 0, ssl=server_context()) as server:
        facts = []
        for host in ("localhost", "127.0.0.1"):
            reader, writer = await asyncio.open_connection(
                host, server.sockets[0].getsockname()[1], ssl=context(), server_hostname="model.test"
            )
            writer.write(b"ping")
            facts.append([(await reader.read()).decode(), writer.get_extra_info("cipher")[1]])
            writer.close()
            await writer.wait_closed()
        try:
            await asyncio.open_connection(
                "127.0.0.1", server.sockets[0].getsockname()[1], ssl=context(), server_hostname="nobody.test"
            )
        except ssl.SSLError as error:
            facts.append(describe(error))
        return facts


@tell("a server in this process, over sockets, and bytes that are no TLS")
def _():
    facts = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        for _ in range(4):
            sock, _ = listener.accept()
            try:
                with server_context().wrap_socket(sock, server_side=True) as tls:
                    tls.sendall(tls.recv(10))
            except OSError as error:
                facts.append(
                    [describe(error)["type"], getattr(error, "reason", None) in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER")]
                )

    thread = threading.Thread(target=serve)
    thread.start()
    with context().wrap_socket(socket.socket(), server_hostname="model.test") as tls:
        tls.connect(listener.getsockname())
        tls.sendall(b"hello")
        facts.append([tls.recv(10).decode(), tls.version()])
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 30, b""):
        with socket.create_connection(listener.getsockname()) as sock:
            sock.sendall(junk)
            sock.shutdown(socket.SHUT_WR)
            while True:
                try:
                    if not sock.recv(1000):
                        break
                except ConnectionResetError:
                    break
    thread.join()
    listener.close()
    return facts


@tell("TLS in TLS")
def _():
    """A tunnel through a TLS server, as urllib3's SSLTransport makes it."""
    outer = wrapped("tunnel")
    outer.sendall(b"\1TUNNEL\n")
    outer.recv(3)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    inner = context().wrap_bio(incoming, outgoing, server_hostname="model.test")

    def drive(step, *args):
        while True:
            try:
                return step(*args)
            except ssl.SSLWantReadError:
                outer.sendall(outgoing.read())
                data = outer.recv(65536)
                incoming.write(data) if data else incoming.write_eof()
            finally:
                if outgoing.pending:
                    outer.sendall(outgoing.read())

    drive(inner.do_handshake)
    drive(inner.write, b"inside")
    return [drive(inner.read, 6).decode(), inner.version(), outer.version()]


def optional(name):
    def run(function):
        if all(map(installed, name.split())):
            tell(name)(function)

    return run


def installed(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


@optional("urllib3")
def _():
    import urllib3

    der = wrapped().getpeercert(True)
    url = f"https://model.test:{PORTS['https']}/"
    good, bad = hashlib.sha256(der).hexdigest(), "00" * 32
    facts = [
        urllib3.PoolManager(ca_certs=CA).request("GET", url).data.decode(),
        urllib3.PoolManager(ca_certs=CA, assert_fingerprint=good).request("GET", url).data.decode(),
        urllib3.PoolManager(cert_reqs="CERT_NONE", assert_hostname=False).request("GET", url).data.decode(),
    ]
    for more in ({"assert_fingerprint": bad}, {"server_hostname": "other.test"}, {"assert_hostname": "other.test"}):
        try:
            urllib3.PoolManager(ca_certs=CA, retries=False, **more).request("GET", url)
        except urllib3.exceptions.HTTPError as error:
            facts.append(type(error).__name__)
    return facts


@optional("requests")
def _():
    import requests

    url = f"https://model.test:{PORTS['https']}/"
    facts = [requests.get(url, verify=CA).text, requests.get(url, verify=False).text]
    for verify, where in (
        (OTHER_CA, url),
        (CA, f"https://other.test:{PORTS['https']}/"),
        (CA, f"https://model.test:{PORTS['closed']}/"),
    ):
        try:
            requests.get(where, verify=verify)
        except requests.RequestException as error:
            facts.append(type(error).__name__)
    return facts


@optional("httpx")
def _():
    import httpx

    url = f"https://model.test:{PORTS['https']}/"
    facts = [httpx.get(url, verify=context()).text, httpx.get(url, verify=False).text]
    for made, where in ((context(OTHER_CA), url), (context(), f"https://other.test:{PORTS['https']}/")):
        try:
            httpx.get(where, verify=made)
        except httpx.HTTPError as error:
            facts.append(type(error).__name__)

    async def later():
        async with httpx.AsyncClient(verify=context()) as client:
            return (await client.get(url)).text

    return [*facts, asyncio.run(later())]


@optional("aiohttp")
async def _():
    import aiohttp

    url = f"https://model.test:{PORTS['https']}/"
    good, bad = hashlib.sha256(wrapped().getpeercert(True)).digest(), bytes(32)
    facts = []
    connector = aiohttp.TCPConnector(resolver=aiohttp.ThreadedResolver())
    async with aiohttp.ClientSession(connector=connector) as session:
        for made in (context(), aiohttp.Fingerprint(good), False, aiohttp.Fingerprint(bad), context(OTHER_CA)):
            try:
                async with session.get(url, ssl=made) as reply:
                    facts.append(await reply.text())
            except aiohttp.ClientError as error:
                facts.append(type(error).__name__)
        for where in (f"https://other.test:{PORTS['https']}/", f"https://model.test:{PORTS['closed']}/"):
            try:
                await session.get(where, ssl=context())
            except aiohttp.ClientError as error:
                facts.append([type(error).__name__, type(error.os_error if hasattr(error, "os_error") else error).__name__])
    return facts


print(json.dumps(TOLD, default=repr))
