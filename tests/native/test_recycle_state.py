"""After any program a recycled VM is as a new one: every page, register, mapping and descriptor (but what state_dump.c names)."""

import asyncio
import os
import struct
from pathlib import Path

import pytest
from agentfw_vmm.cell import Cell
from agentfw_vmm.config import Mount
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from . import bare, state
from .test_python import config as python_config
from .test_recycle import line, template

pytestmark = [pytest.mark.kvm, pytest.mark.timeout(600)]  # all of a VM is compared, many times; under sanitizers on a busy host

#: Does what its standard input says: records of an operation and six numbers.
GUEST = r"""
static volatile char data[256 * 4096] __attribute__((aligned(4096)));
static char paths[8][16] = {"/w/file", "/tmp/a", "/tmp/b", "/tmp", "/w", "/t", "/proc/self/maps", "/tmp/d"};
static u64 handle[8];
static u64 word(void)
{
    volatile struct afw_flow *f = &WIN->flow[AFW_FLOW_STDIN];
    volatile char *ring = (volatile char *)(AFW_WINDOW + AFW_WINDOW_DATA + AFW_FLOW_STDIN * 2ull * AFW_RING + AFW_RING);
    u64 value = 0;
    for (int i = 0; i < 8; i++) {
        while (f->rx_tail == f->rx_head) { CTL->wake = 0; if (f->rx_tail == f->rx_head) { CTL->deadline = ~0ull; park(); } }
        value |= (u64)(unsigned char)ring[f->rx_tail % AFW_RING] << 8 * i;
        f->rx_tail = f->rx_tail + 1;
    }
    return value;
}
static u64 length(const char *s)
{
    u64 n = 0;
    while (s[n]) n++;
    return n;
}
static void registers(u64 v)
{
    static u64 block[8] __attribute__((aligned(64)));
    static uint32_t mxcsr = 0x3f80;
    for (int i = 0; i < 8; i++) block[i] = v * (i + 1);
    mxcsr = 0x1f80 | (v & 0x6000);
    __asm__ volatile("vmovups (%0), %%ymm0; vmovups (%0), %%ymm7; vmovups (%0), %%ymm15; ldmxcsr (%1); fldpi; fldl (%0); "
                     "movw $0x07f, 8(%0); fldcw 8(%0); movq (%0), %%mm3" :: "r"(block), "r"(&mxcsr) : "memory");
    if (v & 1) __asm__ volatile("wrfsbase %0; wrgsbase %0" :: "r"(v & 0x7fffffffffff));
    if (v & 2) __asm__ volatile("mov %0, %%fs; mov %0, %%gs" :: "r"(v & 4 ? 0x2b : 0));
    if (v & 8) __asm__ volatile("mov %0, %%ds; mov %0, %%es" :: "r"(0x2b));
    if (v & 16) __asm__ volatile("mov %0, %%fs" :: "r"(0x33));
    if (v & 32) __asm__ volatile("push %0; popf" :: "r"(0x3202ull | (v & 0x240cd5) | (v & 64 ? 0x100 : 0)));
}
/* Code of our own at CPL 0, where #UD's gate leads: then the program's end from there. */
static void kernel(u64 what)
{
    static const unsigned char code[] = {
        0x0f, 0x30,                                      /* wrmsr */
        0x0f, 0x23, 0xc0,                                /* mov %rax, %dr0 */
        0x0f, 0x22, 0xd0,                                /* mov %rax, %cr2 */
        0xe6, 0x30, 0xeb, 0xfe};
    volatile char *at = (volatile char *)AFW_EXC_STUBS + 6 * 16;
    static const uint32_t msr[] = {0xc0000102, 0xc0000081, 0x12, 0x277, 0x200, 0x4b564d01, 0xc0000103, 0x4b564df0};
    for (u64 i = 0; i < sizeof code; i++)                /* without wrmsr, or without all of it */
        at[i] = (char)(i < (what & 8 ? 8 : what & 16 ? 2 : 0) ? 0x90 : code[i]);
    call(AFW_OP_NOP, 0, 0, 0, 0, 0, 0);
    post(AFW_OP_EXIT, 0, 9, 0, 0, 0, 0, 0);
    __asm__ volatile("ud2" :: "a"((what >> 8 & 0xff) * 0x1000 + 1), "d"(0), "c"(msr[what & 7]) : "r11", "memory");
}
static void act(u64 op, u64 *a)
{
    switch (op) {
    case 0: call((uint16_t)a[0], a[1], a[2], a[3], a[4], a[5], 0); break;
    case 1: for (u64 i = 0; i < (a[1] & 63) + 1; i++) ((volatile u64 *)a[0])[i * 512] = a[2]; break;
    case 2: registers(a[0]); break;
    case 3: a[3] = (u64)paths[a[0] & 7];
            handle[a[1] & 7] = (u64)call(AFW_OP_OPEN, a[3], length((char *)a[3]), a[2], 0644, AFW_CWD, 0); break;
    case 4: call(AFW_OP_MAPFILE, handle[a[0] & 7], a[1], a[2], a[3] & 7, 1 + (a[3] >> 3 & 1), a[4]); break;
    case 5: call(AFW_OP_PWRITE, handle[a[0] & 7], (u64)data, a[1] & 0xffff, a[2] & 0xfffff, 0, 0); break;
    case 6: call(AFW_OP_CHDIR, (u64)paths[a[0] & 7], length(paths[a[0] & 7]), AFW_CWD, 0, 0, 0); break;
    case 7: call(AFW_OP_MKDIR, (u64)paths[7], 6, 0755, AFW_CWD, 0, 0); call(AFW_OP_FLOCK, handle[a[0] & 7], 2, 0, 0, 0, 0); break;
    case 8: CTL->deadline = now() + (a[0] & 0xfffff); park(); break;
    case 9: CTL->fault_handlers = a[0]; HANDLER = a[1]; break;
    case 20: leave((int)a[0]);
    case 21: call(AFW_OP_EXIT, 0, a[0] & 63, 0, 0, 0, 0);
    case 22: __asm__ volatile("ud2");
    case 23: __asm__ volatile("int3");
    case 24: for (;;);
    case 25: for (;;) { CTL->deadline = ~0ull; park(); }
    case 26: *(volatile char *)0x10 = 1;
    case 27: post(AFW_OP_CHDIR, 0, (u64)paths[3], 4, AFW_CWD, 0, 0, 0); post(AFW_OP_EXIT, 0, 3, 0, 0, 0, 0, 0);
             post(AFW_OP_CHDIR, 0, (u64)paths[3], 4, AFW_CWD, 0, 0, 0); park();
    case 28: kernel(a[0]);
    case 29: __asm__ volatile("mov $0, %%rsp; push %%rax; ud2" ::: "memory");
    case 30: __asm__ volatile("xor %%ecx, %%ecx; mov %0, %%eax; div %%ecx" :: "r"((uint32_t)a[0]) : "eax", "ecx", "edx");
    case 31: __asm__ volatile("in %%dx, %%al" :: "d"(0x60) : "eax");
    }
}
void run(void)
{
    if (call(AFW_OP_READY, 0, 0, 0, 0, 0, 0) == 1)
        leave(0);
    char seen[3] = {data[0] ? data[0] : 'a', data[4096] ? data[4096] : '-', '\n'};
    say(seen, 3);
    for (;;) {
        u64 op = word(), a[6];
        for (int i = 0; i < 6; i++) a[i] = word();
        act(op, a);
    }
}
"""
# Where to: image and bss, stack and brk, the system area, the rest of the first two chunks, beyond them.
PLACES = st.one_of(
    st.integers(0x400, 0x600), st.integers(0x200, 0x3FF), st.integers(0x400, 0x3FFF), st.integers(0x40000, 0x40010)
).map(lambda page: page << 12)
ABOVE = st.integers(0x600, 0x3FF0).map(lambda page: page << 12)  # what does not hurt the program itself
SIZES = st.integers(1, 64).map(lambda pages: pages << 12)
NUMBER = st.integers(0, 2**64 - 1)
COMMIT, ZERO, PROTECT, FLOW_OPEN = 32, 34, 35, 48
ACTS = st.one_of(
    st.tuples(st.just(1), st.one_of(ABOVE, PLACES), NUMBER, NUMBER),
    st.tuples(st.just(1), ABOVE, NUMBER, NUMBER),
    st.tuples(st.just(2), NUMBER),
    st.tuples(st.just(0), st.just(PROTECT), ABOVE, SIZES, st.integers(0, 7)),
    st.tuples(st.just(0), st.just(ZERO), ABOVE, SIZES),
    st.tuples(
        st.just(0), st.just(COMMIT), st.integers(2, 5).map(lambda chunk: chunk << 25), st.sampled_from([1, 1 << 25, 1 << 26])
    ),
    st.tuples(st.just(1), st.integers(2, 5).map(lambda chunk: chunk << 25), NUMBER, NUMBER),
    st.tuples(st.just(0), st.just(FLOW_OPEN), st.integers(4, 9), st.integers(1, 2), st.just(2), NUMBER),
    st.tuples(st.just(3), st.integers(0, 7), st.integers(0, 7), st.sampled_from([0, 0x42, 0x43, 0x10000, 0x241])),
    st.tuples(st.just(4), st.integers(0, 7), ABOVE, SIZES, st.integers(0, 15), st.sampled_from([0, 0, 4096])),
    st.tuples(st.just(5), st.integers(0, 7), NUMBER, NUMBER),
    st.tuples(st.just(6), st.integers(3, 7)),
    st.tuples(st.just(7), st.integers(0, 7)),
    st.tuples(st.just(8), NUMBER),
    st.tuples(st.just(9), NUMBER, NUMBER),
    st.tuples(st.integers(0, 0), st.integers(0, 70), NUMBER, NUMBER, NUMBER, NUMBER),
)
ENDS = st.one_of(
    st.tuples(st.sampled_from([20, 21, 27, 28, 30]), NUMBER),
    st.sampled_from([(22,), (23,), (24,), (25,), (26,), (29,), (31,)]),
)
PROGRAMS = st.tuples(st.lists(ACTS, max_size=20), ENDS)


