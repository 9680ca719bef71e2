"""What a snapshot file says of itself, read without a cell: to show it, and to refuse what cannot be one.

The cell checks for itself whatever it restores (restore.c); here the numbers are bounded for those who look.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from . import _lib
from ._lib import lib, take
from .errors import CellError

CHUNK = 32 << 20
BOOT = 64 << 20
"""Committed in any VM, whatever its limit."""
SPACE = 16 << 30


class SnapshotError(CellError):
    """The file is no snapshot that this version reads."""


@dataclass(frozen=True)
class SnapshotHead:
    """Sizes are bytes. `needs`: CPU features by name that its code may use; `committed`: guest memory that it has; `stored`: of
    it, what is in the file; `state`: registers, protections and mappings."""

    format: int
    abi: int
    size: int
    shim: bytes
    key: bytes
    cpu_vendor: str
    xcr0: int
    needs: tuple[str, ...]
    memory: int
    committed: int
    stored: int
    extents: int
    state: int
    sites: int
    sites_refused: int


def read_head(path: Path) -> SnapshotHead:
    """SnapshotError with what is wrong; OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return parse_head(file.read(_lib.SNAPSHOT_HEADER), size)


def parse_head(data: bytes, size: int) -> SnapshotHead:
    """`data`: the file's beginning; `size`: the file's. SnapshotError."""
    head = _lib.snapshot_header(data)
    if head is None or head.magic != lib.AFW_SNAPSHOT_MAGIC:
        raise SnapshotError("not a snapshot, or an unfinished one")
    if (head.format, head.abi) != (lib.AFW_SNAPSHOT_FORMAT, lib.AFW_ABI):
        ours = f"format {lib.AFW_SNAPSHOT_FORMAT}, ABI {lib.AFW_ABI}"
        raise SnapshotError(f"format {head.format}, ABI {head.abi}; this version reads {ours}")
    if head.file_size != size:
        raise SnapshotError("the file is damaged: its size is not what its head says")
    extents = [head.extent[i] for i in range(min(head.n_extents, lib.AFW_SNAPSHOT_EXTENTS))]
    inside = all(each.size <= size and each.offset <= size - each.size and each.gpa <= SPACE for each in extents)
    committed = sum(int(word).bit_count() for word in head.commit_chunks) * CHUNK
    large = head.memory_limit > SPACE or head.vcpu_size > size or committed > max(BOOT, head.memory_limit + CHUNK)
    if head.n_extents > lib.AFW_SNAPSHOT_EXTENTS or not inside or large:
        raise SnapshotError("the file is damaged: sizes out of bounds")
    return SnapshotHead(
        format=int(head.format),
        abi=int(head.abi),
        size=size,
        shim=take(head.shim_sha, 32),
        key=take(head.key, 32),
        cpu_vendor=_lib.string(head.cpu_vendor) if 0 in take(head.cpu_vendor, 16) else "?",
        xcr0=int(head.xcr0),
        needs=_needs([int(word) for word in head.needs]),
        memory=int(head.memory_limit),
        committed=committed,
        stored=sum(int(each.size) for each in extents),
        extents=int(head.n_extents),
        state=int(head.vcpu_size),
        sites=int(head.sites),
        sites_refused=int(head.sites_refused),
    )


def _needs(words: list[int]) -> tuple[str, ...]:
    names = {(word, bit): name for name, word, bit in _lib.needs()}
    bits = [(word, bit) for word, value in enumerate(words) for bit in range(64) if value >> bit & 1]
    return tuple(names.get(place, f"feature {place[0]}.{place[1]}") for place in bits)
