"""What is counted of guests that ask for all there is, and for what there is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agentfw_vmm import Sight
from agentfw_vmm._lib import constants
from agentfw_vmm.cell import Cell

from . import bare

pytestmark = pytest.mark.kvm
C = constants()

ALL = """
void run(void) {
    for (int i = 0; i < 2; i++) {
        for (u64 n = 0; n < AFW_TABLE_END; n++) call((uint16_t)(AFW_OP_CALL + n), 0, 0, 0, 0, 0, 0);
        for (u64 n = 70; n < AFW_RING_OPS; n++) call((uint16_t)n, 0, 0, 0, 0, 0, 0);
        call(AFW_RING_OPS, 0, 0, 0, 0, 0, 0);
        call(AFW_OP_CALL + AFW_TABLE_END, 0, 0, 0, 0, 0, 0);
        call(AFW_SIGHT_OTHER, 0, 0, 0, 0, 0, 0);
        call(AFW_OP_NOP, 0, 0, 0, 0, 0, 0);
    }
    leave(0);
}
"""


def test_kinds_of_operations_that_there_is_no_room_for_are_one(bare_cell: Path, guest: bare.Callable[..., Path]) -> None:
    async def main() -> tuple[Sight, int]:
        recorder = bare.Recorder()
        program = guest(ALL, f"-I{bare.ROOT}/vmm/native", "-include", "abi.h", "-include", "cell.h")
        cell = await Cell.start(bare.config(program), recorder, bare_cell)
        try:
            cell.boot(0)
            await recorder.until(lambda: 0 in recorder.exits)
            assert recorder.exits[0].kind == "code", recorder.exits[0]
            return cell.sight(0), cell.statistics(0).ring_ops
        finally:
            await cell.close()

    sight, ring_ops = asyncio.run(main())
    found = sight.operations()
    assert len(found) == C["AFW_SIGHT_OPS"] and sum(each.count for each in found) == ring_ops
    (other,) = [each for each in found if each.name == "other"]
    assert other.count == ring_ops - 2 * (C["AFW_SIGHT_OPS"] - 1) and other.errors > 400
    assert {each.count for each in found if each is not other} == {2}
    assert len({each.name for each in found}) == len(found)
