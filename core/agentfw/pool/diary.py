"""What becomes of jobs, workers and the pool, and who had a hand in it: the hook `job_event` of the router's plugins.

Who asks is known where a request comes in (`caller`, set by the control API for each request); elsewhere it is the program that
the pool is a part of.
"""

from __future__ import annotations

import contextvars
import time
from typing import Any

import msgspec

from ..plugins import PluginManager
from ..reports import JobEvent
from ..texts import shown
from .book import Entry
from .jobs import Usage

PROGRAM = "program"
caller: contextvars.ContextVar[str] = contextvars.ContextVar("agentfw_pool_caller", default=PROGRAM)
"""Who the current task works for: as `JobEvent.by`."""


class Diary:
    """`plugins` None: nobody is told (yet, or any more)."""

    def __init__(self) -> None:
        self.plugins: PluginManager | None = None

    def job(self, kind: str, entry: Entry, **facts: Any) -> None:
        """`facts`: further fields of `JobEvent`."""
        plugins = self.plugins
        if plugins is None or not plugins.implemented("job_event"):
            return
        job = entry.job
        result = entry.result if kind == "ended" else None
        if result is not None:
            facts |= {"how": result.kind, "text": result.text, "usage": _usage(result.usage), "signal": result.signal}
            facts["code"] = result.code if result.kind == "code" else None
        elif kind == "dispatched":
            facts["usage"] = {"queued_seconds": round(entry.waited, 6)}
        by = facts.pop("by", None)
        plugins.job_event(
            JobEvent(
                time=time.time(),
                kind=kind,
                by=(caller.get() if kind in ASKED else "") if by is None else by,
                job=entry.id,
                name=shown(job.name, 128),
                tenant=job.tenant,
                template=job.template,
                labels=job.labels,
                agent_id=entry.run if entry.attempt > 1 else "",
                worker=entry.worker,
                parent=entry.parent or "",
                text=shown(facts.pop("text", "")),
                **facts,
            )
        )

    def pool(self, kind: str, text: str = "", *, by: str | None = None, **facts: Any) -> None:
        """Of the pool, or (`job`) of one of which no more is known here. `by` None: for whom the current task works."""
        plugins = self.plugins
        if plugins is not None and plugins.implemented("job_event"):
            who = caller.get() if by is None else by
            plugins.job_event(JobEvent(time=time.time(), kind=kind, by=who, text=shown(text), **facts))


ASKED = frozenset({"submitted", "forked", "signalled", "fed"})
"""What becomes of a job because somebody asks for it; the rest becomes of it by itself."""


def _usage(usage: Usage) -> dict[str, float]:
    found = msgspec.structs.asdict(usage)
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in found.items() if value}
