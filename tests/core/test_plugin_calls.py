"""How hooks are called: in which order, within which time, counted and traced."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest
from agentfw import Agent, Denied, Destination, Headers, RequestHead, ResponseHead, hookimpl
from agentfw.config import Config, load_config
from agentfw.errors import HookError, UpstreamError
from agentfw.histograms import HOOK
from agentfw.plugins import PluginManager, calling, load_plugins
from agentfw.plugins.calling import Call
from agentfw.plugins.limits import hook_names
from agentfw.plugins.tracing import line
from agentfw.plugins.watchdog import Watchdog
from agentfw.testing import FakeServer, fetch, make_agent, make_runtime, running
from hypothesis import given
from hypothesis import strategies as some

from tests.pool.fake_work import flow

from .support import async_test

AGENT = make_agent()
FLOW = flow()
WHERE = Destination.make("https", "api.example")


def manager(*plugins: object, config: Config | None = None) -> PluginManager:
    made = PluginManager(config)
    for number, plugin in enumerate(plugins):
        made.add(f"p{number}", plugin)
    made.compile()
    return made


# -- arguments


def test_each_is_called_with_what_it_names() -> None:
    told: list[tuple[object, ...]] = []

    class Nothing:
        @hookimpl
        def flow_end(self) -> None:
            told.append(())

    class One:
        @hookimpl
        def flow_end(self, flow: object) -> None:
            told.append((flow,))

    class Turned:
        @hookimpl
        def flow_end(self, flow: object, agent: Agent) -> None:
            told.append((flow, agent))

    class All:
        @hookimpl
        def flow_end(self, agent: Agent, flow: object) -> None:
            told.append((agent, flow))

    made = manager(Nothing(), One(), Turned(), All())
    made.flow_end(AGENT, FLOW)
    assert told == [(), (FLOW,), (FLOW, AGENT), (AGENT, FLOW)]


class Listens:
    calls = 0

    @hookimpl
    def flow_end(self) -> None:
        self.calls += 1


def test_who_is_told_and_says_something_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Says:
        @hookimpl
        def flow_end(self) -> str:
            return "secret"

    class Fails:
        @hookimpl
        def flow_end(self) -> None:
            raise ValueError("secret")

    last = Listens()
    made = manager(Says(), Fails(), last)
    made.flow_end(AGENT, FLOW)
    assert last.calls == 1 and [record.message for record in caplog.records] == [
        "plugin `p0` failed in `flow_end`: returned str",
        "plugin `p1` failed in `flow_end`: ValueError",
    ]
    numbers = made.hook_statistics()
    assert numbers["hooks.p0.flow_end.errors"] == numbers["hooks.p1.flow_end.errors"] == 1
    assert numbers["hooks.p0.flow_end.calls"] == numbers["hooks.p1.flow_end.calls"] == numbers["hooks.p2.flow_end.calls"] == 1


@pytest.mark.parametrize("raised", [SystemExit, GeneratorExit, asyncio.CancelledError])
@async_test
async def test_who_is_told_cannot_end_what_runs(caplog: pytest.LogCaptureFixture, raised: type[BaseException]) -> None:
    """Nor by words that mean something in a task that is being cancelled, as many are that tell of an end."""

    class Ends:
        @hookimpl
        def flow_end(self) -> None:
            raise raised

        @hookimpl
        def dial(self) -> bool | None:
            raise raised

    last = Listens()
    made = manager(Ends(), last)

    async def cancelled() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            made.flow_end(AGENT, FLOW)
            with pytest.raises(HookError):
                made.dial(AGENT, WHERE, "192.0.2.1")

    task = asyncio.create_task(cancelled())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert last.calls == 1 and caplog.messages == [f"plugin `p0` failed in `flow_end`: {raised.__name__}"]


def test_who_interrupts_the_process_does_so_when_all_are_told() -> None:
    class Interrupts:
        @hookimpl
        def flow_end(self) -> None:
            raise KeyboardInterrupt

    first, last = Listens(), Listens()
    made = manager(first, Interrupts(), last)
    with pytest.raises(KeyboardInterrupt):
        made.flow_end(AGENT, FLOW)
    assert first.calls == last.calls == 1 == made.hook_statistics()["hooks.p1.flow_end.calls"]


# -- order


def ordered(log: list[int], number: int, order: str) -> object:
    class Plugin:
        @hookimpl(tryfirst=order == "first", trylast=order == "last")
        def allow(self) -> None:
            log.append(number)

        @hookimpl(tryfirst=order == "first", trylast=order == "last")
        def resolve(self) -> bytes | None:
            log.append(number)
            return None

        @hookimpl(tryfirst=order == "first", trylast=order == "last")
        def dial(self) -> bool | None:
            log.append(number)
            return None

    return Plugin()


@given(some.lists(some.sampled_from(["first", "", "last"]), max_size=7))
def test_first_then_as_named_then_last(orders: list[str]) -> None:
    log: list[int] = []
    made = manager(*(ordered(log, number, order) for number, order in enumerate(orders)))
    expected = [number for wanted in ("first", "", "last") for number, order in enumerate(orders) if order == wanted]

    async def body() -> None:
        await made.allow(AGENT, WHERE)
        await made.resolve(AGENT, "x", 1, b"")
        made.dial(AGENT, WHERE, "192.0.2.1")

    asyncio.run(body())
    assert made.order("allow") == [f"p{number}" for number in log[: len(orders)]]
    assert log == 3 * expected


@async_test
async def test_a_denial_ends_the_round() -> None:
    log: list[int] = []

    class Refuses:
        @hookimpl
        def allow(self) -> None:
            raise Denied("rule", "no")

    made = manager(ordered(log, 0, ""), Refuses(), ordered(log, 2, ""), ordered(log, 3, "first"))
    with pytest.raises(Denied) as caught:
        await made.allow(AGENT, WHERE)
    assert log == [3, 0] and caught.value.plugin == "p1"


# -- time and numbers


class Does:
    """One of each outcome, as the destination's host says."""

    @hookimpl
    async def allow(self, agent: Agent, destination: Destination) -> None:
        what = destination.host.partition(".")[0]
        if what == "denied":
            raise Denied("rule", "no")
        if what == "fails":
            raise KeyError("secret")
        if what == "upstream":
            raise UpstreamError("it is down")
        if what == "waits":
            await asyncio.sleep(0.001)
        if what == "hangs":
            await asyncio.sleep(60)


