"""Which `syscall`, `cpuid` and `xgetbv` instructions of a piece of code can be replaced by a jump, and where the jump goes in.

A site is rewritten by putting `jmp stub` (5 bytes) over the instructions before it; the stub runs those displaced instructions
and then enters the shim. Only the first five bytes of the window are overwritten: every later instruction, the site included,
stays what it was, so that a jump to it still works (through the backstop). What must be sure is that nothing jumps to an
instruction *inside* those five bytes.

Decoding is iced-x86's. It begins at several places before a candidate, and only where all of them fall into step, on code that
looks like code, is the result believed; everything doubtful is left to the backstop. Results for files are cached by content.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import struct
import tempfile
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import iced_x86 as ix

from . import _lib
from ._lib import SITE_AREA, lib

logger = logging.getLogger("agentfw.vmm")

#: Few: they hold the GIL, and what one of them found the next finds in the cache.
_threads = ThreadPoolExecutor(2, "agentfw-sites")

#: struct afw_site: offset, length, kind, site length, reserved
SITE = struct.Struct("<IBBBB")

SYSCALL, CPUID, XGETBV = 1, 2, 3
_PATTERNS = ((b"\x0f\x05", SYSCALL), (b"\x0f\xa2", CPUID), (b"\x0f\x01\xd0", XGETBV))
_JUMP = 5
_WINDOW_MAX = 20
_BEFORE = 288  # bytes decoded before a candidate
_AFTER = 144  # and behind it: a short jump back from there reaches into the window
_STARTS = 6  # places where decoding begins
_PLAUSIBLE_BEFORE, _PLAUSIBLE_AFTER = 40, 6  # instructions that must look like code
_RUNWAY = 12  # instructions decoded in step before a window: at the start of code (or of what was sent) there are none
_TABLE_REACH = 4096

#: What a VM may cause in its life: guests can make up code; to copy, hash and decode it is our time, to keep it our disk.
_CANDIDATES = 20_000
_REQUESTS = 4_000
_BYTES = 1 << 30
_PAUSE_EVERY, _PAUSE_SECONDS = 4, 0.0003

_VERSION = 1
_CACHE_MAGIC = b"AFWSITES"
_CACHE_HEAD = struct.Struct("<8sIII32s")  # magic, version, sites, refused, SHA-256 of the sites
_MEMORY_ENTRIES = 64


@dataclass
class Budget:
    """What a VM may still have done for it."""

    left: int = _CANDIDATES
    requests: int = _REQUESTS
    bytes: int = _BYTES

    def admit(self, size: int) -> bool:
        """May it have `size` bytes looked at? Counts them."""
        self.requests -= 1
        self.bytes -= size
        return self.requests >= 0 and self.bytes >= 0


@dataclass(frozen=True)
class Found:
    """An array of struct afw_site, ordered, windows not overlapping; and the number of true sites that have no safe window."""

    packed: bytes
    refused: int

    @property
    def count(self) -> int:
        return len(self.packed) // SITE.size


async def find(code: bytes, kind: int, offset: int, budget: Budget) -> Found:
    """The sites in `code`. Never raises.

    kind AFW_SITES_LAZY: only the site that ends at `offset`. Decoding runs in a thread.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, _find, code, kind, offset, budget)
    except Exception:
        logger.exception("site search failed; the backstop serves")
        return Found(b"", 0)


def _find(code: bytes, kind: int, offset: int, budget: Budget) -> Found:
    if kind == lib.AFW_SITES_LAZY:
        candidates = [
            (offset - len(pattern), what) for pattern, what in _PATTERNS if offset >= 2 and code[:offset].endswith(pattern)
        ]
        return search(code, candidates, budget)
    if kind != lib.AFW_SITES_FILE:
        return search(code, find_candidates(code, budget.left), budget)
    digest = hashlib.sha256(code).digest()
    found = _cached(digest, code)
    if found is None:
        before = budget.left
        candidates = find_candidates(code, before)
        found = search(code, candidates, budget)
        # Cut short is not the whole truth about this file; nothing to decode is found as quickly as a cache file.
        if 0 < len(candidates) < before:
            _store(digest, found)
    _remember(digest, found)
    return found


def find_candidates(code: bytes, limit: int) -> list[tuple[int, int]]:
    """(offset, kind) of every byte pattern that may be a site, ordered, at most `limit`."""
    found: list[tuple[int, int]] = []
    for pattern, kind in _PATTERNS:
        at = code.find(pattern)
        count = 0
        while at >= 0 and count < limit:
            found.append((at, kind))
            count += 1
            at = code.find(pattern, at + 1)
    found.sort()
    return found[:limit]


