"""Virtual machines take turns in the worker."""

from __future__ import annotations

import asyncio
import contextlib

from agentfw_vmm.turns import EACH, Turns


def test_many_flows_of_one_vm_hold_up_another_by_its_turns_only() -> None:
    async def run() -> None:
        many, few = Turns(), Turns()
        taken = 0

        async def flood() -> None:
            nonlocal taken
            for _ in range(1000):
                await many.take()
                taken += 1

        flows = [asyncio.create_task(flood()) for _ in range(124)]
        for _ in range(100):
            before = taken
            await few.take()
            await asyncio.sleep(0)
            assert taken - before <= 2 * EACH
        assert taken >= 50 * EACH, "though it has its own turns"
        for flow in flows:
            flow.cancel()
        await asyncio.gather(*flows, return_exceptions=True)

    asyncio.run(run())


def test_flows_of_a_vm_take_turns_too() -> None:
    async def run() -> None:
        turns = Turns()
        counts = [0] * (EACH * 2)

        async def flow(number: int) -> None:
            for _ in range(50):
                await turns.take()
                counts[number] += 1
                assert max(counts) - min(counts) <= EACH + 1  # who came first found all of them

        await asyncio.gather(*map(flow, range(len(counts))))

    asyncio.run(run())


def test_who_is_cancelled_takes_no_turn_along() -> None:
    async def run() -> None:
        turns = Turns()
        for _ in range(EACH):
            await turns.take()
        waiting = [asyncio.create_task(turns.take()) for _ in range(EACH * 3)]
        await asyncio.sleep(0)
        for task in waiting[: EACH * 2]:
            task.cancel()
        async with asyncio.timeout(20):
            await asyncio.gather(*waiting[EACH * 2 :])
        for task in waiting[: EACH * 2]:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        async with asyncio.timeout(20):
            for _ in range(EACH * 4):
                await turns.take()

    asyncio.run(run())
