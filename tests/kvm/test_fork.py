"""Copies of running agents: each goes on from where the one stood, as itself."""

import asyncio

import pytest

from .forks import forks

pytestmark = pytest.mark.kvm

COUNTER = """
import os, sys, time
n = 0
while True:
    n += 1
    if n % 100 == 0:
        print(n, os.getpid(), flush=True)
"""


def test_a_counter_goes_on_in_each_copy(agentfw_environment: dict[str, str]) -> None:
    async def main() -> None:
        async with forks(agentfw_environment) as every:
            agent = await every.start(COUNTER)
            for _ in range(20):
                await agent.line()
            saved = await agent.save()
            own = (await agent.line()).split()[1]
            children = await every.go_on(saved, 3)
            saved.close()
            for child in children:
                await child.line()  # it may have stood in the middle of writing that
            first = [(await child.line()).split() for child in children]
            assert len({pid for _, pid in first} | {own}) == 4
            counts = [int(count) for count, _ in first]
            assert max(counts) - min(counts) <= 100 and min(counts) > 2000
            for child in children:
                numbers = [int((await child.line()).split()[0]) for _ in range(5)]
                assert numbers == list(range(numbers[0], numbers[0] + 500, 100))
            numbers = [int((await agent.line()).split()[0]) for _ in range(50)]
            assert numbers == list(range(numbers[0], numbers[0] + 5000, 100))

    asyncio.run(main())
