"""Cells without VMs: what the pool does with them is checked as it does it."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from typing import Any, Literal

from agentfw.dispatch import AHEAD
from agentfw_vmm import CellError, CellHandler, Sight, VmExit


class Stream:
    """A stream of one life. `held`: what came is not told before `release()`, as with a VM whose other flows come first."""

    def __init__(self) -> None:
        self.sent = b""
        self.gate = None
        self.gone = False
        self.held = False
        self._data = bytearray()
        self.ahead = 0
        self._listener: Callable[[], None] | None = None

    def write(self, data: bytes) -> int:
        assert data == AHEAD and not self.gone
        self.ahead += 1
        return len(data)

    async def send(self, data: bytes) -> None:
        self.sent += data

    def send_eof(self) -> None: ...

    def listen(self, listener: Callable[[], None] | None) -> None:
        self._listener = listener

    def read(self, limit: int = 65536) -> bytes | None:
        if self.held or (not self._data and not self.gone):
            return None
        part = bytes(self._data[:limit])
        del self._data[:limit]
        return part

    def say(self, message: dict[str, Any]) -> None:
        self.write_out(frame(message))

    def write_out(self, data: bytes) -> None:
        self._data += data
        self._tell()

    def end(self) -> None:
        self.gone = True
        self._tell()

    def release(self) -> None:
        self.held = False
        self._tell()

    def _tell(self) -> None:
        if self._listener is not None and not self.held:
            self._listener()


def frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack("<I", len(body)) + body


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
        stream = self.live[vm] = Stream()
        if later:
            stream.listen(lambda: self._stands(vm, stream))

    def _stands(self, vm: int, stream: Stream) -> None:
        """What makes other VMs say that they are warm makes one that was restored to run later stand."""
        stream.listen(None)
        if stream.read():
            self.handler.vm_ready(vm, 0, 0)

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

    def cpu_ns(self, vm: int) -> int:
        return 0

    def sight(self, vm: int) -> Sight:
        return Sight()

    async def look(self, vm: int) -> Sight:
        return Sight()

    def sight_anew(self, vm: int) -> None:
        assert vm in self.live

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
