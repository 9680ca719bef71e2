"""CPU between tenants: the arithmetic, and that looking at what was used leads there."""

from __future__ import annotations

import math
import os
import threading
import time

import pytest
from agentfw.pool.shares import PERIOD, Claim, Shares, allocate, waited_seconds
from hypothesis import given
from hypothesis import strategies as st

WANTS = st.one_of(st.just(math.inf), st.just(0.0), st.floats(0.001, 100))
CLAIMS = st.dictionaries(st.integers(0, 30), st.builds(Claim, WANTS, st.floats(0.01, 1000)), max_size=12)


@given(st.floats(0, 64), CLAIMS)
def test_an_allocation_is_max_min_fair(capacity, claims):
    parts = allocate(capacity, claims)
    slack = 1e-6 * (1 + capacity)
    assert parts.keys() == claims.keys()
    assert all(0 <= parts[name] <= claim.want for name, claim in claims.items())
    assert sum(parts.values()) <= capacity + slack
    unsatisfied = [name for name, claim in claims.items() if parts[name] < claim.want - slack]
    if unsatisfied:  # then nothing is left over
        assert sum(parts.values()) >= capacity - slack
    for name in unsatisfied:  # and nobody has more, by weight, than somebody who wants more than they have
        mine = parts[name] / claims[name].weight
        for other, claim in claims.items():
            assert parts[other] / claim.weight <= mine * (1 + 1e-6) + slack / claim.weight


@given(st.floats(0.1, 64), CLAIMS, st.integers(0, 30), st.floats(0.01, 10))
def test_nobody_gains_by_asking_for_less_or_loses_by_others_who_do(capacity, claims, name, want):
    if name not in claims:
        return
    before = allocate(capacity, claims)
    after = allocate(capacity, {**claims, name: Claim(min(want, claims[name].want), claims[name].weight)})
    slack = 1e-6 * (1 + capacity)
    assert after[name] <= before[name] + slack
    assert all(after[other] >= before[other] - slack for other in claims if other != name)


class Cell:
    """A cell whose agents would use `want` cores."""

    def __init__(self, want: float, threads: int = 2) -> None:
        self.pid = id(self)
        self.want = want
        self.threads = threads
        self.used = 0.0
        self.waited = 0.0
        self.limit = math.inf
        self.told = 0

    def cpu_seconds(self) -> float:
        return self.used

    def share(self, fraction: float | None) -> None:
        self.limit = math.inf if fraction is None else fraction
        self.told += 1


class Machine:
    """Cells under a scheduler that gives each thread the same: what tenants get if nobody looks."""

    def __init__(self, cores: float, tenants: dict[str, tuple[float, list[Cell]]], others: float = 0.0) -> None:
        self.cores = cores
        self.tenants = tenants
        self.others = others
        self.now = 0.0
        cells = {cell.pid: cell for _, group in tenants.values() for cell in group}
        self.shares = Shares(lambda: tenants, cores, lambda pid: cells[pid].waited)

    def pass_time(self, seconds: float) -> dict[str, float]:
        """Cores of each tenant meanwhile, on average."""
        before = {name: sum(cell.used for cell in cells) for name, (_, cells) in self.tenants.items()}
        steps = round(seconds / PERIOD)
        for _ in range(steps):
            self.now += PERIOD
            cells = [cell for _, group in self.tenants.values() for cell in group]
            claims = {cell: Claim(min(cell.want, cell.limit, cell.threads), cell.threads) for cell in cells}
            got = allocate(self.cores, {**claims, None: Claim(self.others, 2.0)})
            for cell in cells:
                cell.used += got[cell] * PERIOD
                cell.waited += (claims[cell].want - got[cell]) * PERIOD
            self.shares.look(self.now)
        return {
            name: (sum(cell.used for cell in cells) - before[name]) / (steps * PERIOD)
            for name, (_, cells) in self.tenants.items()
        }


def test_many_loops_get_no_more_than_one():
    machine = Machine(2, {"many": (1, [Cell(64) for _ in range(4)]), "one": (1, [Cell(1, threads=1)])})
    machine.pass_time(2)
    rates = machine.pass_time(10)
    assert rates["one"] == pytest.approx(1, rel=0.1)
    assert rates["many"] == pytest.approx(1, rel=0.1)
    assert set(machine.shares.parts) == {"many", "one"}


