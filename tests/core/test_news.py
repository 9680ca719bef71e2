"""What plugins may be told later: nothing is lost, nothing comes out of order, and never after an agent's end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentfw import Agent, hookimpl
from agentfw.agents import ExitReport
from agentfw.config import Config
from agentfw.plugins import news
from agentfw.plugins.fitting import TELLING
from agentfw.reports import AuditEvent, ExchangeReport
from agentfw.runtime import Runtime
from agentfw.testing import make_agent, make_runtime

from tests.pool.fake_work import denial, exchange
from tests.pool.routers import until

from .support import async_test


class Watch:
    """Told later, but of `flow_end`."""

    later_hooks = frozenset({"exchange_end", "audit", "model_call"})

    def __init__(self, name: str = "watch", fails: bool = False) -> None:
        self.name = name
        self.fails = fails
        self.told: list[Any] = []
        self.runtime: Runtime | None = None

    @hookimpl
    def exchange_end(self, agent: Agent, exchange: ExchangeReport) -> None:
        self.told.append(exchange.exchange)
        if self.fails:
            raise ValueError("no")
        if self.runtime is not None and exchange.exchange < 100:  # what comes of news is news, too
            self.runtime.audit(denial(agent))

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        self.told.append(event.rule)

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        self.told.append("exit")

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return {"told": len(self.told)}


class AtOnce(Watch):
    later_hooks = frozenset()


async def started(*plugins: object) -> Runtime:
    runtime = make_runtime(*plugins)
    await runtime.start()
    return runtime


@async_test
async def test_news_wait_and_come_in_order_before_the_end() -> None:
    watch, other, failing = Watch(), AtOnce("other"), Watch("failing", fails=True)
    runtime = await started(watch, failing, other)
    agent = make_agent()
    for number in range(3):
        runtime.plugins.exchange_end(agent, exchange(exchange=number))
    assert other.told == [0, 1, 2] and not watch.told
    runtime.agent_exited(agent, ExitReport("code"))
    assert watch.told == failing.told == other.told == [0, 1, 2, "exit"]
    runtime.plugins.exchange_end(agent, exchange(exchange=3))
    assert runtime.statistics()["watch.told"] == 5, "whoever counts knows all"
    assert runtime.statistics()["hooks.failing.exchange_end.errors"] == 4
    runtime.plugins.exchange_end(agent, exchange(exchange=4))
    await runtime.stop()
    assert watch.told[-1] == 4, "before the end"
    runtime.plugins.exchange_end(agent, exchange(exchange=5))
    assert watch.told[-1] == 5, "nobody would tell it later"


@async_test
async def test_what_happened_before_a_reload_is_told_before_it() -> None:
    class Changes(Watch):
        config_type = dict

        def reconfigure(self, config: object) -> Callable[[], None]:
            return lambda: self.told.append("reloaded")

    watch = Changes()
    runtime = await started(watch)
    runtime.plugins.exchange_end(make_agent(), exchange(exchange=0))
    assert not watch.told
    runtime.plugins.reload(Config({"watch": {"key": 1}}))
    runtime.plugins.exchange_end(make_agent(), exchange(exchange=1))
    await runtime.stop()
    assert watch.told == [0, "reloaded", 1]


@async_test
async def test_news_come_by_themselves() -> None:
    watch = Watch()
    runtime = await started(watch)
    watch.runtime = runtime
    runtime.plugins.exchange_end(make_agent(), exchange(exchange=7))
    async with asyncio.timeout(10):
        await until(lambda: len(watch.told) == 2)
    assert watch.told == [7, "policy: nobody"]
    await runtime.stop()


@async_test
async def test_not_many_wait() -> None:
    watch = Watch()
    runtime = await started(watch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(news, "SECONDS", 3600.0)
        most = 0
        for number in range(10 * news.MOST):
            runtime.plugins.exchange_end(make_agent(), exchange(exchange=number + 100))
            most = max(most, number + 1 - len(watch.told))
    assert 0 < most <= news.MOST and len(watch.told) >= 9 * news.MOST
    await runtime.stop()
    assert watch.told == list(range(100, 100 + 10 * news.MOST))


@async_test
async def test_news_of_news_without_end_hold_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Echo(Watch):
        @hookimpl
        def audit(self, event: AuditEvent) -> None:
            if len(self.told) < 10_000:  # or this test would not end, either
                self.told.append(event.rule)
                assert self.runtime is not None
                self.runtime.audit(event)

    echo = Echo("echo")
    echo.runtime = runtime = await started(echo)
    for _ in range(2):
        runtime.audit(denial(make_agent()))
        runtime.agent_exited(make_agent(), ExitReport("code"))
    assert echo.told == [*["policy: nobody"] * news.ROUNDS, "exit"] * 2
    assert caplog.text.count("more news, without end: dropped (echo.audit)") == 1
    await runtime.stop()


def test_the_documentation_names_all_that_can_wait() -> None:
    text = (Path(__file__).parents[2] / "docs/plugins.md").read_text()
    found = re.search(r"^- Hooks that only tell \(([^)]*)\)", text, re.MULTILINE)
    assert found is not None and set(re.findall(r"`(\w+)`", found[1])) == TELLING
