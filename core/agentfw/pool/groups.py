"""The VMs of one tenant, template and isolation: the cells that they are in, how many shall wait for jobs, what went wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from .cells import Counts, PoolCell, Vm, no_vms
from .jobs import Isolation
from .templates import Prepared

CELL_VMS = 32
"""VMs of a cell. Each page that one of them is given, and each change of a mapping, is told to KVM of all in the process: with 64
a job costs 0.6 core-ms more than with 32, which cost 0.2 core-ms more a VM for the processes themselves (bench/warm.py)."""
FALL = 0.9
"""By which the number of VMs that a group had in use falls a second, for how many it keeps."""
PAUSE_SECONDS = (0.1, 30.0)
"""After a failure nothing is made for so long; doubled each time, up to the second."""
SPARE = "\0spare"
"""Not a tenant: cells that nobody has used yet, for the next tenant that comes (`Stock.adopt`)."""
FAILURES = 3
"""In a row: jobs that wait are told."""


@dataclass(frozen=True)
class GroupKey:
    tenant: str
    template: Prepared
    isolation: Isolation
    traced: bool = False
    """Its VMs' system calls are told: no VM waits for a job here, and no job without `strace` gets one."""


class Trouble(Exception):
    """There is no VM for a job: one line, and what to do. `spoiled`: the snapshot is of no use, with another it may be."""

    def __init__(self, text: str, hint: str = "", spoiled: bool = False) -> None:
        self.hint = hint
        self.spoiled = spoiled
        super().__init__(text)


class Group:
    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.cells: list[PoolCell] = []
        self.count: Counts = no_vms()
        self.waiting = 0
        """Jobs."""
        self.kept: list[Vm] = []
        """Places with memory to be put back."""
        self.target = 0
        """VMs that shall wait for jobs, whatever is going on."""
        self.level = 0.0
        """VMs in use at once lately."""
        self.retired = key.template.late
        """The configuration has changed: it gets no more jobs."""
        self.late = key.template.late
        """Its VMs are copies of a running job (`forks`): restored by who uses them, and none waits for more."""
        self.used = 0.0
        """When it was last taken from."""
        self.failures = 0
        self.paused_until = 0.0
        self.trouble: Trouble | None = None

    @property
    def cell_vms(self) -> int:
        return 1 if self.key.isolation == "process" else CELL_VMS

    @property
    def coming(self) -> int:
        return self.count["warming"]

    def alive(self) -> int:
        return sum(self.count.values()) - self.count["empty"]

    def keeps(self, most: int) -> int:
        """VMs that may wait: the target, and what was in use lately and is not now (of that, `most`)."""
        if self.retired or self.key.traced:
            return 0
        return self.target + max(0, min(most, math.ceil(self.level - 0.5) - self.count["running"]))

    def idle(self) -> Iterator[Vm]:
        """Those that wait, the ones that have done so for the longest time first (of each runner)."""
        for cell in self.cells:
            for lane in cell.lanes:
                yield from lane.idle

    def claim(self) -> Vm | None:
        """A VM that waits, where there is least to do. It is the caller's to `PoolCell.use()`."""
        lanes = (lane for cell in self.cells if not cell.closed for lane in cell.lanes if lane.idle)
        best = min(lanes, key=lambda lane: (lane.load, not lane.idle[-1].soon), default=None)
        return best.idle[-1] if best is not None else None  # the last one's memory is warm in the caches

    def place(self) -> Vm | None:
        """For one more VM in the cells that there are: the fullest first, so that others can be closed."""
        while self.kept:
            vm = self.kept.pop()
            if vm.kept and vm.state == "empty" and not vm.cell.closed:
                return vm
        found = [(cell.count["empty"], index) for index, cell in enumerate(self.cells) if cell.count["empty"] and not cell.closed]
        for _, index in sorted(found):
            place = self.cells[index].free()
            if place is not None:
                return place
        return None

    def has_room(self) -> bool:
        """Some cell has an empty place (though perhaps not just now)."""
        return any(cell.count["empty"] for cell in self.cells if not cell.closed)

    def failed(self, now: float, trouble: Trouble) -> float:
        """Something of it could not be made; -> when it may be tried again."""
        first, last = PAUSE_SECONDS
        self.failures += 1
        self.trouble = trouble
        self.paused_until = now + min(last, first * 2 ** min(self.failures, 20))
        return self.paused_until

    def worked(self) -> None:
        self.failures = 0
        self.trouble = None
        self.paused_until = 0.0
