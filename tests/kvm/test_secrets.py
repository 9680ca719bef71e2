"""After a run of agents that provoke it, a secret is nowhere but in the worker: not in a guest's memory, output, logs, counters,
reports or files, in any form."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from agentfw.mock_llm import CertificateAuthority
from agentfw_credentials.search import Needles, forms

from tests.capturing.support import load
from tests.conftest import COMMAND

from ..serving import Quiet, serving
from .test_model_calls import _children, _memory_holds

pytestmark = pytest.mark.kvm

SECRETS = {
    "HEADER": "sk-header-8b1d0c63f2a94e57",
    "PASSWORD": "pa55-word-40c2e9d1b7",
    "QUERY": "AIzaQuery0f3b5d7c9e1a",
    "COMMAND": "cmd-0a9b8c7d6e5f4a3b2c1d",
}
NEEDLES = Needles(secret.encode() for secret in SECRETS.values())

AGENT = """
import base64, json, logging, os, sys, traceback, urllib.error, urllib.request
logging.basicConfig(level=logging.DEBUG)
port = os.environ["PORT"]
print("placeholder:", os.environ["HEADER_KEY"], "others:", [name for name in os.environ if "REAL" in name])
for host in ("header", "basic", "query", "command"):
    for path in ("/echo?a=b", "/gzip", "/error", "/redirect", "/cut"):
        try:
            with urllib.request.urlopen(f"https://{host}.test:{port}{path}", timeout=30) as answer:
                text = answer.read()
                print(host, path, answer.status, len(text), dict(answer.headers), text)
        except urllib.error.HTTPError as error:
            print(host, path, error, error.read(), dict(error.headers))
            traceback.print_exception(error)
        except Exception as error:
            print(host, path, repr(error))
            traceback.print_exc()
    for headers in ({"Authorization": "Bearer sk-mine"}, {"X-Note": "sk-agentfw-placeholder"}):
        try:
            urllib.request.urlopen(urllib.request.Request(f"https://{host}.test:{port}/echo", headers=headers), timeout=30)
        except urllib.error.HTTPError as error:
            print(host, error.code, error.read().decode())
print("done", flush=True)
sys.stdin.read()
"""


class Reflect(Quiet):
    """Says what it was sent, in every way it can think of."""

    seen: list[str] = []  # noqa: RUF012  # of the class: there is one server

    def do_GET(self) -> None:
        sent = f"{self.path}\n{self.headers}"
        self.seen.append(sent)
        basic = self.headers.get("Authorization", "").removeprefix("Basic ")
        if basic != self.headers.get("Authorization", ""):
            sent += "\n" + base64.b64decode(basic).decode()
        body = "\n".join(
            [sent, json.dumps(sent), quote(sent), base64.b64encode(sent.encode()).decode(), sent.encode().hex()]
        ).encode()
        if self.path.startswith("/gzip"):
            import gzip

            body = gzip.compress(body)
        self.send_response(500 if "/error" in self.path else 303 if "/redirect" in self.path else 200, f"saw {basic[:60]}")
        if self.path.startswith("/gzip"):
            self.send_header("Content-Encoding", "gzip")
        if "/redirect" in self.path:
            self.send_header("Location", f"https://header.test:1/?from={quote(sent)}")
        for name, value in self.headers.items():
            self.send_header(f"X-You-{name}", value)
        self.send_header("X-Path", self.path)
        self.send_header("Set-Cookie", f"session={base64.b64encode(sent.encode()).decode()}")
        self.send_header("Content-Length", str(len(body) + 9 * self.path.startswith("/cut")))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.path.startswith("/cut")


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    authority = CertificateAuthority()
    (tmp_path / "ca.pem").write_text(authority.ca_pem)
    context: ssl.SSLContext = authority.server_context([f"{name}.test" for name in ("header", "basic", "query", "command")])
    Reflect.seen.clear()
    with serving(Reflect, context) as port:
        yield port


def test_a_secret_is_nowhere(
    port: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, agentfw_environment: dict[str, str], nothing_left: None
) -> None:
    file = tmp_path_factory.mktemp("secret") / "password"
    file.write_text(SECRETS["PASSWORD"] + "\n")
    kept = tmp_path_factory.mktemp("kept")
    (tmp_path / "agent.py").write_text(AGENT)
    rules = "".join(
        f'[[credentials.rule]]\nhost = "{name}.test:{port}"\n{what}\n'
        for name, what in (
            ("header", 'header = "x-api-key"\nvalue = "${env:REAL_HEADER}"\nenv = "HEADER_KEY"\nrequire = true'),
            ("basic", f'basic = {{user = "robot", password = "${{file:{file}}}"}}'),
            ("query", 'query = "key"\nvalue = "${env:REAL_QUERY}"'),
            ("command", 'header = "authorization"\nvalue = "Bearer ${command:print}"'),
        )
    )
    (tmp_path / "agentfw.toml").write_text(f"""
