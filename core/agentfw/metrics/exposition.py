"""The text of `/metrics`, in the format that the client wants: Prometheus' own (0.0.4), or OpenMetrics 1.0.

https://prometheus.io/docs/instrumenting/exposition_formats/ and https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

from collections.abc import Mapping

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MAX_ACCEPT = 4096


def expose(values: Mapping[str, float], accept: str = "") -> tuple[bytes, str]:
    """Statistics by dotted name (`Backend.metrics()`, `Runtime.statistics()`) -> the body and its content type. `accept`: the
    request's header. Takes milliseconds; never raises for what is in `values`."""
    # Takes 60 ms, which those who are never asked for metrics need not.
    from prometheus_client import exposition
    from prometheus_client.openmetrics import exposition as openmetrics

    from .families import Statistics

    collector = Statistics(values)
    if wants_open_metrics(accept):
        body: bytes = openmetrics.generate_latest(collector)  # type: ignore[no-untyped-call]
        return body, OPEN_METRICS
    return exposition.generate_latest(collector), TEXT


def wants_open_metrics(accept: str) -> bool:
    """The header prefers OpenMetrics 1.0 to plain text (RFC 9110, 12.5.1: by `q`; who says nothing gets text)."""
    best: dict[bool, float] = {True: 0.0, False: 0.0}
    for part in accept[:MAX_ACCEPT].split(","):
        kind, *parameters = (each.strip().lower() for each in part.split(";"))
        given = dict(each.partition("=")[::2] for each in parameters)
        is_open = kind == "application/openmetrics-text" and given.get("version", "1.0.0").strip('"') == "1.0.0"
        if is_open or kind in ("text/plain", "text/*", "*/*"):
            best[is_open] = max(best[is_open], _quality(given.get("q", "1")))
    return best[True] > 0 and best[True] >= best[False]


def _quality(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value <= 1 else 0.0
