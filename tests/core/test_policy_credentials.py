"""The policy and credentials plugins, alone and through the relay."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path

import pytest
from agentfw import Agent, ConfigError, Denied, Destination, Headers, RequestHead, TlsInfo
from agentfw.testing import make_agent
from agentfw_credentials import Config as CredentialsConfig
from agentfw_credentials import Plugin as Credentials
from agentfw_credentials import RuleConfig
from agentfw_native import Config as NativeConfig
from agentfw_native import Plugin as Native
from agentfw_policy import Config as PolicyConfig
from agentfw_policy import Plugin as Policy

from .support import Names, Recorder, TlsOnce, async_test, guest, lookup, offload, read_response, running, serving

AGENT = make_agent()
KEY = "sk-real-0123456789"
PLACEHOLDER = "sk-agentfw-placeholder"


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


# -- credentials


def rule(**more: str) -> RuleConfig:
    return RuleConfig(**{"host": "api.example", "header": "Authorization", "value": "Bearer ${env:KEY}", **more})


def credentials(*rules: RuleConfig, **environment: str) -> Credentials:
    return Credentials(CredentialsConfig(rules or (rule(),)), {"KEY": KEY, **environment})


@pytest.mark.parametrize(
    ("more", "environment", "key"),
    [
        ({"value": "Bearer ${env:MISSING}"}, {}, "value"), ({}, {"KEY": ""}, "value"), ({}, {"KEY": "  "}, "value"),
        ({}, {"KEY": KEY + "\n"}, "value"),
        ({}, {"KEY": KEY + "\r\nX: y"}, "value"), ({}, {"KEY": KEY + "\0"}, "value"), ({}, {"KEY": KEY + "\u20ac"}, "value"),
        ({"value": ""}, {}, "value"),
        ({"value": "${file:/does/not/exist}"}, {}, "value"), ({"header": "Host"}, {}, "header"),
        ({"header": "a b"}, {}, "header"), ({"header": "content-length"}, {}, "header"),
        ({"host": "*.example"}, {}, "host"), ({"host": "a b"}, {}, "host"), ({"host": "api.example:0"}, {}, "host"),
        ({"placeholder": ""}, {}, "placeholder"),
        ({"placeholder": "has blanks in it"}, {}, "placeholder"), ({"placeholder": KEY}, {}, "placeholder"),
        ({"placeholder": KEY[:10]}, {}, "placeholder"),
    ],
)  # fmt: skip
def test_unusable_rules_are_refused_at_start(more: dict[str, str], environment: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        credentials(rule(host="other.example", header="x-key"), rule(**more), **environment)
    assert caught.value.key in (f"rule.1.{key}", f"rule.0.{key}") and "0123456789" not in str(caught.value)


def test_files_and_duplicates(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    plugin = credentials(rule(value=f"${{file:{tmp_path}/key}}", header="x-api-key"), rule())
    assert sent(plugin, {"X-API-Key": PLACEHOLDER}) == {"x-api-key": KEY, "authorization": f"Bearer {KEY}"}
    with pytest.raises(ConfigError):
        credentials(rule(), rule(header="AUTHORIZATION"))


@pytest.mark.parametrize(
    ("value", "environment", "visible", "message"),
    [
        ("Bearer ${env:KEY}", {}, ("agentfw.toml",), None),
        ("Bearer ${env:KEY}", {"KEY": PLACEHOLDER}, (), None),
        ("Bearer ${env:KEY}", {"MINE": f"key={KEY}"}, (), "as MINE"),
        ("Bearer ${file:DIR/key}", {}, ("agentfw.toml",), None),
        ("Bearer ${file:DIR/key}", {}, ("key",), "in DIR/key"),
        (KEY, {}, ("key",), None),
        (KEY, {}, ("agentfw.toml",), "in DIR/agentfw.toml"),
    ],
)
def test_agents_must_not_be_shown_secrets(
    tmp_path: Path, value: str, environment: dict[str, str], visible: tuple[str, ...], message: str | None
) -> None:
    (tmp_path / "key").write_text(KEY)
    plugin = credentials(rule(host="other.example", header="x-key"), rule(value=value.replace("DIR", str(tmp_path))), KEY=KEY)
    seen = {tmp_path / name for name in visible}
    if message is None:
        plugin.check_guest(tmp_path / "agentfw.toml", environment, seen.__contains__)
        return
    with pytest.raises(ConfigError) as caught:
        plugin.check_guest(tmp_path / "agentfw.toml", environment, seen.__contains__)
    assert str(caught.value).endswith(message.replace("DIR", str(tmp_path))) and KEY not in str(caught.value)
    assert caught.value.key in ("rule.0.value", "rule.1.value")


INFO = TlsInfo("TLSv1.3", ("c", "TLSv1.3", 256), None, b"", True)


def sent(
    plugin: Credentials,
    headers: dict[str, str],
    where: str = "https://api.example:443",
    tls: TlsInfo | None = INFO,
    target: str = "/",
) -> dict[str, str]:
    scheme, _, rest = where.partition("://")
    host, _, port = rest.partition(":")
    head = RequestHead("GET", target, Headers(headers.items()))
    plugin.request(AGENT, Destination.make(scheme, host, port), head, tls)
    fields = {name.lower(): value for name, value in head.headers}
    if PLACEHOLDER not in str(fields) and KEY in str(fields):  # injected: an echo must be readable
        assert fields.pop("accept-encoding") == "identity"
    return fields


@pytest.mark.parametrize("value", [None, PLACEHOLDER, f"Bearer {PLACEHOLDER}", f"bearer {PLACEHOLDER}", f"Token {PLACEHOLDER}"])
def test_the_header_is_set_on_its_route(value: str | None) -> None:
    plugin = credentials()
    assert sent(plugin, {"Accept": "x", **({"authorization": value} if value else {})}) == {
        "accept": "x",
        "authorization": f"Bearer {KEY}",
    }
    assert plugin.statistics() == {"injected": 1, "refused": 0, "echoes_masked": 0}


@pytest.mark.parametrize(
    ("headers", "where", "tls", "target"),
    [
        ({"Authorization": "Bearer sk-the-agents-own"}, "https://api.example:443", INFO, "/"),
        ({"Authorization": ""}, "https://api.example:443", INFO, "/"),
        ({"X-API-Key": "the-agents-own"}, "https://api.example:443", INFO, "/"),
        ({"Authorization": f"Bearer {PLACEHOLDER} extra"}, "https://api.example:443", INFO, "/"),
        ({"Authorization": f"Bearer {PLACEHOLDER}"}, "https://other.example:443", INFO, "/"),
        ({"Authorization": f"Bearer {PLACEHOLDER}"}, "https://api.example:8443", INFO, "/"),
        ({"Authorization": f"Bearer {PLACEHOLDER}"}, "http://api.example:443", None, "/"),
        ({"Authorization": f"Bearer {PLACEHOLDER}"}, "http://api.example:80", None, "/"),
        ({"Authorization": f"Bearer {PLACEHOLDER}"}, "https://api.example:443", None, "/"),
        ({"X": f"..{PLACEHOLDER}.."}, "https://other.example:443", INFO, "/"),
        ({}, "https://other.example:443", INFO, f"/?key={PLACEHOLDER}"),
        ({"X": KEY}, "https://other.example:443", INFO, "/"),
        ({}, "http://other.example:80", None, f"/{KEY}"),
    ],
)
def test_keys_elsewhere_and_other_keys_here_are_refused(
    headers: dict[str, str], where: str, tls: TlsInfo | None, target: str
) -> None:
    plugin = credentials()
    with pytest.raises(Denied) as caught:
        sent(plugin, headers, where, tls, target)
    assert KEY not in str(caught.value) and plugin.statistics() == {"injected": 0, "refused": 1, "echoes_masked": 0}


def test_nothing_is_injected_elsewhere_or_without_verified_tls() -> None:
    unverified = TlsInfo("TLSv1.3", ("c", "TLSv1.3", 256), None, b"", False)
    for where, tls in (
        ("https://other.example:443", INFO),
        ("https://api.example:8443", INFO),
        ("http://api.example:443", None),
        ("https://api.example:443", unverified),
    ):
        assert sent(credentials(), {"A": "b", "Authorization": "Bearer mine"}, where, tls) == {
            "a": "b",
            "authorization": "Bearer mine",
        }


def test_bytes_nobody_looks_into_do_not_go_where_a_key_is_injected() -> None:
    plugin = credentials()
    for scheme in ("tls", "tcp"):
        with pytest.raises(Denied):
            plugin.allow(AGENT, Destination.make(scheme, "api.example", 443))
        plugin.allow(AGENT, Destination.make(scheme, "other.example", 443))
    plugin.allow(AGENT, Destination.make("https", "api.example", 443))


def test_no_repr_shows_the_secret() -> None:
    literal = rule(value=f"Bearer {KEY}")
    plugin = credentials(literal, rule(header="x-api-key", value="${env:KEY}"))
    texts = [repr(plugin), repr(literal), repr(CredentialsConfig((literal,))), repr(plugin._rules)]
    assert not any(KEY in text for text in texts), texts


@async_test
async def test_credentials_through_the_relay(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = Recorder()
    names = Names(**{"api.example": "127.0.0.1", "other.example": "127.0.0.1"})
    plain = Recorder()
    async with serving(server, "api.example", "other.example") as port, serving(plain) as plain_port:
        plugin = Credentials(CredentialsConfig((rule(host=f"api.example:{port}"),)), {"KEY": KEY})
        allowed = policy("*", allow_addresses=["127.0.0.1/32"])
        async with running(names, allowed, TlsOnce(), Native(NativeConfig()), plugin) as runtime:
            agent = Agent("a", "a")
            for name in ("other.example", "api.example"):
                await lookup(runtime, name, agent)
            seen = []
            for host, to, key, status in (
                ("api.example", port, PLACEHOLDER, 200),
                ("api.example", port, "sk-agents-own", 403),
                ("other.example", port, PLACEHOLDER, 403),
                ("other.example", port, "sk-agents-own", 200),
                ("api.example", plain_port, PLACEHOLDER, 403),
                ("api.example", plain_port, "", 200),
            ):
                async with guest(runtime, "127.0.0.1", to, agent=agent) as flow:
                    if to == port:
                        assert (await offload(flow, host))["ok"]
                    # naming the header in Connection strips the agent's, and must not strip the injected one
                    stripped = "authorization" if status == 200 else "x"
                    await flow.guest_send(f"GET / HTTP/1.1\r\nHost: {host}:{to}\r\nConnection: {stripped}\r\n".encode())
                    await flow.guest_send(f"Authorization: Bearer {key}\r\n\r\n".encode())
                    got, _, body = await read_response(flow)
                    seen.append(body)
                    assert got == status, (host, to, key, body)
                    if got == 403:
                        assert json.loads(body)["error"]["plugin"] == "credentials"
    assert [f"authorization: Bearer {KEY}".encode() in request for request in server.requests] == [True, False]
    assert not any(KEY.encode() in request for request in server.requests if b"other.example" in request)
    assert not any(KEY.encode() in request for request in plain.requests)
    for secret in (KEY, base64.b64encode(KEY.encode()).decode()):
        assert secret not in caplog.text and not any(secret.encode() in body for body in seen)


def test_names_do_not_lead_round_a_denied_address_and_port() -> None:
    """The port counts: the name is the agent's choice, the address is what the operator named."""
    plugin = Policy(PolicyConfig(allow=("*",), deny=("93.184.216.34:22", "[2606:4700::1]:22")))
    for address in ("93.184.216.34", "2606:4700::1"):
        with pytest.raises(Denied, match="deny"):
            plugin.dial(make_agent(), Destination("tcp", "a.example", 22), address)
        assert plugin.dial(make_agent(), Destination("tcp", "a.example", 443), address) is None
        assert plugin.dial(make_agent(), Destination("dns", "a.example", 53), address) is None


@pytest.mark.parametrize("value", ["Bearer ${OPENAI_API_KEY}", "${ENV:K}", "${env:K", "${env:K}${x}"])
def test_a_misspelt_source_is_no_secret(value: str) -> None:
    with pytest.raises(ConfigError, match=r"env:NAME") as caught:
        Credentials(CredentialsConfig(rule=(RuleConfig("a.example", "x-key", value),)), {"K": "secret-secret"})
    assert caught.value.key == "rule.0.value"
