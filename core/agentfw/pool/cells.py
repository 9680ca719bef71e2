"""A cell of the pool: VMs of one group (tenant, template, isolation), each restored to where it waits for its job.

Some have run on from where their template stopped and wait in the middle of what a job does; the others stand there, ready to
run, and are waked when a job, or their turn to be among the next, comes.

empty -> warming -> idle -> running -> empty      (a clean end may leave the memory for the next of the same group: `kept`)
             \\________\\__-> ending -> empty      (given up)
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from agentfw_vmm import CellError, CellHandler, GuestFlow, SavedVm, Sight, VmExit, VmStatistics
from agentfw_vmm.trace import Tracer

from ..dispatch import AHEAD, Frames
from ..lives import KILL_SECONDS
from .shares import Limited

WARM_SECONDS = 60.0
WARM_AT_ONCE = 4
"""VMs that a runner restores at a time while it runs others: each keeps these waiting for half a millisecond."""

log = logging.getLogger("agentfw.pool")

SOON_PART = 16
"""One of so many VMs of a cell has run to where it waits for its job, with the pages that this will write to: a job in it begins
2 ms sooner, and until then it takes 1 MB more, and took 3 core-ms more."""
SOON_CELLS = 4
"""So many cells of a group are so. Of those beyond it one VM each is enough: there are many cells to choose from."""
SOON_AFTER = 0.05
"""Seconds after one of them got its job another is waked: not while that begins."""
State = Literal["empty", "warming", "idle", "running", "ending"]
Counts = dict[str, int]


def no_vms() -> Counts:
    return {"empty": 0, "warming": 0, "idle": 0, "running": 0, "ending": 0}


class CellLike(Limited, Protocol):
    """What is needed of `agentfw_vmm.Cell`."""

    def restore(
        self, vm: int, pid: int, rules: bytes = b"", note: bytes = b"", soon: bool = False, later: bool = False
    ) -> None: ...
    async def save(self, vm: int) -> SavedVm: ...
    def rules(self, vm: int, rules: bytes) -> None: ...
    def signal(self, vm: int, number: int) -> None: ...
    def kill(self, vm: int) -> None: ...
    def limit(self, vm: int, cpu: float | None = None, cpu_seconds: float | None = None) -> None: ...
    def discard(self, vm: int) -> None: ...
    def stream(self, vm: int, index: int) -> GuestFlow: ...
    def statistics(self, vm: int) -> VmStatistics: ...
    def cpu_ns(self, vm: int) -> int: ...
    def sight(self, vm: int) -> Sight: ...
    async def look(self, vm: int) -> Sight: ...
    def sight_anew(self, vm: int) -> None: ...
    def other_memory(self) -> int: ...
    async def close(self) -> None: ...
    @property
    def lost(self) -> Literal["", "killed", "broken"]: ...


StartCell = Callable[[CellHandler, int], Awaitable[CellLike]]
"""(handler, VMs) -> the cell. CellError."""


@dataclass(frozen=True)
class Loss:
    """How a job lost its cell. `outside`: it was killed by somebody else than us; `alone`: no other job ran in it."""

    text: str
    outside: bool
    alone: bool


class User(Protocol):
    """Whom a running VM belongs to."""

    @property
    def tracer(self) -> Tracer | None:
        """Who is told of its system calls, if its cell traces them."""

    def flow_opened(self, flow: GuestFlow) -> None: ...

    def ended(self, report: VmExit, statistics: VmStatistics | None, loss: Loss | None) -> bool:
        """-> whether its memory may be put back for the next: it ended by itself, in order."""


class CellEvents(Protocol):
    """Whom a cell tells."""

    def cell_up(self, cell: PoolCell) -> None: ...
    def cell_down(self, cell: PoolCell, error: str) -> None:
        """It did not start, or it is lost: all its VMs are gone."""

    def vm_warm(self, vm: Vm) -> None: ...
    def vm_gone(self, vm: Vm, was: State, report: VmExit, loss: Loss | None) -> None: ...


class Lane:
    """The VMs of one runner thread."""

    __slots__ = ("count", "idle")

    def __init__(self) -> None:
        self.count = no_vms()
        self.idle: list[Vm] = []

    @property
    def load(self) -> int:
        return self.count["running"] + self.count["warming"]


class Vm:
    """A place for a VM in a cell."""

    __slots__ = ("asked", "begun", "born", "cell", "frames", "hurry", "kept", "lane", "life", "number", "soon", "state", "unfit",
                 "user", "warm_cpu")  # fmt: skip

    def __init__(self, cell: PoolCell, number: int, lane: Lane) -> None:
        self.cell = cell
        self.number = number
        self.lane = lane
        self.state: State = "empty"
        self.life = 0
        """Of how many restores the last one is."""
        self.born = True
        """False: it is its user's, who has not restored it yet (in a `late` cell)."""
        self.kept = False
        """It is empty, and its memory is still there to be put back."""
        self.hurry = False
        """A job waits for it."""
        self.soon = False
        """It has run, and what jobs write to is there already: the first to get one."""
        self.begun = 0.0
        """When its restore was asked for."""
        self.frames: Frames | None = None
        """Of what it said, if that did not come whole."""
        self.unfit = ""
        """Why it did not get warm, and is being killed."""
        self.user: User | None = None
        self.asked = 0.0
        """loop.time() at which it was to be made."""
        self.warm_cpu = 0
        """Nanoseconds of CPU time that it took to get warm: not its job's."""
        for count in (cell.count, *cell.above, lane.count):
            count["empty"] += 1

    def become(self, state: State) -> None:
        """The only way to another state: all who count are told."""
        old, self.state = self.state, state
        if self.soon and old in ("warming", "idle") and state not in ("warming", "idle"):
            self.cell.ready -= 1
            self.cell.wake_later()  # whether a job has it or it has died
        for count in (self.cell.count, *self.cell.above, self.lane.count):
            count[old] -= 1
            count[state] += 1
        if old == "idle":
            self.lane.idle.remove(self)
        if state == "idle":
            self._line_up()

    def wake(self) -> None:
        """It idles, and is among the next from now on."""
        self.lane.idle.remove(self)
        self.soon = True
        self.cell.ready += 1
        self._line_up()

    def _line_up(self) -> None:
        idle = self.lane.idle  # the last one is taken first
        at = len(idle) if self.soon else next((at for at, vm in enumerate(idle) if vm.soon), len(idle))
        idle.insert(at, self)

    def stream(self, index: int) -> GuestFlow:
        return self.cell.native.stream(self.number, index)


