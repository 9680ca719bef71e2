"""The cell against guests that speak to its ring directly: life, memory, faults, lies."""

import asyncio
import time
from pathlib import Path

import pytest
from agentfw_vmm.cell import Cell

from . import bare

pytestmark = pytest.mark.kvm


def outcome(cell, program, **changes):
    return asyncio.run(bare.run_guest(cell, program, **changes))


def test_exit_code_and_output(bare_cell, guest):
    end, output = outcome(bare_cell, guest('void run(void) { say("hi\\n", 3); leave(7); }'))
    assert (end.kind, end.code, output) == ("code", 7, b"hi\n")


def test_program_finds_arguments_environment_and_auxv(bare_cell, guest):
    body = """
    #define _(x) (x)
    void main_(u64 *sp) {
        u64 argc = sp[0];
        const char **argv = (const char **)(sp + 1);
        const char **env = argv + argc + 1;
        CHECK(argc == 2 && argv[1][0] == 'a' && argv[1][2] == 'c' && !argv[2]);
        CHECK(env[0][0] == 'K' && env[0][2] == 'v' && !env[1]);
        u64 *aux = (u64 *)(env + 2), seen = 0;
        for (; aux[0]; aux += 2) {
            if (aux[0] < 64) seen |= 1ull << aux[0];
            if (aux[0] == 6) CHECK(aux[1] == 4096);
            if (aux[0] == 23) CHECK(aux[1] == 0);
            if (aux[0] == 26) CHECK(aux[1] == 2);
            if (aux[0] == 33) CHECK(0);
        }
        CHECK((seen & 0x600038eff78ull & ~0x20000000000ull) == (0x600038eff78ull & seen));
        u64 must[] = {3, 4, 5, 6, 7, 9, 11, 12, 13, 14, 15, 16, 17, 23, 25, 26, 31, 51};
        for (unsigned i = 0; i < sizeof must / 8; i++) CHECK(seen >> must[i] & 1);
        CHECK(((u64)sp & 15) == 0);
        leave(0);
    }
    void run(void) { __asm__ volatile("mov 0x2040c0, %rdi\\n jmp main_"); }
    """
    end, output = outcome(bare_cell, guest(body), argv=["guest", "abc"], env={"K": "v"})
    assert (end.kind, end.code) == ("code", 0), output


def test_memory_commit_zero_protect(bare_cell, guest):
    body = """
    void run(void) {
        u64 high = 0x40000000;
        CHECK(call(AFW_OP_COMMIT, high, 1, 0, 0, 0, 0) == 0);
        CHECK(call(AFW_OP_COMMIT, high, AFW_CHUNK, 0, 0, 0, 0) == 0);      /* again: nothing new */
        volatile u64 *p = (u64 *)high;
        p[0] = 1; p[512] = 2;
        CHECK(call(AFW_OP_COMMIT, 0x80000000, 40ull << 20, 0, 0, 0, 0) == -12);  /* 64 + 32 + 64 MiB is over 128 */
        CHECK(call(AFW_OP_ZERO, high, 4096, 0, 0, 0, 0) == 0);
        CHECK(p[0] == 0 && p[512] == 2);
        CHECK(call(AFW_OP_PROTECT, high, 4096, 1, 0, 0, 0) == 0);
        CHECK(p[0] == 0);
        CHECK(call(AFW_OP_PROTECT, high, 4096, 3, 0, 0, 0) == 0);
        p[0] = 3;
        CHECK(p[0] == 3);
        CHECK(call(AFW_OP_PROTECT, high, 4096, 8, 0, 0, 0) == -22);
        CHECK(call(AFW_OP_PROTECT, 0x204000, 4096, 0, 0, 0, 0) == -12);    /* the system area is the cell's */
        CHECK(call(AFW_OP_ZERO, 0x204000, 4096, 0, 0, 0, 0) == -12);
        CHECK(call(AFW_OP_ZERO, 0x1000, 4096, 0, 0, 0, 0) == -12);
        CHECK(call(AFW_OP_ZERO, AFW_WINDOW, 4096, 0, 0, 0, 0) == -12);
        CHECK(call(AFW_OP_ZERO, high + 1, 4096, 0, 0, 0, 0) == -22);
        CHECK(call(AFW_OP_ZERO, high, ~0ull - 10, 0, 0, 0, 0) < 0);
        CHECK(call(AFW_OP_ZERO, high + AFW_CHUNK - 4096, 8192, 0, 0, 0, 0) == -12);
        CHECK(call(AFW_OP_COMMIT, AFW_SPACE_END - 1, 2, 0, 0, 0, 0) < 0);
        CHECK(call(AFW_OP_COMMIT, ~0ull, 2, 0, 0, 0, 0) < 0);
        CHECK(call(999, 0, 0, 0, 0, 0, 0) == -38);
        leave(0);
    }
    """
    end, output = outcome(bare_cell, guest(body))
    assert (end.kind, end.code) == ("code", 0), output


