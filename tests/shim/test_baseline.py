"""A template sees the fleet's CPU from its first instruction on, not the host's."""

from pathlib import Path

import pytest

from .test_core import KVM, built, in_vm

__all__ = ["built"]


@KVM
@pytest.mark.parametrize("slice_ns", [0, 100_000])
def test_cpu_is_the_baseline(built: Path, slice_ns: int) -> None:
    """Many boots: whether the first cpuid is answered by the shim must not depend on who is faster."""
    for _ in range(5):
        report = in_vm(built, "baseline", slice_ns=slice_ns)
        assert (report.kind, report.code) == ("code", 0), report.text
