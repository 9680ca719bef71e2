"""The worker's half of saving a VM, when its cell ends in the middle of it."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
from agentfw_vmm import CellError, saved
from agentfw_vmm.config import CellConfig, encode

from ..descriptors import left, opened


def config(base: Path) -> CellConfig:
    return CellConfig(vms=1, runners=1, memory=1 << 20, program="/p", argv=["p"], snapshot_in=base)


def test_a_copy_that_outlives_its_cell_touches_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the closed descriptor is another file's while the copy is made in its thread."""
    begun, may = threading.Event(), threading.Event()
    take = saved.take

    def slow(source: int, size: int, most: int) -> int:
        begun.set()
        assert may.wait(30)
        return take(source, size, most)

    monkeypatch.setattr(saved, "take", slow)
    (tmp_path / "base").write_bytes(b"base")
    other = tmp_path / "other"
    other.write_bytes(b"another's")

    async def main() -> None:
        before = opened()
        fd = saved.save_file()
        os.write(fd, b"saved")
        saver = saved.Saver(config(tmp_path / "base"), fd, lambda vm, life: None)
        task = asyncio.ensure_future(saver.save(0, object()))
        await asyncio.sleep(0.01)
        saver.saved(0, 5, 0)
        assert await asyncio.to_thread(begun.wait, 30)
        saver.close()
        others = [os.open(other, os.O_RDWR)]
        while fd not in others:
            others.append(os.dup(others[0]))
        with pytest.raises(CellError, match="ended"):
            await task
        may.set()
        await asyncio.get_running_loop().shutdown_default_executor()
        await asyncio.sleep(0)
        assert other.read_bytes() == b"another's"
        for each in others:
            os.close(each)
        assert not left(before)

    asyncio.run(main())


def test_no_cell_begins_with_one_that_was_closed(tmp_path: Path) -> None:
    """Its descriptors' numbers are other files' by then: those are not for a cell to see."""
    fds = [os.open(tmp_path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)]
    one = saved.SavedVm(fds[0], 5, fds[1], config(tmp_path / "base"))
    built = one.config(1)
    one.close()
    others = [os.dup(0) for _ in fds]
    opened: list[int] = []
    try:
        with pytest.raises(CellError, match="closed"):
            encode(built, opened)
    finally:
        for each in [*others, *opened]:
            os.close(each)
    assert not opened
