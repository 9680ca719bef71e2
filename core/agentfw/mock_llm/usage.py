"""What calls cost in tokens, and the prompts that the "provider" still has in its cache."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

MAX_PROMPTS = 4096
"""Prefixes remembered; the oldest go."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one call. `input_tokens`: all of the prompt, cached or not; `output_tokens`: all, reasoning or not."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(mine + its for mine, its in zip(self.as_tuple(), other.as_tuple(), strict=True)))

    def as_tuple(self) -> tuple[int, ...]:
        return (self.input_tokens, self.output_tokens, self.cache_read_tokens, self.cache_write_tokens, self.reasoning_tokens)

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in Usage.__slots__}


class PromptCache:
    """Prefixes of prompts (lists of messages) that were sent before. `minimum`: shorter ones, in tokens, are not kept."""

    def __init__(self, minimum: int) -> None:
        self._minimum = minimum
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def longest(self, model: str, messages: Sequence[object], tokens: Sequence[int]) -> int:
        """Tokens of the longest beginning of `messages` that was a whole prompt before; it is one from now on. `tokens`: each
        message's."""
        digest = hashlib.sha256(model.encode())
        found = total = 0
        for message, cost in zip(messages, tokens, strict=True):
            digest.update(msgspec.json.encode(message))
            total += cost
            if total >= self._minimum and digest.digest() in self._seen:
                found = total
        if total >= self._minimum:
            self._keep(digest.digest())
        return found

    def known(self, prefix: object, tokens: int) -> bool | None:
        """Whether this very prefix was kept before (it is from now on); None: it is too short to be."""
        if tokens < self._minimum:
            return None
        key = hashlib.sha256(msgspec.json.encode(prefix)).digest()
        known = key in self._seen
        self._keep(key)
        return known

    def _keep(self, key: bytes) -> None:
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > MAX_PROMPTS:
            self._seen.popitem(last=False)
