"""What a valid [policy] may still have wrong: rules without effect, and rules that allow more than anybody meant."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .guest import needless
from .patterns import Index, Pattern, ports_cover
from .profiles import DEFAULT, Policy, Profile
from .rules import Rule

_SENSITIVE = tuple(
    (ipaddress.ip_network(text), what)
    for text, what in (
        ("169.254.169.254/32", "the cloud's metadata service, which hands out credentials"),
        ("127.0.0.1/32", "services of this host"),
        ("::1/128", "services of this host"),
    )
)


@dataclass(frozen=True, slots=True)
class Note:
    """`key` in [policy]; `text` is for people."""

    key: str
    text: str


def lint(policy: Policy) -> list[Note]:
    """In the order in which it is written, as far as that can be said."""
    found: dict[tuple[str, str], Note] = {}
    for warning in _warnings(policy):
        found.setdefault((warning.key, warning.text), warning)
    return list(found.values())


def _warnings(policy: Policy) -> Iterator[Note]:
    for profile in policy.profiles.values():
        yield from _of_rules(profile)
        yield from _of_settings(profile, policy)
        table = policy.config if profile.name == DEFAULT else policy.config.profile[profile.name]
        for key, text in needless(table.syscalls):
            yield Note(f"{profile.key}.{key}" if profile.key else key, text)
    yield from _of_choice(policy)


def _of_rules(profile: Profile) -> Iterator[Note]:
    denies, allows = _Rules(profile.rules, "deny"), _Rules(profile.rules, "allow")
    own = "" if profile.name == DEFAULT else f"{profile.key}."
    default_allow = profile.settings.get("default", ("deny", ""))[0] == "allow"
    for rule in profile.rules:
        if not rule.key.startswith(own) or (own == "" and rule.key.startswith("profile.")):
            continue  # inherited: told where it is written
        yield from _of_labels(rule.key, rule.title, rule.labels)
        if rule.action == "allow":
            stronger = denies.covering(rule)
            if stronger is not None and stronger.conditional:
                yield Note(rule.key, f"{rule.title}: every request that it allows is denied by {stronger.title}")
                continue
            if stronger is not None:
                yield Note(rule.key, f"{rule.title}: has no effect, since {stronger.title} denies all of it")
                continue
            wide = [pattern.text for pattern in rule.patterns if pattern.place == "" and pattern.network is None]
            if (wide or not rule.patterns) and not (rule.methods or rule.prefixes):
                what = "every name" if wide else "every name and every address that is public"
                yield Note(rule.key, f"{rule.title}: allows {what}, also those to which secrets could be sent")
            if default_allow and not (rule.limited or rule.own_tls or _has_literal(rule)):
                yield Note(rule.key, f'{rule.title}: has no effect, since `default = "allow"`')
                continue
        same = (denies if rule.action == "deny" else allows).covering(rule)
        if same is not None and not rule.limited and rule.own_tls in (None, same.own_tls):
            if rule.conditional and not same.conditional:
                yield Note(rule.key, f"{rule.title}: its methods and paths do not matter, since {same.title} {same.action}s all")
            else:
                yield Note(rule.key, f"{rule.title}: has no effect beside {same.title}")
        if rule.action == "deny" and not rule.patterns and not rule.ports:
            if not rule.conditional:
                yield Note(rule.key, f"{rule.title}: denies everything")
            elif not rule.raw:
                yield Note(
                    rule.key, f"{rule.title}: refuses TCP, UDP and TLS passed through, to every host (`raw = true` lets them be)"
                )


def _has_literal(rule: Rule) -> bool:
    return any(pattern.of_address for pattern in rule.patterns)


def _of_labels(key: str, title: str, labels: Mapping[str, tuple[str, ...]]) -> Iterator[Note]:
    for name, values in labels.items():
        for value in values:
            if "*" in value:
                yield Note(
                    f"{key}.labels.{name}", f"{title}: only labels with the value `{value}` fit, `*` is nothing special there"
                )


def _of_settings(profile: Profile, policy: Policy) -> Iterator[Note]:
    where = "" if profile.name == DEFAULT else f"{profile.key}."
    title = "policy" if profile.name == DEFAULT else f"policy.{profile.key}"
    mode, key = profile.settings.get("mode", ("enforce", ""))
    if mode == "report" and key.startswith(where):
        yield Note(key, f'{title}.mode: "report": nothing is refused but addresses that are not public')
    default, key = profile.settings.get("default", ("deny", ""))
    if default == "allow" and key.startswith(where):
        yield Note(key, f'{title}.default: "allow": every name may be talked to, also those to which secrets could be sent')
    if not profile.rules and default == "deny" and profile.name != DEFAULT:
        yield Note(profile.key, f"{title}: allows nothing")
    yield from _of_labels(profile.key, title, profile.labels)
    table = policy.config if profile.name == DEFAULT else policy.config.profile[profile.name]
    for i, text in enumerate(table.allow_addresses):
        network = ipaddress.ip_network(text, strict=False)
        if network.prefixlen == network.max_prefixlen:
            continue  # it means exactly that
        for address, what in _SENSITIVE:
            if address.version == network.version and address.subnet_of(network):  # type: ignore[arg-type]  # of one version
                yield Note(f"{where}allow_addresses.{i}", f"{title}.allow_addresses: {text}: has {what}, in it")
                break


def _of_choice(policy: Policy) -> Iterator[Note]:
    """Profiles that no agent gets unless it names them, though they say whom they are for."""
    before: list[Profile] = []
    for profile in policy.profiles.values():
        if not profile.automatic:
            continue
        for other in before:
            names = not other.agents or (bool(profile.agents) and set(profile.agents) <= set(other.agents))
            if names and _labels_cover(other.labels, profile.labels):
                why = f"since policy.{other.key} before it fits too"
                yield Note(profile.key, f"policy.{profile.key}: is never chosen by its `labels` and `agents`, {why}")
                break
        before.append(profile)


class _Rules:
    """To find, for a rule, another one that covers it: one look-up a pattern."""

    def __init__(self, rules: Iterable[Rule], action: str) -> None:
        self._index: Index[tuple[int, Rule, Pattern | None]] = Index()
        self._order = {rule.key: i for i, rule in enumerate(rules)}
        for i, rule in enumerate(rules):
            if rule.action != action or rule.mode == "report":
                continue
            for pattern in rule.patterns:
                self._index.add(pattern, (i, rule, pattern))
            if not rule.patterns:
                self._index.add(None, (i, rule, None))

    def covering(self, rule: Rule) -> Rule | None:
        """One that means all that `rule` does; of two that mean the same, the first covers the second."""
        found: Rule | None = None
        for pattern in rule.patterns or (None,):
            found = next((other for other in self._candidates(rule, pattern)), None)
            if found is None:
                return None
        return found

    def _candidates(self, rule: Rule, pattern: Pattern | None) -> Iterator[Rule]:
        if pattern is None:
            candidates = self._index.anything()
        elif pattern.network is not None:
            candidates = self._index.address(str(pattern.network.network_address), pattern.network.prefixlen)
        elif pattern.of_address:
            candidates = [*self._index.address(pattern.place), *self._index.anything()]
        elif pattern.place.startswith("."):
            candidates = [each for each in self._index.name(pattern.place[1:]) if self._below(each[2], pattern)]
        elif pattern.place == "":
            candidates = [*self._index.place(""), *self._index.anything()]
        else:
            candidates = self._index.name(pattern.place)
        for i, other, by in candidates:
            if other is rule or not _covers(other, by, rule, pattern):
                continue
            first = other.action == rule.action and self._order.get(rule.key, -1) < i
            if first and _same_host(by, pattern) and _covers(rule, pattern, other, by):
                continue  # the same: the later one is told
            yield other

    @staticmethod
    def _below(outer: Pattern | None, pattern: Pattern) -> bool:
        """`outer`, found for the name "example.com", has every name that "*.example.com" has."""
        return outer is None or outer.place == "" or (outer.place.startswith(".") and pattern.place.endswith(outer.place))


def _same_host(one: Pattern | None, other: Pattern | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.place, one.network) == (other.place, other.network)


def _labels_cover(outer: Mapping[str, tuple[str, ...]], inner: Mapping[str, tuple[str, ...]]) -> bool:
    """All whom `inner` fits, `outer` fits too."""
    return all(name in inner and set(inner[name]) <= set(values) for name, values in outer.items())


def _covers(outer: Rule, outer_pattern: Pattern | None, inner: Rule, inner_pattern: Pattern | None) -> bool:
    """Of two rules whose hosts fit: everything else of `inner` lies within `outer`."""
    if outer_pattern is not None and outer_pattern.port and (inner_pattern is None or inner_pattern.port != outer_pattern.port):
        return False
    inner_ports = ((inner_pattern.port, inner_pattern.port),) if inner_pattern is not None and inner_pattern.port else inner.ports
    if not ports_cover(outer.ports, inner_ports):
        return False
    if outer.methods and not (inner.methods and inner.methods <= outer.methods):
        return False
    if outer.prefixes and set(outer.prefixes) != set(inner.prefixes):
        return False
    if (outer.raw, outer.upgrade) != (inner.raw, inner.upgrade) and outer.conditional:
        return False
    return _labels_cover(outer.labels, inner.labels)
