"""`agentfw audit tail` and `query`: what they print, of which file, with which exit status, and that nothing of it steers a
terminal."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import click
import pytest
from agentfw.cli import status_of
from agentfw_audit.cli import audit
from agentfw_audit.showing import Counts, in_words

EVIL = '\x1b]0;owned\x07<b>\u202e\u009b31m=HYPERLINK("x")\n'
LINES: list[dict[str, Any]] = [
    {"time": 1000.0, "event": "decision", "agent_id": "j1", "agent": "a", "labels": {"tenant": "red"}, "allowed": True,
     "hook": "allow", "destination": "https://api.example:443", "rule": "policy.allow: api.example (agentfw.toml:2)"},
    {"time": 1001.0, "event": "exchange", "agent_id": "j1", "agent": "a", "destination": "https://api.example:443",
     "method": "POST", "target": "/v1", "status": 200, "bytes_up": 7, "bytes_down": 9, "seconds": 0.5, "exchange": 1},
    {"time": 1002.0, "event": "decision", "agent_id": "j2", "agent": EVIL, "allowed": False, "hook": "allow",
     "destination": "dns://bad.example:53", "rule": "policy.default: deny", "reason": EVIL, "count": 3},
    {"time": 1003.0, "event": "denied", "agent_id": "j2", "agent": EVIL, "rule": "policy.default: deny"},
    {"time": 1004.0, "event": "model_call", "agent_id": "j1", "agent": "a", "provider": "openai", "model": EVIL,
     "requested_model": "asked-7", "status": 200, "input_tokens": 7, "cost": 0.25, "currency": "USD"},
    {"time": 1005.0, "event": "job", "agent_id": "j1", "agent": "a", "what": "ended", "job": "j1", "how": "code", "code": 3,
     "usage": {"memory": 7}},
    {"time": 1006.0, "event": "pool", "what": "stopping", "by": "uid 7 pid 8"},
    {"time": 1007.0, "event": "exit", "agent_id": "j1", "agent": "a", "how": "code", "code": 3, "signal": 0, "seconds": 1.5},
    {"time": 1008.0, "event": "budget_warning", "agent": "a", "reason": "80 %", "left": 3},
]  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    data = [json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in LINES]
    (tmp_path / "audit.jsonl.1").write_bytes(b"".join(data[:5]))
    (tmp_path / "audit.jsonl").write_bytes(b"".join(data[5:]))
    return tmp_path / "audit.jsonl"


def run(capfdbinary: pytest.CaptureFixture[bytes], *arguments: object) -> tuple[int, str, str]:
    status = status_of(lambda: audit.main([str(each) for each in arguments], prog_name="agentfw audit", standalone_mode=False))
    sys.stdout.flush()
    out, err = capfdbinary.readouterr()
    return status, out.decode(), err.decode()


def jsonl(capfdbinary: pytest.CaptureFixture[bytes], *arguments: object) -> list[dict[str, Any]]:
    status, out, err = run(capfdbinary, "query", "--format", "jsonl", *arguments)
    assert (status, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_all_of_it_as_it_stands(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    status, out, _ = run(capfdbinary, "query", "--file", log, "--format", "jsonl")
    assert status == 0 and out.encode() == log.with_name("audit.jsonl.1").read_bytes() + log.read_bytes()


@pytest.mark.parametrize(
    ("options", "times"),
    [
        (("--denied",), [1002]),
        (("--denied", "--event", "denied"), [1003]),
        (("--agent", "a", "--event", "exchange", "--event", "exit"), [1001, 1007]),
        (("--job", "j2"), [1002, 1003]),
        (("--tenant", "red"), [1000]),
        (("--label", "tenant=red"), [1000]),
        (("--destination", "*.example", "--rule", "allow"), [1000]),
        (("--destination", "API.Example", "--event", "exchange"), [1001]),
        (("--destination", "HTTPS://*.Example:443", "--event", "exchange"), [1001]),
        (("--model", "*"), [1004]),
        (("--model", "asked-?"), [1004]),
        (("--model", "other"), []),
        (("--who", "uid 7"), [1006]),
        (("--since", "1970-01-01T00:16:46+00:00"), [1006, 1007, 1008]),
        (("--until", "1970-01-01T00:16:41+00:00"), [1000]),
        (("--limit", "2"), [1007, 1008]),
        (("--limit", "1", "--event", "job.ended"), [1005]),
    ],
)
def test_choosing(log: Path, capfdbinary: pytest.CaptureFixture[bytes], options: tuple[str, ...], times: list[float]) -> None:
    assert [line["time"] for line in jsonl(capfdbinary, "--file", log, *options)] == times


def test_a_table_has_a_line_each_and_nothing_that_steers(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    status, out, _ = run(capfdbinary, "query", "--file", log)
    lines = out.split("\n")
    assert status == 0 and len(lines) == len(LINES) + 2 and lines[0].split() == ["TIME", "EVENT", "AGENT", "WHAT"]
    assert all(line.isprintable() for line in lines) and "\\x1b]0;owned" in out
    assert "allowed https://api.example:443 by policy.allow: api.example (agentfw.toml:2)" in lines[1]
    assert "POST https://api.example:443/v1 -> 200 7 up 9 down 0.5 s" in lines[2]
    assert "DENIED dns://bad.example:53 (3 times) by policy.default: deny: \\x1b]0;" in lines[3]
    assert "openai" in lines[5] and "7 in" in lines[5] and "0.25 USD" in lines[5]
    assert "ended j1 code 3" in lines[6] and "stopping by uid 7 pid 8" in lines[7] and "code 3 after 1.5 s" in lines[8]
    assert "reason=80 % left=3" in lines[9]
    status, out, _ = run(capfdbinary, "query", "--file", log, "--event", "job", "--fields", "agent_id,usage.memory, labels.x")
    assert [line.split() for line in out.splitlines()] == [["AGENT_ID", "USAGE.MEMORY", "LABELS.X"], ["j1", "7"]]


def test_csv_is_no_spreadsheets_program(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    names = "time,agent,model,usage,count,labels.tenant"
    status, out, _ = run(capfdbinary, "query", "--file", log, "--format", "csv", "--fields", names)
    title, *rows = csv.reader(io.StringIO(out))
    assert status == 0 and title == names.split(",") and len(rows) == len(LINES)
    assert rows[0] == ["1000.0", "a", "", "", "", "red"] and rows[5][3] == '{"memory":7}' and rows[2][4] == "3"
    assert rows[4][2].startswith("\\x1b]0;") and all(cell.isprintable() for row in rows for cell in row)
    log.write_text(json.dumps({"time": 2000, "event": "x", "agent": "=1+1", "model": "-2"}) + "\n")
    assert "'=1+1,'-2" in run(capfdbinary, "query", "--file", log, "--format", "csv", "--fields", "agent,model")[1]
    assert run(capfdbinary, "query", "--file", log, "--fields", "agent,model")[1].splitlines()[-1].split() == ["=1+1", "-2"]


def test_counting(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A line that stands for several counts as these."""
    found = jsonl(capfdbinary, "--file", log, "--by", "event", "--limit", "2")
    assert found == [{"event": "decision", "count": 4}, {"event": "budget_warning", "count": 1}]
    found = jsonl(capfdbinary, "--file", log, "--by", "host", "--by", "allowed", "--event", "decision")
    assert found == [
        {"host": "bad.example", "allowed": "false", "count": 3},
        {"host": "api.example", "allowed": "true", "count": 1},
    ]
    status, out, _ = run(capfdbinary, "query", "--file", log, "--by", "agent")
    assert status == 0 and [line.split()[0] for line in out.splitlines()] == ["COUNT", "6", "4", "1"] and out.isascii()
    _, out, _ = run(capfdbinary, "query", "--file", log, "--by", "agent", "--format", "csv")
    assert out.splitlines()[:2] == ["agent,count", "a,6"]
    status, out, err = run(capfdbinary, "query", "--file", log, "--by", "evnt\x1b", "--by", "event", "--event", "exit")
    assert (status, err) == (0, "note: none of these lines has `evnt\\x1b`\n")
    assert out.splitlines()[1].split() == ["1", "-", "exit"]
    status, out, err = run(capfdbinary, "query", "--file", log, "--fields", "evnt,event", "--event", "exit")
    assert (status, err) == (0, "note: none of these lines has `evnt`\n")


