"""[policy] as real agents meet it: requests by path, limits, profiles, report-only, raw sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentfw.testing import FakeServer, Request, Response, run_agent

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

CODE = r"""
import json, socket, urllib.error, urllib.request

def get(url, method="GET", **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers), timeout=20) as answer:
            return answer.status, len(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]["rule"], error.headers.get("retry-after")
    except OSError as error:
        return type(error.reason if isinstance(error, urllib.error.URLError) else error).__name__

def show(*value):
    print(json.dumps(value))
"""

TABLE = {
    "allow": ["big.example", "slow.example", "raw.example:7"],
    "rule": [
        {"action": "allow", "host": "files.example", "methods": ["GET"], "paths": ["/public"], "name": "files"},
        {"action": "allow", "host": "slow.example", "limits": {"requests_per_minute": 2, "burst": 2}, "name": "slow"},
    ],
    "limits": {"bytes_down": "300K"},
}


def answer(request: Request) -> Response:
    return Response(body=bytes(50_000) if request.destination.host == "big.example" else b"ok")


def test_requests_limits_and_raw_sockets() -> None:
    run = run_agent(
        CODE
        + r"""
show(get("https://files.example/public/a"))
show(get("https://files.example/public/%2e%2e/etc"))
show(get("https://files.example/public/a", method="PUT"))
show(get("https://files.example/public/a", **{"X-HTTP-Method-Override": "DELETE"}))
show([get("https://slow.example/")[:2] for _ in range(3)])
show(get("https://slow.example/")[2] is not None)
for host, port in (("files.example", 22), ("raw.example", 8)):
    try:
        with socket.create_connection((host, port), 20) as raw:  # it may still become HTTP
            raw.sendall(b"\0 something else\n")
            raw.recv(1)
    except OSError as error:
        show(type(error).__name__)
show([get("https://big.example/") for _ in range(8)][-1])
show(get("https://files.example/public/a"))
""",
        plugins=["policy", FakeServer(answer)],
        config={"policy": TABLE},
    )
    lines = run.stdout.splitlines()
    assert lines[:6] == [
        "[[200, 2]]",
        '[[403, "policy.rule: files", null]]',
        '[[403, "policy.default: deny", null]]',
        '[[403, "policy.rule: files", null]]',
        '[[[200, 2], [200, 2], [429, "policy.rule: slow, limits.requests_per_minute: 2"]]]',
        "[true]",
    ], (run.stdout, run.stderr)
    assert lines[6:8] == ['["ConnectionResetError"]', '["PermissionError"]']
    assert lines[8] in ('["ConnectionResetError"]', '["PermissionError"]', '["IncompleteRead"]', '["gaierror"]'), lines
    assert lines[9] in ('["PermissionError"]', '["gaierror"]'), lines
    assert run.statistics["policy.limited"] >= 3


def test_profiles_by_label(agentfw: Agentfw, tmp_path: Path) -> None:
    (tmp_path / "agentfw.toml").write_text(
        '[policy]\n[policy.profile.open]\nallow = ["localhost"]\nmode = "report"\n[policy.files]\ndeny = ["/tmp/x"]\n'
    )
    (tmp_path / "agent.py").write_text(
        "import socket\ntry:\n    socket.getaddrinfo('nowhere.invalid', 1)\nexcept OSError as e:\n    print(e.errno)\n"
    )
    wrong = agentfw("run", "--label", "policy=opne", "agent.py")
    assert (
        wrong.returncode == 125 and "there is no [policy.profile.opne]" in wrong.stderr and "did you mean `open`?" in wrong.stderr
    )
    assert not wrong.stdout
    right = agentfw("run", "--label", "policy=open", "agent.py")
    assert right.returncode == 0, right.stderr
    assert "report only: agent-1: would be denied by policy.profile.open.default: deny (agentfw.toml:2)" in right.stderr
    default = agentfw("run", "agent.py")
    assert "denied by policy.default: deny (agentfw.toml:1)" in default.stderr
