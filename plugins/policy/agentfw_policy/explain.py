"""What the policy would say, for people: the same code that decides, asked beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from agentfw import Agent, Denied, Destination, Headers, RequestHead
from agentfw.addresses import is_public
from agentfw.destination import SCHEMES, parse_authority, parse_host
from agentfw.errors import DestinationError

from .limits import Limits
from .profiles import DEFAULT, Policy, Profile
from .rules import Decision, Finding, RuleSet

Place = Callable[[str], str]
"""A key in [policy] -> where it is written, "agentfw.toml:12" or ""."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """On one question. `by`: the rule, with file and line; `reported`: what would deny it if it were enforced."""

    allowed: bool
    by: str
    reason: str = ""
    reported: tuple[str, ...] = ()


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One that counts. `of`: "each agent", "all agents", ..."""

    name: str
    number: float
    by: str
    of: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All about one target. `allowed`: connecting and, for http and https, the request. What cannot be parsed is denied."""

    asked: str
    allowed: bool
    destination: str = ""
    profile: str = ""
    connect: Verdict | None = None
    address: Verdict | None = None
    """Of a numeric one."""
    request: Verdict | None = None
    method: str = ""
    target: str = ""
    own_tls: str = ""
    """ "passthrough", "intercept", "deny": what becomes of TLS that the agent makes itself."""
    own_tls_by: str = ""
    raw: Verdict | None = None
    """TCP that is not looked into."""
    limits: tuple[Limit, ...] = ()


def parse_target(text: str) -> tuple[Destination, str | None]:
    """ "HOST", "HOST:PORT", "HOST/PATH", "URL" -> (destination, path and query if any). DestinationError."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    elif scheme.lower() not in SCHEMES:
        raise DestinationError("scheme", scheme, f"not one of {', '.join(SCHEMES)}")
    authority, slash, path = rest.partition("/")
    for mark in "?#":
        if mark in authority:
            raise DestinationError("host", authority, "not a host name")
    if "@" in authority:
        raise DestinationError("host", authority, "user names in it")
    if authority.count(":") > 1 and not authority.startswith("["):
        host, port = parse_host(authority), 0
    else:
        host, port = parse_authority(authority, 0)
    scheme = scheme.lower() or ("http" if port == 80 else "https")
    return Destination.make(scheme, host, port or None), slash + path.partition("#")[0] if slash else None


def explain(policy: Policy, place: Place, agent: Agent, text: str, method: str = "GET") -> Explanation:
    """`text` as for `parse_target()`. Denied if the agent's label names a profile that is not there."""
    profile = policy.choose(agent)
    rules = policy.rule_set(profile, agent.labels)
    try:
        destination, path = parse_target(text)
    except DestinationError as error:
        refused = Verdict(allowed=False, by="the parser of names and addresses", reason=str(error))
        return Explanation(asked=text, allowed=False, profile=profile.name, connect=refused)
    decision = rules.decide(destination)
    connect = _verdict(decision.findings, _allower(rules, destination, place), place)
    address = _address(rules, destination, place) if destination.is_address else None
    request = None
    target = path or "/"
    if destination.scheme in ("http", "https"):
        request = _request(rules, destination, RequestHead(method, target, Headers()), place)
    raw = Destination("tcp", destination.host, destination.port)
    tls = rules.decide(Destination("tls", destination.host, destination.port))
    own_tls, own_tls_by = _own_tls(tls, place)
    verdicts = (connect, address, request)
    return Explanation(
        asked=text,
        allowed=all(verdict.allowed for verdict in verdicts if verdict is not None),
        destination=str(destination),
        profile=profile.name,
        connect=connect,
        address=address,
        request=request,
        method=method if request is not None else "",
        target=target if request is not None else "",
        own_tls=own_tls,
        own_tls_by=own_tls_by,
        raw=_verdict(rules.decide(raw).findings, _allower(rules, raw, place), place),
        limits=tuple(_limits(policy, profile, rules, destination, RequestHead(method, target, Headers()), place)),
    )


