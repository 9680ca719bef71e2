"""Finding sites (the worker's decoder) and patching them (the cell's sites.c, compiled into this process)."""

import asyncio
import ctypes
import hashlib
import os
import random
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import iced_x86 as ix
import pytest
from agentfw_vmm import _lib, sites
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .cell_peer import STRUCTS, C, offset

ROOT = Path(__file__).parent.parent
R, Code, Instruction = ix.Register, ix.Code, ix.Instruction
SYSTEM_FILES = ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3")


@dataclass
class Program:
    """Machine code with what is true about it."""

    code: bytes
    boundaries: list[int]
    sites: dict[int, int]  # offset -> kind
    targets: set[int] = field(default_factory=set)


# -- random programs

_R64 = [R.RAX, R.RBX, R.RCX, R.RDX, R.RSI, R.RDI, R.RBP, R.R8, R.R9, R.R10, R.R11, R.R12, R.R13, R.R14, R.R15]
_R32 = [R.EAX, R.EBX, R.ECX, R.EDX, R.ESI, R.EDI, R.EBP, R.R8D, R.R9D, R.R10D, R.R11D, R.R12D, R.R13D, R.R14D, R.R15D]
_ALU = [Code.ADD_RM64_R64, Code.SUB_RM64_R64, Code.XOR_RM64_R64, Code.AND_RM64_R64, Code.OR_RM64_R64, Code.MOV_RM64_R64]
_ALU32 = [Code.ADD_RM32_R32, Code.XOR_RM32_R32, Code.MOV_RM32_R32, Code.TEST_RM32_R32, Code.CMP_RM32_R32]
_SHORT = [Code.JE_REL8_64, Code.JNE_REL8_64, Code.JA_REL8_64, Code.JMP_REL8_64]
_NEAR = [Code.JE_REL32_64, Code.JB_REL32_64, Code.JMP_REL32_64]


def red_zone(slot: int) -> ix.MemoryOperand:
    return ix.MemoryOperand(R.RSP, displ=-8 * slot, displ_size=1)


def relative_place(offset: int = 0) -> ix.MemoryOperand:
    return ix.MemoryOperand(R.RIP, displ=0x900000 + offset)


def ordinary(rng: random.Random) -> Instruction:
    choice = rng.randrange(9)
    if choice == 0:
        return Instruction.create_reg_reg(rng.choice(_ALU), rng.choice(_R64), rng.choice(_R64))
    if choice == 1:
        return Instruction.create_reg_reg(rng.choice(_ALU32), rng.choice(_R32), rng.choice(_R32))
    if choice == 2:
        return Instruction.create_reg_i32(Code.MOV_R32_IMM32, rng.choice(_R32), rng.choice([0x050F, 0xA20F, rng.getrandbits(31)]))
    if choice == 3:  # immediates that hold what looks like sites
        value = int.from_bytes(rng.choice([b"\x0f\x05\x0f\xa2\x0f\x01\xd0\xe8", rng.randbytes(8)]), "little", signed=True)
        return Instruction.create_reg_i64(Code.MOV_R64_IMM64, rng.choice(_R64), value)
    if choice == 4:
        return Instruction.create_mem_reg(Code.MOV_RM64_R64, red_zone(rng.randrange(1, 15)), rng.choice(_R64))
    if choice == 5:
        return Instruction.create_reg_mem(Code.MOV_R64_RM64, rng.choice(_R64), red_zone(rng.randrange(1, 15)))
    if choice == 6:
        place = ix.MemoryOperand(rng.choice(_R64), rng.choice(_R64), rng.choice([1, 2, 4, 8]), rng.getrandbits(7), 1)
        return Instruction.create_reg_mem(Code.LEA_R64_M, rng.choice(_R64), place)
    if choice == 7:
        return Instruction.create_reg_mem(
            Code.LEA_R64_M, rng.choice(_R64), ix.MemoryOperand(R.RIP, displ=0x900000 + rng.getrandbits(16))
        )
    return Instruction.create(Code.CDQE)