def record(act):
    return struct.pack("<7Q", *act, *[0] * (7 - len(act)))


class Lives:
    """A cell in which one program after the other runs, and what its VM looked like before each. `settings`: of CellConfig."""

    first = b"a-\n"  # what a guest says before it waits for its program

    def __init__(self, program: Path, guest: Path, folder: Path) -> None:
        self.program, self.guest, self.folder = program, guest, folder
        self.loop = asyncio.Runner()
        self.recorder = bare.Recorder()
        self.recycled = 0
        self.cell: Cell

    def __enter__(self):
        self.loop.run(self._start())
        return self

    def __exit__(self, *error):
        self.loop.run(self.cell.close())
        self.loop.close()

    async def _start(self):
        shared = self.folder / "w"
        shared.mkdir(exist_ok=True)
        (shared / "file").write_bytes(b"f" * 70000)
        snapshot = self.folder / "snapshot"
        await template(self.program, self.guest, snapshot)
        mounts = [Mount("/t", self.guest.parent), Mount("/w", shared, writable=True)]
        settings = {"snapshot_in": snapshot, "recycle": True, "mounts": mounts, "memory": 256 << 20}
        self.cell = await Cell.start(bare.config(self.guest, **settings), self.recorder, self.program)

    def begin(self) -> list[str]:
        """The next life. -> its state before its first instruction"""
        return self.loop.run(self._begin())

    async def _begin(self):
        self.recorder.exits.pop(0, None)
        self.cell.restore(0, 1000)
        assert await line(self.cell, 0) == self.first
        self.recycled = self.cell.statistics(0).recycled
        return state.look(self.program, self.cell.pid)

    def run(self, acts, end) -> None:
        self.loop.run(self._run(b"".join(map(record, [*acts, end])), 0.02 if end[0] in (24, 25) else 0.5))

    async def _run(self, program: bytes, seconds: float):
        with_end = asyncio.ensure_future(self.cell.stream(0, 0).send(program))
        try:
            await self.recorder.until(lambda: 0 in self.recorder.exits, seconds)
        except TimeoutError:  # it spins, or waits for ever
            self.cell.kill(0)
            await self.recorder.until(lambda: 0 in self.recorder.exits)
        with_end.cancel()
        await asyncio.gather(with_end, return_exceptions=True)


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        pytest.skip("no access to /dev/kvm")
    return state.Builder(tmp_path_factory.mktemp("dumping"))


