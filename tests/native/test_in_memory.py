"""Snapshots copied into memory, for huge pages: the same content, shared, sealed, and gone with who uses it."""

import asyncio
import gc
import os
from pathlib import Path

import pytest
from agentfw_vmm.cell import Cell
from agentfw_vmm.in_memory import InMemory, in_memory

from . import bare
from .test_late_rules import TABLE, settings, template

__all__ = ["template"]


def sparse(path: Path, size: int = 0x345678) -> Path:
    with path.open("wb") as file:
        file.write(b"head")
        file.seek(1 << 21)
        file.write(os.urandom(100_000))
        file.truncate(size)
    return path


@pytest.mark.parametrize("size", [0, 3, 5000, 0x345678])
def test_the_same_bytes(tmp_path: Path, size: int) -> None:
    path = sparse(tmp_path / "s", size)
    copy = in_memory(path)
    assert isinstance(copy, InMemory) and copy is in_memory(path)
    assert Path(copy).read_bytes() == path.read_bytes()
    assert os.fstat(copy.fd).st_blocks * 512 <= 4096 + 104 * 1024
    with pytest.raises(PermissionError):
        os.pwrite(copy.fd, b"x", 0)
    fd = copy.fd
    sparse(path)  # another one
    assert Path(in_memory(path)).read_bytes() == path.read_bytes() and in_memory(path) is not copy
    del copy
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_no_file_is_left_to_who_opens_it(tmp_path: Path) -> None:
    assert in_memory(tmp_path / "missing") == tmp_path / "missing"


def test_a_file_that_becomes_shorter_is_left_to_who_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sparse(tmp_path / "s")
    looked = os.lseek

    def cut(fd: int, at: int, how: int) -> int:
        found = looked(fd, at, how)
        if how == os.SEEK_HOLE and at:
            os.truncate(path, at)
        return found

    monkeypatch.setattr(os, "lseek", cut)
    assert in_memory(path) == path


@pytest.mark.kvm
@pytest.mark.skipif(not os.access("/dev/kvm", os.R_OK | os.W_OK), reason="no access to /dev/kvm")
def test_vms_from_memory(template: Path) -> None:
    """Two cells of one copy; nothing else holds it when they run."""

    async def main() -> None:
        held = in_memory(template / "snapshot")
        cells = []
        try:
            for _ in range(2):
                recorder = bare.Recorder()
                config = settings(template, snapshot_in=held, vms=2, runners=2)
                cells.append((await Cell.start(config, recorder), recorder))
            del config
            del held
            for cell, _ in cells:
                for vm in range(2):
                    cell.restore(vm, 100 + vm)
                    cell.rules(vm, TABLE)
                    await cell.stream(vm, 3).send(b"go")
            for cell, recorder in cells:
                await recorder.until(lambda recorder=recorder: len(recorder.exits) == 2 or recorder.failed)
                assert [(end.kind, end.code) for end in recorder.exits.values()] == [("code", 0)] * 2, recorder
                for vm in range(2):
                    assert await cell.stream(vm, 1).receive() == b"EACCES EPERM EPERM\n"
        finally:
            for cell, _ in cells:
                await cell.close()

    asyncio.run(main())
