"""Which rules hold for which agent: [policy] itself, and the profiles in it.

An agent's profile is the one that its label `policy` names, else the first whose `labels` and `agents` fit it, else [policy]
itself ("default"). A profile has what its table says and what it extends; [policy]'s deny rules hold for all. Settings of one
value, limits too, come from the profile, from what it extends, or from [policy], whichever says something first; but for
`default`, which is "deny" for a profile unless it or what it extends says otherwise.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from agentfw import Agent
from agentfw.errors import ConfigError, Denied
from agentfw.guest_rules import GuestRules

from .config import Config, ProfileConfig, RulesConfig
from .guest import compiled
from .limits import Limits, resolve
from .patterns import Network
from .rules import Rule, RuleSet, labels_fit, parse_addresses, parse_list, parse_rule

DEFAULT = "default"
"""[policy] itself, as a profile."""
LABEL = "policy"
MAX_DEPTH = 32
"""Profiles that extend one the other."""
MAX_SETS = 256
"""Rule sets kept, one a profile and set of fitting label rules."""


@dataclass(frozen=True, eq=False)
class Profile:
    """One, with all that it inherits."""

    name: str
    key: str
    """"" or "profile.NAME"."""
    rules: tuple[Rule, ...]
    networks: tuple[Network, ...]
    settings: Mapping[str, tuple[str, str]]
    """`default`, `mode`, `own_tls` -> (value, key of who says so)"""
    guest: GuestRules
    limits: Limits
    shared_limits: Limits
    labels: Mapping[str, tuple[str, ...]]
    agents: tuple[str, ...]

    @property
    def automatic(self) -> bool:
        """It can fit agents without their naming it."""
        return bool(self.labels or self.agents)

    def fits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Chosen for an agent that names none, if no profile before it is."""
        if not self.automatic or not labels_fit(self.labels, labels):
            return False
        return not self.agents or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.agents)


