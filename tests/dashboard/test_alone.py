"""`agentfw run --plugins ...,dashboard`: one process sees what a pool's router and workers see together."""

from __future__ import annotations

import time

import pytest
from agentfw import Agent
from agentfw.agents import ExitReport
from agentfw.pool.jobs import PoolError
from agentfw.reports import DispatchReport
from agentfw.testing import make_runtime
from agentfw_dashboard import Config, Plugin, observatory
from agentfw_vmm import Sight

from tests import sights
from tests.core.support import async_test
from tests.pool import fake_work
from tests.pool.routers import until


@async_test
async def test_one_process_tells_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observatory, "FRESH", 0.0)
    monkeypatch.setattr(observatory, "GAUGES_SECONDS", 0.0)
    monkeypatch.setattr(observatory, "TICK", 0.02)
    plugin = Plugin(Config(listen=""))
    runtime = make_runtime(plugin)
    await runtime.start()
    try:
        seen = plugin.observatory
        assert seen is not None
        one, two = Agent("9-1", "agent-1", {"team": "red"}), Agent("9-2", "agent-2")
        for agent in (one, two):
            await runtime.admit(agent)
            runtime.plugins.dispatched(agent, DispatchReport(job="", queued=0.5, dispatch=0.002, began=time.perf_counter()))
        for what, times in (("ask", 2), ("get", 3), ("call", 1), ("deny", 4), ("connect", 1)):
            fake_work.do(runtime, one, what, times)
        runtime.traffic(one).up += 500
        story = await seen.agent("9-1")
        assert story is not None and story.row.requests == 3, "what it has just done is known, though plugins are told later"
        first = await seen.agents(0)
        assert {row.id: (row.name, row.state) for row in first.rows} == {
            "9-1": ("agent-1", "running"),
            "9-2": ("agent-2", "running"),
        }
        told = await seen.overview()
        assert (told.workers, told.running, told.requests, told.denials, told.dns_questions) == (1, 2, 3, 4, 2)
        assert told.bytes_up == 500 and told.cost == 0.25 and told.dispatch.count == 2
        report = sights.report(Sight(), memory_committed=64 << 20, exits=9)
        runtime.can_look(two, None, lambda: report)
        changed = await seen.agents(first.since)
        runtime.can_look(two, None)
        assert [(row.cpu_seconds, row.memory, row.exits) for row in changed.rows if row.id == "9-2"] == [(0.5, 64 << 20, 9)]
        runtime.agent_exited(one, ExitReport("signal", signal=11, text="SIGSEGV at <b>0</b>"))
        second = await seen.agents(changed.since)
        assert [(row.id, row.state, row.how, row.bytes_up) for row in second.rows] == [("9-1", "done", "signal 11", 500)]
        ended = await seen.agent("9-1")
        assert ended is not None and (ended.exit_kind, ended.exit_signal) == ("signal", 11)
        assert ended.timeline[-1].kind == "exit" and not ended.timeline[-1].ok
        assert (await seen.overview()).failed == 1 and await seen.agent("nobody") is None
        loaded = await seen.loaded()
        assert [each.name for each in loaded.plugins] == ["dashboard"]
        await until(lambda: any(sample.running == 1 for sample in seen.history.samples))
        with pytest.raises(PoolError):
            await plugin.answer_api("nothing", {})
    finally:
        await runtime.stop()


@async_test
async def test_another_table_counts_at_once() -> None:
    plugin = Plugin(Config(listen=""))
    runtime = make_runtime(plugin)
    await runtime.start()
    try:
        for number in range(10):
            agent = Agent(f"9-{number}", "x")
            await runtime.admit(agent)
            runtime.agent_exited(agent, ExitReport("code"))
        assert runtime.statistics()["dashboard.ended"] == 10
        plugin.reconfigure(Config(listen="", ended=3))()
        assert runtime.statistics()["dashboard.ended"] == 3
        plugin.reconfigure(Config(listen="", memory="1K"))()
        assert runtime.statistics()["dashboard.ended"] == 0 and runtime.statistics()["dashboard.forgotten"] == 10
    finally:
        await runtime.stop()
