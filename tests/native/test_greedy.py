"""Guests that want more than their share of what a cell has for all: memory, pieces of address space, turns."""

import asyncio
from pathlib import Path

import pytest
from agentfw_vmm.cell import Cell

from . import bare

pytestmark = pytest.mark.kvm


def test_a_mapped_file_takes_its_place_though_it_has_no_name(bare_cell, guest):
    """Else a guest fills the host's memory: make a file of the limit's size, map one page of it, unlink it, and again."""
    body = """
    #define AT 0x3000000ull
    static int64_t file(const char *path) { return call(AFW_OP_OPEN, (u64)path, 6, 0102, 0600, AFW_CWD, 0); }
    static int64_t grow(int64_t h) { return call(AFW_OP_TRUNCATE, (u64)h, 6 << 20, 0, 0, 0, 0); }
    static int64_t zero(u64 page) { return call(AFW_OP_ZERO, AT + page * 4096, 4096, 0, 0, 0, 0); }
    void run(void) {
        int64_t h = file("/tmp/a"), g = file("/tmp/b");
        CHECK(h > 0 && g > 0 && grow(h) == 0);
        CHECK(call(AFW_OP_PWRITE, (u64)h, (u64)"text", 4, 8192, 0, 0) == 4);
        CHECK(call(AFW_OP_MAPFILE, (u64)h, AT, 3 * 4096, 3, 1, 0) == 0);
        CHECK(call(AFW_OP_CLOSE, (u64)h, 0, 0, 0, 0, 0) == 0);
        CHECK(call(AFW_OP_UNLINK, (u64)"/tmp/a", 6, 0, 0, AFW_CWD, 0) == 0);
        CHECK(grow(g) == -28);
        CHECK(zero(1) == 0 && grow(g) == -28);       /* two pieces of it now */
        CHECK(zero(0) == 0 && grow(g) == -28);
        CHECK(*(volatile char *)(AT + 8192) == 't');
        CHECK(zero(2) == 0 && grow(g) == 0);         /* nothing of it is left */
        leave(0);
    }
    """
    end, output = asyncio.run(bare.run_guest(bare_cell, guest(body), tmp_bytes=10 << 20))
    assert (end.kind, end.code, output) == ("code", 0, b"")


PIECES = """
void run(void) {
    u64 base = 0x3000000, pages = (0x4000000 - base) / 4096, n = 0;
    CHECK(call(AFW_OP_COMMIT, base, pages * 4096, 0, 0, 0, 0) == 0);
    CHECK(call(AFW_OP_COMMIT, 0x4000000, 64 << 20, 0, 0, 0, 0) == 0);
    pages += (64 << 20) / 4096;
    int64_t r = 0;
    for (; n < pages && !(r = call(AFW_OP_PROTECT, base + n * 4096, 4096, 1, 0, 0, 0)); n += 2);
    CHECK(r == -12 && n > 1000);
    CHECK(call(AFW_OP_MAPFILE, 1, base + n * 4096, 4096, 1, 2, 0) < 0);
    say("held\\n", 5);
    while (WIN->flow[0].rx_head == WIN->flow[0].rx_tail) { CTL->deadline = ~0ull; CTL->wake = 0; park(); }
    CHECK(call(AFW_OP_ZERO, base, pages * 4096, 0, 0, 0, 0) == 0);       /* with none left one can still have fewer */
    CHECK(call(AFW_OP_PROTECT, base + 4096, 4096, 0, 0, 0, 0) == 0);
    leave(0);
}
"""


def test_no_vm_has_all_pieces_of_the_address_space(bare_cell, guest):
    """A process may have 65,530 mappings: VMs that protect every other page must not keep others from starting."""
    vms, limit = 6, int(Path("/proc/sys/vm/max_map_count").read_text())

    def in_use(pid):
        return Path(f"/proc/{pid}/maps").read_text().count("\n")

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(guest(PIECES), vms=vms, memory=192 << 20), recorder, bare_cell)
        try:
            for vm in range(vms):
                cell.boot(vm)
                async with asyncio.timeout(60):
                    assert await cell.stream(vm, 1).receive() == b"held\n"
            assert in_use(cell.pid) < limit - 1000
            for vm in range(vms):
                await cell.stream(vm, 0).send(b"go")
            await recorder.until(lambda: len(recorder.exits) == vms or recorder.failed, 60)
        finally:
            await cell.close()
        assert not recorder.failed
        return {(end.kind, end.code) for end in recorder.exits.values()}

    assert asyncio.run(main()) == {("code", 0)}


