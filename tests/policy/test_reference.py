"""Random sets of rules decide as the plain reference does; deny wins; order does not matter."""

from __future__ import annotations

from typing import Any

from agentfw import Denied, Destination
from agentfw_policy.explain import explain
from agentfw_policy.lint import lint
from hypothesis import given, settings
from hypothesis import strategies as st

from . import reference
from .support import AGENT, asked, policy, verdict

HOSTS = ["a.example", "b.a.example", "c.b.a.example", "example", "xa.example", "test", "8.8.8.8", "8.8.4.4", "9.9.9.9"]
PATTERNS = [*HOSTS, "*", "*.example", "*.a.example", "*.b.a.example", "8.8.0.0/16", "8.0.0.0/6", "0.0.0.0/0", "9.9.9.9/32"]
PORTS = [80, 443, 8443]
PATHS = ["/", "/v1", "/v1/x", "/v2", "/v10", "/v1/x/y"]
METHODS = ["GET", "POST", "PUT"]

patterns = st.builds(
    lambda host, port: host if port is None or "/" in host else f"{host}:{port}",
    st.sampled_from(PATTERNS),
    st.none() | st.sampled_from(PORTS),
)
rules_ = st.lists(
    st.fixed_dictionaries(
        {
            "action": st.sampled_from(["allow", "deny"]),
            "hosts": st.lists(patterns, max_size=3),
            "ports": st.lists(st.sampled_from(PORTS), max_size=2),
            "methods": st.lists(st.sampled_from(METHODS), max_size=2),
            "paths": st.lists(st.sampled_from(PATHS), max_size=2),
            "raw": st.booleans(),
        }
    ),
    max_size=8,
)
defaults = st.sampled_from(["deny", "deny", "allow"])


def compiled(rules: list[dict[str, Any]], default: str) -> Any:
    return policy(default=default, rule=written([rule | {"raw": rule["raw"] and reference.conditional(rule)} for rule in rules]))


def written(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As in a file: what does not narrow a rule is left out."""
    return [{key: value for key, value in rule.items() if value != []} for rule in rules]


@given(rules_, defaults, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_as_the_reference(rules: list[dict[str, Any]], default: str, random: Any) -> None:
    plugin = compiled(rules, default)
    shuffled = list(rules)
    random.shuffle(shuffled)
    other = compiled(shuffled, default)
    for host in HOSTS:
        for port in PORTS:
            for scheme in ("https", "tcp", "udp", "tls"):
                expected = reference.connects(rules, default, scheme, host, port)
                where = f"{scheme}://{host}:{port}"
                assert (verdict(plugin, where) == "allowed") is expected, where
                assert (verdict(other, where) == "allowed") is expected, where
            method, path = random.choice(METHODS), random.choice(PATHS)
            where = f"https://{host}:{port}"
            expected = reference.connects(rules, default, "https", host, port)
            expected = expected and reference.requests(rules, default, host, port, method, path)
            assert (asked(plugin, f"{method} {path}", where) == "allowed") is expected, (where, method, path)
            assert (asked(other, f"{method} {path}", where) == "allowed") is expected
            assert explain(plugin._policy, lambda key: "", AGENT, where + path, method).allowed is expected


@given(rules_, defaults, st.sampled_from(HOSTS), st.sampled_from(PORTS))
@settings(max_examples=60, deadline=None)
def test_deny_wins(rules: list[dict[str, Any]], default: str, host: str, port: int) -> None:
    plugin = policy(default=default, deny=[host], rule=written([rule | {"raw": False} for rule in rules]))
    for scheme in ("https", "http", "tcp", "udp", "tls", "dns"):
        assert verdict(plugin, f"{scheme}://{host}:{port}") != "allowed"
    for method in METHODS:
        assert asked(plugin, f"{method} /v1", f"https://{host}:{port}") != "allowed"


@given(rules_, st.sampled_from(["8.8.8.8", "8.8.4.4", "9.9.9.9"]), st.sampled_from(PORTS))
@settings(max_examples=60, deadline=None)
def test_a_denied_address_is_denied_to_every_name(rules: list[dict[str, Any]], address: str, port: int) -> None:
    """As what a name resolves to, conditional rules cannot be held against it."""
    plugin = compiled(rules, "allow")
    plainly = [rule for rule in rules if rule["action"] == "deny" and rule["hosts"]]
    expected = not any(
        reference.fits({**rule, "hosts": [pattern]}, address, port) and pattern.partition(":")[0] != "*"
        for rule in plainly
        for pattern in rule["hosts"]
    )
    try:
        plugin.dial(AGENT, Destination.make("tcp", "some.name", port), address)
        passed = True
    except Denied:
        passed = False
    assert passed is expected


@given(rules_, defaults)
@settings(max_examples=25, deadline=None)
def test_what_check_finds_without_effect_has_none(rules: list[dict[str, Any]], default: str) -> None:
    notes = [note for note in lint(compiled(rules, default)._policy) if "has no effect" in note.text]
    for note in notes[:2]:
        number = int(note.key.split(".")[1])
        without = rules[:number] + rules[number + 1 :]
        for host in HOSTS:
            for port in PORTS:
                for scheme in ("https", "tcp"):
                    kept, left = (reference.connects(some, default, scheme, host, port) for some in (rules, without))
                    assert kept == left, (note, scheme, host, port)
                for method in METHODS:
                    for path in PATHS:
                        kept, left = (
                            reference.connects(some, default, "https", host, port)
                            and reference.requests(some, default, host, port, method, path)
                            for some in (rules, without)
                        )
                        assert kept == left, (note, host, port, method, path)
