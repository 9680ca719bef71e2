"""Cells without VMs: what the pool does with them is checked as it does it."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, Literal

from agentfw.dispatch import AHEAD
from agentfw_vmm import CellError, CellHandler, VmExit


class Stream:
    """The job stream of one life."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._end = False
        self.ahead = 0
        self._changed = asyncio.Event()

    async def send(self, data: bytes) -> None:
        assert data == AHEAD and not self._end
        self.ahead += 1

    def say(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self._data += struct.pack("<I", len(body)) + body
        self._changed.set()

    def end(self) -> None:
        self._end = True
        self._changed.set()

    async def said(self) -> None:
        while not self._data and not self._end:
            self._changed.clear()
            await self._changed.wait()

    async def receive(self, limit: int = 65536) -> bytes:
        await self.said()
        part = bytes(self._data[:limit])
        del self._data[:limit]
        return part


class FakeCell:
    """`left`: what each VM's last life left in memory: "clean", "dirty"."""

    pid = 0

    def __init__(self, handler: CellHandler, vms: int, recycle: bool) -> None:
        self.handler = handler
        self.vms = vms
        self.recycle = recycle
        self.live: dict[int, Stream] = {}
        self.killed: list[int] = []
        self.left: dict[int, str] = {}
        self.lost: Literal["", "killed", "broken"] = ""
        self.closed = False
        self.restores = 0
        self.soon: dict[int, bool] = {}
        self.later: dict[int, bool] = {}

    def restore(self, vm: int, pid: int, rules: bytes = b"", note: bytes = b"", soon: bool = False, later: bool = False) -> None:
        assert 0 <= vm < self.vms and vm not in self.live and pid >= 1000
        assert self.left.pop(vm, "clean") == "clean", "the memory of a bad end is used again"
        if self.closed or self.lost:
            raise CellError("the cell is gone")
        self.restores += 1
        self.soon[vm], self.later[vm] = soon, later
        assert soon or later, "VMs of pools run when it is their turn"
        self.live[vm] = Stream()

    async def standing(self, vm: int) -> None:
        """What makes other VMs say that they are warm makes one that was restored to run later stand."""
        assert self.later[vm]
        stream = self.live[vm]
        await stream.said()
        stream._data.clear()

    async def save(self, vm: int) -> Any:
        raise CellError("nothing can be saved")

    def kill(self, vm: int) -> None:
        if vm in self.live:
            self.killed.append(vm)

    def discard(self, vm: int) -> None:
        assert vm not in self.live
        self.left.pop(vm, None)

    def stream(self, vm: int, index: int) -> Any:
        return self.live[vm]

    def statistics(self, vm: int) -> Any:
        raise CellError("nothing is counted")

    def rules(self, vm: int, rules: bytes) -> None: ...
    def signal(self, vm: int, number: int) -> None: ...
    def limit(self, vm: int, cpu: float | None = None, cpu_seconds: float | None = None) -> None: ...
    def share(self, fraction: float | None) -> None: ...
    def other_memory(self) -> int:
        return 0

    def cpu_seconds(self) -> float:
        return 0.0

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True
        for vm in list(self.live):
            self.exit(vm, "killed")

    # -- what happens in it

    def exit(self, vm: int, kind: Literal["code", "signal", "killed", "internal"], text: str = "") -> None:
        self.live.pop(vm).end()
        self.killed = [each for each in self.killed if each != vm]
        if self.recycle and kind != "internal":
            self.left[vm] = "clean" if kind == "code" else "dirty"
        self.handler.vm_exited(vm, VmExit(kind, 0, 0, text or kind))

    def obey(self) -> None:
        for vm in list(self.killed):
            if vm in self.live:
                self.exit(vm, "killed")

    def crash(self, how: Literal["killed", "broken"]) -> None:
        self.lost = how
        for vm in list(self.live):
            self.exit(vm, "internal", "the cell died")
        self.handler.cell_failed("the cell died")
