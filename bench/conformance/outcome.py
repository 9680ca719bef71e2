"""What became of a module's cases, natively or in a VM, and what differs between the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

GOOD = ("passed", "expected failure")
MODULE = "(module)"
"""The case that stands for a module as a whole: it could not be loaded, or was skipped."""
REFUSED = "a guest of agentfw is one process"
"""What a program in a VM is told that wants to start another one."""


@dataclass
class Case:
    """`outcome`: as of bench/guest/conformance_module.py, or "hung", "crashed" (its process or VM ended with it)."""

    outcome: str
    text: str = ""
    seconds: float = 0.0


@dataclass
class Outcome:
    """Of one run of a module. `excluded`: cases that known failures kept out; `whole`: it came to its end; `seconds`: wall."""

    module: str
    cases: dict[str, Case] = field(default_factory=dict)
    excluded: list[str] = field(default_factory=list)
    whole: bool = False
    seconds: float = 0.0
    noise: str = ""
    """The end of what it wrote to stderr."""

    def count(self, *outcomes: str) -> int:
        return sum(case.outcome in outcomes for case in self.cases.values())

    @property
    def failed(self) -> int:
        return len(self.cases) - self.count(*GOOD, "skipped")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, read: Mapping[str, Any]) -> Outcome:
        return cls(**{**read, "cases": {name: Case(**case) for name, case in read["cases"].items()}})


class _Start(msgspec.Struct, array_like=True, tag="start", forbid_unknown_fields=True):
    case: str


class _End(msgspec.Struct, array_like=True, tag="end", forbid_unknown_fields=True):
    case: str
    outcome: str
    text: str
    seconds: float


class _Excluded(msgspec.Struct, array_like=True, tag="excluded", forbid_unknown_fields=True):
    case: str


class _Error(msgspec.Struct, array_like=True, tag="error", forbid_unknown_fields=True):
    text: str


class _Skipped(msgspec.Struct, array_like=True, tag="skipped", forbid_unknown_fields=True):
    text: str


class _Whole(msgspec.Struct, array_like=True, tag="whole", forbid_unknown_fields=True):
    seconds: float


_line = msgspec.json.Decoder(_Start | _End | _Excluded | _Error | _Skipped | _Whole).decode
"""The lines of bench/guest/conformance_module.py."""


class Listener:
    """Takes a run's lines. `running`: the case that was begun and has not ended; `done`: cases not to be run again."""

    def __init__(self, module: str) -> None:
        self.outcome = Outcome(module)
        self.running = ""

    def line(self, text: str) -> None:
        """ValueError for what is no line of ours: nothing else may write there."""
        try:
            said = _line(text)
        except (UnicodeEncodeError, RecursionError) as error:
            raise ValueError(f"no line: {type(error).__name__}") from None
        found = self.outcome
        match said:
            case _Start(case):
                self.running = case
            case _End():
                found.cases[said.case] = Case(said.outcome, said.text, said.seconds)
                self.running = ""
            case _Excluded(case):
                if case not in found.excluded:
                    found.excluded.append(case)
            case _Error(text):
                found.cases[MODULE] = Case("error", text)
            case _Skipped(text):
                found.cases[MODULE] = Case("skipped", text)
            case _Whole():
                found.whole = True

    def ended(self, outcome: str, text: str) -> None:
        """The run ended before its time: of the case that was running, or else of the module, this is known."""
        self.outcome.cases[self.running or MODULE] = Case(outcome, text)
        self.running = ""

    @property
    def done(self) -> list[str]:
        return list(self.outcome.cases)


@dataclass(frozen=True)
class Difference:
    """A case that passes natively and does not in the VM."""

    case: str
    native: str
    vm: str
    text: str

    @property
    def fatal(self) -> bool:
        """A fault, whatever the reason."""
        return self.vm in ("hung", "crashed")

    @property
    def refused(self) -> bool:
        """Whether the last it was told in the VM is that there are no processes."""
        return REFUSED in self.text

    def passes(self, alone: Outcome) -> bool:
        """Whether it passes natively where no process may be begun, too."""
        if self.case.endswith(f".{MODULE}"):
            return MODULE not in alone.cases
        there = alone.cases.get(self.case)
        return there is not None and there.outcome == self.native


def differences(native: Outcome, vm: Outcome) -> Iterator[Difference]:
    """Cases that pass natively and are not excluded, but fail, are missing, or are skipped in the VM."""
    excluded = set(vm.excluded)
    module = vm.cases.get(MODULE)
    if module is not None and MODULE not in native.cases and MODULE not in excluded:
        yield Difference(f"{vm.module}.{MODULE}", "passed", module.outcome, module.text)
    for name, case in native.cases.items():
        if case.outcome not in GOOD or name in excluded:
            continue
        there = vm.cases.get(name)
        if there is None:
            text = f"{module.outcome}: {module.text}" if module else _setup(name, vm)
            yield Difference(name, case.outcome, "missing", text)
        elif there.outcome != case.outcome:
            yield Difference(name, case.outcome, there.outcome, there.text)


def _setup(name: str, vm: Outcome) -> str:
    """Why a case may not have been run: its class's or module's set-up went wrong."""
    for other, case in vm.cases.items():
        what, _, rest = other.partition(" (")
        if what in ("setUpClass", "setUpModule") and f"test.{name}.".startswith(f"{rest.removesuffix(')')}."):
            return f"{what}: {case.outcome}: {case.text}"
    return ""
