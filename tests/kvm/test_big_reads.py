"""Reads and writes of more than one operation of the ring moves (64 MiB): all of it in one call, as Linux does it, and no early end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

RUN = ("run", "--no-config", "--plugins", "", "--memory", "700M")
SIZE = 135 << 20

CODE = f"""
import os
def check(data):
    assert len(data) == {SIZE}, len(data)
    for at in (0, (64 << 20) - 1, 64 << 20, 128 << 20, {SIZE} - 1):
        assert data[at] == 1 + at % 251, at
with open("/big/file", "rb") as file:
    check(file.read())
fd = os.open("/big/file", os.O_RDONLY)
data = os.read(fd, {SIZE})
check(data)
assert os.read(fd, 1) == b""
check(os.pread(fd, {SIZE}, 0))
out = os.open("/big/copy", os.O_RDWR | os.O_CREAT)
assert os.write(out, data) == {SIZE}
assert os.pwrite(out, data, 0) == {SIZE}
del data
check(os.pread(out, {SIZE}, 0))
print("whole")
"""


def test_large_reads_and_writes_are_whole(agentfw: Agentfw, tmp_path: Path) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    with (folder / "file").open("wb") as file:
        file.truncate(SIZE)
        for at in (0, (64 << 20) - 1, 64 << 20, 128 << 20, SIZE - 1):
            file.seek(at)
            file.write(bytes([1 + at % 251]))
    done = agentfw(*RUN, "--mount", f"{folder}:/big:rw", "-c", CODE)
    assert (done.stdout, done.stderr, done.returncode) == ("whole\n", "", 0)
