"""What calls cost, by the operator's table. There are no built-in prices: they change, and contracts differ."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Mapping

from .config import PriceConfig

MAX_KNOWN = 1024
"""Models whose price is remembered."""


class Prices:
    """`table`: patterns of model names ("gpt-4o", "gpt-4o-*"; case does not count) -> prices. The longest pattern that fits
    counts; one without `*` before all others."""

    def __init__(self, table: Mapping[str, PriceConfig]) -> None:
        order = sorted(table.items(), key=lambda item: ("*" not in item[0], len(item[0])), reverse=True)
        self._patterns = [(_compiled(pattern), price) for pattern, price in order]
        self._known: dict[str, PriceConfig | None] = {}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def of(self, model: str) -> PriceConfig | None:
        if model in self._known:
            return self._known[model]
        found = next((price for pattern, price in self._patterns if pattern.match(model)), None)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[model] = found
        return found

    def cost(
        self, models: tuple[str, ...], input_tokens: int, output_tokens: int, read: int = 0, written: int = 0, hour: int = 0
    ) -> float | None:
        """By the first of `models` that has a price. `read` and `written`: the parts of `input_tokens` that the cache gave and
        took; `hour`: the part of `written` that it keeps for an hour."""
        for model in models:
            price = self.of(model) if model else None
            if price is not None:
                plain = max(input_tokens - read - written, 0)
                reading = price.input if price.cache_read is None else price.cache_read
                writing = price.input if price.cache_write is None else price.cache_write
                cost = plain * price.input + read * reading + written * writing + output_tokens * price.output
                if hour and price.cache_write_1h is not None:
                    cost += min(hour, written) * (price.cache_write_1h - writing)
                return cost / 1e6
        return None


def _compiled(pattern: str) -> re.Pattern[str]:
    only_stars = glob.escape(pattern).replace("[*]", "*")  # fnmatch's expressions do not try every way to share a name out
    return re.compile(fnmatch.translate(only_stars), re.IGNORECASE)
