"""VMs that are restored to run later: ready, never entered, and from the first word on as any other."""

import asyncio
import struct
from pathlib import Path

import pytest
from agentfw_vmm.cell import Cell

from . import bare
from .test_late_rules import FREE, TABLE, UNDER_RULES, pytestmark, settings, template  # noqa: F401
from .test_python import output

FIRST, SECOND = range(0x200, 0x204), range(0x1000, 0x1100)


def anonymous(pid: int) -> int:
    """Bytes of the process's anonymous memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")


def test_it_runs_when_there_is_something_for_it(template):  # noqa: F811
    runs = [(page, 1) for page in FIRST], [(0, 0)], [(page, 1) for page in SECOND]
    hot = template / "hot_of_later"
    hot.write_bytes(b"".join(struct.pack("<2I", *run) for part in runs for run in part))

    async def main():
        recorder = bare.Recorder()
        files = {"snapshot_in": template / "snapshot", "hot_in": hot}
        cell = await Cell.start(settings(template, vms=8, runners=2, recycle=True, **files), recorder)
        try:
            before = anonymous(cell.pid)
            for vm in range(8):
                cell.restore(vm, 100 + vm if vm != 4 else 108, later=True)
            async with asyncio.timeout(30):
                await asyncio.gather(*(cell.standing(vm) for vm in range(8)))
            await asyncio.sleep(0.2)  # time in which one that would be entered is
            found = [cell.statistics(vm) for vm in range(8)]
            assert all(each.exits == 0 and each.restore_ns > 0 for each in found), found
            standing = anonymous(cell.pid) - before
            assert standing < 8 * 64 * 4096, "nothing is populated for those that sleep"
            cell.kill(0)
            cell.signal(1, 15)
            cell.rules(2, TABLE)
            for vm in range(2, 6):
                await cell.stream(vm, 3).send(b"go")
            async with asyncio.timeout(30):
                texts = [await output(cell, vm) for vm in range(6)]
            assert texts == [b"", b"", UNDER_RULES, FREE, FREE, FREE]
            await recorder.until(lambda: len(recorder.exits) == 6 or recorder.failed)
            assert recorder.exits[0].kind == "killed" and recorder.exits[1].signal == 15, recorder
            assert all(recorder.exits[vm].code == 0 for vm in range(2, 6)), recorder
            assert [cell.statistics(vm).exits for vm in (6, 7)] == [0, 0]
            async with asyncio.timeout(30):
                await cell.standing(0)  # it is gone: at once
            for vm in range(6):  # in what those that ended left
                cell.restore(vm, 100, later=True)
            async with asyncio.timeout(30):
                await asyncio.gather(*(cell.standing(vm) for vm in range(6)))
            assert [cell.statistics(vm).exits for vm in range(6)] == [0] * 6
            assert any(cell.statistics(vm).recycled for vm in range(2, 6))
            for vm in range(6):
                await cell.stream(vm, 3).send(b"go")
            async with asyncio.timeout(30):
                assert [await output(cell, vm) for vm in range(6)] == [FREE] * 6
        finally:
            await cell.close()
        assert not recorder.failed

    asyncio.run(main())


def test_what_jobs_write_to_is_made_ready_as_it_wakes_up(template):  # noqa: F811
    """Both sets, though its restore populated none; and that is charged to it."""
    hot = template / "hot_of_waking"
    hot.write_bytes(b"".join(struct.pack("<2I", page, 1) for page in FIRST) + struct.pack("<4I", 0, 0, SECOND[0], len(SECOND)))

    async def main():
        cell = await Cell.start(settings(template, snapshot_in=template / "snapshot", hot_in=hot, vms=2), bare.Recorder())
        try:
            for vm in range(2):
                cell.restore(vm, 100, later=True)
                await cell.standing(vm)
            before = anonymous(cell.pid)
            cell.rules(0, TABLE)
            async with asyncio.timeout(30):
                while anonymous(cell.pid) - before < len(SECOND) * 4096:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert cell.statistics(0).exits == 0, "rules alone do not wake it"
            await cell.stream(0, 3).send(b"go")
            async with asyncio.timeout(30):
                assert await output(cell, 0) == UNDER_RULES
            assert cell.statistics(1).exits == 0
        finally:
            await cell.close()

    asyncio.run(main())


def test_an_endless_one_beside_it_does_not_wake_it(template):  # noqa: F811
    async def main():
        cell = await Cell.start(settings(template, snapshot_in=template / "snapshot", vms=2), bare.Recorder())
        try:
            cell.restore(0, 104)  # it never stands still
            cell.restore(1, 100, later=True)
            async with asyncio.timeout(30):
                await cell.standing(1)
                while cell.statistics(0).exits < 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert cell.statistics(1).exits == 0
            with pytest.raises(ValueError, match="is running"):
                cell.restore(1, 100, later=True)
            await cell.stream(1, 3).send(b"go")
            async with asyncio.timeout(30):
                assert await output(cell, 1) == FREE
        finally:
            await cell.close()

    asyncio.run(main())


def test_one_that_sleeps_can_be_saved(template):  # noqa: F811
    """It runs to where it waits for its job."""

    async def main():
        cell = await Cell.start(settings(template, snapshot_in=template / "snapshot"), bare.Recorder())
        try:
            cell.restore(0, 100, later=True)
            await cell.standing(0)
            async with asyncio.timeout(30):
                with await cell.save(0) as saved:
                    assert saved.size > 0
                await cell.stream(0, 3).send(b"go")
                assert await output(cell, 0) == FREE
        finally:
            await cell.close()

    asyncio.run(main())