@async_test
async def test_calls_are_counted_by_outcome() -> None:
    made = manager(Does(), object(), config=Config({"plugins": {"blocking": 60, "limits": {"p0": {"allow": 0.5}}}}))
    for host in ("ok", "ok", "denied", "fails", "upstream", "waits", "hangs"):
        try:
            await made.allow(AGENT, Destination.make("https", f"{host}.example"))
        except (Denied, HookError, UpstreamError):
            assert host not in ("ok", "waits")
    numbers = made.hook_statistics()
    buckets = {name: numbers.pop(name) for name in list(numbers) if ".bucket." in name}
    assert sum(buckets.values()) == 7 and sum(value for name, value in buckets.items() if name.endswith((".1", ".10"))) >= 1
    assert set(numbers) == {f"hooks.p0.allow.{what}" for what in ("calls", "seconds", "longest", "denied", "errors", "timeouts")}
    assert numbers["hooks.p0.allow.calls"] == 7
    assert [numbers[f"hooks.p0.allow.{what}"] for what in ("denied", "errors", "timeouts")] == [1, 1, 1]
    assert 0.5 <= numbers["hooks.p0.allow.longest"] <= numbers["hooks.p0.allow.seconds"], "waiting counts"


@async_test
async def test_what_was_not_called_is_not_told_and_the_number_of_numbers_is_bounded() -> None:
    runtime = make_runtime(Does(), config={"plugins": {"blocking": 60}})
    assert not runtime.plugins.hook_statistics()
    for number in range(100):
        await runtime.plugins.allow(make_agent(str(number)), Destination.make("https", f"a{number}.example"))
    told = {name for name in runtime.statistics() if ".bucket." not in name}
    assert told == {f"hooks.Does.allow.{what}" for what in ("calls", "seconds", "longest")}
    assert len(runtime.statistics()) <= len(told) + len(HOOK) + 1


