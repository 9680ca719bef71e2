"""Limits on what agents may use, and what happens when they are used up.

A call is let in while something is left, counting what calls in flight have reserved; so a budget may be passed by what the last
call let in uses beyond its reservation, and by no more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from agentfw import Agent, Denied
from agentfw.reports import AuditEvent
from agentfw.runtime import Runtime

from .config import LIMITS, BudgetConfig
from .totals import Totals

WARN_AT = 0.8
MAX_TOLD = 65536
"""Warnings remembered as given; when there are more, they may be given again."""
UNITS = {"calls": "calls", "input_tokens": "input tokens", "output_tokens": "output tokens", "tokens": "tokens"}

log = logging.getLogger("agentfw.inspect")


@dataclass(frozen=True, slots=True)
class Account:
    """What one budget counts, for one agent; `whose` is the same for all who share it. `others`: what the other workers of a pool
    counted for it, as far as is known."""

    budget: Budget
    whose: str
    totals: Totals
    others: Totals | None = None

    @property
    def used(self) -> float:
        return self.budget.used(self.totals) + (self.budget.used(self.others) if self.others else 0)

    def reserved(self, asked: bool) -> float:
        of = self.budget.asked if asked else self.budget.reserved
        return of(self.totals) + (of(self.others) if self.others else 0)


class Budget:
    """One limit of a [[inspect.budget]]: a table with several makes several."""

    __slots__ = ("labels", "limit", "name", "per", "stop", "unit")

    def __init__(self, config: BudgetConfig, name: str, currency: str) -> None:
        self.per = config.per
        self.labels = config.labels
        self.stop = config.stop
        self.name = name
        self.limit: float = getattr(config, name)
        self.unit = UNITS.get(name, currency)

    @property
    def rule(self) -> str:
        return f"inspect: {_number(self.limit)} {self.unit} per {self.per}"

    def applies(self, agent: Agent) -> bool:
        if self.per.startswith("label:") and self.per[6:] not in agent.labels:
            return False
        return all(agent.labels.get(name) == value for name, value in self.labels.items())

    def _of(self, calls: int, inputs: int, outputs: int, cost: float) -> float:
        """What of these it limits."""
        if self.name == "calls":
            return calls
        if self.name == "cost":
            return cost
        return (0 if self.name == "output_tokens" else inputs) + (0 if self.name == "input_tokens" else outputs)

    def used(self, totals: Totals) -> float:
        return self._of(totals.calls, totals.input_tokens, totals.output_tokens, totals.cost)

    def reserved(self, totals: Totals) -> float:
        """What calls in flight may use, as far as that is known."""
        return self._of(totals.in_flight, totals.reserved_input, totals.reserved_output, totals.reserved_cost)

    def asked(self, totals: Totals) -> float:
        """The same, of those whose request was read to its end. (Calls count from their heads on.)"""
        return self._of(0, totals.asked_input, totals.asked_output, totals.asked_cost)


def read(configured: Iterable[BudgetConfig], currency: str) -> tuple[Budget, ...]:
    return tuple(Budget(each, name, currency) for each in configured for name in LIMITS if getattr(each, name) is not None)


class Warden:
    """Refuses, warns, stops. Belongs to one runtime."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.warnings = 0
        self._told: dict[tuple[str, str, int], None] = {}

    def admit(self, agent: Agent, accounts: Iterable[Account], *, asked: bool = False) -> None:
        """Denied if a budget of this agent's has nothing left. `asked`: the call was let in before, for what its head said, and
        now its request has been read: those before it that were count. Else many could be let in by their heads alone."""
        for account in accounts:
            budget = account.budget
            if asked and budget.name == "calls":
                continue
            used = account.used
            reserved = account.reserved(asked)
            if used + reserved < budget.limit:
                continue
            waiting = f", and {_number(reserved)} for calls in flight" if reserved else ""
            reason = f"used up: {_number(used)} of {_number(budget.limit)} {budget.unit}{waiting} ({account.whose})"
            if used >= budget.limit and budget.stop and self.runtime is not None:
                self.runtime.stop_agent(agent, f"stopped by {budget.rule}: {reason}")
            raise Denied(budget.rule, reason)

    def watch(self, agent: Agent, accounts: Iterable[Account]) -> None:
        """Tell of budgets that are nearly or all used, once for each."""
        for account in accounts:
            budget = account.budget
            used = account.used
            if used < budget.limit * WARN_AT:
                continue
            level = 100 if used >= budget.limit else int(WARN_AT * 100)
            key = (budget.rule, account.whose, level)
            if key in self._told:
                continue
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told[key] = None
            if level == 100:
                self._told[budget.rule, account.whose, int(WARN_AT * 100)] = None
            self._tell(agent, account, used, level)

    def _tell(self, agent: Agent, account: Account, used: float, level: int) -> None:
        budget = account.budget
        self.warnings += 1
        what = "is used up" if level == 100 else f"is {level} % used"
        text = f"{_number(used)} of {_number(budget.limit)} {budget.unit}"
        log.warning("the budget %s %s: %s (%s)", budget.rule.partition(": ")[2], what, text, account.whose)
        if self.runtime is not None:
            kind = "budget_used_up" if level == 100 else "budget_warning"
            whose = account.whose
            self.runtime.audit(AuditEvent.about(kind, agent, rule=budget.rule, plugin="inspect", reason=text, whose=whose))


def _number(value: float) -> str:
    return f"{value:d}" if isinstance(value, int) else f"{value:.6g}"
