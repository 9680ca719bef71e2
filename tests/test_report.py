"""How a VM's end is told: texts, faulting addresses, symbols. Nothing that a cell writes is believed."""

import os
import random
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from agentfw_vmm import Mount, _lib, faults, report, symbols
from hypothesis import given, settings
from hypothesis import strategies as st

from .cell_peer import C

RAX, RBX, RCX, RDX, RSI, RDI, RBP, RSP = range(8)
RIP = 16


def registers(**values: int) -> list[int]:
    found = [0] * 18
    for name, value in values.items():
        found[faults.REGISTERS.index(name.upper())] = value
    return found


@pytest.mark.parametrize(
    ("code", "values", "address"),
    [
        ("488b07", {"rdi": 0x1000}, 0x1000),  # mov (%rdi),%rax
        ("488b07", {"rdi": 0xDEAD000000000000}, 0xDEAD000000000000),  # not canonical
        ("8b4cb310", {"rbx": 0x100, "rsi": 3}, 0x100 + 12 + 0x10),  # mov 0x10(%rbx,%rsi,4),%ecx
        ("488b47f8", {"rdi": 0}, 0xFFFFFFFFFFFFFFF8),  # mov -8(%rdi),%rax
        ("4e8914e5f0ffffff", {"r12": 4}, 0x10),  # mov %r10,-0x10(,%r12,8)
        ("488b0500010000", {"rip": 0x400000}, 0x400107),  # mov 0x100(%rip),%rax
        ("f3a4", {"rsi": 0x5000, "rdi": 0x6000}, 0x6000),  # rep movsb: its first operand, the destination
        ("ac", {"rsi": 0x5000}, 0x5000),  # lodsb
        ("50", {"rsp": 0x7000}, 0x6FF8),  # push %rax
        ("58", {"rsp": 0x7000}, 0x7000),  # pop %rax
        ("e800000000", {"rsp": 0x7000}, 0x6FF8),  # call
        ("c3", {"rsp": 0x7000}, 0x7000),  # ret
        ("c5fc104020", {"rax": 0x40}, 0x60),  # vmovups 0x20(%rax),%ymm0
        ("64488b042528000000", {}, None),  # mov %fs:0x28,%rax
        ("4801d8", {}, None),  # add %rbx,%rax
        ("0f0b", {}, None),  # ud2
        ("", {}, None),
        ("06", {}, None),  # no instruction
    ],
)
def test_faulting_address(code: str, values: dict[str, int], address: int | None) -> None:
    assert faults.fault_address(bytes.fromhex(code), registers(**values)) == address


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=16), st.lists(st.integers(0, 2**64 - 1), min_size=18, max_size=18))
def test_faulting_address_of_anything(code: bytes, values: list[int]) -> None:
    address = faults.fault_address(code, values)
    assert address is None or 0 <= address < 1 << 64


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "x.c").write_text("int one(int a) { return a + 1; }\nint two(int *p) { return *p; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-O0", "-o", str(folder / "libx.so.1"), str(folder / "x.c")], check=True)
    return folder / "libx.so.1"


def symbol_addresses(library: Path) -> dict[str, int]:
    out = subprocess.run(["nm", str(library)], check=True, capture_output=True, text=True).stdout
    return {name: int(at, 16) for at, name in re.findall(r"^([0-9a-f]+) T (\w+)$", out, re.M)}


def segment_of(library: Path) -> tuple[int, int]:
    """(file offset, address) of the executable segment."""
    out = subprocess.run(["readelf", "-lW", str(library)], check=True, capture_output=True, text=True).stdout
    offset, address = next(re.findall(r"LOAD\s+(\w+) (\w+)", line)[0] for line in out.splitlines() if "R E" in line)
    return int(offset, 16), int(address, 16)


def test_symbol_of_an_address(library: Path) -> None:
    mounts = [Mount("/usr", "/nonexistent"), Mount("/usr/lib/x", library.parent)]
    at = symbol_addresses(library)["two"] + 4
    offset, address = segment_of(library)
    start = 0x7000_0000
    rip = start + at - address
    assert symbols.locate("/usr/lib/x/libx.so.1", rip, start, offset, mounts) == f"libx.so.1+{at:#x} (two)"
    assert symbols.locate("/usr/lib/x/gone.so", rip, start, offset, mounts) == f"gone.so+{at - address + offset:#x}"
    assert symbols.locate("/elsewhere/libx.so.1", rip, start, offset, mounts) == f"libx.so.1+{at - address + offset:#x}"
    assert symbols.locate("/usr/lib/x/libx.so.1", 5, start, offset, mounts) == "libx.so.1"


def test_symbols_only_from_inside_the_mounts(tmp_path: Path, library: Path) -> None:
    """Guests can write links into writable mounts; a report must not open what they point at."""
    mount = tmp_path / "mount"
    mount.mkdir()
    (mount / "link").symlink_to(library)
    (mount / "inside").symlink_to("real")
    (mount / "real").write_bytes(b"")
    (mount / "loop").symlink_to("loop")
    os.mkfifo(mount / "fifo")
    mounts = [Mount("/m", mount)]
    for guest in ("/m/link", "/m/../library/libx.so.1", "/m/loop", "/m/absent", "/other"):
        assert symbols.host_path(guest, mounts) is None, guest
    assert symbols.host_path("/m/inside", mounts) == mount / "real"
    assert symbols.locate("/m/fifo", 16, 0, 0, mounts) == "fifo+0x10"  # and does not hang