class Clock:
    """What the calls are timed by, here: nothing that the machine does makes it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr(calling, "_now", lambda: self.now)

    def work(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


class Busy:
    """Holds up the loop for as many milliseconds as the host's or address's last part says."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    @hookimpl
    async def allow(self, destination: Destination) -> None:
        if destination.host.startswith("later"):
            self.clock.work(0.001)
            await asyncio.sleep(0)
        self.clock.work(int(destination.host.rpartition(".")[2][1:]) / 1e3)

    @hookimpl
    def dial(self, address: str) -> bool | None:
        self.clock.work(int(address.rpartition(".")[2]) / 1e3)
        return True

    @hookimpl
    def start(self) -> None:
        self.clock.work(50)


def to(host: str) -> Destination:
    return Destination("https", host, 443)


@async_test
async def test_who_holds_up_the_loop_is_named_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    made = manager(Busy(clock), config=Config({"plugins": {"blocking": 0.02}}))
    await made.start(None)  # type: ignore[arg-type]  # before the first agent it may take its time
    for _ in range(3):
        await made.allow(AGENT, to("later.m19"))
        made.dial(AGENT, WHERE, "192.0.2.20")
    assert not [name for name in made.hook_statistics() if name.endswith(".blocked")]
    for _ in range(4):
        await made.allow(AGENT, to("now.m30"))
        await made.allow(AGENT, to("later.m30"))  # a step after the first
        made.dial(AGENT, WHERE, "192.0.2.30")
    named = [text for text in caplog.messages if "held up all agents" in text]
    assert len(named) == 2 and "`p0`" in named[0] and "for 0.030 s in `allow`" in named[0] and "`dial`" in named[1]
    numbers = made.hook_statistics()
    assert numbers["hooks.p0.allow.blocked"] == 8 and numbers["hooks.p0.dial.blocked"] == 4