[run]
env = {{ PORT = "{port}" }}
[dns]
hosts = {{ "header.test" = "127.0.0.1", "basic.test" = "127.0.0.1", "query.test" = "127.0.0.1", "command.test" = "127.0.0.1" }}
[tls]
ca_files = ["ca.pem"]
[policy]
allow = ["*.test"]
allow_addresses = ["127.0.0.1/32"]
{rules}
[audit]
file = "{kept}/audit.jsonl"
events = ["events", "decisions", "exchanges", "flows", "exits", "questions"]
queries = true
[credentials.command.print]
argv = ["{sys.executable}", "-S", "-c", "import os; print(os.environ['REAL_COMMAND'])"]
""")
    secret = {f"REAL_{name}": SECRETS[name] for name in ("HEADER", "QUERY", "COMMAND")}
    command = [*COMMAND, "run", "-v", "--stats", "--har", str(kept / "agent.har"), "agent.py"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
                               env={**agentfw_environment, **secret})  # fmt: skip
    said: list[bytes] = []
    errors: list[bytes] = []
    assert process.stdout is not None and process.stderr is not None and process.stdin is not None
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))  # type: ignore[union-attr]
    reader.start()
    try:
        while b"done" not in (line := process.stdout.readline()):
            assert line, b"".join(said)
            said.append(line)
        cells = [pid for pid in _children(process.pid) if b"agentfw-cell" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(cells) == 1
        needles = [form for each in SECRETS.values() for form in forms(each.encode())]
        inside = _memory_holds(cells[0], [*needles, b"sk-agentfw-placeholder", b"/redirect"])
        worker = _memory_holds(process.pid, [each.encode() for each in SECRETS.values()])
    finally:
        process.stdin.close()
        process.wait(timeout=30)
        reader.join()
        said.append(process.stdout.read())
        process.stdout.close()
        process.stderr.close()
    output, log = b"".join(said), b"".join(errors)
    assert process.returncode == 0, log
    assert all(worker.values()), "the search itself works: the runtime has them"
    assert inside[b"sk-agentfw-placeholder"] and inside[b"/redirect"], "the search itself works: the guest has those"
    assert not any(inside[needle] for needle in needles), {needle for needle in needles if inside[needle]}
    served = "\n".join(Reflect.seen)
    for each in ("HEADER", "QUERY", "COMMAND"):
        assert SECRETS[each] in served
    assert base64.b64encode(f"robot:{SECRETS['PASSWORD']}".encode()).decode() in served and "sk-agentfw" not in served
    assert not NEEDLES.find(output) and not NEEDLES.find(log), output + log
    assert output.count(b"****") > 40 and b"placeholder: sk-agentfw-placeholder others: []" in output
    assert len(re.findall(rb"^\w+ 403 ", output, re.MULTILINE)) == 8 and b"et-cookie" not in output.lower().replace(
        b"asset-", b""
    )
    assert b"credentials.echoes_masked" in log
    log_of_all, har = (kept / "audit.jsonl").read_bytes(), (kept / "agent.har").read_bytes()
    assert log_of_all.count(b'"event":"exchange"') >= 28 and len(load(kept / "agent.har")["entries"]) >= 28
    assert not NEEDLES.find(log_of_all) and not NEEDLES.find(har) and har.count(b"****") > 40
    for place in (Path(agentfw_environment["XDG_CACHE_HOME"]), tmp_path):
        for found in place.rglob("*"):
            if found.is_file():
                assert not any(each.encode() in found.read_bytes() for each in SECRETS.values()), found
    assert os.environ.get("REAL_HEADER") is None
