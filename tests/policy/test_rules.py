"""Lists and rules: hosts, ports, networks, methods, paths, and what cannot be held against them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agentfw import ConfigError, Denied, Destination
from agentfw.config import load_config
from agentfw.plugins import load_plugins
from agentfw.runtime import Runtime
from agentfw.testing import make_agent, make_runtime

from ..core.support import async_test
from .support import AGENT, asked, policy, verdict

DEFAULT = "policy.default: deny"


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("api.openai.com", 443, True), ("API.OpenAI.com.", 8080, True), ("x.api.openai.com", 443, False),
        ("openai.com", 443, False), ("api.openai.com.evil.example", 443, False),
        ("a.anthropic.com", 443, True), ("a.b.anthropic.com", 443, True), ("anthropic.com", 443, False),
        ("a.anthropic.com", 80, False), ("evilanthropic.com", 443, False),
        ("xn--mnchen-3ya.example", 1, True), ("10.1.2.3", 5432, True), ("10.1.2.3", 80, False), ("10.2.0.9", 1, True),
        ("10.3.0.9", 1, False), ("2001:db8::1", 9, True), ("::ffff:10.1.2.3", 5432, True),
        ("10.4.0.1", 22, True), ("10.4.0.1", 23, False), ("2001:db8:1::5", 22, True), ("2001:db8:1::5", 23, False),
        ("10.5.0.1", 1, True),
    ],
)  # fmt: skip
def test_allow_lists(host: str, port: int, allowed: bool) -> None:
    plugin = policy(
        allow=["api.openai.com", "*.anthropic.com:443", "M\u00fcnchen.example", "10.1.2.3:5432", "10.2.0.0/16", "2001:db8::1",
               "10.4.0.0/16:22", "[2001:db8:1::/64]:22", "::ffff:10.5.0.0/112"],
    )  # fmt: skip
    for scheme in ("https", "http", "tcp", "udp", "tls"):
        assert (verdict(plugin, f"{scheme}://{host}:{port}") == "allowed") == allowed


def test_names_are_asked_for_without_a_port() -> None:
    plugin = policy(
        allow=["*.anthropic.com:443"],
        deny=["bad.anthropic.com", "half.anthropic.com:80"],
        rule=[
            {"action": "allow", "host": "files.example", "paths": ["/a"], "port": 8443},
            {"action": "deny", "host": "files.example", "methods": ["PUT"]},
        ],
    )
    assert verdict(plugin, "dns://a.anthropic.com:53") == "allowed"
    assert verdict(plugin, "dns://half.anthropic.com:53") == "allowed"
    assert verdict(plugin, "dns://files.example:53") == "allowed"
    assert verdict(plugin, "dns://bad.anthropic.com:53") == "policy.deny: bad.anthropic.com"
    assert verdict(plugin, "dns://secret.attacker.example:53") == DEFAULT


def test_deny_wins_and_default_allow() -> None:
    plugin = policy(allow=["*"], deny=["*.internal.example", "evil.example:25"])
    assert verdict(plugin, "tcp://a.internal.example:1") == "policy.deny: *.internal.example"
    assert verdict(plugin, "tcp://evil.example:25") == "policy.deny: evil.example:25"
    assert verdict(plugin, "tcp://evil.example:26") == "allowed"
    assert verdict(plugin, "tcp://1.2.3.4:26") == DEFAULT, "* is every name, not every address"
    open_ = policy(default="allow", deny=["10.0.0.0/8"], own_tls="deny")
    assert verdict(open_, "tcp://whatever.example:1") == "allowed"
    assert verdict(open_, "tcp://10.1.1.1:1") == "policy.deny: 10.0.0.0/8"
    assert verdict(open_, "tls://whatever.example:1") == "policy.own_tls: deny"


def test_addresses() -> None:
    plugin = policy(
        allow=["a.example", "192.168.1.1:80", "192.168.7.0/24"],
        allow_addresses=["127.0.0.1", "fd00::/8"],
        deny=["8.8.4.4", "127.0.0.2", "9.9.9.0/24:53"],
        rule=[{"action": "deny", "host": "4.4.4.4", "methods": ["PUT"]}, {"action": "allow", "port": 7, "methods": ["GET"]}],
    )
    name = Destination.make("tcp", "a.example", 80)
    assert plugin.dial(AGENT, name, "127.0.0.1") is True and plugin.dial(AGENT, name, "fd12::1") is True
    assert plugin.dial(AGENT, name, "127.0.0.3") is None and plugin.dial(AGENT, name, "8.8.8.8") is None
    for literal, port, expected in (
        ("192.168.1.1", 80, True),
        ("192.168.1.1", 81, None),
        ("192.168.7.9", 1, True),
        ("10.0.0.1", 7, None),
    ):
        assert plugin.dial(AGENT, Destination.make("tcp", literal, port), literal) is expected
    assert plugin.dial(AGENT, name, "192.168.1.1") is None, "an allowed address is not one that any name may resolve to"
    for address in ("8.8.4.4", "127.0.0.2", "4.4.4.4"):
        with pytest.raises(Denied):
            plugin.dial(AGENT, name, address)
    assert plugin.dial(AGENT, name, "9.9.9.9") is None, "another port"
    assert plugin.dial(AGENT, Destination.make("dns", "a.example"), "9.9.9.9") is None, "for DNS the port is not known"
    with pytest.raises(Denied) as caught:
        plugin.dial(AGENT, Destination.make("udp", "other.example", 53), "9.9.9.9")
    assert caught.value.reason == "9.9.9.9 (for other.example) is on the deny list"
    with pytest.raises(Denied) as caught:
        plugin.dial(AGENT, Destination.make("udp", "third.example", 53), "9.9.9.9")
    assert "third.example" in caught.value.reason, "another agent's name must not be told"


@pytest.mark.parametrize(
    "address",
    ["8.8.4.4", "::ffff:8.8.4.4", "64:ff9b::8.8.4.4", "64:ff9b:1::808:404", "64:ff9b:1:808:4:400::", "2002:808:404::1",
     "2001:0:808:404::1", "2001:0:1:1::f7f7:fbfb", "2600::5efe:8.8.4.4", "::8.8.4.4"],
)  # fmt: skip
def test_an_address_is_denied_in_every_embedding(address: str) -> None:
    for denied in ("8.8.4.4", "8.8.0.0/16"):
        plugin = policy(default="allow", deny=[denied])
        assert verdict(plugin, f"tcp://[{address}]:1") == f"policy.deny: {denied}"
        with pytest.raises(Denied):
            plugin.dial(AGENT, Destination.make("tcp", "a.example", 1), Destination.make("tcp", address, 1).host)
    assert verdict(policy(default="allow", deny=["8.8.4.5"]), f"tcp://[{address}]:1") == "allowed"


def test_methods_and_paths() -> None:
    plugin = policy(
        rule=[
            {"action": "allow", "host": "api.example", "port": 443, "methods": ["GET", "HEAD"], "paths": ["/v1", "/b/"]},
            {"action": "allow", "hosts": ["api.example", "*.up.example"], "methods": ["POST"]},
            {"action": "deny", "paths": ["/v1/secret"], "name": "secrets"},
        ]
    )
    for request, rule in (
        ("GET /v1", "allowed"), ("GET /v1/", "allowed"), ("GET /v1/a?x=/../..", "allowed"), ("HEAD /v1/a", "allowed"),
        ("GET /v10", DEFAULT), ("GET /", DEFAULT), ("GET /V1/a", DEFAULT), ("get /v1/a", DEFAULT), ("PUT /v1/a", DEFAULT),
        ("GET /b/c", "allowed"), ("GET /b", DEFAULT), ("POST /anything", "allowed"), ("GET /v1/%61", "allowed"),
        ("GET /v1/secret", "policy.rule: secrets"), ("GET /v1/secret/x", "policy.rule: secrets"),
        ("POST /V1/sEcret.json", "policy.rule: secrets"), ("GET /%76%31/%73ecret", "policy.rule: secrets"),
        ("GET /v1/secrets", "allowed"), ("OPTIONS *", DEFAULT),
    ):  # fmt: skip
        assert asked(plugin, request) == rule, request
    assert asked(plugin, "GET /v1", "https://api.example:444") == DEFAULT
    assert asked(plugin, "POST /v1", "http://x.up.example:80") == "allowed"
    assert asked(plugin, "POST /v1", "http://up.example:80") == DEFAULT


def test_other_ways_to_name_a_method_or_a_path_are_refused() -> None:
    plugin = policy(rule=[{"action": "allow", "host": "api.example", "methods": ["GET"], "paths": ["/"]}])
    assert asked(plugin, "GET /a", headers={"X-Other": "DELETE"}) == "allowed"
    for name in ("X-HTTP-Method-Override", "x_http_method_override", "X-Original-URL", "X-Rewrite-Url"):
        assert asked(plugin, "GET /a", headers={name: "DELETE"}).startswith("policy.rule: ")
        assert asked(policy(allow=["api.example"]), "GET /a", headers={name: "DELETE"}) == "allowed"
    assert asked(plugin, "GET /a?b=1&%5fMethod=DELETE").startswith("policy.rule: ")
    assert asked(plugin, "GET /a?x=_method") == "allowed"


def test_what_cannot_be_checked_is_refused_unless_the_rule_says_otherwise() -> None:
    allowing: dict[str, Any] = {"action": "allow", "host": "a.example", "paths": ["/v1"]}
    denying: dict[str, Any] = {"action": "deny", "host": "b.example", "methods": ["PUT"]}
    strict, lax = (
        policy(allow=["b.example"], rule=[allowing | more, denying | more]) for more in ({}, {"raw": True, "upgrade": True})
    )
    for host in ("a.example", "b.example"):
        for scheme in ("tcp", "udp", "tls"):
            assert verdict(strict, f"{scheme}://{host}:443").startswith("policy.rule: "), (scheme, host)
            assert verdict(lax, f"{scheme}://{host}:443") == "allowed"
        for scheme in ("https", "http", "dns"):
            assert verdict(strict, f"{scheme}://{host}:443") == "allowed"
        where = f"https://{host}:443"
        assert asked(strict, "GET /v1", where) == asked(lax, "GET /v1", where, upgrade="websocket") == "allowed"
        assert asked(strict, "GET /v1", where, upgrade="websocket").startswith("policy.rule: ")
    assert asked(lax, "GET /v2", "https://a.example:443", upgrade="websocket") == DEFAULT
    assert asked(lax, "PUT /v2", "https://b.example:443", upgrade="websocket").startswith("policy.rule: ")
    assert verdict(policy(allow=["a.example"], rule=[allowing]), "tcp://a.example:443") == "allowed", "there is nothing to check"


def test_tls_of_their_own() -> None:
    plugin = policy(
        allow=["*"],
        own_tls="intercept",
        rule=[
            {"action": "allow", "host": "*.example", "own_tls": "passthrough"},
            {"action": "allow", "host": "bank.example", "own_tls": "deny", "name": "bank"},
            {"action": "allow", "host": "paths.test", "paths": ["/v1"]},
            {"action": "deny", "host": "paths.test", "methods": ["PUT"]},
        ],
    )
    assert plugin.intercepts and not policy(own_tls="deny").intercepts

    def own_tls(host: str) -> str | None:
        return plugin.own_tls(AGENT, Destination.make("tls", host, 443))

    assert (own_tls("a.test"), own_tls("a.example"), own_tls("paths.test")) == ("intercept", "passthrough", "intercept")
    with pytest.raises(Denied) as caught:
        own_tls("bank.example")
    assert caught.value.rule == "policy.rule: bank, own_tls: deny"
    assert (
        verdict(plugin, "tls://bank.example:443") == caught.value.rule
        and verdict(plugin, "https://bank.example:443") == "allowed"
    )
    assert verdict(plugin, "tls://paths.test:443").startswith("policy.rule: "), "bytes inside TLS that are no HTTP"
    assert policy(allow=["*"]).own_tls(AGENT, Destination.make("tls", "a.test", 443)) is None


def test_rules_for_labels() -> None:
    plugin = policy(
        allow=["a.example"],
        rule=[
            {"action": "allow", "host": "b.example", "labels": {"team": ["red", "blue"]}},
            {"action": "deny", "host": "a.example", "labels": {"team": "red", "stage": "test"}},
        ],
    )
    red, blue, test = make_agent("red", team="red"), make_agent("blue", team="blue"), make_agent("t", team="red", stage="test")
    for agent, a, b in ((AGENT, True, False), (red, True, True), (blue, True, True), (test, False, True)):
        assert (
            verdict(plugin, "tcp://a.example:1", agent) == "allowed",
            verdict(plugin, "tcp://b.example:1", agent) == "allowed",
        ) == (a, b)


def test_ports() -> None:
    plugin = policy(rule=[{"action": "allow", "hosts": ["a.example", "b.example:9"], "ports": [443, "8000-8010"]},
                          {"action": "deny", "port": "8005-8006", "name": "five"}])  # fmt: skip
    for host, port, rule in (("a", 443, "allowed"), ("a", 8000, "allowed"), ("a", 8010, "allowed"), ("a", 8011, DEFAULT),
                             ("a", 8005, "policy.rule: five"), ("b", 443, DEFAULT), ("b", 9, DEFAULT)):  # fmt: skip
        assert verdict(plugin, f"tcp://{host}.example:{port}") == rule


@pytest.mark.parametrize(
    "pattern",
    ["", "a b", "*.1.2.3.4", "a.*.b", "*a.b", "a:0", "a:b", "10.0.0.1/8", "0177.0.0.1", "http://a", "*.", "::1%lo", "1.2.3",
     "10.0.0.0/8:0", "[10.0.0.0/8", "[2001:db8::/32]443", "*:70000", "/", "a/b"],
)  # fmt: skip
def test_bad_patterns_are_refused_at_start(pattern: str) -> None:
    for table, key in (
        ({"allow": ["good.example", pattern]}, "allow.1"),
        ({"profile": {"x": {"deny": ["good.example", pattern]}}}, "profile.x.deny.1"),
        ({"rule": [{"action": "deny", "hosts": ["b.example", pattern]}]}, "rule.0.hosts"),
    ):
        with pytest.raises(ConfigError) as caught:
            policy(**table)
        assert caught.value.key == key


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ({"methods": ["get"]}, "methods"), ({"methods": ["GET /"]}, "methods"), ({"paths": ["v1"]}, "paths"),
        ({"paths": ["/a/../b"]}, "paths"), ({"paths": ["/a//b"]}, "paths"), ({"paths": ["/a?b"]}, "paths"),
        ({"paths": ["/a%2fb"]}, "paths"), ({"port": 0}, "port"), ({"ports": ["9-8"]}, "ports"), ({"port": "x"}, "port"),
        ({"raw": True}, "raw"), ({"upgrade": True}, "upgrade"), ({"action": "deny", "own_tls": "deny"}, "own_tls"),
        ({"action": "deny", "limits": {"requests": 1}}, "limits"), ({"limits": {"bytes": "x"}}, "limits.bytes"),
        ({"limits": {"requests": -1}}, "limits.requests"),
        ({"limits": {"requests_per_second": 0.0}}, "limits.requests_per_second"),
        ({"limits": {"burst": 0}}, "limits.burst"),
    ],
)  # fmt: skip
def test_bad_rules_are_refused_at_start(rule: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(rule=[{"action": "allow"}, {"action": "allow", "host": "a.example", **rule}])
    assert caught.value.key == f"rule.1.{key}"


@async_test
async def test_a_denial_names_the_rule_and_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "agentfw.toml"
    file.write_text(
        '[policy]\nallow = [\n  "a.example",\n  "b.example",\n]\ndeny = ["x.example",\n  "c.example"]\n\n'
        '[[policy.rule]]\nname = "n"\naction = "deny"\nport = 25\n\n[policy.profile.p]\nallow = []\n'
    )
    config = load_config(file)
    manager = load_plugins(["policy"], config)
    runtime: Runtime = make_runtime(manager.get("policy"), config=config)
    await runtime.start()

    async def rule(host: str, port: int, **labels: str) -> str:
        with pytest.raises(Denied) as caught:
            await runtime.plugins.allow(make_agent(str(labels), **labels), Destination.make("tcp", host, port))
        assert caught.value.plugin == "policy"
        return caught.value.rule

    assert await rule("c.example", 1) == "policy.deny: c.example (agentfw.toml:7)"
    assert await rule("a.example", 25) == "policy.rule: n (agentfw.toml:9)"
    assert await rule("d.example", 1) == "policy.default: deny (agentfw.toml:1)"
    assert await rule("a.example", 1, policy="p") == "policy.profile.p.default: deny (agentfw.toml:14)"
    await runtime.stop()
