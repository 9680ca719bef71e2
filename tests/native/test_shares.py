"""CPU time: what counts as a VM's, limits that are kept, whose turn it is. Judged by CPU time, the kernel's where it can be."""

import asyncio
import contextlib
import time

import pytest
from agentfw_vmm import report
from agentfw_vmm.cell import Cell

from . import bare

pytestmark = pytest.mark.kvm

# What a VM does is the byte that comes on its stdin.
BODY = """
static char role(void) {
    while (WIN->flow[0].rx_head == WIN->flow[0].rx_tail) { CTL->deadline = ~0ull; CTL->wake = 0; park(); }
    return *(volatile char *)(AFW_WINDOW + AFW_WINDOW_DATA + AFW_RING);
}
static void files(void) {
    CHECK(call(AFW_OP_COMMIT, 0x4000000, 8 << 20, 0, 0, 0, 0) == 0);
    int64_t h = call(AFW_OP_OPEN, (u64)"/tmp/a", 6, 0102, 0600, AFW_CWD, 0);
    CHECK(h > 0 && call(AFW_OP_TRUNCATE, (u64)h, 8 << 20, 0, 0, 0, 0) == 0);
    for (;;) {
        for (int i = 0; i < 60; i++) post(AFW_OP_PREAD, AFW_SQE_NOREPLY, (u64)h, 0x4000000, 8 << 20, 0, 0, 0);
        kick();
    }
}
void run(void) {
    u64 due;
    switch (role()) {
    case 's': for (;;);                                                        /* spins */
    case 'e': for (;;) call(AFW_OP_NOP, 0, 0, 0, 0, 0, 0);                     /* exits */
    case 'p': for (;;) { CTL->deadline = now(); park(); }                      /* pretends to wait */
    case 'z': for (;;) { CTL->deadline = now() + 200000; park(); for (int i = 0; i < 100000; i++) __asm__ volatile(""); }
    case 'f': files();                                                         /* has the host do it */
    case 'w':                                                                  /* wakes by the clock, 40 times */
        for (int i = 0; i < 40; i++) {
            due = now() + 20000000;
            while (now() < due) { CTL->deadline = due; CTL->wake = 0; park(); }
        }
        leave(0);
    case 'a':                                                                  /* answers */
        say("up\\n", 3);
        while (WIN->flow[0].rx_head < 2) { CTL->deadline = ~0ull; CTL->wake = 0; park(); }
        say("yes\\n", 4);
        leave(0);
    }
    leave(1);
}
"""


@contextlib.asynccontextmanager
async def cell_with(program, path, roles: str, **changes):
    """A cell whose VM i has role `roles[i]`."""
    recorder = bare.Recorder()
    settings = {"vms": len(roles), "memory": 192 << 20, "tmp_bytes": 16 << 20, **changes}
    cell = await Cell.start(bare.config(path, **settings), recorder, program)
    try:
        for vm, role in enumerate(roles):
            cell.boot(vm)
            await cell.stream(vm, 0).send(role.encode())
        yield cell, recorder
    finally:
        await cell.close()


async def measured(cell, seconds: float) -> tuple[float, list[float], float]:
    """CPU seconds of the process, those of each VM, and the seconds they took (rather too many), between two looks."""
    vms = range(cell._config.vms)
    at = time.monotonic()
    began = cell.cpu_seconds()
    before = [cell.statistics(vm).cpu_ns for vm in vms]
    await asyncio.sleep(seconds)
    each = [(cell.statistics(vm).cpu_ns - ns) / 1e9 for vm, ns in zip(vms, before, strict=True)]
    return cell.cpu_seconds() - began, each, time.monotonic() - at


async def used(cell, vm: int, seconds: float) -> None:
    async with asyncio.timeout(20):
        while cell.statistics(vm).cpu_ns < seconds * 1e9:  # noqa: ASYNC110  # it does not tell
            await asyncio.sleep(0.01)


async def held(cell) -> None:
    """Until the process uses next to nothing: its VMs would, but may not."""
    async with asyncio.timeout(20):
        while (await measured(cell, 0.05))[0] > 0.002:
            pass


async def started(cell) -> None:
    async with asyncio.timeout(20):
        for vm in range(cell._config.vms):
            await used(cell, vm, 0.005)


def test_vms_get_equal_time_whatever_they_do_with_it(bare_cell, guest):
    """And what they use is all that the process uses."""

    async def main():
        async with cell_with(bare_cell, guest(BODY), "sepfs") as (cell, _):
            await started(cell)
            found = []
            while len(found) < 10 and (not found or not equal(*found[-1])):  # what else runs here, runs between two looks, too
                found.append((await measured(cell, 1.0))[:2])
            return found

    def equal(process, used):
        return max(used) < 2 * min(used) and 0.9 * process < sum(used) < 1.05 * process

    found = asyncio.run(main())
    assert equal(*found[-1]), found


@pytest.mark.parametrize("role", "sepfz")
def test_a_vm_keeps_to_its_part_of_a_core(bare_cell, guest, role):
    async def main():
        async with cell_with(bare_cell, guest(BODY), role) as (cell, _):
            cell.limit(0, cpu=0.1)
            await started(cell)
            process, used, seconds = await measured(cell, 0.8)
            cell.limit(0)
            async with asyncio.timeout(20):  # and is let go at once
                while (await measured(cell, 0.05))[0] < 0.02:
                    pass
            return process, used[0], seconds

    process, used, seconds = asyncio.run(main())
    # A turn too much at one end, what had gathered at the other; a turn of file operations is as long as the longest of them.
    assert 0 < used <= process + 0.01 and process <= 0.1 * seconds + 0.03, (used, process, seconds)


