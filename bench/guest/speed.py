"""Seconds that everyday work takes, by name; JSON. argv[1]: a folder with `big` (100 MiB) and 10,000 files, `many/N`."""

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable

FOLDER = sys.argv[1]
ROUNDS = 3


def read_whole() -> None:
    with open(f"{FOLDER}/big", "rb") as file:
        assert len(file.read()) == 100 << 20


def read_pieces() -> None:
    with open(f"{FOLDER}/big", "rb", buffering=0) as file:
        buffer = bytearray(1 << 20)
        while file.readinto(buffer):
            pass


def stat_all(names: Iterable[str]) -> None:
    for name in names:
        os.stat(f"{FOLDER}/many/{name}")


def stat_listed() -> None:
    stat_all(os.listdir(f"{FOLDER}/many"))


def stat_sorted() -> None:
    stat_all(sorted(os.listdir(f"{FOLDER}/many")))


def stat_numbered() -> None:
    stat_all(map(str, range(10_000)))


def stat_chance() -> None:
    names = os.listdir(f"{FOLDER}/many")
    random.shuffle(names)
    stat_all(names)


async def echo() -> None:
    """4,000 lines there and back over a loopback socket, by epoll: asyncio's selector loop."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    for _ in range(4000):
        writer.write(b"x" * 63 + b"\n")
        await reader.readline()
    writer.close()
    await writer.wait_closed()
    server.close()


def ping_pong() -> None:
    """20,000 turns of two threads that wait for each other."""
    ping, pong = threading.Semaphore(0), threading.Semaphore(0)

    def other() -> None:
        for _ in range(20_000):
            ping.acquire()
            pong.release()

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(20_000):
        ping.release()
        pong.acquire()
    thread.join()


def timed(work: Callable[[], Awaitable[None] | None]) -> float:
    start = time.perf_counter()
    if work is echo:
        asyncio.run(echo())
    else:
        work()
    return time.perf_counter() - start


works = {
    "read at once": read_whole,
    "read by 1 MiB": read_pieces,
    "stat as listed": stat_listed,
    "stat sorted": stat_sorted,
    "stat numbered": stat_numbered,
    "stat by chance": stat_chance,
    "epoll echo": echo,
    "threads": ping_pong,
}
print(json.dumps({name: min(timed(work) for _ in range(ROUNDS)) for name, work in works.items()}))
