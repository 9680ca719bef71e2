"""The network as an agent in a VM meets it: real sockets in the guest, the relay and all plugins, servers on 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agentfw.mock_llm import MockOptions
from agentfw.mock_llm.server import MockLLMThread

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

KEY = "sk-real-0123456789abcdef"

AGENT = """
import asyncio, concurrent.futures, http.client, json, os, socket, ssl, sys, threading, time, urllib.error, urllib.request

P = json.loads(os.environ["PORTS"])
TOLD = {}

def tell(name):
    def run(function):
        try:
            TOLD[name] = function()
        except BaseException as error:
            TOLD[name] = f"{type(error).__name__}: {error}"
    return run

def status(call):
    try:
        with call() as answer:
            return [answer.status, answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, json.loads(error.read())["error"]]

@tell("echo")
def _():
    with socket.create_connection(("echo.test", P["echo"])) as s:
        data = os.urandom(2_000_000)
        threading.Thread(target=lambda: (s.sendall(b"\\0" + data), s.shutdown(socket.SHUT_WR))).start()
        got = b"".join(iter(lambda: s.recv(65536), b""))
        return got == b"\\0" + data

@tell("many")
def _():
    def one(n):
        with socket.create_connection(("echo.test", P["echo"])) as s:
            s.sendall(b"\\0%d" % n)
            s.shutdown(socket.SHUT_WR)
            return s.recv(100) == b"\\0%d" % n
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        return all(pool.map(one, range(60)))

@tell("asyncio")
def _():
    async def main():
        async def one(n):
            reader, writer = await asyncio.open_connection("echo.test", P["echo"])
            writer.write(b"\\0%d" % n)
            writer.write_eof()
            got = await reader.read()
            writer.close()
            return got == b"\\0%d" % n
        return all(await asyncio.gather(*map(one, range(20))))
    return asyncio.run(main())

@tell("udp")
def _():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(20)
        s.sendto(b"hello", (socket.gethostbyname("echo.test"), P["udp"]))
        return s.recvfrom(100)[0].decode()

@tell("speaks first")
def _():
    with socket.create_connection(("echo.test", P["greets"])) as s:
        return s.recv(100).decode()

@tell("denied name")
def _():
    socket.getaddrinfo("denied.test", 80)

@tell("denied address")
def _():
    socket.create_connection(("192.0.2.1", 80), 20)

@tell("nobody listens")
def _():
    with socket.create_connection(("echo.test", P["closed"]), 20) as s:
        s.sendall(b"\\1")
        return s.recv(1).decode()

def chat(host, key, stream=False, **more):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **more}
    request = urllib.request.Request(f"https://{host}:{P['llm']}/v1/chat/completions", body, headers)
    return lambda: urllib.request.urlopen(request, timeout=30)

@tell("model")
def _():
    return status(chat("api.openai.com", "sk-agentfw-placeholder"))

@tell("stream")
def _():
    with chat("api.openai.com", "sk-agentfw-placeholder", stream=True)() as answer:
        return [line.decode().strip() for line in answer][-2:]

@tell("own key")
def _():
    return status(chat("api.openai.com", "sk-of-the-agent"))

@tell("placeholder elsewhere")
def _():
    return status(chat("other.test", "sk-agentfw-placeholder"))

@tell("wrong certificate")
def _():
    status(chat("wrong.test", "x"))

@tell("not verifying does not help")
def _():
    context = ssl._create_unverified_context()
    urllib.request.urlopen(f"https://wrong.test:{P['llm']}/", timeout=30, context=context)

@tell("smuggling")
def _():
    context = ssl.create_default_context()
    with socket.create_connection(("api.openai.com", P["llm"])) as raw:
        s = context.wrap_socket(raw, server_hostname="api.openai.com")
        s.sendall(b"POST / HTTP/1.1\\r\\nHost: api.openai.com\\r\\nContent-Length: 3\\r\\n"
                  b"Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n")
        return s.recv(1000).decode().split("\\r\\n")[0]

