"""examples/plugins in the path of programs in real VMs."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from agentfw.snapshots import SnapshotStore
from agentfw.testing import FakeServer, Request, Response, run_agent

pytestmark = pytest.mark.kvm

EXAMPLES = Path(__file__).parents[2] / "examples/plugins"

CODE = """
import os, socket, urllib.request
for host in ("closed.example", "token.example", "leaky.example"):
    try:
        with urllib.request.urlopen(f"https://{host}/") as response:
            print(host, response.read().decode())
    except OSError as error:
        print(host, type(error).__name__)
print([name for name, value in os.environ.items() if "t0p" in value])
"""


def test_the_three_together(agentfw_environment: dict[str, str], tmp_path: Path) -> None:
    store = SnapshotStore(Path(agentfw_environment["XDG_CACHE_HOME"]) / "agentfw/snapshots")
    mint = tmp_path / "mint.py"
    mint.write_text('print(\'{"token": "t0p-secret", "expires_in": 300}\')\n')
    yesterday = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"][(datetime.now(UTC) - timedelta(days=2)).weekday()]

    def answer(request: Request) -> Response:
        if request.destination.host == "leaky.example":
            return Response(body=[b"nothing here, but INTER", b"NAL ONLY"])
        return Response(body=str(request.headers.get("authorization") == "Bearer t0p-secret").encode())

    server = FakeServer(answer)
    run = run_agent(
        CODE,
        plugins=[*(str(EXAMPLES / f"{name}.py") for name in ("office_hours", "helper_token", "leak_watch")), server],
        config={
            "office_hours": {"rule": [{"hosts": ["closed.example"], "hours": "00:00-24:00", "days": [yesterday]}]},
            "helper_token": {"host": "token.example", "command": [sys.executable, "-I", str(mint)]},
            "leak_watch": {"words": ["INTERNAL ONLY"], "hosts": ["leaky.example"], "block": True},
        },
        store=store,
    )
    *lines, environment = run.stdout.splitlines()
    assert lines[:2] == ["closed.example URLError", "token.example True"] and environment == "[]", run
    assert lines[2].startswith("leaky.example ") and "ONLY" not in lines[2] and run.status == 0
    assert run.statistics["office_hours.closed"] >= 1 and run.statistics["helper_token.minted"] == 1
    assert run.statistics["leak_watch.found"] == 1 and "t0p" not in run.stdout + run.stderr + str(run.statistics)
