"""Saved VMs without Python in them: going on from one, and from one that is damaged or forged."""

import asyncio
import contextlib
import os
import random
import struct
from pathlib import Path

import pytest
from agentfw_vmm import CellError, SavedVm
from agentfw_vmm.cell import Cell

from . import bare
from .test_cell import make_snapshot, seal, snapshot_offsets

pytestmark = pytest.mark.kvm

BODY = """
    #define AT(text) (u64)(text), sizeof(text) - 1
    static volatile u64 counter;
    static char out[4096] __attribute__((aligned(4096)));
    static int64_t file(u64 path, u64 n, u64 flags) { return call(AFW_OP_OPEN, path, n, flags, 0644, AFW_CWD, 0); }
    void run(void) {
        volatile u64 *heap = (u64 *)CTL->mmap_base;
        char *map = (char *)CTL->mmap_base + 0x400000;
        heap[0] = 11;
        stand();
        heap[600] = 22;
        CHECK(!call(AFW_OP_MKDIR, AT("/tmp/d"), 0755, AFW_CWD, 0, 0));
        int64_t a = file(AT("/tmp/d/a"), 02 | 0100), b = file(AT("/tmp/b"), 02 | 0100), c = file(AT("/tmp/c"), 02 | 0100);
        CHECK(a > 0 && b > 0 && c > 0);
        CHECK(call(AFW_OP_PWRITE, a, AT("content"), 0, 0, 0) == 7);
        CHECK(call(AFW_OP_PWRITE, b, (u64)heap, 0x20000, 0x30000, 0, 0) == 0x20000);
        CHECK(call(AFW_OP_PWRITE, c, AT("gone"), 0, 0, 0) == 4);
        CHECK(!call(AFW_OP_UNLINK, AT("/tmp/c"), 0, AFW_CWD, 0, 0));
        CHECK(!call(AFW_OP_SYMLINK, AT("d/a"), AT("/tmp/s"), AFW_CWD, 0));
        CHECK(!call(AFW_OP_LINK, AT("/tmp/d/a"), AT("/tmp/l"), (u64)AFW_CWD << 32 | AFW_CWD, 0));
        CHECK(!call(AFW_OP_FLOCK, a, 2, 0, 0, 0, 0));
        CHECK(!call(AFW_OP_MAPFILE, a, (u64)map, 4096, 3, 1, 0));
        CHECK(!call(AFW_OP_ZERO, (u64)map + 0x10000, 4096, 0, 0, 0, 0));
        CHECK(!call(AFW_OP_PROTECT, (u64)map + 0x20000, 4096, 0, 0, 0, 0));
        CHECK(!call(AFW_OP_CHDIR, AT("/tmp/d"), AFW_CWD, 0, 0, 0));
        u64 generation = CTL->generation;
        while (counter < 1000) counter++;
        say("ready\\n", 6);
        while (CTL->generation == generation) counter++;
        CHECK(CTL->forked == 1 && heap[0] == 11 && heap[600] == 22);
        CHECK(call(AFW_OP_PREAD, c, (u64)out, 100, 0, 0, 0) == 4 && out[0] == 'g');
        CHECK(call(AFW_OP_PREAD, b, (u64)out, 8, 0x30000 + 4800, 0, 0) == 8 && out[0] == 22);
        map[0] = 'C';
        CHECK(call(AFW_OP_PREAD, a, (u64)out, 100, 0, 0, 0) == 7 && out[0] == 'C' && out[6] == 't');
        CHECK(call(AFW_OP_READLINK, AT("/tmp/s"), (u64)out, 100, AFW_CWD, 0) == 3);
        CHECK(file(AT("a"), 0) > 0);
        CHECK(file(AT("/tmp/l"), 0200 | 0100 | 2) == -17);
        say_number(counter);
        leave(7);
    }
"""
TEMPLATE_KEY = b"k" * 32


async def saved_vm(cell_program: Path, program: Path, path: Path) -> SavedVm:
    await make_snapshot(cell_program, program, path)
    recorder = bare.Recorder()
    cell = await Cell.start(bare.config(program, snapshot_in=path, key=TEMPLATE_KEY), recorder, cell_program)
    try:
        cell.restore(0, 1000)
        async with asyncio.timeout(30):
            assert await cell.stream(0, 1).receive() == b"ready\n", recorder.exits
        return await cell.save(0)
    finally:
        await cell.close()


async def outcome(cell_program: Path, saved: SavedVm, seconds: float = 30) -> tuple[bare.Recorder, bytes]:
    """How one VM that goes on from it ends; killed after `seconds`. The cell must be there all the time."""
    recorder = bare.Recorder()
    cell = await Cell.start(saved.config(1), recorder, cell_program)
    try:
        cell.restore(0, 2000, note=b"a note")
        with pytest.raises(ValueError, match="has its rules"):
            cell.rules(0, b"")  # it goes on at once: they would come too late
        try:
            await recorder.until(lambda: recorder.exits, seconds)
        except TimeoutError:
            cell.kill(0)
            await recorder.until(lambda: recorder.exits)
        said = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                said = await cell.stream(0, 1).receive()
        assert not recorder.failed, recorder.failed
        return recorder, said
    finally:
        await cell.close()


