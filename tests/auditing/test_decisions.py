"""Every decision: permitted and refused, by which rule; those alike told together; who does not want it is not called."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from agentfw import Agent, Denied, Destination, RequestHead, dns_wire, hookimpl
from agentfw.config import load_config
from agentfw.errors import HookError, PluginError
from agentfw.plugins import PluginManager, load_plugins
from agentfw.plugins.fitting import TELLING
from agentfw.reports import Decision
from agentfw.runtime import Runtime
from agentfw.testing import make_agent
from agentfw_audit import Config, Plugin, answers, decisions

from tests.core.support import (
    Loopback,
    Names,
    Recorder,
    TlsOnce,
    async_test,
    guest,
    lookup,
    offload,
    read_response,
    running,
    serving,
)

HOST = "api.example"


class Heard:
    name = "heard"

    def __init__(self) -> None:
        self.all: list[tuple[str, str, Decision]] = []
        self.idle_hooks: frozenset[str] = frozenset()

    @hookimpl
    def decided(self, agent: Agent, destination: Destination | None, decision: Decision) -> None:
        self.all.append((agent.name, str(destination), decision))


class Rules:
    name = "rules"

    @hookimpl
    def allow(self, destination: Destination) -> str | None:
        if destination.host.startswith("no"):
            raise Denied("rules: no", "it is \x1b[31mnot\x1b[0m")
        if destination.host.startswith("broken"):
            raise ValueError("secret")
        return None if destination.host.startswith("shrug") else f"rules: {destination.host}"

    @hookimpl
    def dial(self, address: str) -> bool | None:
        return True if address == "127.0.0.1" else None

    @hookimpl
    def request(self, head: RequestHead) -> None:
        head.target += "&key=sk-real"
        if "denied" in head.target:
            raise Denied("rules: path", "not that")


def manager(*plugins: Any) -> PluginManager:
    made = PluginManager()
    for number, plugin in enumerate(plugins):
        made.add(getattr(plugin, "name", f"p{number}"), plugin)
    made.compile()
    return made


@async_test
async def test_each_answer_of_the_rules_is_told() -> None:
    heard = Heard()
    made = manager(Rules(), Rules.__new__(type("Others", (Rules,), {"name": "others"})), heard)
    agent = make_agent("a")
    await made.allow(agent, Destination.make("https", "yes.example"))
    await made.allow(agent, Destination.make("https", "shrug.example"))
    with pytest.raises(Denied):
        await made.allow(agent, Destination.make("tcp", "no.example", 7))
    with pytest.raises(HookError):
        await made.allow(agent, Destination.make("https", "broken.example"))
    assert heard.all == [
        ("a", "https://yes.example:443", Decision(allowed=True, rule="rules: yes.example", plugin="rules")),
        ("a", "https://shrug.example:443", Decision(allowed=True)),
        ("a", "tcp://no.example:7",
         Decision(allowed=False, rule="rules: no", plugin="rules", reason="it is \\x1b[31mnot\\x1b[0m")),
        ("a", "https://broken.example:443",
         Decision(allowed=False, rule="plugin failed: allow", plugin="rules", reason="ValueError")),
    ]  # fmt: skip


@async_test
async def test_a_refusal_is_told_once_whatever_becomes_of_it() -> None:
    """Also if a plugin raises the same one again and again: then each time."""
    again = Denied("again", "and again")

    class Same:
        name = "same"

        @hookimpl
        def allow(self) -> None:
            raise again

    heard = Heard()
    async with running(Same(), heard) as runtime:
        agent, where = make_agent("a"), Destination.make("https", "x.example")
        for _ in range(3):
            with pytest.raises(Denied) as caught:
                await runtime.plugins.allow(agent, where)
            runtime.note(agent, where, caught.value)
            runtime.note(agent, where, caught.value)
        with pytest.raises(Denied) as caught:
            runtime.check_address(agent, where, "10.0.0.1")
        runtime.note(agent, where, caught.value)
        runtime.note(agent, None, Denied("a limit", "of bytes", "somebody"))
        runtime.refused(agent, 3, 2)
        runtime.refused(agent, 0, 0)
    found = [(decision.hook, decision.rule, decision.address, decision.count) for _, _, decision in heard.all]
    assert found == [
        *[("allow", "again", "", 1)] * 3, ("dial", "addresses: public only", "10.0.0.1", 1), ("", "a limit", "", 1),
        ("guest_rules", "guest_rules", "", 5),
    ]  # fmt: skip


@async_test
async def test_starts_and_own_tls_that_are_refused() -> None:
    class Refuses:
        name = "refuses"

        @hookimpl
        def admit(self) -> None:
            raise Denied("refuses: all", "")

        @hookimpl
        def own_tls(self) -> str:
            return "deny"

    heard = Heard()
    made = manager(Refuses(), heard)
    with pytest.raises(Denied):
        await made.admit(make_agent("a"))
    with pytest.raises(Denied):
        await made.own_tls(make_agent("a"), Destination.make("tls", "x.example", 443))
    told = [(where, decision.hook, decision.rule, decision.plugin) for _, where, decision in heard.all]
    assert told == [
        ("None", "admit", "refuses: all", "refuses"),
        ("tls://x.example:443", "own_tls", "own_tls: deny", "refuses"),
    ]


@async_test
async def test_who_does_not_want_it_is_not_called() -> None:
    heard, agent, where = Heard(), make_agent("a"), Destination.make("https", "x.example")
    heard.idle_hooks = frozenset({"decided"})
    made = manager(Rules(), heard)
    assert made.hooks("heard") == ["decided"] and not made.implemented("decided")
    await made.allow(agent, where)
    heard.idle_hooks = frozenset()
    await made.allow(agent, where)
    assert heard.all == []
    made.arrange()
    await made.allow(agent, where)
    assert len(heard.all) == 1 and made.hook_statistics()["hooks.heard.decided.calls"] == 1


def test_only_hooks_that_decide_nothing_can_be_idle() -> None:
    class Sly:
        said = False

        @property
        def idle_hooks(self) -> frozenset[str]:
            return frozenset({"allow", *TELLING} if self.said else TELLING)

        @hookimpl
        def allow(self) -> None:
            raise Denied("no", "no")

    sly = Sly()
    made = manager(sly)
    assert made.implemented("allow")
    sly.said = True  # that it is wrong is logged: what is computed is not known when plugins are loaded
    made.arrange()
    assert made.implemented("allow")


@pytest.mark.parametrize("attribute", ["idle_hooks", "later_hooks"])
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("model_call", "is no set of hooks' names"),  # `("model_call")`: the comma is missing
        (5, "is no set of hooks' names"),
        (None, "is no set of hooks' names"),
        ({"model_cal"}, "names 'model_cal', which is no hook that only tells (did you mean `model_call`?)"),
        (("exchange_end", "allow"), "names 'allow', which is no hook that only tells"),
        ([["exchange_end"]], "names \"['exchange_end']\", which is no hook that only tells"),
    ],
)
def test_lists_that_would_have_no_effect_are_errors_at_start(attribute: str, said: object, message: str) -> None:
    for plugin in (type("Wrong", (), {attribute: said})(), type("Wrong", (), {})()):
        setattr(plugin, attribute, said)  # as in __init__
        with pytest.raises(PluginError, match=re.escape(f"`{attribute}` {message}")) as caught:
            manager(plugin)
        assert caught.value.hint.startswith(f"write `{attribute} = {{")


@pytest.mark.parametrize("said", [("model_call",), ["model_call"], {"model_call", "audit"}, frozenset({"exchange_end"}), ()])
def test_any_collection_of_names_will_do(said: object) -> None:
    manager(type("Right", (), {"later_hooks": said})())


def test_who_does_not_say_it_right_is_called(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Heard):
        name = "broken"

        def __getattribute__(self, name: str) -> Any:
            if name == "idle_hooks":
                raise ValueError("secret")
            return super().__getattribute__(name)

    assert manager(Broken()).implemented("decided")
    assert "plugin `broken` failed in `idle_hooks`: ValueError" in caplog.text and "secret" not in caplog.text


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@async_test
async def test_lines_of_a_call_and_of_one_that_is_refused(tmp_path: Path) -> None:
    """By policy, as it is configured; and no target that a hook has added a secret to."""
    (tmp_path / "agentfw.toml").write_text(
        f'[policy]\nallow_addresses = ["127.0.0.1/32"]\n[[policy.rule]]\nname = "the model"\nhost = "{HOST}"\n'
        'action = "allow"\npaths = ["/v1"]\nmethods = ["GET"]\n'
    )
    config = load_config(tmp_path / "agentfw.toml")
    policy = load_plugins(["policy"], config).get("policy")
    path = tmp_path / "audit.jsonl"
    plugin = Plugin(Config(str(path), events=("decisions",)))
    agent = make_agent("a", team="red")
    async with (
        serving(Recorder(), HOST) as port,
        running(Names(**{HOST: "127.0.0.1"}), Loopback(), TlsOnce(), policy, Rules(), plugin) as runtime,
    ):
        runtime.config = config
        await lookup(runtime, HOST, agent)
        await lookup(runtime, "other.example", agent)
        async with guest(runtime, "127.0.0.1", port, agent=agent) as flow:
            await offload(flow, HOST)
            for target in ("/v1/a?q=1", "/v1/b?q=2", "/v1/denied?token=sk-mine", "/v2"):
                await flow.guest_send(f"GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
                await read_response(flow)
    told = lines(path)
    assert "sk-" not in path.read_text() and {line["event"] for line in told} == {"decision"}
    rule = "policy.rule: the model (agentfw.toml:3)"
    names = [(line["destination"], line["allowed"], line["rule"]) for line in told if line["destination"].startswith("dns")]
    assert names == [(f"dns://{HOST}:53", True, rule), ("dns://other.example:53", False, "policy.default: deny (agentfw.toml:1)")]
    calls = [line for line in told if line["destination"] == f"https://{HOST}:{port}" and line["allowed"]]
    assert calls[0]["rule"] == rule and "count" not in calls[0] and sum(line.get("count", 1) for line in calls) >= 5
    refused = [line for line in told if line["hook"] == "request"]
    assert [(line["rule"].partition(" (")[0], line["plugin"], line["method"], line["target"]) for line in refused] == [
        ("rules: path", "rules", "GET", "/v1/denied"),
        ("policy.default: deny", "policy", "GET", "/v2"),
    ]


def test_those_that_are_alike_are_told_together() -> None:
    told: list[tuple[str, str, int, float | None]] = []
    now = 100.0
    kept = decisions.Decisions(lambda a, d, x, n, since: told.append((a.name, str(d), n, since)), lambda: now)
    agent, other = make_agent("a"), make_agent("b")
    where, there = Destination.make("https", "x.example"), Destination.make("https", "y.example")
    yes = Decision(allowed=True, rule="r")
    for _ in range(3):
        kept.met(agent, where, yes)
        now += 1
    kept.met(agent, where, Decision(allowed=False, rule="r", count=4))
    kept.met(agent, there, yes)
    kept.met(other, where, yes)
    first = [("a", str(where), 1, None), ("a", str(where), 4, None), ("a", str(there), 1, None), ("b", str(where), 1, None)]
    assert told == first
    kept.tell()
    kept.tell()
    assert told == [*first, ("a", str(where), 2, 101.0)]
    kept.met(agent, where, yes)
    kept.forget("a")
    kept.forget("a")
    assert told[5:] == [("a", str(where), 1, 103.0)]
    kept.met(agent, where, yes)  # a flow of its that closes late
    assert told[6:] == [("a", str(where), 1, None)]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MAX_AGENTS", 10)
    counted = 0

    def tell(agent: Agent, destination: Destination | None, decision: Decision, count: int, since: float | None) -> None:
        nonlocal counted
        counted += count

    kept = decisions.Decisions(tell, lambda: 1.0)
    agent = make_agent("a")
    for round_ in range(2):
        for number in range(decisions.MAX_KINDS + 50):
            kept.met(agent, Destination.make("dns", f"n{number}.example"), Decision(allowed=True))
        assert len(kept._agents[agent.id]) == decisions.MAX_KINDS
        for number in range(15):
            kept.met(make_agent(str(number)), None, Decision(allowed=True))
            assert len(kept._agents) <= 10, round_
    kept.tell()
    assert counted == 2 * (decisions.MAX_KINDS + 50 + 15) and not kept._counted


@async_test
async def test_questions_with_what_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    plugin = Plugin(Config(str(path), events=("questions",)))
    agent = make_agent("a")
    async with running(Names(**{HOST: "127.0.0.1", "no.example": "127.0.0.1"}), Rules(), plugin) as runtime:
        await lookup(runtime, HOST, agent)
        await lookup(runtime, "no.example", agent)
        await lookup(runtime, "unknown.example", agent)
    told = [(line["name"], line["qtype"], line["rcode"], line.get("addresses"), line.get("rule")) for line in lines(path)]
    assert told == [
        (HOST, 1, 0, ["10.0.2.2"], None), ("no.example", 1, 5, None, "rules: no"), ("unknown.example", 1, told[2][2], None, None),
    ]  # fmt: skip
    assert told[2][2] in (2, 3)


def test_long_answers_are_told_and_not_kept() -> None:
    query = dns_wire.make_query("long.example", dns_wire.A)
    read = dns_wire.parse_query(query)
    for count, kept in ((3, 1), (2000, 0)):
        reply = dns_wire.make_reply(query, read, [(f"192.0.{number >> 8}.{number & 255}", 60) for number in range(count)])
        before = answers._read.cache_info().currsize
        assert answers.addresses(dns_wire.A, reply)[:3] == ("192.0.0.0", "192.0.0.1", "192.0.0.2")
        assert answers._read.cache_info().currsize - before == kept and answers.addresses(dns_wire.MX, reply) == ()


@async_test
async def test_nothing_is_lost_at_the_end_and_events_choose(tmp_path: Path) -> None:
    plugin = Plugin(Config(str(tmp_path / "a"), events=("decisions",)))
    assert plugin.idle_hooks == {"audit", "exchange_end", "flow_end", "model_call", "job_event", "question_end"}
    async with running(Rules(), plugin) as runtime:
        assert isinstance(runtime, Runtime) and not runtime.plugins.implemented("exchange_end")
        for _ in range(50):
            await runtime.plugins.allow(make_agent("a"), Destination.make("https", "x.example"))
    first, rest = lines(tmp_path / "a")
    assert "count" not in first and rest["count"] == 49 and rest["since"] <= rest["time"] and rest["since"] >= first["time"]
