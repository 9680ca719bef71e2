"""`agentfw top` over a pool with real VMs and its dashboard: what is drawn is what the agent did."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import COMMAND
from tests.top.terminal import Terminal

pytestmark = pytest.mark.kvm

AGENT = """
import socket, sys, time
open("/etc/hosts").read()
try: socket.create_connection(("nowhere.example", 443))
except OSError as error: print(error)
print("\\x1b]0;pwned\\x07up\\x1b[2J", flush=True)
while True: time.sleep(60)
"""
Run = Callable[..., str]


@pytest.fixture
def run(nothing_left: None, agentfw_environment: dict[str, str], tmp_path: Path) -> Run:
    environment = {**agentfw_environment, "AGENTFW_POOL_SOCKET": str(tmp_path / "s"), "XDG_STATE_HOME": str(tmp_path / "state")}

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done
        return done.stdout

    return command


def test_a_pool_in_a_terminal(run: Run, agentfw_environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "agentfw.toml").write_text('[policy]\nallow = ["example.com"]\n')
    (tmp_path / "agent.py").write_text(AGENT)
    run("pool", "start", "--daemon", "--workers", "1", "--size", "4", "--idle", "1")
    try:
        job = run("submit", "--name", "evil\x1b]0;pwned\x07", "--label", "task=look", "agent.py").strip()
        environment = {**agentfw_environment, "AGENTFW_POOL_SOCKET": str(tmp_path / "s"), "TERM": "xterm", "LANG": "C.UTF-8"}
        with Terminal("agentfw", "top", "--interval", "0.3", size=(120, 45), env=environment) as terminal:
            terminal.drawn("1 of 1 agents", "1 running", "evil\\x1b]0;pw", job, "DENIED")
            terminal.type("\r")
            page = terminal.drawn("first_syscall", "nowhere.example A", "resolve", "denied")
            assert "task=look" in page and "pool ready" in page and "syscalls (" in page
            terminal.type("o")
            page = terminal.drawn("\\x1b]0;pwned\\x07up\\x1b[2J", "/etc/hosts", "policy.default: deny (agentfw.toml:1)")
            assert "it has not ended" in page
            run("kill", job)
            terminal.drawn("killed")
            terminal.type("\x1b")
            terminal.drawn("0 of 1 agents")
            terminal.type("3")
            terminal.drawn("allow example.com", "agentfw.toml")
            terminal.type("q")
            assert terminal.end() == 0 and terminal.screen.title == ""
        document = json.loads(run("top", "--json"))
        (row,) = document["agents"]
        assert (row["id"], row["state"], row["labels"]) == (job, "done", {"task": "look"}) and row["denials"] > 0
        assert document["overview"]["dispatch"]["count"] == 1 and sum(document["overview"]["warmup"]) >= 2
        assert "dispatch   p50" in run("top", "--once") and (tmp_path / "s").exists()
    finally:
        run("pool", "stop", "--now")
