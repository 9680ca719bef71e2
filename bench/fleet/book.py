"""What was measured: rows of the issue's table, and the numbers behind them."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import machine


@dataclass(frozen=True)
class Row:
    """`met` None: no demand, or not measured."""

    measure: str
    reference: str
    must: str
    measured: str
    met: bool | None = None


@dataclass
class Book:
    options: Mapping[str, Any]
    rows: list[Row] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def row(self, measure: str, reference: str, must: str, measured: str, met: bool | None = None) -> None:
        row = Row(measure, reference, must, measured, met)
        self.rows.append(row)
        print(line(row), flush=True)

    def note(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def document(self) -> dict[str, Any]:
        return {
            "version": 1,
            "machine": about(),
            "options": dict(self.options),
            "rows": [asdict(row) for row in self.rows],
            "failures": self.failures,
            "figures": self.figures,
        }

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.document(), indent=1) + "\n")


def line(row: Row) -> str:
    met = {True: "met", False: "MISSED", None: "-"}[row.met]
    return f"{row.measure}\n    {row.measured}\n    reference {row.reference or '-'}; must {row.must or '-'}; {met}"


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = ["| measure | reference | must | measured | |", "|---|---|---|---|---|"]
    for row in rows:
        met = {True: "met", False: "missed", None: ""}[row.met]
        lines.append(f"| {row.measure} | {row.reference or '-'} | {row.must or '-'} | {row.measured} | {met} |")
    return "\n".join(lines)


def about() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    model = next(
        (row.partition(":")[2].strip() for row in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in row), ""
    )
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": len(os.sched_getaffinity(0)),
        "model": model,
        "memory": memory,
        "available": machine.available(),
        "load": os.getloadavg(),
        "kernel": platform.release(),
        "kvm": sorted(path.name for path in Path("/sys/module").glob("kvm*")),
        "python": sys.version.split()[0],
    }
