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
    """`"name"`, `"name:port"`, `"*.name"`."""
    provider: Provider
    """Whose dialect is spoken there."""
    path: str = "/"
    """What paths begin with, before the dialect's own end ("chat/completions")."""


class PriceConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [inspect.prices.PATTERN]: for a million tokens. Cache prices default to that of input."""

    input: float
    """For tokens sent."""
    output: float = 0.0
    """For tokens received; 0 for embeddings."""
    cache_read: float | None = None
    """For tokens that the provider's cache gave; left out: as `input`."""
    cache_write: float | None = None
    """For tokens that the provider's cache took; left out: as `input`."""
    cache_write_1h: float | None = None
    """For those of them that it keeps for an hour (Anthropic's `"ttl": "1h"`); left out: as `cache_write`."""


class BudgetConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [[inspect.budget]]. `per`: "agent", "run", or "label:NAME" (each value has its own); `labels`: of these agents only."""

    per: str = "agent"
    """Whose it is: `"agent"` (each has its own), `"run"` (all agents together), `"label:NAME"` (all agents with the same
    value of that label; agents without it are not limited)."""
    labels: dict[str, str] = {}
    """Only of agents with these labels."""
    calls: int | None = None
    """Calls of models. One limit at least must be given."""
    input_tokens: int | None = None
    """Tokens sent."""
    output_tokens: int | None = None
    """Tokens received."""
    tokens: int | None = None
    """Both together."""
    cost: float | None = None
    """In the currency of the prices."""
    stop: bool = False
    """An agent that makes a further call is ended (status 137), and stderr says why."""


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [inspect]: calls of models, what they cost, what agents may use."""

    route: tuple[RouteConfig, ...] = ()
    """Hosts, besides the providers' own, where models are called."""
    prices: dict[str, PriceConfig] = {}
    """By the model's name, `*` for anything in it; case does not count, the longest that fits wins. There are no built-in
    prices."""
    currency: str = "USD"
    """What they are in."""
    budget: tuple[BudgetConfig, ...] = ()
    """What agents may use."""

    def __post_init__(self) -> None:
        if not self.currency.isprintable() or not 0 < len(self.currency) <= 8:
            raise ConfigError("currency", "must be a short word, as `USD`")
        for pattern, price in self.prices.items():
            for name in ("input", "output", "cache_read", "cache_write", "cache_write_1h"):
                value = getattr(price, name)
                if value is not None and not 0 <= value < 1e9:
                    raise ConfigError(f"prices.{pattern}.{name}", "must be a number from 0 to below 1e9")
        for i, budget in enumerate(self.budget):
            if budget.per not in ("agent", "run") and not (budget.per.startswith("label:") and budget.per[6:]):
                raise ConfigError(f"budget.{i}.per", 'must be "agent", "run" or "label:NAME"')
            given = [name for name in LIMITS if getattr(budget, name) is not None]
            if not given:
                raise ConfigError(f"budget.{i}", f"limits nothing: give one of {', '.join(LIMITS)}")
            for name in given:
                if not 0 <= getattr(budget, name) < 1e15:
                    raise ConfigError(f"budget.{i}.{name}", "must be a number from 0 to below 1e15")
            if budget.cost is not None and not self.prices:
                raise ConfigError(f"budget.{i}.cost", "without [inspect.prices] no call has a cost")
