"""Requests, rates, bytes, connections: of an agent, of a profile's agents together, under a rule."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from math import inf, nan

import pytest
from agentfw import Agent, ConfigError, Denied, Destination, ExitReport, hookimpl
from agentfw.reports import ExchangeReport
from agentfw.testing import FakeServer, PathError, Response, fetch, make_agent, running
from agentfw_native import Config as NativeConfig
from agentfw_native import Plugin as Native
from agentfw_policy.limits import Bucket, parse_size
from hypothesis import given, settings
from hypothesis import strategies as st

from ..core.support import Names, async_test, guest, lookup, serving
from ..core.support import running as running_plain
from .support import AGENT, Clock, asked, policy

A = "https://a.example:443"


def ended(exchange: int) -> ExchangeReport:
    return ExchangeReport(
        exchange=exchange, destination=Destination.make("https", "a.example"), method="GET", target="/", status=200, bytes_up=0,
        bytes_down=0, started=0.0, first_byte=None, seconds=0.0,
    )  # fmt: skip


def test_requests_in_all() -> None:
    plugin = policy(allow=["*"], limits={"requests": 2})
    assert [asked(plugin, "GET /", A) for _ in range(3)] == ["allowed", "allowed", "policy.limits.requests: 2"]
    assert asked(plugin, "GET /", A, make_agent("another")) == "allowed"
    assert plugin.statistics()["limited"] == 1
    assert asked(policy(allow=["*"], limits={"requests": 0}), "GET /", A) == "policy.limits.requests: 0"


def test_what_is_refused_is_not_counted() -> None:
    plugin = policy(allow=["a.example"], rule=[{"action": "deny", "methods": ["PUT"]}], limits={"requests": 1})
    assert asked(plugin, "PUT /", A).startswith("policy.rule") and asked(plugin, "GET /", "https://b.example:443") != "allowed"
    assert asked(plugin, "GET /", A) == "allowed"


def test_rates() -> None:
    clock = Clock()
    plugin = policy(clock, allow=["*"], limits={"requests_per_minute": 60, "burst": 3, "requests_per_second": 2})
    assert [asked(plugin, "GET /", A) for _ in range(4)][2:] == ["allowed", "429 policy.limits.requests_per_minute: 60"]
    clock.now += 0.999
    assert asked(plugin, "GET /", A).startswith("429")
    clock.now += 0.002
    assert [asked(plugin, "GET /", A) for _ in range(2)] == ["allowed", "429 policy.limits.requests_per_minute: 60"]
    state = plugin._state(AGENT)
    assert state.account is not None
    reached = state.account.check(clock.now)
    assert reached is not None and reached.retry_after == pytest.approx(0.999, abs=0.01)


@pytest.mark.parametrize("name", ["requests_per_second", "requests_per_minute"])
@pytest.mark.parametrize("rate", [0.0, -1.0, 5e-324, 1e-310, 1e-9, 1e300, inf, nan])
def test_no_rate_is_so_low_or_high_that_nobody_can_be_told_when_to_try_again(name: str, rate: float) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(limits={name: rate})
    assert caught.value.key == f"limits.{name}"


@pytest.mark.parametrize("name", ["requests_per_second", "requests_per_minute"])
def test_the_lowest_rate(name: str) -> None:
    plugin = policy(allow=["*"], limits={name: 1e-6})
    assert [asked(plugin, "GET /", A) for _ in range(2)] == ["allowed", f"429 policy.limits.{name}: 1e-06"]


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60), st.floats(0.1, 20), st.integers(1, 9))
@settings(deadline=None)
def test_a_rate_is_never_passed(gaps: list[float], rate: float, burst: int) -> None:
    """In no window do more pass than the burst and what the rate gives meanwhile; and to wait as told is enough."""
    now, passed = 100.0, []
    bucket = Bucket(rate, burst, now)
    for gap in gaps:
        now += gap
        wait = bucket.wait(now)
        if wait:
            assert bucket.wait(now + wait * 1.0001 + 1e-9) == 0
        else:
            bucket.take(now)
            passed.append(now)
    for i, first in enumerate(passed):
        for j in range(i, len(passed)):
            assert j - i + 1 <= burst + (passed[j] - first) * rate + 1e-6


def test_concurrent_requests() -> None:
    plugin = policy(allow=["*"], limits={"concurrent_requests": 2})
    assert [asked(plugin, "GET /", A, exchange=n) for n in (1, 2, 3)] == [
        "allowed",
        "allowed",
        "429 policy.limits.concurrent_requests: 2",
    ]
    assert asked(plugin, "GET /", A, exchange=2) == "allowed", "the same request once more, on another connection"
    plugin.exchange_end(ended(3))  # it was refused: nothing to give back
    assert asked(plugin, "GET /", A, exchange=4).startswith("429")
    plugin.exchange_end(ended(1))
    plugin.exchange_end(ended(1))
    assert asked(plugin, "GET /", A, exchange=5) == "allowed" and asked(plugin, "GET /", A, exchange=6).startswith("429")
    assert set(plugin._open) == {2, 5}


def test_limits_of_a_rule_and_of_all_together() -> None:
    plugin = policy(
        allow=["*"],
        rule=[{"action": "allow", "host": "a.example", "paths": ["/v1"], "name": "v1", "limits": {"requests": 1}}],
        shared_limits={"requests": 5},
        profile={"red": {"labels": {"team": "red"}, "extends": "default", "shared_limits": {"requests": 2}}},
    )
    assert asked(plugin, "GET /v1/x", A) == "allowed"
    assert asked(plugin, "GET /v1/y", A) == "policy.rule: v1, limits.requests: 1"
    assert asked(plugin, "GET /v2", A) == "allowed"
    red = [make_agent(f"red-{n}", team="red") for n in range(3)]
    assert [asked(plugin, "GET /v2", A, agent) for agent in red] == [
        "allowed",
        "allowed",
        "policy.profile.red.shared_limits.requests: 2",
    ]
    assert [asked(plugin, "GET /v2", A, make_agent(str(n))) for n in range(2)] == ["allowed", "policy.shared_limits.requests: 5"]


def test_rules_of_one_name_are_counted_apart() -> None:
    rule = {"action": "allow", "name": "same", "methods": ["GET"]}
    hosts = (("a.example", 1), ("b.example", 2), ("b.example", 3))
    plugin = policy(rule=[rule | {"host": host, "limits": {"requests": number}} for host, number in hosts])
    assert asked(plugin, "GET /", A) == "allowed" and asked(plugin, "GET /", A) == "policy.rule: same, limits.requests: 1"
    b = "https://b.example:443"
    assert [asked(plugin, "GET /", b) for _ in range(3)] == ["allowed", "allowed", "policy.rule: same, limits.requests: 2"]


@pytest.mark.parametrize(
    ("text", "size"), [(5, 5), ("5", 5), ("64K", 65536), ("1M", 1 << 20), ("2GiB", 2 << 30), ("1t", 1 << 40)]
)
def test_sizes(text: int | str, size: int) -> None:
    assert parse_size(text) == size
    for bad in ("", "K", "-1", "1.5M", "1E9", True, "9" * 30):
        with pytest.raises(ValueError):
            parse_size(bad)


@async_test
async def test_an_agent_is_told_to_wait() -> None:
    plugin = policy(allow=["a.example"], limits={"requests_per_minute": 1, "bytes_down": "10K"})
    async with running(plugin, FakeServer(lambda request: b"hello")) as runtime:
        agent = make_agent("waits")
        assert (await fetch(runtime, "https://a.example/", agent=agent)).status == 200
        answer = await fetch(runtime, "https://a.example/", agent=agent)
        error = json.loads(answer.body)["error"]
        assert answer.status == 429 and answer.headers.get("retry-after") == "60"
        assert error["type"] == "agentfw_denied" and error["rule"] == "policy.limits.requests_per_minute: 1"
        assert error["plugin"] == "policy" and runtime.traffic(agent).down > 100


@async_test
async def test_bytes_cut_a_stream() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1000)

    plugin = policy(
        allow=["a.example", "b.example"],
        rule=[{"action": "allow", "host": "b.example", "limits": {"bytes_down": "9K"}}],
        limits={"bytes_down": "50K"},
    )
    async with running(plugin, FakeServer(lambda request: Response(body=endless()))) as runtime:
        agent = make_agent("much")
        traffic = runtime.traffic(agent)
        for host, limit in (("b.example", 9 << 10), ("a.example", 50 << 10)):
            before = traffic.down if host == "b.example" else 0
            with pytest.raises((ConnectionResetError, EOFError)):
                await fetch(runtime, f"https://{host}/", agent=agent)
            assert limit < traffic.down - before < limit + 3000, "all but the piece that was too much"
        with pytest.raises(PathError):
            await fetch(runtime, "https://a.example/", agent=agent)
        assert plugin.statistics()["limited"] >= 3


@async_test
async def test_connections() -> None:
    """Of the agent, and under a rule; given back when they end, and when the agent does."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)

    names = Names(**{"a.example": "127.0.0.1", "b.example": "127.0.0.1"})
    plugin = policy(
        allow=["a.example", "b.example"],
        allow_addresses=["127.0.0.1"],
        limits={"connections": 2},
        shared_limits={"connections": 3},
        rule=[{"action": "allow", "host": "b.example", "limits": {"connections": 1}, "name": "b"}],
    )
    agent, other = Agent("1", "one"), Agent("2", "two")
    async with serving(hold) as port, running_plain(names, plugin, Native(NativeConfig())) as runtime:

        async def works(who: Agent) -> bool:
            async with guest(runtime, "127.0.0.1", port, agent=who) as flow:
                return await talks(flow)

        async def talks(flow: object) -> bool:
            if await flow.guest_connected():  # type: ignore[attr-defined]
                return False
            await flow.guest_send(b"\x01")  # type: ignore[attr-defined]
            try:
                return bool(await flow.guest_receive())  # type: ignore[attr-defined]
            except ConnectionResetError:
                return False

        await lookup(runtime, "a.example", agent)
        await lookup(runtime, "a.example", other)
        async with guest(runtime, "127.0.0.1", port, agent=agent) as first:
            assert await talks(first)
            async with guest(runtime, "127.0.0.1", port, agent=agent) as second:
                assert await talks(second) and not await works(agent), "its third"
                async with guest(runtime, "127.0.0.1", port, agent=other) as third:
                    assert await talks(third) and not await works(other), "the fourth of all"
            assert await works(agent) and await works(other)
            plugin.exit(agent, ExitReport("killed"))
            assert plugin._shared["default"].meter.connections == 0, "an agent that ended holds none, even if a flow lingers"
        await lookup(runtime, "b.example", other)
        async with guest(runtime, "127.0.0.1", port, agent=other) as first:
            assert await talks(first) and not await works(other), "the second under the rule"
        assert await works(other)
        assert plugin._shared["default"].meter.connections == 0


class AskTwice:
    """A plugin that refuses after the policy let it pass."""

    @hookimpl
    def request(self) -> None:
        raise Denied("no", "")


@async_test
async def test_a_request_that_another_plugin_refuses_is_given_back() -> None:
    plugin = policy(allow=["a.example"], limits={"concurrent_requests": 1})
    async with running(plugin, AskTwice(), FakeServer()) as runtime:
        for _ in range(3):
            assert json.loads((await fetch(runtime, "https://a.example/")).body)["error"]["rule"] == "no"
        assert not plugin._open