TURNS = """
#define BUFFER 0x4000000ull
static char role(void) {
    while (WIN->flow[0].rx_head == WIN->flow[0].rx_tail) { CTL->deadline = ~0ull; CTL->wake = 0; park(); }
    return *(volatile char *)(AFW_WINDOW + AFW_WINDOW_DATA + AFW_RING);
}
void run(void) {
    if (role() == 'a') {
        CHECK(call(AFW_OP_COMMIT, BUFFER, 64 << 20, 0, 0, 0, 0) == 0);
        int64_t h = call(AFW_OP_OPEN, (u64)"/tmp/a", 6, 0102, 0600, AFW_CWD, 0);
        CHECK(h > 0 && call(AFW_OP_TRUNCATE, (u64)h, 64 << 20, 0, 0, 0, 0) == 0);
        for (int i = 0; i < 20; i++) call(AFW_OP_NOP, 0, 0, 0, 0, 0, 0);
        say_number(now());
        for (int i = 0; i < 60; i++) post(AFW_OP_PREAD, AFW_SQE_NOREPLY, (u64)h, BUFFER, 64 << 20, 0, 0, 0);
        kick();
        say_number(now());
    } else {
        for (;;) {
            say_number(now());
            CTL->deadline = now() + 1000000;
            park();
        }
    }
    leave(0);
}
"""


def test_a_full_ring_of_long_operations_is_no_single_turn(bare_cell, guest):
    """60 reads of 64 MiB, asked for at once: the other VM of the runner runs meanwhile, and a kill would be heard."""

    async def collect(stream, into):
        while data := await stream.receive():
            into += data

    async def main():
        recorder = bare.Recorder()
        said = [bytearray(), bytearray()]
        cell = await Cell.start(bare.config(guest(TURNS), vms=2, memory=256 << 20, slice_ns=1_000_000), recorder, bare_cell)
        try:
            tasks = []
            for vm in (1, 0):
                cell.boot(vm)
                tasks.append(asyncio.create_task(collect(cell.stream(vm, 1), said[vm])))
                await cell.stream(vm, 0).send(b"ab"[vm : vm + 1])
            await recorder.until(lambda: 0 in recorder.exits, 60)
            cell.kill(1)
            await recorder.until(lambda: 1 in recorder.exits)
            await asyncio.gather(*tasks)
        finally:
            await cell.close()
        assert recorder.exits[0].kind == "code" and recorder.exits[0].code == 0, said[0]
        return [[int(line) for line in text.split(b"\n")[:-1]] for text in said]

    (before, after), turns = asyncio.run(main())
    assert len([t for t in turns if before < t < after]) >= 10


def test_memory_outside_of_the_process_is_counted_and_given_back(bare_cell, guest):
    """Private files and windows are memfds: of these the kernel says of no process that they are its. When a VM has ended
    the files are empty, and in a while its window, though nobody may follow in its place."""
    body = """
    void run(void) {
        int64_t h = call(AFW_OP_OPEN, (u64)"/tmp/a", 6, 0102, 0600, AFW_CWD, 0);
        int64_t g = call(AFW_OP_OPEN, (u64)"/tmp/b", 6, 0102, 0600, AFW_CWD, 0);
        CHECK(h > 0 && g > 0 && call(AFW_OP_TRUNCATE, (u64)h, 6 << 20, 0, 0, 0, 0) == 0);
        CHECK(call(AFW_OP_TRUNCATE, (u64)g, 4 << 20, 0, 0, 0, 0) == 0 && call(AFW_OP_TRUNCATE, (u64)g, 1 << 20, 0, 0, 0, 0) == 0);
        CHECK(call(AFW_OP_CLOSE, (u64)h, 0, 0, 0, 0, 0) == 0);
        CHECK(call(AFW_OP_UNLINK, (u64)"/tmp/b", 6, 0, 0, AFW_CWD, 0) == 0);
        volatile char *window = (volatile char *)AFW_WINDOW;
        for (u64 at = AFW_WINDOW_DATA + 8 * AFW_RING; at < AFW_WINDOW_SIZE; at += 4096) window[at] = 1;
        say("full\\n", 5);
        while (WIN->flow[0].rx_head == WIN->flow[0].rx_tail) { CTL->deadline = ~0ull; CTL->wake = 0; park(); }
        leave(0);
    }
    """
    rings = (0x1010000 - 0x10000 - 8 * 0x10000) // 4096 * 4096

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(guest(body), vms=2, tmp_bytes=10 << 20), recorder, bare_cell)
        try:
            assert cell.other_memory() < 1 << 20
            cell.boot(0)
            async with asyncio.timeout(30):
                assert await cell.stream(0, 1).receive() == b"full\n"
            assert (7 << 20) + rings <= cell.other_memory() < (8 << 20) + rings
            await cell.stream(0, 0).send(b"go")
            await recorder.until(lambda: recorder.exits)
            assert recorder.exits[0].code == 0 and cell.other_memory() < (1 << 20) + rings
            async with asyncio.timeout(10):
                while cell.other_memory() >= 1 << 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            await cell.close()
        assert cell.other_memory() == 0

    asyncio.run(main())


