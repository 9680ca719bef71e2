"""The table of agents: which rows changed since somebody looked."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from agentfw.pool.jobs import JobInfo, Usage
from agentfw.views import AgentRow, AgentTable, how_of

from .wire import Row

MAX_GONE = 4096
"""Ids that are remembered to be gone. Who looked before that gets all rows."""


class Rows:
    """By id. Versions only grow, also from one process to the next: what a client was told by another is too old or too new."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, AgentRow]] = {}
        self._gone: deque[tuple[int, str]] = deque()
        self._first = self._version = int(time.time() * 1000)
        """All versions before `_first` are too old."""

    def __len__(self) -> int:
        return len(self._rows)

    def set(self, rows: Iterable[AgentRow]) -> None:
        """These are all."""
        version = self._version + 1
        there = {row.id: row for row in rows}
        changed = False
        for row_id, row in there.items():
            before = self._rows.get(row_id)
            if before is None or before[1] != row:
                self._rows[row_id] = version, row
                changed = True
        for row_id in [row_id for row_id in self._rows if row_id not in there]:
            del self._rows[row_id]
            self._gone.append((version, row_id))
            changed = True
            while len(self._gone) > MAX_GONE:
                self._first = self._gone.popleft()[0]
        if changed:
            self._version = version

    def table(self, since: int) -> AgentTable:
        """What changed since a table's `since`; 0, or one that is too old or not ours: all."""
        whole = not self._first <= since <= self._version
        return AgentTable(
            time=time.time(),
            since=self._version,
            whole=whole,
            rows=[row for version, row in self._rows.values() if whole or version > since],
            gone=[] if whole else [row_id for version, row_id in self._gone if version > since and row_id not in self._rows],
            total=len(self._rows),
        )


def job_row(info: JobInfo, told: Row | None, usage: Usage | None) -> AgentRow:
    """Of a pool's job: what the router knows goes before what its worker says."""
    result = info.result
    used = usage or (result.usage if result is not None else _NOTHING)
    told = told or _NOBODY
    return AgentRow(
        id=info.id,
        name=info.name,
        tenant=info.tenant,
        template=info.template,
        labels=info.labels,
        state=info.state,
        worker=info.worker,
        submitted=info.submitted,
        started=info.started,
        ended=info.ended,
        cpu_seconds=used.cpu_seconds or told.cpu_seconds,
        memory=used.memory or told.memory,
        exits=told.exits,
        questions=told.questions,
        connections=told.connections,
        requests=told.requests,
        model_calls=told.model_calls,
        input_tokens=told.input_tokens,
        output_tokens=told.output_tokens,
        cost=told.cost,
        denials=told.denials,
        bytes_up=max(used.bytes_up, told.bytes_up),
        bytes_down=max(used.bytes_down, told.bytes_down),
        last=told.last,
        last_at=told.last_at,
        how="" if result is None else how_of(result.kind, result.code, result.signal),
    )


_NOTHING = Usage()
_NOBODY = Row(
    key="", name="", tenant="", template="", labels={}, state="starting", submitted=0.0, started=None, ended=None,
    cpu_seconds=0.0, memory=0, exits=0, questions=0, connections=0, requests=0, model_calls=0, input_tokens=0, output_tokens=0,
    cost=None, denials=0, bytes_up=0, bytes_down=0, last="", last_at=None, how="",
)  # fmt: skip
"""What is known of a job of whom no worker knows anything."""