def before_a_site(rng: random.Random) -> list[Instruction]:
    """Sets EAX to a call that has no effect (getpid, getuid, gettid), in the shapes compilers use."""
    number = rng.choice([39, 102, 186])
    eax = Instruction.create_reg_i32(Code.MOV_R32_IMM32, R.EAX, number)
    args = [R.RDI, R.RSI, R.RDX, R.R8, R.R9, R.R10]
    move = [Instruction.create_reg_reg(Code.MOV_RM64_R64, rng.choice(args), rng.choice(_R64)) for _ in range(2)]
    zero = Instruction.create_reg_reg(Code.XOR_RM32_R32, *[rng.choice([R.EDI, R.ESI, R.EDX])] * 2)
    load = Instruction.create_reg_mem(Code.MOV_R64_RM64, rng.choice(args), red_zone(rng.randrange(1, 15)))
    relative = Instruction.create_reg_mem(Code.LEA_R64_M, R.RSI, relative_place())
    through = [
        Instruction.create_reg_i32(Code.MOV_R32_IMM32, R.R11D, number),
        Instruction.create_reg_reg(Code.MOV_RM32_R32, R.EAX, R.R11D),
    ]
    return rng.choice(
        [
            [eax],
            [*move, eax],
            [eax, move[0]],
            [eax, zero],
            [eax, move[0], move[1]],
            [eax, load],
            [eax, relative],
            [*through, zero],
            [*through],
            [eax, Instruction.create_reg(Code.PUSH_R64, R.RDI), Instruction.create_reg(Code.POP_R64, R.RDI)],
        ]
    )


def generate(seed: int, size: int = 60, jumps: bool = True, base: int = 0) -> Program:
    """A function of straight code with sites and forward jumps, some of them to a site or into what would be a window."""
    rng = random.Random(seed)
    items: list[Instruction] = []
    hot: list[int] = []  # instructions near a site: good targets
    while len(items) < size:
        if rng.random() < 0.25:
            items += before_a_site(rng)
            kind = rng.choice([Code.SYSCALL, Code.SYSCALL, Code.SYSCALL, Code.CPUID, Code.XGETBV])
            if kind == Code.XGETBV:
                items += [Instruction.create_reg_reg(Code.XOR_RM32_R32, R.ECX, R.ECX)]
            items.append(Instruction.create(kind))
            hot += [len(items) - 1 - n for n in range(4) if len(items) > n]
        elif jumps and rng.random() < 0.15 and len(items) > 2:
            # It may go to a site or right before one: whatever it leaves out there was done here.
            items += [Instruction.create_reg_i32(Code.MOV_R32_IMM32, register, 39) for register in (R.EAX, R.R11D)]
            items.append(Instruction.create_branch(rng.choice(_SHORT + _NEAR), 0))
        else:
            items.append(ordinary(rng))
    items.append(Instruction.create(Code.RETNQ))
    # Labels are instruction addresses: number them, then aim each branch forward, but not where it would fault.
    for number, item in enumerate(items):
        item.ip = number + 1
    good = [n for n, item in enumerate(items) if item.code not in (Code.POP_R64, Code.XGETBV)]
    for number, item in enumerate(items):
        if item.op_count and item.op0_kind == ix.OpKind.NEAR_BRANCH64:
            ahead = [n for n in good if number < n <= number + (6 if item.code in _SHORT else size)]
            aims = [n for n in ahead if n in hot] if rng.random() < 0.6 else ahead
            item.near_branch64 = rng.choice(aims or ahead) + 1
    encoder = ix.BlockEncoder(64, False)
    encoder.add_many(items)
    code = encoder.encode(base)
    decoded = list(ix.Decoder(64, code, ip=0))
    assert [i.code for i in decoded] == [i.code for i in items]
    targets = {decoded[item.near_branch64 - 1].ip for item in items if item.op_count and item.op0_kind == ix.OpKind.NEAR_BRANCH64}
    kinds = {Code.SYSCALL: 1, Code.CPUID: 2, Code.XGETBV: 3}
    return Program(code, [i.ip for i in decoded], {i.ip: kinds[i.code] for i in decoded if i.code in kinds}, targets)


def check_sound(program: Program, found: bytes) -> set[int]:
    """The promises of `sites` against what is known of the program; -> the sites with a window."""
    ends, floor = set(), 0
    boundaries = set(program.boundaries)
    for start, length, kind, site_length, reserved in sites.SITE.iter_unpack(found):
        site = start + length - site_length
        assert program.sites.get(site) == kind
        assert site_length == (3 if kind == 3 else 2)
        assert 7 <= length <= 20
        assert site - start >= 5
        assert reserved == 0
        assert start in boundaries
        assert start >= floor
        floor = start + length
        inside = [at for at in program.boundaries if start < at < start + 5]
        assert not program.targets & set(inside)
        for instruction in ix.Decoder(64, program.code[start:site], ip=start):
            assert instruction.flow_control == ix.FlowControl.NEXT
            assert not instruction.is_ip_rel_memory_operand
            assert instruction.code not in (Code.SYSCALL, Code.CPUID, Code.XGETBV)
        ends.add(site)
    return ends