class PoolCell:
    """The CellHandler. `above`: the counts of those that it is part of. `late`: a VM is restored by who uses it; while it is
    "warming" and "idle" its place is only kept free."""

    def __init__(
        self, events: CellEvents, above: tuple[Counts, ...], vms: int, runners: int, recycle: bool, late: bool = False
    ) -> None:
        self.late = late
        self.events = events
        self.above = above
        self.count = no_vms()
        self.soon_part = max(1, vms // SOON_PART)
        """VMs that shall be among the next."""
        self.ready = 0
        """VMs that are among the next (`Vm.soon`)."""
        self._waking = False
        self.lanes = [Lane() for _ in range(runners)]
        self.vms = [Vm(self, number, self.lanes[number % runners]) for number in range(vms)]
        self.up = False
        self.lived = False
        """It has been up."""
        self.closed = False
        self.empty_since: float | None = None
        self._recycle = recycle
        self._loop = asyncio.get_running_loop()
        self._native: CellLike | None = None
        self._pids: Callable[[], int] = lambda: 1000
        self._hung = ""
        self._alone: bool | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    @property
    def native(self) -> CellLike:
        assert self._native is not None
        return self._native

    @property
    def pid(self) -> int:
        """0: it has no process."""
        return self._native.pid if self._native is not None and self.up else 0

    def begin(self, start: StartCell, pids: Callable[[], int]) -> None:
        """Start it; VMs that are asked for meanwhile are restored when it is there."""
        self._pids = pids
        self._task(self._start(start))

    async def _start(self, start: StartCell) -> None:
        try:
            native = await start(self, len(self.vms))
        except CellError as error:
            self._fell(str(error))
            return
        except Exception as error:
            log.exception("a cell could not be started")
            self._fell(f"{type(error).__name__}: {error}")
            return
        self._native = native
        if self.closed:
            await native.close()
            return
        if native.lost:  # between its start and now
            self._fell("the cell ended as soon as it had started")
            await native.close()
            return
        self.up = self.lived = True
        for vm in self.vms:
            if vm.state == "warming":
                self._restore(vm)
        self.events.cell_up(self)

    def _fell(self, text: str) -> None:
        if not self.closed:
            self.closed = True
            self._forget_all()
            self.events.cell_down(self, text)

    def _forget_all(self) -> None:
        for vm in self.vms:
            if vm.state != "empty":
                vm.become("empty")

    # -- VMs

    def free(self) -> Vm | None:
        """An empty place, of a runner that may be given another VM now."""
        if self.closed or not self.count["empty"]:
            return None
        best: Vm | None = None
        for vm in self.vms:
            if vm.state != "empty" or (vm.lane.count["running"] and vm.lane.count["warming"] >= WARM_AT_ONCE):
                continue
            if best is None or vm.lane.count["empty"] > best.lane.count["empty"]:
                best = vm
        return best

    def warm(self, vm: Vm, hurry: bool = False) -> None:
        """Restore a VM into this empty place. `hurry`: a job waits for it."""
        vm.become("warming")
        vm.asked = self._loop.time()
        vm.soon = False
        vm.hurry = hurry
        self.empty_since = None
        if self.up:
            self._restore(vm)

    def restore_now(self, vm: Vm, rules: bytes, note: bytes) -> None:
        """By its user, in a `late` cell. CellError."""
        self.native.restore(vm.number, self._pids(), rules, note)
        vm.life += 1
        vm.born = True

    def _restore(self, vm: Vm) -> None:
        if self.late:
            vm.become("idle")
            self.events.vm_warm(vm)
            return
        vm.life += 1
        soon = vm.kept or vm.hurry or self.ready < self.soon_part  # one that was used has these pages
        ahead = soon and not (vm.kept or vm.hurry)
        vm.kept = False
        vm.begun = self._loop.time()
        vm.frames, vm.unfit = None, ""
        try:
            self.native.restore(vm.number, self._pids(), soon=soon, later=not soon)
        except CellError as error:
            vm.become("empty")
            self.events.vm_gone(vm, "warming", VmExit("internal", 0, 0, str(error)), self._loss())
            return
        if not soon:
            return  # `vm_ready()`
        vm.soon = True
        self.ready += 1
        stream = vm.stream(3)
        if ahead:
            stream.write(AHEAD)
        stream.listen(partial(self._said, vm, stream, vm.life))

    def _said(self, vm: Vm, stream: GuestFlow, life: int) -> None:
        """On the job stream, of a VM that is getting warm. No task and no timer: there may be a thousand at once."""
        if vm.life != life or vm.state != "warming":
            stream.listen(None)
            return
        data = stream.read()
        if not data:
            return  # its end will tell
        try:
            vm.frames, frames = None, vm.frames or Frames()
            frame = frames.add(data)
            if frame is None:
                vm.frames = frames
                return
            if "warm" not in frame:
                raise ValueError("it does not say that it is warm")
        except ValueError as error:
            self._not_warm(vm, str(error))
            return
        stream.listen(None)
        self._warm(vm)

    def _warm(self, vm: Vm) -> None:
        vm.become("idle")
        if not vm.soon:
            self.wake_later()  # there may have been none to be waked before
        self.events.vm_warm(vm)

    def tick(self) -> None:
        """Now and then: those that say nothing."""
        late = self._loop.time() - WARM_SECONDS
        for vm in self.vms if self.up and self.count["warming"] else ():
            if vm.state == "warming" and vm.begun < late:
                self._not_warm(vm, f"silent for {WARM_SECONDS:.0f} s")

    def _not_warm(self, vm: Vm, why: str) -> None:
        vm.unfit = f"it did not become ready: {why}"
        vm.become("ending")
        self.kill(vm)

    def _wake(self) -> None:
        """Of those that idle as many are to be among the next as should be."""
        self._waking = False
        while not self.closed and self.up and self.ready < self.soon_part:
            asleep = [lane for lane in self.lanes if lane.idle and not lane.idle[0].soon]
            if not asleep:
                return
            lane = min(asleep, key=lambda lane: (lane.load, -len(lane.idle)))
            vm = next(vm for vm in reversed(lane.idle) if not vm.soon)
            vm.wake()
            vm.stream(3).write(AHEAD)

    def wake_later(self) -> None:
        """Another one is to be among the next, unless there are enough."""
        if not self.closed and not self._waking and self.ready < self.soon_part:
            self._waking = True
            self._loop.call_later(SOON_AFTER, self._wake)

    def use(self, vm: Vm, user: User) -> None:
        """An idle VM gets a job."""
        vm.become("running")
        if not self.late:
            with contextlib.suppress(CellError):
                vm.warm_cpu = self.native.cpu_ns(vm.number)
            self.native.sight_anew(vm.number)
        vm.user = user
        vm.born = not self.late

    def give_up(self, vm: Vm) -> None:
        """An idle or warming VM is not wanted any more."""
        vm.become("ending")
        if self.up and not self.late:
            self.kill(vm)
        else:
            vm.become("empty")

    def discard(self, vm: Vm) -> None:
        """What an ended VM left is not wanted."""
        if vm.kept:
            vm.kept = False
            if self.up and self._recycle:
                self.native.discard(vm.number)

    def kill(self, vm: Vm) -> None:
        """A cell that does not obey (it was stopped, or hangs in a host's file system) is killed with all its VMs."""
        if not vm.born:
            self.vm_exited(vm.number, VmExit("killed", 0, 0, "killed before it was restored"))
            return
        self.native.kill(vm.number)
        self._loop.call_later(KILL_SECONDS, self._overdue, vm, vm.life)

    def _overdue(self, vm: Vm, life: int) -> None:
        if vm.life == life and vm.state != "empty" and not self.closed:
            self._hung = f"the cell did not answer for {KILL_SECONDS:g} s and was killed"
            log.error("%s", self._hung)
            self._fall(self._hung)

    # -- what the native cell tells

    def vm_ready(self, vm: int, snapshot_bytes: int, error: int) -> None:
        """One that is to run later stands ready. (Others do not stop at their ready call again.)"""
        place = self.vms[vm]
        if place.state == "warming" and not place.soon:
            self._warm(place)

    def flow_opened(self, flow: GuestFlow) -> None:
        user = self.vms[flow.vm].user
        if user is None:
            flow.failed(errno.ENETUNREACH)
        else:
            user.flow_opened(flow)

    def vm_exited(self, vm: int, report: VmExit) -> None:
        place = self.vms[vm]
        was = place.state
        if was == "empty":
            return
        if was == "ending" and place.unfit:  # a failure, though it is we who ended it
            was, report = "warming", VmExit("internal", 0, 0, place.unfit)
        statistics: VmStatistics | None = None
        with contextlib.suppress(CellError):
            statistics = self.native.statistics(vm)
        loss = self._loss()
        user, place.user = place.user, None
        place.become("empty")
        clean = user is not None and user.ended(report, statistics, loss)
        place.kept = self._recycle
        if not clean or loss is not None:
            self.discard(place)
        self.events.vm_gone(place, was, report, loss)

    def _loss(self) -> Loss | None:
        lost = self.native.lost
        if not lost and not self._hung:
            return None
        if self._alone is None:  # of all VMs that run, this is the first to be told
            self._alone = self.count["running"] <= 1
        text = self._hung or "the cell was killed" if lost == "killed" else self._hung or "the cell broke"
        return Loss(text, lost == "killed" and not self._hung, self._alone)

    def cell_failed(self, text: str) -> None:
        if self._native is not None:  # else it is being started, and `_start()` is told
            self._fall(text)

    def _fall(self, text: str) -> None:
        if not self.closed:
            self.closed = True
            for vm in self.vms:
                if vm.state in ("idle", "warming"):
                    vm.become("ending")
            self._task(self._end(text))

    async def _end(self, text: str) -> None:
        await self.native.close()
        self.up = False
        self._forget_all()
        self.events.cell_down(self, text)

    # -- end

    async def close(self) -> None:
        """Kill what is in it and end it. Idempotent."""
        self.closed = True
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._native is not None:
            await self._native.close()
        self.up = False
        self._forget_all()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _task(self, body: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


__all__ = ["CellEvents", "CellLike", "Counts", "Loss", "PoolCell", "StartCell", "State", "User", "Vm", "no_vms"]
