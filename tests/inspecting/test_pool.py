"""Budgets of a run and of labels' values, counted by several workers of a pool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from agentfw.errors import AgentfwError
from agentfw.pool.jobs import PoolError
from agentfw.testing import make_agent
from agentfw_inspect import BudgetConfig, Config, Plugin
from agentfw_inspect.pool import FIELDS, FLYING_SECONDS, MAX_WORKERS, Ledger, Sharing, Told, decode, encode
from hypothesis import given
from hypothesis import strategies as st

from tests.core.support import async_test
from tests.pool.routers import until

from .test_plugin import Setup, ask, chat, model, refusal


class _Link:
    def __init__(self, router: Plugin) -> None:
        self.router = router
        self.gone = False
        self.asked = 0

    async def ask(self, plugin: str, body: bytes) -> bytes:
        if self.gone:
            raise PoolError("unavailable", "the link was closed")
        assert plugin == "inspect"
        self.asked += 1
        return await self.router.answer_pool(body)


@asynccontextmanager
async def workers(*budgets: BudgetConfig, count: int = 2, **options: Any) -> AsyncIterator[tuple[_Link, list[Setup]]]:
    config = Config(budget=budgets)
    link = _Link(Plugin(config))
    async with contextlib.AsyncExitStack() as stack:
        setups = [await stack.enter_async_context(model(config, **options)) for _ in range(count)]
        for setup in setups:
            setup.plugin._sharing = Sharing(cast(Any, link))
        yield link, setups


@async_test
async def test_a_budget_of_the_run_is_the_pools() -> None:
    async with workers(BudgetConfig(per="run", calls=5), BudgetConfig(calls=4), count=3) as (_, setups):
        got = [await ask(setups[number % 3], chat(), agent=make_agent(f"a{number}")) for number in range(8)]
        assert [status for status, _ in got] == [200] * 5 + [403] * 3
        assert {refusal(body) for _, body in got[5:]} == {"inspect: 5 calls per run"}
        assert [setup.plugin.statistics()["calls_refused"] for setup in setups] == [1, 1, 1]


@async_test
async def test_a_budget_of_a_label_is_the_pools_and_each_value_has_its_own() -> None:
    async with workers(BudgetConfig(per="label:team", tokens=16)) as (_, setups):
        for team, statuses in (("red", [200, 200, 403, 403]), ("blue", [200, 200, 403, 403])):
            agent = make_agent(team, team=team)
            assert [(await ask(setup, chat(), agent=agent))[0] for setup in setups * 2] == statuses
        assert (await ask(setups[0], chat(), agent=make_agent("nobody")))[0] == 200, "without the label there is no budget"


@async_test
async def test_calls_in_flight_elsewhere_count() -> None:
    async with workers(BudgetConfig(per="run", calls=2), latency=0.3) as (_, setups):
        first = asyncio.ensure_future(ask(setups[0], chat()))
        await until(lambda: setups[0].plugin._run.in_flight == 1)
        await setups[0].plugin._sharing.refresh(())  # type: ignore[union-attr]
        setups[0].plugin._sharing.tell(setups[0].plugin._shared_by(make_agent()))  # type: ignore[union-attr]
        await until(lambda: not cast(Any, setups[0].plugin._sharing)._pending)
        second = asyncio.ensure_future(ask(setups[1], chat()))
        await until(lambda: setups[1].plugin._run.in_flight == 1)
        assert (await ask(setups[1], chat()))[0] == 403
        assert [(await each)[0] for each in (first, second)] == [200, 200]


@async_test
async def test_without_the_router_nothing_is_let_in() -> None:
    async with workers(BudgetConfig(per="run", calls=5)) as (link, setups):
        link.gone = True
        status, _ = await ask(setups[0], chat())
        assert status >= 400 and setups[0].plugin._run.calls == 0
        link.gone = False
        assert (await ask(setups[0], chat()))[0] == 200
    async with workers(BudgetConfig(calls=5)) as (link, setups):
        link.gone = True
        assert (await ask(setups[0], chat()))[0] == 200, "an agent's own budget is counted where it is"
        assert link.asked == 0


NUMBERS = st.lists(st.integers(0, 1000), min_size=len(FIELDS), max_size=len(FIELDS))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), NUMBERS, st.floats(0, 1000)), max_size=30))
def test_each_is_told_what_the_others_counted(told: list[tuple[str, str, list[int], float]]) -> None:
    now = 0.0
    ledger = Ledger(lambda: now)
    known: dict[tuple[str, str], tuple[float, list[int]]] = {}
    for worker, whose, numbers, seconds in told:
        now += seconds
        known[worker, whose] = now, numbers
        answer = decode(ledger.answer(encode(Told(worker, {whose: list(numbers)}))))
        others = [known[each, whose] for each in "abc" if each != worker and (each, whose) in known]
        wanted = [sum(theirs[place] for when, theirs in others if place < 4 or now - when <= FLYING_SECONDS)
                  for place in range(len(FIELDS))]  # fmt: skip
        assert answer.rows == {whose: wanted}


def test_restarts_do_not_make_the_ledger_grow_nor_forget() -> None:
    ledger = Ledger(lambda: 0.0)
    for number in range(3 * MAX_WORKERS):
        ledger.answer(encode(Told(str(number), {"all": [1] * len(FIELDS)})))
    assert len(ledger._rows["all"]) <= MAX_WORKERS
    answer = decode(ledger.answer(encode(Told("me", {"all": [0] * len(FIELDS)}))))
    assert answer.rows["all"][:4] == [3 * MAX_WORKERS] * 4


@pytest.mark.parametrize("numbers", [[], [1], [-1] * len(FIELDS), [float("nan")] * len(FIELDS), [1] * (len(FIELDS) + 1)])
def test_nonsense_is_refused(numbers: list[float]) -> None:
    ledger = Ledger()
    for body in (encode(Told("w", {"all": list(numbers)})), b"", b"\x92\xa1w\xc0"):
        with pytest.raises((ValueError, AgentfwError)):
            ledger.answer(body)
    assert not ledger._rows.get("all")
