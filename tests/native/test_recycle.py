"""VMs that are put back after their end: who is kept, who is not, and that the next life begins as any other."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from agentfw_vmm import CellError
from agentfw_vmm._lib import lib
from agentfw_vmm.cell import Cell

from . import bare

pytestmark = pytest.mark.kvm

#: Boots, is saved, and then does what its standard input's first byte says.
GUEST = """
static volatile char data[64 * 4096] __attribute__((aligned(4096)));
static u64 next_byte(void)
{
    volatile struct afw_flow *f = &WIN->flow[AFW_FLOW_STDIN];
    volatile char *ring = (volatile char *)(AFW_WINDOW + AFW_WINDOW_DATA + AFW_FLOW_STDIN * 2ull * AFW_RING + AFW_RING);
    while (f->rx_tail == f->rx_head) { CTL->wake = 0; if (f->rx_tail == f->rx_head) { CTL->deadline = ~0ull; park(); } }
    u64 c = (unsigned char)ring[f->rx_tail % AFW_RING];
    f->rx_tail = f->rx_tail + 1;
    return c;
}
void run(void)
{
    data[0] = 'a';
    if (call(AFW_OP_READY, 0, 0, 0, 0, 0, 0) == 1)
        leave(0);
    CHECK(HANDLER == 0);                         /* in the system area; the counter beside it counts upcalls */
    HANDLER = 1;
    char seen[3] = {data[0], data[4096] ? data[4096] : '-', '\\n'};
    say(seen, 3);
    for (u64 i = 0; i < sizeof data; i += 4096)
        data[i] = 'x';
    switch (next_byte()) {
    case 'e': leave(7);
    case 's': call(AFW_OP_EXIT, 0, 6, 0, 0, 0, 0);
    case 'h': CTL->sq_tail = CTL->sq_tail + 1000; kick();
    case 'f': *(volatile char *)0x1000 = 1;
    case 'c': CHECK(call(AFW_OP_COMMIT, 0x40000000, 1, 0, 0, 0, 0) == 0); *(volatile char *)0x40000000 = 1; leave(7);
    case 'q': for (;;) call(AFW_OP_FLOW_KICK, AFW_FLOW_STDERR, 0, 0, 0, 0, 0);
    case 'w': for (;;) { CTL->deadline = ~0ull; park(); }
    }
    leave(1);
}
"""


async def template(program, guest, path):
    recorder = bare.Recorder()
    cell = await Cell.start(bare.config(guest, snapshot_out=path), recorder, program)
    try:
        cell.boot(0)
        await recorder.until(lambda: 0 in recorder.exits)
        assert recorder.ready[0][1] == 0 and recorder.exits[0].code == 0
    finally:
        await cell.close()


async def line(cell, vm):
    """What the guest says first: the bytes that it found where it writes later."""
    async with asyncio.timeout(20):
        text = b""
        while not text.endswith(b"\n"):
            text += await cell.stream(vm, 1).receive()
        return text


async def life(cell, recorder, word, vm=0):
    recorder.exits.pop(vm, None)
    cell.restore(vm, 1000)
    assert await line(cell, vm) == b"a-\n"
    if word == "k":
        cell.kill(vm)
    else:
        await cell.stream(vm, 0).send(word.encode())
    await recorder.until(lambda: vm in recorder.exits)
    return recorder.exits[vm], cell.statistics(vm)


def run(program, guest, path, main, **changes):
    async def all_of_it():
        await template(program, guest, path)
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(guest, snapshot_in=path, **{"recycle": True, **changes}), recorder, program)
        try:
            await main(cell, recorder)
        finally:
            await cell.close()
        assert not recorder.failed

    asyncio.run(all_of_it())


def test_who_is_kept(bare_cell, guest, tmp_path):
    async def main(cell, recorder):
        kept = False
        for word, kind, keeps in [
            *[("e", "code", True), ("e", "code", True), ("s", "signal", True), ("k", "killed", True), ("h", "hostile", False)],
            *[("e", "code", True), ("f", "signal", True), ("c", "code", True), ("c", "code", True), ("e", "code", True)],
        ]:
            end, numbers = await life(cell, recorder, word)
            assert (end.kind, numbers.recycled) == (kind, kept), (word, end)
            assert not kept or (numbers.private_pages >= 64 and numbers.reset_ns > 0)
            kept = keeps

    run(bare_cell, guest(GUEST), tmp_path / "snapshot", main)


def test_what_is_discarded_is_made_anew(bare_cell, guest, tmp_path):
    async def main(cell, recorder):
        cell.discard(0)  # never started
        await life(cell, recorder, "e")
        cell.discard(0)
        cell.discard(0)
        end, numbers = await life(cell, recorder, "e")
        assert (end.code, numbers.recycled, numbers.reset_ns) == (7, 0, 0)
        cell.restore(0, 1001)
        with pytest.raises(ValueError, match="running"):
            cell.discard(0)
        assert await line(cell, 0) == b"a-\n"

    run(bare_cell, guest(GUEST), tmp_path / "snapshot", main)


def test_a_vm_that_waits_for_its_next_life_is_small(bare_cell, guest, tmp_path):
    def resident(pid):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(text.split()[1]) for text in lines if text.startswith("Private_Dirty"))

    async def main(cell, recorder):
        await life(cell, recorder, "e")
        before = resident(cell.pid)
        async with asyncio.timeout(20):  # 64 pages were written, 8 may stay
            while resident(cell.pid) > before - 4 * 40:  # noqa: ASYNC110 (the cell tells nobody)
                await asyncio.sleep(0.02)
        end, numbers = await life(cell, recorder, "e")
        assert (end.code, numbers.recycled) == (7, 1)

    run(bare_cell, guest(GUEST), tmp_path / "snapshot", main, recycle_pages=8)


def test_without_recycle_nothing_is_kept(bare_cell, guest, tmp_path):
    async def main(cell, recorder):
        for _ in range(2):
            _, numbers = await life(cell, recorder, "e")
            assert (numbers.recycled, numbers.reset_ns, numbers.private_pages) == (0, 0, 0)

    run(bare_cell, guest(GUEST), tmp_path / "snapshot", main, recycle=False)


def test_many_vms_of_several_runners(bare_cell, guest, tmp_path):
    async def main(cell, recorder):
        for turn in range(3):
            found = await asyncio.gather(*(life(cell, recorder, "ek"[vm % 2], vm) for vm in range(6)))
            assert [numbers.recycled for _, numbers in found] == [int(turn > 0)] * 6

    run(bare_cell, guest(GUEST), tmp_path / "snapshot", main, vms=6, runners=2)


def test_commands_that_come_too_late_do_nothing(bare_cell, guest, tmp_path):
    async def main(cell, recorder):
        await life(cell, recorder, "e")
        for kind in (lib.AFW_CMD_KILL, lib.AFW_CMD_WAKE, lib.AFW_CMD_LIMIT, lib.AFW_CMD_RULES, lib.AFW_CMD_SAVE):
            cell._command(0, kind, 0)
        cell._command(0, lib.AFW_CMD_SIGNAL, 0, 15)
        for _ in range(2):
            end, numbers = await life(cell, recorder, "e")
            assert (end.kind, end.code, numbers.recycled) == ("code", 7, 1)

    run(bare_cell, guest(GUEST), tmp_path / "snapshot", main)


def test_an_end_that_cannot_be_told_at_once(bare_cell, guest, tmp_path):
    async def main(cell, recorder):
        for turn in range(3):
            for vm in (0, 1):
                recorder.exits.pop(vm, None)
                cell.restore(vm, 1000)
                assert await line(cell, vm) == b"a-\n"
                assert cell.statistics(vm).recycled == (turn > 0)
            await cell.stream(0, 0).send(b"q")
            await asyncio.sleep(0.05)
            await cell.stream(1, 0).send(b"e")
            await asyncio.sleep(0)
            time.sleep(0.2)  # noqa: ASYNC251 (nobody takes events: the queue is full when VM 1 ends)
            await recorder.until(lambda: 1 in recorder.exits)
            assert recorder.exits[1].code == 7
            cell.kill(0)
            await recorder.until(lambda: 0 in recorder.exits)

    run(bare_cell, guest(GUEST), tmp_path / "snapshot", main, vms=2)


def test_what_is_left_of_an_instruction_is_not_done_in_the_next_life(bare_cell, guest, tmp_path):
    """An access to where no memory is comes in pieces: 16 bytes over a page's end in three. The program dies at the first."""
    body = """
        void run(void)
        {
            if (call(AFW_OP_READY, 0, 0, 0, 0, 0, 0) == 1)
                leave(0);
            if (CTL->pid == 1000)
                __asm__ volatile("movdqu (%0), %%xmm0" :: "r"(0x30000000ull + 4096 - 5) : "memory", "xmm0");
            else
                leave(7);
            leave(66);                           /* behind that instruction: where the next life would go on */
        }
    """

    async def main(cell, recorder):
        for turn in range(3):
            recorder.exits.pop(0, None)
            cell.restore(0, 1000 + turn)
            await recorder.until(lambda: 0 in recorder.exits)
            end = recorder.exits[0]
            assert (end.kind, end.code, end.signal) == (("code", 7, 0) if turn else ("signal", 0, 11)), end
            assert cell.statistics(0).recycled == (turn > 0)

    run(bare_cell, guest(body), tmp_path / "snapshot", main)


