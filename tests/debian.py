"""Programs of Debian's for tests: the installed ones, or unpacked into a cache directory; nothing on the machine changes."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

MISSING: dict[str, str] = {}
"""Why a program could not be had, for the summary."""
_APT = ["apt-get", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=20"]
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Program:
    path: str
    environment: dict[str, str]


def program(name: str, package: str) -> Program | None:
    """An executable of a Debian package; None, with the reason in MISSING, if there is no way to it."""
    if name in MISSING:
        return None
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SBIN}")
    if found:
        return Program(found, dict(os.environ))
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentfw-tests" / "debian" / package
    try:
        base.mkdir(parents=True, exist_ok=True)
        with (base / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (base / "complete").exists():
                _fetch(package, base)
                (base / "complete").touch()
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or b""
        MISSING[name] = f"{error} {output.decode(errors='replace').strip()[-300:]}".replace("\n", " ")
        return None
    for directory in ("usr/sbin", "usr/bin", "sbin", "bin"):
        if (base / "root" / directory / name).exists():
            libraries = ":".join(dict.fromkeys(str(path.parent) for path in sorted((base / "root").rglob("*.so*"))))
            return Program(str(base / "root" / directory / name), {**os.environ, "LD_LIBRARY_PATH": libraries})
    MISSING[name] = f"Debian's {package} has no {name}"
    return None


def _fetch(package: str, base: Path) -> None:
    """The package and what it needs that is not installed."""
    shutil.rmtree(base / "root", ignore_errors=True)
    (base / "root").mkdir()
    for attempt in (1, 2):
        try:
            plan = _run([*_APT, "install", "-s", "-qq", "--no-install-recommends", package], base)
            names = re.findall(r"^Inst (\S+)", plan, re.MULTILINE)
            _run([*_APT, "download", "-q", *names], base)
            break
        except subprocess.CalledProcessError:
            if attempt == 2 or os.geteuid():
                raise
            _run([*_APT, "update", "-qq"], base)  # the lists are missing, or too old
    for file in base.glob("*.deb"):
        _run(["dpkg", "-x", str(file), str(base / "root")], base)
        file.unlink()


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, timeout=120, check=True, stdin=subprocess.DEVNULL)
    return done.stdout.decode(errors="replace")
