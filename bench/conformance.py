"""CPython's own tests, natively and in VMs, case by case.

    python bench/conformance.py [MODULE...] [--json OUT.json] [--jobs 3]

MODULE: a module of the package `test` of this interpreter ("test_os"; "test_asyncio.test_events"), or a file of unittest cases
("mine.py"); none: all of them. Each runs in a process of its own natively and in a VM of its own, restored from a snapshot. A
case that passes natively must pass in the VM: it differs if it fails, is skipped, missing, hangs or takes its VM along. Cases
that do not pass natively either where no process may be begun are counted apart: a VM is one process. Known failures (--known)
are not run in the VM. Native results are kept in OUT.json, and not made again by the same interpreter; root makes them as an
ordinary user, as an agent is one. Exit status: 0; 1 if a case differs or a known failure passes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance import known as known_failures
from conformance import modules
from conformance.known import Known
from conformance.outcome import Difference, Outcome, differences
from conformance.running import Attempt, Wish, natively, run, vms
from conformance.table import HEAD, Row, below, figures, line, total

PAUSE = 20.0
"""Seconds between two writings of the results' file, which becomes some megabytes long."""
RETRIED = 60
"""Of a module, cases that differ are run again if they are not more than that."""
ALONE = 20.0
"""Seconds for a case that may begin no process, natively; in none would it wait for more than its own time-outs."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("modules", nargs="*", metavar="MODULE")
    add("--json", type=Path, metavar="OUT.json", help="all results; native ones are kept there from run to run")
    add("--native", type=Path, metavar="FILE", help="another file of that kind, whose native results are used as well")
    add("--jobs", type=int, default=3, help="modules at once; many do little but wait")
    add("--native-only", action="store_true", help="run nothing in VMs")
    add("--vm-only", action="store_true", help="run nothing natively; what failed is told, with nothing to compare it to")
    add("--known", type=Path, default=known_failures.FILE, help="the known failures' file")
    add("--stale", action="store_true", help="run known failures, too, and report which pass")
    add("--use", default="", metavar="RESOURCES", help="comma-separated, as -u of regrtest; default: none")
    add("--match", action="append", default=[], metavar="CASE", help="only these cases, in full")
    add("--exclude", action="append", default=[], metavar="MODULE", help="not these modules")
    add("--memory", default="1536M", help="of a VM")
    add("--case-limit", type=float, default=120, help="seconds for a case; in a VM at least ten times what it took natively")
    add("--limit", type=float, default=900, help="seconds for a module; in a VM at least five times what it took natively")
    add("--no-retry", action="store_true", help="count differences that are none when they are run again")
    add("--texts", type=int, default=0, metavar="N", help="print so many characters of each difference's traceback")
    return parser.parse_args()


class Book:
    """Results, and their file. Native ones are of one interpreter and one set of resources."""

    def __init__(self, file: Path | None, other: Path | None, resources: Sequence[str]) -> None:
        self.file = file
        self.of = {"python": sys.version, "executable": os.path.realpath(sys.executable), "resources": sorted(resources)}
        self.of["user"] = "ordinary"
        self.native: dict[str, Outcome] = {}
        self.alone: dict[str, Outcome] = {}
        self.vm: dict[str, Any] = {}
        self._next = 0.0
        for each in (other, file):
            if each is not None and each.exists():
                read = json.loads(each.read_text())
                if read["of"] == self.of:
                    for kept, name in ((self.native, "native"), (self.alone, "alone")):
                        kept |= {module: Outcome.of_json(found) for module, found in read.get(name, {}).items()}
                    self.vm = read["vm"] if each is file else self.vm

    def keep(self, row: Row) -> None:
        if row.native is not None:
            self.native[row.module] = row.native
        if row.vm is not None:
            parts = {
                name: [dataclasses.asdict(each) for each in getattr(row, name)] for name in ("differ", "subprocess", "unsteady")
            }
            self.vm[row.module] = {**row.vm.as_json(), **parts}
        if time.monotonic() > self._next:
            self.write()

    def write(self) -> None:
        if self.file is None:
            return
        self._next = time.monotonic() + PAUSE
        native, alone = ({name: each.as_json() for name, each in kept.items()} for kept in (self.native, self.alone))
        text = json.dumps({"of": self.of, "native": native, "alone": alone, "vm": self.vm})
        with tempfile.NamedTemporaryFile("w", dir=self.file.parent, delete=False) as made:
            made.write(text)
        Path(made.name).replace(self.file)


class Bench:
    def __init__(self, options: argparse.Namespace, known: list[Known], attempt: Attempt | None) -> None:
        self.options, self.known, self.attempt = options, known, attempt
        self.files = {name: Path(name).resolve() for name in options.modules if name.endswith(".py")}
        resources = tuple(word for word in options.use.split(",") if word)
        self.book = Book(options.json, options.native, resources)
        self.wish = Wish("", resources=resources, case_limit=options.case_limit, limit=options.limit,
                         only=tuple(options.match) or None)  # fmt: skip

    async def module(self, name: str) -> Row:
        file = self.files.get(name)
        row = Row(file.stem if file else name)
        wish = dataclasses.replace(self.wish, module=row.module, file=file)
        if file is None and wish.only is None:
            row.native = self.book.native.get(row.module)
        if row.native is None and not self.options.vm_only:
            row.native = await run(wish, natively)
        if self.attempt is not None:
            await self.in_vm(row, wish, self.attempt)
        if wish.only is None:
            self.book.keep(row)
        return row

    async def in_vm(self, row: Row, wish: Wish, attempt: Attempt) -> None:
        entries = [entry for entry in self.known if entry.concerns(row.module)]
        wish = dataclasses.replace(wish, skip=tuple(entry.pattern for entry in entries))
        if row.native is not None:
            longest = max((case.seconds for case in row.native.cases.values()), default=0)
            wish = dataclasses.replace(
                wish, case_limit=max(wish.case_limit, 10 * longest), limit=max(wish.limit, 5 * row.native.seconds)
            )
        row.vm = await run(wish, attempt)
        native = row.native or _as_if_all_passed(row.vm)
        known_failures.exclude(entries, native, row.vm)
        found = list(differences(native, row.vm))
        row.subprocess = await self.in_need(native, [each for each in found if not each.fatal], wish)
        row.differ = [each for each in found if each not in row.subprocess]
        again = [each for each in row.differ if each.vm in ("failed", "error", "skipped") and each.case in native.cases]
        if again and len(again) <= RETRIED and not self.options.no_retry:
            rest = await self.differ_again(native, again, wish, attempt)
            row.unsteady = [each for each in again if each.case not in rest]
            row.differ = [each for each in row.differ if each not in row.unsteady]
        if self.options.stale and row.vm.excluded:
            rerun = await run(dataclasses.replace(wish, skip=(), only=tuple(row.vm.excluded)), attempt)
            row.stale = list(known_failures.stale(entries, native, rerun))

    async def in_need(self, native: Outcome, found: list[Difference], wish: Wish) -> list[Difference]:
        """Of cases that differ those that do not pass natively either, where no process may be begun."""
        if self.options.vm_only:
            return [each for each in found if each.refused]
        alone = self.book.alone.setdefault(native.module, Outcome(native.module))
        only = tuple(each.case for each in found if each.case not in alone.cases)
        if only:
            theirs = dataclasses.replace(wish, only=only, skip=(), alone=True, case_limit=ALONE, resumes=len(only))
            ran = await run(theirs, natively)
            alone.cases |= ran.cases
            alone.seconds += ran.seconds
        return [each for each in found if not each.passes(alone)]

    async def differ_again(self, native: Outcome, found: list[Difference], wish: Wish, attempt: Attempt) -> set[str]:
        only = tuple(each.case for each in found)
        rerun = await run(dataclasses.replace(wish, only=only), attempt)
        part = Outcome(native.module, {name: native.cases[name] for name in only if name in native.cases})
        return {each.case for each in differences(part, rerun)}

    async def all(self, names: list[str]) -> list[Row]:
        print(HEAD, flush=True)
        places = asyncio.Semaphore(self.options.jobs)
        rows: list[Row] = []

        async def one(name: str) -> None:
            async with places:
                row = await self.module(name)
            rows.append(row)
            print(line(row.module, *row.numbers()), flush=True)

        try:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(one(name))
        finally:
            self.book.write()
        print(total(rows))
        return sorted(rows, key=lambda row: row.module)


def _as_if_all_passed(vm: Outcome) -> Outcome:
    native = dataclasses.replace(vm, cases={})
    for name, case in vm.cases.items():
        good = case.outcome in ("skipped", "expected failure")
        native.cases[name] = dataclasses.replace(case, outcome=case.outcome if good else "passed")
    return native


async def bench(options: argparse.Namespace, names: list[str], known: list[Known]) -> list[Row]:
    async with contextlib.AsyncExitStack() as stack:
        attempt = None if options.native_only else await stack.enter_async_context(vms(options.jobs, options.memory))
        return await Bench(options, known, attempt).all(names)


def chosen(options: argparse.Namespace) -> list[str]:
    place = modules.directory(sys.executable)
    names = [inner for name in options.modules for inner in modules.expand(place, name)] or modules.every(place)
    unknown = [name for name in names if not (Path(name).is_file() if name.endswith(".py") else modules.exists(place, name))]
    if unknown:
        raise SystemExit(f"error: no such module in {place}: {', '.join(unknown)}")
    return [name for name in names if name not in options.exclude]


def main() -> int:
    options = arguments()
    try:
        names = chosen(options)
        known = known_failures.read(options.known)
    except (modules.NoTests, ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    since = time.monotonic()
    rows = asyncio.run(bench(options, names, [entry for entry in known if entry.applies(sys.version_info)]))
    seconds = time.monotonic() - since
    if options.native_only:
        return 0
    print(below(rows, known, options.texts))
    print(f"\n{figures(rows, known, seconds)}")
    return int(any(row.differ or row.stale for row in rows))


if __name__ == "__main__":
    sys.exit(main())
