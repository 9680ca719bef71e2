"""The other side of a cell's shared memory, played in this process: a cell's runners and the guests in its windows."""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
from dataclasses import dataclass, field

from agentfw_vmm import CellConfig, GuestFlow, VmExit, _lib
from agentfw_vmm.cell import Cell
from agentfw_vmm.trace_socket import TraceSocket

C = _lib.constants()
STRUCTS = {tag: layout for tag, layout in _lib.structs().items()}
RING = C["AFW_RING"]


def offset(tag: str, name: str) -> int:
    return STRUCTS[tag][1][name][0]


@dataclass
class Handler:
    """Records what a cell says."""

    flows: list[GuestFlow] = field(default_factory=list)
    exits: list[tuple[int, VmExit]] = field(default_factory=list)
    ready: list[tuple[int, int, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def vm_ready(self, vm: int, snapshot_bytes: int, error: int) -> None:
        self.ready.append((vm, snapshot_bytes, error))
        self.changed.set()

    def flow_opened(self, flow: GuestFlow) -> None:
        self.flows.append(flow)
        self.changed.set()

    def vm_exited(self, vm: int, report: VmExit) -> None:
        self.exits.append((vm, report))
        self.changed.set()

    def cell_failed(self, text: str) -> None:
        self.failures.append(text)
        self.changed.set()

    async def until(self, condition, seconds: float = 20.0) -> None:
        async def wait() -> None:
            while not condition():
                self.changed.clear()
                await self.changed.wait()

        await asyncio.wait_for(wait(), seconds)

    async def exit(self, seconds: float) -> VmExit:
        """The first."""
        await self.until(lambda: self.exits or self.failures, seconds)
        assert not self.failures, self.failures
        return self.exits[0][1]


class Memory:
    """Shared memory by fields of the border's structs, as the cell or the guest sees it."""

    def __init__(self, memory_fd: int, windows_fd: int) -> None:
        self.memory = mmap.mmap(memory_fd, os.fstat(memory_fd).st_size)
        self.windows = mmap.mmap(windows_fd, os.fstat(windows_fd).st_size)

    def header(self, name: str) -> int:
        width = STRUCTS["afw_cell_header"][1][name][1]
        return struct.unpack_from("<Q" if width == 8 else "<I", self.memory, offset("afw_cell_header", name))[0]

    def set_header(self, name: str, value: int) -> None:
        struct.pack_into("<I", self.memory, offset("afw_cell_header", name), value)

    def _queues(self, runner: int, name: str) -> int:
        return self.header("queue_offset") + runner * STRUCTS["afw_runner_queues"][0] + offset("afw_runner_queues", name)

    def index(self, runner: int, name: str) -> int:
        return struct.unpack_from("<I", self.memory, self._queues(runner, name))[0]

    def set_index(self, runner: int, name: str, value: int) -> None:
        struct.pack_into("<I", self.memory, self._queues(runner, name), value & 0xFFFFFFFF)

    def event(self, runner: int, kind: int, vm: int, arg: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> bool:
        """False: the queue is full."""
        head, tail = self.index(runner, "event_head"), self.index(runner, "event_tail")
        if (tail - head) & 0xFFFFFFFF >= C["AFW_QUEUE"]:
            self.set_index(runner, "event_stalled", 1)
            return False
        at = self._queues(runner, "event") + tail % C["AFW_QUEUE"] * 64
        struct.pack_into("<IIIIQQQQQQ", self.memory, at, kind, vm, arg, 0, a, b, c, d, 0, 0)
        self.set_index(runner, "event_tail", tail + 1)
        return True

    def commands(self, runner: int) -> list[tuple[int, int, int, int]]:
        """(type, vm, a, c) of all that are queued."""
        head, tail = self.index(runner, "command_head"), self.index(runner, "command_tail")
        found = []
        while head != tail:
            at = self._queues(runner, "command") + head % C["AFW_QUEUE"] * 32
            kind, vm, a, _, c = struct.unpack_from("<IIQQQ", self.memory, at)
            found.append((kind, vm, a, c))
            head = (head + 1) & 0xFFFFFFFF
        self.set_index(runner, "command_head", head)
        return found

    def set_vm(self, vm: int, name: str, value: int | bytes) -> None:
        at = self.header("vm_offset") + vm * STRUCTS["afw_vm_shm"][0] + offset("afw_vm_shm", name)
        width = STRUCTS["afw_vm_shm"][1][name][1]
        if isinstance(value, bytes):
            self.memory[at : at + width] = value.ljust(width, b"\0")
        else:
            self.memory[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")


class Guest:
    """A correct guest's end of one flow."""

    def __init__(self, memory: Memory, vm: int, index: int) -> None:
        self.windows = memory.windows
        self.base = vm * C["AFW_WINDOW_STRIDE"]
        self.index = index
        self.tx = self.base + C["AFW_WINDOW_DATA"] + index * 2 * RING
        self.rx = self.tx + RING

    def get(self, name: str) -> int:
        return struct.unpack_from("<I", self.windows, self.base + self.index * 128 + offset("afw_flow", name))[0]

    def set(self, name: str, value: int) -> None:
        struct.pack_into("<I", self.windows, self.base + self.index * 128 + offset("afw_flow", name), value & 0xFFFFFFFF)

    def ready(self) -> bool:
        """Reads and clears this flow's ready bit."""
        at = self.base + offset("afw_window", "ready") + self.index // 64 * 8
        (bits,) = struct.unpack_from("<Q", self.windows, at)
        struct.pack_into("<Q", self.windows, at, bits & ~(1 << self.index % 64))
        return bool(bits >> self.index % 64 & 1)

    def write(self, data: bytes) -> int:
        """As much as fits."""
        head = self.get("tx_head")
        room = RING - (head - self.get("tx_tail") & 0xFFFFFFFF)
        data = data[:room]
        self.put(head, data)
        self.set("tx_head", head + len(data))
        return len(data)

    def put(self, head: int, data: bytes) -> None:
        at = head % RING
        first = data[: RING - at]
        self.windows[self.tx + at : self.tx + at + len(first)] = first
        self.windows[self.tx : self.tx + len(data) - len(first)] = data[len(first) :]

    def read(self, limit: int = RING) -> bytes:
        tail = self.get("rx_tail")
        count = min(self.get("rx_head") - tail & 0xFFFFFFFF, limit)
        at = tail % RING
        data = self.windows[self.rx + at : self.rx + min(at + count, RING)]
        data += self.windows[self.rx : self.rx + count - len(data)]
        self.set("rx_tail", tail + count)
        return data


class Peer:
    """A cell without a process: `memory` and `signal()` are the runners'."""

    def __init__(self, vms: int = 2, runners: int = 1) -> None:
        config = CellConfig(vms=vms, runners=runners)
        self.handler = Handler()
        worker = _lib.lib.afw_worker_new(vms, runners, b"", 0)
        fds = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(runners + 1)]
        _lib.lib.afw_worker_descriptors(worker, -1, fds[0], fds[1:])
        self.eventfd, self.runner_fds = fds[0], fds[1:]
        self.cell = Cell(config, self.handler, worker, [-1, *fds], TraceSocket(None, []))
        self.memory = Memory(_lib.lib.afw_worker_memory_fd(worker), _lib.lib.afw_worker_windows_fd(worker))
        asyncio.get_running_loop().add_reader(fds[0], self.cell._readable)

    def signal(self) -> None:
        os.eventfd_write(self.eventfd, 1)

    def kick(self, vm: int, flow: int) -> None:
        assert self.memory.event(vm % len(self.runner_fds), C["AFW_EV_FLOW"], vm, flow)
        self.signal()

    async def settle(self) -> None:
        """Lets the loop take in what was signalled and flush what came of it."""
        for _ in range(6):
            await asyncio.sleep(0)

    async def open(self, vm: int, index: int, kind: int = 1, address: bytes = bytes([10, 0, 0, 1]), port: int = 80) -> Guest:
        """The guest's connect(), forwarded."""
        guest = Guest(self.memory, vm, index)
        assert guest.get("hstate") == C["AFW_H_FREE"]
        for name in ("tx_head", "rx_tail", "gflags"):
            guest.set(name, 0)
        guest.set("hstate", C["AFW_H_OPENING"])
        b, c = struct.unpack("<QQ", address.ljust(16, b"\0"))
        family = 2 if len(address) == 4 else 10
        assert self.memory.event(
            vm % len(self.runner_fds), C["AFW_EV_FLOW_OPEN"], vm, index, kind | family << 16 | port << 32, b, c
        )
        self.signal()
        await self.settle()
        return guest

    def close(self) -> None:
        cell = self.cell
        cell._end_all("killed", "test over")
        cell._gone.set_result(None)
        cell._closing = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.eventfd)
        if cell._retry is not None:
            cell._retry.cancel()
        for fd in (self.eventfd, *self.runner_fds):
            os.close(fd)
        _lib.lib.afw_worker_free(cell.worker)
