"""The "model": what it answers, and how tokens are counted. The same text always gives the same tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle, islice

from .options import MockOptions

_TOKEN = re.compile(r"\s*\S{1,8}|\s+\Z")


class BadRequest(Exception):
    """A request body that the real APIs answer with 400."""


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: tuple[str, ...]
    input_tokens: int
    cut: bool
    """The token limit ended it."""
    costs: tuple[int, ...]
    """Tokens of each message; `input_tokens` are these and those of `extra`."""

    @property
    def text(self) -> str:
        return "".join(self.tokens)


def tokenize(text: str) -> list[str]:
    """Pieces that join to `text` exactly."""
    return _TOKEN.findall(text)


def answer(options: MockOptions, messages: object, extra: object, limit: object) -> Answer:
    """To `messages`, [{"role", "content"}]. `extra`: further prompt text that counts (a system prompt). `limit`: of tokens."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: at least one message is required")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise BadRequest("max_tokens: must be a positive integer")
    last = ""
    costs = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest("messages: each needs a role")
        text = content_text(message.get("content"))
        costs.append(len(tokenize(text)) + 3)  # role and separators
        if message["role"] == "user":
            last = text
    pieces = tokenize(options.reply or f"echo: {last}")
    if options.reply_tokens:
        pieces = list(islice(cycle([*pieces[:-1], pieces[-1] + " "]), options.reply_tokens))
    cut = limit is not None and len(pieces) > limit
    prompt = len(tokenize(content_text(extra))) + sum(costs)
    return Answer(tuple(pieces[:limit] if cut else pieces), prompt, cut, tuple(costs))


def content_text(content: object) -> str:
    """Of a string or a list of parts (`{"type": "text", "text": ...}`; others, such as images, have none)."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_texts(content))
    raise BadRequest("content: must be a string or a list of parts")


def _part_texts(parts: list[object]) -> Iterable[str]:
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise BadRequest("content: each part needs a type")
        text = part.get("text", "")
        if not isinstance(text, str):
            raise BadRequest("content: text must be a string")
        yield text
