"""A guest that says nonsense at length: its own end is its affair, the cell and the VMs beside it live on."""

import asyncio
import contextlib

import pytest
from agentfw_vmm.cell import Cell

from . import bare

pytestmark = pytest.mark.kvm

RANDOM = """
static u64 s;
static u64 rnd(void) { s ^= s << 13; s ^= s >> 7; s ^= s << 17; return s; }
static u64 value(void) {
    static const u64 some[] = {0, 1, 3, 4, 127, 128, 4095, 4096, 4097, 0x1000, 0x200000, 0x204000, 0x210000, 0x280000, 0x3fffff,
        0x1ffffff, 0x2000000, 0x3000000, 0x3fff000, 0x4000000, 0x5000000, 0x40000000, 0x3bffff000, 0x3c0000000, 0x3c1010000,
        0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0x8000000000000000, ~0ull, ~0xfffull, 0x3000000, 0x3001000, 64, 16 << 20};
    u64 v = some[rnd() % (sizeof some / 8)];
    switch (rnd() % 8) {
    case 0: return rnd();
    case 1: return v + rnd() % 9 - 4;
    case 2: return rnd() % 200;
    default: return v;
    }
}
void run(void) {
    static const char paths[8][24] = {"/t", "/tmp", "/tmp/a", "../..", "/proc/self/exe", "/dev/null", "/tmp/a/b/../c", "/"};
    s = *(volatile u64 *)CTL->random | 1;
    CTL->wake = 0;
    for (int i = 0; i < 64; i++) ((volatile char *)0x3001000)[i] = "/tmp/xyz"[i % 8];
    for (int i = 0; i < %d; i++) {
        u64 a[6];
        for (int k = 0; k < 6; k++) a[k] = value();
        u64 op = rnd() % 72;
        if (op == AFW_OP_EXIT || op == AFW_OP_READY) op = AFW_OP_NOP;
        if (op <= AFW_OP_CHDIR && op != AFW_OP_CLOSE && rnd() % 2) {
            const char *p = paths[rnd() % 8];
            u64 n = 0;
            while (p[n]) n++;
            a[0] = (u64)p, a[1] = n;
            if (rnd() % 2) a[4] = AFW_CWD;
        }
        if (op >= AFW_OP_COMMIT && op <= AFW_OP_PROTECT && a[0] >= 0x400000 && a[0] < 0x3000000) a[0] += 0x3000000;
        if (op == AFW_OP_MAPFILE) { a[0] = rnd() % 6; if (a[1] < 0x3000000) a[1] += 0x4000000; }
        post((uint16_t)op, rnd() % 16 ? 0 : (uint16_t)rnd(), a[0], a[1], a[2], a[3], a[4], a[5]);
        if (rnd() % 8 == 0 || i % 32 == 31) {
            if (rnd() % 4) kick(); else { CTL->deadline = 0; park(); }
            CTL->cq_head = CTL->cq_tail;
            CTL->wake = 0;
        }
    }
    leave(0);
}
"""


def test_random_operations(bare_cell, guest):
    program = guest(RANDOM.replace("%d", "3000"))

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(program, vms=4, memory=192 << 20), recorder, bare_cell)
        ends, done = [], []
        try:
            for _ in range(6):
                recorder.exits.clear()
                for vm in range(4):
                    cell.boot(vm)
                with contextlib.suppress(TimeoutError):
                    await recorder.until(lambda: len(recorder.exits) == 4 or recorder.failed, 3)
                for vm in range(4):  # an operation may have turned a guest's code into an endless loop
                    cell.kill(vm)
                await recorder.until(lambda: len(recorder.exits) == 4 or recorder.failed, 60)
                assert not recorder.failed
                ends += [(end.kind, end.text) for end in recorder.exits.values()]
                done.append(sum(cell.statistics(vm).ring_ops for vm in range(4)))
        finally:
            await cell.close()
        return ends, done

    ends, done = asyncio.run(main())
    other = [end for end in ends if end[0] not in ("code", "signal", "hostile", "memory", "killed")]
    assert not other
    assert sum(done) > 1000, ends  # most VMs get far, a lie about an index ends some early


