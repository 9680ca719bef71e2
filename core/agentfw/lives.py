"""A VM's life from its restore to its end, and the cell that it is in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from typing import Protocol

from agentfw_vmm import Cell, CellError, GuestFlow, Sight, VmExit

from .agents import Agent, VmReport

KILL_SECONDS = 5.0
LOOK_SECONDS = 2.0
"""For a cell to say how a VM stands; then as far as it was known before."""

log = logging.getLogger("agentfw.fleet")


class Life:
    """One VM's life."""

    def __init__(self, agent: Agent, host: Host, vm: int) -> None:
        self.agent = agent
        self.host = host
        self.vm = vm
        self.exited: asyncio.Future[VmExit] = asyncio.get_running_loop().create_future()
        self.vm_report: VmReport | None = None
        """What its VM did, once that has ended."""
        self.queued = 0.0
        """Seconds that it waited for its VM, and time.perf_counter() when it got that."""
        self.restored = time.perf_counter()
        self.acknowledged = False
        self.failure = ""
        self.stopped = ""
        """Why a plugin ended it."""
        self.waiting_signals: list[int] = []

    def signal(self, number: int) -> None:
        """Not before the program runs: until then it would meet the bootstrap."""
        if self.acknowledged:
            self.host.cell.signal(self.vm, number)
        else:
            self.waiting_signals.append(number)

    def stop(self, reason: str) -> None:
        """`Runtime.stop_agent()`."""
        self.stopped = self.stopped or reason
        self.kill()

    def kill(self) -> None:
        """A cell that does not obey (it was stopped, or hangs in a host's file system) is killed with all its VMs."""
        self.host.cell.kill(self.vm)
        asyncio.get_running_loop().call_later(KILL_SECONDS, self._overdue)

    def _overdue(self) -> None:
        if not self.exited.done():
            self.host.give_up()

    def acknowledge(self) -> None:
        self.acknowledged = True
        for number in self.waiting_signals:
            self.host.cell.signal(self.vm, number)

    async def look(self) -> VmReport | None:
        """What its VM did so far."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                sight = await self.host.cell.look(self.vm)
        except TimeoutError:
            sight = self.host.cell.sight(self.vm)
        return self.vm_report if self.exited.done() else _report(self.host.cell, self.vm, sight)

    def glance(self) -> VmReport | None:
        """Its counters alone, which are there to be read: the VM is not asked."""
        return self.vm_report if self.exited.done() else _report(self.host.cell, self.vm, Sight())


def _report(cell: Cell, vm: int, sight: Sight) -> VmReport:
    statistics = cell.statistics(vm)
    return VmReport(statistics, sight, statistics.cpu_ns / 1e9)


class Flows(Protocol):
    """Who takes what agents connect to."""

    def flow_opened(self, life: Life, flow: GuestFlow) -> None: ...


class Host:
    """A cell and whose VMs are in it: the CellHandler. `flows` None: nothing is connected. `recycle`: the cell does; after any
    end but a program's own its VM is made anew."""

    cell: Cell

    def __init__(self, flows: Flows | None, recycle: bool = False) -> None:
        self.lives: dict[int, Life] = {}
        self.failure: str | None = None
        self._flows = flows
        self._recycle = recycle
        self._closing: asyncio.Future[None] | None = None

    def vm_ready(self, vm: int, snapshot_bytes: int, error: int) -> None:
        """A restored VM does not stop at its ready call again."""

    def flow_opened(self, flow: GuestFlow) -> None:
        life = self.lives.get(flow.vm)
        if life is None or self._flows is None:
            flow.failed(errno.ENETUNREACH)
        else:
            self._flows.flow_opened(life, flow)

    def vm_exited(self, vm: int, report: VmExit) -> None:
        life = self.lives.pop(vm, None)
        if life is None:
            return
        with contextlib.suppress(CellError):
            life.vm_report = _report(self.cell, vm, self.cell.sight(vm))
            if self._recycle and report.kind != "code":
                self.cell.discard(vm)
        if not life.exited.done():
            life.exited.set_result(report)

    def cell_failed(self, text: str) -> None:
        self.failure = text

    def give_up(self) -> None:
        if self.failure is None:
            self.failure = f"the cell did not answer for {KILL_SECONDS:g} s and was killed"
            log.error("%s", self.failure)
        if self._closing is None:  # each of its VMs comes here
            self._closing = asyncio.ensure_future(self.cell.close())
