"""Model calls, seen in passing: which model, how long, how many tokens, what it cost; and budgets that end them.

Requests to providers are recognised by host and path (`routes`), their bodies looked at as they stream (`bodies`), in the
provider's own way of counting (`openai`, `anthropic`, `gemini`). Nothing is held back or changed, but that a server is not asked
for encodings that cannot be read here. Each call ends in an `agentfw.model_calls.ModelCall`, given to the `model_call` hooks and
added up by agent, label, model and destination (`totals`).
"""

from .config import BudgetConfig, Config, PriceConfig, RouteConfig
from .plugin import Plugin

__all__ = ["BudgetConfig", "Config", "Plugin", "PriceConfig", "RouteConfig"]
