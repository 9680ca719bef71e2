"""Every hook, done wrong in every way: that one operation fails, the error names plugin and hook, everything else goes on."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agentfw import Agent, Destination, ExitReport, Headers, RequestHead, ResponseHead, hookimpl, hookspecs
from agentfw.config import Config
from agentfw.errors import HookError
from agentfw.plugins import PluginManager
from agentfw.plugins import calling as calling_module
from agentfw.plugins.limits import hook_names
from agentfw.reports import AuditEvent, Decision, JobEvent
from agentfw.testing import FakeServer, PathError, fetch, make_agent, running

from .support import async_test

AGENT = make_agent()
WHERE = Destination.make("https", "api.example")
REQUEST = RequestHead("GET", "/", Headers())
RESPONSE = ResponseHead(200, "", Headers())

Call = Callable[[PluginManager], Awaitable[object] | object]

CALLS: dict[str, Call] = {
    "start": lambda m: m.start(None),  # type: ignore[arg-type]
    "stop": lambda m: m.stop(),
    "reloaded": lambda m: m.reloaded(None),  # type: ignore[arg-type]
    "admit": lambda m: m.admit(AGENT),
    "allow": lambda m: m.allow(AGENT, WHERE),
    "stand_in": lambda m: m.stand_in(AGENT, "api.example", 1),
    "resolve": lambda m: m.resolve(AGENT, "api.example", 1, b""),
    "connect": lambda m: m.connect(AGENT, WHERE, None),
    "dial": lambda m: m.dial(AGENT, WHERE, "192.0.2.1"),
    "own_tls": lambda m: m.own_tls(AGENT, WHERE),
    "meters": lambda m: m.meters(AGENT, WHERE),
    "request": lambda m: m.request(AGENT, WHERE, REQUEST, None),
    "recheck": lambda m: m.recheck(AGENT, WHERE, REQUEST),
    "response": lambda m: m.response(AGENT, WHERE, REQUEST, RESPONSE),
    "environment": lambda m: m.environment(AGENT),
    "guest_rules": lambda m: m.guest_rules(AGENT),
    "tenant": lambda m: m.tenant(AGENT, WHERE),
    "exchange_end": lambda m: m.exchange_end(AGENT, None),  # type: ignore[arg-type,func-returns-value]
    "dispatched": lambda m: m.dispatched(AGENT, None),  # type: ignore[arg-type,func-returns-value]
    "question_end": lambda m: m.question_end(AGENT, None),  # type: ignore[arg-type,func-returns-value]
    "flow_end": lambda m: m.flow_end(AGENT, None),  # type: ignore[arg-type,func-returns-value]
    "model_call": lambda m: m.model_call(AGENT, None),  # type: ignore[arg-type,func-returns-value]
    "audit": lambda m: m.audit(AuditEvent.about("x")),  # type: ignore[func-returns-value]
    "decided": lambda m: m.decided(AGENT, WHERE, Decision(allowed=True)),  # type: ignore[func-returns-value]
    "job_event": lambda m: m.job_event(JobEvent(time=1.0, kind="x")),  # type: ignore[func-returns-value]
    "redact": lambda m: m.redact(b"text"),
    "tables": lambda m: m.tables(),
    "exit": lambda m: m.exit(AGENT, ExitReport("code")),  # type: ignore[func-returns-value]
    "statistics": lambda m: m.statistics(),
}
LOGGED = {
    "audit", "decided", "dispatched", "exchange_end", "exit", "flow_end", "job_event", "model_call", "question_end",
    "reloaded", "statistics", "stop", "tables",
}  # fmt: skip
"""Hooks that end nothing: all plugins are called, failures are logged. The others fail their operation."""
AWAITED = {
    name for name in CALLS if "Awaitable" in str(inspect.get_annotations(getattr(hookspecs, name)).get("return"))
}  # fmt: skip


class Strange(BaseException):
    pass


class Hostile:
    """Raises whatever is done with it."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("secret")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("secret")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("secret")


async def _coroutine() -> int:
    return 5


