"""SIGHUP to `agentfw run`: a changed agentfw.toml reaches agents that run, open connections included."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from ..conftest import COMMAND

pytestmark = pytest.mark.kvm

GATE = """
import msgspec
from agentfw import Denied, hookimpl

class Config(msgspec.Struct, forbid_unknown_fields=True):
    closed: tuple[str, ...] = ()

class Plugin:
    config_type = Config

    def __init__(self, config):
        self.config = config

    def reconfigure(self, config):
        return lambda: setattr(self, "config", config)

    @hookimpl
    def allow(self, destination):
        if destination.host in self.config.closed:
            raise Denied(f"gate: {destination.host}", "it is closed")

    @hookimpl
    def dial(self, address):
        return True if address == "127.0.0.1" else None
"""

AGENT = """
import socket, sys
a = socket.create_connection(("a.example", int(sys.argv[1])))
b = socket.create_connection(("b.example", int(sys.argv[1])))
for s in (a, b):
    s.sendall(b"\\0hello")
    assert s.recv(6) == b"\\0hello"
print("connected", flush=True)
try:
    print("a", a.recv(6))
except ConnectionResetError:
    b.sendall(b"\\0again")
    print("a was reset, b says", b.recv(6), flush=True)
try:
    socket.create_connection(("a.example", int(sys.argv[1])))
except OSError as error:
    print("a again:", type(error).__name__)
"""


@pytest.fixture
def echo() -> object:
    """An echo server on 127.0.0.1: its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_a_fleet_goes_on_under_new_rules(
    agentfw_environment: dict[str, str], tmp_path: Path, nothing_left: None, echo: int
) -> None:
    (tmp_path / "gate.py").write_text(GATE)
    (tmp_path / "agent.py").write_text(AGENT)
    hosts = '[dns]\nupstream = []\nhosts = {"a.example" = "127.0.0.1", "b.example" = "127.0.0.1"}\n'
    config = tmp_path / "agentfw.toml"
    config.write_text(hosts)
    command = [*COMMAND, "run", "-n", "3", "--plugins", "./gate.py,dns,native", "--timeout", "60", "agent.py", str(echo)]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=agentfw_environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stderr is not None
        assert [process.stdout.readline() for _ in range(3)] == ["connected\n"] * 3
        config.write_text(hosts + "[gate]\nclosed = [5]\n")
        process.send_signal(signal.SIGHUP)
        while "not reloaded" not in (line := process.stderr.readline()):
            assert line, "it ended"
        assert line == f"error: not reloaded, all stays as it was: {config}:5: gate.closed.0: expected text, got integer\n"
        config.write_text(hosts + '[gate]\nclosed = ["a.example"]\n')
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert sorted(out.splitlines()) == sorted(["a was reset, b says b'\\x00again'", "a again: gaierror"] * 3), (out, err)
    assert f"reloaded {config}: gate changed; open connections ended: 3\n" in err and process.returncode == 0
