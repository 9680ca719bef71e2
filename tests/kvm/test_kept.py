"""What a VM keeps of the host's files (docs/internals.md, "Descriptors"): who hears of a change sees it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import COMMAND

pytestmark = pytest.mark.kvm
PROBE = Path(__file__).with_name("kept_probe.py")
ROUNDS = 40
MANY = 50  # files that are looked at in order


class Changes:
    """Of the files in a directory, a round at a time, and then word of it."""

    def __init__(self, top: Path, way: str) -> None:
        self.top = top
        self.way = way
        self.locks: list[int] = []
        (top / "result").write_bytes(b"")
        (top / "other").write_bytes(b"")
        (top / "link").symlink_to("other")
        (top / "counter").write_text("-1")
        (top / "many").mkdir()
        for n in range(MANY):
            (top / f"many/{n}.txt").touch()
        for n in range(ROUNDS):
            (top / f"old{n}").write_text("x")
            if way == "lock":
                self.locks.append(os.open(top / f"lock{n}", os.O_RDWR | os.O_CREAT))
                fcntl.flock(self.locks[-1], fcntl.LOCK_EX)

    def make(self, n: int) -> None:
        with (self.top / "result").open("ab") as file:
            file.write(b"x")
        with (self.top / f"many/{n * 7 % MANY}.txt").open("ab") as file:
            file.write(b"x")
        (self.top / f"old{n}").rename(self.top / f"new{n}")
        (self.top / "next").symlink_to("other" if n % 2 else "result")
        (self.top / "next").rename(self.top / "link")

    def tell(self, n: int, stream: int) -> None:
        if self.way in ("stream", "thread"):
            os.write(stream, b"%d\n" % n)
        elif self.way == "content":
            with (self.top / "counter").open("r+") as file:
                file.write(f"{n:2}")
        elif self.way == "lock":
            os.close(self.locks.pop(0))
        else:
            (self.top / f"told{n}").touch()


@pytest.mark.parametrize("way", ["stream", "thread", "name", "listing", "content", "lock"])
def test_who_hears_of_a_change_sees_it(way: str, tmp_path: Path, agentfw_environment: dict[str, str], nothing_left: None) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    changes = Changes(shared, way)
    command = [*COMMAND, "run", "--no-config", "--plugins", "", "--mount", f"{shared}:/data:rw"]
    with subprocess.Popen(
        [*command, str(PROBE), way, str(ROUNDS)],
        cwd=tmp_path,
        env=agentfw_environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline() == "ready\n"
            for n in range(ROUNDS):
                changes.make(n)
                changes.tell(n, process.stdin.fileno())
                assert process.stdout.readline() == "\n"
            process.stdin.close()
            assert process.wait(60) == 0
        finally:
            process.kill()
            for fd in changes.locks:
                os.close(fd)
