"""Plain TCP each way, and WebSocket messages there and back, against the servers of bench/native.py. Prints one JSON document.

python sockets.py HOST SOURCE_PORT SINK_PORT WS_PORT MEGABYTES MESSAGES
"""

import json
import socket
import sys
import time

from websockets.sync.client import connect

HOST = sys.argv[1]
SOURCE, SINK, WS, MEGABYTES, MESSAGES = map(int, sys.argv[2:7])
TOTAL = MEGABYTES << 20
WINDOW = 64


def download() -> float:
    buffer = bytearray(1 << 20)
    with socket.create_connection((HOST, SOURCE)) as sock:
        sock.sendall(b"\0" + TOTAL.to_bytes(8, "big"))
        left = TOTAL
        began = time.perf_counter()
        while left:
            count = sock.recv_into(buffer)
            assert count, "the server closed"
            left -= count
        return TOTAL / 1e6 / (time.perf_counter() - began)


def upload() -> float:
    data = b"\0" * (1 << 20)
    with socket.create_connection((HOST, SINK)) as sock:
        began = time.perf_counter()
        for _ in range(MEGABYTES):
            sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        assert int.from_bytes(sock.recv(8), "big") == TOTAL
        return TOTAL / 1e6 / (time.perf_counter() - began)


def messages(window: int) -> float:
    """Messages a second there and back, `window` of them under way at a time."""
    with connect(f"ws://{HOST}:{WS}/", compression=None) as ws:
        began = time.perf_counter()
        for number in range(MESSAGES):
            ws.send(b"x" * 100)
            if number >= window - 1:
                ws.recv()
        for _ in range(window - 1):
            ws.recv()
        return MESSAGES / (time.perf_counter() - began)


print(json.dumps({"download": download(), "upload": upload(), "one by one": messages(1), "64 at a time": messages(WINDOW)}))
