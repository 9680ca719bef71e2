"""Rules: which are refused at start, which requests they are for, and what they set."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from agentfw import ConfigError, Denied, Destination, TlsInfo, TlsRequest
from agentfw.agents import Operator
from agentfw.testing import make_agent
from agentfw_credentials import BasicConfig, CommandConfig, Config, OAuthConfig, Plugin, RuleConfig
from agentfw_tls_pool import Plugin as Tls
from agentfw_tls_pool import TlsConfig

from tests.core.support import async_test, running

from .support import AGENT, BASIC, HERE, INFO, KEY, KINDS, PLACEHOLDER, UNVERIFIED, ask, credentials, rule, sent


@pytest.mark.parametrize(
    ("more", "environment", "key"),
    [
        ({"value": "Bearer ${env:MISSING}"}, {}, "value"), ({}, {"KEY": ""}, "value"), ({}, {"KEY": "  "}, "value"),
        ({}, {"KEY": KEY + "\n"}, "value"), ({}, {"KEY": "short"}, "value"), ({}, {"KEY": "x" * 20_000}, "value"),
        ({}, {"KEY": KEY + "\r\nX: y"}, "value"), ({}, {"KEY": KEY + "\0"}, "value"), ({}, {"KEY": KEY + "\u20ac"}, "value"),
        ({"value": ""}, {}, "value"), ({"value": f" {KEY}"}, {}, "value"), ({"value": "Bearer \r${env:KEY}"}, {}, "value"),
        ({"value": "${file:/does/not/exist}"}, {}, "value"), ({"value": "${file:/proc}"}, {}, "value"),
        ({"value": "${command:x}"}, {}, "value"), ({"value": "${oauth:x}"}, {}, "value"),
        ({"header": "Host"}, {}, "header"), ({"header": "a b"}, {}, "header"), ({"header": "content-length"}, {}, "header"),
        ({"header": "Cookie"}, {}, "header"), ({"header": ""}, {}, ""), ({"query": "key", "header": "x"}, {}, ""),
        ({"host": "*.example"}, {}, "host"), ({"host": "a b"}, {}, "host"), ({"host": "api.example:0"}, {}, "host"),
        ({"placeholder": ""}, {}, "placeholder"),
        ({"placeholder": "has blanks in it"}, {}, "placeholder"), ({"placeholder": KEY}, {}, "placeholder"),
        ({"placeholder": KEY[:10]}, {}, "placeholder"),
        ({"query": "a b"}, {}, "query"), ({"query": "a&b"}, {}, "query"),
        ({"env": "A-B"}, {}, "env"), ({"env": "A=B"}, {}, "env"),
        ({"path": "v1"}, {}, "path"), ({"path": "/v1/../x"}, {}, "path"), ({"path": "/v1?x"}, {}, "path"),
        ({"path": "//v1"}, {}, "path"), ({"path": "/%2e"}, {}, "path"), ({"path": "/v1/*"}, {}, "path"),
        ({"basic": BASIC, "header": "x-key"}, {}, ""), ({"basic": BASIC, "value": KEY}, {}, "value"),
        ({"basic": BasicConfig("a:b", KEY)}, {}, "basic.user"), ({"basic": BasicConfig("user", "")}, {}, "basic.password"),
        ({"basic": BasicConfig("user", "${env:MISSING}")}, {}, "basic.password"),
        ({"basic": BasicConfig("us\0er", KEY)}, {}, "basic.user"),
        ({"basic": BasicConfig("user", "short")}, {}, "basic.password"),
    ],
)  # fmt: skip
def test_unusable_rules_are_refused_at_start(more: dict[str, Any], environment: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        credentials(rule(host="other.example", header="x-key", value="${env:GOOD}"), rule(**more),
                    environment={"GOOD": "good-good-good", **environment})  # fmt: skip
    assert caught.value.key == f"rule.1.{key}".rstrip(".") and "0123456789" not in str(caught.value)


def test_headers_that_no_request_has_are_refused_at_start() -> None:
    with pytest.raises(ConfigError, match=r"key_headers\.1: not a header name"):
        Plugin(Config(key_headers=("x-key", "a b")))


@pytest.mark.parametrize(
    "value",
    [
        "Bearer ${OPENAI_API_KEY}",
        "${ENV:K}",
        "${env:K",
        "${env:KEY}${x}",
        "Bearer $OPENAI_API_KEY",
        "$OPENAI_API_KEY",
        "Bearer $(OPENAI_API_KEY)",
        "Bearer {env:OPENAI_API_KEY}",
    ],
)
def test_a_misspelt_source_is_no_secret(value: str) -> None:
    with pytest.raises(ConfigError, match=r"env:NAME") as caught:
        credentials(rule(value=value))
    assert caught.value.key == "rule.0.value"


OAUTH = OAuthConfig("https://token.example/t", "id", "${env:KEY}")


def oauth(url: str = "https://t.example/", secret: str = KEY, **more: Any) -> dict[str, Any]:
    return {"rule": (rule(value="${oauth:o}"),), "oauth": {"o": OAuthConfig(url, "i", secret, **more)}}


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"require_hosts": ("a.example", "*.b")}, "require_hosts.1"),
        ({"command": {"idle": CommandConfig(("x",))}}, "command.idle"),
        ({"oauth": {"idle": OAUTH}}, "oauth.idle"),
        (oauth("http://t.example/"), "oauth.o.token_url"),
        (oauth("https://u@t.example/"), "oauth.o.token_url"),
        (oauth("https://t.example:x/"), "oauth.o.token_url"),
        (oauth("https://t.example:0/"), "oauth.o.token_url"),
        (oauth("https://[::1/"), "oauth.o.token_url"),
        (oauth("https://t.example/#x"), "oauth.o.token_url"),
        (oauth("https://10.1/"), "oauth.o.token_url"),
        (oauth(secret=""), "oauth.o.client_secret"),
        (oauth(secret="a${env:KEY}"), "oauth.o.client_secret"),
        (oauth(secret="${oauth:o}"), "oauth.o.client_secret"),
        (oauth(allow_addresses=("x",)), "oauth.o.allow_addresses"),
    ],
)
def test_unusable_tables_are_refused_at_start(more: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Plugin(Config(**more), {"KEY": KEY})
    assert caught.value.key == key and KEY not in str(caught.value)


def test_two_rules_for_one_slot() -> None:
    for first, second in (
        (rule(), rule(header="AUTHORIZATION")),
        (rule(), rule(basic=BASIC)),
        (rule(query="key"), rule(query="key")),
        (rule(path="/v1"), rule(path="/v1")),
    ):
        with pytest.raises(ConfigError, match="two rules"):
            credentials(first, second)
    credentials(rule(), rule(path="/v1"), rule(labels={"tenant": "a"}), rule(query="key"), rule(header="x-key"))


@pytest.mark.parametrize("value", [None, PLACEHOLDER, f"Bearer {PLACEHOLDER}", f"bearer {PLACEHOLDER}", f"Token {PLACEHOLDER}"])
def test_the_header_is_set_on_its_route(value: str | None) -> None:
    plugin = credentials()
    assert sent(plugin, {"Accept": "x", **({"authorization": value} if value else {})}) == {
        "accept": "x",
        "authorization": f"Bearer {KEY}",
    }
    assert (plugin.statistics()["injected"], plugin.statistics()["refused"]) == (1, 0)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("basic", "expected"),
    [
        (BASIC, f"user:{KEY}"),
        (BasicConfig("${env:KEY}", ""), f"{KEY}:"),
        (BasicConfig("team-${env:KEY}", "pass:word-${env:OTHER}"), f"team-{KEY}:pass:word-other-secret"),
    ],
)
def test_basic(basic: BasicConfig, expected: str) -> None:
    plugin = credentials(rule(basic=basic), environment={"OTHER": "other-secret"})
    for given in (None, PLACEHOLDER, f"Basic {encoded(f'anyone:{PLACEHOLDER}')}", f"basic {encoded(f'{PLACEHOLDER}:')}"):
        assert sent(plugin, {"Authorization": given} if given else {}) == {"authorization": f"Basic {encoded(expected)}"}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/", f"/?key={KEY}"), ("/a?b=c", f"/a?b=c&key={KEY}"), (f"/?key={PLACEHOLDER}", f"/?key={KEY}"),
        (f"/?a=1&key={PLACEHOLDER}&b=%20", f"/?a=1&b=%20&key={KEY}"), (f"/?KEY={PLACEHOLDER}&x", f"/?x&key={KEY}"),
        (f"/?%6b%65y={PLACEHOLDER}", f"/?key={KEY}"), (f"/?key={PLACEHOLDER}&key={PLACEHOLDER}", f"/?key={KEY}"),
        (f"/?a=1;key={PLACEHOLDER};b=2", f"/?a=1;b=2&key={KEY}"), (f"/?api_key={PLACEHOLDER}", f"/?key={KEY}"),
        ("/?", f"/?key={KEY}"),
    ],
)  # fmt: skip
def test_query(target: str, expected: str) -> None:
    assert ask(credentials(rule(query="key")), target=target).target == expected
    quoted = ask(credentials(rule(query="key"), environment={"KEY": "a&b=c d/e%#f+"})).target
    assert quoted == "/?key=a%26b%3Dc%20d%2Fe%25%23f%2B"


def test_several_rules_for_one_host() -> None:
    plugin = credentials(rule(), rule(header="x-org", value="org-${env:KEY}"), rule(query="k"))
    head = ask(plugin, {"X-Org": f"org-{PLACEHOLDER}"})
    assert (head.headers.get("authorization"), head.headers.get("x-org")) == (f"Bearer {KEY}", f"org-{KEY}")
    assert head.target == f"/?k={KEY}"


@pytest.mark.parametrize(
    ("target", "labels", "expected"),
    [
        ("/", {}, "default-key"), ("/v1", {}, "v1-key-key"), ("/v1/x?y", {}, "v1-key-key"), ("/v10", {}, "default-key"),
        ("/v1/beta/x", {}, "beta-key-key"), ("/%761/x", {}, "v1-key-key"), ("/v1", {"tenant": "a"}, "v1-key-key"),
        ("/", {"tenant": "a"}, "tenant-a-key"), ("/", {"tenant": "b"}, "default-key"),
        # what servers may read in another way than we do is covered by no path
        ("/v1/../x", {}, "default-key"), ("/v1/%2e%2e/x", {}, "default-key"), ("/v1%2fx", {}, "default-key"),
        ("/v1;x/y", {}, "default-key"), ("/x/..", {}, "default-key"), ("//v1/x", {}, "default-key"),
        ("/v1\\x", {}, "default-key"),
    ],
)  # fmt: skip
def test_the_most_particular_rule_counts(target: str, labels: dict[str, str], expected: str) -> None:
    plugin = credentials(
        rule(value="default-key"), rule(value="v1-key-key", path="/v1"), rule(value="beta-key-key", path="/v1/beta/"),
        rule(value="tenant-a-key", labels={"tenant": "a"}),
    )  # fmt: skip
    assert sent(plugin, {}, target=target, agent=make_agent(**labels)) == {"authorization": expected}


def test_agents_of_other_labels_get_nothing_and_share_nothing() -> None:
    plugin = credentials(rule(labels={"tenant": "a"}), rule(value="tenant-b-key", labels={"tenant": "b"}))
    a, b, none = make_agent("a", tenant="a"), make_agent("b", tenant="b"), make_agent("n")
    assert sent(plugin, {}, agent=a) == {"authorization": f"Bearer {KEY}"}
    assert sent(plugin, {}, agent=b) == {"authorization": "tenant-b-key"}
    assert sent(plugin, {"Authorization": "Bearer mine"}, agent=none) == {"authorization": "Bearer mine"}
    with pytest.raises(Denied):
        ask(plugin, {"Authorization": PLACEHOLDER}, agent=none)
    where = Destination.make("https", "api.example", 443)
    assert len({plugin.tenant(agent, where) for agent in (a, b, none)}) == 3
    assert plugin.tenant(a, where) == plugin.tenant(make_agent("a2", tenant="a", other="x"), where)
    assert plugin.tenant(a, Destination.make("https", "other.example", 443)) is None
    assert credentials().tenant(a, where) is None, "where one key is all agents', connections may be, too"


@async_test
async def test_shared_connections_are_those_of_one_credential() -> None:
    plugin = credentials(rule(labels={"team": "a"}), rule(value="team-b-secret", labels={"team": "b"}))
    tls = Tls(TlsConfig(shared=("api.example",), separate_by=()))
    where = Destination.make("https", "api.example", 443)
    async with running(plugin, tls):
        agents = [make_agent("1", team="a"), make_agent("2", team="a"), make_agent("3", team="b"), make_agent("4")]
        keys = [tls.key(agent, where, TlsRequest("api.example")) for agent in (*agents, Operator("credentials", "o"))]
    assert keys[0] == keys[1] and len(set(keys)) == 4


NOT_HERE: list[tuple[str, TlsInfo | None]] = [
    ("https://other.example:443", INFO),
    ("https://api.example:8443", INFO),
    ("http://api.example:443", None),
    ("http://api.example:80", None),
    (HERE, UNVERIFIED),
    (HERE, None),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("where", "tls"), NOT_HERE)
def test_nothing_is_injected_elsewhere_or_without_verified_tls(kind: str, where: str, tls: TlsInfo | None) -> None:
    plugin = credentials(rule(**KINDS[kind]))
    head = ask(plugin, {"A": "b", "Authorization": "Bearer mine"}, where, tls, "/?key=mine")
    assert (head.target, head.headers.get("authorization"), head.headers.get("a")) == ("/?key=mine", "Bearer mine", "b")
    assert plugin.statistics()["injected"] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("where", "tls"), NOT_HERE)
def test_required_credentials(kind: str, where: str, tls: TlsInfo | None) -> None:
    plugin = credentials(rule(**KINDS[kind], require=True))
    if "api.example:443" in where:
        with pytest.raises(Denied, match="required here") as caught:
            ask(plugin, {}, where, tls)
        assert caught.value.rule.startswith("credentials: api.example ") and caught.value.status == 403
    else:
        ask(plugin, {}, where, tls)
    ask(plugin)
    assert plugin.statistics()["injected"] == 1


def test_hosts_that_no_request_goes_to_without_a_credential() -> None:
    plugin = credentials(rule(path="/v1"), rule(host="b.example", labels={"tenant": "a"}),
                         require_hosts=("api.example", "b.example:443", "c.example"))  # fmt: skip
    ask(plugin, target="/v1/x")
    ask(plugin, where="https://b.example:443", agent=make_agent(tenant="a"))
    ask(plugin, where="https://b.example:8443")
    for where, target, tls in (
        (HERE, "/v2", INFO),
        ("http://api.example:80", "/v1", None),
        (HERE, "/v1", UNVERIFIED),
        ("https://b.example:443", "/", INFO),
        ("https://c.example:8443", "/", INFO),
    ):
        with pytest.raises(Denied, match="without a credential") as caught:
            ask(plugin, where=where, target=target, tls=tls)
        assert caught.value.rule.startswith("credentials.require_hosts: ")
    for scheme in ("tls", "tcp", "udp"):
        with pytest.raises(Denied):
            plugin.allow(AGENT, Destination.make(scheme, "c.example", 9))


def test_bytes_nobody_looks_into_do_not_go_where_a_key_is_injected() -> None:
    plugin = credentials(rule(), rule(host="b.example", labels={"tenant": "a"}))
    for scheme in ("tls", "tcp", "udp"):
        with pytest.raises(Denied):
            plugin.allow(AGENT, Destination.make(scheme, "api.example", 443))
        plugin.allow(AGENT, Destination.make(scheme, "other.example", 443))
        plugin.allow(AGENT, Destination.make(scheme, "b.example", 443))
    plugin.allow(AGENT, Destination.make("https", "api.example", 443))


def test_the_variable_that_agents_get() -> None:
    plugin = credentials(
        rule(env="OPENAI_API_KEY"), rule(header="x-key", env="X_KEY", placeholder="x-placeholder", labels={"tenant": "a"}),
        rule(host="b.example", env="OPENAI_API_KEY", placeholder="b-placeholder"),
    )  # fmt: skip
    assert plugin.environment(AGENT) == {"OPENAI_API_KEY": PLACEHOLDER}
    assert plugin.environment(make_agent(tenant="a")) == {"OPENAI_API_KEY": PLACEHOLDER, "X_KEY": "x-placeholder"}
    assert credentials().environment(AGENT) == {}


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
        ("${oauth:o}", {}, ("key",), None),
        ("${oauth:o}", {}, ("agentfw.toml",), "in DIR/agentfw.toml"),
    ],
)
def test_agents_must_not_be_shown_secrets(
    tmp_path: Path, value: str, environment: dict[str, str], visible: tuple[str, ...], message: str | None
) -> None:
    (tmp_path / "key").write_text(KEY)
    oauth = {"o": OAuthConfig("https://t.example/", "id", "literal-client-secret")} if "oauth" in value else {}
    rules = (rule(host="other.example", header="x-key"), rule(value=value.replace("DIR", str(tmp_path))))
    plugin = credentials(*rules, oauth=oauth)
    seen = {tmp_path / name for name in visible}
    if message is None:
        plugin.check_guest(tmp_path / "agentfw.toml", environment, seen.__contains__)
        return
    with pytest.raises(ConfigError) as caught:
        plugin.check_guest(tmp_path / "agentfw.toml", environment, seen.__contains__)
    assert str(caught.value).endswith(message.replace("DIR", str(tmp_path))) and KEY not in str(caught.value)
    assert caught.value.key in ("rule.0.value", "rule.1.value", "oauth.o.client_secret")


def test_no_repr_shows_the_secret() -> None:
    literal = rule(value=f"Bearer {KEY}")
    basic = rule(host="b.example", basic=BasicConfig("user", KEY))
    oauth = OAuthConfig("https://t.example/", "id", KEY)
    plugin = credentials(literal, basic, rule(header="x-api-key"), rule(header="x-oauth", value="${oauth:o}"), oauth={"o": oauth})
    state = plugin._state
    things: list[object] = [
        plugin, literal, basic, basic.basic, oauth, Config((literal, basic), oauth={"o": oauth}), state.rules, state.sources,
        plugin._secrets, plugin._secrets.needles(), *state.owned(), *(t for r in state.all_rules for t in r.templates),
        plugin.statistics(), CommandConfig(("echo", KEY)),
    ]  # fmt: skip
    for thing in things:
        for text in (repr(thing), str(thing)):
            assert KEY not in text and encoded(KEY) not in text, text
    assert isinstance(RuleConfig("a.example", "x-key", KEY), RuleConfig)
