"""bench/fleet: what it measures with, since it decides whether a figure is met; and that its picture can be drawn."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCH = Path(__file__).parent.parent / "bench"


def part(name: str) -> ModuleType:
    """Of the package bench/fleet, which is not installed."""
    if "fleet" not in sys.modules:
        made = importlib.util.spec_from_file_location(
            "fleet", BENCH / "fleet/__init__.py", submodule_search_locations=[str(BENCH / "fleet")]
        )
        assert made is not None
        sys.modules["fleet"] = importlib.util.module_from_spec(made)
    return importlib.import_module(f"fleet.{name}")


machine, numbers, book, plot = part("machine"), part("numbers"), part("book"), part("plot")


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.floats(0, 1))
def test_percentiles_are_values_that_were_measured(values: list[float], at: float) -> None:
    found = numbers.percentile(values, at)
    assert found in values
    assert sum(each < found for each in values) <= at * len(values) + 1
    assert numbers.percentile(values, 0) == min(values) and numbers.percentile(values, 1) == max(values)


@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(2, 50))
def test_the_slope_of_a_line(rise: int, start: int, points: int) -> None:
    assert numbers.slope([(x, start + rise * x) for x in range(points)]) == pytest.approx(rise, abs=1e-6)


def test_slopes_of_too_little() -> None:
    assert numbers.slope([]) == numbers.slope([(1.0, 2.0)]) == numbers.slope([(1.0, 2.0), (1.0, 3.0)]) == 0


BURN = "import time; end = time.process_time() + {seconds}\nwhile time.process_time() < end: pass"


def test_cpu_time_is_that_of_children_that_live_and_that_ended() -> None:
    before = machine.cpu().ours
    subprocess.run([sys.executable, "-c", BURN.format(seconds=0.15)], check=True)
    ended = machine.cpu().ours - before
    assert 0.14 < ended < 1.5
    code = BURN.format(seconds=0.15) + "\nprint(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        both = machine.cpu().ours - before
        alone = machine.cpu(child.pid).ours
        assert machine.cells(child.pid) == 0
        assert child.pid in machine.tree() and child.pid not in machine.tree(child.pid)[1:]
        child.communicate(b"\n")
    assert alone > 0.14 and both - ended > 0.14
    assert machine.cpu().ours - before >= both - 0.05, "what has ended still counts"


def test_descriptors_and_memory() -> None:
    code = "import os; held = [os.open('/dev/null', os.O_RDONLY) for _ in range(20)]; print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert machine.descriptors(child.pid) == 20 + len(("stdin", "stdout", "stderr"))
        assert machine.descriptors() > machine.descriptors(child.pid), "ours, too"
        child.communicate(b"\n")
    pss = machine.proportional([os.getpid()])
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    assert machine.proportional([os.getpid()]) - pss > 60 << 20
    assert 0 < machine.available() < 1 << 50 and machine.busy() > 0


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    made = book.Book({"agents": 3})
    made.row("a", "1", "2", "3", True)
    made.row("b", "", "", "3", False)
    made.row("c", "", "", "3")
    assert [line.split("|")[-2].strip() for line in book.table(made.rows).splitlines()[2:]] == ["met", "missed", ""]
    made.write(tmp_path / "out.json")
    document: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert [row["met"] for row in document["rows"]] == [True, False, None] and document["machine"]["cpus"] > 0
    pytest.importorskip("matplotlib")
    plot.draw(document, tmp_path / "empty.png")
    times = [float(n) for n in range(1, 40)]
    network = {"agents": 3, "asked": 1, "handshakes": 2, "served": 3, "metrics": {"dns.hits": 2, "tls.held": 2}}
    document["figures"] = {
        "cells": {"latencies": times, "vms": 39, "each": 1.0},
        "pool_warm": {"memory": 1e6, "each_ms": 1.0},
        "alive: the standard library": {"per_gib": 150.0, "bytes": 3e6, "agents": 3},
        "network": {"x": network},
        "dispatch": {"first_ms": times},
        "connect": {"first_send_ms": times, "first_call_ms": times},
        "throughput": {"per_core_second": 300.0, "agents": 3},
        "flat": {"1": {"ms": times}, "2": {"ms": times}},
        "peers": [{"name": "fork", "memory": 1e6}],
    }
    plot.draw(document, tmp_path / "full.png")
    assert (tmp_path / "full.png").stat().st_size > (tmp_path / "empty.png").stat().st_size > 1000
