"""The dashboard of `agentfw pool start`: there by default, opened by `agentfw dashboard`, out of agents' reach."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..serving import Quiet, serving
from .test_pool import Run, Start, environment, line, run, start

pytestmark = pytest.mark.kvm
__all__ = ["environment", "run", "start"]

NAMES = {
    "one.test": "127.0.0.1",
    "zero.test": "0.0.0.0",
    "six.test": "::1",
    "mapped.test": "::ffff:127.0.0.1",
    "nat.test": "64:ff9b::7f00:1",
}
DENIED = ("PermissionError", "HTTP/1.1 403 Forbidden denied")
PROBE = r"""
import json, socket, sys
def get(name, port):
    try:
        with socket.create_connection((name, port), 20) as sock:
            sock.sendall(f"GET /data/overview HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode())
            data = b""
            while piece := sock.recv(65536):
                data += piece
            return data.split(b"\r\n")[0].decode() + (" denied" if b"agentfw_denied" in data else "")
    except OSError as error:
        return type(error).__name__
print(json.dumps({f"{name}:{port}": get(name, port) for name in sys.argv[1].split(",") for port in map(int, sys.argv[2].split(","))}))
"""


def own_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


@pytest.fixture
def neighbour() -> Iterator[int]:
    """The port of a server of the host's that agents may use."""

    class Answer(Quiet):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving(Answer) as port:
        yield port


def get(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_there_by_default_and_out_of_agents_reach(run: Run, start: Start, tmp_path: Path, neighbour: int) -> None:
    own = own_address()
    names = {**NAMES, **({"own.test": own} if own else {})}
    table = f"""
[dns]
hosts = {{ {", ".join(f'"{name}" = "{address}"' for name, address in names.items())} }}
[policy]
default = "allow"
allow_addresses = ["0.0.0.0/0", "::/0"]
[pool]
workers = 1
size = 2
idle = 1
listen = "127.0.0.1:0"
token_file = "token"
"""
    (tmp_path / "token").write_text("0123456789-0123456789\n")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "agentfw.toml").write_text(table + '[dashboard]\nlisten = "0.0.0.0:0"\n')
    pool = start("pool", "start")
    heard = []
    while not (text := ready_or(pool)).startswith("pool ready"):
        heard.append(text)
    (api,) = (int(text.rpartition(":")[2]) for text in heard if text.startswith("listening at"))
    assert any("not encrypted" in text and "dashboard" in text for text in heard), heard
    said = line(pool, "stderr")
    assert said.startswith("dashboard at http://127.0.0.1:") and "`agentfw dashboard` opens it" in said

    document = json.loads(run("dashboard", "--json").stdout)
    url, token = document["url"], document["token"]
    port = int(url.rpartition(":")[2])
    assert url in said and token not in said
    assert (tmp_path / "run/agentfw/pool.sock.dashboard-token").read_text().strip() == token
    link = run("dashboard", "--print-url").stdout.strip()
    assert link.startswith(f"{url}/login?code=") and token not in link
    assert get(link)[0] == 200 and get(link)[0] == 401
    assert get(f"{url}/data/overview")[0] == 401
    status, body = get(f"{url}/data/overview", Authorization=f"Bearer {token}")
    assert status == 200 and json.loads(body)["state"] == "ready"
    assert {"inspect", "dashboard"} <= {
        each["name"] for each in json.loads(get(f"{url}/data/loaded", Authorization=f"Bearer {token}")[1])["plugins"]
    }
    refused = run("dashboard", "--json", AGENTFW_POOL_URL=f"http://127.0.0.1:{api}", AGENTFW_POOL_TOKEN_FILE="token")
    assert refused.returncode == 125 and "Unix socket" in refused.stderr and not refused.stdout

    def reached(*ports: int) -> dict[str, str]:
        done = run("submit", "--wait", "-c", PROBE, ",".join(names), ",".join(map(str, ports)))
        assert done.returncode == 0, done
        return dict(json.loads(done.stdout))

    found = reached(port, api, neighbour)
    assert found[f"one.test:{neighbour}"] == "HTTP/1.1 200 OK", found
    for closed in (port, api):
        assert found[f"one.test:{closed}"] in DENIED, found
        for name in names:  # the relay's 502: nobody listens there
            text = found[f"{name}:{closed}"]
            assert not text.startswith("HTTP") or text in (*DENIED, "HTTP/1.1 502 Bad Gateway"), found
        assert found[f"mapped.test:{closed}"] in DENIED and found[f"nat.test:{closed}"] in DENIED, found
    assert found[f"mapped.test:{neighbour}"] == "HTTP/1.1 200 OK", found
    if own is not None:
        assert found[f"own.test:{port}"] in DENIED, found

    job = json.loads(run("ps", "--all", "--json").stdout)["jobs"][0]["id"]
    status, body = get(f"{url}/data/output?id={job}", Authorization=f"Bearer {token}")
    assert status == 200 and f"one.test:{neighbour}" in json.loads(body)["pieces"][0]["text"]

    (tmp_path / "agentfw.toml").write_text(table + '[dashboard]\nlisten = "127.0.0.1:0"\n')
    pool.send_signal(signal.SIGHUP)
    while not (text := line(pool, "stderr")).startswith("reloaded"):
        assert text
    moved = json.loads(run("dashboard", "--json").stdout)["url"]
    assert moved != url and get(f"{moved}/data/overview", Authorization=f"Bearer {token}")[0] == 200
    later = reached(int(moved.rpartition(":")[2]), neighbour)
    assert later[f"one.test:{neighbour}"] == "HTTP/1.1 200 OK"
    assert later[f"one.test:{int(moved.rpartition(':')[2])}"] in DENIED, later
    with socket.create_connection(("127.0.0.1", int(moved.rpartition(":")[2]))) as watching:
        watching.sendall(f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        assert watching.recv(65536).startswith(b"HTTP/1.1 200")
        assert run("pool", "stop", "--now").returncode == 0 and pool.wait(20) == 0


def ready_or(pool: object) -> str:
    text = line(pool, "stderr")  # type: ignore[arg-type]
    assert text, "it ended"
    return text


def test_a_port_that_somebody_has(run: Run, start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        (tmp_path / "agentfw.toml").write_text(
            f'[pool]\nworkers = 1\n[dashboard]\nlisten = "127.0.0.1:{other.getsockname()[1]}"\n'
        )
        done = run("pool", "start")
        assert done.returncode == 125 and "agentfw.toml:4: dashboard.listen: cannot listen at" in done.stderr, done
        assert "hint: another one has the port" in done.stderr and "Traceback" not in done.stderr
        done = run("doctor")
        assert done.returncode == 0 and "warn  dashboard" in done.stdout


def test_of_one_command(start: Start, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("import sys; print('up', flush=True); sys.stdin.readline()")
    (tmp_path / "agentfw.toml").write_text('[dashboard]\nlisten = ""\n')  # of pools: the option goes before it
    process = start("run", "--dashboard", "agent.py")
    while not (text := line(process, "stderr")).startswith("dashboard: "):
        assert text
    link = text.removeprefix("dashboard: ").strip()
    assert line(process) == "up\n"
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(link, timeout=20) as answer:
        assert answer.status == 200 and b"refresh" in answer.read()
    assert get(link)[0] == 401
    with browser.open(link.partition("/login")[0] + "/data/agents", timeout=20) as answer:
        (row,) = json.load(answer)["rows"]
    assert row["state"] == "running" and row["cpu_seconds"] > 0 and row["memory"] > 0 and row["exits"] > 0
    process.communicate("\n", timeout=20)
    assert process.returncode == 0
