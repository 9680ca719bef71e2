"""Rules, compiled: who may talk to whom, and with which requests.

Deny wins, whatever the order. A rule with `methods` or `paths` is *conditional*: it lets nobody be refused, and everybody who may
fulfil it connect; each request is held against it. What cannot be held against it (TCP, UDP, TLS that the agent makes itself and
that passes through, what follows a switch of protocols) is refused, unless the rule says `raw` or `upgrade`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentfw import Destination, RequestHead
from agentfw.errors import ConfigError

from . import paths
from .config import NONE, LimitsConfig, Mode, OwnTls, RuleConfig
from .patterns import Index, Network, Pattern, Ports, parse_network, parse_pattern, parse_ports, port_in

MAX_KNOWN = 4096
"""Destinations whose rules are remembered; agents choose the names."""

NO_LIMITS = LimitsConfig()

CHECKED = ("http", "https", "dns")
"""Schemes whose requests are held against conditional rules (or that have none)."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One rule of a list or a table. `key`: where in [policy] it is written, "profile.red.deny.2". `title`: as the operator wrote
    it. `patterns` empty: every host. `prefixes`: decoded (`paths.parse_prefix`)."""

    key: str
    title: str
    action: Literal["allow", "deny"]
    patterns: tuple[Pattern, ...] = ()
    ports: Ports = ()
    methods: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mode: Mode | None = None
    own_tls: OwnTls | None = None
    raw: bool = False
    upgrade: bool = False
    limits: LimitsConfig = NO_LIMITS
    identity: str = ""
    """By which a reload finds it again."""

    @property
    def conditional(self) -> bool:
        return bool(self.methods or self.prefixes)

    @property
    def limited(self) -> bool:
        return self.limits != NO_LIMITS

    def fits_labels(self, labels: Mapping[str, str]) -> bool:
        return labels_fit(self.labels, labels)

    def fits_port(self, port: int, pattern: Pattern | None) -> bool:
        """`pattern`: the one by which it was found."""
        return (pattern is None or pattern.port in (0, port)) and port_in(port, self.ports)

    def fits_request(self, method: str, path: str | None, folded: str) -> bool:
        """Of a conditional rule: this request is one that it means. `folded`: `path` folded, for deny rules."""
        if self.action == "deny":
            if self.methods and method.upper() not in self.methods:
                return False
            return not self.prefixes or any(paths.below_folded(folded, prefix) for prefix in self.prefixes)
        if self.methods and method not in self.methods:
            return False
        return not self.prefixes or (path is not None and any(paths.below(path, prefix) for prefix in self.prefixes))


def labels_fit(wanted: Mapping[str, tuple[str, ...]], labels: Mapping[str, str]) -> bool:
    return all(labels.get(name) in values for name, values in wanted.items())


def parse_list(where: str, key: str, action: Literal["allow", "deny"], texts: Iterable[str]) -> list[Rule]:
    """The lists `allow` and `deny`. `where`: "" or "profile.NAME."."""
    found = []
    for i, text in enumerate(texts):
        try:
            pattern = parse_pattern(text)
        except ValueError as error:
            raise ConfigError(f"{where}{key}.{i}", str(error)) from None
        title = f"policy.{where}{key}: {text}"
        found.append(Rule(f"{where}{key}.{i}", title, action, (pattern,), identity=title))
    return found


def parse_rule(where: str, number: int, config: RuleConfig) -> Rule:
    """One [[rule]]. ConfigError names the key."""
    key = f"{where}rule.{number}"
    what = ""
    try:
        what = "hosts" if config.hosts else "host"
        texts = (*((config.host,) if config.host else ()), *config.hosts)
        patterns = tuple(parse_pattern(text) for text in texts)
        what = "ports" if config.ports else "port"
        ports = parse_ports((*((config.port,) if config.port != "" else ()), *config.ports))
        what = "methods"
        for method in config.methods:
            if not method.isascii() or not method.replace("-", "").isalpha() or method != method.upper():
                raise ValueError(f"`{method}` is no method (write `GET`)")
        what = "paths"
        prefixes = tuple(map(paths.parse_prefix, config.paths))
        if config.action == "deny":
            prefixes = tuple(map(paths.folded, prefixes))
            what = "limits"
            if config.limits != NO_LIMITS:
                raise ValueError("what is denied needs no limits")
            what = "own_tls"
            if config.own_tls is not None:
                raise ValueError("what is denied needs no TLS")
        what = "raw" if config.raw else "upgrade"
        if (config.raw or config.upgrade) and not (config.methods or config.paths):
            raise ValueError("has no effect without `methods` or `paths`")
    except ValueError as error:
        raise ConfigError(f"{key}.{what}", str(error)) from None
    labels = {name: (value,) if isinstance(value, str) else value for name, value in config.labels.items()}
    described = " ".join(
        part
        for part in (
            config.action,
            ",".join(config.methods),
            ",".join(texts) or "every host",
            f"port {','.join(map(str, (*((config.port,) if config.port != '' else ()), *config.ports)))}" if ports else "",
            ",".join(config.paths),
            " ".join(f"{name}={'|'.join(values)}" for name, values in labels.items()),
        )
        if part
    )
    title = f"policy.{where}rule: {config.name or described}"
    return Rule(
        key, title, config.action, patterns, ports, frozenset(config.methods), prefixes, labels, config.mode, config.own_tls,
        config.raw, config.upgrade, config.limits, f"{where}rule:{config.name or described}",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule has to say against something. `report`: it is only reported."""

    title: str
    key: str
    reason: str
    report: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """All that the rules say about one destination, before any request is known."""

    findings: tuple[Finding, ...] = ()
    """Against connecting; those that are only reported come last."""
    allowed_by: Rule | None = None
    """None: nobody (then it is denied), or the default is "allow"."""
    always: bool = True
    """Requests need no allow rule of their own: an unconditional one, or the default, is there."""
    denies: tuple[Rule, ...] = ()
    """Conditional ones: each request is held against them."""
    allows: tuple[Rule, ...] = ()
    """Likewise, if not `always`."""
    limited: tuple[Rule, ...] = ()
    """Allow rules with limits."""
    own_tls: OwnTls | None = None
    own_tls_by: tuple[str, str] = ("", "")
    """Title and key of what says so."""

    @property
    def conditional(self) -> bool:
        """Each request is held against some rule."""
        return bool(self.denies or self.allows)


