"""Numbers, times and shapes as `agentfw top` writes them: short, and as wide as they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..connect import duration


@dataclass(frozen=True)
class Glyphs:
    """What bars are drawn with. `rising`: from nothing to full."""

    rising: str
    full: str
    rest: str
    up: str
    down: str
    dot: str
    cut: str


FINE = Glyphs(rising=" ▁▂▃▄▅▆▇█", full="█", rest="·", up="▴", down="▾", dot="·", cut="…")
COARSE = Glyphs(rising=" .:-=+*#@", full="#", rest=".", up="^", down="v", dot="-", cut="~")
"""For terminals without Unicode, and the Linux console, whose font has no such blocks."""


def glyphs(encoding: str | None, term: str) -> Glyphs:
    return FINE if "utf" in (encoding or "").lower() and term != "linux" else COARSE


def number(value: float | None) -> str:
    """At most 6 characters: 0, 1,234, 98.8k, 1.23M. None: "-"."""
    if value is None:
        return "-"
    if abs(value) < 10_000:
        return f"{value:,.0f}"
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f}{name}"
    return f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes: 512, 4.0K, 32M, 1.2G. None: "-"."""
    if value is None:
        return "-"
    for shift, name in ((40, "T"), (30, "G"), (20, "M"), (10, "K")):
        if value >= (1 << shift) * 0.9995:
            scaled = value / (1 << shift)
            return f"{scaled:.{1 if scaled < 9.95 else 0}f}{name}"
    return f"{value:.0f}"


def took(seconds: float | None) -> str:
    """A short time: 3.1us, 820us, 12ms, 1.24s; from a minute on as `ago()`. None: "-"."""
    if seconds is None:
        return "-"
    if seconds <= 0:
        return "0"
    if seconds >= 59.95:
        return ago(seconds)
    if seconds >= 0.9995:
        return f"{seconds:.{2 if seconds < 9.995 else 1}f}s"
    scaled, name = (seconds * 1e3, "ms") if seconds >= 0.0009995 else (seconds * 1e6, "us")
    return f"{scaled:.{1 if scaled < 9.95 else 0}f}{name}"


def ago(seconds: float) -> str:
    """A life's length: 0.4s, 12s, 3m05s, 2h07m, 4d03h."""
    return duration(seconds)


def money(value: float | None, currency: str = "") -> str:
    """Four digits that matter: 0.0123, 12.35, <0.0001. None: "-"."""
    if value is None:
        return "-"
    if 0 < value < 0.00005:
        return f"<{money(0.0001, currency)}"
    text = f"{value:,.4f}" if abs(value) < 1 else f"{value:,.2f}" if abs(value) < 10_000 else number(value)
    return f"{text} {currency}".strip()


def share(value: float | None) -> str:
    """A part of 1 as a percentage: 98.7 %."""
    return "-" if value is None else f"{100 * value:.1f} %"


MOST = 1e300
"""Of a bar: what is more is as high as this."""


def spark(values: Sequence[float], width: int, glyphs: Glyphs = FINE) -> str:
    """The last of `values` as a line of bars, each relative to the highest; on the right if they are fewer than `width`."""
    kept = [min(max(value, 0.0), MOST) for value in values[-width:]] if width > 0 else []
    return _bars(kept, glyphs).rjust(width)


def _bars(values: Sequence[float], glyphs: Glyphs) -> str:
    most = max(values, default=0.0)
    steps = len(glyphs.rising) - 1
    # What is there is seen, however little it is.
    return "".join(glyphs.rising[min(max(round(value / most * steps), 1), steps) if value else 0] for value in values)


def columns(values: Sequence[float], height: int, glyphs: Glyphs = FINE) -> list[str]:
    """A histogram of `height` lines, highest first, a character a value."""
    values = [min(max(value, 0.0), MOST) for value in values]
    most = max(values, default=0.0)
    steps = len(glyphs.rising) - 1
    lines = []
    for row in range(height - 1, -1, -1):
        line = ""
        for value in values:
            filled = 0 if not most else max(round(value / most * steps * height), 1 if value else 0) - row * steps
            line += glyphs.rising[max(0, min(filled, steps))]
        lines.append(line)
    return lines