def _raises(error: BaseException) -> Callable[[], Any]:
    def body() -> Any:
        raise error

    return body


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "an exception": (_raises(RuntimeError("secret")), "RuntimeError"),
    "StopIteration": (_raises(StopIteration("secret")), ""),
    "a BaseException": (_raises(Strange("secret")), "Strange"),
    "sys.exit()": (_raises(SystemExit("secret")), "SystemExit"),
    "a cancellation": (_raises(asyncio.CancelledError("secret")), "CancelledError"),
    "an object": (lambda: object(), "returned object"),
    "a hostile object": (Hostile, "returned Hostile"),
    "a number": (lambda: 17.5, "returned float"),
    "a class": (lambda: dict, "returned type"),
    "a generator": (lambda: (_ for _ in ()), "returned generator"),
    "a list of nonsense": (lambda: [Hostile()], "returned list"),
    "a coroutine in a list": (lambda: [print], "returned list"),
}


def bad(hook: str, body: Callable[[], Any], asynchronous: bool) -> object:
    """A plugin that implements one hook by `body`."""
    if asynchronous:

        async def implementation(self: object) -> Any:
            await asyncio.sleep(0)
            return body()

        # one that is `async` itself is loaded only where somebody awaits it
        function: Any = implementation if hook in AWAITED else lambda self: implementation(self)
    else:
        function = lambda self: body()  # noqa: E731
    function.__qualname__ = f"Bad.{hook}"  # pluggy looks there for whether there is a `self`
    return type("Bad", (), {hook: hookimpl(function)})()