def forged(saved: SavedVm, data: bytes) -> SavedVm:
    fd = os.memfd_create("forged")
    os.write(fd, data)
    return SavedVm(fd, len(data), os.dup(saved.base), saved._config)


def content(saved: SavedVm) -> bytearray:
    return bytearray(os.pread(saved.fd, saved.size, 0))


def test_it_goes_on_and_damage_is_refused(bare_cell, guest, tmp_path):
    async def main():
        with await saved_vm(bare_cell, guest(BODY), tmp_path / "snapshot") as saved:
            with pytest.raises(PermissionError):
                os.pwrite(saved.fd, b"x", 0)
            for _ in range(2):
                recorder, said = await outcome(bare_cell, saved)
                assert recorder.exits[0].code == 7, (recorder.exits, said)
                assert int(said) >= 1000
            good = content(saved)
            offset = snapshot_offsets()
            other = tmp_path / "other"
            await make_snapshot(bare_cell, guest(BODY, "-DOTHER=1", "-O0"), other)
            strange = forged(saved, bytes(good))
            strange.base = os.open(other, os.O_RDONLY)
            for data, text in (
                (good[:-4096], "size"),
                (good[:5000], "too short"),
                (b"XX" + good[2:], "not a snapshot"),
                (good[: offset["crc"]] + b"12345678" + good[offset["crc"] + 8 :], "checksum"),
                (strange, "another template"),
            ):
                with data if isinstance(data, SavedVm) else forged(saved, bytes(data)) as wrong:
                    recorder, _ = await outcome(bare_cell, wrong)
                    assert recorder.exits[0].kind == "internal" and text in recorder.exits[0].text, recorder.exits[0]
            os.close(strange.base)

    asyncio.run(main())


def test_a_forged_one_harms_its_own_vm_at_most(bare_cell, guest, tmp_path):
    """Its writer may have been taken over: whatever it says, under a right checksum, the cell that reads it stays whole."""
    chance = random.Random(os.environ.get("AGENTFW_SEED", "1"))
    extremes = [0, 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 4096, 2**31]

    async def main():
        with await saved_vm(bare_cell, guest(BODY), tmp_path / "snapshot") as saved:
            good = content(saved)
            offset = snapshot_offsets()
            (size,) = struct.unpack_from("<I", good, offset["vcpu_size"])
            state = offset["size"]
            kinds = []
            for turn in range(int(os.environ.get("AGENTFW_FORGERIES", "80"))):  # more of them: by hand, with the sanitizers
                data = bytearray(good)
                for _ in range(chance.choice([1, 1, 2, 5])):
                    # most of it behind the registers: protections, mappings, the template's memory, files and handles
                    at = chance.randrange(state, state + size) if turn % 4 == 0 else chance.randrange(state + 4500, state + size)
                    if chance.random() < 0.5:
                        data[at] = chance.randrange(256)
                    else:
                        at = at // 8 * 8
                        width = chance.choice(["<I", "<Q"])
                        struct.pack_into(width, data, at, chance.choice(extremes) & (2 ** (8 * struct.calcsize(width)) - 1))
                seal(data, offset)
                with forged(saved, bytes(data)) as wrong:
                    recorder, _ = await outcome(bare_cell, wrong, 0.5)
                kinds.append(recorder.exits[0].kind)
            assert kinds.count("internal") > 3 and kinds.count("code") > 3, kinds

    asyncio.run(main())


