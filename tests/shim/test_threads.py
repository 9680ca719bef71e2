"""Threads of a VM: nobody starves, and nothing that they hold is lost when the VM is saved."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from agentfw_vmm import Cell, CellConfig, Mount

from .test_core import Handler, built, in_vm

__all__ = ["built"]


def vectors() -> list[str]:
    """kept.c's argument: the widest registers of guests. pvm hides none; elsewhere they have the baseline's."""
    pvm = Path("/sys/module/kvm_pvm").exists()
    return ["avx512"] if pvm and "avx512f" in Path("/proc/cpuinfo").read_text() else []


@pytest.mark.kvm
def test_a_sleeper_preempts(built: Path) -> None:
    """Its time-out ends the slice of one that computes: that had 5 ms before."""
    output: list[bytes] = []
    report = in_vm(built, "late", output=output)
    assert (report.kind, report.code) == ("code", 0), report.text
    assert int(b"".join(output)) < 150


@pytest.mark.kvm
def test_registers_are_in_a_snapshot(built: Path, tmp_path: Path) -> None:
    arguments = vectors()
    assert subprocess.run([built / "kept", *arguments], timeout=30, check=False).returncode == 0
    snapshot = tmp_path / "snapshot"

    def config(**more: Path | int) -> CellConfig:
        argv = ["/t/kept", *arguments]
        return CellConfig(memory=1 << 28, mounts=[Mount("/t", built)], program="/t/kept", argv=argv, key=b"k" * 32, **more)  # type: ignore[arg-type]

    async def main() -> None:
        template = Handler()
        cell = await Cell.start(config(snapshot_out=snapshot), template)
        try:
            cell.boot(0)
            assert (await template.exit(60)).code == 0, template.exits
            assert [error for _, _, error in template.ready] == [0]
        finally:
            await cell.close()
        copies = Handler()
        cell = await Cell.start(config(snapshot_in=snapshot, vms=3), copies)
        try:
            for vm in range(3):
                cell.restore(vm, 5000 + vm)
            await copies.until(lambda: len(copies.exits) == 3 or copies.failures, 60)
            assert [(report.kind, report.code) for _, report in copies.exits] == [("code", 0)] * 3, copies.exits
        finally:
            await cell.close()

    asyncio.run(main())
