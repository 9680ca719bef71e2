"""What the tests share: the command itself, and `kvm` tests that skip loudly where there is no /dev/kvm."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from . import debian

# A machine that does other things for 0.2 s is no fault of the example that runs meanwhile, nor of what makes examples.
settings.register_profile("agentfw", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("agentfw")

# A shell that runs us in the background has them ignored, as `nohup` has, and so would all have that tests start and signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

_skipped = 0
WITHOUT_TESTS = "CPython's own tests (libpython3-testsuite)"
"""In the reason of a test that is skipped since no Python here has them, which a whole run's end shows."""


def _kvm_trouble() -> str | None:
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/kvm: {error.strerror}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    global _skipped
    trouble = _kvm_trouble()
    if trouble is None:
        return
    for item in items:
        if item.get_closest_marker("kvm"):
            item.add_marker(pytest.mark.skip(reason=trouble))
            _skipped += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _skipped:
        terminalreporter.section("KVM", sep="!", red=True)
        terminalreporter.line(f"{_skipped} tests that need /dev/kvm did NOT run: {_kvm_trouble()}", red=True)
    for name, reason in debian.MISSING.items():
        terminalreporter.section(name, sep="!", red=True)
        terminalreporter.line(f"the tests with a real {name} did NOT run: {reason}", red=True)
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple) and WITHOUT_TESTS in report.longrepr[2]:
            terminalreporter.section("CPython's own tests", sep="!", red=True)
            terminalreporter.line(f"{report.nodeid} did NOT run: {report.longrepr[2].removeprefix('Skipped: ')}", red=True)


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Whatever a test's commands started must have ended with them: orphans become children of this process, and are seen."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    before = _children()
    yield
    deadline = time.monotonic() + 20
    while (left := _children() - before) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)
    names = {}
    for pid in left:
        with contextlib.suppress(OSError):  # it has ended now
            names[pid] = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ")
    assert not names, "left running"


def _ticks() -> dict[str, int]:
    """CPU time of each thread of ours, in clock ticks (proc(5))."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            found[task.name] = int(fields[11]) + int(fields[12])
    return found


@pytest.fixture(scope="session", autouse=True)
def no_thread_spins() -> Iterator[None]:
    """A test's server that goes round and round at a connection's end takes half of the machine from all tests behind it."""
    yield
    time.sleep(0.2)
    busy = _busy()
    for _ in range(4):  # one that collects garbage, or ends what it was at, does not go on with it
        busy &= _busy() if busy else set()
    names = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    assert not busy, f"threads that never end: {[names.get(task, task) for task in busy]}"


def _busy() -> set[str]:
    """Threads that use a tenth of a core and more, for half a second."""
    before = _ticks()
    time.sleep(0.5)
    return {task for task, ticks in _ticks().items() if ticks - before.get(task, ticks) > 5 and task != str(os.getpid())}


Agentfw = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Without what asyncio says of tasks and connections that earlier tests left: they go whenever there is a collection."""

    def ours(record: logging.LogRecord) -> bool:
        return record.name != "asyncio"

    caplog.handler.addFilter(ours)
    yield caplog
    caplog.handler.removeFilter(ours)


@pytest.fixture(autouse=True)
def log_level_as_before() -> Iterator[None]:
    """Commands that run in this process set it for all that come after them."""
    log = logging.getLogger("agentfw")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(scope="session")
def agentfw_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of commands under test: a snapshot cache of their own, shared by the session, and nothing of the user's."""
    cache = tmp_path_factory.mktemp("cache")
    yield {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path_factory.mktemp("home")),
        "XDG_CACHE_HOME": str(cache),
        "LANG": "C.UTF-8",
    }
    shutil.rmtree(cache, ignore_errors=True)


COMMAND = [sys.executable, "-P", "-c", "from agentfw.cli import main; main()"]


@pytest.fixture
def agentfw(agentfw_environment: dict[str, str], tmp_path: Path, nothing_left: None) -> Agentfw:
    """`agentfw(*arguments, input=..., cwd=..., env=...)` runs the command to its end."""

    def run(
        *arguments: object, input: str = "", cwd: Path = tmp_path, env: dict[str, str] | None = None, timeout: float = 280
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            input=input,
            cwd=cwd,
            env={**agentfw_environment, **(env or {})},
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout,
        )

    return run
