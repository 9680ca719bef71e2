"""What the stock does with VMs, whatever jobs, cells and operators do, in any order. The cells are fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Literal

import pytest
from agentfw.pool import stock
from agentfw.pool.cells import SOON_AFTER, SOON_CELLS, SOON_PART, WARM_SECONDS, CellLike, Loss, Vm
from agentfw.pool.groups import CELL_VMS, FAILURES, Group, GroupKey, Trouble
from agentfw.pool.stock import Stock
from agentfw.pool.templates import Prepared
from agentfw_vmm import CellError, CellHandler, VmExit, VmStatistics
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .fake_cells import FakeCell, frame

Kind = Literal["code", "signal"]
KINDS: st.SearchStrategy[Kind] = st.sampled_from(["code", "code", "code", "signal"])
ISOLATIONS = st.sampled_from(["cell", "cell", "process"])
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""To make a failing example smaller takes minutes; forty steps can be read."""
TEMPLATES: Any = [Prepared(name, None, Path(), b"", {}, {}) for name in ("plain", "other")]  # type: ignore[arg-type]


class Clock(asyncio.SelectorEventLoop):
    """Time goes on when it is told to."""

    now = 1000.0

    def time(self) -> float:
        return self.now


class Job:
    """A `User`."""

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.vm: Vm | None = None
        self.task: asyncio.Task[None] | None = None
        self.trouble = ""
        self.ends = 0

    def flow_opened(self, flow: Any) -> None: ...

    def ended(self, report: VmExit, statistics: VmStatistics | None, loss: Loss | None) -> bool:
        self.ends += 1
        assert self.ends == 1 and (loss is not None or report.kind != "internal")
        return report.kind == "code"

    async def run(self, stock: Stock) -> None:
        try:
            self.vm = await stock.take(self.key, self)
        except Trouble as error:
            self.trouble = str(error)


