"""What an agent's VM did, as its run tells it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agentfw import lives
from agentfw.lives import Host, Life
from agentfw.testing import make_agent
from agentfw_vmm import Sight, VmExit

from ..sights import made, report
from .support import async_test


class Silent:
    """A cell that does not answer."""

    def __init__(self) -> None:
        self.known = made({"read": 3})

    async def look(self, vm: int) -> Sight:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    def sight(self, vm: int) -> Sight:
        return self.known

    def statistics(self, vm: int) -> Any:
        return report(self.known, exits=7, cpu_ns=5 * 10**8).statistics


@async_test
async def test_a_cell_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "LOOK_SECONDS", 0.01)
    host = Host(None)
    host.cell = Silent()  # type: ignore[assignment]
    life = Life(make_agent(), host, 0)
    found, glance = await life.look(), life.glance()
    assert found is not None and found.sight.counts() == {"read": 3}, "as of the last time that it did"
    assert glance is not None and glance.sight.counts() == {} and glance.statistics.exits == found.statistics.exits == 7
    assert glance.cpu_seconds == 0.5


@async_test
async def test_after_the_end_it_is_what_was_told_then() -> None:
    host = Host(None)
    host.cell = cell = Silent()  # type: ignore[assignment]
    life = host.lives[0] = Life(make_agent(), host, 0)
    host.vm_exited(0, VmExit("code", 0, 0, ""))
    cell.known = made({"write": 1})  # another VM has its number
    assert life.glance() is life.vm_report and life.vm_report is not None and life.vm_report.sight.counts() == {"read": 3}
