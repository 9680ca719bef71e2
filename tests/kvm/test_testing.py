"""`agentfw.testing.run_agent`: real programs in real VMs, with plugins under test and an internet that is a function."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentfw import RequestHead, hookimpl
from agentfw.errors import ConfigError, UnknownPlugin
from agentfw.snapshots import SnapshotStore
from agentfw.testing import FakeServer, run_agent

pytestmark = pytest.mark.kvm


@pytest.fixture
def store(agentfw_environment: dict[str, str]) -> SnapshotStore:
    return SnapshotStore(Path(agentfw_environment["XDG_CACHE_HOME"]) / "agentfw/snapshots")


class Marks:
    name = "marks"

    @hookimpl
    def request(self, head: RequestHead) -> None:
        head.headers.set("x-mark", "set")

    @hookimpl
    def statistics(self) -> dict[str, int]:
        return {"one": 1}


CODE = """
import sys, urllib.request, urllib.error, os
print(urllib.request.urlopen("https://api.example/hello").read().decode(), os.environ["WHO"])
try:
    urllib.request.urlopen("https://denied.example/")
except urllib.error.URLError as error:
    print("no:", error.reason, file=sys.stderr)
sys.exit(3)
"""


def test_a_program_with_plugins_named_from_files_and_made_here(store: SnapshotStore, tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text(
        "import msgspec\nfrom agentfw import Denied, hookimpl\n"
        "class Config(msgspec.Struct):\n    no: str = ''\n"
        "class Plugin:\n    config_type = Config\n    def __init__(self, config): self.config = config\n"
        "    @hookimpl\n    def allow(self, agent, destination):\n"
        "        if destination.host == self.config.no: raise Denied('gate', agent.labels['team'])\n"
    )
    server = FakeServer(lambda request: f"{request.target} {request.headers.get('x-mark')}".encode())
    run = run_agent(
        CODE,
        plugins=[str(tmp_path / "gate.py"), "policy", Marks(), server],
        config={"gate": {"no": "denied.example"}, "policy": {"default": "allow"}},
        env={"WHO": "me"},
        labels={"team": "red"},
        store=store,
    )
    assert (run.stdout, run.status, run.kind) == ("/hello set me\n", 3, "code"), run
    assert run.stderr.startswith("no: ") and run.agent.labels == {"team": "red"}
    assert run.statistics["marks.one"] == 1 and run.statistics["hooks.gate.allow.denied"] >= 1 and run.vm is not None
    assert [request.target for request in server.requests] == ["/hello"]


def test_scripts_faults_and_time_limits(store: SnapshotStore, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text("import sys; print(sys.argv[1:]); raise KeyError('x')")
    run = run_agent(script, "a", "b", plugins=[], store=store)
    assert (run.stdout, run.status) == ("['a', 'b']\n", 1) and "KeyError: 'x'" in run.stderr
    run = run_agent("import time; time.sleep(100)", plugins=[], timeout=1, store=store)
    assert (run.kind, run.status) == ("timeout", 124)


def test_mistakes_are_said_before_anything_runs(store: SnapshotStore) -> None:
    with pytest.raises(UnknownPlugin):
        run_agent("", plugins=["polcy"], store=store)
    with pytest.raises(ConfigError, match=r"policy\.alow: unknown key"):
        run_agent("", plugins=["policy"], config={"policy": {"alow": []}}, store=store)
    with pytest.raises(ConfigError, match="nobody: unknown table"):
        run_agent("", plugins=["policy"], config={"nobody": {}}, store=store)
