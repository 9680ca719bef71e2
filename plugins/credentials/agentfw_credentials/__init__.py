"""Secrets that agents use and never hold: a header set by the runtime, on the routes that the operator names.

    [[credentials.rule]]
    host = "api.openai.com"                     # exact; another port than 443 as "host:port"
    header = "authorization"
    value = "Bearer ${env:OPENAI_API_KEY}"      # or ${file:/run/secrets/openai}
    placeholder = "sk-agentfw-placeholder"      # what agents are given as their "key"

Only over TLS that the host verified. An agent's own key on such a route, and a placeholder or secret on its way to anywhere else,
are refused. A secret that comes back in a response (an echo, an error page) is masked. Secrets live in this object only; no
repr, message or counter shows them. A file they were read from, agentfw.toml itself for a literal one, must not be among what
the agents see, nor a secret among their variables: that stops the command.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from agentfw import Agent, ConfigError, Denied, Destination, TlsInfo, hookimpl
from agentfw.destination import parse_authority
from agentfw.http1 import HOP_BY_HOP, Headers

from .redact import Inflate, Redactor

if TYPE_CHECKING:
    from agentfw import RequestHead, ResponseHead

_SOURCE = re.compile(r"\$\{(env|file):([^}]*)\}")
_NOT_CREDENTIALS = HOP_BY_HOP | {"host", "content-length", "expect"}
KEY_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key", "x-auth-token"})
"""Where an agent could put a key of its own on an injected route."""
_PLACEHOLDER = re.compile(r"[\x21-\x7e]{8,}\Z")
_SCHEME = re.compile(r"(?:bearer|token|basic|apikey) +", re.IGNORECASE)


class RuleConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [[credentials.rule]]."""

    host: str
    header: str
    value: str
    placeholder: str = "sk-agentfw-placeholder"

    def __repr__(self) -> str:  # the value may be literal
        return f"RuleConfig(host={self.host!r}, header={self.header!r})"


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [credentials]."""

    rule: tuple[RuleConfig, ...] = ()


class Rule:
    """A checked rule with its secret. `name` is what messages call it."""

    __slots__ = ("_value", "files", "header", "host", "literal", "name", "number", "placeholder", "port", "secrets", "shown")

    def __init__(self, config: RuleConfig, environment: Mapping[str, str], number: int = 0) -> None:
        """ConfigError (key within the rule) if it cannot be used."""
        self.number = number
        try:
            self.host, self.port = parse_authority(config.host, 443)
        except ValueError as error:
            raise ConfigError("host", str(error)) from None
        self.header = config.header.lower()
        try:
            Headers([(self.header, "")])
        except ValueError:
            raise ConfigError("header", "not a header name") from None
        if self.header in _NOT_CREDENTIALS:
            raise ConfigError("header", f"{self.header} cannot carry a credential")
        self.name = f"credentials: {config.host} {self.header}"
        self.placeholder = config.placeholder
        if not _PLACEHOLDER.match(self.placeholder):
            raise ConfigError("placeholder", "must be at least 8 printable ASCII characters without blanks")
        self.secrets: tuple[str, ...] = tuple(_read(kind, where, environment) for kind, where in _SOURCE.findall(config.value))
        if "${" in _SOURCE.sub("", config.value):
            raise ConfigError("value", "`${` must begin ${env:NAME} or ${file:PATH}")
        self.files = tuple(Path(where).expanduser().absolute() for kind, where in _SOURCE.findall(config.value) if kind == "file")
        left = iter(self.secrets)
        self._value = _SOURCE.sub(lambda _: next(left), config.value)
        self.shown = _SOURCE.sub(lambda _: self.placeholder, config.value)
        """The value as an agent that fills in its placeholder sends it."""
        _check_value(self._value)
        self.literal = not self.secrets
        if self.literal:
            self.secrets = (self._value,)
            self.shown = self.placeholder
        if any(self.placeholder in secret or secret in self.placeholder for secret in self.secrets):
            raise ConfigError("placeholder", "must differ from the secret")

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"

    def apply(self, headers: Headers) -> None:
        """Set the header."""
        headers.set(self.header, self._value)


def _read(kind: str, where: str, environment: Mapping[str, str]) -> str:
    if kind == "env":
        value = environment.get(where)
        if value is None:
            raise ConfigError("value", f"the environment variable {where} is not set")
    else:
        try:
            value = Path(where).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("value", f"the file {where} cannot be read: {getattr(error, 'strerror', 'not text')}") from None
        value = value.removesuffix("\n").removesuffix("\r")
    if not value.strip():
        raise ConfigError("value", f"${{{kind}:{where}}} is empty")
    _check_value(value)
    return value


def _within(secret: str, value: str) -> bool:
    return secret == value or (len(secret) >= 8 and secret in value)  # short ones are in much by chance


def _check_value(value: str) -> None:
    if not value.strip() or value != value.strip():
        raise ConfigError("value", "is empty or has blanks at its ends")
    if not value.isprintable() or not value.isascii():
        raise ConfigError("value", "has a line break, NUL or another character that a header cannot carry")


class Plugin:
    """See the module."""

    name = "credentials"
    config_type = Config

    def __init__(self, config: Config, environment: Mapping[str, str] = os.environ) -> None:
        self._rules: dict[tuple[str, int], list[Rule]] = {}
        scopes: dict[str, set[tuple[str, int]]] = {}
        """placeholder or secret -> where it may go"""
        for i, each in enumerate(config.rule):
            try:
                rule = Rule(each, environment, i)
            except ConfigError as error:
                raise ConfigError(f"rule.{i}.{error.key}", error.message) from None
            place = (rule.host, rule.port)
            rules = self._rules.setdefault(place, [])
            if any(other.header == rule.header for other in rules):
                raise ConfigError(f"rule.{i}.header", f"{each.host} has two rules for {rule.header}")
            rules.append(rule)
            for value in (rule.placeholder, *rule.secrets):
                scopes.setdefault(value, set()).add(place)
        self._placeholders = {rule.placeholder for rules in self._rules.values() for rule in rules}
        self._scopes = scopes
        # longest first: one value may begin with another
        values = sorted(map(re.escape, scopes), key=len, reverse=True)
        self._values = re.compile("|".join(values)) if values else None
        secrets = {secret for rules in self._rules.values() for rule in rules for secret in rule.secrets}
        self._secrets = tuple(sorted((secret.encode("ascii") for secret in secrets), key=len, reverse=True))
        self._secret = re.compile(b"|".join(map(re.escape, self._secrets))) if secrets else None
        self._counters: Counter[str] = Counter(injected=0, refused=0, echoes_masked=0)

    def __repr__(self) -> str:
        return f"<credentials: {sum(map(len, self._rules.values()))} rules>"

    def check_guest(self, file: Path | None, environment: Mapping[str, str], sees: Callable[[Path], bool]) -> None:
        """ConfigError if the agents could read a secret: in `file` (agentfw.toml), in a file of ours, in their environment."""
        for rule in (rule for rules in self._rules.values() for rule in rules):
            places = [*rule.files, *([file] if rule.literal and file is not None else [])]
            names = [name for name, value in environment.items() if any(_within(secret, value) for secret in rule.secrets)]
            where = next((f"in {place}" for place in places if sees(place)), f"as {names[0]}" if names else "")
            if where:
                hint = "write `${env:NAME}` and give agents the placeholder, or `${file:PATH}` with a file that they do not see"
                raise ConfigError(f"rule.{rule.number}.value", f"the agents could read this secret, {where}", hint=hint)

    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> None:
        """Bytes that nobody can look into do not go where a credential is injected: they could carry an agent's own key."""
        if destination.scheme in ("tls", "tcp"):
            rules = self._rules.get((destination.host, destination.port))
            if rules:
                self._refuse(rules[0].name, f"{destination.host} is reached by HTTPS through the runtime only")

    @hookimpl(trylast=True)
    def request(self, agent: Agent, destination: Destination, head: RequestHead, tls: TlsInfo | None) -> None:
        if self._values is None:
            return
        place = (destination.host, destination.port)
        verified = destination.scheme == "https" and tls is not None and tls.verified
        self._check_scopes(head, place if verified else None)
        rules = self._rules.get(place)
        if not rules or not verified:
            return
        self._check_own_keys(head.headers, rules)
        for rule in rules:
            rule.apply(head.headers)
        head.headers.set("Accept-Encoding", "identity")  # so that an echo can be seen
        self._counters["injected"] += 1

    @hookimpl(trylast=True)
    def response(self, agent: Agent, destination: Destination, request: RequestHead, head: ResponseHead) -> None:
        if self._secret is None or (destination.host, destination.port) not in self._rules:
            return
        head.reason = self._masked(head.reason)
        for name in {name.lower() for name, value in head.headers if self._masked(value) != value}:
            values = [self._masked(value) for value in head.headers.get_all(name)]
            head.headers.remove(name)
            for value in values:
                head.headers.add(name, value)
        for encoding in reversed(head.headers.tokens("content-encoding")):
            if encoding in ("gzip", "x-gzip", "deflate"):
                head.transforms.append(Inflate())
            elif encoding != "identity":
                raise Denied(f"credentials: {destination.host}", f"a response in the encoding {encoding!a} cannot be looked into")
        head.headers.remove("content-encoding")
        head.transforms.append(Redactor(self._secret, self._secrets, self._count_echoes))

    def _count_echoes(self, number: int) -> None:
        self._counters["echoes_masked"] += number

    def _masked(self, text: str) -> str:
        assert self._secret is not None
        data = text.encode("latin-1", "replace")
        return Redactor(self._secret, self._secrets, self._count_echoes)(data, True).decode("latin-1")

    def _check_scopes(self, head: RequestHead, place: tuple[str, int] | None) -> None:
        """Refuse a placeholder or a secret in the head on its way elsewhere, or to its place without verified TLS."""
        assert self._values is not None
        for text in (head.target, *(value for _, value in head.headers)):
            for match in self._values.finditer(text):
                if place not in self._scopes[match[0]]:
                    kind = "a placeholder" if match[0] in self._placeholders else "a secret"
                    self._refuse("credentials: scope", f"{kind} may not be sent there" if place else f"{kind} needs verified TLS")

    def _check_own_keys(self, headers: Headers, rules: list[Rule]) -> None:
        """Where a key can stand there must be nothing, or a placeholder of this route."""
        placeholders = {rule.placeholder for rule in rules} | {rule.shown for rule in rules}
        for name, value in headers:
            lower = name.lower()
            rule = next((rule for rule in rules if rule.header == lower), None)
            if rule is None and lower not in KEY_HEADERS:
                continue
            if value not in placeholders and _SCHEME.sub("", value, count=1) not in placeholders:
                self._refuse((rule or rules[0]).name, f"an agent's own {lower} is not accepted here; send the placeholder")

    def _refuse(self, rule: str, reason: str) -> None:
        self._counters["refused"] += 1
        raise Denied(rule, reason)

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return dict(self._counters)
