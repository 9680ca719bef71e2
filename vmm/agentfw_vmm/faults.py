"""The address that a faulting instruction touched, from its bytes and the registers.

The processor tells it only for page faults that reach the guest; with the common ones here, a page that the host keeps away,
nobody says.
"""

from __future__ import annotations

from collections.abc import Sequence

import iced_x86 as ix

#: Order of afw_vm_shm.fault_regs.
REGISTERS = ("RAX", "RBX", "RCX", "RDX", "RSI", "RDI", "RBP", "RSP", *(f"R{n}" for n in range(8, 16)), "RIP", "RFLAGS")
_INDEX = {getattr(ix.Register, name): index for index, name in enumerate(REGISTERS[:16])}


def fault_address(code: bytes, registers: Sequence[int]) -> int | None:
    """The first memory operand's address, or None if there is none or it hangs on FS, GS or a vector index."""
    rip = registers[16]
    instruction = ix.Decoder(64, code, ip=rip).decode()
    if instruction.is_invalid:
        return None
    if instruction.memory_segment in (ix.Register.FS, ix.Register.GS) or instruction.is_vsib:
        return None
    for operand in range(instruction.op_count):
        kind = instruction.op_kind(operand)
        if kind == ix.OpKind.MEMORY:
            if instruction.is_ip_rel_memory_operand:
                return int(instruction.ip_rel_memory_address)
            return _effective(instruction, registers)
        if kind in (ix.OpKind.MEMORY_SEG_RSI, ix.OpKind.MEMORY_ESRDI):  # string instructions
            return registers[4 if kind == ix.OpKind.MEMORY_SEG_RSI else 5]
    if instruction.is_stack_instruction:
        return (registers[7] + min(instruction.stack_pointer_increment, 0)) & (1 << 64) - 1
    return None


def _effective(instruction: ix.Instruction, registers: Sequence[int]) -> int | None:
    address = instruction.memory_displacement
    for register, scale in ((instruction.memory_base, 1), (instruction.memory_index, instruction.memory_index_scale)):
        if register == ix.Register.NONE:
            continue
        if register not in _INDEX:
            return None  # a 32-bit base: not worth a guess
        address += registers[_INDEX[register]] * scale
    return address & (1 << 64) - 1