class Witness:
    """Implements everything, does nothing, and remembers that it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []


def _witness(hook: str) -> Any:
    def implementation(self: Witness) -> None:
        self.asked.append(hook)

    implementation.__qualname__ = f"Witness.{hook}"
    return hookimpl(implementation)


for _hook in CALLS:
    setattr(Witness, _hook, _witness(_hook))


def manager(plugin: object, config: Config | None = None) -> tuple[PluginManager, Witness]:
    made = PluginManager(config)
    witness = Witness()
    made.add("wrong", plugin)
    made.add("witness", witness)
    made.compile()
    return made, witness


async def outcome(hook: str, made: PluginManager) -> object:
    result = CALLS[hook](made)
    return await result if inspect.isawaitable(result) else result


def test_every_hook_is_tried() -> None:
    assert set(CALLS) == hook_names()


@pytest.mark.parametrize("form", ["def", "async def"])
@pytest.mark.parametrize("hook", CALLS)
def test_a_hook_gone_wrong(hook: str, form: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run(body: Callable[[], Any], reason: str) -> None:
        if form == "async def" and hook not in AWAITED:
            reason = "returned coroutine"
        expected = f"plugin `wrong` failed in `{hook}`: {reason}"
        made, witness = manager(bad(hook, body, form == "async def"))
        if hook in LOGGED:
            assert not await outcome(hook, made)
            assert [text for text in caplog.messages if text.startswith(expected)], caplog.messages
            assert witness.asked == [hook], "the other plugin is called all the same"
        else:
            with pytest.raises(HookError) as caught:
                await outcome(hook, made)
            assert str(caught.value).startswith(expected) and (caught.value.plugin, caught.value.hook) == ("wrong", hook)
            assert "secret" not in str(caught.value) and set(witness.asked) <= {"decided"}
        numbers = made.hook_statistics()
        assert numbers[f"hooks.wrong.{hook}.calls"] == 1 and numbers[f"hooks.wrong.{hook}.errors"] == 1
        for other in set(CALLS) - {hook}:  # nothing else has suffered
            await outcome(other, made)
        never = {"start", "stop"} if hook == "start" else {hook}  # who never started is not stopped
        assert set(witness.asked) >= set(CALLS) - never

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "coroutine ... was never awaited"
        with caplog.at_level(logging.ERROR):
            for body, reason in WRONG.values():
                caplog.clear()
                async_test(run)(body, reason)
                assert not any("secret" in text for text in caplog.messages)
            gc.collect()


@pytest.mark.parametrize("then", ["ends", "hangs on", "answers"])
@pytest.mark.parametrize("hook", sorted(AWAITED))
def test_a_hook_that_hangs(hook: str, then: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling_module, "GRACE", 0.02)
    ended: list[str] = []

    async def hang(self: object) -> None:
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                ended.append("cancelled")
                if then == "answers":  # too late: that it has no objection does not count any more
                    return
                if then == "ends":
                    raise

    hang.__qualname__ = f"Bad.{hook}"

    @async_test
    async def run() -> None:
        config = Config({"plugins": {"limits": {"wrong": {hook: 0.02}}}})
        made, witness = manager(type("Bad", (), {hook: hookimpl(hang)})(), config)
        expected = f"plugin `wrong` failed in `{hook}`: no answer within 0.02 s"
        task = asyncio.current_task()
        assert task is not None
        if hook in LOGGED:
            await outcome(hook, made)
            assert expected in caplog.messages and witness.asked == [hook]
        else:
            with pytest.raises(HookError) as caught:
                await outcome(hook, made)
            assert str(caught.value) == expected
        assert ended[0] == "cancelled" and task.cancelling() == 0
        assert made.hook_statistics()[f"hooks.wrong.{hook}.timeouts"] == 1

    run()


@async_test
async def test_who_is_cancelled_from_outside_is_not_out_of_time() -> None:
    async def hang(self: object) -> None:
        await asyncio.get_running_loop().create_future()

    hang.__qualname__ = "Bad.allow"
    made, _ = manager(type("Bad", (), {"allow": hookimpl(hang)})())
    task = asyncio.ensure_future(made.allow(AGENT, WHERE))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    numbers = made.hook_statistics()
    assert numbers["hooks.wrong.allow.calls"] == 1 and "hooks.wrong.allow.errors" not in numbers


# -- what agents see, and that the others see nothing


def wrong_for(agent: str, hook: str, how: str) -> object:
    """A plugin whose hook goes wrong for one agent."""
    body, _ = WRONG[how]

    def implementation(self: object, agent: Agent) -> Any:
        return body() if agent.name == "unlucky" else None

    implementation.__qualname__ = f"Bad.{hook}"
    return type("Bad", (), {"name": "wrong", hook: hookimpl(implementation)})()


@pytest.mark.parametrize("how", ["an exception", "a BaseException", "an object", "a hostile object"])
@pytest.mark.parametrize(
    "hook", ["allow", "resolve", "connect", "dial", "meters", "request", "response", "exchange_end", "flow_end"]
)
@async_test
async def test_one_agents_trouble_is_its_own(hook: str, how: str) -> None:
    agents = [make_agent(name) for name in ("lucky", "unlucky", "another")]
    events: list[AuditEvent] = []

    class Audit:
        @hookimpl
        def audit(self, event: AuditEvent) -> None:
            events.append(event)

    async with running(wrong_for("unlucky", hook, how), Audit(), FakeServer()) as runtime:
        results = await asyncio.gather(
            *(fetch(runtime, "https://api.example/", agent=agent) for agent in agents), return_exceptions=True
        )
        again = await fetch(runtime, "https://api.example/", agent=agents[0])
    lucky, unlucky, another = results
    for response in (lucky, another, again):
        assert not isinstance(response, BaseException) and response.body == b"ok"
    if hook in LOGGED:
        assert not isinstance(unlucky, BaseException) and unlucky.status == 200
        return
    if hook in ("request", "response"):
        assert not isinstance(unlucky, BaseException) and unlucky.status == 502
        assert (unlucky.error["plugin"], unlucky.error["hook"]) == ("wrong", hook) and b"secret" not in unlucky.body
    else:
        assert isinstance(unlucky, (PathError, ConnectionError, EOFError)), unlucky
        assert "secret" not in str(unlucky)
    failures = {(event.agent, event.plugin, event.extra.get("hook")) for event in events if event.kind == "plugin_failed"}
    assert failures == {("unlucky", "wrong", hook)}


@pytest.mark.parametrize("numbers", [{"n": 1 << 63}, {"n": -(10**400)}, {"n": float("inf")}, {"n": float("nan")}, {"\ud800": 1}])
def test_numbers_that_cannot_be_told_another_process_are_none(numbers: dict[str, float]) -> None:
    """One of them would take all of a worker's with it."""
    made = PluginManager(Config())
    made.add("wrong", bad("statistics", lambda: numbers, False))
    made.add("right", bad("statistics", lambda: {"n": (1 << 63) - 1, "m": -0.5}, False))
    made.compile()
    assert made.statistics() == {"right.n": (1 << 63) - 1, "right.m": -0.5}
