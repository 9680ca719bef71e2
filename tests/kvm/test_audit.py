"""A pool's audit log and captures, from jobs in virtual machines to the commands that read them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.capturing.support import load, pairs

from ..serving import Quiet, serving
from .test_pool import Run, Start, environment, ready, run, start

pytestmark = pytest.mark.kvm
__all__ = ["environment", "run", "start"]

CODE = """
import os, urllib.request, urllib.error
for host in ("one.test", "two.test"):
    try:
        request = urllib.request.Request(f"http://{host}:{os.environ['PORT']}/a?token=x", b"said", {"X-Mine": "1", "Cookie": "a=b"})
        print(host, urllib.request.urlopen(request, timeout=20).read())
    except OSError as error:
        print(host, type(error).__name__)
"""


@pytest.fixture
def port() -> Iterator[int]:
    class Answer(Quiet):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "8")
            self.end_headers()
            self.wfile.write(b"answered")

    with serving(Answer) as port:
        yield port


def test_what_a_job_did_and_who_had_it_done(run: Run, start: Start, port: int, tmp_path: Path) -> None:
    (tmp_path / "har").mkdir()
    (tmp_path / "agentfw.toml").write_text(
        '[audit]\nfile = "audit.jsonl"\n[capture]\ndirectory = "har"\n[pool]\nworkers = 2\nsize = 2\nidle = 0\n'
        '[policy]\nallow = ["one.test"]\nallow_addresses = ["127.0.0.1/32"]\n'
        '[dns]\nhosts = { "one.test" = "127.0.0.1", "two.test" = "127.0.0.1" }\n'
    )
    pool = start("pool", "start")
    ready(pool)
    done = run("submit", "--har", "--env", f"PORT={port}", "--label", "team=red", "--json", "-c", CODE)
    job = json.loads(done.stdout)["jobs"][0]
    job_id = job if isinstance(job, str) else job["id"]
    assert run("wait", job_id).returncode == 0
    assert run("logs", job_id).stdout.split("\n")[:2] == ["one.test b'answered'", "two.test URLError"]
    fetched = run("har", job_id, "-o", "job.har")
    assert (fetched.returncode, fetched.stderr) == (0, f"job.har: {(tmp_path / 'job.har').stat().st_size} bytes\n")
    log = load(tmp_path / "job.har")
    (entry,) = log["entries"]
    asked = entry["request"]
    assert asked["url"] == f"http://one.test:{port}/a?token=(masked)" and asked["postData"]["text"] == "said"
    assert pairs(asked["headers"])["x-mine"] == "1" and pairs(asked["headers"])["cookie"] == "(masked)"
    assert entry["response"]["content"]["text"] == "answered" and entry["response"]["status"] == 200
    plain = json.loads(run("submit", "--json", "-c", "pass").stdout)["jobs"][0]
    plain_id = plain if isinstance(plain, str) else plain["id"]
    assert run("wait", plain_id).returncode == 0
    assert run("har", plain_id).returncode == 125 and not (tmp_path / f"{plain_id}.har").exists()
    pool.send_signal(signal.SIGINT)
    assert pool.wait(30) == 0

    def query(*options: str) -> list[dict[str, Any]]:
        found = run("audit", "query", "--format", "jsonl", *options)
        assert (found.returncode, found.stderr) == (0, "")
        return [json.loads(line) for line in found.stdout.splitlines()]

    lines = query("--job", job_id)
    whats = [line["what"] for line in lines if line["event"] == "job"]
    assert sorted(whats) == ["dispatched", "ended", "read", "submitted"]
    (submitted,) = [line for line in lines if line.get("what") == "submitted"]
    assert submitted["by"].startswith(f"uid {os.getuid()} pid ") and submitted["labels"]["team"] == "red"
    decisions = {
        (line["destination"], line["allowed"], line["rule"].partition(" (")[0]) for line in lines if line["event"] == "decision"
    }
    assert {
        ("dns://one.test:53", True, "policy.allow: one.test"),
        (f"http://one.test:{port}", True, "policy.allow: one.test"),
        ("dns://two.test:53", False, "policy.default: deny"),
    } <= decisions
    assert {line["event"] for line in lines} >= {"decision", "denied", "exchange", "flow", "exit", "job"}
    assert {line["destination"] for line in query("--denied", "--event", "denied")} == {"dns://two.test:53"}
    pool_lines = [
        (line["what"], line.get("by")) for line in query("--event", "pool") if line["what"] in ("started", "stopping", "stopped")
    ]
    assert pool_lines == [("started", "program"), ("stopping", "signal SIGINT"), ("stopped", "signal SIGINT")]