def behind(before: bytes, program: Program) -> Program:
    shift = len(before)
    return Program(
        before + program.code,
        [at + shift for at in program.boundaries],
        {at + shift: kind for at, kind in program.sites.items()},
        {at + shift for at in program.targets},
    )


TABLES = [b"", b"\x90" * 15, b"\xcc" * 64, bytes(40), *(random.Random(n).randbytes(40 + 5 * n) for n in range(40))]


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), before=st.sampled_from(TABLES), size=st.integers(5, 200))
def test_windows_are_safe(seed: int, before: bytes, size: int) -> None:
    """Also with padding or a table of anything before the function."""
    moved = behind(before, generate(seed, size))
    found = sites.search(moved.code, sites.find_candidates(moved.code, 10**6))
    check_sound(moved, found.packed)


def test_most_sites_are_found() -> None:
    total = windows = 0
    for seed in range(60):
        program = behind(b"\x90" * 15, generate(seed, jumps=False))
        found = sites.search(program.code, sites.find_candidates(program.code, 10**6))
        ends = check_sound(program, found.packed)
        total += len(program.sites)
        windows += len(ends)
        assert len(ends) + found.refused == len(program.sites)
    assert windows > total * 0.75  # the rest: rip-relative operands, sites right behind one another


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=4000))
def test_any_bytes_are_survived(code: bytes) -> None:
    sites.search(code, sites.find_candidates(code, 10**6))
    budget = sites.Budget()
    sites._find(code, C["AFW_SITES_LAZY"], len(code), budget)
    sites._find(code, C["AFW_SITES_MEMORY"], 0, budget)


def test_far_jump_into_a_window() -> None:
    """A function's cold part may be megabytes away; its jump must be seen all the same."""
    window = bytes.fromhex("4889fe4489d80f05")  # mov %rdi,%rsi; mov %r11d,%eax; syscall
    code = bytearray(b"\x90" * 400 + window + b"\xc3" + b"\x90" * 3_000_000)
    assert sites.search(bytes(code), [(406, 1)]).count == 1
    for opcode in (b"\xe9", b"\x0f\x84", b"\xe8"):
        for target, count in ((400, 1), (403, 0), (406, 1), (408, 1)):
            changed = bytearray(code)
            at = 2_900_000
            jump = opcode + struct.pack("<i", target - (at + len(opcode) + 4))
            changed[at : at + len(jump)] = jump
            assert sites.search(bytes(changed), [(406, 1)]).count == count, (opcode, target)


def test_jump_table_makes_a_split_window_doubtful() -> None:
    split = bytes.fromhex("4889fe4489d80f05c3")
    whole = bytes.fromhex("b8270000000f05c3")
    table = bytes.fromhex("488d1500000010486304824801d0ffe0")  # lea T(%rip), movslq, add, jmp *%rax
    pad = b"\x90" * 64
    for window, count in ((split, 0), (whole, 1)):
        code = pad + table + pad + window + pad
        found = sites.search(code, sites.find_candidates(code, 99))
        assert (found.count, found.refused) == (count, 1 - count)
    tail_call = bytes.fromhex("488b07ffe0")  # mov (%rdi),%rax; jmp *%rax
    code = pad + tail_call + pad + split + pad
    assert sites.search(code, sites.find_candidates(code, 99)).count == 1


def test_tables_in_text_are_not_patched() -> None:
    rng = random.Random(5)
    for _ in range(200):
        table = bytearray(rng.randbytes(600))
        table[300:302] = b"\x0f\x05"
        assert sites.search(bytes(table), [(300, 1)]).count == 0


# -- real files


def executable_segments(path: str) -> list[bytes]:
    raw = Path(path).read_bytes()
    phoff, phentsize, phnum = struct.unpack_from("<Q", raw, 32)[0], *struct.unpack_from("<HH", raw, 54)
    found = []
    for number in range(phnum):
        kind, flags, at, _, _, size = struct.unpack_from("<IIQQQQ", raw, phoff + number * phentsize)
        if kind == 1 and flags & 1:
            found.append(raw[at : at + size])
    return found


