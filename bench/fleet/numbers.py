"""Percentiles and slopes."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(values: Sequence[float], part: float) -> float:
    """Of at least one value; the nearest rank, so one that was measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(part * (len(ordered) - 1))))]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{round(part * 100)}": percentile(values, part) for part in (0.5, 0.95, 0.99)}


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares: units of y for each of x; 0 of fewer than two."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    below = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / below if below else 0.0