def test_a_cell_that_has_just_begun_has_a_part_of_its_tenants():
    """Who is limited does not get more for the time to the next look by beginning with ever new cells."""
    many = [Cell(64) for _ in range(4)]
    machine = Machine(2, {"many": (1, many), "one": (1, [Cell(1, threads=1)])})
    new = Cell(64)
    machine.shares._waited = lambda pid: 0.0
    machine.shares.begins("many", new, 5)
    assert new.limit == math.inf, "nobody is limited yet"
    machine.pass_time(2)
    machine.shares.begins("many", new, 5)
    assert new.limit == pytest.approx(machine.shares.parts["many"] / 5)
    machine.shares.begins("others", Cell(1), 1)
    many.append(new)
    machine.pass_time(2)
    assert machine.pass_time(10)["one"] == pytest.approx(1, rel=0.1)


def test_what_one_does_not_want_others_get():
    modest = Cell(0.3)
    machine = Machine(2, {"greedy": (1, [Cell(64)]), "modest": (1, [modest])})
    machine.pass_time(2)
    rates = machine.pass_time(10)
    assert rates["modest"] == pytest.approx(0.3, rel=0.05)
    assert rates["greedy"] >= 1.5
    assert modest.limit >= 1  # it may have its due when it needs it, at once


def test_weights():
    machine = Machine(4, {"a": (3, [Cell(9, 4), Cell(9, 4)]), "b": (1, [Cell(9, 4)]), "idle": (100, [Cell(0)])})
    machine.pass_time(3)
    rates = machine.pass_time(10)
    assert rates["a"] / rates["b"] == pytest.approx(3, rel=0.1)
    assert sum(rates.values()) > 3.8


def test_nobody_is_limited_while_there_is_enough_and_all_are_let_go_when_there_is_again():
    greedy, other = Cell(64), Cell(0.5)
    machine = Machine(2, {"greedy": (1, [greedy]), "other": (1, [other])})
    greedy.want = 0.9
    machine.pass_time(3)
    assert greedy.limit == other.limit == math.inf
    greedy.want = 64
    other.want = 2
    machine.pass_time(3)
    assert greedy.limit < 2
    greedy.want = 0.2
    other.want = 0.2
    machine.pass_time(3)
    assert greedy.limit == other.limit == math.inf
    assert not machine.shares.parts


def test_a_single_tenant_is_never_limited():
    cell = Cell(64)
    Machine(2, {"only": (1, [cell])}).pass_time(5)
    assert not cell.told


def test_a_busy_machine_is_no_licence():
    """Another program takes half of it: the parts are those of what is left."""
    machine = Machine(2, {"many": (1, [Cell(64) for _ in range(3)]), "one": (1, [Cell(1, threads=1)])}, others=1.0)
    machine.pass_time(5)
    rates = machine.pass_time(10)
    assert rates["one"] == pytest.approx(rates["many"], rel=0.25), rates
    assert sum(rates.values()) > 0.85


def test_a_tenants_part_goes_to_those_of_its_cells_that_use_it():
    idle = [Cell(0) for _ in range(5)]
    busy = Cell(9)
    machine = Machine(2, {"a": (1, [*idle, busy]), "b": (1, [Cell(9)])})
    machine.pass_time(3)
    rates = machine.pass_time(5)
    assert rates["a"] > 0.75 and rates["b"] > 0.75
    assert all(cell.limit > 0 for cell in idle)


def test_cells_come_and_go():
    tenants = {"a": (1.0, [Cell(9)]), "b": (1.0, [Cell(9)])}
    machine = Machine(2, tenants)
    machine.pass_time(2)
    new = Cell(9)
    machine.shares._waited = lambda pid: 0.0
    tenants["c"] = (1.0, [new])
    del tenants["a"]
    machine.pass_time(2)
    assert new.limit < 2 and len(machine.shares._seen) == 2


@given(st.lists(st.tuples(st.floats(0.1, 10), st.lists(st.floats(0, 20), max_size=4)), max_size=6), st.integers(1, 8))
def test_whatever_is_measured_shares_are_usable(tenants, cores):
    """And cells are not told the same again and again."""
    groups = {str(number): (weight, [Cell(want) for want in wants]) for number, (weight, wants) in enumerate(tenants)}
    machine = Machine(cores, groups)
    machine.pass_time(4)
    for _, cells in groups.values():
        assert all(cell.limit > 0 for cell in cells)


def test_waiting_is_measured():
    """Three threads on one core wait about two thirds of their time."""
    before = waited_seconds(os.getpid())
    assert waited_seconds(2**22 + 1) == 0.0
    mask = os.sched_getaffinity(0)
    end = threading.Event()

    def spin() -> None:
        os.sched_setaffinity(0, {min(mask)})
        digest = b"x" * 4_000_000
        while not end.is_set():
            zlib.crc32(digest)  # without the GIL

    import zlib

    threads = [threading.Thread(target=spin) for _ in range(3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 10
    try:
        while waited_seconds(os.getpid()) - before < 0.05 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert waited_seconds(os.getpid()) - before >= 0.05
    finally:
        end.set()
        for thread in threads:
            thread.join()
