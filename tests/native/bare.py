"""Cells with a blob of our own, and guests that speak to the ring themselves. Built once a session, in a temporary directory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agentfw_vmm._lib import constants
from agentfw_vmm.cell import Cell
from agentfw_vmm.config import CellConfig, Mount
from agentfw_vmm.flows import GuestFlow
from agentfw_vmm.report import VmExit

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


#: What an earlier run built, by content, for machines without a compiler (tests/hardware).
CACHE = os.environ.get("AGENTFW_TEST_BUILDS")


def run(*command: object) -> None:
    """A compiler or its like: not under the sanitizer that `make sanitize` loads into Python."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run([str(part) for part in command], check=True, env=environment)


def cached(key: str, target: Path, build: Callable[[], None]) -> Path:
    """`target`, from the cache or built now."""
    kept = Path(CACHE) / hashlib.sha256(key.encode()).hexdigest()[:24] if CACHE else None
    if kept and kept.exists():
        shutil.copy(kept, target)
    else:
        build()
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, kept)
    return target


def build_shim(out: Path) -> None:
    """shim.bin of bare_shim.S"""
    flags = ["-nostdlib", "-static", "-Wl,-Ttext=0x210000", "-Wl,--build-id=none", f"-DABI={constants()['AFW_ABI']}"]
    run("cc", *flags, "-o", out / "shim.elf", HERE / "bare_shim.S")
    run("objcopy", "-O", "binary", "-j", ".text", out / "shim.elf", out / "shim.bin")


def sanitize() -> list[str]:
    """Flags for the compiler and the linker."""
    if not os.environ.get("AGENTFW_SANITIZE"):
        return []
    return ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


def build_cell(out: Path) -> Path:
    """A cell as hatch_build.py makes it, around bare_shim.S."""

    def build() -> None:
        build_shim(out)
        cell = ROOT / "vmm/native/cell"
        flags = ["-O1", "-g", "-std=gnu11", "-D_GNU_SOURCE", "-pthread", *sanitize()]
        run("cc", *flags, f"-I{ROOT}/shim", f"-I{ROOT}/vmm/native", f"-Wa,-I{out}", "-o", out / "cell", *sorted(cell.glob("*.c")))

    return cached("cell", out / "cell", build)


def build_guest(out: Path, name: str, body: str, *flags: str) -> Path:
    """A static program whose run() is `body`."""

    def build() -> None:
        source = out / f"{name}.c"
        source.write_text(f'#include "guest.h"\n{body}')
        kind = ["-O1", "-mno-red-zone", "-ffreestanding", "-fno-stack-protector", "-nostdlib", "-static", "-fno-pic", "-no-pie"]
        run("cc", *kind, *flags, f"-I{ROOT}/shim", f"-I{HERE}", "-o", out / name, source)

    return cached(body + "".join(flags), out / name, build)


@dataclass
class Recorder:
    """The handler of a cell: what happened, and events to wait for."""

    ready: dict[int, tuple[int, int]] = field(default_factory=dict)
    exits: dict[int, VmExit] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    flows: list[GuestFlow] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def vm_ready(self, vm: int, snapshot_bytes: int, error: int) -> None:
        self.ready[vm] = (snapshot_bytes, error)
        self.changed.set()

    def flow_opened(self, flow: GuestFlow) -> None:
        self.flows.append(flow)
        self.changed.set()

    def vm_exited(self, vm: int, report: VmExit) -> None:
        self.exits[vm] = report
        self.changed.set()

    def cell_failed(self, text: str) -> None:
        self.failed.append(text)
        self.changed.set()

    async def until(self, condition, seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def config(guest: Path, **changes) -> CellConfig:
    settings = {
        "vms": 1,
        "memory": 128 << 20,
        "mounts": [Mount("/t", guest.parent)],
        "program": f"/t/{guest.name}",
        "argv": ["guest"],
    }
    return CellConfig(**{**settings, **changes})


async def run_guest(program: Path, guest: Path, **changes) -> tuple[VmExit, bytes]:
    """Boots `guest` alone in a cell and waits for its end. -> its end, its standard output"""
    recorder = Recorder()
    cell = await Cell.start(config(guest, **changes), recorder, program)
    try:
        cell.boot(0)
        await recorder.until(lambda: 0 in recorder.exits)
        output = b""
        stream = cell.stream(0, 1)
        try:
            async with asyncio.timeout(0.2):
                while piece := await stream.receive():
                    output += piece
        except TimeoutError:
            pass
        return recorder.exits[0], output
    finally:
        await cell.close()
