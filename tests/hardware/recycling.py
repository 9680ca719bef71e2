"""On a hardware KVM: a VM is recycled after a quiet program, and made anew after one that wrote an MSR at CPL 0."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from agentfw.dispatch import default_environment
from agentfw.guestfs import base_view, find_interpreter
from agentfw.snapshots import SnapshotStore, Template

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from recycle import One

QUIET = "print(1, flush=True)"
#: Code of its own in the place of the shim's entry for `syscall`: a kernel register is changed, and back it goes.
MSR = """
import ctypes, mmap
print(1, flush=True)
stub = bytes.fromhex("4989c8 4989e1 b9020100c0 31d2 b834120000 0f30 6a2b 4151 4153 6a33 4150 48cf")
entry = ctypes.c_uint64.from_address(0x210000 + 48).value
before = ctypes.string_at(entry, len(stub))
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code[:4] = bytes.fromhex("0f0590c3")
call = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
ctypes.memmove(entry, stub, len(stub))
call()
ctypes.memmove(entry, before, len(before))
"""


async def main() -> None:
    interpreter = find_interpreter(sys.executable, default_environment())
    template = Template(interpreter, base_view(interpreter), default_environment(), (), 512 << 20)
    store = SnapshotStore()
    snapshot, key = await store.get(template, lambda what, seconds: contextlib.nullcontext())
    one = One(template)
    await one.start(snapshot, key, None, True)
    try:
        for code, expected in ((QUIET, 0), (QUIET, 1), (MSR, 1), (QUIET, 0), (QUIET, 1)):
            await one.life(code)
            if one.statistics.recycled != expected:
                raise SystemExit(f"recycled: {one.statistics.recycled} instead of {expected}, at {code!r}")
    finally:
        await one.cell.close()
    print("recycled, but not after an MSR was written")


if __name__ == "__main__":
    asyncio.run(main())