def test_random_control_page(bare_cell, guest):
    """Words of the control page and of the window are overwritten at random between doorbells."""
    body = """
    static u64 s;
    static u64 rnd(void) { s ^= s << 13; s ^= s >> 7; s ^= s << 17; return s; }
    void run(void) {
        s = *(volatile u64 *)CTL->random | 1;
        for (int i = 0; i < 3000; i++) {
            u64 at = rnd() % (sizeof(struct afw_ctl) / 4);
            u64 v = rnd() % 2 ? rnd() : rnd() % 130;
            /* ring indices mostly stay right, or the first lie ends it */
            if ((at >= 4 && at <= 7 && rnd() % 64) || at == 8 || at == 9) continue;
            ((volatile uint32_t *)AFW_CTL)[at] = (uint32_t)v;
            ((volatile uint32_t *)AFW_WINDOW)[rnd() % (sizeof(struct afw_window) / 4)] = (uint32_t)rnd();
            if (rnd() % 4 == 0) call(AFW_OP_FLOW_KICK, rnd() % 128, 0, 0, 0, 0, 0);
            if (rnd() % 16 == 0) call(AFW_OP_FLOW_OPEN, rnd() % 140, rnd() % 4, 2 + 8 * (rnd() % 2), rnd(), rnd(), rnd() % 70000);
            if (rnd() % 8 == 0) { CTL->deadline = 0; park(); }
        }
        leave(0);
    }
    """
    program = guest(body)

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(program, vms=8), recorder, bare_cell)
        try:
            for _ in range(3):
                recorder.exits.clear()
                for vm in range(8):
                    cell.boot(vm)
                await recorder.until(lambda: len(recorder.exits) == 8 or recorder.failed, 60)
                assert not recorder.failed, recorder.failed
        finally:
            await cell.close()

    asyncio.run(main())


KERNEL = """
static volatile char page[8192] __attribute__((aligned(4096)));
void run(void) {
    static const unsigned char code[] = {CODE, 0x89, 0x03, 0xe6, 0x30, 0xeb, 0xfe};  /* mov %eax, (%rbx); out %al, $0x30; jmp . */
    volatile unsigned char *at = (volatile unsigned char *)AFW_EXC_STUBS + 6 * 16;    /* #UD's: its gate leads to CPL 0 */
    for (unsigned i = 0; i < sizeof code; i++) at[i] = code[i];
    page[0] = page[4096] = 1;
    post(AFW_OP_EXIT, 0, 1, 0, 0, 0, 0, 0);
    __asm__ volatile("ud2" :: "a"(RAX), "b"(&SQ[(CTL->sq_tail - 1) % AFW_SQ_LEN].a[0]), "d"(0) : "rcx", "r11", "memory");
}
"""


def at_cpl_0(bare_cell, guest, code: bytes, rax: int | str = 7) -> str:
    """How a guest ends that runs `code` there; "code" and the low byte of what it leaves in RAX if it comes through."""
    body = KERNEL.replace("CODE", ", ".join(map(hex, code))).replace("RAX", f"(u64)({rax})")
    end, _ = asyncio.run(bare.run_guest(bare_cell, guest(body)))
    return f"code {end.code}" if end.kind == "code" else end.kind


def wrmsr(number: int) -> bytes:
    return b"\xb9" + number.to_bytes(4, "little") + b"\x0f\x30"


def test_guest_at_cpl_0_changes_only_itself(bare_cell, guest):
    """By an exception's gate: page tables and MSRs are the guest's to break."""
    assert at_cpl_0(bare_cell, guest, b"\x8c\xc8") == "code 16", "mov %cs, %eax"
    assert at_cpl_0(bare_cell, guest, wrmsr(0xC0000102)) == "code 7"
    assert at_cpl_0(bare_cell, guest, b"\x31\xc0\x0f\x22\xd8\xf4") in ("signal", "internal", "hostile")  # CR3 = 0; hlt


def test_nothing_paravirtual_at_cpl_0(bare_cell, guest):
    """No such feature is in the guest's cpuid, and KVM keeps to that: its clock, steal time and asynchronous faults would be
    host code that writes into guest memory."""
    for number in (0x11, 0x12, *range(0x4B564D00, 0x4B564D09)):  # where to; bit 0: on
        assert at_cpl_0(bare_cell, guest, wrmsr(number), "page + 1") == "signal", hex(number)
