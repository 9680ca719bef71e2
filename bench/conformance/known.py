"""The known failures: patterns of cases with the reason for each.

tests/conformance/known_failures.toml is a list of tables:

    [[known]]
    pattern = "test_os.ForkTests.*"    # of a case, as in fnmatch
    reason = "why"
    kind = "subprocess"                # or "limit": what a VM has not; "native": it fails now and then on the host, too

"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .outcome import GOOD, Outcome

KINDS = ("subprocess", "limit", "native")
FILE = Path(__file__).parents[2] / "tests/conformance/known_failures.toml"


@dataclass(frozen=True)
class Known:
    pattern: str
    reason: str
    kind: str

    def matches(self, case: str) -> bool:
        return fnmatch.fnmatchcase(case, self.pattern)

    def concerns(self, module: str) -> bool:
        """Whether a case of this module may match."""
        head = self.pattern.split("*")[0].split("?")[0].split("[")[0]
        return head.startswith(module + ".") or (module + ".").startswith(head)


def read(file: Path) -> list[Known]:
    """ValueError for what is no list of known failures."""
    tables = tomllib.loads(file.read_text())
    if set(tables) - {"known"}:
        raise ValueError(f"{file}: only [[known]] tables, not {', '.join(sorted(set(tables) - {'known'}))}")
    found = []
    for entry in tables.get("known", []):
        if set(entry) != {"pattern", "reason", "kind"} or not all(isinstance(word, str) and word for word in entry.values()):
            raise ValueError(f"{file}: an entry has pattern, reason and kind: {entry}")
        if entry["kind"] not in KINDS:
            raise ValueError(f"{file}: kind is one of {', '.join(KINDS)}: {entry}")
        found.append(Known(**entry))
    patterns = [entry.pattern for entry in found]
    twice = {pattern for pattern in patterns if patterns.count(pattern) > 1}
    if twice:
        raise ValueError(f"{file}: twice: {', '.join(sorted(twice))}")
    return found


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
