"""All VMs of an engine: who gets one, where the next is made, which are given up.

There are never more than `size`. Jobs that wait come first, in the order of the fair queue: one gets an idle VM of its group, or
one is made for it, or one that idles elsewhere is given up for it. Then groups are filled up to what shall wait for jobs.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable

from agentfw_vmm import VmExit

from ..histograms import WARM, Histogram
from .cells import SOON_CELLS, Counts, Loss, PoolCell, StartCell, State, User, Vm, no_vms
from .fair import FairQueue, Terms
from .groups import FAILURES, FALL, SPARE, Group, GroupKey, Trouble

EMPTY_SECONDS = 10.0
"""Cells without a VM are closed after it."""
SPARE_SIZE = 8
"""Of a pool that keeps a cell for a tenant that is yet to come ..."""
SPARE_SECONDS = 300.0
"""... for so long after the last one came."""
CLOSED_AT_ONCE = 4
"""Cells."""
ENDING_MOST = 32
"""Cells that are to be closed: with so many none is started, or jobs of ever new tenants would fill the host with them."""
EMPTY_CELLS = 4
"""Of these at most so many are kept."""
QUIET_SECONDS = 15.0
"""After VMs were given back to the host (`trim`) only jobs that wait get new ones."""
_FIRST_PID, _PIDS = 1000, 3_000_000

log = logging.getLogger("agentfw.pool")


class Wait:
    """A job that waits for a VM."""

    __slots__ = ("future", "group", "user")

    def __init__(self, group: Group, user: User, future: asyncio.Future[Vm]) -> None:
        self.group = group
        self.user = user
        self.future = future


class Stock:
    """`start`: makes the cell of a group. `runners`: threads of a cell that has so many VMs at most. `terms`: of tenants.
    `spoiled`: told of a template whose snapshot is of no use; `begins`: of a cell that has started. Belongs to its loop; `tick()`
    is to be called each second."""

    def __init__(
        self,
        size: int,
        start: Callable[[Group], StartCell],
        *,
        terms: Terms,
        runners: Callable[[int], int] = lambda vms: 1,
        recycle: bool = False,
        spoiled: Callable[[Group], None] = lambda group: None,
        begins: Callable[[Group, PoolCell], None] = lambda group, cell: None,
    ) -> None:
        self.size = size
        self.idle_most = 0
        """VMs that a group keeps for what it had in use lately."""
        self.tight = False
        """Memory is short: VMs are made for jobs that wait only."""
        self.exhausted = False
        """Nor for these, unless there is none."""
        self.recycle = recycle
        self.queue: FairQueue[Wait] = FairQueue(terms)
        self.groups: dict[GroupKey, Group] = {}
        self.count: Counts = no_vms()
        self.counted: Counter[str] = Counter()
        self.warmups = Histogram(WARM)
        """Seconds from when a VM is asked for until it waits for a job: its cell may have to start first."""
        self._start = start
        self._runners = runners
        self._spoiled = spoiled
        self._begins = begins
        self._loop = asyncio.get_running_loop()
        self._pids = itertools.count()
        self._due = False
        self._closed = False
        self._quiet_until = 0.0
        self._kept: list[Vm] = []
        self._changed: set[Group] = set()
        """What `_fill()` has to look at."""
        self._waits: dict[User, Wait] = {}
        self._few = asyncio.Semaphore(CLOSED_AT_ONCE)
        self._owners: dict[PoolCell, Group] = {}
        self._endings: set[asyncio.Task[None]] = set()

    # -- for jobs

    def group(self, key: GroupKey) -> Group:
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = Group(key)
        return found

    async def take(self, key: GroupKey, user: User) -> Vm:
        """A VM for `user`, in its turn; `user` has it until its `ended()` was called. Trouble: there is none to be had. Whoever
        gets one tells `over()`."""
        group = self.group(key)
        tenant = key.tenant
        self._check(group)
        if not len(self.queue) and not self._closed and self.queue.may_run(tenant):
            vm = group.claim()
            if vm is not None:  # the usual case: no wait, no turn of the loop
                self._used(group, vm, user)
                self.queue.start(tenant)
                self.soon()
                return vm
        entry = self._waits[user] = Wait(group, user, self._loop.create_future())
        self.queue.add(tenant, entry)
        group.waiting += 1
        self.soon()
        try:
            return await entry.future
        except asyncio.CancelledError:
            if entry.future.done() and not entry.future.cancelled() and entry.future.exception() is None:
                vm = entry.future.result()  # it was given one in this very moment
                if vm.user is user:  # and that has not ended since
                    vm.cell.kill(vm)
                self.over(tenant)
            self.queue.remove(tenant, entry)
            raise
        finally:
            group.waiting -= 1
            del self._waits[user]

    def withdraw(self, user: User) -> None:
        """It waits no more: its `take()` raises Trouble. Nothing if it does not wait."""
        entry = self._waits.get(user)
        if entry is not None and not entry.future.done():
            self.queue.remove(entry.group.key.tenant, entry)
            entry.future.set_exception(Trouble("it was killed before it was started"))

    def over(self, tenant: str) -> None:
        """A job that had got a VM is over."""
        self.queue.ended(tenant)
        self.soon()

    def _check(self, group: Group) -> None:
        if self._closed:
            raise Trouble("the pool is being closed")
        if group.trouble is not None and group.failures >= FAILURES and self._loop.time() < group.paused_until:
            raise group.trouble

    def _used(self, group: Group, vm: Vm, user: User) -> None:
        vm.cell.use(vm, user)
        self._changed.add(group)
        group.used = self._loop.time()
        group.level = max(group.level, float(group.count["running"]))
        self.counted["dispatched"] += 1

    # -- balance

    def soon(self, group: Group | None = None) -> None:
        """Something has changed, of this group: look, once in this turn of the loop."""
        if group is not None:
            self._changed.add(group)
        if not self._due and not self._closed:
            self._due = True
            self._loop.call_soon(self.balance)

    def room(self) -> int:
        """VMs that may be made now."""
        alive = sum(self.count.values()) - self.count["empty"]
        if self.exhausted:
            return 1 if alive == 0 else 0
        return self.size - alive

    def balance(self) -> None:
        self._due = False
        if self._closed:
            return
        room = self._serve(self.room())
        if not self.tight and self._loop.time() >= self._quiet_until:
            self._fill(room)
        kept, self._kept = self._kept, []
        for vm in kept:
            if vm.state == "empty":
                vm.cell.discard(vm)  # nobody wants it
            group = self._owners.get(vm.cell)
            if group is not None:
                group.kept.clear()

    def _serve(self, room: int) -> int:
        """Those that wait; -> the room that is left."""
        taken: list[tuple[Wait, Vm]] = []
        coming: Counter[Group] = Counter()
        stuck: set[Group] = set()
        ending = self.count["ending"]
        for entry in self.queue.in_order():
            if room <= 0 and self.count["idle"] == 0:
                break
            group = entry.group
            if entry.future.done() or group in stuck:
                continue
            vm = group.claim()
            if vm is None and not group.cells and self._adopt(group):
                vm = group.claim()
            if vm is not None:
                self._used(group, vm, entry.user)
                taken.append((entry, vm))
                continue
            coming[group] += 1
            if coming[group] <= group.coming:
                continue  # one is being made
            if room > 0:
                if self._make(group):
                    room -= 1
                else:
                    stuck.add(group)  # its runners are busy, or it pauses after a failure
            elif ending > 0:
                ending -= 1  # its room is on the way
            elif not self.exhausted and (victim := self._victim(group)) is not None:
                self.counted["given_up"] += 1
                victim.cell.give_up(victim)
        for entry, vm in taken:
            self.queue.take(entry.group.key.tenant, entry)
            entry.future.set_result(vm)
        return room

    def _fill(self, room: int) -> None:
        """What shall wait for jobs. VMs that ended are put back even beyond a group's target, as far as so many were in use
        lately: the next jobs will want them, and to put one back is cheaper than to make one."""
        if not self._changed:
            return
        for group in sorted(self._changed, key=lambda group: (-group.target, -group.used)):
            there = group.count["idle"] + group.coming
            keeps = group.keeps(self.idle_most)
            least = group.target or keeps
            while room > 0 and there < keeps and (there < least or group.kept) and self._make(group):
                room -= 1
                there += 1
            if there >= least:
                self._changed.discard(group)  # else it is looked at again when something has changed anywhere

    def _victim(self, hungry: Group) -> Vm | None:
        """An idle VM of another group: of one that has more than it wants, else of the one that was last in use longest ago."""
        found = [group for group in self.groups.values() if group is not hungry and group.count["idle"]]
        if not found:
            return None
        most = self.idle_most
        group = min(found, key=lambda group: (min(0, group.keeps(most) - group.count["idle"]), group.used))
        return next(group.idle())

    def _make(self, group: Group) -> bool:
        """Begin to restore one VM more; False: not now."""
        if self._loop.time() < group.paused_until:
            return False
        vm = group.place()
        if vm is None:
            if group.has_room() and group.key.isolation == "cell":
                return False  # its runners are busy with enough of them
            self._close_empty(EMPTY_CELLS)
            if len(self._endings) >= ENDING_MOST:
                return False
            self._spare(group)
            vms = group.cell_vms
            recycle = self.recycle and not group.late and not group.key.traced
            cell = PoolCell(self, (group.count, self.count), vms, min(self._runners(vms), vms), recycle, group.late)
            if len(group.cells) >= SOON_CELLS:
                cell.soon_part = 1
            group.cells.append(cell)
            self._owners[cell] = group
            self.counted["cells_started"] += 1
            cell.begin(self._start(group), lambda: _FIRST_PID + next(self._pids) % _PIDS)
            vm = cell.free()
            assert vm is not None
        self.counted["recycled" if vm.kept else "restored"] += 1
        vm.cell.warm(vm, group.waiting > 0)
        return True

    # -- cells for tenants that are yet to come

    def _spare(self, group: Group) -> None:
        """A cell has to be started for this group. If it is not the only tenant, another may soon be the next."""
        key = group.key
        others = any(each.tenant not in (key.tenant, SPARE) for each in self.groups)
        if others and key.tenant != SPARE and not key.traced and not group.retired and self.idle_most and self.size >= SPARE_SIZE:
            spare = self.group(GroupKey(SPARE, key.template, key.isolation))
            spare.used = self._loop.time()
            spare.target = 1
            self.soon(spare)

    def _adopt(self, group: Group) -> bool:
        """The first cell of a group may be one that was started for whoever comes: nobody has used it."""
        key = group.key
        if key.traced:
            return False
        spare = self.groups.get(GroupKey(SPARE, key.template, key.isolation))
        cell = next((cell for cell in spare.cells if cell.count["idle"] and not cell.closed), None) if spare is not None else None
        if spare is None or cell is None or group.retired:
            return False
        self._remove(spare, cell)
        for count in (group.count, self.count):
            for state, number in cell.count.items():
                count[state] += number
        cell.above = (group.count, self.count)
        group.cells.append(cell)
        self._owners[cell] = group
        spare.used = self._loop.time()
        self.counted["adopted"] += 1
        self.soon(spare)
        return True

    # -- what cells tell (CellEvents)

    def cell_up(self, cell: PoolCell) -> None:
        group = self._group_of(cell)
        if group is not None:
            self._begins(group, cell)
        self.soon()

    def cell_down(self, cell: PoolCell, error: str) -> None:
        group = self._group_of(cell)
        if group is None:
            return
        self._remove(group, cell)
        if not self._closed:
            self.counted["cells_lost"] += 1
            log.error("a cell of tenant %s, template `%s`: %s", group.key.tenant, group.key.template.name, error)
            hint = "run `agentfw doctor`" if "/dev/kvm" in error else ""
            trouble = self._trouble(group, error, error, hint)
            if not cell.lived:  # neither will the next, at once
                group.failures = max(group.failures, FAILURES - 1)
                self._tell(group, trouble)
            self._failed(group, trouble)

    def vm_warm(self, vm: Vm) -> None:
        group = self._group_of(vm.cell)
        if not vm.cell.late:  # there VMs are restored by their users
            self.warmups.observe(self._loop.time() - vm.asked)
        if group is not None:
            group.worked()
        self.soon(group)

    def vm_gone(self, vm: Vm, was: State, report: VmExit, loss: Loss | None) -> None:
        group = self._group_of(vm.cell)
        if group is None:
            return
        cell = vm.cell
        if cell.count["empty"] == len(cell.vms) and cell.up and cell.empty_since is None:
            cell.empty_since = self._loop.time()  # now, not when somebody looks: they may be many by then
        if vm.kept:
            self._kept.append(vm)
            group.kept.append(vm)
        if was in ("warming", "idle") and loss is None and not vm.cell.closed:
            self.counted["lost_before_use"] += 1
            log.warning("a VM of template `%s` ended before it had a job: %s", group.key.template.name, report.text)
            trouble = self._trouble(group, report.text, f"a VM ended before it had a job: {report.text}")
            if was == "warming":
                self._failed(group, trouble)
            if trouble.spoiled or group.failures >= FAILURES:
                self._tell(group, trouble)
        self.soon(group)

    def _trouble(self, group: Group, why: str, text: str, hint: str = "") -> Trouble:
        spoiled = why.startswith("snapshot: ")  # gone, damaged, or of another machine: no use to anybody
        if spoiled and not group.retired:
            self.retire(group)
            self._spoiled(group)
        return Trouble(text, hint, spoiled)

    def _failed(self, group: Group, trouble: Trouble) -> None:
        at = group.failed(self._loop.time(), trouble)
        self._loop.call_at(at, self.soon, group)
        self.soon(group)

    def _tell(self, group: Group, trouble: Trouble) -> None:
        """Those that wait for this group, that there is nothing to be had."""
        for entry in [entry for entry in self.queue.entries(group.key.tenant) if entry.group is group]:
            self.queue.remove(group.key.tenant, entry)
            if not entry.future.done():
                entry.future.set_exception(Trouble(str(trouble), trouble.hint, trouble.spoiled))

    def _group_of(self, cell: PoolCell) -> Group | None:
        """None: it was let go."""
        return self._owners.get(cell)

    # -- giving back

    def retire(self, group: Group) -> None:
        """No more jobs for it; what idles is given up, what runs is left alone."""
        group.retired = True
        group.target = 0
        for vm in list(group.idle()):
            vm.cell.give_up(vm)
        self.soon()

    def trim(self, count: int) -> int:
        """Give up to `count` idle VMs back to the host, those first that nobody has asked for, and make none for a while but for
        jobs that wait. -> how many it were."""
        self._quiet_until = self._loop.time() + QUIET_SECONDS
        most = self.idle_most
        groups = sorted(self.groups.values(), key=lambda group: (group.keeps(most) - group.count["idle"], group.used))
        chosen = [vm for group in groups for vm in group.idle()][:count]
        for vm in chosen:
            vm.cell.give_up(vm)
        self.counted["trimmed"] += len(chosen)
        return len(chosen)

    def resize(self, size: int) -> None:
        self.size = size
        surplus = -self.room()
        if surplus > 0 and not self.exhausted:
            for group in self.groups.values():
                for vm in list(group.idle())[:surplus]:
                    vm.cell.give_up(vm)
                    surplus -= 1
        self.soon()

    def tick(self) -> None:
        """Each second: what nobody has asked for lately goes, and so do cells without VMs."""
        now = self._loop.time()
        for group in list(self.groups.values()):
            self._changed.add(group)
            if group.key.tenant == SPARE and now - group.used > SPARE_SECONDS:
                group.target = 0
            group.level = max(float(group.count["running"]), group.level * FALL)
            surplus = group.count["idle"] - group.keeps(self.idle_most)
            for vm in list(group.idle())[: max(0, surplus)]:
                self.counted["given_up"] += 1
                vm.cell.give_up(vm)
            for cell in group.cells:
                cell.tick()
                if cell.count["empty"] == len(cell.vms) and cell.up:
                    cell.empty_since = now if cell.empty_since is None else cell.empty_since
                else:
                    cell.empty_since = None
            if not group.cells and not group.waiting and not group.target and now >= group.paused_until:
                del self.groups[group.key]
                self._changed.discard(group)
        self._close_empty(EMPTY_CELLS, now - EMPTY_SECONDS)
        self.soon()

    def _close_empty(self, keep: int, before: float | None = None) -> None:
        """Cells that are empty: all that are so since `before`, and of the others all but the newest `keep`."""
        empty = [
            (cell.empty_since, group, cell)
            for group in self.groups.values()
            for cell in group.cells
            if cell.empty_since is not None and not cell.closed
        ]
        empty.sort(key=lambda each: each[0])
        for index, (since, group, cell) in enumerate(empty):
            if group.retired or index < len(empty) - keep or (before is not None and since <= before):
                self._remove(group, cell)
                self._ending(cell)

    def _remove(self, group: Group, cell: PoolCell) -> None:
        """Its places count no more."""
        group.cells.remove(cell)
        del self._owners[cell]
        for count in (group.count, self.count):
            for state, number in cell.count.items():
                count[state] -= number
        cell.above = ()
        self._kept = [vm for vm in self._kept if vm.cell is not cell]

    def _ending(self, cell: PoolCell) -> None:
        task = self._loop.create_task(self._end(cell))
        self._endings.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._endings.discard(task)
        if len(self._endings) == ENDING_MOST - 1:
            self.soon()

    async def _end(self, cell: PoolCell) -> None:
        async with self._few:  # to take 64 VMs apart takes the kernel its time
            await cell.close()

    @property
    def cells(self) -> int:
        return sum(len(group.cells) for group in self.groups.values())

    async def close(self) -> None:
        """Kill all, close all; jobs that wait are told. Idempotent."""
        self._closed = True
        for group in list(self.groups.values()):
            self._tell(group, Trouble("the pool is being closed"))
            for cell in list(group.cells):
                self._ending(cell)
        while self._endings:
            results = await asyncio.gather(*self._endings, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    log.error("a cell did not close: %s", result)
        self.groups.clear()