def test_damaged_files(tmp_path: Path, library: Path) -> None:
    raw = library.read_bytes()
    rng = random.Random(3)
    for _ in range(300):
        damaged = bytearray(raw)
        for _ in range(rng.choice([1, 5, 50])):
            damaged[rng.choice([rng.randrange(64), rng.randrange(len(raw))])] = rng.getrandbits(8)
        (tmp_path / "x.so").write_bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
        text = symbols.locate("/m/x.so", 0x1120, 0, 0, [Mount("/m", tmp_path)])
        assert text.startswith("x.so")
        assert text.isprintable()


def shared(**values: int) -> _lib.VmStruct:
    vm = _lib.new_vm()
    for name, value in values.items():
        setattr(vm, name, value)
    return vm


def test_texts(library: Path) -> None:
    assert report.exit_report(shared(exit_kind=C["AFW_EXIT_CODE"], exit_code=3), []) == report.VmExit(
        "code", 3, 0, "exited with status 3"
    )
    assert report.exit_report(shared(exit_kind=C["AFW_EXIT_KILLED"]), []).kind == "killed"
    assert report.exit_report(shared(exit_kind=C["AFW_EXIT_MEMORY"]), []).text == "out of memory"
    assert report.exit_report(shared(exit_kind=C["AFW_EXIT_HOSTILE"]), []).kind == "hostile"
    vm = shared(exit_kind=C["AFW_EXIT_SIGNAL"], exit_signal=6)
    assert report.exit_report(vm, []) == report.VmExit("signal", 0, 6, "killed by SIGABRT")
    for kind, number in ((77, 0), (0, 0), (C["AFW_EXIT_SIGNAL"], 0), (C["AFW_EXIT_SIGNAL"], 65), (C["AFW_EXIT_SIGNAL"], -1)):
        assert report.exit_report(shared(exit_kind=kind, exit_signal=number), []).kind == "internal"

    at = symbol_addresses(library)["two"]
    offset, address = segment_of(library)
    vm = shared(
        exit_kind=C["AFW_EXIT_SIGNAL"],
        exit_signal=11,
        fault_rip=0x10000 + at - address,
        fault_code_len=2,
        fault_map_start=0x10000,
    )
    vm.fault_map_offset = offset
    vm.fault_code[0:2] = [0x8B, 0x00]  # mov (%rax),%eax
    vm.fault_regs[RAX] = 0x10
    vm.fault_module = b"/l/libx.so.1"
    text = report.exit_report(vm, [Mount("/l", library.parent)]).text
    assert text == f"killed by SIGSEGV at {vm.fault_rip:#x} in libx.so.1+{at:#x} (two), address 0x10"
    vm.fault_flags, vm.fault_addr = 1, 0x99
    assert report.exit_report(vm, []).text.endswith("address 0x99")


def test_statistics_are_all_there() -> None:
    vm = shared(exits=5, n_backstop=7, last_enosys=9, cpu_ns=1 << 63)
    found = report.statistics(vm)
    assert (found.exits, found.n_backstop, found.last_enosys, found.cpu_ns, found.sites) == (5, 7, 9, 1 << 63, 0)


def test_statistics_are_the_fields_of_their_names() -> None:
    """They are read in one piece: the order is that of the struct."""
    fields = report.VmStatistics._fields
    layout = _lib.structs()["afw_vm_shm"][1]
    first, last = layout["exits"][0], layout["private_pages"][0]
    assert {name for name, (at, _) in layout.items() if first <= at <= last} - {"reserved32"} == set(fields)
    vm = _lib.new_vm()
    for number, name in enumerate(fields):
        setattr(vm, name, (1 << 8 * layout[name][1]) - 1 - number)
    found = report.statistics(vm)
    assert found == tuple(getattr(vm, name) for name in fields) and found.private_pages == (1 << 64) - len(fields)


def test_each_thread_has_what_its_own_vm_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two embedded pools have a thread each, and C code runs without the GIL."""
    both = threading.Barrier(2, timeout=10)

    def copied(worker: object, vm: int, out: _lib.Bytes) -> int:
        _lib.view(out, 1)[0:1] = bytes([vm])
        both.wait()
        return 1

    monkeypatch.setattr(_lib, "lib", SimpleNamespace(afw_worker_sight=copied))
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda vm: _lib.sight(None, vm), (1, 2))) == [b"\1", b"\2"]  # type: ignore[arg-type]


def test_each_thread_has_what_its_own_cell_did_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=10)

    def broke(worker: object, runner: int, out: object, room: int, text: object) -> int:
        _lib.view(text, 2)[:] = bytes([ord("0") + runner, 0])
        both.wait()
        return -1

    monkeypatch.setattr(_lib, "lib", SimpleNamespace(afw_worker_events=broke))
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda runner: _lib.events(None, runner, None, 1), (1, 2))) == ["1", "2"]  # type: ignore[arg-type]