@async_test
async def test_who_holds_up_the_loop_and_fails_is_named_as_well(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin's own client that gives up after ten seconds, say."""
    clock = Clock(monkeypatch)

    class Fails:
        @hookimpl
        def allow(self, destination: Destination) -> None:
            clock.work(0.5)
            raise Denied("rule", "no") if destination.host == "denied" else ValueError

        @hookimpl
        def dial(self) -> None:
            clock.work(0.5)
            raise OSError

        @hookimpl
        def flow_end(self) -> None:
            clock.work(0.5)
            raise OSError

    made = manager(Fails(), config=Config({"plugins": {"blocking": 0.02}}))
    for host in ("denied", "fails"):
        with pytest.raises((Denied, HookError)):
            await made.allow(AGENT, to(host))
    with pytest.raises(HookError):
        made.dial(AGENT, WHERE, "192.0.2.1")
    made.flow_end(AGENT, FLOW)
    numbers = made.hook_statistics()
    assert [numbers[f"hooks.p0.{hook}.blocked"] for hook in ("allow", "dial", "flow_end")] == [2, 1, 1]
    assert len([text for text in caplog.messages if "held up all agents" in text]) == 3


def test_what_is_written_of_one_is_not_the_next_ones_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace or a log that somebody reads slowly."""
    clock = Clock(monkeypatch)

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            clock.work(5)

    class Takes:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        @hookimpl
        def flow_end(self) -> object:
            clock.work(self.seconds)
            return None if self.seconds != 0.25 else "nonsense"

    made = manager(Takes(0.5), Takes(0.25), Takes(0.125), config=Config({"plugins": {"blocking": 0.4}}))
    handler = Slow()
    logging.getLogger("agentfw.plugins").addHandler(handler)
    try:
        for tracer in (None, lambda *args: clock.work(7)):
            made.trace(tracer)
            for _ in range(3):
                made.flow_end(AGENT, FLOW)
    finally:
        logging.getLogger("agentfw.plugins").removeHandler(handler)
    numbers = made.hook_statistics()
    assert [numbers[f"hooks.p{n}.flow_end.seconds"] for n in range(3)] == [3.0, 1.5, 0.75]
    assert numbers["hooks.p0.flow_end.blocked"] == 6 and "hooks.p1.flow_end.blocked" not in numbers


@async_test
async def test_now_and_then_may_have_been_the_machine(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    made = manager(Busy(Clock(monkeypatch)), config=Config({"plugins": {"blocking": 0.02}}))
    for number in range(60):
        await made.allow(AGENT, to("now.m30" if number % 15 == 14 else "now.m1"))
    assert made.hook_statistics()["hooks.p0.allow.blocked"] == 4 and not caplog.messages
    await made.allow(AGENT, to("now.m201"))
    assert len(caplog.messages) == 1 and "for 0.201 s" in caplog.messages[0], "ten times as long as it may"


@pytest.mark.parametrize("hook", ["allow", "dial", "flow_end"])
def test_who_does_not_return_is_named_while_it_does_not(caplog: pytest.LogCaptureFixture, hook: str) -> None:
    """From another thread: the loop's own says nothing until it is too late."""
    said = threading.Event()

    class Listener(logging.Handler):
        wanted = "`stuck`"

        def emit(self, record: logging.LogRecord) -> None:
            if self.wanted in record.getMessage():
                said.set()

    class Stuck:
        name = "stuck"

        @hookimpl
        async def allow(self) -> None:
            await asyncio.sleep(0)
            assert said.wait(30), "nobody noticed"

        @hookimpl
        def dial(self) -> bool | None:
            assert said.wait(30), "nobody noticed"
            return None

        @hookimpl
        def flow_end(self) -> None:
            assert said.wait(30), "nobody noticed"

    async def body() -> None:
        runtime = make_runtime(Stuck())
        watchdog = Watchdog(asyncio.get_running_loop(), period=0.01, patience=0.1)
        watchdog.start()
        if hook == "allow":
            await runtime.plugins.allow(AGENT, WHERE)
        elif hook == "dial":
            runtime.plugins.dial(AGENT, WHERE, "192.0.2.1")
        else:
            runtime.plugins.flow_end(AGENT, FLOW)
        said.clear()
        listener.wanted = "outside of hooks"
        await asyncio.sleep(0.05)
        assert said.wait(30), "nobody noticed"
        watchdog.stop()

    listener = Listener(logging.ERROR)
    logging.getLogger("agentfw.plugins").addHandler(listener)
    try:
        asyncio.run(body())
    finally:
        logging.getLogger("agentfw.plugins").removeHandler(listener)
    (named,) = [text for text in caplog.messages if "`stuck` does not return" in text]
    assert "all agents are held up" in named and f"from `{hook}` (" in named and "threading.py:" in named


@async_test
async def test_limits_of_hooks_and_of_one_plugins_hooks(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import asyncio\nfrom agentfw import hookimpl\nclass Plugin:\n"
        "    @hookimpl\n    async def allow(self): await asyncio.sleep(60)\n"
        "    @hookimpl\n    async def resolve(self): await asyncio.sleep(60)\n"
    )
    (tmp_path / "agentfw.toml").write_text("[plugins.limits]\nallow = 40\nresolve = 0.02\nmine.allow = 0.03\n")
    made = load_plugins([str(tmp_path / "mine.py"), "policy"], load_config(tmp_path / "agentfw.toml"))
    with pytest.raises(HookError, match=r"`mine` failed in `allow`: no answer within 0\.03 s"):
        await made.allow(AGENT, WHERE)
    with pytest.raises(HookError, match=r"`mine` failed in `resolve`: no answer within 0\.02 s"):
        await made.resolve(AGENT, "x", 1, b"")


@async_test
async def test_a_limit_leaves_inner_time_limits_and_cancellations_alone() -> None:
    """The hook is driven by hand: what it does with tasks must work as under plain `await`."""

    class Inner:
        @hookimpl
        async def allow(self) -> None:
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(60)
            except TimeoutError:
                pass
            async with asyncio.TaskGroup() as group:
                done = [group.create_task(asyncio.sleep(0, number)) for number in range(3)]
            assert [task.result() for task in done] == [0, 1, 2]
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0
            task.cancel()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                task.uncancel()
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_exception, KeyError("inner"))
            with pytest.raises(KeyError):
                await future

    await manager(Inner()).allow(AGENT, WHERE)


