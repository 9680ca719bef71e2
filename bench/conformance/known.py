"""The known failures: patterns of cases with the reason for each.

tests/conformance/known_failures.toml is a list of tables. A pattern that matches "MODULE.(module)" is about the module as a
whole.

    [[known]]
    pattern = "test_os.ForkTests.*"    # of a case, as in fnmatch
    reason = "why"
    kind = "subprocess"                # or "limit": what a VM has not; "native": it fails now and then on the host, too
    since = "3.13"                     # may be left out: older Pythons' tests of that name pass
"""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .outcome import GOOD, MODULE, Outcome

KINDS = ("subprocess", "limit", "native")
FILE = Path(__file__).parents[2] / "tests/conformance/known_failures.toml"


@dataclass(frozen=True)
class Known:
    pattern: str
    reason: str
    kind: str
    since: str = ""

    def applies(self, version: Sequence[int]) -> bool:
        """`version`: of the interpreter, as sys.version_info begins."""
        return not self.since or tuple(version[:2]) >= tuple(map(int, self.since.split(".")))

    def matches(self, case: str) -> bool:
        return fnmatch.fnmatchcase(case, self.pattern)

    def concerns(self, module: str) -> bool:
        """Whether a case of this module may match: its names begin with the module's, or, where the module only gathers
        others' cases ("ctypes.test..."), with none that is a module's."""
        head = re.split(r"[*?\[]", self.pattern)[0]
        return not head.startswith("test_") or head.startswith(module + ".") or (module + ".").startswith(head)


def read(file: Path) -> list[Known]:
    """ValueError for what is no list of known failures."""
    tables = tomllib.loads(file.read_text())
    if set(tables) - {"known"}:
        raise ValueError(f"{file}: only [[known]] tables, not {', '.join(sorted(set(tables) - {'known'}))}")
    found = []
    for entry in tables.get("known", []):
        if set(entry) - {"since"} != {"pattern", "reason", "kind"} or not all(
            isinstance(word, str) and word for word in entry.values()
        ):
            raise ValueError(f"{file}: an entry has pattern, reason and kind: {entry}")
        if entry["kind"] not in KINDS:
            raise ValueError(f"{file}: kind is one of {', '.join(KINDS)}: {entry}")
        if not re.fullmatch(r"(3\.\d+)?", entry.get("since", "")):
            raise ValueError(f"{file}: since is a version as 3.13: {entry}")
        found.append(Known(**entry))
    patterns = [entry.pattern for entry in found]
    twice = {pattern for pattern in patterns if patterns.count(pattern) > 1}
    if twice:
        raise ValueError(f"{file}: twice: {', '.join(sorted(twice))}")
    return found


def exclude(entries: Sequence[Known], native: Outcome, vm: Outcome) -> None:
    """Add to what was excluded what a VM could not tell of, since it could not load the module."""
    found = set(vm.excluded)
    found |= {case for case in native.cases if any(entry.matches(case) for entry in entries)}
    if MODULE in vm.cases and any(entry.matches(f"{vm.module}.{MODULE}") for entry in entries):
        found.add(MODULE)
    vm.excluded = sorted(found)


def counted(entries: Iterable[Known]) -> int:
    """Patterns outside what needs subprocesses."""
    return sum(entry.kind != "subprocess" for entry in entries)


def stale(entries: Iterable[Known], native: Outcome, rerun: Outcome) -> Iterator[Known]:
    """Entries that match cases of this module, all of which pass natively and pass in a VM, too (`rerun`: of those that were
    excluded). An entry of kind "native" is about chance, and never stale."""
    for entry in entries:
        cases = [case for case in rerun.cases if entry.matches(case)]
        good = all(native.cases[case].outcome in GOOD for case in cases if case in native.cases)
        if entry.kind != "native" and cases and good and all(rerun.cases[case].outcome in GOOD for case in cases):
            yield entry
