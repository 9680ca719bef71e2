"""Every CPython 3.11 to 3.14 that this machine has, in a VM beside itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..guest import probes
from .test_differential import ENVIRONMENT, plain

pytestmark = pytest.mark.kvm

CASES = (
    "facts",
    "raises",
    "syntax",
    "exit text",
    "interrupt",
    "threads",
    "module",
    "code raises",
    "stdin raises",
    "chained",
    "randoms",
)
MODULES = """
import sys, ssl, asyncio, threading, sqlite3, decimal, lzma, zoneinfo, platform, locale, socket, hashlib, ctypes
print(sys.version, sys.executable, sys.prefix, ssl.OPENSSL_VERSION, sys.path)
print(zoneinfo.ZoneInfo("Europe/Berlin"), locale.setlocale(locale.LC_ALL, ""), hashlib.sha3_256(b"").hexdigest()[:8])
print(ssl.create_default_context().verify_mode, asyncio.run(asyncio.sleep(0, "ok")), sqlite3.connect(":memory:").execute("select 1").fetchone())
import logging, concurrent.futures.thread
for uses_a_lock in (lambda: logging.getLogger("new"), lambda: concurrent.futures.ThreadPoolExecutor().submit(print, "submitted").result()):
    thread = threading.Thread(target=uses_a_lock, daemon=True)
    thread.start()
    thread.join(20)
    print("hangs" if thread.is_alive() else "goes on", flush=True)
"""


def interpreters() -> list[str]:
    """One of each version, without the one that runs the tests."""
    found: dict[str, str] = {}
    places = [
        Path("/usr/bin"),
        Path("/usr/local/bin"),
        *map(Path, os.environ["PATH"].split(":")),
        *Path.home().glob(".pyenv/versions/*/bin"),
    ]
    for place in places:
        for name in ("python3.11", "python3.12", "python3.13", "python3.14"):
            file = place / name
            if file.is_file() and ".pyenv/shims" not in str(file) and file.resolve() != Path(sys.executable).resolve():
                found.setdefault(name, str(file))
    return list(found.values())


@pytest.mark.parametrize("python", interpreters() or [pytest.param("", marks=pytest.mark.skip(reason="no other CPython here"))])
def test_as_natively(python: str, tmp_path: Path, agentfw: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    usable = subprocess.run([python, "-c", MODULES], capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    if usable.returncode:
        pytest.skip(f"{python} lacks modules: {usable.stderr.splitlines()[-1]}")
    probes.write(tmp_path)
    (tmp_path / "modules.py").write_text(MODULES)
    for arguments, stdin in [*(probes.CASES[name] for name in CASES), (["modules.py"], "")]:
        native = subprocess.run(
            [python, *arguments], input=stdin, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
        )
        got = agentfw("run", "--no-config", "--plugins", "", "--python", python, *arguments, input=stdin, cwd=tmp_path)
        status = native.returncode if native.returncode >= 0 else 128 - native.returncode
        assert (plain(got.stderr), plain(got.stdout), got.returncode) == (plain(native.stderr), plain(native.stdout), status), (
            arguments
        )
    assert re.match(r"3\.1[1-4]\.", got.stdout)
