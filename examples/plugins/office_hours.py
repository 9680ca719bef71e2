"""A policy: who may use which hosts when.

    [office_hours]
    timezone = "Europe/Berlin"

    [[office_hours.rule]]
    hosts = ["api.openai.com"]
    labels = { team = "research" }      # agents that have all of these; none: all agents
    days = ["mon", "tue", "wed", "thu", "fri"]
    hours = "08:00-18:30"               # "22:00-06:00" runs past midnight

A host that rules name is open to an agent while one of them fits. Other hosts are none of this plugin's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
from agentfw import Agent, ConfigError, Denied, Destination, hookimpl
from agentfw.destination import parse_host

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class RuleConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """[[office_hours.rule]]"""

    hosts: tuple[str, ...]
    hours: str
    days: tuple[str, ...] = DAYS
    labels: dict[str, str] = {}


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [office_hours]."""

    rule: tuple[RuleConfig, ...] = ()
    timezone: str = "UTC"


class Rule:
    """One rule, checked."""

    def __init__(self, number: int, config: RuleConfig) -> None:
        where = f"rule.{number}"
        match = re.fullmatch(r"(\d\d):([0-5]\d)-(\d\d):([0-5]\d)", config.hours, re.ASCII)
        self.begin, self.end = (int(match[i]) * 60 + int(match[i + 1]) for i in (1, 3)) if match else (0, 0)
        if not self.begin < 1440 or not 0 < self.end <= 1440:
            raise ConfigError(f"{where}.hours", 'write them as "08:00-18:30"')
        for index, day in enumerate(config.days):
            if day not in DAYS:
                raise ConfigError(f"{where}.days.{index}", f"is none of {', '.join(DAYS)}")
        try:
            self.hosts = frozenset(map(parse_host, config.hosts))
        except ValueError as error:
            raise ConfigError(f"{where}.hosts", str(error)) from None
        self.days = {DAYS.index(day) for day in config.days}
        self.labels = config.labels.items()
        self.text = f"{' '.join(config.days)} {config.hours}"

    def fits(self, agent: Agent, now: datetime) -> bool:
        if not self.labels <= agent.labels.items():
            return False
        minute, day = now.hour * 60 + now.minute, now.weekday()
        if self.begin <= self.end:
            return day in self.days and self.begin <= minute < self.end
        return (day in self.days and minute >= self.begin) or ((day - 1) % 7 in self.days and minute < self.end)


class Plugin:
    """`clock`: for tests."""

    name = "office_hours"
    api = "1"
    config_type = Config

    def __init__(self, config: Config, clock: Callable[[ZoneInfo], datetime] = datetime.now) -> None:
        self._clock = clock
        self._closed = 0
        self.reconfigure(config)()

    def reconfigure(self, config: Config) -> Callable[[], None]:
        try:
            zone = ZoneInfo(config.timezone)
        except (KeyError, ValueError, OSError):
            raise ConfigError("timezone", "is none that this machine knows") from None
        rules = [Rule(number, rule) for number, rule in enumerate(config.rule)]

        def commit() -> None:
            self._zone, self._rules = zone, rules

        return commit

    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> None:
        rules = [rule for rule in self._rules if destination.host in rule.hosts]
        if rules and not any(rule.fits(agent, self._clock(self._zone)) for rule in rules):
            self._closed += 1
            raise Denied(f"office_hours: {rules[0].text}", f"{destination.host} is closed to {agent.name} now")

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return {"closed": self._closed}
