"""Sockets over flows at their limits: every flow in use, slow readers, half-closed streams, datagrams of every size."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .test_network import Servers

pytestmark = pytest.mark.kvm

AGENT = """
import asyncio, errno, json, os, select, socket, threading, time

P = json.loads(os.environ["PORTS"])
ECHO = ("echo.test", P["echo"])
TOLD = {}

def tell(function):
    try:
        TOLD[function.__name__] = function()
    except BaseException as error:
        TOLD[function.__name__] = f"{type(error).__name__}: {error}"

@tell
def all_flows():
    held, address = [], (socket.gethostbyname(ECHO[0]), ECHO[1])
    try:
        while len(held) < 200:
            held.append(socket.create_connection(address))
    except OSError as error:
        full = error.errno == errno.EADDRNOTAVAIL
    for s in held:
        s.sendall(b"\\0x")
    answers = [s.recv(9) for s in held]
    for s in held:
        s.close()
    again = [socket.create_connection(address) for _ in range(100)]
    for s in again:
        s.close()
    return [full, len(held) > 100, set(answers) == {b"\\0x"}, len(again)]

@tell
def one_after_the_other():
    address = (socket.gethostbyname(ECHO[0]), ECHO[1])
    for n in range(150):
        with socket.create_connection(address) as s:
            s.sendall(b"\\0%d" % n)
            assert s.recv(9) == b"\\0%d" % n
    return "done"

@tell
def slow_reader():
    with socket.create_connection(ECHO) as s:
        data = os.urandom(3_000_000)
        sender = threading.Thread(target=lambda: (s.sendall(b"\\0" + data), s.shutdown(socket.SHUT_WR)))
        sender.start()
        time.sleep(0.3)
        got = bytearray()
        while piece := s.recv(100_000 if len(got) > 500_000 else 1000):
            got += piece
        sender.join()
        return got == b"\\0" + data

@tell
def not_blocking():
    with socket.socket() as s:
        s.setblocking(False)
        code = s.connect_ex((socket.gethostbyname(ECHO[0]), ECHO[1]))
        _, ready, _ = select.select([], [s], [], 10)
        first = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), s.getpeername()[1] == ECHO[1], s.getsockname()[0]
        s.send(b"\\0y")
        select.select([s], [], [], 10)
        return [errno.errorcode[code], len(ready), *first, s.recv(9).decode()]

@tell
def time_out():
    with socket.create_connection(ECHO) as s:
        s.send(b"\\0z")
        s.recv(2, socket.MSG_WAITALL)
        s.settimeout(0.1)
        try:
            s.recv(1)
        except TimeoutError:
            return "timeout"

@tell
def peek_and_wait_all():
    with socket.create_connection(ECHO) as s:
        s.sendall(b"\\0" + b"z" * 100_000)
        s.shutdown(socket.SHUT_WR)
        return [s.recv(1, socket.MSG_PEEK) == s.recv(1), len(s.recv(100_000, socket.MSG_WAITALL)), len(s.recv(1)), len(s.recv(1))]

@tell
def datagrams():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(20)
        s.connect((socket.gethostbyname(ECHO[0]), P["udp"]))
        sizes = []
        for n in (1, 2, 500, 1400, 1999):
            s.send(b"a" * n)
            sizes.append(len(s.recv(4000)))
        for n in range(50):
            s.send(b"%02d" % n)
        got = {s.recv(10) for _ in range(50)}
        return [sizes, len(got)]

print(json.dumps(TOLD))
"""


@pytest.fixture
def servers() -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        yield Servers(stack)


def test_limits(agentfw: Callable[..., subprocess.CompletedProcess[str]], servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "agentfw.toml").write_text(f"""
[run]
env = {{ PORTS = '{json.dumps(servers.ports)}' }}
[dns]
hosts = {{ "echo.test" = "127.0.0.1" }}
[policy]
allow = ["echo.test"]
allow_addresses = ["127.0.0.1/32"]
""")
    done = agentfw("run", "agent.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "all_flows": [True, True, True, 100],
        "one_after_the_other": "done",
        "slow_reader": True,
        "not_blocking": ["EINPROGRESS", 1, 0, True, "10.0.2.15", "\x00y"],
        "time_out": "timeout",
        "peek_and_wait_all": [True, 100000, 0, 0],
        "datagrams": [[1, 2, 500, 1400, 1999], 50],
    }
