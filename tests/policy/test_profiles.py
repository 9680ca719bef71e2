"""Whose rules: profiles by label, by labels and names, inheritance."""

from __future__ import annotations

from typing import Any

import pytest
from agentfw import Agent, ConfigError, Denied, Destination, ExitReport
from agentfw.guest_rules import FileRule
from agentfw.testing import make_agent, make_runtime
from agentfw_policy import Plugin

from ..core.support import async_test
from .support import asked, policy, verdict

PROFILES: dict[str, Any] = {
    "allow": ["base.example"],
    "deny": ["never.example"],
    "own_tls": "deny",
    "limits": {"requests": 5, "bytes": "1M"},
    "files": {"deny": ["/base/**"]},
    "profile": {
        "red": {"labels": {"team": "red"}, "allow": ["red.example", "never.example"], "limits": {"requests": 7}},
        "both": {"extends": ["red", "default"], "allow": ["both.example"], "own_tls": "intercept", "limits": {"bytes": "none"}},
        "named": {"agents": ["worker-*", "boss"], "default": "allow", "mode": "report", "files": {"hide": ["/named"]}},
        "late": {"labels": {"team": ["red", "blue"]}, "agents": ["x"]},
    },
}


def profile(plugin: Plugin, name: str = "a", **labels: str) -> str:
    return plugin._policy.choose(Agent(name, name, labels)).name


def test_choice() -> None:
    plugin = policy(**PROFILES)
    assert profile(plugin) == "default" and profile(plugin, policy="both") == "both"
    assert profile(plugin, team="red") == "red" and profile(plugin, "worker-9", team="red") == "red", "the first that fits"
    assert profile(plugin, "worker-9") == profile(plugin, "boss") == "named" and profile(plugin, "WORKER-1") == "default"
    assert profile(plugin, "x", team="blue") == "late" and profile(plugin, "y", team="blue") == "default"
    assert profile(plugin, "worker-9", team="red", policy="default") == "default", "its label goes before"


@async_test
async def test_a_profile_that_is_not_there_is_an_error_before_the_start() -> None:
    plugin = policy(**PROFILES)
    runtime = make_runtime(plugin)
    await runtime.start()
    await runtime.admit(make_agent("good", policy="red"))
    agent = make_agent("bad", policy="rde")
    with pytest.raises(Denied) as caught:
        await runtime.admit(agent)
    assert caught.value.rule == "label policy=rde" and "did you mean `red`?" in caught.value.reason
    assert verdict(plugin, "tcp://base.example:1", agent) == "label policy=rde", "not the default in silence"
    with pytest.raises(Denied):
        plugin.guest_rules(agent)
    await runtime.stop()


def test_inheritance() -> None:
    plugin = policy(**PROFILES)
    agents = {name: make_agent(name, policy=name) for name in ("default", "red", "both", "named")}
    expected = {
        "default": {"base.example"},
        "red": {"red.example"},
        "both": {"base.example", "red.example", "both.example"},
        "named": {"base.example", "red.example", "both.example"},
    }
    for name, agent in agents.items():
        for host in ("base.example", "red.example", "both.example"):
            assert (verdict(plugin, f"https://{host}:443", agent) == "allowed") == (host in expected[name]), (name, host)
    for name in ("default", "red", "both"):
        assert verdict(plugin, "https://never.example:443", agents[name]) == "policy.deny: never.example", "[policy]'s deny holds"
    assert verdict(plugin, "https://x.example:443", agents["red"]) == "policy.profile.red.default: deny"
    assert verdict(plugin, "tls://red.example:443", agents["red"]) == "policy.own_tls: deny"
    assert plugin.own_tls(agents["both"], Destination.make("tls", "red.example", 443)) == "intercept"
    limits = {name: plugin._policy.profiles[name].limits for name in agents}
    assert [limits[name].number("requests") for name in agents] == [5, 7, 7, 5]
    assert [limits[name].number("bytes") for name in agents] == [1 << 20, 1 << 20, None, 1 << 20]
    assert plugin.guest_rules(agents["red"]).files == (FileRule("/base/**", "deny"),)
    assert set(plugin.guest_rules(agents["named"]).files) == {FileRule("/base/**", "deny"), FileRule("/named", "hide")}


@pytest.mark.parametrize(
    ("profiles", "key", "text"),
    [
        ({"a": {"extends": "b"}}, "profile.a.extends", "there is no [policy.profile.b]"),
        ({"a": {"extends": ["default", "b"]}}, "profile.a.extends.1", "there is no"),
        ({"a": {"extends": "b"}, "b": {"extends": ["a"]}}, "profile.b.extends", "a -> b -> a"),
        ({"a": {"extends": "a"}}, "profile.a.extends", "a -> a"),
        ({"default": {}}, "profile.default", "cannot be a profile's name"),
        ({"a": {"limits": {"bytes": "1X"}}}, "profile.a.limits.bytes", "is no size"),
        ({"a": {"rule": [{"action": "allow", "paths": ["x"]}]}}, "profile.a.rule.0.paths", "begins with"),
        ({"a": {"syscalls": {"deny": ["opne"]}}}, "profile.a.syscalls.deny.0", "open"),
    ],
)  # fmt: skip
def test_mistakes(profiles: dict[str, Any], key: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(profile=profiles)
    assert caught.value.key == key and text in caught.value.message


def test_deep_and_wide_inheritance() -> None:
    """Twenty layers of two profiles that extend both of the next: a million ways through them, and forty profiles. A chain of a
    thousand is a mistake, and told as one."""
    layers = {f"{side}{n}": {"extends": [f"a{n + 1}", f"b{n + 1}"]} for n in range(20) for side in "ab"}
    plugin = policy(profile={**layers, "a20": {"allow": ["deep.example"]}, "b20": {}})
    assert verdict(plugin, "tcp://deep.example:1", make_agent("a", policy="a0")) == "allowed"
    with pytest.raises(ConfigError, match="too deep") as caught:
        policy(profile={**{f"p{n}": {"extends": f"p{n + 1}"} for n in range(1000)}, "p1000": {}})
    assert caught.value.key.endswith(".extends")


def test_agents_of_different_profiles_share_no_connection() -> None:
    plugin = policy(**PROFILES)
    assert plugin.tenant(make_agent("a")) is None
    assert plugin.tenant(make_agent("b", team="red")) == plugin.tenant(make_agent("c", policy="red")) != None  # noqa: E711
    assert plugin.tenant(make_agent("d", policy="both")) != plugin.tenant(make_agent("e", policy="red"))


def test_nothing_is_kept_of_agents_that_ended() -> None:
    plugin = policy(**PROFILES)
    for number in range(3000):
        agent = Agent(str(number), "a", {"team": "red"})
        assert asked(plugin, "GET /", "https://red.example:443", agent) == "allowed"
        plugin.exit(agent, ExitReport("code"))
    assert not plugin._states and len(plugin._ended) <= 1024 and not plugin._open
    assert verdict(plugin, "https://red.example:443", agent) == "policy: the agent has ended"