@tell("fronting")
def _():
    connection = http.client.HTTPSConnection("api.openai.com", P["llm"], timeout=30)
    connection.request("GET", "/", headers={"Host": "other.test"})
    return connection.getresponse().status

@tell("environment")
def _():
    return [name for name, value in os.environ.items() if "sk-real" in value]

print(json.dumps(TOLD))
"""


class Servers:
    """Echo over TCP and UDP, one that greets, and a port where nobody listens."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.ports: dict[str, int] = {}
        for name, serve in (("echo", self._echo), ("greets", self._greet)):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=100))
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            self.ports[name] = listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(listener, serve), daemon=True).start()
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        stack.callback(self._stop, datagrams)
        self.ports["udp"] = datagrams.getsockname()[1]
        threading.Thread(target=self._udp, args=(datagrams,), daemon=True).start()
        with socket.create_server(("127.0.0.1", 0)) as closed:
            self.ports["closed"] = closed.getsockname()[1]

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                threading.Thread(target=serve, args=(sock,), daemon=True).start()

    @staticmethod
    def _echo(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while data := sock.recv(65536):
                sock.sendall(data)

    @staticmethod
    def _greet(sock: socket.socket) -> None:
        with sock:
            sock.sendall(b"220 hello")

    @staticmethod
    def _udp(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                data, peer = sock.recvfrom(2000)
                if not data:
                    return
                sock.sendto(data[::-1], peer)

    @staticmethod
    def _stop(sock: socket.socket) -> None:
        sock.sendto(b"", sock.getsockname())


@pytest.fixture
def servers() -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        yield Servers(stack)


def test_an_agents_network(agentfw: Agentfw, servers: Servers, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with MockLLMThread(MockOptions(keys=(KEY,), names=("other.test",))) as llm:
        ports = {**servers.ports, "llm": llm.server.port}
        (tmp_path / "ca.pem").write_text(llm.ca_pem)
        key = tmp_path_factory.mktemp("secrets") / "key"
        key.write_text(KEY)
        (tmp_path / "agent.py").write_text(AGENT)
        (tmp_path / "agentfw.toml").write_text(f"""
[run]
env = {{ PORTS = '{json.dumps(ports)}' }}
[dns]
hosts = {{ "echo.test" = "127.0.0.1", "api.openai.com" = "127.0.0.1", "other.test" = "127.0.0.1", "wrong.test" = "127.0.0.1" }}
[tls]
ca_files = ["ca.pem"]
[policy]
allow = ["echo.test", "api.openai.com", "other.test", "wrong.test"]
allow_addresses = ["127.0.0.1/32"]
[[credentials.rule]]
host = "api.openai.com:{ports["llm"]}"
header = "authorization"
value = "Bearer ${{file:{key}}}"
""")
        done = agentfw("run", "agent.py")
        assert done.returncode == 0, done.stderr
        stats = llm.server.stats()
    assert KEY not in done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert [told[name] for name in ("echo", "many", "asyncio")] == [True, True, True], told
    assert told["udp"] == "olleh" and told["speaks first"] == "220 hello"
    assert told["denied name"].startswith("gaierror") and told["denied address"].startswith("PermissionError"), told
    assert told["nobody listens"].startswith("ConnectionRefusedError"), told
    assert told["model"][0] == 200 and "echo: hi" in told["model"][1]
    assert told["stream"][-1] == "" and told["stream"][-2] == "data: [DONE]"
    for name in ("own key", "placeholder elsewhere"):
        code, error = told[name]
        assert (code, error["type"], error["plugin"]) == (403, "agentfw_denied", "credentials"), told[name]
    assert "CERTIFICATE_VERIFY_FAILED" in told["wrong certificate"] and "wrong.test" not in stats["paths"]
    assert "CERTIFICATE_VERIFY_FAILED" in told["not verifying does not help"]
    assert told["smuggling"].startswith("HTTP/1.1 400 ") and told["fronting"] == 400
    assert told["environment"] == []
    assert stats["requests"] == 2, stats
