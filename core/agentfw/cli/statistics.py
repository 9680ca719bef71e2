"""What `--stats` makes of counters for a person."""

from __future__ import annotations

from collections.abc import Mapping

_PREFIX = "hooks."


def split_hooks(counted: Mapping[str, int | float]) -> tuple[dict[str, int | float], list[tuple[str, str]]]:
    """The counters without those of hook calls, and a row for each plugin and hook in their place."""
    rest: dict[str, int | float] = {}
    hooks: dict[str, dict[str, int | float]] = {}
    for name, value in counted.items():
        if name.startswith(_PREFIX):
            call, _, what = name.rpartition(".")
            hooks.setdefault(call.removeprefix(_PREFIX), {})[what] = value
        else:
            rest[name] = value
    shown = {name: numbers for name, numbers in hooks.items() if _on_the_path(name, numbers)}
    return rest, [(f"hook {name}", _row(numbers)) for name, numbers in sorted(shown.items())]


def _on_the_path(name: str, numbers: Mapping[str, int | float]) -> bool:
    """Agents wait for it, or something is wrong with it."""
    return name.rpartition(".")[2] not in _ASIDE or any(what in numbers for what in _TROUBLE)


def _row(numbers: Mapping[str, int | float]) -> str:
    calls = int(numbers["calls"])
    words = [f"{calls} call{'s' if calls != 1 else ''}"]
    words += [f"{numbers[what]} {text}" for what, text in _TROUBLE.items() if what in numbers]
    words.append(f"{_time(numbers['seconds'] / calls)} each, {_time(numbers['longest'])} at most")
    return ", ".join(words)


_ASIDE = frozenset({"start", "stop", "reloaded", "statistics", "tables"})
_TROUBLE = {"denied": "denied", "errors": "failed", "timeouts": "timed out", "blocked": "held up the loop"}


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