FAULTS = {
    "null": ("*(volatile int *)8 = 1;", 11, "0x8"),
    "read_only": ("call(AFW_OP_PROTECT, 0x3000000, 4096, 1, 0, 0, 0); *(volatile int *)0x3000010 = 1;", 11, "0x3000010"),
    "none": ("call(AFW_OP_PROTECT, 0x3000000, 4096, 0, 0, 0, 0); *(volatile int *)0x3000010;", 11, "0x3000010"),
    "uncommitted_read": ("*(volatile int *)0x50000010;", 11, "0x50000010"),
    "uncommitted_write": ("*(volatile int *)0x50000010 = 1;", 11, "0x50000010"),
    "uncommitted_avx": (
        'if (CTL->xcr0 & 4) __asm__ volatile("vmovdqu 0x50000010, %%ymm0" ::: "xmm0"); else *(volatile int *)1 = 1;',
        11,
        "",
    ),
    "beyond_the_space": ("*(volatile int *)0x7f0000000000 = 1;", 11, "0x7f0000000000"),
    "not_canonical": ("*(volatile int *)0x8000000000000000 = 1;", 11, "general protection"),
    "wild_jump": ("((void (*)(void))0x50000000)();", 11, "0x50000000"),
    "null_call": ("((void (*)(void))0)();", 11, "address 0x0"),
    "stack_guard": ('__asm__ volatile("mov %0, %%rsp; push %%rax" :: "r"(CTL->stack_lo));', 11, "protection"),
    "ud2": ('__asm__ volatile("ud2");', 4, "SIGILL"),
    "division": ('__asm__ volatile("xor %%ecx, %%ecx; div %%ecx" ::: "rcx", "rax", "rdx");', 8, "SIGFPE"),
    "int3": ('__asm__ volatile("int3");', 5, "SIGTRAP"),
    "int80": ('__asm__ volatile("int $0x80");', (4, 11), "SIG"),  # pvm says invalid instruction
    "hlt": ('__asm__ volatile("hlt");', 11, "SIGSEGV"),
    "port": ('__asm__ volatile("outb %%al, $0x80" ::: "memory");', 11, "SIGSEGV"),
    "in": ('__asm__ volatile("inb $0x30, %%al" ::: "rax");', 11, "SIGSEGV"),
    "write_shim_tables": ('__asm__ volatile("mov %%cr3, %%rax" ::: "rax");', 11, "SIGSEGV"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_reported(bare_cell, guest, name):
    code, number, text = FAULTS[name]
    end, output = outcome(bare_cell, guest(f'void run(void) {{ {code} say("alive\\n", 6); leave(1); }}'))
    assert end.kind == "signal" and end.signal in (number if isinstance(number, tuple) else (number,)), (end, output)
    assert text in end.text
    if name not in ("wild_jump", "null_call"):
        assert "guest1" in end.text  # the module


@pytest.mark.parametrize(
    "name", ["null", "none", "uncommitted_read", "uncommitted_write", "uncommitted_avx", "ud2", "division", "int3", "wild_jump"]
)
def test_fault_reaches_the_guests_handler(bare_cell, guest, name):
    code, number, text = FAULTS[name]
    address = text if text.startswith("0x") else ""
    body = """
    void handler(void) {
        CHECK(CTL->up_kind == AFW_UP_FAULT && CTL->up_signal == NUMBER);
        u64 want = ADDRESS;
        CHECK(!want || !CTL->up_addr || CTL->up_addr == want);
        CHECK(CTL->up_rip >= 0x400000 && CTL->up_rflags & 2);
        CHECK(CTL->up_rsp < CTL->stack_hi && CTL->up_rsp > CTL->stack_lo);
        leave(42);
    }
    void run(void) {
        HANDLER = (u64)handler;
        CTL->fault_handlers = 1ull << (NUMBER - 1);
        CODE
        leave(1);
    }
    """
    body = body.replace("NUMBER", str(number)).replace("ADDRESS", address or "0").replace("CODE", code)
    end, output = outcome(bare_cell, guest(body))
    assert (end.kind, end.code) == ("code", 42), (end, output)


LIES = {
    "tail_far_ahead": ("CTL->sq_tail = 100; kick();", "sq_tail"),
    "tail_behind": ("CTL->sq_tail = CTL->sq_tail - 1; kick();", "sq_tail"),
    "tail_wraps": ("CTL->sq_tail = 0xffffffff; park();", "sq_tail"),
    "answers_not_taken": ("for (int i = 0; i < 1000; i++) { post(AFW_OP_NOP, 0, 0, 0, 0, 0, 0, 0); kick(); }", "no room"),
    "answer_index": ("CTL->cq_head = 77; post(AFW_OP_NOP, 0, 0, 0, 0, 0, 0, 0); kick();", "no room"),
    "ready_unanswered": ("post(AFW_OP_READY, AFW_SQE_NOREPLY, 0, 0, 0, 0, 0, 0); kick();", "READY"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_corrupt_ring_ends_the_vm_and_only_that(bare_cell, guest, name):
    code, text = LIES[name]
    end, output = outcome(bare_cell, guest(f"void run(void) {{ {code} leave(1); }}"))
    assert end.kind == "hostile" and text in end.text, (end, output)


def test_indices_wrap(bare_cell, guest):
    body = """
    void run(void) {
        for (u64 i = 0; i < 5000; i++) CHECK(call(AFW_OP_NOP, 0, 0, 0, 0, 0, 0) == 0);
        for (u64 i = 0; i < 64; i++) post(AFW_OP_NOP, AFW_SQE_NOREPLY, 0, 0, 0, 0, 0, 0);
        kick();
        CHECK(CTL->sq_head == CTL->sq_tail && CTL->cq_head == CTL->cq_tail);
        leave(0);
    }
    """
    end, output = outcome(bare_cell, guest(body))
    assert (end.kind, end.code) == ("code", 0), output


def test_flow_arguments_are_checked(bare_cell, guest):
    body = """
    void run(void) {
        CHECK(call(AFW_OP_FLOW_KICK, 128, 0, 0, 0, 0, 0) == -22);
        CHECK(call(AFW_OP_FLOW_KICK, ~0ull, 0, 0, 0, 0, 0) == -22);
        CHECK(call(AFW_OP_FLOW_OPEN, 3, 1, 2, 0, 0, 80) == -22);
        CHECK(call(AFW_OP_FLOW_OPEN, 128, 1, 2, 0, 0, 80) == -22);
        CHECK(call(AFW_OP_FLOW_OPEN, 4, 3, 2, 0, 0, 80) < 0);
        CHECK(call(AFW_OP_FLOW_OPEN, 4, 1, 3, 0, 0, 80) < 0);
        CHECK(call(AFW_OP_FLOW_OPEN, 4, 1, 2, 0, 0, 65536) == -22);
        CHECK(call(AFW_OP_FLOW_OPEN, 4, 1, 2, 0x0100007f, 0, 80) == 0);
        CHECK(call(AFW_OP_FLOW_OPEN, 4, 1, 2, 0x0100007f, 0, 80) < 0);    /* is in use */
        leave(0);
    }
    """
    end, output = outcome(bare_cell, guest(body))
    assert (end.kind, end.code) == ("code", 0), output


def test_park_until_deadline_and_clock(bare_cell, guest):
    body = """
    void run(void) {
        CTL->wake = 0;
        u64 a = now();
        say_number(a);
        for (int i = 0; i < 5; i++) {
            u64 before = now();
            CTL->deadline = before + 10000000;
            park();
            CHECK(now() - before >= 10000000);
        }
        CTL->deadline = 0;
        park();                                  /* in the past: at once */
        say_number(now());
        leave(0);
    }
    """
    start = time.monotonic_ns()
    end, output = outcome(bare_cell, guest(body))
    stop = time.monotonic_ns()
    assert (end.kind, end.code) == ("code", 0), output
    first, last = map(int, output.split())
    assert start < first < last < stop  # the guest's clock is the host's CLOCK_MONOTONIC
    assert last - first >= 50_000_000


def test_spinning_vms_share_a_runner_and_can_be_killed(bare_cell, guest):
    body = 'void run(void) { u64 n = 0; for (;;) if (!(++n & 0xffffff)) say("tick\\n", 5); }'

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(guest(body), vms=3), recorder, bare_cell)
        try:
            for vm in range(3):
                cell.boot(vm)
            async with asyncio.timeout(60):
                for vm in range(3):
                    assert (await cell.stream(vm, 1).receive()).startswith(b"tick")
            async with asyncio.timeout(30):
                while not all(cell.statistics(vm).exits_signal for vm in range(3)):
                    await cell.stream(0, 1).receive()
            cell.kill(1)
            await recorder.until(lambda: 1 in recorder.exits)
            assert recorder.exits[1].kind == "killed"
            assert cell.live(0) and cell.live(2)
            cell.boot(1)  # its number is free again
            async with asyncio.timeout(60):
                assert await cell.stream(1, 1).receive()
            assert cell.statistics(0).cpu_ns > 0
        finally:
            await cell.close()
        assert not recorder.failed

    asyncio.run(main())


def test_slices_make_upcalls_unless_alone(bare_cell, guest):
    body = """
    void run(void) {
        CTL->wake = 0;
        CTL->alone = 1;
        for (u64 end = now() + 50000000; now() < end;);
        CHECK(UPCALLS == 0);
        CTL->alone = 0;
        for (u64 end = now() + 20000000000; now() < end && UPCALLS < 3;);
        CHECK(UPCALLS >= 3 && CTL->up_kind == AFW_UP_RESCHED);
        leave(0);
    }
    """
    end, output = outcome(bare_cell, guest(body))
    assert (end.kind, end.code) == ("code", 0), output


def test_slices_that_are_over_before_the_guest_has_begun(bare_cell, guest):
    """As on an emulated KVM, or a host that gives us hardly any CPU: entering takes longer than a slice."""
    body = """
    void run(void) {
        CTL->wake = 0;
        CTL->alone = 1;
        for (volatile u64 i = 0; i < 300000; i++);
        leave(7);
    }
    """
    end, output = outcome(bare_cell, guest(body), slice_ns=10_000)
    assert (end.kind, end.code) == ("code", 7), output


def test_signals_and_wakes_reach_a_parked_vm(bare_cell, guest):
    body = """
    void run(void) {
        CTL->wake = 0;
        CTL->deadline = ~0ull;
        say("up\\n", 3);
        while (!CTL->sigpending) { CTL->wake = 0; park(); }
        CHECK(CTL->sigpending == 1ull << 14);
        leave(15);
    }
    """

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(guest(body)), recorder, bare_cell)
        try:
            cell.boot(0)
            async with asyncio.timeout(30):
                await cell.stream(0, 1).receive()
            cell.signal(0, 15)
            await recorder.until(lambda: recorder.exits)
            assert recorder.exits[0].code == 15
        finally:
            await cell.close()

    asyncio.run(main())


def test_event_queue_full_loses_nothing(bare_cell, guest):
    """More kicks in one doorbell than the queue holds: the VM waits for the worker, all are delivered."""
    body = """
    void run(void) {
        for (int round = 0; round < 40; round++) {
            for (int i = 0; i < 60; i++) post(AFW_OP_FLOW_KICK, AFW_SQE_NOREPLY, 1, 0, 0, 0, 0, 0);
            CHECK(call(AFW_OP_NOP, 0, 0, 0, 0, 0, 0) == 0);
        }
        say("done\\n", 5);
        leave(0);
    }
    """
    end, output = outcome(bare_cell, guest(body))
    assert (end.code, output) == (0, b"done\n")


def process_status(pid):
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)


def test_cell_says_what_it_gave_up(bare_cell, guest):
    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(guest("void run(void) { leave(0); }")), recorder, bare_cell)
        try:
            assert cell.jail & 0b11011 == 0b11011  # Landlock is the kernel's choice
            status = process_status(cell.pid)
            assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
        finally:
            await cell.close()

    asyncio.run(main())


