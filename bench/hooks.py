"""What calling a plugin's hook costs beside the function itself, in nanoseconds a call. Medians of 15 runs.

Five plugins implement each hook, as the default set does `allow`. "nobody": no plugin implements it.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import common
import uvloop
from agentfw import Destination, hookimpl
from agentfw.http1 import Headers, RequestHead
from agentfw.plugins import PluginManager
from agentfw.testing import make_agent

CALLS, RUNS, PLUGINS = 20_000, 15, 5
AGENT = make_agent("bench")
WHERE = Destination.make("https", "api.example")
HEAD = RequestHead("GET", "/", Headers([]))


class Plain:
    @hookimpl
    def allow(self, agent: Any, destination: Any) -> None:
        pass

    @hookimpl
    def dial(self, agent: Any, destination: Any, address: str) -> bool | None:
        return None


class Coroutine:
    @hookimpl
    async def allow(self, agent: Any, destination: Any) -> None:
        pass


class Waits:
    @hookimpl
    async def allow(self, agent: Any, destination: Any) -> None:
        await asyncio.sleep(0)


def manager(kind: type | None) -> PluginManager:
    made = PluginManager()
    for number in range(PLUGINS if kind else 0):
        assert kind is not None
        made.add(f"p{number}", kind())
    made.compile()
    return made


async def awaited(call: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        await call()
    return (time.perf_counter_ns() - start) / CALLS


async def called(call: Callable[[], Any]) -> float:
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - start) / CALLS


async def main() -> None:
    plain, coroutine, waits, none = manager(Plain), manager(Coroutine), manager(Waits), manager(None)
    one = Plain()
    bare, bare_waits = Coroutine(), Waits()
    cases: list[tuple[str, Callable[[], Awaitable[float]]]] = [
        ("a function, called directly", lambda: called(lambda: one.allow(AGENT, WHERE))),
        ("a coroutine, awaited directly", lambda: awaited(lambda: bare.allow(AGENT, WHERE))),
        ("a coroutine that waits once, awaited directly", lambda: awaited(lambda: bare_waits.allow(AGENT, WHERE))),
        ("allow, nobody", lambda: awaited(lambda: none.allow(AGENT, WHERE))),
        ("request, nobody", lambda: awaited(lambda: none.request(AGENT, WHERE, HEAD, None))),
        ("dial, nobody", lambda: called(lambda: none.dial(AGENT, WHERE, "1.2.3.4"))),
        ("dial, 5 functions", lambda: called(lambda: plain.dial(AGENT, WHERE, "1.2.3.4"))),
        ("allow, 5 functions", lambda: awaited(lambda: plain.allow(AGENT, WHERE))),
        ("allow, 5 coroutines", lambda: awaited(lambda: coroutine.allow(AGENT, WHERE))),
        ("allow, 5 coroutines that wait once", lambda: awaited(lambda: waits.allow(AGENT, WHERE))),
    ]
    found: dict[str, list[float]] = {name: [] for name, _ in cases}
    for _ in range(RUNS):  # in turns, so that what else runs here hits all alike
        for name, case in cases:
            found[name].append(await case())
    medians = {name: statistics.median(values) for name, values in found.items()}
    for name, value in medians.items():
        each = f"   {value / PLUGINS:8.0f} an implementation" if f"{PLUGINS} " in name else ""
        print(f"{name:<46} {value:8.0f} ns{each}")


if __name__ == "__main__":
    common.parser(__doc__).parse_args()
    uvloop.run(main())