_STRICTEST = {"deny": 3, "intercept": 2, "passthrough": 1, None: 0}


class RuleSet:
    """The rules that hold for agents of one profile and one set of labels."""

    def __init__(
        self,
        rules: Iterable[Rule],
        *,
        default: Literal["deny", "allow"] = "deny",
        default_key: str = "default",
        mode: Mode = "enforce",
        own_tls: OwnTls | None = None,
        own_tls_key: str = "own_tls",
        allow_addresses: Iterable[Network] = (),
    ) -> None:
        self.rules = tuple(rules)
        self.default = default
        self.default_key = default_key
        self.mode = mode
        self.own_tls = own_tls
        self.own_tls_key = own_tls_key
        self.index: Index[tuple[int, Rule, Pattern | None]] = Index()
        for i, rule in enumerate(self.rules):
            for pattern in rule.patterns:
                self.index.add(pattern, (i, rule, pattern))
            if not rule.patterns:
                self.index.add(None, (i, rule, None))
        self._addresses: Index[Network] = Index()
        for network in allow_addresses:
            self._addresses.add_network(network, network)
        self._known: dict[Destination, Decision] = {}
        self._dialled: dict[tuple[str, int, bool, bool], tuple[Rule, ...]] = {}

    def reports(self, rule: Rule | None = None) -> bool:
        """What this rule (None: the default) denies is only reported."""
        return ((rule.mode if rule is not None else None) or self.mode) == "report"

    @property
    def by_default(self) -> tuple[str, str]:
        """Key and title of what permits where no rule has to."""
        return self.default_key, f"policy.{self.default_key}: {self.default}"

    def decide(self, destination: Destination) -> Decision:
        """What the rules say about this destination."""
        try:
            return self._known[destination]
        except KeyError:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            found = self._known[destination] = self._decide(destination)
            return found

    def _matching(self, destination: Destination, action: str) -> list[Rule]:
        """In the order in which they are written. For scheme "dns" the port does not count: of allow rules any fits, of deny
        rules only those for all ports."""
        if destination.is_address:
            found = self.index.address(destination.host) if action == "allow" else self.index.embedded(destination.host)
            found = [*found, *self.index.anything()]
        else:
            found = self.index.name(destination.host)
        chosen: dict[int, Rule] = {}
        for i, rule, pattern in found:
            if rule.action != action:
                continue
            if destination.scheme != "dns":
                fits = rule.fits_port(destination.port, pattern)
            else:
                fits = action == "allow" or not (rule.ports or (pattern is not None and pattern.port))
            if fits:
                chosen[i] = rule
        return [rule for _, rule in sorted(chosen.items())]

    def _decide(self, destination: Destination) -> Decision:
        denies, allows = self._matching(destination, "deny"), self._matching(destination, "allow")
        where = shown(destination)
        own_tls, own_tls_by = self.own_tls, (f"policy.{self.own_tls_key}: {self.own_tls}", self.own_tls_key)
        stated = max((rule for rule in allows if rule.own_tls), key=lambda rule: _STRICTEST[rule.own_tls], default=None)
        if stated is not None:
            own_tls, own_tls_by = stated.own_tls, (f"{stated.title}, own_tls: {stated.own_tls}", f"{stated.key}.own_tls")
        # Not "tls", whatever `own_tls` says: what is intercepted is asked about as "https", and bytes inside TLS that are no HTTP
        # as "tls".
        checked = destination.scheme in CHECKED
        findings = []
        for rule in denies:
            if not rule.conditional:
                listed = "is on the deny list" if rule.key.rpartition(".")[0].endswith("deny") else "is denied"
                findings.append(Finding(rule.title, rule.key, f"{where} {listed}", self.reports(rule)))
            elif not checked and not rule.raw:
                findings.append(Finding(rule.title, rule.key, f"{where}: {_UNCHECKED}", self.reports(rule)))
        if destination.scheme == "tls" and own_tls == "deny":
            reason = f"TLS to {where} that the runtime cannot see into"
            findings.append(Finding(*own_tls_by, reason, self.reports(stated)))
        usable = [rule for rule in allows if checked or not rule.conditional or rule.raw]
        unconditional = [rule for rule in usable if not rule.conditional or not checked]
        if not usable and self.default == "deny":
            if allows:
                findings.append(Finding(allows[0].title, allows[0].key, f"{where}: {_UNCHECKED}", self.reports()))
            else:
                findings.append(self._unmentioned(f"{where} is not on the allow list"))
        findings.sort(key=lambda finding: finding.report)
        always = bool(unconditional) or self.default == "allow"
        return Decision(
            tuple(findings),
            next(iter(unconditional or usable), None),
            always,
            tuple(rule for rule in denies if rule.conditional) if checked else (),
            () if always else tuple(usable),
            tuple(rule for rule in allows if rule.limited),
            own_tls,
            own_tls_by,
        )

    def request(self, destination: Destination, head: RequestHead) -> tuple[list[Finding], list[Rule]]:
        """(what is against this request, those that are only reported last; the allow rules with limits that it falls under).
        For http and https."""
        decision = self.decide(destination)
        findings = list(decision.findings)
        if not decision.conditional and not any(rule.conditional for rule in decision.limited):
            return findings, list(decision.limited)
        path = paths.canonical_path(head.target)
        folded = paths.folded(path) if path is not None else ""
        if decision.conditional:
            findings += self._conditions(decision, destination, head, path, folded)
            findings.sort(key=lambda finding: finding.report)
        limited = [rule for rule in decision.limited if not rule.conditional or rule.fits_request(head.method, path, folded)]
        return findings, limited

    def permitting(self, destination: Destination, head: RequestHead) -> Rule | None:
        """The allow rule by which such a request passes, if nothing is against it; None: the default."""
        decision = self.decide(destination)
        path = paths.canonical_path(head.target)
        if decision.always:
            return decision.allowed_by
        return next((rule for rule in decision.allows if rule.fits_request(head.method, path, "")), None)

    def _conditions(
        self, decision: Decision, destination: Destination, head: RequestHead, path: str | None, folded: str
    ) -> Iterable[Finding]:
        asked = f"{head.method} {destination}{head.target.partition('?')[0][:200]}"
        rules = (*decision.denies, *decision.allows)
        if path is None and any(rule.prefixes for rule in rules):
            yield self._unclear((rule for rule in rules if rule.prefixes), f"{asked}: servers read this path differently")
            return
        overriding = paths.override(head.target, head.headers)
        if overriding is not None:
            yield self._unclear(rules, f"{asked}: {overriding} may make it another request")
            return
        for rule in decision.denies:
            if rule.fits_request(head.method, path, folded):
                yield Finding(rule.title, rule.key, f"{asked} is denied", self.reports(rule))
            elif head.upgrade is not None and not rule.upgrade:
                yield Finding(rule.title, rule.key, f"{asked}: {_SWITCH}", self.reports(rule))
        if not decision.allows:
            return
        fitting = [rule for rule in decision.allows if rule.fits_request(head.method, path, folded)]
        if not fitting:
            yield self._unmentioned(f"{asked} is not what the rules for it allow")
        elif head.upgrade is not None and not any(rule.upgrade for rule in fitting):
            rule = fitting[0]
            yield Finding(rule.title, rule.key, f"{asked}: {_SWITCH}", self.reports())

    def _unmentioned(self, reason: str) -> Finding:
        return Finding(f"policy.{self.default_key}: deny", self.default_key, reason, self.reports())

    def _unclear(self, rules: Iterable[Rule], reason: str) -> Finding:
        """The rules do not tell what to do with a request: that of the strictest of them is what is told."""
        found = [Finding(rule.title, rule.key, reason, self.reports(rule if rule.action == "deny" else None)) for rule in rules]
        return min(found, key=lambda finding: finding.report)

    def dial(self, destination: Destination, address: str) -> tuple[tuple[Finding, ...], bool | None]:
        """(what is against this address, whether it may be dialled though it is not public; None: no opinion)."""
        dns = destination.scheme == "dns"
        literal = destination.host == address
        key = (address, 0 if dns else destination.port, dns, literal)
        denies = self._dialled.get(key)
        if denies is None:
            if len(self._dialled) >= MAX_KNOWN:
                self._dialled.clear()
            denies = self._dialled[key] = self._against(destination, address, literal)
        reason = f"{address} (for {destination.host}) is on the deny list" if denies else ""
        findings = tuple(Finding(rule.title, rule.key, reason, self.reports(rule)) for rule in denies)
        if self._addresses.address(address):
            return findings, True
        # An address that the operator wrote himself; any host, or any address by default, is not meant.
        if literal:
            for _, rule, pattern in self.index.address(address):
                if rule.action == "allow" and rule.fits_port(destination.port, pattern):
                    return findings, True
        return findings, None

    def _against(self, destination: Destination, address: str, literal: bool) -> tuple[Rule, ...]:
        """Those that only report come last."""
        # With its port: a name of the agent's choosing may lead to the very address and port that are denied.
        found: dict[str, Rule] = {}
        for _, rule, pattern in self.index.embedded(address):
            if rule.action != "deny" or (literal and rule.conditional):
                continue
            if destination.scheme == "dns":
                fits = not rule.ports and (pattern is None or not pattern.port)
            else:
                fits = rule.fits_port(destination.port, pattern)
            if fits:  # whom a conditional one means cannot be seen once a name stands for the address
                found[rule.key] = rule
        return tuple(sorted(found.values(), key=self.reports))


_UNCHECKED = "cannot be held against the rule's methods or paths"
_SWITCH = f"what follows a switch of protocols {_UNCHECKED}"


def shown(destination: Destination) -> str:
    """ "host port 443"; names that are asked for have no port."""
    return destination.host if destination.scheme == "dns" else f"{destination.host} port {destination.port}"


def parse_addresses(where: str, texts: Iterable[str]) -> list[Network]:
    """The list `allow_addresses`. ConfigError."""
    found = []
    for i, text in enumerate(texts):
        try:
            found.append(parse_network(text))
        except ValueError as error:
            raise ConfigError(f"{where}allow_addresses.{i}", str(error)) from None
    return found


__all__ = ["NONE", "Decision", "Finding", "Rule", "RuleSet", "labels_fit", "parse_addresses", "parse_list", "parse_rule", "shown"]