LISTS = """
#define BUFFER 0x4000000ull
static u64 length(const char *s) { u64 n = 0; while (s[n]) n++; return n; }
static int64_t open_it(const char *path, u64 flags) { return call(AFW_OP_OPEN, (u64)path, length(path), flags, 0, AFW_CWD, 0); }
static void maps(void) {
    struct afw_region *table = (struct afw_region *)BUFFER;
    for (uint32_t i = 0; i < 1 << 20; i++) table[i] = (struct afw_region){1, 2, AFW_REGION_MAPPED};
    CTL->stack_lo = 0;
    CTL->regions = BUFFER;
    CTL->n_regions = 1 << 20;
    for (int i = 0; i < 4; i++) {
        int64_t h = open_it("/proc/self/maps", 0);
        CHECK(h > 0);
        int64_t n = call(AFW_OP_PREAD, h, BUFFER + (16 << 20), 1 << 20, 0, 0, 0);
        CHECK(n > 1 << 18 && ((char *)BUFFER + (16 << 20))[n - 1] == '\\n');
        CHECK(call(AFW_OP_CLOSE, h, 0, 0, 0, 0, 0) == 0);
    }
}
static void threads(void) {
    volatile char *thread = (volatile char *)BUFFER;
    *(volatile uint32_t *)(thread + AFW_THREAD_TID) = 7;
    *(volatile u64 *)(thread + AFW_THREAD_NEXT) = BUFFER;
    CTL->threads = BUFFER;
    int64_t h = open_it("/proc/self/task", 0200000), n;
    CHECK(h > 0);
    u64 cookie = 0, found = 0;
    while ((n = call(AFW_OP_READDIR, h, BUFFER + 4096, 32768, cookie, 0, 0)) > 0)
        for (int64_t at = 0; at < n; at += *(uint16_t *)(BUFFER + 4096 + at + 16), found++)
            cookie = *(u64 *)(BUFFER + 4096 + at + 8);
    CHECK(n == 0 && found == 2 + AFW_THREADS_MAX);
}
void run(void) {
    CHECK(call(AFW_OP_COMMIT, BUFFER, 32 << 20, 0, 0, 0, 0) == 0);
    WHAT();
    leave(0);
}
"""


@pytest.mark.parametrize(("what", "seconds"), [("maps", 0.4), ("threads", 0.15)])
def test_what_a_guest_says_that_it_has_is_not_looked_at_for_long(bare_cell, guest, what, seconds):
    """A table of a million mappings, a thread that is followed by itself: others of the runner wait while they are listed."""

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(guest(LISTS, f"-DWHAT={what}"), memory=128 << 20), recorder, bare_cell)
        try:
            cell.boot(0)
            await recorder.until(lambda: recorder.exits or recorder.failed, 60)
            end = recorder.exits[0]
            assert (end.kind, end.code) == ("code", 0), (end, cell.stream(0, 1).read())
            assert cell.cpu_ns(0) < seconds * 1e9
        finally:
            await cell.close()

    asyncio.run(main())
