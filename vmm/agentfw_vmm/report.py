"""How a VM ended, and what it did."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ._lib import VmStruct, counters, lib, string, take
from .config import Mount

Kind = Literal["code", "signal", "killed", "memory", "internal", "hostile"]


@dataclass(frozen=True)
class VmExit:
    """How a VM ended.

    `code` is the exit status for kind "code" (0..255), else 0; `signal` the signal's number for kind "signal", else 0. `text` is
    one line for people: the signal, instruction, module, symbol and address of a fault where they are known.
    """

    kind: Kind
    code: int
    signal: int
    text: str


class VmStatistics(NamedTuple):
    """Counters of one VM since its boot or restore, in the order of `struct afw_vm_shm`. The `n_` ones were counted in the
    guest: shown, believed by nobody.

    `recycled`: 1 if it began in the VM that the life before it had left (CellConfig.recycle); `private_pages` is how many pages
    that one had changed, `reset_ns` what putting them and the rest back took (0 if none was kept).
    """

    exits: int
    exits_kick: int
    exits_wait: int
    exits_signal: int
    exits_fault: int
    sites: int
    sites_lazy: int
    sites_refused: int
    ring_ops: int
    cpu_ns: int
    memory_committed: int
    n_local: int
    n_ring: int
    n_backstop: int
    n_enosys: int
    n_switch: int
    last_enosys: int
    restore_ns: int
    refused_paths: int
    refused_calls: int
    recycled: int
    reset_ns: int
    private_pages: int


def out_of_cpu(end: VmExit) -> bool:
    """Whether the VM ended because it had used all the CPU time that `Cell.limit()` gave it."""
    return end.kind == "killed" and end.text.startswith("CPU time: ")  # AFW_TEXT_CPU in cell.h


def rate(fraction: float | None) -> int:
    """A part of a core in millionths, 0: no limit. share.c knows a thousandth at least, a core for each runner at most."""
    if fraction is None:
        return 0
    if not 0 < fraction <= 1000:
        raise ValueError(f"a share of {fraction} cores")
    return max(1, round(fraction * 1_000_000))


def statistics(vm: VmStruct) -> VmStatistics:
    return VmStatistics(*counters(vm))


def exit_report(vm: VmStruct, mounts: list[Mount]) -> VmExit:
    """From a copy of the VM's shared record. Nothing in it is trusted."""
    note = string(vm.text)
    kind = vm.exit_kind
    if kind == lib.AFW_EXIT_CODE:
        code = vm.exit_code & 0xFF
        return VmExit("code", code, 0, note or f"exited with status {code}")
    if kind == lib.AFW_EXIT_SIGNAL and 1 <= vm.exit_signal <= 64:
        return VmExit("signal", 0, vm.exit_signal, _signal_text(vm, note, mounts))
    if kind == lib.AFW_EXIT_KILLED:
        return VmExit("killed", 0, 0, note or "killed")
    if kind == lib.AFW_EXIT_MEMORY:
        return VmExit("memory", 0, 0, note or "out of memory")
    if kind == lib.AFW_EXIT_HOSTILE:
        return VmExit("hostile", 0, 0, note or "the guest corrupted its ring")
    return VmExit("internal", 0, 0, note or f"the cell reported an unknown end ({kind})")


def _signal_text(vm: VmStruct, note: str, mounts: list[Mount]) -> str:
    from . import faults, symbols  # with a disassembler, which ends by signals alone need

    number = vm.exit_signal
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    text = f"killed by {name}"
    if note.startswith("the rules"):  # ring.c
        return f"{text}: {note}"
    if vm.fault_rip:
        text += f" at {vm.fault_rip:#x}"
        module = string(vm.fault_module)
        if module:
            where = symbols.locate(module, vm.fault_rip, vm.fault_map_start, vm.fault_map_offset, mounts)
            text += f" in {where}"
        address = vm.fault_addr if vm.fault_flags & 1 else faults.fault_address(_code(vm), list(vm.fault_regs))
        if address is not None and name in ("SIGSEGV", "SIGBUS"):
            text += f", address {address:#x}"
    return f"{text} ({note})" if note else text


def _code(vm: VmStruct) -> bytes:
    return take(vm.fault_code, 16)[: vm.fault_code_len]