SNAPSHOT = """
    static u64 counter = 5;
    void run(void) {
        volatile u64 *heap = (u64 *)CTL->mmap_base, xmm[2] = {0x1122334455667788, 0x99aabbccddeeff00}, out[2] = {0, 0};
        u64 r12 = 0xabcdef, fs = 0x123456000;
        heap[0] = 77;
        heap[5000000 / 8] = 78;
        CHECK(call(AFW_OP_PROTECT, (u64)heap + 0x100000, 4096, 0, 0, 0, 0) == 0);
        __asm__ volatile("wrfsbase %0" :: "r"(fs));
        post(AFW_OP_READY, 0, 0, 0, 0, 0, 0, 0);
        __asm__ volatile("movdqu %1, %%xmm5; out %%al, $0x30; movdqu %%xmm5, %0"
                         : "=m"(out), "+m"(xmm), "+r"(r12) :: "xmm5", "memory");
        int64_t r = CQ[CTL->cq_head % AFW_CQ_LEN].res;
        CTL->cq_head = CTL->cq_head + 1;
        u64 now_fs;
        __asm__ volatile("rdfsbase %0" : "=r"(now_fs));
        CHECK(now_fs == fs && out[0] == xmm[0] && out[1] == xmm[1] && r12 == 0xabcdef);
        CHECK(heap[0] == 77 && heap[5000000 / 8] == 78 && heap[1000] == 0);
        counter++;
        CHECK(counter == 6);
        if (r == 0) {
            CHECK(CTL->generation == 1 && CTL->pid != 2);
            CHECK(call(AFW_OP_NOP, 0, 0, 0, 0, 0, 0) == 0);
            say_number(CTL->pid);
            say_number(CTL->random[0] | CTL->random[1] << 8 | CTL->random[2] << 16 | (u64)CTL->random[3] << 24);
            if (CTL->pid == 1003) ((volatile char *)heap)[0x100010] = 1;   /* still PROT_NONE */
            leave((int)(CTL->pid - 1000));
        }
        leave(r == 1 ? 100 : 101);
    }
"""


