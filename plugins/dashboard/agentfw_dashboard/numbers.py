"""`/metrics` of the page: the pool's, or this process's where there is no pool."""

from __future__ import annotations

import asyncio
import os

from agentfw.metrics.exposition import expose
from agentfw.metrics.processes import measure
from agentfw.pool.authority import RouterLink
from agentfw.runtime import Runtime

from .web.server import Metrics


def metrics_of(runtime: Runtime) -> Metrics:
    """-> `metrics(accept)`: the text in the format that an `Accept` field wants, and its type."""

    async def metrics(accept: str) -> tuple[bytes, str]:
        link = runtime.pool
        if isinstance(link, RouterLink):
            values = await link.backend.metrics()
        else:
            values = {**runtime.statistics(), **await asyncio.to_thread(measure, {"run": os.getpid()})}
        return await asyncio.to_thread(expose, values, accept)

    return metrics
