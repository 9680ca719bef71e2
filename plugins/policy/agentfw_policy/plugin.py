"""The hooks: agents' profiles and accounts, and the rules' word on destinations, addresses and requests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from agentfw import Agent, Denied, Destination, ExitReport, RequestHead, hookimpl
from agentfw.config import Config as File
from agentfw.errors import ConfigError
from agentfw.guest_rules import GuestRules
from agentfw.metering import Meter, Traffic
from agentfw.reports import ExchangeReport
from agentfw.runtime import Runtime

from .config import Config, OwnTls
from .limits import Account, Exhausted, Limits
from .profiles import DEFAULT, Policy, Profile
from .reporting import Reports
from .rules import Finding, Rule, RuleSet
from .words import in_words

MAX_ENDED = 1024
"""Agents that ended last, for which nothing is kept any more."""


class _State:
    """What is kept of one agent while it runs."""

    __slots__ = ("account", "accounts", "agent", "by_rule", "counted", "profile", "reports", "requests", "rules", "traffic")

    def __init__(self, agent: Agent, profile: Profile, rules: RuleSet) -> None:
        self.agent = agent
        self.profile = profile
        self.rules = rules
        self.account: Account | None = None
        """Its own; the first of `accounts`."""
        self.accounts: list[Account] = []
        """All that count each of its requests: its own, its profile's, the fleet's."""
        self.by_rule: dict[str, Account] = {}
        """Its accounts under rules with limits, by `Rule.identity`."""
        self.reports = Reports()
        self.traffic: Traffic | None = None
        self.requests = 0
        self.counted: set[Account] = set()
        """Those that know what it did before they were there."""


class Plugin:
    """See the package. `clock`: seconds, for rates."""

    name = "policy"
    config_type = Config

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = Policy(config)
        self.intercepts = self._policy.intercepts
        self._clock = clock
        self._runtime: Runtime | None = None
        self._states: dict[str, _State] = {}
        self._ended: dict[str, None] = {}
        self._reports = Reports()
        """What concerns no single agent."""
        self._shared: dict[str, Account] = {}
        """By profile: what all of its agents use together; the default one's: what all agents do."""
        self._open: dict[int, tuple[Account, ...]] = {}
        """By number of the exchange: who gets a request back when it ends."""
        self._places: dict[tuple[str, str], str] = {}
        """Rules with where they are written, in `_places_of`, by key and title."""
        self._places_of: File | None = None
        self._counters: Counter[str] = Counter(allowed=0, denied=0, requests=0, requests_denied=0, limited=0, reported=0)

    def in_words(self) -> str:
        """The rules in force, for people (the dashboard shows them)."""
        return in_words(self._policy)

    # -- lifecycle

    @hookimpl
    def start(self, runtime: Runtime) -> None:
        self._runtime = runtime
        for state in self._states.values():
            self._attach(state)

    @hookimpl
    def admit(self, agent: Agent) -> None:
        """Denied if its label names a profile that is not there."""
        self._state(agent)

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        self._ended[agent.id] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        state = self._states.pop(agent.id, None)
        if state is not None:
            self._detach(state, state.accounts)

    def reconfigure(self, config: Config) -> Callable[[], None]:
        """Check another configuration; the result puts it in force, for agents that run, too. What they used so far counts."""
        policy = Policy(config)
        chosen: list[tuple[_State, Profile, RuleSet]] = []
        for state in self._states.values():
            try:
                profile = policy.choose(state.agent)
            except Denied as error:
                raise ConfigError("profile", f"{state.agent.name} runs with {error.rule}: {error.reason}") from None
            chosen.append((state, profile, policy.rule_set(profile, state.agent.labels)))

        def commit() -> None:
            self._policy = policy
            self.intercepts = policy.intercepts
            for name in list(self._shared):
                if name not in policy.profiles:
                    del self._shared[name]
            for state, profile, rules in chosen:
                state.profile, state.rules = profile, rules
                self._account(state)
            known = {state.agent.id for state, _, _ in chosen}
            for state in [each for each in self._states.values() if each.agent.id not in known]:
                self._detach(state, state.accounts)  # it came between: it will be seen anew
                del self._states[state.agent.id]

        return commit

    @hookimpl
    def guest_rules(self, agent: Agent) -> GuestRules:
        return self._state(agent).profile.guest

    # -- decisions

    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> str:
        state = self._state(agent)
        decision = state.rules.decide(destination)
        if decision.findings:
            self._object(state, destination, decision.findings)
        self._counters["allowed"] += 1
        if decision.findings:  # it is denied, but for that they only report
            return f"only reported: {self.where(decision.findings[0])}"
        rule = decision.allowed_by
        return self._where(rule.key, rule.title) if rule is not None else self._where(*state.rules.by_default)

    @hookimpl(tryfirst=True)
    def dial(self, agent: Agent, destination: Destination, address: str) -> bool | None:
        state = self._state(agent)
        findings, permitted = state.rules.dial(destination, address)
        if findings:
            self._object(state, destination, findings)
        return permitted

    @hookimpl(tryfirst=True)
    def own_tls(self, agent: Agent, destination: Destination) -> OwnTls | None:
        state = self._state(agent)
        decision = state.rules.decide(destination)
        if decision.own_tls != "deny":
            return decision.own_tls
        self._object(state, destination, [each for each in decision.findings if each.key == decision.own_tls_by[1]])
        return "passthrough"  # it is only reported

    @hookimpl(tryfirst=True)
    def request(self, agent: Agent, destination: Destination, head: RequestHead) -> None:
        state = self._state(agent)
        findings, limited = state.rules.request(destination, head)
        self._counters["requests"] += 1
        if findings:
            try:
                self._object(state, destination, findings)
            except Denied:
                self._counters["requests_denied"] += 1
                raise
        accounts = (*state.accounts, *(self._under(state, rule) for rule in limited)) if limited else state.accounts
        if not accounts:
            state.requests += 1
        else:
            self._take(state, destination, head, accounts)

    @hookimpl(tryfirst=True)
    def recheck(self, agent: Agent, destination: Destination, head: RequestHead) -> None:
        state = self._state(agent)
        self._object(state, destination, state.rules.request(destination, head)[0])

    @hookimpl
    def exchange_end(self, exchange: ExchangeReport) -> None:
        for account in self._open.pop(exchange.exchange, ()):
            account.give_back()

    @hookimpl
    def meters(self, agent: Agent, destination: Destination) -> list[Meter] | None:
        state = self._state(agent)
        limited = state.rules.decide(destination).limited
        if not limited:
            return None
        return [account.meter for account in (self._under(state, rule) for rule in limited) if account.metering]

    @hookimpl
    def tenant(self, agent: Agent) -> str | None:
        """Agents under different rules do not share connections."""
        profile = self._state(agent).profile.name
        return None if profile == DEFAULT else f"policy {profile}"

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return dict(self._counters)

    # -- accounts

    def _state(self, agent: Agent) -> _State:
        found = self._states.get(agent.id)
        if found is None:
            if agent.id in self._ended:
                raise Denied("policy: the agent has ended", agent.name, self.name)
            profile = self._policy.choose(agent)
            found = self._states[agent.id] = _State(agent, profile, self._policy.rule_set(profile, agent.labels))
            self._account(found)
        return found

    def _account(self, state: _State) -> None:
        """Put the limits of its profile in force for an agent."""
        now, report = self._clock(), state.rules.mode == "report"
        limits = state.profile.limits
        if state.account is not None:
            state.account.change(limits, report, now)
        elif limits:
            state.account = Account("this agent", limits, report, now, partial(self._exceeded, state))
        shared = []
        for name in dict.fromkeys((state.profile.name, DEFAULT)):
            profile = self._policy.profiles[name]
            account = self._shared.get(name)
            mode = profile.settings.get("mode", ("enforce", ""))[0]
            if account is not None:
                account.change(profile.shared_limits, mode == "report", now)
            elif profile.shared_limits:
                who = "all agents together" if name == DEFAULT else f"all agents of profile {name} together"
                account = self._shared[name] = Account(
                    who, profile.shared_limits, mode == "report", now, partial(self._exceeded, None)
                )
            if account is not None:
                shared.append(account)
        before = state.accounts
        # Also those without limits any more: they may get some again, and what was used meanwhile counts.
        state.accounts = [*((state.account,) if state.account is not None else ()), *shared]
        self._detach(state, [account for account in before if account not in state.accounts])
        self._attach(state)
        rules = {rule.identity: rule for rule in state.rules.rules if rule.limited}
        for identity, account in list(state.by_rule.items()):
            if identity in rules:
                rule = rules[identity]
                account.change(self._policy.rule_limits(rule), state.rules.reports(rule), now)
            else:  # flows may still be counted for it
                state.by_rule.pop(identity).change(Limits({}), False, now)

    def _attach(self, state: _State) -> None:
        """Have the core count for the agent's accounts, its flows that are open included."""
        if state.traffic is None and self._runtime is not None and state.accounts:
            state.traffic = self._runtime.traffic(state.agent)
        for account in state.accounts:
            if account not in state.counted:
                state.counted.add(account)
                account.requests += state.requests
                if state.traffic is not None:
                    account.meter.up += state.traffic.up
                    account.meter.down += state.traffic.down
            if state.traffic is not None:
                state.traffic.attach(account.meter)

    @staticmethod
    def _detach(state: _State, accounts: Iterable[Account]) -> None:
        if state.traffic is not None:
            for account in accounts:
                state.traffic.detach(account.meter)

    def _under(self, state: _State, rule: Rule) -> Account:
        """What an agent used under a rule."""
        found = state.by_rule.get(rule.identity)
        if found is None:
            limits = self._policy.rule_limits(rule)
            report = state.rules.reports(rule)
            exceeded = partial(self._exceeded, state)
            found = state.by_rule[rule.identity] = Account("this agent", limits, report, self._clock(), exceeded)
        return found

    def _take(self, state: _State, destination: Destination, head: RequestHead, accounts: Sequence[Account]) -> None:
        """Count a request, if all let it pass. A second try of the same exchange is the same request."""
        if head.exchange and head.exchange in self._open:
            return
        now = self._clock()
        for account in accounts:
            reached = account.check(now)
            if reached is not None:
                self._limit(state, destination, reached)
        state.requests += 1
        for account in accounts:
            account.take(now)
        if head.exchange:
            self._open[head.exchange] = tuple(accounts)
        else:
            for account in accounts:
                account.give_back()

    # -- refusing

    def where(self, finding: Finding) -> str:
        """The rule as the operator wrote it, and where."""
        return self._where(finding.key, finding.title)

    def _where(self, key: str, title: str) -> str:
        if self._runtime is None:
            return title
        config = self._runtime.config
        if config is not self._places_of:
            self._places, self._places_of = {}, config
        text = self._places.get((key, title))
        if text is None:
            place = config.place(f"{self.name}.{key}")
            text = self._places[key, title] = f"{title} ({place})" if place else title
        return text

    def _object(self, state: _State, destination: Destination, findings: Iterable[Finding]) -> None:
        """Denied for the first that is not only reported."""
        for finding in findings:
            if not finding.report:
                self._counters["denied"] += 1
                raise Denied(self.where(finding), finding.reason, self.name)
            self._report(state, destination, finding)

    def _limit(self, state: _State, destination: Destination, reached: Exhausted) -> None:
        finding = reached.finding
        if finding.report:
            self._report(state, destination, finding)
            return
        self._counters["limited"] += 1
        status = 403 if reached.retry_after is None else 429
        raise Denied(self.where(finding), finding.reason, self.name, status=status, retry_after=reached.retry_after)

    def _exceeded(self, state: _State | None, reached: Exhausted) -> None:
        """The core's meters say so. None: those of all agents together."""
        finding = reached.finding
        if not finding.report:
            self._counters["limited"] += 1
            raise Denied(self.where(finding), finding.reason, self.name)
        self._report(state, None, finding)

    def _report(self, state: _State | None, destination: Destination | None, finding: Finding) -> None:
        self._counters["reported"] += 1
        reports, agent = (self._reports, None) if state is None else (state.reports, state.agent)
        reports.tell(self._runtime, agent, destination, self.where(finding), finding)
