"""The bootstrap natively, with a fake /dev/agentfw: whatever it runs must look and end as it does under plain `python`."""

from __future__ import annotations

import json
import marshal
import os
import re
import socket
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from agentfw import dispatch

from . import probes

HERE = Path(__file__).parent
BOOTSTRAP = HERE.parents[1] / "core/agentfw/guest/bootstrap.py"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/", "PYTHONPATH": str(HERE / "fake_device")}


def job(arguments: list[str], directory: Path) -> dict[str, Any]:
    """What the fleet makes of a command line; cli/run.py has the real one."""
    common = {"env": marshal.dumps(sorted(ENVIRONMENT.items()), 2), "cwd": str(directory), "ack": "0123", "orig_argv": arguments}
    match arguments:
        case ["-m", module, *_]:
            return {**common, "mode": "module", "module": module, "argv": ["-m", *arguments[2:]]}
        case ["-c", code, *_]:
            return {**common, "mode": "code", "code": code, "argv": ["-c", *arguments[2:]]}
        case ["-", *_]:
            return {**common, "mode": "stdin", "argv": arguments}
    return {**common, "mode": "script", "path": arguments[0], "argv": arguments}


def frame(value: object) -> bytes:
    body = marshal.dumps(value, 2)
    return struct.pack("<I", len(body)) + body


def received(ours: socket.socket) -> object:
    (size,) = struct.unpack("<I", ours.recv(4, socket.MSG_WAITALL))
    return json.loads(ours.recv(size, socket.MSG_WAITALL))


def bootstrapped(
    arguments: list[str] | dict[str, Any], stdin: str, directory: Path, env: dict[str, str] | None = None, rest: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """`arguments`: a command line or a job; `env`: more variables of the template; `rest`: what follows the job's frame."""
    ours, theirs = socket.socketpair()
    task = job(arguments, directory) if isinstance(arguments, list) else arguments
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, BOOTSTRAP], cwd="/", pass_fds=[theirs.fileno()],
            env={**ENVIRONMENT, **(env or {}), "FAKE_DEVICE": str(theirs.fileno())},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        theirs.close()
        ours.settimeout(60)
        assert received(ours) == {"warm": process.pid}  # before there is a job
        ours.sendall(frame(task) + rest)
        out, err = process.communicate(stdin.encode(), timeout=60)
        assert received(ours) == {"ready": "0123", "pid": process.pid}
        assert ours.recv(1) == b""
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


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