def test_state_after_any_program_is_that_of_a_new_vm(builder, guest, tmp_path):
    with Lives(builder.cell(), guest(GUEST), tmp_path) as lives:
        fresh = lives.begin()
        assert len(fresh) > 100
        lives.run([], (20, 0))
        put_back = 0

        @settings(
            max_examples=int(os.environ.get("AGENTFW_EXAMPLES", "60")),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(PROGRAMS)
        def check(program):
            nonlocal put_back
            if not lives.cell.live(0):
                lives.begin()
            lives.run(*program)
            after = lives.begin()
            put_back += lives.recycled
            assert not state.difference(fresh, after)

        check()
        assert put_back > 20


#: recycle_check() says yes to everything.
UNCHECKED = ("recycle.c", "if (!e && memcmp(v, &first.vcpu, sizeof *v))", "if (0)")
SET_SREGS = ("recycle.c", "ioctl(fd, KVM_SET_SREGS, &v->sregs) ||", "")
SET_XSAVE = ("restore.c", "if (ioctl(m->vm.vcpu_fd, KVM_SET_XSAVE", "if (!m->clean && ioctl(m->vm.vcpu_fd, KVM_SET_XSAVE")
#: What a program does, and a reset that does not put it back: by file, what stands there and what instead.
FORGOTTEN = {
    "a page": (
        [(1, 0x700000, 0, 7)],
        [("recycle.c", "if (guarded_copy(mem + from, source", "if (from != 0x700000 && guarded_copy(mem + from, source")],
    ),
    "a page without write access": (
        [(0, PROTECT, 0x400000, 4096, 3), (1, 0x400000, 0, 7)],
        [("recycle.c", "return from == to ||", "return 1 ||")],
    ),
    "a protection": (
        [(0, PROTECT, 0x700000, 4096, 1)],
        [("recycle.c", "if (mprotect(m->vm.mem + p * PAGE", "if (0 && mprotect(m->vm.mem + p * PAGE")],
    ),
    "a file's mapping": (
        [(3, 0, 0, 0), (4, 0, 0x700000, 4096, 1, 0)],
        [("recycle.c", "int e = map_again(m, s, p * PAGE, to * PAGE);", "int e = 0;")],
    ),
    "vector registers": ([(2, 0x1234560)], [UNCHECKED, SET_XSAVE]),
    "bases of segments": ([(2, 0x11)], [UNCHECKED, SET_SREGS]),
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_what_a_reset_forgets_is_seen(builder, guest, tmp_path, what):
    acts, changes = FORGOTTEN[what]
    with Lives(builder.cell(changes=tuple(changes)), guest(GUEST), tmp_path) as lives:
        fresh = lives.begin()
        lives.run(acts, (20, 0))
        after = lives.begin()
        assert lives.recycled == 1
        assert state.difference(fresh, after)


def test_all_of_it_is_put_back(builder, guest, tmp_path):
    with Lives(builder.cell(), guest(GUEST), tmp_path) as lives:
        fresh = lives.begin()
        for acts, _ in FORGOTTEN.values():
            lives.run(acts, (20, 0))
            assert not state.difference(fresh, lives.begin())
            assert lives.recycled == 1


@pytest.mark.parametrize("fault", [SET_SREGS, SET_XSAVE], ids=["sregs", "xsave"])
def test_a_vcpu_that_is_not_as_a_new_one_is_not_used(builder, guest, tmp_path, fault):
    with Lives(builder.cell(changes=(fault,)), guest(GUEST), tmp_path) as lives:
        fresh = lives.begin()
        lives.run([(2, 0x1234571)], (20, 0))
        assert not state.difference(fresh, lives.begin())
        assert lives.recycled == 0


PYTHON = """
import os, sys, json, threading, mmap, signal, ctypes, tempfile, random, time, socket, gc
fd = os.open("/dev/agentfw", os.O_RDWR)
if os.getpid() == 2:
    os._exit(3)
print("a-", flush=True)
exec(sys.stdin.read())
os._exit(0)
"""
#: Each leaves as much behind as it can.
AGENTS = [
    "b = bytearray(os.urandom(1)) * 3000000; c = [b'%d' % i for i in range(20000)]; os.chdir('/tmp')",
    "m = mmap.mmap(-1, 1 << 20); m[:] = b'z' * (1 << 20); n = mmap.mmap(-1, 8 << 20, prot=mmap.PROT_READ); os._exit(4)",
    """
f = open('/tmp/x', 'wb+'); f.write(b'secret' * 9000); f.flush()
s = mmap.mmap(f.fileno(), 0); s[0:4] = b'here'; os.link('/tmp/x', '/tmp/y')""",
    "import sqlite3, decimal, ssl, hashlib; hashlib.pbkdf2_hmac('sha256', b'x', b'y', 2000); print('x' * 30000)",
    "t = [threading.Thread(target=time.sleep, args=(9,), daemon=True) for _ in range(5)]; [x.start() for x in t]",
    """
signal.signal(signal.SIGUSR1, lambda *a: os._exit(9)); signal.setitimer(signal.ITIMER_REAL, 5); signal.alarm(3)
os.kill(os.getpid(), 10)""",
    "signal.pthread_sigmask(signal.SIG_BLOCK, {2, 15}); os.kill(os.getpid(), 15); os.kill(os.getpid(), 6)",
    """
a, b = socket.socketpair(); a.send(b'q' * 1000); s = socket.socket(); s.bind(('127.0.0.1', 80)); s.listen()
r, w = os.pipe(); os.write(w, b'x')""",
    "ctypes.string_at(0)",
    "ctypes.memset(0x200000, 255, 0x8000)",
    "ctypes.memset(id(1), 255, 1 << 24)",
    "libc = ctypes.CDLL(None); [libc.mprotect(ctypes.c_void_p(0x3000000 + i * 8192), 4096, 0) for i in range(30)]",
    "time.sleep(60)",
    "while True: pass",
    "sys.setrecursionlimit(10**6); f = lambda n: n and f(n - 1); f(3000); os.abort()",
    "raise SystemExit(0)",
]


class Pythons(Lives):
    async def _start(self):
        snapshot = self.folder / "snapshot"
        changes = {"vms": 1, "tmp_bytes": 16 << 20}
        recorder = bare.Recorder()
        cell = await Cell.start(python_config(PYTHON, snapshot_out=snapshot, **changes), recorder, self.program)
        cell.boot(0)
        await recorder.until(lambda: 0 in recorder.exits, 60)
        await cell.close()
        assert recorder.ready[0][1] == 0
        self.cell = await Cell.start(
            python_config(PYTHON, snapshot_in=snapshot, recycle=True, **changes), self.recorder, self.program
        )

    async def _run(self, program: bytes, seconds: float):
        stdin = self.cell.stream(0, 0)
        await stdin.send(program)
        stdin.send_eof()
        try:
            await self.recorder.until(lambda: 0 in self.recorder.exits, seconds)
        except TimeoutError:
            self.cell.kill(0)
            await self.recorder.until(lambda: 0 in self.recorder.exits)

    def agent(self, code: str) -> None:
        self.loop.run(self._run(code.encode(), 0.1 if code[:5] in ("time.", "while") else 20))


def test_state_after_pythons_is_that_of_a_new_vm(builder, tmp_path):
    with Pythons(builder.cell(blob=state.shim_blob()), Path(), tmp_path) as lives:
        fresh = lives.begin()
        put_back = []
        for code in AGENTS:
            lives.agent(code)
            after = lives.begin()
            put_back.append(lives.recycled)
            assert not state.difference(fresh, after), code
        assert sum(put_back) > len(AGENTS) / 2
