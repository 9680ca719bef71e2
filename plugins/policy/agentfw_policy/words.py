"""The rules in force, for people: a paragraph a profile, a line a rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .guest import described
from .limits import Limits
from .profiles import DEFAULT, Policy, Profile
from .rules import Rule

MAX_RULES = 500
"""Lines of rules of one profile."""


def in_words(policy: Policy) -> str:
    """All profiles, [policy] itself first; lines end with "\\n"."""
    return "\n".join("".join(f"{line}\n" for line in _profile(policy, profile)) for profile in policy.profiles.values())


def _profile(policy: Policy, profile: Profile) -> Iterator[str]:
    if profile.name == DEFAULT:
        others = " that no profile is meant for" if len(policy.profiles) > 1 else ""
        yield f"Agents{others}:"
    else:
        yield f"Profile {profile.name}, for {_whom(profile)}:"
    default = profile.settings.get("default", ("deny", ""))[0]
    denied = "denied" if default == "deny" else "allowed"
    yield f"  what no rule speaks of is {denied}" + (", and deny goes before allow" if profile.rules else "")
    if profile.settings.get("mode", ("enforce", ""))[0] == "report":
        yield "  what would be denied is only reported"
    if own_tls := profile.settings.get("own_tls", ("", ""))[0]:
        yield f"  TLS that agents make themselves: {own_tls}"
    for rule in profile.rules[:MAX_RULES]:
        yield f"  {_rule(rule)}"
    if len(profile.rules) > MAX_RULES:
        yield f"  and {len(profile.rules) - MAX_RULES} more rules"
    if profile.networks:
        yield f"  names may lead to {', '.join(map(str, profile.networks))}"
    for limits, whose in ((profile.limits, "an agent"), (profile.shared_limits, "all of them together")):
        if limits:
            yield f"  {whose}: {_limits(limits)}"
    for line in described(profile.guest):
        yield f"  {line}"


def _whom(profile: Profile) -> str:
    named = f"agents labelled policy={profile.name}"
    fitting = [f"{key}={'|'.join(values)}" for key, values in profile.labels.items()]
    if profile.agents:
        fitting.append(f"called {' or '.join(profile.agents)}")
    return f"{named}, or {' and '.join(fitting)}" if fitting else named


def _rule(rule: Rule) -> str:
    hosts = ", ".join(pattern.text for pattern in rule.patterns) or "every host"
    parts = [f"{rule.action:<5} {hosts}"]
    if rule.ports:
        parts.append(f"port {', '.join(str(low) if low == high else f'{low}-{high}' for low, high in rule.ports)}")
    if rule.methods:
        parts.append(f"only {', '.join(sorted(rule.methods))}")
    if rule.prefixes:
        parts.append(f"below {', '.join(rule.prefixes)}")
    if rule.labels:
        parts.append(f"for {_labels(rule.labels.items())}")
    if rule.mode == "report":
        parts.append("only reported")
    if rule.own_tls:
        parts.append(f"own TLS: {rule.own_tls}")
    if rule.limited:
        parts.append("limited")
    return f"{'; '.join(parts)}  ({rule.key})"


def _labels(labels: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    return " and ".join(f"{name}={'|'.join(values)}" for name, values in labels)


def _limits(limits: Limits) -> str:
    return ", ".join(f"{name} {value:.15g}" for name, (value, _, _) in limits.values.items())