@pytest.mark.parametrize("path", SYSTEM_FILES)
def test_system_libraries(path: str) -> None:
    """Against a linear disassembly: nothing false is patched, and of libc's and ld.so's calls hardly any is missed."""
    if not Path(path).exists():
        pytest.skip(f"{path} is not here")
    for code in executable_segments(path):
        true: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
        targets, boundaries = set(), []
        for i in ix.Decoder(64, code, ip=0):
            boundaries.append(i.ip)
            if i.code in SYSCALLS:
                true[SYSCALLS[i.code]].add(i.ip)
            if i.op_count and i.op0_kind == ix.OpKind.NEAR_BRANCH64:
                targets.add(i.near_branch_target)
        found = sites.search(code, sites.find_candidates(code, 10**6))
        program = Program(code, boundaries, {at: kind for kind, ats in true.items() for at in ats}, targets)
        patched = check_sound(program, found.packed)
        if "libcrypto" not in path and len(true[1]) > 10:
            assert len(patched & true[1]) >= len(true[1]) * 0.9


SYSCALLS = {Code.SYSCALL: 1, Code.CPUID: 2, Code.XGETBV: 3}


# -- cache and budget


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sites._memory.clear()
    return tmp_path / "agentfw/sites"


def test_cache_by_content(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = generate(1).code
    kind = C["AFW_SITES_FILE"]
    first = asyncio.run(sites.find(code, kind, 0, sites.Budget()))
    assert first.count > 3
    (file,) = cache.iterdir()
    assert file.name == hashlib.sha256(code).hexdigest()
    assert file.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(sites, "search", None)  # nothing is decoded from now on
    assert sites._find(code, kind, 0, sites.Budget()) == first
    sites._memory.clear()
    assert sites._find(code, kind, 0, sites.Budget(0)) == first


@pytest.mark.parametrize("damage", ["truncate", "flip", "version", "empty", "foreign"])
def test_damaged_cache_is_not_believed(cache: Path, damage: str) -> None:
    code = generate(2).code
    kind = C["AFW_SITES_FILE"]
    right = sites._find(code, kind, 0, sites.Budget())
    (file,) = cache.iterdir()
    raw = bytearray(file.read_bytes())
    if damage == "truncate":
        raw = raw[:-8]
    elif damage == "flip":
        raw[-8] ^= 1
    elif damage == "version":
        raw[8] += 1
    elif damage == "empty":
        raw = bytearray()
    else:  # sound in itself, but of other code
        other = sites.SITE.pack(3, 7, 1, 2, 0)
        raw = bytearray(sites._CACHE_HEAD.pack(b"AFWSITES", sites._VERSION, 1, 0, hashlib.sha256(other).digest()) + other)
    file.write_bytes(raw)
    sites._memory.clear()
    assert sites._find(code, kind, 0, sites.Budget()) == right
    assert file.read_bytes() != raw  # and is replaced


def test_cache_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    sites._memory.clear()
    assert sites._find(generate(3).code, C["AFW_SITES_FILE"], 0, sites.Budget()).count


def test_budget_bounds_what_a_guest_can_cost(cache: Path) -> None:
    code = b"\xb8\x27\0\0\0\x0f\x05" * 1000
    budget = sites.Budget(100)
    found = sites._find(code, C["AFW_SITES_FILE"], 0, budget)
    assert found.count <= 100
    assert budget.left == 0
    assert not cache.exists()  # half an answer is not kept
    sites._memory.clear()
    assert sites._find(code, C["AFW_SITES_MEMORY"], 0, budget).count == 0


def test_budget_of_requests_and_bytes() -> None:
    budget = sites.Budget(requests=3, bytes=100)
    assert [budget.admit(size) for size in (60, 41, 0, 0)] == [True, False, False, False]
    budget = sites.Budget(requests=2)
    assert [budget.admit(1) for _ in range(3)] == [True, True, False]


def test_lazy_finds_the_one_site() -> None:
    code = b"\x90" * 64 + bytes.fromhex("b8270000000f05") * 3 + b"\x90" * 64
    found = sites._find(code, C["AFW_SITES_LAZY"], 64 + 14, sites.Budget())
    assert list(sites.SITE.iter_unpack(found.packed)) == [(64 + 7, 7, 1, 2, 0)]
    for wrong in (64 + 13, 0, 1, len(code), len(code) + 5):
        assert sites._find(code, C["AFW_SITES_LAZY"], wrong, sites.Budget()).count == 0


# -- the cell's half, patching code of this process

CODE = 0x800000


class Harness:
    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        for name in ("start", "area", "event"):
            getattr(self.c, f"harness_{name}").restype = ctypes.c_void_p
        for name in ("count", "next"):
            getattr(self.c, f"harness_{name}").restype = ctypes.c_uint64
        u64, u32 = ctypes.c_uint64, ctypes.c_uint32
        self.c.harness_code.argtypes = [u32, u64, u64]
        self.c.harness_answer.argtypes = [ctypes.c_int, u64, u64]
        self.c.harness_unmapped.argtypes = [u64, u64]
        self.c.harness_rip.argtypes = self.c.harness_backstop.argtypes = [u64]
        self.c.harness_preempted.argtypes = [u32]
        self.c.harness_next.argtypes = [ctypes.c_int, u64]
        self.c.harness_run.argtypes = [u64, ctypes.c_void_p]
        self.shm = 0

    def start(self, code: bytes) -> None:
        if self.c.harness_busy():
            self.c.harness_answer(0, self.event()[6], 0)
        self.shm = self.c.harness_start()
        assert self.shm, "low addresses are taken"
        ctypes.memset(CODE, 0xCC, 0x100000)
        ctypes.memmove(CODE, code, len(code))

    def event(self) -> tuple[int, ...]:
        return struct.unpack("<IIIIQQQQQQ", ctypes.string_at(self.c.harness_event(), 64))

    def counter(self, name: str) -> int:
        return ctypes.c_uint64.from_address(self.shm + offset("afw_vm_shm", name)).value

    def code(self, length: int) -> bytes:
        return ctypes.string_at(CODE, length)

    def reply(self, packed: bytes, count: int | None = None, request: int | None = None) -> None:
        ctypes.memmove(self.c.harness_area(), packed, len(packed))
        count = len(packed) // 8 if count is None else count
        self.c.harness_answer(0, self.event()[6] if request is None else request, count)

    def patch(self, code: bytes) -> sites.Found:
        """As the worker would answer."""
        self.c.harness_code(C["AFW_SITES_FILE"], CODE, len(code))
        kind, _, arg, _, address, size, _, *_ = self.event()
        assert (kind, arg, address, size) == (C["AFW_EV_SITES"], C["AFW_SITES_FILE"], CODE, len(code))
        sent = ctypes.string_at(self.c.harness_area(), size)
        assert sent == code
        found = sites.search(sent, sites.find_candidates(sent, 10**6))
        self.reply(found.packed, found.count | found.refused << 32)
        return found

    def run(self, registers: list[int]) -> list[int]:
        array = (ctypes.c_uint64 * 16)(*registers)
        self.c.harness_run(CODE, array)
        return list(array)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    out = tmp_path_factory.mktemp("harness") / "harness.so"
    flags = ["-shared", "-fPIC", "-std=gnu11", "-O1", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
    include = [f"-I{ROOT}/{path}" for path in ("shim", "vmm/native", "vmm/native/cell")]
    sources = [str(ROOT / "tests/sites_harness.c"), str(ROOT / "vmm/native/cell/sites.c")]
    subprocess.run(["cc", *flags, *include, "-o", str(out), *sources], check=True)
    return Harness(out)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_patched_code_does_what_it_did(harness: Harness, seed: int) -> None:
    """Registers, flags and the red zone's contents, through `syscall`, `cpuid` and `xgetbv` in all kinds of windows."""
    program = generate(seed, 40, base=CODE)
    rng = random.Random(seed)
    registers = [rng.getrandbits(64) for _ in range(15)] + [0x202 | rng.choice([0, 1, 0x40, 0x8D5])]
    harness.start(program.code)
    before = harness.run(registers)
    found = harness.patch(program.code)
    assert harness.counter("sites") == found.count
    assert harness.counter("sites_refused") == found.refused
    after = harness.run(registers)
    assert after == before
    changed = harness.code(len(program.code))
    assert [at for at in range(len(changed)) if changed[at] != program.code[at]] == [
        at
        for start, *_ in sites.SITE.iter_unpack(found.packed)
        for at in range(start, start + 5)
        if changed[at] != program.code[at]
    ]
    again = sites.search(changed, sites.find_candidates(changed, 10**6))  # nothing is patched twice
    jumps = {start for start, *_ in sites.SITE.iter_unpack(found.packed)}
    assert not jumps & {start for start, *_ in sites.SITE.iter_unpack(again.packed)}


SITE_CODE = b"\x90" * 32 + bytes.fromhex("b8270000000f05c3")
SITE_ANSWER = sites.SITE.pack(32, 7, 1, 2, 0)
ZERO = [0] * 15 + [0x202]


def test_stub_is_entered(harness: Harness) -> None:
    harness.start(SITE_CODE)
    assert harness.run(ZERO)[0] == os.getpid()
    assert harness.c.harness_count() == 0
    harness.patch(SITE_CODE)
    assert harness.run(ZERO)[0] == os.getpid()
    assert harness.c.harness_count() == 1
    assert harness.run(ZERO)[2] == CODE + 39  # RCX: where it returns


def test_a_jump_to_the_site_itself_still_works(harness: Harness) -> None:
    code = SITE_CODE + bytes.fromhex("b827000000ebf6")  # mov $39,%eax; jmp to the syscall
    harness.start(code)
    harness.patch(code)
    assert harness.counter("sites") == 1
    ctypes.memmove(CODE, b"\xeb" + bytes([40 - 2]), 2)  # begin there
    assert harness.run(ZERO)[0] == os.getpid()
    assert harness.c.harness_count() == 0


@pytest.mark.parametrize(
    "site",
    [
        (32, 7, 0, 2, 0),
        (32, 7, 4, 2, 0),
        (32, 7, 1, 3, 0),
        (32, 7, 3, 2, 0),
        (32, 21, 1, 2, 0),
        (33, 6, 1, 2, 0),
        (len(SITE_CODE) - 6, 7, 1, 2, 0),
        (0xFFFFFFF0, 7, 1, 2, 0),
        (31, 7, 1, 2, 0),
    ],
)
def test_answers_that_cannot_be_are_ignored(harness: Harness, site: tuple[int, ...]) -> None:
    harness.start(SITE_CODE)
    harness.c.harness_code(C["AFW_SITES_FILE"], CODE, len(SITE_CODE))
    harness.reply(sites.SITE.pack(*site))
    assert harness.code(len(SITE_CODE)) == SITE_CODE
    assert not harness.c.harness_busy()


def test_overlapping_answers_and_wrong_counts(harness: Harness) -> None:
    harness.start(SITE_CODE)
    for count in (0xFFFFFFFF, C["AFW_SITE_AREA"]):
        harness.c.harness_code(C["AFW_SITES_FILE"], CODE, len(SITE_CODE))
        harness.reply(SITE_ANSWER, count=count)
        assert harness.code(len(SITE_CODE)) == SITE_CODE
    harness.c.harness_code(C["AFW_SITES_FILE"], CODE, len(SITE_CODE))
    harness.reply(SITE_ANSWER, request=12345)
    assert harness.c.harness_busy()
    harness.reply(SITE_ANSWER + SITE_ANSWER)
    assert harness.counter("sites") == 1


def test_code_that_changed_meanwhile_is_left_alone(harness: Harness) -> None:
    for kind, at, untouched in (("AFW_SITES_FILE", 37, True), ("AFW_SITES_MEMORY", 33, True), ("AFW_SITES_MEMORY", 0, False)):
        harness.start(SITE_CODE)
        harness.c.harness_code(C[kind], CODE, len(SITE_CODE))
        ctypes.memset(CODE + at, 0x77, 1)
        changed = harness.code(len(SITE_CODE))
        harness.reply(SITE_ANSWER)
        assert (harness.code(len(SITE_CODE)) == changed) == untouched


def test_unmapped_code_is_forgotten(harness: Harness) -> None:
    harness.start(SITE_CODE)
    harness.c.harness_code(C["AFW_SITES_FILE"], CODE, len(SITE_CODE))
    harness.c.harness_unmapped(CODE + 38, 4096)
    harness.reply(SITE_ANSWER)
    assert harness.code(len(SITE_CODE)) == SITE_CODE
    harness.c.harness_code(C["AFW_SITES_FILE"], CODE, len(SITE_CODE))
    harness.c.harness_unmapped(CODE + 0x1000, 4096)
    harness.reply(SITE_ANSWER)
    assert harness.counter("sites") == 1


def test_patch_waits_while_a_thread_may_stand_inside(harness: Harness) -> None:
    harness.start(SITE_CODE)
    harness.c.harness_preempted(1)
    harness.patch(SITE_CODE)
    harness.c.harness_backstop(0)
    assert harness.code(len(SITE_CODE)) == SITE_CODE
    harness.c.harness_preempted(0)
    harness.c.harness_rip(CODE + 33)
    harness.c.harness_backstop(0)
    assert harness.code(len(SITE_CODE)) == SITE_CODE
    harness.c.harness_rip(CODE + 37)  # at the site: it stays as it is
    harness.c.harness_backstop(0)
    assert harness.counter("sites") == 1
    assert harness.run(ZERO)[0] == os.getpid()


def test_one_request_at_a_time_and_a_full_queue(harness: Harness) -> None:
    harness.start(SITE_CODE)
    harness.c.harness_event_error(-11)
    harness.c.harness_code(C["AFW_SITES_FILE"], CODE, len(SITE_CODE))
    assert harness.c.harness_busy()
    assert harness.c.harness_events() == 0
    harness.c.harness_event_error(0)
    harness.c.harness_backstop(0)
    assert harness.c.harness_events() == 1
    for _ in range(100):
        harness.c.harness_code(C["AFW_SITES_FILE"], CODE, len(SITE_CODE))
    assert harness.c.harness_events() == 1
    answered = 0
    while harness.c.harness_busy():
        harness.reply(b"")
        answered += 1
    assert answered == 65  # 64 wait at most, the rest was dropped


def test_answer_for_a_vm_that_is_gone_frees_the_area(harness: Harness) -> None:
    harness.start(SITE_CODE)
    harness.c.harness_code(C["AFW_SITES_FILE"], CODE, len(SITE_CODE))
    request = harness.event()[6]
    harness.shm = harness.c.harness_start()  # frees the VM's state and makes a new one
    assert not harness.c.harness_busy()
    harness.c.harness_code(C["AFW_SITES_FILE"], CODE, len(SITE_CODE))
    assert harness.c.harness_events() == 0
    harness.c.harness_answer(1, request, 1)
    assert harness.c.harness_events() == 1
    harness.reply(SITE_ANSWER)
    assert harness.counter("sites") == 1


def test_lazily_at_the_second_hit(harness: Harness) -> None:
    harness.start(SITE_CODE)
    back = CODE + 39
    harness.c.harness_backstop(back)
    assert harness.c.harness_events() == 0
    for _ in range(5):
        harness.c.harness_backstop(back)
    assert harness.c.harness_events() == 1
    kind, _, arg, _, address, size, _, at, *_ = harness.event()
    assert (kind, arg, address + at) == (C["AFW_EV_SITES"], C["AFW_SITES_LAZY"], back)
    assert address <= CODE < address + size
    sent = ctypes.string_at(harness.c.harness_area(), size)
    assert sent == ctypes.string_at(address, size)
    found = sites._find(sent, arg, at, sites.Budget())
    harness.reply(found.packed)
    assert (harness.counter("sites"), harness.counter("sites_lazy")) == (1, 1)
    assert harness.run(ZERO)[0] == os.getpid()
    assert harness.c.harness_count() == 1
    for address in range(CODE, CODE + 4000, 7):  # more addresses than it remembers
        harness.c.harness_backstop(address)
    assert harness.c.harness_events() == 1


def test_hits_while_the_file_is_looked_at_are_no_reason_to_ask_again(harness: Harness) -> None:
    harness.start(SITE_CODE)
    harness.c.harness_code(C["AFW_SITES_FILE"], CODE, len(SITE_CODE))
    for _ in range(3):
        harness.c.harness_backstop(CODE + 39)
    harness.reply(SITE_ANSWER)
    assert not harness.c.harness_busy()
    assert (harness.counter("sites"), harness.counter("sites_refused")) == (1, 0)


def test_full_stub_area_and_reach(harness: Harness) -> None:
    harness.start(SITE_CODE)
    end = C["AFW_SITES_END"]
    assert harness.c.harness_next(0, end - 10) == end - 10
    harness.patch(SITE_CODE)
    assert (harness.counter("sites"), harness.counter("sites_refused")) == (0, 1)
    assert harness.code(len(SITE_CODE)) == SITE_CODE
    for nonsense in (0, C["AFW_SITES"] - 1, end + 1):
        assert harness.c.harness_next(0, nonsense) == end


def test_layout_used_here() -> None:
    assert STRUCTS["afw_site"][0] == sites.SITE.size
    assert C["AFW_SITE_AREA"] == _lib.SITE_AREA