def _own_tls(decision: Decision, place: Place) -> tuple[str, str]:
    """(what becomes of it, by which rule). Without interception another rule may refuse it: it cannot be looked into."""
    refusing = next((finding for finding in decision.findings if not finding.report), None)
    if decision.own_tls != "intercept" and refusing is not None:
        return "deny", _placed(refusing.title, refusing.key, place)
    by = _placed(*decision.own_tls_by, place) if decision.own_tls else "the default"
    return ("intercept" if decision.own_tls == "intercept" else "passthrough"), by


def _placed(title: str, key: str, place: Place) -> str:
    where = place(key)
    return f"{title} ({where})" if where else title


def _verdict(findings: Iterable[Finding], allower: str, place: Place) -> Verdict:
    found = list(findings)
    reported = tuple(_placed(each.title, each.key, place) for each in found if each.report)
    for finding in found:
        if not finding.report:
            by = _placed(finding.title, finding.key, place)
            return Verdict(allowed=False, by=by, reason=finding.reason, reported=reported)
    return Verdict(allowed=True, by=allower, reported=reported)


def _allower(rules: RuleSet, destination: Destination, place: Place) -> str:
    rule = rules.decide(destination).allowed_by
    if rule is not None:
        return _placed(rule.title, rule.key, place)
    return (
        _placed(f"policy.{rules.default_key}: {rules.default}", rules.default_key, place)
        if rules.default == "allow"
        else "report-only mode"
    )


def _address(rules: RuleSet, destination: Destination, place: Place) -> Verdict:
    findings, permitted = rules.dial(destination, destination.host)
    verdict = _verdict(findings, "an allow rule for it" if permitted else "it is public", place)
    if verdict.allowed and not permitted and not is_public(destination.host):
        reason = f"{destination.host} is not on the public internet, nor in allow_addresses"
        return Verdict(allowed=False, by="addresses: public only", reason=reason)
    return verdict


def _request(rules: RuleSet, destination: Destination, head: RequestHead, place: Place) -> Verdict:
    findings, _ = rules.request(destination, head)
    rule = rules.permitting(destination, head)
    return _verdict(
        findings, _placed(rule.title, rule.key, place) if rule is not None else _allower(rules, destination, place), place
    )


def _limits(
    policy: Policy, profile: Profile, rules: RuleSet, destination: Destination, head: RequestHead, place: Place
) -> Iterable[Limit]:
    yield from _listed(profile.limits, "each agent", place)
    if profile.name != DEFAULT:
        yield from _listed(profile.shared_limits, f"all agents of profile {profile.name}", place)
    yield from _listed(policy.profiles[DEFAULT].shared_limits, "all agents", place)
    for rule in rules.request(destination, head)[1]:
        yield from _listed(policy.rule_limits(rule), "each agent, under this rule", place)


def _listed(limits: Limits, of: str, place: Place) -> Iterable[Limit]:
    for name, (number, key, title) in limits.values.items():
        yield Limit(name=name, number=number, by=_placed(title, key, place), of=of)


def lines(found: Explanation) -> list[str]:
    """For people."""
    shown: list[tuple[str, str]] = [("profile", found.profile)]
    for name, verdict in (("connect", found.connect), ("address", found.address), ("request", found.request)):
        if verdict is not None:
            about = f"{found.method} {found.target} " if name == "request" else ""
            shown.append((name, about + _said(verdict)))
            shown += [("", f"reported: {each}") for each in verdict.reported]
    if found.own_tls:
        shown.append(("own TLS", f"{found.own_tls} ({found.own_tls_by})"))
    if found.raw is not None:
        shown.append(("raw TCP", _said(found.raw)))
    for i, limit in enumerate(found.limits):
        shown.append(("" if i else "limits", f"{limit.by}, {limit.of}"))
    verdict_word = "allowed" if found.allowed else "denied"
    return [f"{found.destination or ascii(found.asked)}: {verdict_word}", *(f"  {name:<9} {text}" for name, text in shown)]


def _said(verdict: Verdict) -> str:
    reason = f": {verdict.reason}" if verdict.reason else ""
    return f"{'allowed' if verdict.allowed else 'denied'} by {verdict.by}{reason}"


def as_json(found: Explanation) -> Any:
    """Plain values."""
    return msgspec.to_builtins(found)


__all__ = ["Denied", "Explanation", "Limit", "Verdict", "as_json", "explain", "lines", "parse_target"]