def test_who_ends_while_it_is_saved_is_not_kept(bare_cell, guest, tmp_path):
    """What nobody may touch can be read meanwhile; and what was written of it takes no memory any longer."""
    body = """
        void run(void)
        {
            CHECK(!call(AFW_OP_PROTECT, CTL->mmap_base, 4096, 0, 0, 0, 0));
            if (call(AFW_OP_READY, 0, 0, 0, 0, 0, 0) == 1)
                leave(0);
            if (CTL->pid == 1000) {
                u64 *memory = (u64 *)(CTL->mmap_base + 4096);
                CHECK(!call(AFW_OP_COMMIT, CTL->mmap_base, 64 << 20, 0, 0, 0, 0));
                for (u64 i = 0; i < (48 << 20) / 8; i += 8) memory[i] = i + 1;
                say("a-\\n", 3);
                for (;;);
            }
            u64 word = *(volatile u64 *)CTL->mmap_base;
            leave(word ? 66 : 67);
        }
    """

    async def main(cell, recorder):
        async def attempt():
            """False: it was saved before we were there to kill it."""
            cell.restore(0, 1000)
            assert await line(cell, 0) == b"a-\n"
            saving = asyncio.ensure_future(cell.save(0))
            file = os.dup(cell._saver._fd)
            try:
                async with asyncio.timeout(20):
                    while not os.fstat(file).st_blocks:  # noqa: ASYNC110 (the cell tells nobody)
                        await asyncio.sleep(0.001)
                cell.kill(0)
                (saved,) = await asyncio.gather(saving, return_exceptions=True)
                await recorder.until(lambda: 0 in recorder.exits)
                assert recorder.exits.pop(0).kind == "killed"
                if not isinstance(saved, BaseException):
                    saved.close()
                    return False
                with pytest.raises(CellError, match="ended before"):
                    raise saved
                assert os.fstat(file).st_blocks == 0
                return True
            finally:
                os.close(file)

        while not await attempt():
            pass
        cell.restore(0, 1001)
        await recorder.until(lambda: 0 in recorder.exits)
        assert (recorder.exits[0].kind, recorder.exits[0].signal) == ("signal", 11), recorder.exits
        assert cell.statistics(0).recycled == 0

    run(bare_cell, guest(body), tmp_path / "snapshot", main, memory=256 << 20)


