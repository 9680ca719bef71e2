"""An agent that makes a plugin fail at will does not fill the log: each kind of failure is told a few times, and again later."""

from __future__ import annotations

import logging

import pytest
from agentfw import Destination, RequestHead, ResponseHead, hookimpl
from agentfw.errors import HookError
from agentfw.plugins.failures import MOST, MOST_KINDS, PERIOD, FailureLog
from agentfw.reports import AuditEvent, FlowReport
from agentfw.testing import FakeServer, fetch, running

from .support import async_test

LOG = logging.getLogger("agentfw.plugins")


def failed(plugin: str, cause: type[Exception] = KeyError, line: int = 1) -> HookError:
    error = HookError(plugin, "allow", cause.__name__)
    try:
        exec("\n" * line + "raise cause", {"cause": cause})
    except Exception as raised:
        error.__cause__ = raised
    return error


def test_each_kind_is_told_a_few_times_and_again_later(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    failures = FailureLog(lambda: now[0])
    kinds = [failed("p"), failed("q"), failed("p", ValueError), failed("p", line=2), ValueError(), KeyError()]
    for number in range(3 * MOST):
        now[0] += 1
        for kind in kinds:
            failures.tell(LOG, kind, "%d: %s", number, kind)
    assert len(caplog.records) == len(kinds) * MOST
    first = caplog.records[0]
    assert first.levelno == logging.ERROR and first.exc_info is not None and first.exc_info[1] is kinds[0].__cause__
    assert "the 5th time; more are told in 60 s" in caplog.messages[-1]
    caplog.clear()
    now[0] += PERIOD
    failures.tell(LOG, kinds[0], "%s", kinds[0])
    failures.tell(LOG, kinds[0], "%s", kinds[0])
    assert [f"{2 * MOST} more since" in text for text in caplog.messages] == [True, False]


def test_nothing_is_lost_to_who_debugs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    failures = FailureLog(lambda: 0)
    for number in range(3 * MOST):
        failures.tell(LOG, failed("p"), "%d", number)
    assert len(caplog.records) == 3 * MOST and not caplog.records[-1].exc_info


def test_the_number_of_kinds_is_bounded() -> None:
    failures = FailureLog()
    for line in range(2 * MOST_KINDS):
        failures.tell(LOG, failed("p", line=line), "")
    assert len(failures._told) == MOST_KINDS


class Fails:
    """In the hooks that an agent's every request calls."""

    name = "fails"
    events = 0
    where = ""

    def fail(self, hook: str) -> None:
        if self.where == hook:
            raise RuntimeError("secret")

    @hookimpl
    def allow(self, destination: Destination) -> None:
        if destination.scheme == "dns":
            self.fail("allow")

    @hookimpl
    def request(self, head: RequestHead) -> None:
        self.fail("request")

    @hookimpl
    def response(self, head: ResponseHead) -> None:
        def transform(piece: bytes, last: bool) -> bytes:
            self.fail("transform")
            return piece

        head.transforms.append(transform)

    @hookimpl
    def flow_end(self, flow: FlowReport) -> None:
        self.fail("flow_end")

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        self.events += event.kind in ("plugin_failed", "internal_error")
        self.fail("audit")


@pytest.mark.parametrize("where", ["allow", "request", "transform", "flow_end"])
@async_test
async def test_an_agent_cannot_fill_the_log(where: str, caplog: pytest.LogCaptureFixture) -> None:
    plugin = Fails()
    plugin.where = where
    async with running(plugin, FakeServer()) as runtime:
        for _ in range(4 * MOST):
            try:
                await fetch(runtime, "https://api.example/")
            except Exception:  # each kind in its own way
                assert where in ("allow", "transform")
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert len(tracebacks) == MOST and len(caplog.records) == MOST, caplog.messages
    if where == "flow_end":
        assert runtime.statistics()["hooks.fails.flow_end.errors"] >= 4 * MOST
    else:
        assert plugin.events == 4 * MOST, "the audit has each"
