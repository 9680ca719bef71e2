"""One hook implementation called once: within its time, counted, and with errors that name the plugin.

A hook may be a plain function or return an awaitable. An awaitable is driven step by step here, so that it is known how long each
step held up the loop, and so that one that never waits costs no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
import types
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, NoReturn

from ..errors import AgentfwError, Denied, HookError, UpstreamError
from ..histograms import HOOK_NS

GRACE = 5.0
"""Seconds that a hook has to end after it was cancelled for taking too long; then it is dropped."""

Tracer = Callable[["Call", tuple[object, ...], str, int], None]
"""Called after each call: the implementation, its arguments (all of the specification's), the outcome in a word, nanoseconds."""

log = logging.getLogger("agentfw.plugins")

_now = time.perf_counter_ns


class Call:
    """One hook implementation. Its numbers are read by `PluginManager.hook_statistics()`."""

    __slots__ = (
        "blocked", "blocking_ns", "buckets", "calls", "denied", "errors", "function", "hook", "longest_ns", "named", "names",
        "plugin", "seconds", "timeouts", "total_ns", "trace",
    )  # fmt: skip

    def __init__(self, plugin: str, hook: str, function: Callable[..., Any], names: tuple[str, ...] = ()) -> None:
        self.plugin = plugin
        self.hook = hook
        self.function = function
        self.names = names
        """Of the specification's arguments, which `function` is called with."""
        self.seconds = 30.0
        """An awaitable's time limit."""
        self.blocking_ns = 1 << 62
        """Longer than this it may not hold up the loop without being named in the log."""
        self.trace: Tracer | None = None
        self.calls = 0
        self.errors = 0
        self.denied = 0
        self.timeouts = 0
        self.blocked = 0
        self.named = False
        """The log has told that it holds up the loop."""
        self.buckets = [0] * (len(HOOK_NS) + 1)
        """Calls by how long they took: up to each of these, and above."""
        self.total_ns = 0
        self.longest_ns = 0

    def now(self, args: tuple[object, ...]) -> Any:
        """Call it; what it returns is the result, awaitable or not."""
        start = _now()
        try:
            result = self.function(*args)
        except BaseException as error:
            self._fail(args, start, error)
        took = _now() - start
        if took > self.blocking_ns:
            self._held_up(took)
        # PERF: as `_done()`, which is not called: this runs a dozen times for each request
        self.calls += 1
        self.buckets[bisect_left(HOOK_NS, took)] += 1
        self.total_ns += took
        if took > self.longest_ns:
            self.longest_ns = took
        if self.trace is not None:
            self.trace(self, args, _outcome(result), took)
        return result

    def begun(self, args: tuple[object, ...]) -> Coroutine[Any, Any, Any] | None:
        """Call it. None: that was all, and the result is None; else what gives the result when it is awaited."""
        start = _now()
        try:
            result = self.function(*args)
        except BaseException as error:
            self._fail(args, start, error)
        took = _now() - start
        if took > self.blocking_ns:
            self._held_up(took)
        if result is not None:
            return self._ended(args, start, took, result)
        # PERF: as in `now()`
        self.calls += 1
        self.buckets[bisect_left(HOOK_NS, took)] += 1
        self.total_ns += took
        if took > self.longest_ns:
            self.longest_ns = took
        if self.trace is not None:
            self.trace(self, args, "ok", took)
        return None

    async def later(self, args: tuple[object, ...]) -> Any:
        """Call it, and await what it returns if that is awaitable."""
        rest = self.begun(args)
        return None if rest is None else await rest

    async def _ended(self, args: tuple[object, ...], start: int, took: int, result: Any) -> Any:
        """`result`, or what awaiting it gives."""
        try:
            if _awaitable(result):
                result = await self._await(result)
                took = _now() - start
        except BaseException as error:
            self._fail(args, start, error, waited=True)
        self._done(args, took, result)
        return result

    def fits(self, check: Callable[[object], bool], result: object) -> bool:
        """Whether a result is of the right type; one that even raises when it is looked at is not."""
        try:
            return check(result)
        except Exception:
            return False

    def nonsense(self, result: object, why: str = "") -> HookError:
        """The error that a result of the wrong type is."""
        self.errors += 1
        if inspect.iscoroutine(result):
            result.close()
        return HookError(self.plugin, self.hook, f"returned {type(result).__name__}{why}")

    def _done(self, args: tuple[object, ...], took: int, result: object) -> None:
        self.calls += 1
        self.buckets[bisect_left(HOOK_NS, took)] += 1
        self.total_ns += took
        if took > self.longest_ns:
            self.longest_ns = took
        if self.trace is not None:
            self.trace(self, args, _outcome(result), took)

    def _fail(self, args: tuple[object, ...], start: int, error: BaseException, *, waited: bool = False) -> NoReturn:
        """Raise what the pipeline sees of an exception. Messages of unexpected ones stay in `__cause__`: they may quote a
        header. `waited`: it was awaited, so that somebody may have ended it (`is_wanted()`), and not all of the time was its;
        nobody cancels what does not wait, whatever it raises."""
        took = _now() - start
        if not waited and took > self.blocking_ns:
            self._held_up(took)
        self.calls += 1
        self.buckets[bisect_left(HOOK_NS, took)] += 1
        self.total_ns += took
        self.longest_ns = max(self.longest_ns, took)
        outcome = type(error).__name__
        raised: BaseException = error
        if isinstance(error, KeyboardInterrupt) or (waited and is_wanted(error)):
            pass
        elif isinstance(error, Denied):
            self.denied += 1
            outcome = "denied"
            error.plugin = error.plugin or self.plugin
            if error.hook in ("", self.hook):  # it was raised here; some plugins raise the same one again and again
                error.hook, error.told = self.hook, False
        elif isinstance(error, _OutOfTime):
            self.timeouts += 1
            outcome = "timeout"
            raised = HookError(self.plugin, self.hook, f"no answer within {self.seconds:g} s")
        elif not isinstance(error, (UpstreamError, HookError)):
            self.errors += 1
            if not (self.hook == "start" and isinstance(error, AgentfwError)):
                raised = HookError(self.plugin, self.hook, type(error).__name__)
        if self.trace is not None:
            self.trace(self, args, outcome, took)
        if raised is error:
            raise error
        raise raised from error

    def _held_up(self, took: int) -> None:
        """Once may have been the machine, which had other things to do; several times, or for long, was the hook."""
        self.blocked += 1
        again = self.blocked >= 3 and self.blocked * 10 >= self.calls
        if not self.named and (again or took > 10 * self.blocking_ns):
            self.named = True
            log.warning(
                "plugin `%s` held up all agents for %.3f s in `%s`; it should wait with `await`, or use a thread",
                self.plugin, took / 1e9, self.hook,
            )  # fmt: skip

    async def _await(self, awaitable: Any) -> Any:
        coroutine: Coroutine[Any, Any, Any] = awaitable if type(awaitable) is types.CoroutineType else _plain(awaitable)
        try:
            waits_for = self._step(coroutine.send, None)
        except StopIteration as done:
            return done.value
        with _TimeLimit(self.seconds) as limit:
            return await self._rest(coroutine, waits_for, limit)

    def _step(self, step: Callable[[Any], Any], value: object) -> Any:
        start = _now()
        try:
            return step(value)
        finally:
            took = _now() - start
            if took > self.blocking_ns:
                self._held_up(took)

    @types.coroutine
    def _rest(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any, limit: _TimeLimit) -> Generator[Any, Any, Any]:
        """What `yield from coroutine` would do, from its first wait on."""
        step: Callable[[Any], Any]
        while True:
            try:
                value = yield waits_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                if limit.dropped:
                    with contextlib.suppress(BaseException):  # whatever it says now, nobody waits for it
                        coroutine.close()
                    raise
                step, value = coroutine.throw, error
            else:
                step = coroutine.send
            try:
                waits_for = self._step(step, value)
            except StopIteration as done:
                return done.value


def tell(news: Iterable[tuple[tuple[Call, ...], tuple[object, ...]]], failed: Callable[[Call, AgentfwError], None]) -> None:
    """Call all of them with these arguments, one after the other, never awaiting; `failed` is told what one raised, or that it
    returned something. Who interrupts the process does so when all are told. PERF: as `Call.now()`, but what ends one begins the
    next, and nothing is called in between."""
    interrupted: KeyboardInterrupt | None = None
    start = _now()
    for calls, args in news:
        for call in calls:
            try:
                result = call.function(*args)
            except BaseException as error:
                try:
                    call._fail(args, start, error)
                except AgentfwError as raised:
                    failed(call, raised)
                except KeyboardInterrupt as raised:
                    interrupted = raised
                start = _now()
                continue
            end = _now()
            took = end - start
            start = end
            call.calls += 1
            call.buckets[bisect_left(HOOK_NS, took)] += 1
            call.total_ns += took
            if took > call.longest_ns:
                call.longest_ns = took
            if took > call.blocking_ns:
                call._held_up(took)
                start = _now()  # what is written of one is not the next one's time
            if call.trace is not None:
                call.trace(call, args, _outcome(result), took)
                start = _now()
            if result is not None:
                failed(call, call.nonsense(result))
                start = _now()
    if interrupted is not None:
        raise interrupted


class _OutOfTime(Exception):
    pass


class _TimeLimit:
    """As asyncio.timeout(), but an answer that comes after it is none. Who does not end when cancelled is cancelled a second
    time, and `dropped`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._fired = 0

    @property
    def dropped(self) -> bool:
        return self._fired > 1

    def __enter__(self) -> _TimeLimit:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._fire)
        return self

    def _fire(self) -> None:
        self._fired += 1
        self._task.cancel()
        if self._fired == 1:
            self._timer = asyncio.get_running_loop().call_later(GRACE, self._fire)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None) -> None:
        self._timer.cancel()
        for _ in range(self._fired):
            self._task.uncancel()
        ours = self._task.cancelling() <= self._cancelling
        if self._fired and (kind is None or (ours and issubclass(kind, asyncio.CancelledError))):
            raise _OutOfTime from error


async def _plain(awaitable: Any) -> Any:
    return await awaitable


def _awaitable(result: object) -> bool:
    """inspect.isawaitable(), sooner for the two that are common."""
    kind = type(result)
    return kind is types.CoroutineType or (kind not in (bytes, bytearray) and inspect.isawaitable(result))


def _outcome(result: object) -> str:
    return "ok" if result is None else str(result).lower() if isinstance(result, bool) else type(result).__name__


def is_wanted(error: BaseException) -> bool:
    """Somebody ends what runs. sys.exit() in a plugin, and a cancellation that nobody asked for, are mistakes as others are: they
    must end neither the command nor, in silence, a flow."""
    return isinstance(error, (KeyboardInterrupt, GeneratorExit)) or (isinstance(error, asyncio.CancelledError) and _cancelled())


def _cancelled() -> bool:
    """Somebody is cancelling the running task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0
