"""What all who look are told once: how much is kept, how many may ask, how long one waits."""

from __future__ import annotations

import asyncio

import pytest
from agentfw.pool.jobs import PoolError
from agentfw.views import AgentStory, AgentTable
from agentfw_dashboard.web import shared
from agentfw_dashboard.web.shared import Shared

from tests.core.support import async_test

from .fake import FakeObservatory


class Slow(FakeObservatory):
    """Answers for agents come when they are let."""

    def __init__(self) -> None:
        super().__init__(5)
        self.may = asyncio.Event()
        self.asked = self.at_once = self.most = 0

    async def agent(self, id: str) -> AgentStory | None:
        self.asked += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.may.wait()
        self.at_once -= 1
        return await super().agent(self.rows()[0].id)


async def asked(source: Slow, count: int) -> None:
    while source.asked < count:  # noqa: ASYNC110  # a number, not ours to be told of
        await asyncio.sleep(0.01)


@async_test
async def test_what_nobody_wants_any_more_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a large pool are megabytes, and those who watch want another one each second."""
    monkeypatch.setattr(shared, "FRESH", 0.01)
    found = Shared(FakeObservatory(5))
    for since in range(20):
        await found.agents(since)
        await asyncio.sleep(0.02)
    assert len(found._kept) == 1
    await found.close()


@async_test
async def test_closing_leaves_no_question_behind() -> None:
    asked = []

    class Hangs(FakeObservatory):
        async def agents(self, since: int) -> AgentTable:
            asked.append(asyncio.current_task())
            await asyncio.sleep(60)
            return await super().agents(since)

    found = Shared(Hangs(5))
    waiting = [asyncio.create_task(found.agents(0, fresh=fresh)) for fresh in (False, True)]
    while len(asked) < 2:  # noqa: ASYNC110  # a number, not ours to be told of
        await asyncio.sleep(0.01)
    await found.close()
    assert all(task is not None and task.done() for task in asked)
    assert all(isinstance(each, PoolError) for each in await asyncio.gather(*waiting, return_exceptions=True))


@async_test
async def test_who_asks_the_same_waits_for_the_same() -> None:
    source = Slow()
    found = Shared(source)
    first, *others = (asyncio.create_task(found.agent("a")) for _ in range(5))
    await asked(source, 1)
    first.cancel()
    source.may.set()
    assert len({answer.data for answer in await asyncio.gather(*others)}) == 1 and source.asked == found.collections == 1
    await found.close()


@async_test
async def test_so_many_are_asked_at_once_and_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_WAITING", 20)
    source = Slow()
    found = Shared(source)
    waiting = [asyncio.create_task(found.agent(f"a{number}")) for number in range(20)]
    await asked(source, shared.AT_ONCE)
    with pytest.raises(PoolError, match="too many questions") as caught:
        await found.agent("one more")
    assert caught.value.code == "unavailable" and source.asked == shared.AT_ONCE
    source.may.set()
    await asyncio.gather(*waiting, found.agent("a0"))
    assert source.most == shared.AT_ONCE and source.asked == 20
    await found.close()


@async_test
async def test_few_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "FRESH", 60.0)
    source = Slow()
    source.may.set()
    found = Shared(source)
    for number in range(2 * shared.MAX_KEPT):
        await found.agent(f"a{number}")
    assert len(found._kept) == shared.MAX_KEPT and ("agent", "a0") not in found._kept
    await found.close()


@async_test
async def test_a_source_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "COLLECT_SECONDS", 0.05)
    found = Shared(Slow())
    with pytest.raises(PoolError, match="did not answer within") as caught:
        await found.agent("a")
    assert caught.value.code == "unavailable"
    await found.close()
