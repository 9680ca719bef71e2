"""No two VMs have the same random numbers: restored in one command and in two, put back after their end, copied."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from agentfw.dispatch import Job, default_environment
from agentfw.snapshots import cell_config
from agentfw_vmm import Cell

from tests.conftest import Agentfw

from .forks import Agent, Watch, forks

pytestmark = pytest.mark.kvm

ROOT = Path(__file__).parents[2]
PROBE = ROOT / "tests/guest/unique_probe.py"
PRELOAD = "uuid,multiprocessing.process,tempfile,secrets,ssl,email.utils,email.generator,concurrent.futures,hashlib"


def values(lines: list[str]) -> list[dict[str, str]]:
    """What each VM said, of several whose lines came mixed: n-th lines of a name are told apart by their order."""
    found: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(" ")
        found.setdefault(name, []).append(value)
    counts = {len(each) for each in found.values()}
    assert len(counts) == 1, found
    return [dict(zip(found, each, strict=True)) for each in zip(*found.values(), strict=True)]


def all_differ(vms: list[dict[str, str]], but: tuple[str, ...] = ()) -> None:
    for name in vms[0]:
        if not name.startswith("*") and name not in but:
            assert len({vm[name] for vm in vms}) == len(vms), (name, vms)


def test_two_commands(agentfw: Agentfw) -> None:
    """The second finds the snapshot that the first made, and its VMs have the same pids."""
    command = ("run", "-q", "--no-config", "--plugins", "", "--preload", PRELOAD, "-n", "2", str(PROBE))
    before = time.time(), time.monotonic()
    first = values(agentfw(*command).stdout.splitlines())
    between = time.time(), time.monotonic()
    second = values(agentfw(*command).stdout.splitlines())
    after = time.time(), time.monotonic()
    all_differ(first)
    all_differ(first + second, ("pid",))
    for vms, since, until in ((first, before, between), (second, between, after)):
        for vm in vms:
            assert since[0] <= float(vm["*time"]) <= until[0]
            assert since[1] <= float(vm["*monotonic"]) <= until[1]


def test_a_vm_that_is_put_back(agentfw_environment: dict[str, str]) -> None:
    """The same VM, three lives: clocks go on, all else is new."""

    async def main() -> list[dict[str, str]]:
        async with forks(agentfw_environment) as every:
            config = cell_config(every.template, vms=1, runners=1, snapshot_in=every.snapshot, key=every.key, recycle=True)
            watch = Watch()
            cell = await Cell.start(config, watch)
            every.cells.append(cell)
            lives = []
            for pid in range(3000, 3003):
                agent = Agent(cell, watch, 0)
                cell.restore(0, pid)
                await cell.stream(0, 3).send(Job("code", PROBE.read_text(), (), default_environment(), "/tmp").frame("ack"))
                lines = [await agent.line()]
                while not lines[-1].startswith("*monotonic"):
                    lines.append(await agent.line())
                await agent.end()
                assert cell.statistics(0).recycled == (pid > 3000)
                lives += values(lines)
            return lives

    lives = asyncio.run(main())
    all_differ(lives)
    for one, next_one in itertools.pairwise(lives):
        assert float(one["*monotonic"]) <= float(next_one["*monotonic"]) and float(one["*time"]) <= float(next_one["*time"])


EARLY = """
import ssl, uuid
TIME = uuid.uuid1()
SERVER = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
"""
KEYS = """
import ctypes, hashlib, uuid, _ssl, early
control = ctypes.CDLL(_ssl.__file__).SSL_CTX_ctrl
control.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p
context = ctypes.c_void_p.from_address(id(early.SERVER) + 16).value
keys = ctypes.create_string_buffer(control(context, 58, 0, None))
print("tickets", control(context, 58, len(keys), keys), hashlib.sha256(keys).hexdigest())
print("zeros", len(keys.raw.strip(bytes(1))) < 70, uuid.uuid4())
time = uuid.uuid1()
print("uuid1", f"{time.node:x}-{time.clock_seq:x}")
print("*early", early.TIME)
"""


def test_what_modules_made_before_the_snapshot(agentfw: Agentfw, tmp_path: Path) -> None:
    """Keys of a server's session tickets; the node and the clock of uuid1(), which libuuid draws once a process."""
    place = tmp_path / "modules"  # not beside the program
    place.mkdir()
    (place / "early.py").write_text(EARLY)
    options = ("--preload", "early", "--env", f"PYTHONPATH={place}", "--mount", f"{place}:{place}")
    done = agentfw("run", "-q", "--no-config", "--plugins", "", *options, "-n", "3", "-c", KEYS)
    vms = values(done.stdout.splitlines())
    assert len(vms) == 3, done.stderr
    all_differ(vms)
    assert len({vm["*early"] for vm in vms}) == 1
    assert all(vm["tickets"].startswith("1 ") and vm["zeros"].startswith("False ") for vm in vms)


