"""The bootstrap natively, with a fake /dev/agentfw: whatever it runs must look and end as it does under plain `python`."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import probes

HERE = Path(__file__).parent
BOOTSTRAP = HERE.parents[1] / "core/agentfw/guest/bootstrap.py"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/", "PYTHONPATH": str(HERE / "fake_device")}


def job(arguments: list[str], directory: Path) -> dict[str, Any]:
    """What the fleet makes of a command line; cli/run.py has the real one."""
    common = {"env": ENVIRONMENT, "cwd": str(directory), "ack": "0123", "orig_argv": arguments}
    match arguments:
        case ["-m", module, *_]:
            return {**common, "mode": "module", "module": module, "argv": ["-m", *arguments[2:]]}
        case ["-c", code, *_]:
            return {**common, "mode": "code", "code": code, "argv": ["-c", *arguments[2:]]}
        case ["-", *_]:
            return {**common, "mode": "stdin", "argv": arguments}
    return {**common, "mode": "script", "path": arguments[0], "argv": arguments}


def frame(value: object) -> bytes:
    body = json.dumps(value).encode()
    return struct.pack("<I", len(body)) + body


def received(ours: socket.socket) -> object:
    (size,) = struct.unpack("<I", ours.recv(4, socket.MSG_WAITALL))
    return json.loads(ours.recv(size, socket.MSG_WAITALL))


def bootstrapped(arguments: list[str], stdin: str, directory: Path) -> subprocess.CompletedProcess[bytes]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, BOOTSTRAP], cwd="/", pass_fds=[theirs.fileno()], env={**ENVIRONMENT, "FAKE_DEVICE": str(theirs.fileno())},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        theirs.close()
        ours.settimeout(60)
        assert received(ours) == {"warm": process.pid}  # before there is a job
        ours.sendall(frame(job(arguments, directory)))
        out, err = process.communicate(stdin.encode(), timeout=60)
        assert received(ours) == {"ready": "0123", "pid": process.pid}
        assert ours.recv(1) == b""
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def native(arguments: list[str], stdin: str, directory: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *arguments], input=stdin.encode(), cwd=directory, env=ENVIRONMENT, capture_output=True, timeout=60
    )


def plain(data: bytes) -> str:
    """Without object addresses, and without the frames that the bootstrap itself takes of the recursion limit."""
    return re.sub(r"0x[0-9a-f]+|repeated 9\d\d more", "...", data.decode("utf-8", "backslashreplace"))


@pytest.mark.parametrize("name", probes.CASES)
def test_as_natively(name: str, tmp_path: Path) -> None:
    probes.write(tmp_path)
    arguments, stdin = probes.CASES[name]
    arguments = [argument.format(dir=tmp_path) if argument.startswith("{dir}") else argument for argument in arguments]
    expected, got = native(arguments, stdin, tmp_path), bootstrapped(arguments, stdin, tmp_path)
    assert (plain(got.stderr), plain(got.stdout), got.returncode) == (
        plain(expected.stderr),
        plain(expected.stdout),
        expected.returncode,
    )


def test_what_was_not_flushed_is_written(tmp_path: Path) -> None:
    probes.write(tmp_path)
    got = bootstrapped(["unflushed.py", str(tmp_path / "f")], "", tmp_path)
    assert (got.stdout, got.returncode) == (b"no newlinegone\n", 0)
    assert (tmp_path / "f").read_text() == "text without close" and (tmp_path / "f.bin").read_bytes() == b"bytes"


def test_a_worker_that_goes_away_ends_it(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen([sys.executable, BOOTSTRAP], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                   env={**ENVIRONMENT, "FAKE_DEVICE": str(theirs.fileno())})  # fmt: skip
    ours.close()
    assert process.wait(30) == 125


def test_two_vms_of_one_snapshot_differ(tmp_path: Path) -> None:
    """Forked at the stop instead of restored: the state that a snapshot carries is the same, what is drawn from it is not."""
    code = "import random, secrets, uuid, tempfile; print(random.random(), secrets.token_hex(), uuid.uuid4(), next(tempfile._get_candidate_names()))"
    (tmp_path / "seen.py").write_text(code)
    seen = {bootstrapped(["seen.py"], "", tmp_path).stdout for _ in range(2)}
    assert len(seen) == 2
    assert os.environ.get("FAKE_DEVICE") is None
