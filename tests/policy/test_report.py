"""Report-only mode: it passes, is counted, told once, and audited; what is not public stays refused."""

from __future__ import annotations

import logging

import pytest
from agentfw import Destination, hookimpl
from agentfw.reports import AuditEvent
from agentfw.testing import FakeServer, PathError, fetch, make_agent, running

from ..core.support import async_test
from .support import AGENT, asked, policy, verdict


class Auditor:
    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        self.events.append(event)


def test_the_whole_policy(caplog: pytest.LogCaptureFixture) -> None:
    plugin = policy(
        mode="report",
        allow=["a.example"],
        deny=["bad.example", "8.8.4.4"],
        own_tls="deny",
        limits={"requests": 1},
        rule=[
            {"action": "allow", "host": "p.example", "paths": ["/v1"]},
            {"action": "deny", "host": "hard.example", "mode": "enforce"},
        ],
    )
    for where in ("tcp://bad.example:1", "dns://other.example:53", "tls://a.example:443", "udp://p.example:443"):
        assert verdict(plugin, where) == "allowed"
    assert plugin.own_tls(AGENT, Destination.make("tls", "a.example", 443)) == "passthrough"
    assert plugin.dial(AGENT, Destination.make("tcp", "a.example", 1), "8.8.4.4") is None, "core's address safety has the word"
    for request in ("GET /v2", "GET /v1/../x", "GET /v1"):
        assert asked(plugin, request, "https://p.example:443", upgrade="websocket") == "allowed"
    assert verdict(plugin, "tcp://hard.example:1") == "policy.rule: deny hard.example"
    assert plugin.statistics()["reported"] == 12 and plugin.statistics()["denied"] == 1
    told = [record.message for record in caplog.records if record.name == "agentfw.policy"]
    assert all(record.levelno == logging.WARNING for record in caplog.records) and len(told) == len(set(told)) == 8
    assert any("would be denied by policy.deny: bad.example: bad.example port 1 is on the deny list" in text for text in told)
    before = len(told)
    for _ in range(3):
        assert verdict(plugin, "tcp://bad.example:1") == "allowed"
    assert len(caplog.records) == before and plugin.statistics()["reported"] == 18


def test_one_rule_and_its_limits() -> None:
    plugin = policy(
        allow=["*"],
        rule=[
            {"action": "deny", "host": "soon.example", "mode": "report"},
            {"action": "deny", "host": "*.soon.example"},
            {"action": "allow", "host": "l.example", "limits": {"requests": 1}, "mode": "report"},
            {"action": "allow", "host": "m.example", "limits": {"requests": 1}},
            {"action": "deny", "host": "q.example", "methods": ["PUT"], "mode": "report"},
        ],
    )
    assert verdict(plugin, "tcp://soon.example:1") == "allowed" and verdict(plugin, "tcp://a.soon.example:1") != "allowed"
    assert [asked(plugin, "GET /", "https://l.example:443") for _ in range(2)] == ["allowed", "allowed"]
    assert [asked(plugin, "GET /", "https://m.example:443") for _ in range(2)][1] != "allowed"
    assert asked(plugin, "PUT /", "https://q.example:443") == verdict(plugin, "tcp://q.example:1") == "allowed"
    assert plugin.statistics()["reported"] == 4


def test_what_is_told_of_one_agent_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    plugin = policy(mode="report")
    for number in range(3000):
        verdict(plugin, f"tcp://host{number}.example:1")
    assert len(caplog.records) == 1000 and plugin.statistics()["reported"] == 3000


@async_test
async def test_audited_and_still_not_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    auditor = Auditor()
    plugin = policy(mode="report", limits={"bytes_down": 10})
    async with running(plugin, auditor, FakeServer()) as runtime:
        agent = make_agent("one", team="red")
        for _ in range(2):
            assert (await fetch(runtime, "https://any.example/x", agent=agent)).status == 200
        with pytest.raises(PathError):
            await fetch(runtime, "http://10.0.0.1/", agent=agent)
        reported = [event for event in auditor.events if event.kind == "report_only"]
        rules = [(event.rule, event.destination) for event in reported]
        assert len(set(rules)) == len(rules) and ("policy.limits.bytes_down: 10", "") in rules
        assert ("policy.default: deny", "dns://any.example:53") in rules and (
            "policy.default: deny",
            "https://any.example:443",
        ) in rules
        assert {(event.agent, event.plugin, event.labels["team"]) for event in reported} == {("one", "policy", "red")}
