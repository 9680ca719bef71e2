"""Servers and clients of the standard library on the loopback."""

import asyncio
import http.server
import os
import selectors
import socket
import socketserver
import tempfile
import threading
import urllib.error
import urllib.request


class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b"x" * int(self.path[1:])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *args: object) -> None:
        pass


def http_loopback() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{server.server_port}/"
        print([len(urllib.request.urlopen(f"{base}{size}").read()) for size in (0, 1, 70000, 1000000)])
        print(urllib.request.urlopen(base, data=b"abc" * 100000).read()[:6])
        try:
            urllib.request.urlopen(urllib.request.Request(base, method="PUT"))
        except urllib.error.HTTPError as error:
            print(error.code)
        server.shutdown()
        thread.join()
    try:
        urllib.request.urlopen(base)
    except urllib.error.URLError as error:
        print(error.reason)


class Upper(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line.upper())


def unix_server() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/socket"
        with socketserver.ThreadingUnixStreamServer(path, Upper) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                client.sendall(b"one\ntwo\n")
                client.shutdown(socket.SHUT_WR)
                print(client.makefile("rb").read())
            server.shutdown()
            thread.join()
        os.unlink(path)
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(f"{directory}/none")
        except OSError as error:
            print(type(error).__name__)


def timeouts() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(0.05)
        try:
            one.recv(1)
        except TimeoutError:
            print("timeout")
        one.setblocking(False)
        sent = 0
        try:
            while True:
                sent += one.send(b"x" * 10000)
        except BlockingIOError:
            print(sent > 0)
        got = 0
        other.settimeout(1)
        while got < sent:
            got += len(other.recv(1 << 20))
        print(got == sent)


def many_selectors() -> None:
    for kind in (selectors.SelectSelector, selectors.PollSelector, selectors.EpollSelector):
        pairs = [socket.socketpair() for _ in range(50)]
        with kind() as selector:
            for index, (one, _) in enumerate(pairs):
                selector.register(one, selectors.EVENT_READ, index)
            for index in (3, 40, 17):
                pairs[index][1].send(b"x")
            pairs[8][1].close()
            print(kind.__name__, sorted(key.data for key, _ in selector.select(5)))
        for one, other in pairs:
            one.close()
            other.close()


class Doubler(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: object) -> None:
        self.transport.sendto(data * 2, address)


class Waiter(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, address: object) -> None:
        if not self.got.done():
            self.got.set_result(data)


async def streams() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def client(port: int, number: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"%d\n" % number * 20000)
        writer.write_eof()
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
        return data.count(b"%d\n" % number)

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(await asyncio.gather(*(client(port, number) for number in range(40))) == [20000] * 40)
    server.close()
    await server.wait_closed()
    loop = asyncio.get_running_loop()
    one, _ = await loop.create_datagram_endpoint(Doubler, local_addr=("127.0.0.1", 0))
    other, waiter = await loop.create_datagram_endpoint(Waiter, remote_addr=one.get_extra_info("sockname"))
    other.sendto(b"ab")
    print(await asyncio.wait_for(waiter.got, 5))
    one.close()
    other.close()
    both = await asyncio.start_server(echo, None, 0)
    print(sorted(sock.family.name for sock in both.sockets))
    both.close()
    print(await asyncio.gather(*(loop.run_in_executor(None, lambda i=i: i * i) for i in range(8))))
    try:
        await asyncio.open_connection("127.0.0.1", 1)
    except OSError as error:
        print(type(error).__name__)
    reading, writing = os.pipe()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0))
    loop.call_later(0.02, os.write, writing, b"through a pipe")
    loop.call_later(0.04, os.close, writing)
    print(await reader.read())


http_loopback()
unix_server()
timeouts()
many_selectors()
asyncio.run(streams())