def test_many_that_are_put_back_do_not_stop_another(bare_cell, guest, tmp_path):
    """Eight VMs end at once: another of the same runner has turns between their putting back."""
    body = """
        static volatile char data[24 << 20];
        void run(void)
        {
            if (call(AFW_OP_READY, 0, 0, 0, 0, 0, 0) == 1)
                leave(0);
            if (CTL->pid == 2000)
                leave(0);
            say("a-\\n", 3);
            if (CTL->pid == 1000) {
                u64 last = __builtin_ia32_rdtsc(), gap = 0;
                while (!CTL->sigpending) {
                    u64 t = __builtin_ia32_rdtsc();
                    if (t - last > gap) gap = t - last;
                    last = t;
                }
                say_number((u64)((unsigned __int128)gap * CTL->tsc_mult >> 32));
                leave(0);
            }
            for (u64 i = 0; i < sizeof data; i += 4096) data[i] = 1;
            say("b", 1);
            for (;;) { CTL->deadline = ~0ull; park(); }
        }
    """
    others = range(1, 9)

    async def attempt(cell, recorder):
        """-> ns: the longest time for which VM 0 stood still; what all the putting back took."""
        for vm in others:
            cell.restore(vm, 1000 + vm)
        async with asyncio.timeout(60):
            for vm in others:
                text = b""
                while not text.endswith(b"b"):
                    text += await cell.stream(vm, 1).receive()
        cell.restore(0, 1000)
        assert await line(cell, 0) == b"a-\n"
        for vm in others:
            cell.kill(vm)
        await recorder.until(lambda: len(recorder.exits) == len(others))
        await asyncio.sleep(0.5)
        cell.signal(0, 10)
        await recorder.until(lambda: 0 in recorder.exits)
        gap = int(await cell.stream(0, 1).receive())
        recorder.exits.clear()
        for vm in others:
            cell.restore(vm, 2000)
        await recorder.until(lambda: len(recorder.exits) == len(others))
        recorder.exits.clear()
        found = [cell.statistics(vm) for vm in others]
        assert all(each.recycled and each.private_pages > 6000 for each in found)
        return gap, sum(each.reset_ns for each in found)

    async def main(cell, recorder):
        for _ in range(8):  # the machine has other work, too
            gap, whole = await attempt(cell, recorder)
            if gap < whole / 2:
                return
        raise AssertionError((gap, whole))

    run(bare_cell, guest(body), tmp_path / "snapshot", main, vms=9, recycle_pages=1 << 16)
