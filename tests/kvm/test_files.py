"""Python's own file modules in a VM, beside the same under plain `python`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.kvm
PROBE = Path(__file__).with_name("files_probe.py")


@pytest.mark.parametrize("where", ["tmp", "mount"])
def test_as_natively(where: str, tmp_path: Path, agentfw: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "native").mkdir()
    (tmp_path / "shared").mkdir()
    probe = shutil.copy(PROBE, tmp_path / "program")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    native = subprocess.run(
        [sys.executable, str(probe), str(tmp_path / "native")], env=environment, capture_output=True, text=True, timeout=60
    )
    assert native.returncode == 0, native.stderr
    mounts = ["--mount", f"{tmp_path}/shared:/data:rw"] if where == "mount" else []
    got = agentfw(
        "run", "--no-config", "--plugins", "", *mounts, str(probe), "/data" if where == "mount" else "/tmp", cwd=tmp_path
    )
    assert (got.stdout.splitlines(), got.returncode) == (native.stdout.splitlines(), 0), got.stderr
    assert list((tmp_path / "shared").iterdir()) == []


def test_nothing_else_of_the_host(tmp_path: Path, agentfw: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Secrets beside the program, in homes and in /etc; the host's processes and devices: by name, `..`, links, descriptors."""
    program = tmp_path / "program"
    program.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("the host's secret")
    (program / "link").symlink_to(secret)
    (program / "up").symlink_to("..")
    (program / "proc").symlink_to("/proc/self/root")
    os.mkfifo(program / "fifo")
    home = Path("~").expanduser()
    paths = [
        *[
            str(secret),
            "link",
            "up/secret",
            "../secret",
            "proc" + str(secret),
            "/proc/self/cwd/../secret",
            "fifo",
            *["../" * 30 + str(secret)[1:]],
        ],
        *[
            "/etc/shadow",
            "/etc/../etc/shadow",
            "/proc/1/environ",
            f"/proc/{os.getpid()}/environ",
            "/proc/self/mem",
            "/proc/kcore",
            "/dev/kvm",
        ],
        *[
            "/dev/mem",
            "/sys/kernel/notes",
            "/run/docker.sock",
            "/var/log",
            "/boot",
            str(home / ".ssh"),
            str(home / ".bashrc"),
            "/root/.ssh",
        ],
    ]
    (program / "look.py").write_text(
        f"""
import os
for path in {paths!r}:
    for flags in (os.O_RDONLY, os.O_PATH, os.O_RDWR, os.O_WRONLY):
        try:
            fd = os.open(path, flags | os.O_NONBLOCK)
        except OSError:
            continue
        seen = os.readlink(path) if os.path.islink(path) else "fifo" if path == "fifo" else None
        if flags == os.O_PATH and seen:
            continue
        print("OPENED", path, flags)
    try:
        print("LISTED", path, os.listdir(path))
    except OSError:
        pass
print(sorted(os.listdir(".")), sorted(os.listdir("..")))
print([name for name in os.environ if name.startswith("AGENTFW_TEST")])
print(b"AGENTFW_TEST" in open("/proc/self/environ", "rb").read())
"""
    )
    environment = os.environ | {"AGENTFW_TEST_SECRET": "x"}
    got = agentfw("run", "--no-config", "--plugins", "", "look.py", cwd=program, env=environment)
    assert got.returncode == 0, got.stderr
    names = ["fifo", "link", "look.py", "proc", "up"]
    assert got.stdout.splitlines() == [f"{names} ['program']", "[]", "False"]
    assert secret.read_text() == "the host's secret"