class Pool(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = Clock()
        self.errors: list[object] = []
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context.get("exception") or context["message"]))
        self.floor = 99
        self.smooth = False
        self.whose: dict[FakeCell, str] = {}
        self.starting: list[tuple[asyncio.Future[FakeCell], CellHandler, int]] = []
        self.cells: list[tuple[FakeCell, Group]] = []
        self.jobs: list[Job] = []
        self.most = 5
        self.limits: dict[str, int | None] = {"c": 2}

        async def make() -> Stock:
            return Stock(5, self.start, terms=lambda tenant: (2.0 if tenant == "b" else 1.0, self.limits.get(tenant)),
                         runners=lambda vms: 2, recycle=True)  # fmt: skip

        stock.SPARE_SIZE = 4
        self.stock = self.loop.run_until_complete(make())
        self.stock.idle_most = 3
        self.aimed = self.stock.group(GroupKey("a", TEMPLATES[0], "cell"))
        self.aimed.target = 2
        self.loop.call_soon(self.stock.soon, self.aimed)
        self.step()

    def start(self, group: Group) -> Any:
        def begin(handler: CellHandler, vms: int) -> Awaitable[CellLike]:
            assert vms == (1 if group.key.isolation == "process" else CELL_VMS)
            future: asyncio.Future[FakeCell] = self.loop.create_future()
            self.starting.append((future, handler, vms))

            async def wait() -> CellLike:
                cell = await future
                self.cells.append((cell, group))
                return cell

            return wait()

        return begin

    def step(self, seconds: float = 0.0) -> None:
        """All that can happen without time going by."""
        self.loop.now += seconds

        async def turns() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())
        while self.smooth and (self.starting or self.alive("warming")):
            for future, handler, vms in self.starting:
                future.set_result(FakeCell(handler, vms, True))
            self.starting.clear()
            self.loop.run_until_complete(turns())
            for vm in self.alive("warming"):
                vm.cell.native.stream(vm.number, 3).say({"warm": 1})  # type: ignore[attr-defined]
            self.loop.run_until_complete(turns())

    @initialize(smooth=st.sampled_from([True, True, False]))
    def begin(self, smooth: bool) -> None:
        """Whether cells start and VMs get warm at once, so that more of what comes then is tried."""
        self.smooth = smooth
        self.step()

    def alive(self, state: str) -> list[Vm]:
        return [
            vm for group in self.stock.groups.values() for cell in group.cells for vm in cell.vms if vm.state == state and cell.up
        ]

    # -- what may happen

    @rule(
        tenant=st.sampled_from("aabc"), template=st.sampled_from(TEMPLATES), isolation=ISOLATIONS, jobs=st.integers(1, 4),
        ends=st.lists(KINDS, max_size=4),
    )  # fmt: skip
    def submit(self, tenant: str, template: Prepared, isolation: Literal["cell", "process"], jobs: int, ends: list[Kind]) -> None:
        """Jobs come, and some end."""
        for _ in range(jobs):
            job = Job(GroupKey(tenant, template, isolation))
            job.task = self.loop.create_task(job.run(self.stock))
            self.jobs.append(job)
        self.step()
        for kind in ends:
            self.finish(kind)

    @precondition(lambda self: self.starting)
    @rule(works=st.sampled_from([True, True, True, False]))
    def cell_starts(self, works: bool) -> None:
        future, handler, vms = self.starting.pop(0)
        if works:
            future.set_result(FakeCell(handler, vms, True))
        else:
            handler.cell_failed("the cell ended by signal 9")  # it is told of that, too, if its process died
            future.set_exception(CellError("/dev/kvm: no"))
        self.step()

    @rule(count=st.integers(1, 4))
    def get_warm(self, count: int) -> None:
        for vm in self.alive("warming")[:count]:
            vm.cell.native.stream(vm.number, 3).say({"warm": 1})  # type: ignore[attr-defined]
        self.step()

    @rule(kind=KINDS)
    def finish(self, kind: Kind) -> None:
        for vm in self.alive("running")[:1]:
            self.native(vm).exit(vm.number, kind)
            self.tell_over()
        self.step()

    @rule(state=st.sampled_from(["idle", "warming"]), text=st.sampled_from(["gone", "gone", "snapshot: damaged"]))
    def die(self, state: str, text: str) -> None:
        for vm in self.alive(state)[:1]:
            self.native(vm).exit(vm.number, "signal", text)
        self.step()

    @rule(index=st.integers(0, 5), how=st.sampled_from(["killed", "broken"]))
    def crash(self, index: int, how: Literal["killed", "broken"]) -> None:
        cells = [cell for cell, _ in self.cells if not cell.closed and not cell.lost]
        for cell in cells[index : index + 1]:
            cell.crash(how)
            self.tell_over()
        self.step()

    @rule()
    def obey(self) -> None:
        for cell, _ in self.cells:
            cell.obey()
        self.tell_over()
        self.step()

    @rule(index=st.integers(0, 5), withdrawn=st.booleans())
    def cancel(self, index: int, withdrawn: bool) -> None:
        waiting = [job for job in self.jobs if job.vm is None and job.task is not None and not job.task.done()]
        for job in waiting[index : index + 1]:
            if withdrawn:
                self.stock.withdraw(job)
            else:
                assert job.task is not None
                job.task.cancel()
            self.step()
            assert job.vm is None

    @rule(count=st.integers(0, 5))
    def trim(self, count: int) -> None:
        idle = self.stock.count["idle"]
        trimmed = self.stock.counted["trimmed"]
        assert self.stock.trim(count) == min(count, idle)
        assert self.stock.counted["trimmed"] == trimmed + min(count, idle)
        self.step()

    @rule(size=st.integers(1, 8))
    def resize(self, size: int) -> None:
        self.stock.resize(size)
        self.most = max(size, self.living())
        self.step()

    @rule(tight=st.booleans(), exhausted=st.booleans())
    def memory(self, tight: bool, exhausted: bool) -> None:
        self.stock.tight = tight or exhausted
        self.stock.exhausted = exhausted
        self.floor = self.living()
        self.step()

    @rule(seconds=st.sampled_from([0.1, 1.0, 20.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.step(seconds)
        self.stock.tick()
        self.step()

    # -- what must always be so

    def native(self, vm: Vm) -> FakeCell:
        cell = vm.cell.native
        assert isinstance(cell, FakeCell)
        return cell

    def tell_over(self) -> None:
        for job in [job for job in self.jobs if job.vm is not None and job.ends]:
            self.stock.over(job.key.tenant)
            self.jobs.remove(job)

    def living(self) -> int:
        return sum(self.stock.count.values()) - self.stock.count["empty"]

    @invariant()
    def never_more_than_may_be(self) -> None:
        self.most = max(self.stock.size, min(self.most, self.living()))
        assert self.living() <= self.most
        for tenant, running in self.stock.queue.running().items():
            assert running <= (self.limits.get(tenant) or 99)

    @invariant()
    def nothing_fails_unseen(self) -> None:
        assert not self.errors

    @invariant()
    def no_memory_is_taken_when_there_is_none(self) -> None:
        if self.stock.exhausted:
            assert self.living() <= max(1, self.floor)
            self.floor = self.living()

    @invariant()
    def counts_are_right(self) -> None:
        for state in ("empty", "warming", "idle", "running", "ending"):
            cells = [cell for group in self.stock.groups.values() for cell in group.cells]
            for count, vms in (
                (self.stock.count, [vm for cell in cells for vm in cell.vms]),
                *((group.count, [vm for cell in group.cells for vm in cell.vms]) for group in self.stock.groups.values()),
                *((cell.count, cell.vms) for cell in cells),
                *((lane.count, [vm for vm in cell.vms if vm.lane is lane]) for cell in cells for lane in cell.lanes),
            ):
                assert count[state] == sum(vm.state == state for vm in vms)
            for cell in cells:
                for lane in cell.lanes:
                    assert set(lane.idle) == {vm for vm in cell.vms if vm.lane is lane and vm.state == "idle"}

    @invariant()
    def each_has_its_own(self) -> None:
        using = [job for job in self.jobs if job.vm is not None and not job.ends]
        assert len({job.vm for job in using}) == len(using)
        for job in using:
            assert job.vm is not None and job.vm.user is job and job.vm.state == "running"
            native = self.native(job.vm)
            assert self.whose.setdefault(native, job.key.tenant) == job.key.tenant, "tenants share a cell"
            group = next(group for group in self.stock.groups.values() if job.vm.cell in group.cells)
            assert group.key == job.key
        for group in self.stock.groups.values():
            assert group.waiting == sum(job.key == group.key and job.vm is None and not self.done(job) for job in self.jobs)

    def done(self, job: Job) -> bool:
        return job.task is None or job.task.done()

    # -- where it must lead to

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.loop.run_until_complete(self.close())
            self.loop.close()

    def settle(self) -> None:
        """If nothing goes wrong any more, all jobs get their turn, and in the end just what shall wait is there."""
        self.resize(2)
        self.memory(False, False)
        target = 0 if self.aimed.retired else 2
        for turn in range(300):
            there = self.stock.cells == bool(target) and self.living() == self.stock.count["idle"] == target
            if turn > 30 and there and not self.jobs:
                break
            self.step(400.0 if turn == 20 else 0.0)
            self.starting_all()
            self.get_warm(99)
            for vm in self.alive("running"):
                self.native(vm).exit(vm.number, "code")
            self.tell_over()
            self.jobs = [job for job in self.jobs if not self.done(job) or job.vm is not None]
            self.obey()
            self.time_goes_by(1.0)
        assert all(self.done(job) for job in self.jobs), "a job waits for ever"
        assert not len(self.stock.queue) and not self.stock.queue.running()
        assert {state: count for state, count in self.stock.count.items() if count and state != "empty"} == (
            {"idle": target} if target else {}
        )
        cells = [(group.key, cell.count, cell.up, cell.closed) for group in self.stock.groups.values() for cell in group.cells]
        assert len(cells) == (1 if target else 0), cells
        for cell, _ in self.cells:
            assert cell.closed or cell.lost or not cell.left, "memory is kept for nobody"

    def starting_all(self) -> None:
        while self.starting:
            self.cell_starts(True)

    async def close(self) -> None:
        closing = self.loop.create_task(self.stock.close())
        for _ in range(50):
            await asyncio.sleep(0)
            while self.starting:
                future, handler, vms = self.starting.pop(0)
                future.set_result(FakeCell(handler, vms, True))
        await closing
        assert all(cell.closed or cell.lost for cell, _ in self.cells)
        assert not self.errors
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*left, return_exceptions=True)


Pool.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=PHASES
)
TestPool = Pool.TestCase


def ready(size: int) -> Pool:
    """Where cells start and VMs get warm at once, and two wait for tenant a."""
    pool = Pool()
    pool.begin(True)
    pool.resize(size)
    return pool


def check(pool: Pool) -> None:
    pool.never_more_than_may_be()
    pool.counts_are_right()
    pool.each_has_its_own()
    pool.nothing_fails_unseen()


def test_an_idle_vm_of_one_tenant_is_given_up_for_the_job_of_another() -> None:
    pool = ready(2)
    assert pool.stock.count["idle"] == 2
    pool.submit("b", TEMPLATES[0], "cell", 1, [])
    assert pool.stock.count["ending"] == 1 and pool.stock.count["running"] == 0
    pool.obey()
    check(pool)
    assert pool.stock.count["running"] == 1 and pool.stock.counted["given_up"] == 1
    pool.teardown()


def test_who_comes_next_gets_a_cell_that_nobody_has_used() -> None:
    pool = ready(8)
    pool.submit("a", TEMPLATES[0], "cell", 1, ["code"])
    pool.submit("b", TEMPLATES[0], "cell", 1, [])
    assert not pool.stock.counted["adopted"] and pool.stock.cells == 3, "one is kept for the next"
    pool.submit("c", TEMPLATES[0], "cell", 1, [])
    check(pool)
    assert pool.stock.counted["adopted"] == 1 and pool.stock.cells == 4
    pool.submit("c", TEMPLATES[0], "cell", 1, ["code", "code", "code"])
    check(pool)
    assert len(set(pool.whose.values())) == 2, "of those that still run"
    pool.submit("d", TEMPLATES[1], "cell", 1, [])
    check(pool)
    assert pool.stock.counted["adopted"] == 1, "of another template there is none"
    for key, group in pool.stock.groups.items():
        assert key.tenant != "a" or all(pool.whose.get(cell.native, "a") == "a" for cell in group.cells)  # type: ignore[call-overload]
    pool.teardown()


def test_what_ended_is_put_back_for_the_next_of_its_group() -> None:
    pool = ready(4)
    for _ in range(20):
        pool.submit("a", TEMPLATES[0], "cell", 1, ["code"])
        check(pool)
    assert pool.stock.counted["recycled"] == 20 and pool.stock.counted["restored"] <= 3
    pool.submit("a", TEMPLATES[0], "cell", 1, ["signal"])
    assert pool.stock.counted["recycled"] == 20
    pool.teardown()


@pytest.mark.parametrize("words", [b"", b"\xff" * 8, frame({"cold": 1})])
def test_vms_that_do_not_get_warm_are_failures(words: bytes) -> None:
    """Else the next are made at once, for ever, and jobs wait for them."""
    pool = Pool()
    pool.begin(False)
    pool.submit("a", TEMPLATES[0], "cell", 1, [])
    pool.starting_all()
    for _ in range(2):
        for vm in pool.alive("warming"):
            pool.native(vm).stream(vm.number, 3).write_out(words)
        pool.step(0.0 if words else WARM_SECONDS + 1)
        pool.stock.tick()
        assert pool.stock.count["ending"] and not pool.stock.count["warming"]
        pool.obey()
        check(pool)
        pool.step(1.0)
    assert pool.aimed.failures >= FAILURES and "did not become ready" in pool.jobs[0].trouble
    pool.teardown()


def test_a_cell_that_is_killed_as_it_starts_leaves_its_room() -> None:
    pool = Pool()
    pool.begin(False)
    before = pool.stock.room()
    while pool.starting:
        pool.cell_starts(False)
    check(pool)
    assert not pool.stock.count["ending"] and not pool.stock.cells and pool.stock.room() > before
    pool.teardown()


def test_half_a_word_is_not_the_next_life_s() -> None:
    pool = Pool()
    pool.begin(False)
    pool.starting_all()
    vm = pool.alive("warming")[0]
    pool.native(vm).stream(vm.number, 3).write_out(frame({"warm": 1})[:7])
    pool.native(vm).exit(vm.number, "signal")
    pool.step(1.0)
    assert vm.state == "warming" and vm.life == 2
    pool.get_warm(99)
    assert vm.state == "idle"
    pool.teardown()


def test_of_many_cells_the_later_ones_have_one_that_ran_ahead() -> None:
    pool = ready((SOON_CELLS + 2) * CELL_VMS)
    pool.aimed.target = pool.stock.size
    pool.stock.soon(pool.aimed)
    for _ in range(pool.stock.size):
        pool.step(0.0)
        pool.get_warm(999)
        if pool.stock.count["idle"] == pool.stock.size:
            break
    assert [sum(native.soon.values()) for native, _ in pool.cells] == [CELL_VMS // SOON_PART] * SOON_CELLS + [1, 1]
    pool.teardown()


def twenty_idle() -> tuple[Pool, FakeCell, Group]:
    """All in one cell."""
    pool = ready(26)
    pool.aimed.target = 20
    pool.stock.soon(pool.aimed)
    for _ in range(20):
        pool.step(0.0)
        pool.get_warm(99)
    ((native, group),) = pool.cells
    return pool, native, group


def test_some_have_run_ahead_and_get_jobs_first_and_others_take_their_place() -> None:
    pool, native, group = twenty_idle()
    assert pool.stock.count["idle"] == 20 and sum(native.soon.values()) == CELL_VMS // SOON_PART == 2
    assert sum(native.later.values()) == 18
    for left in (1, 0, 0):
        group.target -= 1  # no other is made
        pool.submit("a", TEMPLATES[0], "cell", 1, [])
        assert sum(vm.soon for vm in group.idle()) == left
    assert sum(job.vm is not None and job.vm.soon for job in pool.jobs) == 2, "the third got one that sleeps"
    pool.step(SOON_AFTER * 2)
    waked = [vm for vm in group.idle() if vm.soon]
    assert len(waked) == 2 and all(native.later[vm.number] and native.stream(vm.number, 3).ahead == 1 for vm in waked)
    group.target -= 1
    pool.submit("a", TEMPLATES[0], "cell", 1, [])
    assert pool.jobs[-1].vm in waked
    pool.teardown()


def test_in_the_place_of_one_that_ran_ahead_and_dies_idle_another_is_waked() -> None:
    pool, native, group = twenty_idle()
    first, second = [vm for vm in group.idle() if vm.soon]
    group.target -= 1  # no other is made
    native.exit(first.number, "killed")
    assert [vm for vm in group.idle() if vm.soon] == [second]
    pool.step(SOON_AFTER * 2)
    (waked,) = [vm for vm in group.idle() if vm.soon and vm is not second]
    assert native.later[waked.number] and native.stream(waked.number, 3).ahead == 1
    pool.teardown()