def test_a_cell_keeps_to_its_share_over_all_its_runners(bare_cell, guest):
    async def main():
        async with cell_with(bare_cell, guest(BODY), "sesp", runners=4) as (cell, _):
            await started(cell)
            cell.share(0.2)
            await asyncio.sleep(0.1)
            held = await measured(cell, 0.8)
            cell.share(None)
            async with asyncio.timeout(20):  # and is let go at once
                while (await measured(cell, 0.05))[0] < 0.02:
                    pass
            return held

    process, used, seconds = asyncio.run(main())
    assert 0 < process <= 0.2 * seconds + 0.04, (process, used, seconds)


def test_the_end_of_a_vms_cpu_time(bare_cell, guest):
    """It is said so, and nobody else ends by it. What was used before the limit was set does not count."""

    async def main():
        async with cell_with(bare_cell, guest(BODY), "sefs") as (cell, recorder):
            await started(cell)
            for vm in range(3):
                cell.limit(vm, cpu_seconds=0.05)
            await recorder.until(lambda: len(recorder.exits) == 3)
            assert cell.live(3)
            return recorder.exits, [cell.statistics(vm).cpu_ns for vm in range(3)]

    exits, used = asyncio.run(main())
    for vm in range(3):
        assert (exits[vm].kind, report.out_of_cpu(exits[vm])) == ("killed", True)
        assert exits[vm].text == "CPU time: it used the 0.050 s that it may"
        assert 55_000_000 <= used[vm] < 200_000_000
    assert not report.out_of_cpu(report.VmExit("killed", 0, 0, "killed"))


def test_commands_are_served_while_vms_wait_for_their_credit(bare_cell, guest):
    """A VM that owes seconds is killed before what is asked for after it is answered."""

    async def main():
        async with cell_with(bare_cell, guest(BODY), "fa") as (cell, recorder):
            assert await cell.stream(1, 1).receive() == b"up\n"
            await used(cell, 0, 0.02)
            cell.limit(0, cpu=0.001)
            await held(cell)
            cell.kill(0)
            await cell.stream(1, 0).send(b"?")
            assert await cell.stream(1, 1).receive() == b"yes\n"
            assert recorder.exits.pop(0).text == "killed"
            await recorder.until(lambda: 1 in recorder.exits)

            cell.boot(0)
            await cell.stream(0, 0).send(b"s")
            await used(cell, 0, 0.02)
            cell.share(0.001)
            await held(cell)
            cell.kill(0)
            await recorder.until(lambda: 0 in recorder.exits)

    asyncio.run(main())


def test_a_vm_that_was_idle_need_not_wait_for_a_round_of_busy_ones(bare_cell, guest):
    """40 wake-ups 20 ms apart beside 24 VMs that spin: a round of those would be 120 ms, 24 turns. Counted in turns, which do not
    pass while somebody else has the CPU."""

    async def main():
        async with cell_with(bare_cell, guest(BODY), "s" * 24 + "w", memory=96 << 20) as (cell, recorder):

            def turns():
                return sum(cell.statistics(vm).exits_signal for vm in range(24))

            before = turns()
            await recorder.until(lambda: 24 in recorder.exits, 60)
            return turns() - before, recorder.exits[24]

    count, end = asyncio.run(main())
    assert end.code == 0
    assert count < 40 * 10, count


def test_commands_and_deadlines_end_the_turn_of_another(bare_cell, guest):
    """With slices of 10 s: a line is answered, 40 sleeps of 20 ms end, a VM is killed beside one that spins."""

    async def main():
        async with cell_with(bare_cell, guest(BODY), "saw", slice_ns=10_000_000_000) as (cell, recorder):
            async with asyncio.timeout(9):
                assert await cell.stream(1, 1).receive() == b"up\n"
                await cell.stream(1, 0).send(b"?")
                assert await cell.stream(1, 1).receive() == b"yes\n"
                await recorder.until(lambda: 2 in recorder.exits)
                cell.kill(0)
                await recorder.until(lambda: 0 in recorder.exits)

    asyncio.run(main())


def test_nonsense_is_refused(bare_cell, guest):
    async def main():
        async with cell_with(bare_cell, guest(BODY), "s") as (cell, recorder):
            for bad in (0, -1, 1e9, float("nan"), float("inf")):
                with pytest.raises(ValueError, match="share"):
                    cell.share(bad)
                with pytest.raises(ValueError, match="share"):
                    cell.limit(0, cpu=bad)
            for bad in (0, -1, 1e12, float("nan"), float("inf")):
                with pytest.raises(ValueError, match="seconds"):
                    cell.limit(0, cpu_seconds=bad)
            for kind in (16, 17):  # a worker's own slip: the largest numbers are as good as no limit
                cell._command(0, kind, 0, 2**64 - 1, b=2**64 - 1)
            assert (await measured(cell, 0.1))[0] > 0
            cell.kill(0)
            await recorder.until(lambda: 0 in recorder.exits)
            cell.limit(0, cpu=0.5)  # gone: nothing
        assert cell.cpu_seconds() > 0

    asyncio.run(main())