class Policy:
    """A checked and compiled table [policy]. Raises ConfigError."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._own: dict[str, tuple[tuple[Rule, ...], tuple[Network, ...], GuestRules]] = {}
        self.profiles: dict[str, Profile] = {}
        for name in (DEFAULT, *config.profile):
            table = self._table(name)
            where = _where(name)
            networks = tuple(parse_addresses(where, table.allow_addresses))
            self._own[name] = tuple(_rules(where, table)), networks, compiled(table.files, table.syscalls, where)
        for name in config.profile:
            if name == DEFAULT or not name or not name.isprintable() or len(name) > 128:
                raise ConfigError(f"profile.{name}", "cannot be a profile's name")
        for name in (DEFAULT, *config.profile):
            self.profiles[name] = self._profile(name)
        self._sets: dict[tuple[str, tuple[str, ...]], RuleSet] = {}

    @property
    def intercepts(self) -> bool:
        """Some agent's own TLS may be looked into."""
        said = {profile.settings.get("own_tls", ("", ""))[0] for profile in self.profiles.values()}
        return "intercept" in said or any(
            rule.own_tls == "intercept" for profile in self.profiles.values() for rule in profile.rules
        )

    def _table(self, name: str) -> RulesConfig:
        return self.config if name == DEFAULT else self.config.profile[name]

    def _lineage(self, name: str) -> list[str]:
        """The profile and all that it extends, the most particular first, each once."""
        found: dict[str, None] = {}
        self._follow(name, (), found)
        return list(found)

    def _follow(self, name: str, way: tuple[str, ...], found: dict[str, None]) -> None:
        if name in way:
            raise ConfigError(f"profile.{way[-1]}.extends", f"profiles extend each other: {' -> '.join((*way, name))}")
        if len(way) > MAX_DEPTH:
            raise ConfigError(f"profile.{way[-1]}.extends", f"too deep: `{way[0]}` extends more than {MAX_DEPTH} one by one")
        if name in found:
            return
        found[name] = None
        table = self._table(name)
        if isinstance(table, ProfileConfig):
            extends = (table.extends,) if isinstance(table.extends, str) else table.extends
            for i, other in enumerate(extends):
                if other != DEFAULT and other not in self.config.profile:
                    key = "extends" if isinstance(table.extends, str) else f"extends.{i}"
                    raise ConfigError(f"profile.{name}.{key}", unknown(other, self.config.profile))
                self._follow(other, (*way, name), found)

    def _profile(self, name: str) -> Profile:
        lineage = self._lineage(name)
        rules = [rule for each in lineage for rule in self._own[each][0]]
        if DEFAULT not in lineage:
            rules += [rule for rule in self._own[DEFAULT][0] if rule.action == "deny"]
        settings: dict[str, tuple[str, str]] = {}
        for each in (*lineage, DEFAULT):
            table = self._table(each)
            for setting in ("default", "mode", "own_tls"):
                value = getattr(table, setting)
                if value is not None and (setting != "default" or each in lineage):
                    settings.setdefault(setting, (value, f"{_where(each)}{setting}"))
        tables = list(dict.fromkeys((*lineage, DEFAULT)))
        table = self._table(name)
        automatic = table if isinstance(table, ProfileConfig) else ProfileConfig()
        return Profile(
            name,
            _where(name).rstrip("."),
            tuple(rules),
            tuple(network for each in lineage for network in self._own[each][1]),
            settings,
            self._guest(name, tables),
            resolve(*((f"{_where(each)}limits", f"policy.{_where(each)}limits", self._table(each).limits) for each in tables)),
            # of all agents together only what is written there: [policy]'s are the whole fleet's
            resolve((f"{_where(name)}shared_limits", f"policy.{_where(name)}shared_limits", table.shared_limits)),
            {key: (value,) if isinstance(value, str) else value for key, value in automatic.labels.items()},
            automatic.agents,
        )

    def _guest(self, name: str, tables: list[str]) -> GuestRules:
        """What the virtual machines may not do: all of it together."""
        merged = GuestRules.merged(rules for each in tables if (rules := self._own[each][2]))
        try:
            merged.table()
        except ValueError as error:
            raise ConfigError(f"{_where(name)}files", str(error)) from None
        return merged

    def choose(self, agent: Agent) -> Profile:
        """The agent's profile. Denied if its label names one that is not there: no other is meant."""
        named = agent.labels.get(LABEL)
        if named is not None:
            if named not in self.profiles:
                raise Denied(f"label {LABEL}={named}", unknown(named, self.config.profile), "policy")
            return self.profiles[named]
        return next(
            (profile for profile in self.profiles.values() if profile.fits(agent.name, agent.labels)), self.profiles[DEFAULT]
        )

    def rule_set(self, profile: Profile, labels: Mapping[str, str]) -> RuleSet:
        """The rules of a profile for agents with these labels."""
        kept = [rule for rule in profile.rules if not rule.labels or rule.fits_labels(labels)]
        key = (profile.name, tuple(rule.key for rule in kept if rule.labels))
        found = self._sets.get(key)
        if found is None:
            if len(self._sets) >= MAX_SETS:
                self._sets.clear()  # those in use are kept by their agents
            default, default_key = profile.settings.get("default", ("deny", f"{profile.key}.default".lstrip(".")))
            mode, _ = profile.settings.get("mode", ("enforce", ""))
            own_tls, own_tls_key = profile.settings.get("own_tls", (None, ""))
            found = self._sets[key] = RuleSet(
                kept,
                default=default,  # type: ignore[arg-type]  # msgspec has checked these three
                default_key=default_key,
                mode=mode,  # type: ignore[arg-type]
                own_tls=own_tls,  # type: ignore[arg-type]
                own_tls_key=own_tls_key,
                allow_addresses=profile.networks,
            )
        return found

    def rule_limits(self, rule: Rule) -> Limits:
        return resolve((f"{rule.key}.limits", f"{rule.title}, limits", rule.limits))


def unknown(name: str, known: Mapping[str, object]) -> str:
    """Text about a profile that is not there."""
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean `{close[0]}`?" if close else ""
    return f"there is no [policy.profile.{name}] (known: {', '.join((DEFAULT, *known))}){hint}"


def _where(name: str) -> str:
    return "" if name == DEFAULT else f"profile.{name}."


def _rules(where: str, table: RulesConfig) -> list[Rule]:
    rules = parse_list(where, "allow", "allow", table.allow) + parse_list(where, "deny", "deny", table.deny)
    for i, config in enumerate(table.rule):
        rule = parse_rule(where, i, config)
        resolve((f"{rule.key}.limits", "", rule.limits))  # ConfigError now, not when it is needed
        rules.append(rule)
    seen: Counter[str] = Counter()
    for i, rule in enumerate(rules):  # two that are called alike have what agents used apart
        seen[rule.identity] += 1
        if seen[rule.identity] > 1:
            rules[i] = dataclasses.replace(rule, identity=f"{rule.identity} #{seen[rule.identity]}")
    return rules