@async_test
async def test_any_awaitable_will_do() -> None:
    class Own:
        def __await__(self):  # type: ignore[no-untyped-def]
            yield from asyncio.sleep(0).__await__()
            return b"own"

    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, future.set_result, b"future")
    task = asyncio.get_running_loop().create_task(asyncio.sleep(0, b"task"))
    for awaitable, expected in ((Own(), b"own"), (future, b"future"), (task, b"task")):

        class Gives:
            given = awaitable

            @hookimpl
            def resolve(self) -> object:
                return self.given

        assert await manager(Gives()).resolve(AGENT, "x", 1, b"") == expected


# -- tracing


class Marks:
    name = "marks"

    @hookimpl
    def request(self, head: RequestHead) -> None:
        head.headers.set("authorization", "Bearer t0p-secret")

    @hookimpl
    def response(self, head: ResponseHead) -> None:
        head.headers.set("set-cookie", "t0p-secret")

    @hookimpl
    def allow(self, destination: Destination) -> None:
        if destination.host == "denied.example":
            raise Denied("t0p-secret rule", "t0p-secret reason")
        if destination.host == "fails.example":
            raise ValueError("t0p-secret")


def test_tracing_tells_who_what_and_how_long_and_no_secret(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFW_TRACE_PLUGINS", "1")

    async def body() -> None:
        async with running(Marks(), FakeServer()) as runtime:
            await fetch(runtime, "https://api.example/t0p-secret?q=t0p-secret", headers={"x-key": "t0p-secret"})
            for host in ("denied", "fails"):
                with pytest.raises((Denied, HookError)):
                    await runtime.plugins.allow(make_agent("other"), Destination.make("https", f"{host}.example"))

    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(body())
    finally:
        logging.disable(logging.NOTSET)
    err = capfd.readouterr().err
    lines = [each.rsplit(" ", 1)[0] for each in err.splitlines()]
    assert all(each.startswith("hook ") for each in lines) and all(each.endswith("us") for each in err.splitlines())
    for expected in (
        "hook marks.allow test dns://api.example:53 ok",
        "hook fake_server.resolve test api.example bytes",
        "hook fake_server.dial test dns://api.example:53 198.18.0.1 true",
        "hook fake_server.connect test https://api.example:443 _Lease",
        "hook marks.request test https://api.example:443 ok",
        "hook marks.response test https://api.example:443 ok",
        "hook marks.allow other https://denied.example:443 denied",
        "hook marks.allow other https://fails.example:443 ValueError",
    ):
        assert expected in lines, err
    assert "t0p" not in err


@pytest.mark.parametrize("value", ["", "0", "false", " No "])
def test_no_tracing_unless_asked_for(value: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AGENTFW_TRACE_PLUGINS", value)
    made = manager(Does())
    asyncio.run(made.allow(AGENT, WHERE))
    assert made.hook_statistics()["hooks.p0.allow.calls"] == 1 and not capfd.readouterr().err


def test_a_trace_is_one_printable_line() -> None:
    call = Call("p", "resolve", print, ("agent", "name", "qtype", "query"))
    text = line(call, (Agent("1", "evil\nagent\x1b[31m"), "name\r" + "x" * 500, 1, b"secret"), "ok", 1999)
    assert text.isprintable() and text.endswith(" ok 1us") and "secret" not in text and len(text) < 700


def test_heads_are_never_traced() -> None:
    for hook in hook_names():
        call = Call("p", hook, print, ("agent", "destination", "head", "tls", "query", "report", "request"))
        args = (AGENT, WHERE, RequestHead("GET", "/secret", Headers([("a", "secret")])), "secret", b"secret", "secret", "secret")
        assert line(call, args, "ok", 1) == f"hook p.{hook} test https://api.example:443 ok 0us"