def scanner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("uniqueness", ROOT / "bench/uniqueness.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


WATCHING = """
import builtins, http.client, socket, sys, threading
SEEN, CALLS = set(), []
def profile(frame, event, arg): SEEN.add(frame.f_code.co_filename.rpartition("/")[2])
def noted(place, name):
    real = getattr(place, name)
    def call(*args, **kwargs):
        CALLS.append(name)
        return real(*args, **kwargs)
    setattr(place, name, call)
noted(builtins, "compile"); noted(socket, "create_server"); noted(http.client.HTTPConnection, "request"); noted(socket, "getaddrinfo")
MAIN = sorted(vars(sys.modules["__main__"]).keys() & {"PRACTICE", "practice"})
threading.setprofile(profile)
sys.setprofile(profile)
"""


def test_what_is_practised_is_not_seen_by_what_is_preloaded(agentfw: Agentfw, tmp_path: Path) -> None:
    """A module that traces, or puts its own functions in the place of others, as coverage and APM agents do."""
    place = tmp_path / "modules"
    place.mkdir()
    (place / "watching.py").write_text(WATCHING)
    options = ("--preload", "watching", "--env", f"PYTHONPATH={place}", "--mount", f"{place}:{place}")
    code = "import sys; sys.setprofile(None); import watching as w; print('practice_calls.py' in w.SEEN, 'bootstrap.py' in w.SEEN, w.CALLS)"
    done = agentfw("run", "-q", "--no-config", "--plugins", "", *options, "-c", code)
    seen, ours, calls = done.stdout.split(maxsplit=2)
    assert (seen, ours) == ("False", "True"), done.stderr
    assert calls.count("compile") <= 2 and not set(re.findall(r"\w+", calls)) - {"compile"}


def test_the_scanner_finds_what_two_vms_share(tmp_path: Path) -> None:
    """A module draws a key as it is imported, before the snapshot: that is found, and nothing else (multiprocessing draws one, too,
    and frees what that was made of)."""
    (tmp_path / "planted.py").write_text("import os\nSECRET = os.urandom(64)\n")
    options = ["--env", f"PYTHONPATH={tmp_path}", "--mount", f"{tmp_path}:{tmp_path}", "--preload", "multiprocessing,planted"]
    uniqueness = scanner()
    size, found = uniqueness.scan(options)
    assert size > 10_000_000
    unknown = [each for each in found if not each.reason]
    assert len(unknown) == 1 and 48 <= len(unknown[0].data) < 64 + 2 * 16, unknown
    reasons = {each.reason for each in found} - {""}  # by chance one of them may not look random
    assert reasons and reasons <= {
        "AT_RANDOM: the C library's stack protector and pointer guard",
        "a pointer under the C library's guard",
        "malloc's mark of freed pieces",
    }


def test_what_looks_random() -> None:
    looks_random = scanner().looks_random
    assert looks_random(bytes.fromhex("b57c9006c60703e33b757cfb10b7a013"))
    for data in (bytes(16), b"a pointer is not", bytes.fromhex("4039820300000000a8f0110100000000"), b"\xff" * 16, b"ab" * 8):
        assert not looks_random(data)


def test_the_probe_is_about_all_of_it() -> None:
    """Natively two processes differ in all of it, too: what the probe says is not the same by its own doing."""
    told = [
        subprocess.run([sys.executable, PROBE], capture_output=True, text=True, timeout=60, check=True).stdout for _ in range(2)
    ]
    all_differ([values(text.splitlines())[0] for text in told], ("boot_id",))
    names = set(re.findall(r"^(\S+) ", told[0], re.MULTILINE))
    assert {"random", "os.urandom", "uuid1", "uuid4", "secrets", "ssl", "tempfile", "pid", "authkey"} <= names
