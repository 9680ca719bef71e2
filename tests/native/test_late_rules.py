"""Rules that a warm VM gets when it is known whose it will be: in force before its job, as if they had come at its restore."""

import asyncio
import contextlib
import os
import struct

import pytest
from agentfw_vmm.cell import CELL_PROGRAM, Cell
from agentfw_vmm.config import Mount
from agentfw_vmm.rules import FileRule, compile_rules

from . import bare
from .test_python import config, output

pytestmark = [
    pytest.mark.kvm,
    pytest.mark.skipif(not os.access("/dev/kvm", os.R_OK | os.W_OK), reason="no access to /dev/kvm"),
    pytest.mark.skipif(not CELL_PROGRAM.is_file(), reason="the cell was not built"),
]

TEMPLATE = """
import errno, os, socket
fd = os.open("/dev/agentfw", os.O_RDWR)
if os.getpid() == 2:
    os._exit(3)

def error(call, *arguments):
    try:
        call(*arguments)
    except OSError as failure:
        return errno.errorcode[failure.errno]
    return "none"

os.set_blocking(fd, os.getpid() != 104)
while True:  # 104 never stands still
    with __import__("contextlib").suppress(BlockingIOError):
        os.read(fd, 9)
        break
print(error(open, "/w/key"), error(os.mkdir, "/tmp/d"), error(os.getpriority, 0, 0), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    directory = tmp_path_factory.mktemp("late_rules")
    (directory / "key").write_text("secret")

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(settings(directory, snapshot_out=directory / "snapshot"), recorder)
        try:
            cell.boot(0)
            with pytest.raises(ValueError, match="has its rules"):
                cell.rules(0, b"")
            await recorder.until(lambda: recorder.exits or recorder.failed, 60)
            assert recorder.exits[0].code == 3, recorder
        finally:
            await cell.close()

    asyncio.run(main())
    return directory


def settings(directory, **changes):
    built = config(TEMPLATE, **changes)
    built.mounts.append(Mount("/w", directory))
    return built


TABLE = compile_rules([FileRule("/w/key", "deny")], deny=["mkdir"], advisory=["getpriority"])
UNDER_RULES = b"EACCES EPERM EPERM\n"
FREE = b"none none none\n"


def test_rules_come_late(template):
    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(settings(template, snapshot_in=template / "snapshot", vms=6, runners=2), recorder)
        try:
            for vm in range(6):
                cell.restore(vm, 100 + vm, TABLE if vm == 5 else b"")
            with pytest.raises(ValueError, match="has its rules"):
                cell.rules(5, TABLE)
            cell.rules(1, TABLE)  # it is not even restored yet
            await asyncio.sleep(0.2)  # now those that wait do wait; no answer depends on it
            for vm in (0, 4):
                cell.rules(vm, TABLE)
            cell.rules(2, b"")
            with pytest.raises(ValueError, match="has its rules"):
                cell.rules(2, TABLE)
            broken = bytearray(TABLE)
            broken[0] ^= 1
            cell.rules(3, bytes(broken))
            for vm in range(6):
                with contextlib.suppress(BrokenPipeError):  # 3 got none
                    await cell.stream(vm, 3).send(b"go")
            async with asyncio.timeout(30):
                texts = [await output(cell, vm) for vm in range(6)]
            await recorder.until(lambda: len(recorder.exits) == 6 or recorder.failed)
            assert texts == [UNDER_RULES, UNDER_RULES, FREE, b"", UNDER_RULES, UNDER_RULES]
            assert recorder.exits[3].kind == "internal" and "rules of" in recorder.exits[3].text
            cell.rules(0, TABLE)  # it is gone: nothing
            assert cell.statistics(0).refused_paths == 1 and cell.statistics(2).refused_paths == 0
            for vm in range(6):  # what follows in its place has no rules, and may get some
                cell.restore(vm, 100)
            recorder.exits.clear()
            for vm in range(6):
                if vm % 2:
                    cell.rules(vm, TABLE)
                await cell.stream(vm, 3).send(b"go")
            async with asyncio.timeout(30):
                assert [await output(cell, vm) for vm in range(6)] == [FREE, UNDER_RULES] * 3
        finally:
            await cell.close()

    asyncio.run(main())


def test_its_end_while_rules_are_due(template):
    """Who waits to send the job is told that nobody will read it."""

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(settings(template, snapshot_in=template / "snapshot", vms=2), recorder)
        try:
            for vm in range(2):
                cell.restore(vm, 100 + vm)
                cell.kill(vm)
                cell.rules(vm, TABLE)
                with pytest.raises(BrokenPipeError):
                    async with asyncio.timeout(30):
                        await cell.stream(vm, 3).send(b"go")
            await recorder.until(lambda: len(recorder.exits) == 2)
            cell.restore(0, 100)
            cell.rules(0, TABLE)
            sending = asyncio.ensure_future(cell.stream(0, 3).send(b"go"))
            await asyncio.sleep(0)
        finally:
            await cell.close()
        with contextlib.suppress(BrokenPipeError):
            async with asyncio.timeout(30):
                await sending

    asyncio.run(main())


def test_what_its_rules_cost_is_counted_as_its_own(template):
    """Pages that its job will write are made ready as the rules come, not in the time of who has the next turn."""
    (template / "hot").write_bytes(
        struct.pack("<2I", 0, 0) + b"".join(struct.pack("<2I", page, 1) for page in range(0x200, 0x2000))
    )

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(settings(template, snapshot_in=template / "snapshot", hot_in=template / "hot", vms=2), recorder)
        try:
            cell.restore(0, 100)
            cell.restore(1, 104)  # it never stands still
            used = -1
            async with asyncio.timeout(60):
                while not cell.statistics(0).exits_wait or used != cell.statistics(0).cpu_ns:  # until it stands still
                    used = cell.statistics(0).cpu_ns
                    await asyncio.sleep(0.3)
                cell.rules(0, TABLE)
                while cell.statistics(0).cpu_ns - used <= 1_000_000:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            await cell.close()

    asyncio.run(main())
