"""What was probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], form: str = "`{}`") -> str:
    """A hint, if one of `known` looks like `word`; else ""."""
    import difflib  # only for those who made a mistake

    near = difflib.get_close_matches(word[:100], list(known), n=1)
    return f"did you mean {form.format(near[0])}?" if near else ""
