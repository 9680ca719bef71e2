"""What can be seen of a VM before it runs: a cell that writes it down (state_dump.c), and the host's own view of its memory."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agentfw_vmm.cell import CELL_PROGRAM

from . import bare

_CELL = bare.ROOT / "vmm/native/cell"
_ROOM = 8 << 20
_SPACE = 0x3C0000000


Changes = tuple[tuple[str, str, str], ...]
"""Faults put in for a test: name of one of the cell's files, text that is in it once, what stands there instead."""


class Builder:
    """Cells that note the state of each restored VM before its first instruction. What they have in common is compiled once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._objects: dict[str, Path] = {}

    def cell(self, blob: bytes = b"", changes: Changes = ()) -> Path:
        """`blob`: the shim, else bare_shim.S."""
        self._count += 1
        target = self.folder / f"cell{self._count}"
        return bare.cached(f"dumping cell {blob!r} {changes}", target, lambda: self._build(target, blob, changes))

    def _build(self, target: Path, blob: bytes, changes: Changes) -> None:
        if not self._objects:
            sources = [*sorted(_CELL.glob("*.c")), bare.HERE / "state_dump.c"]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                compiled = pool.map(self._compile, [source for source in sources if source.name != "blob.c"])
                self._objects = {path.stem: path for path in compiled}
        objects = dict(self._objects)
        folder = self.folder / f"{target.name}.d"
        folder.mkdir()
        for name, old, new in changes:
            text = (folder / name if (folder / name).exists() else _CELL / name).read_text()
            assert text.count(old) == 1, f"{name} has not once: {old}"
            (folder / name).write_text(text.replace(old, new))
            objects[Path(name).stem] = self._compile(folder / name)
        if blob:
            (folder / "shim.bin").write_bytes(blob)
        else:
            bare.build_shim(folder)
        shutil.copy(_CELL / "blob.c", folder)
        objects["blob"] = self._compile(folder / "blob.c")
        bare.run("cc", "-pthread", *bare.sanitize(), "-o", target, *objects.values())

    def _compile(self, source: Path) -> Path:
        target = (source.parent if source.parent.parent == self.folder else self.folder) / f"{source.stem}.o"
        flags = ["-O1", "-g", "-std=gnu11", "-D_GNU_SOURCE", "-pthread", *bare.sanitize(), "-include", bare.HERE / "state_dump.h"]
        include = [f"-I{bare.ROOT}/shim", f"-I{bare.ROOT}/vmm/native", f"-I{_CELL}", f"-Wa,-I{source.parent}"]
        bare.run("cc", *flags, *include, "-c", "-o", target, source)
        return target


def shim_blob() -> bytes:
    """The shim as the package's cell carries it."""
    symbols = subprocess.run(["nm", CELL_PROGRAM], check=True, capture_output=True, text=True).stdout.splitlines()
    found = {parts[2]: int(parts[0], 16) for parts in map(str.split, symbols) if len(parts) == 3}
    head = subprocess.run(["readelf", "-WS", CELL_PROGRAM], check=True, capture_output=True, text=True).stdout
    section = next(line.split("]", 1)[1].split() for line in head.splitlines() if " .rodata " in line)
    start = found["shim_blob"] - int(section[2], 16) + int(section[3], 16)
    return CELL_PROGRAM.read_bytes()[start : start + found["shim_blob_end"] - found["shim_blob"]]


def dump(program: Path) -> tuple[int, list[str]]:
    """The last state that this cell noted: how many there were, and its lines."""
    with Path(f"{program}.dump").open("rb") as file:
        count, size = struct.unpack("<QQ", file.read(16))
        assert size < _ROOM
        return count, file.read(size).decode().splitlines()


def host_view(pid: int, base: int) -> list[str]:
    """How the kernel sees the mappings of a VM's memory: neighbours of one kind as one, addresses from its beginning."""
    found: list[tuple[int, int, int, str]] = []  # start, end, offset in the file, kind
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, mode, offset, device, inode, *_ = line.split()
        start, end = (int(part, 16) - base for part in place.split("-"))
        if end <= 0 or start >= _SPACE:
            continue
        start, end, at = max(start, 0), min(end, _SPACE), int(offset, 16) if inode != "0" else 0
        kind = f"{mode} {device} {inode}"
        if found and found[-1][1] == start and found[-1][3] == kind:
            first, _, begin, _ = found[-1]
            if inode == "0" or begin + (start - first) == at:
                found[-1] = (first, end, begin, kind)
                continue
        found.append((start, end, at, kind))
    return [f"host {start:x} {end:x} {at:x} {kind}" for start, end, at, kind in found]


def look(program: Path, pid: int) -> list[str]:
    """All of it, of the VM restored last (a cell of one VM)."""
    _, lines = dump(program)
    base = int(lines[0].removeprefix("base "), 16)
    return [*lines[1:], *host_view(pid, base)]


def difference(one: list[str], other: list[str]) -> list[str]:
    """The lines that only one of two has, marked."""
    return [f"- {line}" for line in one if line not in set(other)] + [f"+ {line}" for line in other if line not in set(one)]
