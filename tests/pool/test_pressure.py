"""What the kernel says of memory, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentfw.pool.pressure import KERNEL, host, of_limit, used, worse


def proc(place: Path, available: int | None, some: float | None = None) -> Path:
    if available is not None:
        (place / "meminfo").write_text(f"MemTotal:       1000 kB\nMemFree:        1 kB\nMemAvailable:   {available} kB\n")
    if some is not None:
        (place / "pressure").mkdir()
        text = f"some avg10={some:.2f} avg60=0.00 avg300=0.00 total=1\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n"
        (place / "pressure/memory").write_text(text)
    return place


@pytest.mark.parametrize(
    ("available", "some", "level"),
    [
        (500, None, "fine"),
        (99, None, "tight"),
        (49, None, "exhausted"),
        (500, 0.0, "fine"),
        (500, 12.5, "tight"),
        (500, 55.0, "exhausted"),
        (49, 0.0, "exhausted"),
        (None, None, "fine"),
    ],
)
def test_the_host(tmp_path: Path, available: int | None, some: float | None, level: str) -> None:
    assert host(proc(tmp_path, available, some)) == level


def test_the_pools_own_limit() -> None:
    assert [of_limit(each, 1000) for each in (0, 899, 900, 999, 1000, 5000)] == [
        "fine",
        "fine",
        "tight",
        "tight",
        *["exhausted"] * 2,
    ]
    assert of_limit(10**12, None) == "fine"
    assert worse("fine", "tight") == worse("tight", "fine") == "tight" and worse("tight", "exhausted") == "exhausted"


def test_what_cells_have_for_themselves(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text(
        "Name:\tx\nRssAnon:\t     100 kB\nRssFile:\t  10 kB\nRssShmem:\t 9000 kB\nVmPTE:\t      4 kB\n"
    )
    assert used([7, 8], 2, tmp_path) == (104 << 10) + 2 * KERNEL