def search(code: bytes, candidates: list[tuple[int, int]], budget: Budget | None = None) -> Found:
    """Decodes around each candidate. Blocks for about 0.3 ms of CPU time each."""
    if not candidates:
        return Found(b"", 0)
    bitmap = bytearray(len(code) // 8 + 1)
    lib.afw_sites_far_targets(_lib.pointer(code), len(code), _lib.pointer(bitmap))
    out = bytearray()
    refused = end_of_last = 0
    for at, kind in candidates:
        if budget is not None:
            if budget.left <= 0:
                break
            budget.left -= 1
            if budget.left % _PAUSE_EVERY == 0:  # PERF: else each library call of the event loop waits 5 ms for the GIL
                time.sleep(_PAUSE_SECONDS)
        stream = _decode(code, at, kind)
        if stream is None:
            continue  # most likely no instruction at all
        start = _window(code, stream, bitmap, end_of_last)
        if start is None:
            refused += 1
            continue
        site_length = stream.instructions[stream.site].len
        end_of_last = at + site_length
        out += SITE.pack(start, end_of_last - start, kind, site_length, 0)
        if len(out) + SITE.size > SITE_AREA:
            break
    return Found(bytes(out), refused)


class _Stream:
    """Instructions around a candidate, on which all starting places agreed."""

    def __init__(self, instructions: list[ix.Instruction], site: int, near_targets: set[int]) -> None:
        self.instructions = instructions
        self.site = site  # index
        self.near_targets = near_targets


def _window(code: bytes, stream: _Stream, far: bytearray, floor: int) -> int | None:
    """Offset of the window's first byte, or None if there is no safe window. No window begins before `floor`."""
    site = stream.instructions[stream.site]
    at = start = site.ip
    index = stream.site
    while at - start < _JUMP:
        index -= 1
        if index < 0:
            return None
        instruction = stream.instructions[index]
        if not _movable(instruction):
            return None
        start = instruction.ip
    if index < _RUNWAY or start < floor or at + site.len - start > _WINDOW_MAX:
        return None
    inside = [i.ip for i in stream.instructions[index + 1 : stream.site + 1] if i.ip - start < _JUMP]
    # A far target may be a false one, so that bytes which start no instruction count for nothing; a near one is real.
    if any(ip in stream.near_targets or far[ip >> 3] >> (ip & 7) & 1 for ip in inside):
        return None
    if inside and _table_jump_near(code, at):
        return None  # the label of a switch may lie inside: its table is in another section
    return start


_SITE_CODES = {ix.Code.SYSCALL: SYSCALL, ix.Code.CPUID: CPUID, ix.Code.XGETBV: XGETBV}
_ENDBR = {ix.Code.ENDBR64, ix.Code.ENDBR32}


def _decode(code: bytes, at: int, kind: int) -> _Stream | None:
    """The instructions around a candidate; None if it is no site: inside an instruction, in a table, or in doubt."""
    low = max(0, at - _BEFORE)
    high = min(len(code), at + _AFTER)
    piece = code[low:high]
    best: list[ix.Instruction] | None = None
    common: set[int] | None = None
    for start in range(min(_STARTS, at - low + 1)):
        decoder = ix.Decoder(64, piece[start:], ip=low + start)
        instructions = list(decoder)
        boundaries = {i.ip for i in instructions}
        if at not in boundaries:
            return None
        common = boundaries if common is None else common & boundaries
        if best is None or start == 0:
            best = instructions
    assert best is not None and common is not None
    agreed = [i for i in best if i.ip in common]
    # From the first address where all fell into step on, all decode the same.
    first = next(n for n, i in enumerate(best) if i.ip == agreed[0].ip)
    stream = best[first:]
    targets = {i.near_branch_target for i in best if i.op_count and i.op0_kind == ix.OpKind.NEAR_BRANCH64}
    site = next(n for n, i in enumerate(stream) if i.ip == at)
    found = _Stream(stream, site, targets)
    return found if _SITE_CODES.get(stream[site].code) == kind and _plausible(found) else None


def _movable(instruction: ix.Instruction) -> bool:
    """May it run in the stub as it runs in its place?"""
    return (
        instruction.flow_control == ix.FlowControl.NEXT
        and not instruction.is_invalid
        and not instruction.is_ip_rel_memory_operand
        and instruction.code not in _SITE_CODES
        and instruction.code not in _ENDBR  # a target by its nature
        and not instruction.is_privileged
    )


def _plausible(stream: _Stream) -> bool:
    """Tables lie between functions, too, and some of their bytes decode to sites. Real code has no such instructions nearby."""
    first = max(0, stream.site - _PLAUSIBLE_BEFORE)
    around = stream.instructions[first : stream.site]
    for instruction in stream.instructions[stream.site : stream.site + _PLAUSIBLE_AFTER + 1]:
        around.append(instruction)
        if instruction.flow_control in _ENDS:
            break  # anything may follow
    return not any(i.is_invalid or i.mnemonic in _ODD or _is_zeros(i) for i in around)


_ENDS = {ix.FlowControl.RETURN, ix.FlowControl.UNCONDITIONAL_BRANCH, ix.FlowControl.INDIRECT_BRANCH, ix.FlowControl.EXCEPTION}


def _is_zeros(i: ix.Instruction) -> bool:
    """00 00 is `add %al, (%rax)`."""
    return i.code == ix.Code.ADD_RM8_R8 and i.len == 2 and i.op1_register == ix.Register.AL and i.memory_base == ix.Register.RAX


def _mnemonics(names: str) -> frozenset[int]:
    return frozenset(getattr(ix.Mnemonic, name) for name in names.split())


#: What compilers never emit near a system call, and random bytes often decode to.
_ODD = _mnemonics(
    "IN OUT INSB INSD OUTSB OUTSD INT INT1 IRET IRETD IRETQ RETF CLI STI CMC XLATB ENTER LOOP LOOPE LOOPNE JRCXZ JECXZ LAHF SAHF "
    "FADD FMUL FCOM FCOMP FSUB FSUBR FDIV FDIVR FLD FST FSTP FIADD FIMUL FICOM FICOMP FISUB FISUBR FIDIV FIDIVR FILD "
    "FISTTP FIST FISTP FBLD FBSTP FRSTOR FNSAVE FXCH RCL RCR"
)


def _table_jump_near(code: bytes, at: int) -> bool:
    """Does a jump through a table, whose labels are in another section, stand within a function's reach?

    Tail calls through a pointer are as common and no danger: a table's jump has an index, or gets its address from a table or
    from a `lea` right before.
    """
    low = max(0, at - _TABLE_REACH)
    if b"\xff" not in code[low : at + _TABLE_REACH]:
        return False
    recent: list[ix.Instruction] = []
    for instruction in ix.Decoder(64, code[low : at + _TABLE_REACH], ip=low):
        if instruction.flow_control == ix.FlowControl.INDIRECT_BRANCH:
            if instruction.op0_kind == ix.OpKind.MEMORY:
                if instruction.memory_index != ix.Register.NONE:
                    return True
            elif any(_finds_label(i) for i in recent):
                return True
        recent.append(instruction)
        del recent[:-10]
    return False


def _finds_label(i: ix.Instruction) -> bool:
    if i.mnemonic == ix.Mnemonic.MOVSXD or (i.mnemonic == ix.Mnemonic.LEA and i.is_ip_rel_memory_operand):
        return True
    return i.mnemonic in (ix.Mnemonic.MOV, ix.Mnemonic.ADD) and i.memory_index_scale >= 4 and i.memory_index != ix.Register.NONE


# -- cache

_memory: OrderedDict[bytes, Found] = OrderedDict()


def _directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "agentfw" / "sites"


def _remember(digest: bytes, found: Found) -> None:
    _memory[digest] = found
    _memory.move_to_end(digest)
    while len(_memory) > _MEMORY_ENTRIES:
        _memory.popitem(last=False)


def _cached(digest: bytes, code: bytes) -> Found | None:
    found = _memory.get(digest)
    if found is not None:
        return found
    try:
        raw = (_directory() / digest.hex()).read_bytes()
    except (OSError, RuntimeError):
        return None
    if len(raw) < _CACHE_HEAD.size:
        return None
    magic, version, count, refused, check = _CACHE_HEAD.unpack_from(raw)
    body = raw[_CACHE_HEAD.size :]
    if magic != _CACHE_MAGIC or version != _VERSION or len(body) != count * SITE.size or hashlib.sha256(body).digest() != check:
        return None
    return Found(body, refused) if _sound(body, code) else None


def _sound(found: bytes, code: bytes) -> bool:
    """What a cache file says must at least be possible for this code."""
    patterns = {kind: pattern for pattern, kind in _PATTERNS}
    floor = 0
    for offset, length, kind, site_length, _ in SITE.iter_unpack(found):
        pattern = patterns.get(kind)
        site = offset + length - site_length
        if pattern is None or site_length != len(pattern) or offset < floor or not _JUMP + site_length <= length <= _WINDOW_MAX:
            return False
        if code[site : site + site_length] != pattern:
            return False
        floor = offset + length
    return True


def _store(digest: bytes, found: Found) -> None:
    directory = _directory()
    head = _CACHE_HEAD.pack(_CACHE_MAGIC, _VERSION, found.count, found.refused, hashlib.sha256(found.packed).digest())
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".new-", delete=False) as file:
            try:
                file.write(head + found.packed)
                file.flush()
                Path(file.name).replace(directory / digest.hex())
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except (OSError, RuntimeError) as error:
        logger.debug("site cache not written: %s", error)
