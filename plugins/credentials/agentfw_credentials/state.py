"""What a configuration comes to: rules by place, and the sources that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agentfw import Agent, ConfigError
from agentfw.destination import parse_authority

from .config import Config
from .oauth import OAuth, make_oauth
from .placeholders import Guard
from .renewed import Command
from .rules import Rule, Template, header_name
from .sources import Environment, File, Source

Place = tuple[str, int]


class State:
    """What one configuration comes to. Sources that the one before had, too, are taken over with what they know."""

    def __init__(self, config: Config, environment: Mapping[str, str], before: State | None) -> None:
        """ConfigError (keys within the table)."""
        self.config = config
        self.environment = environment
        self._before = before
        self._parents: set[str] = set()
        self.sources: dict[tuple[str, str], Source] = {}
        """By kind and name."""
        self.rules: dict[Place, list[Rule]] = {}
        for i, each in enumerate(config.rule):
            try:
                rule = Rule(each, self._source, i)
            except ConfigError as error:
                key = error.key if error.key.startswith(("command.", "oauth.")) else f"rule.{i}.{error.key}".rstrip(".")
                raise ConfigError(key, error.message, hint=error.hint) from None
            rules = self.rules.setdefault((rule.host, rule.port), [])
            for other in rules:
                if (other.slot, other.path, other.labels) == (rule.slot, rule.path, rule.labels):
                    key = "query" if rule.config.query else "basic" if rule.config.basic else "header"
                    raise ConfigError(f"rule.{i}.{key}", f"{each.host} has two rules for {rule.slot[1]}")
            rules.append(rule)
        for name in config.command.keys() - {key[1] for key in self.sources if key[0] == "command"}:
            raise ConfigError(f"command.{name}", "no rule uses it")
        for name in config.oauth.keys() - {key[1] for key in self.sources if key[0] == "oauth"}:
            raise ConfigError(f"oauth.{name}", "no rule uses it")
        self.hosts = {_host(text, i) for i, text in enumerate(config.require_hosts)}
        self.guard = Guard(
            [header_name(text, f"key_headers.{i}") for i, text in enumerate(config.key_headers)], config.key_parameters
        )
        self.all_rules = sorted((rule for rules in self.rules.values() for rule in rules), key=lambda rule: rule.number)
        self.placeholders = {rule.placeholder for rule in self.all_rules}
        self._before = None

    def _source(self, kind: str, where: str) -> Source:
        """The source that `${kind:where}` means. ConfigError (key "value", or within the table)."""
        config = self.config
        if kind == "env":
            return self._kept(kind, where, lambda: Environment(where, self.environment))
        if kind == "file":
            return self._kept(kind, where, lambda: File(where, pipes=self._before is None))
        if where not in getattr(config, kind):
            raise ConfigError("value", f"there is no [credentials.{kind}.{where}]")
        if kind == "command":
            command = config.command[where]
            return self._kept(kind, where, lambda: Command(where, command), lambda old: getattr(old, "config", None) == command)
        secret = self._client_secret(where)
        oauth = config.oauth[where]
        return self._kept(
            kind, where, lambda: make_oauth(config.oauth, where, secret),
            lambda old: isinstance(old, OAuth) and old.config == oauth and old.secret is secret,
        )  # fmt: skip

    def _client_secret(self, name: str) -> Source:
        if name in self._parents:
            raise ConfigError(f"oauth.{name}.client_secret", "needs itself")
        self._parents.add(name)
        try:
            template = Template(self.config.oauth[name].client_secret, self._source, secret=True)
        except ConfigError as error:
            if error.key != "value":
                raise
            raise ConfigError(f"oauth.{name}.client_secret", error.message, hint=error.hint) from None
        finally:
            self._parents.discard(name)
        if len(template.parts) != 1 or not template.sources:
            raise ConfigError(f"oauth.{name}.client_secret", "must be a secret or one source, and nothing else")
        source = template.sources[0]
        if not template.literal:
            return source
        return self._kept("client secret", name, lambda: source, lambda old: old.known == source.known)

    def _kept(
        self, kind: str, where: str, make: Callable[[], Source], same: Callable[[Source], bool] = lambda old: True
    ) -> Source:
        source = self.sources.get((kind, where))
        if source is None:
            source = self._before.sources.get((kind, where)) if self._before is not None else None
            if source is None or not same(source):
                source = make()
            self.sources[kind, where] = source
        return source

    def owned(self) -> set[Source]:
        """Every source, those of rules that are literal, too."""
        return {*self.sources.values(), *(source for rule in self.all_rules for source in rule.sources)}

    def for_agent(self, agent: Agent, place: Place) -> list[Rule]:
        """The rules that can be for a request of this agent's, whatever its path."""
        rules = self.rules.get(place)
        return [rule for rule in rules if rule.is_for(agent)] if rules else []


def _host(text: str, number: int) -> str | Place:
    try:
        host, port = parse_authority(text, 65536)
    except ValueError as error:
        raise ConfigError(f"require_hosts.{number}", str(error)) from None
    return host if port == 65536 else (host, port)


def chosen(rules: Iterable[Rule], path: str) -> list[Rule]:
    """Of those that cover the path the most particular one for each slot."""
    best: dict[tuple[str, str], Rule] = {}
    for rule in rules:
        if rule.covers(path):
            other = best.get(rule.slot)
            if other is None or rule.rank > other.rank:
                best[rule.slot] = rule
    return list(best.values())
