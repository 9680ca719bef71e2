"""The table, and what is said below it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .known import Known, counted
from .outcome import GOOD, Difference, Outcome

GOAL = 46
"""Patterns excluded outside subprocesses: gVisor's runs of CPython's tests have as many."""
HEAD = (
    f"{'':36} | {'native':^32} | {'VM':^50}\n"
    f"{'module':36} | {'run':>6} {'failed':>6} {'skipped':>8} {'s':>7}  |"
    f" {'same':>6} {'differ':>6} {'subprocess':>10} {'excluded':>8} {'unsteady':>8} {'s':>7}"
)


@dataclass
class Row:
    """A module. `differ`: what counts; `subprocess`: the same of cases that need child processes; `unsteady`: what differed once
    and not when it was run again."""

    module: str
    native: Outcome | None = None
    vm: Outcome | None = None
    differ: list[Difference] = field(default_factory=list)
    subprocess: list[Difference] = field(default_factory=list)
    unsteady: list[Difference] = field(default_factory=list)
    stale: list[Known] = field(default_factory=list)

    @property
    def same(self) -> int:
        if self.native is None or self.vm is None:
            return 0
        theirs = self.vm.cases
        return sum(c.outcome in GOOD and n in theirs and theirs[n].outcome == c.outcome for n, c in self.native.cases.items())

    def numbers(self) -> tuple[list[float], list[float]]:
        native, vm = self.native or Outcome(""), self.vm or Outcome("")
        return (
            [len(native.cases) - native.count("skipped"), native.failed, native.count("skipped"), native.seconds],
            [self.same, len(self.differ), len(self.subprocess), len(vm.excluded), len(self.unsteady), vm.seconds],
        )


def line(name: str, native: list[float], vm: list[float]) -> str:
    left = f"{native[0]:6} {native[1]:6} {native[2]:8} {native[3]:7.1f}"
    right = f"{vm[0]:6} {vm[1]:6} {vm[2]:10} {vm[3]:8} {vm[4]:8} {vm[5]:7.1f}"
    return f"{name:36} | {left}  | {right}"


def total(rows: list[Row]) -> str:
    columns = [row.numbers() for row in rows]
    native, vm = ([sum(column) for column in zip(*(each[side] for each in columns), strict=True)] for side in (0, 1))
    return line(f"{len(rows)} modules", native, vm)


def figures(rows: list[Row], known: list[Known], seconds: float) -> str:
    """The table of docs/conformance.md. `seconds`: wall."""
    native = [row.native for row in rows if row.native is not None]
    unfinished = sum(row.vm is not None and not row.vm.whole for row in rows)
    skipped, failed = sum(each.count("skipped") for each in native), sum(each.failed for each in native)
    run = sum(len(each.cases) for each in native) - skipped
    in_need, modules = sum(len(row.subprocess) for row in rows), sum(bool(row.subprocess) for row in rows)
    excluded = {entry.pattern for entry in known for row in rows if row.vm for case in row.vm.excluded if entry.matches(case)}
    cells = {
        "modules": f"{len(rows)}, {f'{unfinished} NOT' if unfinished else 'all'} run to their end, in {seconds / 60:.0f} minutes",
        "cases natively": f"{run:,} run, of which {failed} failed; {skipped:,} skipped",
        "the same in the VM": f"{sum(row.same for row in rows):,}",
        "need subprocesses": f"{in_need:,}, in {modules} modules",
        "excluded": f"{sum(len(row.vm.excluded) for row in rows if row.vm):,} by {len(excluded)} patterns",
        "differ": f"{sum(len(row.differ) for row in rows)}; unsteady {sum(len(row.unsteady) for row in rows)}",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in cells.items())])


def below(rows: Iterable[Row], known: list[Known], chars: int = 0) -> str:
    """Every difference, stale entries, and the known failures' number. `chars`: so much of each difference's text."""
    rows = list(rows)
    lines = []
    for row in rows:
        for kind, found in (("differs", row.differ), ("unsteady", row.unsteady)):
            for each in found:
                last = each.text.strip().rpartition("\n")[2][:160]
                lines.append(f"{kind}: {each.case}: {each.native} natively, {each.vm} in the VM: {last}")
                if chars:
                    lines += [f"    {text}" for text in each.text[-chars:].splitlines()]
        lines += [f"stale: {entry.pattern}: passes in the VM; take it out of the known failures" for entry in row.stale]
    differ = sum(len(row.differ) for row in rows)
    unfinished = [row.module for row in rows if row.native and row.vm and row.native.whole and not row.vm.whole]
    if unfinished:
        lines.append(f"modules that did not come to their end: {', '.join(unfinished)}")
    lines.append(
        f"{differ} cases differ; known failures outside subprocesses: {counted(known)} patterns (goal: at most {GOAL}),"
        f" for subprocesses {len(known) - counted(known)}"
    )
    return "\n".join(lines)
