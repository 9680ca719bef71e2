"""Tenants without end: what is made for each goes again, and no more is made than goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from agentfw.pool.groups import Group, GroupKey
from agentfw.pool.stock import ENDING_MOST, Stock
from agentfw.pool.templates import Prepared
from agentfw_vmm import CellHandler, VmExit

from .fake_cells import FakeCell

TEMPLATE: Any = Prepared("default", None, Path(), b"", {}, {})  # type: ignore[arg-type]


class _User:
    def flow_opened(self, flow: Any) -> None: ...

    def ended(self, report: VmExit, statistics: Any, loss: Any) -> bool:
        return report.kind == "code"


class _Slow(FakeCell):
    """It takes the kernel its time to take one apart."""

    gate: asyncio.Event

    async def close(self) -> None:
        await self.gate.wait()
        await super().close()


def test_cells_are_not_started_faster_than_they_end() -> None:
    async def body() -> None:
        gate = asyncio.Event()
        cells: list[_Slow] = []

        def start(group: Group) -> Any:
            def begin(handler: CellHandler, vms: int) -> Awaitable[Any]:
                async def wait() -> _Slow:
                    cell = _Slow(handler, vms, True)
                    cell.gate = gate
                    cells.append(cell)
                    return cell

                return wait()

            return begin

        async def turns(count: int = 60) -> None:
            for _ in range(count):
                await asyncio.sleep(0)
                for cell in cells:
                    cell.obey()
                    for stream in cell.live.values():
                        if not stream._data and not stream.gone:
                            stream.say({"warm": 1})

        stock = Stock(4, start, terms=lambda tenant: (1.0, None), runners=lambda vms: 1, recycle=True)

        async def one(number: int) -> None:
            tenant = f"t{number}"
            vm = await stock.take(GroupKey(tenant, TEMPLATE, "cell"), _User())
            await asyncio.sleep(0)
            vm.cell.native.exit(vm.number, "code")  # type: ignore[union-attr]
            stock.over(tenant)

        jobs = [asyncio.ensure_future(one(number)) for number in range(3 * ENDING_MOST)]
        for _ in range(100):
            await turns()
            stock.tick()
        there = [cell for cell in cells if not cell.closed]
        assert len(there) <= ENDING_MOST + stock.size + 8, "closing waits, so starting does"
        assert not all(job.done() for job in jobs)
        gate.set()
        while not all(job.done() for job in jobs):
            await turns()
            stock.tick()
        for job in jobs:
            job.result()
        closing = asyncio.ensure_future(stock.close())
        while not closing.done():
            await turns(5)
        assert all(cell.closed for cell in cells)

    asyncio.run(asyncio.wait_for(body(), 30))