async def make_snapshot(cell_program, program, path):
    recorder = bare.Recorder()
    cell = await Cell.start(bare.config(program, snapshot_out=path, key=b"k" * 32), recorder, cell_program)
    try:
        cell.boot(0)
        await recorder.until(lambda: recorder.exits)
    finally:
        await cell.close()
    return recorder


def test_snapshot_and_restore(bare_cell, guest, tmp_path):
    path = tmp_path / "snapshot"
    program = guest(SNAPSHOT)

    async def main():
        recorder = await make_snapshot(bare_cell, program, path)
        size, error = recorder.ready[0]
        assert error == 0 and size == path.stat().st_size
        assert recorder.exits[0].code == 100, recorder.exits
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(program, vms=4, snapshot_in=path, key=b"k" * 32, runners=2), recorder, bare_cell)
        try:
            for vm in range(4):
                cell.restore(vm, 1000 + vm)
            await recorder.until(lambda: len(recorder.exits) == 4)
            seeds = set()
            for vm in range(3):
                assert recorder.exits[vm].kind == "code" and recorder.exits[vm].code == vm
                async with asyncio.timeout(5):
                    pid, seed = (await cell.stream(vm, 1).receive()).split()
                assert int(pid) == 1000 + vm
                seeds.add(seed)
            assert len(seeds) == 3
            assert recorder.exits[3].signal == 11
            assert cell.statistics(0).restore_ns > 0
        finally:
            await cell.close()

    asyncio.run(main())


