"""A pool's story, put together from its workers': true, whatever becomes of them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agentfw.mock_dns import MockDNS
from agentfw.pool.authority import RouterLink
from agentfw.pool.jobs import PoolError
from agentfw.pool.router import Router
from agentfw.views import AgentRow, AgentStory, AgentTable, Overview
from agentfw_dashboard import Config, Plugin, observatory, rows
from agentfw_dashboard.observatory import Observatory
from agentfw_dashboard.rows import Rows

from tests.pool.routers import finish, job, pool_test, running, until, until_running

WORK = [["did", "ask", 3], ["did", "get", 4], ["did", "call", 2], ["did", "deny", 5], ["did", "connect", 1]]


@asynccontextmanager
async def watched(**pool: Any) -> AsyncIterator[tuple[Router, Observatory]]:
    tables = {"dashboard": {"listen": "", **pool.pop("dashboard", {})}}
    async with running(plugins=("dashboard",), tables=tables, **pool) as router:
        assert router.runtime is not None
        plugin = router.runtime.plugins.get("dashboard")
        assert isinstance(plugin, Plugin) and plugin.observatory is not None
        yield router, plugin.observatory


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observatory, "FRESH", 0.0)
    monkeypatch.setattr(observatory, "GAUGES_SECONDS", 0.0)


@pytest.mark.parametrize("local", [False, True], ids=["processes", "local"])
def test_a_pool_is_seen_as_it_is(local: bool) -> None:
    @pool_test
    async def body() -> None:
        async with watched(workers=1 if local else 3, size=12, local=local) as (router, seen):
            before = time.time()
            infos = [await router.submit(job(*WORK, ["sleep", 0.05], ["exit", number % 2])) for number in range(12)]
            done = [await router.wait(info.id) for info in infos]
            assert all(info.state == "done" for info in done)
            told = await seen.overview()
            assert isinstance(told, Overview) and before <= told.time and told.started <= told.time
            assert (told.workers, told.workers_missing, told.running, told.queued) == (1 if local else 3, 0, 0, 0)
            assert (told.done, told.failed) == (12, 6) and told.memory > 10 << 20
            assert (told.dns_questions, told.requests, told.model_calls, told.denials) == (36, 48, 24, 60)
            assert (told.input_tokens, told.output_tokens, told.cost, told.currency) == (24 * 12, 24 * 5, 24 * 0.25, "USD")
            assert told.dispatch.count == 12 and told.dispatch.p50 == pytest.approx(0.002, rel=0.02)
            assert told.connect.count == 48 and told.connect.p99 == pytest.approx(0.004, rel=0.02)
            assert told.first_call.count == 12
            assert len(told.recent_denials) == 12 and all(denial.count == 5 for denial in told.recent_denials)
            assert {denial.agent_id for denial in told.recent_denials} == {info.id for info in infos}

            table = await seen.agents(0)
            assert isinstance(table, AgentTable) and table.whole and table.total == 12
            for row, info in zip(sorted(table.rows, key=lambda row: row.id), sorted(done, key=lambda info: info.id), strict=True):
                assert (row.id, row.name, row.state, row.worker) == (info.id, info.name, "done", info.worker)
                assert info.result is not None and row.how == f"code {info.result.code}"
                assert (row.questions, row.requests, row.model_calls, row.denials, row.connections) == (3, 4, 2, 5, 1)
                assert row.last == "denied https://evil.example:443 by policy: nobody" and row.last_at is not None
            again = await seen.agents(table.since)
            assert not again.whole and not again.rows and not again.gone

            story = await seen.agent(infos[0].id)
            assert isinstance(story, AgentStory) and story.row.id == infos[0].id
            kinds = [step.kind for step in story.timeline]
            assert kinds[0] == "queued" and kinds.count("dispatch") == kinds.count("exit") == 1
            assert kinds.count("resolve") == 3 and kinds.count("response") == kinds.count("request") == 4
            assert kinds.count("model_call") == kinds.count("first_token") == 2 and kinds.count("denied") == 1
            assert [(each.name, each.answer) for each in story.names] == [(f"n{n}.example", "192.0.2.7") for n in range(3)]
            (place,) = [each for each in story.destinations if "api" in each.destination]
            assert (place.requests, place.connections, place.bytes_down) == (4, 1, 4000)
            assert story.exit_kind == "code" and story.exit_code == 0 and not story.dropped
            assert await seen.agent("nobody") is None and await seen.agent("") is None

    body()


@pool_test
async def test_names_that_the_routers_cache_had_are_hits() -> None:
    async with MockDNS({"api.test": "192.0.2.1"}) as server:
        tables = {"dashboard": {"listen": ""}, "dns": {"upstream": [server.address]}}
        async with running(plugins=("dns", "dashboard"), workers=3, size=12, tables=tables) as router:
            assert router.runtime is not None
            plugin = router.runtime.plugins.get("dashboard")
            assert isinstance(plugin, Plugin) and plugin.observatory is not None
            await finish(router, ["resolve", "api.test"])
            infos = [await router.submit(job(["sleep", 0.1], ["resolve", "api.test"])) for _ in range(9)]
            assert {(await router.wait(info.id)).worker for info in infos} == {0, 1, 2}
            metrics = await router.metrics()
            told = await plugin.observatory.overview()
        assert server.asked("api.test") == 1 and metrics["dns.misses"] == 3 and told.dns_hits + told.dns_misses == 10
        assert told.dns_misses == 1 + metrics["dns.coalesced"], "two of the workers had it from their router"


@pool_test
async def test_only_what_changed_is_told_again() -> None:
    async with watched(workers=2, size=8, keep_jobs=3) as (router, seen):
        router.book._moment = 0.0
        one = await router.submit(job(["did", "get", 1], ["sleep", 60]))
        two = await router.submit(job(["sleep", 60]))
        await until_running(router, one.id, two.id)
        first = await seen.agents(0)
        assert {row.id: row.state for row in first.rows} == {one.id: "running", two.id: "running"}
        three = await router.submit(job(["did", "ask", 1], ["exit", 0]))
        await router.wait(three.id)
        second = await seen.agents(first.since)
        assert not second.whole and second.total == 3 and {row.id for row in second.rows} == {three.id}
        assert {row.id for row in (await seen.agents(first.since)).rows} == {three.id}, "it was not told to somebody else"
        await router.signal(one.id, 9)
        await router.wait(one.id)
        third = await seen.agents(second.since)
        assert [(row.id, row.state, row.how, row.requests) for row in third.rows] == [(one.id, "done", "killed", 1)]
        for _ in range(3):
            await finish(router, ["exit", 0])
        fourth = await seen.agents(third.since)
        assert set(fourth.gone) == {one.id, three.id} and len(fourth.rows) == 3 and fourth.total == 4
        for strange in (1, fourth.since + 1000, (1 << 62)):
            assert (await seen.agents(strange)).whole


def test_who_looked_before_what_is_remembered_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_GONE", 3)
    there = [AgentRow(id=f"a{number}", name="x") for number in range(10)]
    found = Rows()
    found.set(there)
    tables = [found.table(0)]
    while there:
        there.pop()
        found.set(there)
        tables.append(found.table(tables[-1].since))
        assert [table.gone for table in tables[1:]][-1] == [f"a{len(there)}"] and not tables[-1].whole
    assert [found.table(table.since).whole for table in tables[:7]] == [True] * 7
    assert [found.table(table.since).gone for table in tables[7:]] == [["a2", "a1", "a0"], ["a1", "a0"], ["a0"], []]


@pool_test
async def test_another_table_shows_other_rows_at_once() -> None:
    async with watched(workers=1) as (router, seen):
        for _ in range(3):
            await finish(router, ["exit", 0])
        first = await seen.agents(0)
        assert first.total == 3
        assert router.runtime is not None
        plugin = router.runtime.plugins.get("dashboard")
        assert isinstance(plugin, Plugin)
        plugin.reconfigure(Config(listen="", ended=1))()
        later = await seen.agents(first.since)
        assert later.total == 1 and len(later.gone) == 2


@pool_test
async def test_rows_that_a_worker_told_too_late_are_told_again() -> None:
    async with watched(workers=1) as (router, seen):
        await finish(router, ["exit", 0])
        first = await seen.agents(0)
        info = await finish(router, ["did", "get", 3], ["exit", 0])
        link = seen._link
        assert link is not None
        with pytest.MonkeyPatch.context() as patch:

            async def lost(plugin: str, body: bytes, seconds: float, only: int | None = None) -> dict[int, bytes]:
                await RouterLink.ask_workers(link, plugin, body, seconds, only=only)
                return {}

            patch.setattr(link, "ask_workers", lost)
            await seen.agents(first.since)
        await seen.overview()  # the next word of its is about totals
        assert {row.id: row.requests for row in (await seen.agents(0)).rows}[info.id] == 3


@pool_test
async def test_what_dead_workers_counted_stays_counted() -> None:
    async with watched(workers=2, size=8) as (router, seen):
        infos = [await router.submit(job(["did", "get", 10], ["sleep", 0.1], ["exit", 0])) for _ in range(4)]
        for info in infos:
            await router.wait(info.id)
        assert (await seen.overview()).requests == 40
        await seen.agents(0)
        os.kill(router.workers[0].pid, signal.SIGKILL)
        await until(lambda: router.workers[0].restarts == 1 and router.workers[0].state == "ready")
        told = await seen.overview()
        assert told.requests == 40 and told.workers_missing == 0 and told.connect.count == 40
        infos = [await router.submit(job(["did", "get", 1], ["sleep", 0.1], ["exit", 0])) for _ in range(4)]
        for info in infos:
            await router.wait(info.id)
        assert (await seen.overview()).requests == 44
        stories = [await seen.agent(info.id) for info in infos]
        assert all(story is not None and story.row.requests == 1 for story in stories)


@pool_test
async def test_a_worker_that_is_lost_runs_nothing_though_the_next_does_not_come() -> None:
    async with watched(workers=2, size=8) as (router, seen):
        info = await router.submit(job(["did", "get", 1], ["sleep", 60]))
        await until_running(router, info.id)
        await seen.overview()
        assert (seen._workers.totals().agents, seen._workers.totals().tls_agents) == (1, 1)
        number = router.book.get(info.id).worker
        assert number is not None
        with pytest.MonkeyPatch.context() as patch:

            def none(theirs: object) -> None:
                raise OSError(12, "no memory")

            patch.setattr("agentfw.pool.workers.start_process", none)
            os.kill(router.workers[number].pid, signal.SIGKILL)
            await until(lambda: router.workers[number].restarts > 0)
            told = await seen.overview()
            assert (told.workers_missing, told.requests, told.tls_agents) == (1, 1, 0)
            assert seen._workers.totals().agents == 0


@pool_test
async def test_jobs_that_failed_are_those_that_the_router_knows_to_have() -> None:
    """Also those that no worker could tell of; attempts that are made good again are not."""
    async with watched(workers=1, size=2) as (router, seen):
        one = await router.submit(job(["sleep", 0.3], ["exit", 0], retries=1))
        await until_running(router, one.id)
        router.workers[0].replace("test")
        assert (await router.wait(one.id)).attempt == 2
        lost = [await router.submit(job(["sleep", 60])) for _ in range(2)]
        await until_running(router, *(info.id for info in lost))
        waits = await router.submit(job(["exit", 0]))
        await router.signal(waits.id, 9)
        router.workers[0].replace("test")
        for info in (*lost, waits):
            await router.wait(info.id)
        await until(lambda: router.workers[0].state == "ready")
        told = await seen.overview()
        assert (told.done, told.failed) == (4, 3)


@pool_test
async def test_a_worker_that_hangs_is_waited_for_once() -> None:
    """Not for each question after the other: who looks would take the page for dead."""
    async with watched(workers=1) as (router, seen):
        await finish(router, ["exit", 0])
        link, asked = seen._link, asyncio.Event()
        assert link is not None
        begun: set[str] = set()
        together = {"describe", "metrics"}, {"usage"}
        with pytest.MonkeyPatch.context() as patch:

            async def hangs(plugin: str, body: bytes, seconds: float, only: int | None = None) -> dict[int, bytes]:
                await asked.wait()
                return await RouterLink.ask_workers(link, plugin, body, seconds, only=only)

            for name in set().union(*together):
                method = getattr(router, name)

                async def noted(name: str = name, method: Any = method) -> Any:
                    begun.add(name)
                    if begun in together:
                        asked.set()
                    return await method()

                patch.setattr(router, name, noted)
            patch.setattr(link, "ask_workers", hangs)
            assert (await seen.overview()).workers_missing == 0
            begun.clear()
            asked.clear()
            assert (await seen.agents(0)).total == 1


@pool_test
async def test_a_second_attempt_is_the_jobs() -> None:
    async with watched(workers=1, size=4) as (router, seen):
        info = await router.submit(job(["did", "get", 2], ["sleep", 0.2], ["exit", 3], retries=1))
        await until_running(router, info.id)
        router.workers[0].replace("test")
        done = await router.wait(info.id)
        assert done.attempt == 2 and done.result is not None and done.result.code == 3
        story = await seen.agent(info.id)
        assert story is not None and story.row.requests == 2 and story.exit_code == 3
        assert [step.kind for step in story.timeline].count("dispatch") == 1
        (row,) = (await seen.agents(0)).rows
        assert row.requests == 2


@pool_test
async def test_a_hanging_worker_is_missing_and_the_others_are_told() -> None:
    async with watched(workers=2, size=8) as (router, seen):
        for _ in range(2):
            await finish(router, ["did", "get", 1], ["exit", 0])
        await seen.overview()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(observatory, "ANSWER_SECONDS", 1.0)
            os.kill(router.workers[0].pid, signal.SIGSTOP)
            try:
                while (told := await seen.overview()).silent != [0]:  # it stops soon; the other one may be slow, too
                    pass
            finally:
                os.kill(router.workers[0].pid, signal.SIGCONT)
        assert told.workers_missing == 1 and told.silent == [0] and told.requests == 2


@pool_test
async def test_the_api_tells_it() -> None:
    async with watched(workers=1) as (router, _):
        info = await finish(router, *WORK, ["exit", 0])
        assert isinstance(await router.plugin("dashboard", "overview"), Overview)
        assert (await router.plugin("dashboard", "agents", {"since": "0"})).total == 1
        assert (await router.plugin("dashboard", "agent", {"id": info.id})).row.id == info.id
        loaded = await router.plugin("dashboard", "loaded")
        assert [plugin.name for plugin in loaded.plugins] == ["dashboard"]
        assert "exchange_end" in loaded.plugins[0].hooks and "listen" in loaded.plugins[0].table
        for what, query, code in (
            ("agents", {"since": "-1"}, "bad_request"),
            ("agents", {"since": "\u0663"}, "bad_request"),
            ("agents", {"since": "9" * 30}, "bad_request"),
            ("agents", {"x": "1"}, "bad_request"),
            ("overview", {"since": "1"}, "bad_request"),
            ("agent", {"id": "nobody"}, "not_found"),
            ("agent", {}, "not_found"),
            ("agent", {"id": "x" * 100_000}, "not_found"),
            ("nothing", {}, "not_found"),
        ):
            with pytest.raises(PoolError) as caught:
                await router.plugin("dashboard", what, query)
            assert caught.value.code == code, what


@pool_test
async def test_the_history_goes_on_by_itself() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observatory, "TICK", 0.05)
        async with watched(workers=1) as (router, seen):
            info = await router.submit(job(["did", "get", 100], ["sleep", 60]))
            await until(lambda: any(sample.requests > 0 and sample.running == 1 for sample in seen.history.samples))
            counted = sum(sample.requests for sample in seen.history.samples)
            assert counted > 0
            await router.signal(info.id, 9)
            await until(lambda: seen.history.samples[-1].running == 0)


@pool_test
async def test_memory_that_nobody_had_measured_is_not_in_the_history() -> None:
    """It is measured while somebody looks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observatory, "TICK", 0.05)
        async with watched(workers=1) as (_, seen):
            while not any(sample.memory for sample in seen.history.samples):
                await seen.overview()
                await asyncio.sleep(0.01)
            await until(lambda: not seen.history.samples[-1].memory)
