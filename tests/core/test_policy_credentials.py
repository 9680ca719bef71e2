"""The policy plugin, alone and through the relay."""

from __future__ import annotations

import pytest
from agentfw import ConfigError, Denied, Destination
from agentfw.testing import make_agent
from agentfw_native import Config as NativeConfig
from agentfw_native import Plugin as Native
from agentfw_policy import Config as PolicyConfig
from agentfw_policy import Plugin as Policy

from .support import Names, Recorder, TlsOnce, async_test, guest, lookup, offload, running, serving

AGENT = make_agent()


def policy(*allow: str, **more: object) -> Policy:
    return Policy(PolicyConfig(allow=allow, **more))  # type: ignore[arg-type]


def verdict(plugin: Policy, scheme: str, host: str, port: int) -> str:
    try:
        plugin.allow(AGENT, Destination.make(scheme, host, port))
    except Denied as error:
        return error.rule
    return "allowed"


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("api.openai.com", 443, True), ("API.OpenAI.com.", 8080, True), ("x.api.openai.com", 443, False),
        ("openai.com", 443, False), ("api.openai.com.evil.example", 443, False),
        ("a.anthropic.com", 443, True), ("a.b.anthropic.com", 443, True), ("anthropic.com", 443, False),
        ("a.anthropic.com", 80, False), ("evilanthropic.com", 443, False),
        ("xn--mnchen-3ya.example", 1, True), ("10.1.2.3", 5432, True), ("10.1.2.3", 80, False), ("10.2.0.9", 1, True),
        ("10.3.0.9", 1, False), ("2001:db8::1", 9, True),
        ("::ffff:10.1.2.3", 5432, True),
    ],
)  # fmt: skip
def test_allow_lists(host: str, port: int, allowed: bool) -> None:
    plugin = policy(
        "api.openai.com", "*.anthropic.com:443", "M\u00fcnchen.example", "10.1.2.3:5432", "10.2.0.0/16", "2001:db8::1"
    )
    for scheme in ("https", "http", "tcp", "udp", "tls"):
        assert (verdict(plugin, scheme, host, port) == "allowed") == allowed


def test_names_are_asked_for_without_a_port() -> None:
    plugin = policy("*.anthropic.com:443", deny=["bad.anthropic.com", "half.anthropic.com:80"])
    assert verdict(plugin, "dns", "a.anthropic.com", 53) == "allowed"
    assert verdict(plugin, "dns", "half.anthropic.com", 53) == "allowed"
    assert verdict(plugin, "dns", "bad.anthropic.com", 53) == "policy.deny: bad.anthropic.com"
    assert verdict(plugin, "dns", "secret.attacker.example", 53) == "policy.default: deny"


def test_deny_wins_and_default_allow() -> None:
    plugin = policy("*", deny=["*.internal.example", "evil.example:25"])
    assert verdict(plugin, "tcp", "a.internal.example", 1) == "policy.deny: *.internal.example"
    assert verdict(plugin, "tcp", "evil.example", 25) == "policy.deny: evil.example:25"
    assert verdict(plugin, "tcp", "evil.example", 26) == "allowed"
    assert verdict(plugin, "tcp", "1.2.3.4", 26) == "policy.default: deny", "* is every name, not every address"
    open_ = policy(default="allow", deny=["10.0.0.0/8"], own_tls="deny")
    assert verdict(open_, "tcp", "whatever.example", 1) == "allowed"
    assert verdict(open_, "tcp", "10.1.1.1", 1) == "policy.deny: 10.0.0.0/8"
    assert verdict(open_, "tls", "whatever.example", 1) == "policy.own_tls: deny"


def test_addresses() -> None:
    plugin = policy("a.example", "192.168.1.1:80", allow_addresses=["127.0.0.1", "fd00::/8"], deny=["8.8.4.4", "127.0.0.2"])
    name = Destination.make("tcp", "a.example", 80)
    assert plugin.dial(AGENT, name, "127.0.0.1") is True and plugin.dial(AGENT, name, "fd12::1") is True
    assert plugin.dial(AGENT, name, "127.0.0.3") is None and plugin.dial(AGENT, name, "8.8.8.8") is None
    assert plugin.dial(AGENT, Destination.make("tcp", "192.168.1.1", 80), "192.168.1.1") is True
    assert plugin.dial(AGENT, name, "192.168.1.1") is None, "an allowed address is not one that any name may resolve to"
    for address in ("8.8.4.4", "127.0.0.2"):
        with pytest.raises(Denied):
            plugin.dial(AGENT, name, address)


@pytest.mark.parametrize(
    "pattern",
    ["", "a b", "*.1.2.3.4", "a.*.b", "*a.b", "a:0", "a:b", "10.0.0.1/8", "0177.0.0.1", "http://a", "*.", "::1%lo", "1.2.3"],
)
def test_bad_patterns_are_refused_at_start(pattern: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy("good.example", pattern)
    assert caught.value.key == "allow.1"


@async_test
async def test_policy_through_the_relay() -> None:
    names = Names(**{"good.example": "127.0.0.1", "rebound.example": "127.0.0.2", "bad.example": "127.0.0.1"})
    plugin = policy("good.example", "rebound.example", allow_addresses=["127.0.0.1/32"])
    async with (
        serving(Recorder(), "good.example", "bad.example") as port,
        running(names, plugin, TlsOnce(), Native(NativeConfig())) as runtime,
    ):
        assert (await lookup(runtime, "good.example")).header.rcode == 0
        for name in ("bad.example", "rebound.example", "tunnel.attacker.example"):
            assert (await lookup(runtime, name)).header.rcode == 5
        assert names.asked == ["good.example", "rebound.example"]
        async with guest(runtime, "127.0.0.1", port) as flow:
            answer = await offload(flow, "bad.example")
            assert (
                answer["reason"] == "AGENTFW_DENIED"
                and "policy.default: deny" in answer["message"]
                and "[policy]" in answer["message"]
            )
        async with guest(runtime, "127.0.0.1", port) as flow:
            assert (await offload(flow, "good.example"))["ok"]


def test_names_do_not_lead_round_a_denied_address_and_port() -> None:
    """The port counts: the name is the agent's choice, the address is what the operator named."""
    plugin = Policy(PolicyConfig(allow=("*",), deny=("93.184.216.34:22", "[2606:4700::1]:22")))
    for address in ("93.184.216.34", "2606:4700::1"):
        with pytest.raises(Denied, match="deny"):
            plugin.dial(make_agent(), Destination("tcp", "a.example", 22), address)
        assert plugin.dial(make_agent(), Destination("tcp", "a.example", 443), address) is None
        assert plugin.dial(make_agent(), Destination("dns", "a.example", 53), address) is None
