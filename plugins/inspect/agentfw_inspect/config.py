"""Table [inspect]."""

from __future__ import annotations

from typing import Literal

import msgspec
from agentfw import ConfigError

Provider = Literal["openai", "anthropic", "gemini"]
LIMITS = ("calls", "input_tokens", "output_tokens", "tokens", "cost")


class RouteConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [[inspect.route]]: where else a provider's dialect is spoken. `host` as in policies, "name", "name:port", "*.name";
    `path`: what the paths begin with, before the dialect's own end ("chat/completions")."""

    host: str
    provider: Provider
    path: str = "/"


class PriceConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [inspect.prices.PATTERN]: for a million tokens. Cache prices default to that of input."""

    input: float
    output: float = 0.0
    cache_read: float | None = None
    cache_write: float | None = None


class BudgetConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [[inspect.budget]]. `per`: "agent", "run", or "label:NAME" (each value has its own); `labels`: of these agents only."""

    per: str = "agent"
    labels: dict[str, str] = {}
    calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens: int | None = None
    cost: float | None = None
    stop: bool = False
    """End an agent that makes a further call."""


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [inspect]."""

    route: tuple[RouteConfig, ...] = ()
    prices: dict[str, PriceConfig] = {}
    currency: str = "USD"
    budget: tuple[BudgetConfig, ...] = ()

    def __post_init__(self) -> None:
        if not self.currency.isprintable() or not 0 < len(self.currency) <= 8:
            raise ConfigError("currency", "must be a short word, as `USD`")
        for pattern, price in self.prices.items():
            for name in ("input", "output", "cache_read", "cache_write"):
                value = getattr(price, name)
                if value is not None and not 0 <= value < 1e9:
                    raise ConfigError(f"prices.{pattern}.{name}", "must be from 0 to a thousand million")
        for i, budget in enumerate(self.budget):
            if budget.per not in ("agent", "run") and not (budget.per.startswith("label:") and budget.per[6:]):
                raise ConfigError(f"budget.{i}.per", 'must be "agent", "run" or "label:NAME"')
            given = [name for name in LIMITS if getattr(budget, name) is not None]
            if not given:
                raise ConfigError(f"budget.{i}", f"limits nothing: give one of {', '.join(LIMITS)}")
            for name in given:
                if not 0 <= getattr(budget, name) < 1e15:
                    raise ConfigError(f"budget.{i}.{name}", "must be from 0 to a million thousand million")
            if budget.cost is not None and not self.prices:
                raise ConfigError(f"budget.{i}.cost", "without [inspect.prices] no call has a cost")