def test_saving_is_refused_or_given_up(bare_cell, guest, tmp_path):
    """What writes to a host file through memory; what has ended; what is asked for at once; a VM that is killed meanwhile."""
    body = """
        void run(void) {
            stand();
            if (CTL->pid == 1001) {
                int64_t f = call(AFW_OP_OPEN, (u64)"/t/shared", 9, 2, 0, AFW_CWD, 0);
                CHECK(f > 0);
                CHECK(!call(AFW_OP_MAPFILE, f, CTL->mmap_base, 4096, 3, 1, 0));
            }
            say("ready\\n", 6);
            for (;;);
        }
    """

    async def main():
        path = tmp_path / "snapshot"
        (tmp_path / "shared").write_bytes(bytes(4096))
        program = guest(body)
        await make_snapshot(bare_cell, program, path)
        recorder = bare.Recorder()
        settings = bare.config(program, snapshot_in=path, key=TEMPLATE_KEY, vms=3, runners=1)
        settings.mounts = [bare.Mount("/t", tmp_path, True)]
        cell = await Cell.start(settings, recorder, bare_cell)
        try:
            for vm in range(3):
                cell.restore(vm, 1000 + vm)
            for vm in range(3):
                async with asyncio.timeout(30):
                    assert await cell.stream(vm, 1).receive() == b"ready\n"
            with pytest.raises(CellError, match="host file"):
                await cell.save(1)
            first, second = await asyncio.gather(cell.save(0), cell.save(2))
            assert first.size and second.size and first.fd != second.fd
            first.close()
            second.close()
            second.close()
            task = asyncio.ensure_future(cell.save(0))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (await cell.save(2)).close()  # the one before does not disturb it
            task = asyncio.ensure_future(cell.save(0))
            await asyncio.sleep(0)
            cell.kill(0)
            try:
                (await task).close()  # it was quicker
            except CellError as error:
                assert "ended" in str(error)
            await recorder.until(lambda: 0 in recorder.exits)
            with pytest.raises(CellError, match="not running"):
                await cell.save(0)
            async with cell._saver._turn:  # as if another VM were being saved
                task = asyncio.ensure_future(cell.save(2))
                await asyncio.sleep(0)
                cell.kill(2)
                await recorder.until(lambda: 2 in recorder.exits)
                cell.restore(2, 2000)  # somebody else's
                async with asyncio.timeout(30):
                    assert await cell.stream(2, 1).receive() == b"ready\n"
            with pytest.raises(CellError, match="ended"):
                await task
            assert cell.live(2)
            assert cell.live(1) and cell.live(2)
        finally:
            await cell.close()
        assert not recorder.failed

    asyncio.run(main())


def test_saving_much_does_not_stop_others(bare_cell, guest, tmp_path):
    """While 64 MiB of one VM are written, another one of the same runner goes on: no gap is as long as all of that."""
    body = """
        void run(void) {
            stand();
            if (CTL->pid == 1000) {
                u64 *memory = (u64 *)CTL->mmap_base;
                CHECK(!call(AFW_OP_COMMIT, CTL->mmap_base, 64 << 20, 0, 0, 0, 0));
                for (u64 i = 0; i < (64 << 20) / 8; i += 8) memory[i] = i + 1;
                say("ready\\n", 6);
                for (;;);
            }
            say("ready\\n", 6);
            u64 last = now(), gap = 0;
            while (!CTL->sigpending) {
                u64 t = now();
                if (t - last > gap) gap = t - last;
                last = t;
            }
            say_number(gap / 1000);
            leave(0);
        }
    """

    async def main():
        path = tmp_path / "snapshot"
        program = guest(body)
        await make_snapshot(bare_cell, program, path)
        recorder = bare.Recorder()
        settings = bare.config(program, snapshot_in=path, key=TEMPLATE_KEY, vms=2, memory=256 << 20)
        cell = await Cell.start(settings, recorder, bare_cell)
        try:
            loop = asyncio.get_running_loop()
            for vm in range(2):
                cell.restore(vm, 1000 + vm)
            for vm in range(2):
                async with asyncio.timeout(60):
                    assert await cell.stream(vm, 1).receive() == b"ready\n"
            turns = cell.statistics(1).exits_signal
            begun = loop.time()
            saved = await cell.save(0)
            whole = loop.time() - begun
            turns = cell.statistics(1).exits_signal - turns
            assert saved.size > 64 << 20
            saved.close()
            cell.signal(1, 10)
            await recorder.until(lambda: 1 in recorder.exits)
            assert recorder.exits[1].code == 0 and turns >= 5, (turns, whole)
        finally:
            await cell.close()

    asyncio.run(main())


def test_a_long_file_of_proc_that_is_open_goes_along(bare_cell, guest, tmp_path):
    """What a cell saves is what the next one takes: /proc/self/maps of a program with 2,000 mappings, say."""
    body = """
        static struct afw_region table[2000];
        static char out[64];
        void run(void) {
            stand();
            for (uint32_t i = 0; i < 2000; i++)
                table[i] = (struct afw_region){2 * i + 1, 2 * i + 2, AFW_REGION_MAPPED};
            CTL->stack_lo = 0;
            CTL->regions = (u64)table;
            CTL->n_regions = 2000;
            int64_t maps = call(AFW_OP_OPEN, (u64)"/proc/self/maps", 15, 0, 0, AFW_CWD, 0);
            CHECK(maps > 0);
            CHECK(call(AFW_OP_PREAD, maps, (u64)out, 64, 70000, 0, 0) == 64);
            u64 generation = CTL->generation;
            say("ready\\n", 6);
            while (CTL->generation == generation);
            CHECK(call(AFW_OP_PREAD, maps, (u64)out, 64, 70000, 0, 0) == 64);
            say("still\\n", 6);
            leave(7);
        }
    """

    async def main():
        with await saved_vm(bare_cell, guest(body), tmp_path / "snapshot") as saved:
            recorder, said = await outcome(bare_cell, saved)
            assert recorder.exits[0].code == 7, (recorder.exits, said)

    asyncio.run(main())