def test_a_time_that_ends_before_it_begins_is_an_error(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for since, until in (("1h", "2h"), ("1500000000", "1500000000")):
        status, out, err = run(capfdbinary, "query", "--file", log, "--since", since, "--until", until)
        assert (status, out) == (2, "") and "`--until` is not after `--since`" in err


def test_counting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentfw_audit.showing.MAX_KINDS", 10)
    counts = Counts(["x"])
    for number in range(100):
        counts.add({"x": str(number)})
    assert len(counts.found) == 11 and counts.found["(others)",] == 90


def test_lines_that_are_none_are_left_out_and_told(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with log.open("ab") as file:
        file.write(b'{"time":1,"ev\n\n[]\n\xff\xfe\x1b[31m\n' + json.dumps(LINES[0]).encode() + b'\n{"time":2,"event":"half')
    status, out, err = run(capfdbinary, "query", "--file", log, "--format", "jsonl")
    assert status == 1 and len(out.splitlines()) == len(LINES) + 1
    assert err.startswith("note: 4 lines could not be read, the first: '{") and err.strip().isprintable()
    status, out, err = run(capfdbinary, "tail", "--file", log, "-n", "2", "--format", "jsonl")
    assert (status, len(out.splitlines())) == (1, 2) and "4 lines" in err


def test_tail(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def times(*options: object) -> list[float]:
        status, out, _ = run(capfdbinary, "tail", "--file", log, "--format", "jsonl", *options)
        assert status == 0
        return [json.loads(line)["time"] for line in out.splitlines()]

    assert times() == [float(time) for time in range(1000, 1009)] and times("-n", 0) == []
    assert times("-n", 6) == [1003, 1004, 1005, 1006, 1007, 1008]
    assert times("-n", 2, "--agent", "a", "--event", "e*") == [1001, 1007]


def test_the_file_that_agentfw_toml_names(
    log: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (log.parent / "below").mkdir()
    monkeypatch.chdir(log.parent / "below")
    status, _, err = run(capfdbinary, "query")
    assert (
        status == 125
        and "no table [audit]" in err
        and "hint: give it one, `[audit]` with `file = " in err
        and "`--file FILE`" in err
    )
    (log.parent / "agentfw.toml").write_text('[audit]\nfile = "audit.jsonl"\n')
    assert run(capfdbinary, "query", "--event", "exit")[1].count("\n") == 2
    (log.parent / "other.toml").write_text('[audit]\nfile = "none.jsonl"\n')
    status, _, err = run(capfdbinary, "query", "--config", "../other.toml")
    assert status == 125 and err.startswith("error: the audit log cannot be read: No such file or directory (")


@pytest.mark.parametrize(
    "options",
    [("--since", "yesterday"), ("--label", "x"), ("--format", "xml"), ("--limit", "0"), ("--format", "jsonl", "--fields", "a")],
)
def test_mistakes(log: Path, capfdbinary: pytest.CaptureFixture[bytes], options: tuple[str, ...]) -> None:
    assert run(capfdbinary, "query", "--file", log, *options)[0] == 2


def test_whatever_stands_in_a_line_it_can_be_told() -> None:
    strange: Any
    for event in ("decision", "denied", "exchange", "flow", "question", "model_call", "exit", "job", "pool", "dropped", "other"):
        for strange in (None, 7, -1.5, "", EVIL, [], [[1]], {"a": {"b": 1}}, True):
            names = ("destination", "status", "addresses", "how", "code", "signal", "count", "allowed", "worker", "usage", "cost")
            assert isinstance(in_words({"time": 1.0, "event": event, **dict.fromkeys(names, strange)}), str)
    assert isinstance(audit, click.Group)


# ---- real terminals and processes

COMMAND = [sys.executable, "-m", "agentfw", "audit"]


def at_terminal(*arguments: object) -> bytes:
    """What a terminal is sent."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
        os.close(theirs)
        theirs = -1
        data = b""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and select.select([ours], [], [], 60)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            data += piece
        assert process.wait(30) == 0
        return data
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


@pytest.mark.parametrize("format_", ["table", "jsonl", "csv"])
def test_a_terminal_is_not_steered(log: Path, format_: str) -> None:
    data = at_terminal("query", "--file", log, "--format", format_)
    text = data.decode()
    assert len(text.splitlines()) >= len(LINES) and all(line.isprintable() for line in text.replace("\r\n", "\n").split("\n"))
    if format_ == "jsonl":
        assert [json.loads(line) for line in text.splitlines()] == LINES


def test_following_until_ctrl_c(log: Path) -> None:
    process = subprocess.Popen([*COMMAND, "tail", "-f", "-n1", "--file", str(log), "--format", "jsonl"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline()) == LINES[-1]
        with log.open("ab") as file:
            file.write(json.dumps(LINES[0]).encode() + b"\n")
        assert json.loads(process.stdout.readline()) == LINES[0]
        log.rename(log.with_name("audit.jsonl.0"))
        log.write_text(json.dumps(LINES[1]) + "\n")
        assert json.loads(process.stdout.readline()) == LINES[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def test_what_is_torn_is_told_while_following(log: Path) -> None:
    """It goes on until somebody ends it: a note at the end would never come."""
    command = [*COMMAND, "tail", "-f", "-n1", "--file", str(log), "--format", "jsonl"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    try:
        assert json.loads(process.stdout.readline()) == LINES[-1]
        with log.open("ab") as file:
            file.write(b'{"time":1,"ev\n' + json.dumps(LINES[0]).encode() + b"\n")
        assert json.loads(process.stdout.readline()) == LINES[0]
        assert process.stderr.readline() == b"note: 1 line could not be read, the first: '{\"time\":1,\"ev'\n"
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
        process.stderr.close()


def test_a_line_without_end_is_told(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Of a pool that was killed amid it."""
    with log.open("ab") as file:
        file.write(b'{"time":1,"ev')
    for command in ("query", "tail"):
        status, out, err = run(capfdbinary, command, "--file", log, "--format", "jsonl")
        assert status == 1 and json.loads(out.splitlines()[-1]) == LINES[-1] and err.startswith("note: 1 line could not be read")


def test_whose_reader_goes_away(log: Path) -> None:
    with log.open("ab") as file:
        for _ in range(20_000):
            file.write(json.dumps(LINES[1]).encode() + b"\n")
    process = subprocess.Popen([*COMMAND, "query", "--file", str(log)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(30) == 141
    process.stderr.close()


def test_of_a_compressed_file_the_last_lines_are_held_not_all(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A megabyte of it may be a gigabyte."""
    line = b'{"time":1.0,"event":"x","agent":"%b","pad":"%b"}\n'
    with gzip.open(f"{log}.2.gz", "wb") as file:
        for number in range(30_000):
            file.write(line % (b"b" if number % 3 else b"c", b"y" * 1000))
    tracemalloc.start()
    try:
        status, out, err = run(capfdbinary, "tail", "--file", log, "-n", 4, "--agent", "c", "--format", "jsonl")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (status, err) == (0, "") and [json.loads(each)["agent"] for each in out.splitlines()] == ["c"] * 4
    assert most < 10 << 20


def test_a_full_disk_behind_standard_output_is_no_fault_of_the_log(log: Path) -> None:
    command = [sys.executable, "-m", "agentfw", "audit", "query", "--file", str(log)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 125 and done.stderr == b"error: standard output cannot be written: No space left on device\n"
