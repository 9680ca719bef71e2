"""Markdown of rows and texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


class Unknown(Exception):
    """A page asks for a part that there is not."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Without rows: nothing."""
    lines = [" | ".join(["", *(cell(text) for text in row), ""]).strip() for row in rows]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *lines])


def cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: str) -> str:
    """In backquotes; a text with backquotes in longer ones."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