HOOKS = """
import logging, os, random, sys, threading
import concurrent.futures.thread

bootstrap = sys.modules["__main__"]
said = []
os.register_at_fork(before=lambda: said.append("first before"), after_in_child=lambda: said.append("first after"))

def broken():
    raise RuntimeError("this hook is broken")

os.register_at_fork(before=lambda: said.append("second before"), after_in_child=broken)
os.register_at_fork(after_in_child=lambda: said.append("third after"))
if "keep_a_thread" in os.environ:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@pytest.mark.parametrize("thread", [False, True])
def test_hooks_of_modules_in_the_template(tmp_path: Path, thread: bool) -> None:
    """Those that others registered run as around fork(), in its order, and a broken one is told; with more threads than one, all of
    what a child does is done."""
    library, work = tmp_path / "library", tmp_path / "work"
    work.mkdir()
    library.mkdir()
    (library / "hooked.py").write_text(HOOKS)
    code = (
        "import hooked, logging, os, threading, concurrent.futures as f; print(hooked.said, hooked.bootstrap is not None);"
        "main = threading.main_thread(); print(main.native_id == os.getpid(), main is threading.current_thread());"
        "logging.warning('logged'); print(list(f.ThreadPoolExecutor(2).map(abs, [-1, -2]))); os.register_at_fork(before=print)"
    )
    more = {"AGENTFW_PRELOAD": "hooked", "PYTHONPATH": f"{HERE / 'fake_device'}:{library}"}
    done = bootstrapped(["-c", code], "", work, {**more, "keep_a_thread": "1"} if thread else more)
    assert done.stdout.decode().splitlines() == [
        "['second before', 'first before', 'first after', 'third after'] True",
        "True True",
        "[1, 2]",
    ]
    assert b"this hook is broken" in done.stderr and b"logged" in done.stderr and done.returncode == 0


def test_an_environment_that_is_not_the_templates(tmp_path: Path) -> None:
    code = "import os, time; print(sorted(os.environ.items()), os.getenv('A'), time.tzname, os.popen is not None)"
    theirs = {"A": "1", "TZ": "XYZ-3", "LANG": "C.UTF-8", "EMPTY": "", "odd\udcff": "\udcfe"}
    task = {**job(["-c", code], tmp_path), "env": marshal.dumps(sorted(theirs.items()), 2)}
    done = bootstrapped(task, "", tmp_path)
    expected = subprocess.run([sys.executable, "-c", code], env=theirs, capture_output=True, check=True, timeout=60)
    assert plain(done.stdout) == plain(expected.stdout) and done.returncode == 0


def test_files_are_laid_before_it_runs(tmp_path: Path) -> None:
    files = {
        "main.py": b"import pkg.part; print(open('data').read(), pkg.part.X)",
        "data": b"d" * 100_000,
        "pkg/part.py": b"X = 1",
        "no": b"",
    }
    task = {**job(["main.py"], tmp_path), "files": [(path, len(data)) for path, data in files.items()]}
    done = bootstrapped(task, "", tmp_path, rest=b"".join(files.values()))
    assert done.stdout == b"d" * 100_000 + b" 1\n" and done.returncode == 0
    assert {path: (tmp_path / path).read_bytes() for path in files} == files


@pytest.mark.parametrize("target", [["main.py"], ["-m", "main"], ["-c", "import main"]])
def test_what_the_worker_says_is_beside_the_program(target: list[str], tmp_path: Path) -> None:
    """Its files come before modules that the template has; nothing that it does not name is looked for. A script is run as it was
    sent, whatever else becomes of the file."""
    (tmp_path / "textwrap.py").write_text("mine = 'not named'")
    files = {
        "main.py": b"import csv, statistics, textwrap\nprint(csv.mine, statistics.mine, hasattr(textwrap, 'mine'), __file__[-7:])",
        "csv.py": b"mine = 1",
        "statistics/__init__.py": b"mine = 2",
    }
    task = job(target, tmp_path)
    more = {"files": [(path, len(data)) for path, data in files.items()], "beside": ["csv.py", "main.py", "statistics"]}
    done = bootstrapped({**task, **more}, "", tmp_path, rest=b"".join(files.values()))
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"1 2 False main.py\n")


def test_a_job_says_what_is_beside_it_where_that_is_known(tmp_path: Path) -> None:
    def beside(mode: Any, target: str, alone: bool = True) -> object:
        told = dispatch.Job(mode, target, (), {}, "/job", files={"b/c.py": b"", "b/d.py": b"", "a.py": b""}, alone=alone)
        body = told.frame("0")
        return marshal.loads(body[4:]).get("beside")

    assert beside("script", "a.py") == beside("module", "b.c") == beside("code", "") == ["a.py", "b"]
    assert beside("script", "b/c.py") is None, "it is another directory that comes first"
    assert beside("script", "/opt/x.py") is None and beside("code", "", alone=False) is None


@pytest.mark.parametrize("tail", ["", "comment" * 1000])
def test_an_archive_under_any_name(tmp_path: Path, tail: str) -> None:
    with zipfile.ZipFile(tmp_path / "app", "w") as archive:
        archive.writestr("__main__.py", "import sys; print('in it', sys.argv)")
        archive.comment = tail.encode()
    expected = native([str(tmp_path / "app"), "x"], "", tmp_path)
    got = bootstrapped([str(tmp_path / "app"), "x"], "", tmp_path)
    assert (got.stdout, got.returncode) == (expected.stdout, 0) and b"in it" in got.stdout


def test_calls_are_practised_over_the_offload(tmp_path: Path) -> None:
    """All of them, by the host's half of TLS as agents' are, and nothing of them is left."""
    code = """if True:
        import ssl_offload; ssl_offload.install()
        import gc, socket, offload_client, offload_local, practice_calls
        local, client, made = offload_local.local_peer, offload_client.Client._preface, []
        offload_client.Client._preface = lambda self: made.append(1) or client(self)
        assert practice_calls.practise() == practice_calls.TIMES == len(made)
        assert offload_local.local_peer is local
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, (socket.socket, offload_client.Client))]
        print("practised")"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env={"PYTHONPATH": str(BOOTSTRAP.parent)}, capture_output=True, timeout=60
    )
    assert (done.stdout, done.stderr) == (b"practised\n", b"")


def test_a_program_does_not_see_our_modules(tmp_path: Path) -> None:
    """It may have some of its own by these names."""
    code = "import sys; print([name for name, module in sys.modules.items() if '/agentfw/guest/' in (getattr(module, '__file__', '') or '')])"
    done = bootstrapped(["-c", code], "", tmp_path)
    assert (done.stdout, done.stderr) == (b"[]\n", b"")


def test_what_only_the_start_of_a_template_needs(tmp_path: Path) -> None:
    """Each of these is gone before anything is compared with a job's environment: else no job's would be the template's."""
    start = dispatch.template_environment({})
    only = set(start) - set(dispatch.default_environment())
    source = BOOTSTRAP.read_text()
    assert only and all(f'"{name}"' in source.split("START_ONLY = (")[1].split("\n")[0] for name in only)
    done = bootstrapped(["-c", "import os; print(sorted(os.environ))"], "", tmp_path, {name: start[name] for name in only})
    assert done.stdout.decode().strip() == str(sorted(ENVIRONMENT))
