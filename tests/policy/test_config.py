"""Whatever [policy] says, it is compiled, or refused with a ConfigError that names the key; nothing else is raised."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from agentfw import ConfigError, Destination
from agentfw.destination import DestinationError
from agentfw_policy import Config, Plugin
from agentfw_policy.explain import explain
from agentfw_policy.lint import lint
from hypothesis import given, settings
from hypothesis import strategies as st

from .support import AGENT, asked, verdict

GOOD = ["a.example", "*.example", "*", "*:1", "A.EXAMPLE:443", "b\u00fccher.example", "1.2.3.4", "1.2.3.0/24", "::1", "[::1]:2"]
NETWORKS = ["::/0", "0.0.0.0/0", "::ffff:1.2.3.4", "::ffff:0:0/96", "64:ff9b::/96", "10.0.0.0/8"]
BAD = ["", ".", "*.", "**", "a..b", "a:99999", "1.2.3.4/33", "\0", "a/b/c", "[", "x" * 300]
hosts = st.one_of(*[st.sampled_from(GOOD + NETWORKS)] * 9, st.sampled_from(BAD))


def mostly(good: list[Any], bad: list[Any]) -> Any:
    return st.one_of(*[st.sampled_from(good)] * 9, st.sampled_from(bad))


sizes = mostly([0, 1, "1K", "2g", "none"], [-1, 10**30, "", "1.5", "T", "99999999999999999T"])
numbers = mostly([0, 1, 7, "none"], [-1, 10**30])
rates = mostly([0.5, 7.0, "none"], [0.0, 5e-324, 1e300, -1.0, float("inf")])
labels = st.dictionaries(st.sampled_from(["team", "policy", ""]), st.sampled_from(["red", ["red", "blue"]]), max_size=2)
limits = st.fixed_dictionaries(
    {},
    optional={
        **{name: sizes for name in ("bytes", "bytes_up", "bytes_down")},
        **{name: numbers for name in ("requests", "concurrent_requests", "connections")},
        **{name: rates for name in ("requests_per_second", "requests_per_minute")},
        "burst": mostly([1, 9], [0, 10**30]),
    },
)
rule = st.fixed_dictionaries(
    {"action": st.sampled_from(["allow", "deny"])},
    optional={
        "raw": st.booleans(),
        "upgrade": st.booleans(),
        "name": st.sampled_from(["", "n", "\x1b[31m"]),
        "host": hosts.filter(bool),
        "hosts": st.lists(hosts, min_size=1, max_size=3),
        "port": mostly([1, "80", "1-65535"], [0, "9-1", "x"]),
        "ports": st.lists(mostly([443, "80-90"], [-1]), min_size=1, max_size=2),
        "methods": st.lists(mostly(["GET", "PUT", "A-B"], ["get", "", "\0"]), min_size=1, max_size=2),
        "paths": st.lists(
            mostly(["/", "/a", "/a/", "/caf\u00e9", "/%2A"], ["", "/*", "/../", "/%2e", "/ "]), min_size=1, max_size=2
        ),
        "labels": labels,
        "mode": st.sampled_from(["report", "enforce"]),
        "own_tls": st.sampled_from(["passthrough", "intercept", "deny"]),
        "limits": limits,
    },
)
common = {
    "allow": st.lists(hosts, max_size=3),
    "deny": st.lists(hosts, max_size=3),
    "rule": st.lists(rule, max_size=3),
    "allow_addresses": st.lists(mostly(["1.2.3.4", *NETWORKS], BAD), max_size=2),
    "default": st.sampled_from(["deny", "allow"]),
    "mode": st.sampled_from(["report", "enforce"]),
    "own_tls": st.sampled_from(["passthrough", "intercept", "deny"]),
    "limits": limits,
    "shared_limits": limits,
}
profile = st.fixed_dictionaries(
    {},
    optional={
        **common,
        "labels": labels,
        "agents": st.lists(st.sampled_from(["*", "test", "[", ""]), min_size=1, max_size=2),
        "extends": mostly(["default", "b", []], ["a", ["a", "b"], "nobody"]),
    },
)
tables = st.fixed_dictionaries({}, optional={**common, "profile": st.dictionaries(mostly(["a", "b"], ["default", ""]), profile)})


@given(tables, st.lists(hosts, min_size=1, max_size=4))
@settings(max_examples=250, deadline=None)
def test_any_table(table: dict[str, Any], targets: list[str]) -> None:
    try:
        plugin = Plugin(msgspec.convert(table, Config))
    except ConfigError as error:
        at: Any = table
        for step in error.key.split("."):
            if isinstance(at, dict) and step in at:
                at = at[step]
            elif isinstance(at, (list, tuple)) and step.isdecimal():
                at = at[int(step)]
            else:
                raise AssertionError(f"{error.key} is not in the table") from error
        return
    lint(plugin._policy)
    for target in targets:
        explain(plugin._policy, lambda key: "", AGENT, target)
        try:
            host = Destination.make("https", target, 443).host
        except DestinationError:
            continue
        for scheme in ("https", "tls", "udp", "dns"):
            verdict(plugin, f"{scheme}://{host}:443")
        for _ in range(9):  # beyond most bursts
            asked(plugin, "GET /a", f"https://{host}:443")
        plugin.meters(AGENT, Destination("https", host, 443))


@pytest.mark.parametrize(
    "table",
    [
        {"allow": "a.example"},
        {"limits": {"requests": True}},
        {"limits": {"requests": "5"}},
        {"rule": [{}]},
        {"profile": []},
        {"mode": "off"},
        {"passthrough": False},
        {"rule": [{"action": "allow", "path": "/x"}]},
        {"limits": {"request": 1}},
    ],
)
def test_wrong_types_and_keys(table: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, Config)


@pytest.mark.parametrize("action", ["allow", "deny"])
@pytest.mark.parametrize(
    "rule",
    [{"host": ""}, {"hosts": []}, {"port": ""}, {"ports": []}, {"methods": []}, {"paths": []}, {"labels": {"team": []}}],
)
def test_what_is_empty_allows_nobody_all(action: str, rule: Any) -> None:
    """To a program that writes rules an empty list is nobody; without it, the rule would be for everybody."""
    with pytest.raises(msgspec.ValidationError, match="length >= 1"):
        msgspec.convert({"rule": [{"action": action, **rule}]}, Config)


@pytest.mark.parametrize("profile", [{"agents": []}, {"labels": {"team": []}}])
def test_a_profile_for_nobody_is_a_mistake(profile: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match="length >= 1"):
        msgspec.convert({"profile": {"red": profile}}, Config)


@pytest.mark.parametrize("path", ["/admin/*", "/admin/**", "/adm*"])
def test_a_star_in_a_path_is_no_pattern(path: str) -> None:
    """The rule would deny nothing but a path with a star in it."""
    with pytest.raises(ConfigError, match="`\\*` is nothing special"):
        Plugin(msgspec.convert({"rule": [{"action": "deny", "host": "a.example", "paths": [path]}]}, Config))
    Plugin(msgspec.convert({"rule": [{"action": "deny", "host": "a.example", "paths": [path.replace("*", "%2A")]}]}, Config))


def test_a_star_in_a_label_is_told() -> None:
    table = {
        "rule": [{"action": "deny", "host": "a.example", "labels": {"team": "r*"}}],
        "profile": {"red": {"allow": ["a.example"], "labels": {"team": ["red", "r*"]}}},
    }
    notes = lint(Plugin(msgspec.convert(table, Config))._policy)
    assert [note.key for note in notes if "`*` is nothing special there" in note.text] == [
        "rule.0.labels.team",
        "profile.red.labels.team",
    ]
