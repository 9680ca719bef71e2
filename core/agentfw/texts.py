"""Text of others, made fit for a line that people read."""

from __future__ import annotations

MAX_TEXT = 1024
"""Characters of a target or a reason that are told."""


def shown(text: str, limit: int = MAX_TEXT) -> str:
    """`text` on one line, cut to `limit` characters; what is not printable is escaped: control characters, line ends, marks that
    turn the direction of writing."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 3] + "..."


def why(error: BaseException) -> str:
    """`TYPE: MESSAGE` on one line, of an exception that may be anybody's."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a plugin's own kind
        text = ""
    return shown(f"{type(error).__name__}: {text}" if text else type(error).__name__)