def damage(path, where, value):
    data = bytearray(path.read_bytes())
    data[where : where + len(value)] = value
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "where", "value", "text"),
    [
        ("magic", 0, b"XX", "not a snapshot"),
        ("format", 8, b"\7", "format 7"),
        ("abi", 12, b"\x63", "ABI 99"),
        ("size", 16, b"\1\2\3", "size"),
        ("crc", 120, b"\xff", "checksum"),
        ("state", 7000, b"\xff\xfe", "checksum"),
        ("key", None, b"", "key"),
        ("feature", None, b"", "feature unknown"),
        ("short", None, b"", "size"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused(bare_cell, guest, tmp_path, name, where, value, text):
    path = tmp_path / "snapshot"
    program = guest(SNAPSHOT)

    async def main():
        await make_snapshot(bare_cell, program, path)
        key = b"k" * 32
        if name == "key":
            key = b"j" * 32
        elif name == "feature":
            return await feature_test(bare_cell, program, path)
        elif name == "short":
            path.write_bytes(path.read_bytes()[:-4096])
        else:
            damage(path, where, value)
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(program, snapshot_in=path, key=key), recorder, bare_cell)
        try:
            cell.restore(0, 5)
            await recorder.until(lambda: recorder.exits)
            assert recorder.exits[0].kind == "internal" and text in recorder.exits[0].text
        finally:
            await cell.close()

    asyncio.run(main())


async def feature_test(bare_cell, program, path):
    """A head that asks for a feature no baseline has, with a right checksum."""
    data = bytearray(path.read_bytes())
    offset = snapshot_offsets()
    needs = offset["needs"]
    word = int.from_bytes(data[needs + 8 : needs + 16], "little") | 1 << 16  # leaf 7 EBX: avx512f
    data[needs + 8 : needs + 16] = word.to_bytes(8, "little")
    seal(data, offset)
    path.write_bytes(data)
    recorder = bare.Recorder()
    cell = await Cell.start(bare.config(program, snapshot_in=path, key=b"k" * 32), recorder, bare_cell)
    try:
        cell.restore(0, 5)
        await recorder.until(lambda: recorder.exits)
        assert recorder.exits[0].kind == "internal" and "feature unknown" in recorder.exits[0].text
    finally:
        await cell.close()


def snapshot_offsets():
    """Offsets of struct afw_snapshot_header (cell.h)."""
    return {"vcpu_size": 196, "vcpu_offset": 200, "crc": 208, "needs": 240, "size": 272 + 256 * 24}


def seal(data, offset):
    size, at = (
        int.from_bytes(data[offset["vcpu_size"] :][:4], "little"),
        int.from_bytes(data[offset["vcpu_offset"] :][:8], "little"),
    )
    data[offset["crc"] : offset["crc"] + 8] = bytes(8)
    crc = crc64(bytes(data[: offset["size"]]) + bytes(data[at : at + size]))
    data[offset["crc"] : offset["crc"] + 8] = crc.to_bytes(8, "little")


def crc64(data):
    table = []
    for i in range(256):
        c = i
        for _ in range(8):
            c = c >> 1 ^ 0xC96C5795D7870F42 if c & 1 else c >> 1
        table.append(c)
    crc = 2**64 - 1
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 2**64 - 1
