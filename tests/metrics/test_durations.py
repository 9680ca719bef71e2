"""What takes agents time is counted where it happens, once for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from agentfw import Agent, hookimpl
from agentfw.agents import ExitReport
from agentfw.histograms import WARM, Histogram, warmup_bars
from agentfw.runtime import Runtime
from agentfw.testing import FakeServer, Response, fetch, make_agent, running
from agentfw_inspect import Config as InspectConfig
from agentfw_inspect import Plugin as Inspect

from ..core.support import async_test
from .support import of, scrape


class Slow:
    """Names take 30 ms, as one that resolves them would."""

    @hookimpl
    async def resolve(self) -> None:
        await asyncio.sleep(0.03)


def counted(runtime: Runtime, metric: str) -> tuple[float | None, float | None]:
    """Observations, and of these those of at most 25 ms."""
    found = scrape(runtime.statistics())
    return of(found, f"agentfw_{metric}_count"), of(found, f"agentfw_{metric}_bucket", le="0.025")


@async_test
async def test_names_connections_and_first_requests() -> None:
    agent = make_agent("one")
    async with running(Slow(), FakeServer()) as runtime:
        runtime.program_began(agent, 0.5, 0.004)
        assert counted(runtime, "vm_wait_duration_seconds") == (1, 0) and counted(runtime, "dispatch_duration_seconds") == (1, 1)
        assert counted(runtime, "first_request_duration_seconds")[0] == 0
        begun = time.perf_counter()
        for _ in range(3):
            assert (await fetch(runtime, "https://api.example/", agent=agent)).status == 200
        passed = time.perf_counter() - begun
        assert counted(runtime, "dns_question_duration_seconds") == (3, 0)
        assert counted(runtime, "connect_duration_seconds")[0] == 3
        assert counted(runtime, "first_request_duration_seconds")[0] == 1
        found = scrape(runtime.statistics())
        names, connects = (of(found, f"agentfw_{what}_duration_seconds_sum") for what in ("dns_question", "connect"))
        assert names is not None and connects is not None and names + connects <= passed, "one after the other, not both in one"
        labels = {"plugin": "Slow", "hook": "resolve"}
        assert of(found, "agentfw_hook_duration_seconds_count", **labels) == 3
        assert of(found, "agentfw_hook_duration_seconds_bucket", le="0.01", **labels) == 0
        assert of(found, "agentfw_hook_duration_seconds_sum", **labels) >= 0.09  # type: ignore[operator]


@async_test
async def test_bytes_of_agents_that_ended_stay_counted() -> None:
    def carried(values: Mapping[str, float]) -> tuple[float, float]:
        return values["core.bytes_up"], values["core.bytes_down"]

    agent = make_agent("one")
    async with running(FakeServer(lambda request: Response(200, {}, b"x" * 10_000))) as runtime:
        assert "core.bytes_up" not in runtime.statistics()
        await fetch(runtime, "https://api.example/", agent=agent)
        before = carried(runtime.statistics())
        assert before[0] > 100 and before[1] > 10_000
        runtime.agent_exited(agent, ExitReport("code"))
        assert carried(runtime.statistics()) == before
        await fetch(runtime, "https://api.example/", agent=make_agent("two"))
        assert carried(runtime.statistics())[1] > 2 * 10_000


@async_test
async def test_nothing_is_kept_of_agents_that_never_asked() -> None:
    async with running(FakeServer()) as runtime:
        for number in range(3):
            agent = Agent(str(number), "a")
            runtime.program_began(agent, 0, 0)
            runtime.agent_exited(agent, ExitReport("code"))
        runtime.connected(agent, 0.001)
        assert not runtime._silent and counted(runtime, "first_request_duration_seconds")[0] == 0


@async_test
async def test_model_calls() -> None:
    body = (
        b'{"id":"x","object":"chat.completion","model":"gpt-4o","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}'
    )
    server = FakeServer(lambda request: Response(200, {"content-type": "application/json"}, body))
    async with running(Inspect(InspectConfig()), server) as runtime:
        await fetch(runtime, "https://api.openai.com/v1/chat/completions", method="POST", body=b'{"model":"gpt-4o"}')
        found = scrape(runtime.statistics())
        assert of(found, "agentfw_model_calls_total") == of(found, "agentfw_model_call_duration_seconds_count") == 1
        assert of(found, "agentfw_model_first_token_duration_seconds_count") == 0, "it was not streamed"
        assert of(found, "agentfw_model_tokens_total", direction="input") == 7


def test_bars_of_warm_ups() -> None:
    """Fifty of 100 ms, whatever the buckets below and above."""
    found = Histogram(WARM)
    for seconds in (0.0, 0.02, 0.1, 0.11, 0.2, 0.95, 4.85, 4.9, 4.91, 400.0):
        found.observe(seconds)
    bars = warmup_bars(found.statistics("engine.warmup_seconds"))
    assert {index: count for index, count in enumerate(bars) if count} == {0: 3, 1: 2, 9: 1, 48: 2, 49: 2} and len(bars) == 50
    assert warmup_bars({}) == [0] * 50
