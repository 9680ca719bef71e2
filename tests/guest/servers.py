"""Servers and their many clients in one process, over loopback. A program, run under plain `python` and in a guest: prints what each client got,
as one digest a server.
"""

from __future__ import annotations

import asyncio
import hashlib
import select
import socket
import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def data(n: int) -> bytes:
    return hashlib.shake_128(b"%d" % n).digest(n)


def told(name: str, got: list[bytes]) -> None:
    print(name, len(got), hashlib.sha256(b"".join(got)).hexdigest(), flush=True)


async def with_aiohttp(clients: int) -> None:
    import aiohttp
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=hashlib.sha256(await request.read()).digest() + data(int(request.query["n"])))

    app = web.Application(client_max_size=1 << 20)
    app.router.add_post("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0), backlog=clients)
    await web.SockSite(runner, listener).start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=clients)) as session:

        async def ask(i: int) -> bytes:
            async with session.post(address, params={"n": i * 371}, data=data(i * 397)) as response:
                return bytes(await response.read())

        told("aiohttp", await asyncio.gather(*map(ask, range(clients))))
    await runner.cleanup()


async def with_websockets(clients: int) -> None:
    import websockets

    async def answer(connection: websockets.ServerConnection) -> None:
        async for message in connection:
            await connection.send(message[::-1])

    async with websockets.serve(answer, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]

        async def ask(i: int) -> bytes:
            async with websockets.connect(f"ws://127.0.0.1:{port}") as connection:
                await connection.send(data(i * 3000))
                answered = await connection.recv()
                assert isinstance(answered, bytes)
                return answered

        told("websockets", await asyncio.gather(*map(ask, range(clients))))


class Backwards(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *_: object) -> None:
        pass


def all_at_once(count: int, ask: Callable[[int], bytes]) -> list[bytes]:
    got = [b""] * count

    def one(i: int) -> None:
        got[i] = ask(i)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def with_threads(clients: int) -> None:
    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Backwards) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/"
        told(
            "ThreadingHTTPServer", all_at_once(clients, lambda i: urllib.request.urlopen(address, data=data(i * 2001 + 1)).read())
        )
        server.shutdown()
        thread.join()


async def through_a_proxy(clients: int) -> None:
    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(4096):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await pump(reader, writer)
        writer.close()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", behind.sockets[0].getsockname()[1])
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
        writer.close()
        there[1].close()

    behind = await asyncio.start_server(echo, "127.0.0.1", 0)
    front = await asyncio.start_server(proxy, "127.0.0.1", 0)

    async def ask(i: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", front.sockets[0].getsockname()[1])

        async def put() -> None:
            writer.write(data(150_000 + i))
            await writer.drain()
            writer.write_eof()

        got, _ = await asyncio.gather(reader.read(-1), put())
        writer.close()
        return got

    told("proxy", await asyncio.gather(*map(ask, range(clients))))
    front.close()
    behind.close()


def serve_with_select(listener: socket.socket, clients: int) -> None:
    """Echoes until so many connections are done."""
    kept: dict[socket.socket, bytes] = {}
    ended: set[socket.socket] = set()
    listener.setblocking(False)
    while clients:
        read, write, _ = select.select(
            [listener, *(one for one in kept if one not in ended)], [one for one in kept if kept[one] or one in ended], [], 60
        )
        assert read or write
        for one in read:
            if one is listener:
                made = listener.accept()[0]
                made.setblocking(False)
                kept[made] = b""
            else:
                piece = one.recv(5000)
                kept[one] += piece
                if not piece:
                    ended.add(one)
        for one in write:
            if kept[one]:
                kept[one] = kept[one][one.send(kept[one]) :]
            elif one in ended:
                one.close()
                del kept[one]
                clients -= 1


def with_select(clients: int) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=clients) as listener:
        thread = threading.Thread(target=serve_with_select, args=(listener, clients))
        thread.start()

        def ask(i: int) -> bytes:
            with socket.create_connection(listener.getsockname()) as one:
                one.sendall(data(30_000 + i))
                one.shutdown(socket.SHUT_WR)
                return b"".join(iter(lambda: one.recv(9999), b""))

        told("select", all_at_once(clients, ask))
        thread.join()


if __name__ == "__main__":
    asyncio.run(with_aiohttp(200))
    asyncio.run(with_websockets(30))
    with_threads(30)
    asyncio.run(through_a_proxy(20))
    with_select(40)
