"""`/metrics` of the page: the pool's, or this process's where there is no pool."""

from __future__ import annotations

from agentfw.metrics.exposition import expose
from agentfw.pool.authority import RouterLink
from agentfw.runtime import Runtime

from .web.server import Metrics


def metrics_of(runtime: Runtime) -> Metrics:
    """-> `metrics(accept)`: the text in the format that an `Accept` field wants, and its type."""

    async def metrics(accept: str) -> tuple[bytes, str]:
        link = runtime.pool
        values = await link.backend.metrics() if isinstance(link, RouterLink) else dict(runtime.statistics())
        return expose(values, accept)

    return metrics
