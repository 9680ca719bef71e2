"""The agents of a pool as `agentfw top` keeps them: what changed is taken over, then filtered and sorted. Knows no terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...texts import shown
from ...views import AgentRow, AgentTable
from . import words

HAYSTACK = 2000
"""Characters of a row that a filter looks at."""
STALE = 5.0
"""Seconds after which an agent whose CPU time did not grow is taken for idle: pools do not measure at each question."""


@dataclass(slots=True)
class Known:
    """A row, and what follows from it and the one before."""

    row: AgentRow
    haystack: str
    busy: float = 0.0
    """Cores, of late."""
    measured: float = 0.0
    """When its CPU time was seen to grow."""


def seconds_of(row: AgentRow, now: float) -> float:
    """Since its beginning (or since it was submitted), to its end."""
    begun = row.started if row.started is not None else row.submitted
    return max((row.ended if row.ended is not None else now) - begun, 0.0)


def state_of(row: AgentRow) -> str:
    """Or how it ended."""
    return row.how or row.state if row.state == "done" else row.state


def _state_order(row: AgentRow) -> tuple[int, str]:
    return STATES.get(row.state, 9), row.how


def _tokens(row: AgentRow) -> int:
    return row.input_tokens + row.output_tokens


def _bytes(row: AgentRow) -> int:
    return row.bytes_up + row.bytes_down


def _some(form: Callable[[float], str], value: float) -> str:
    """Nothing where there is nothing: what is there stands out."""
    return form(value) if value else ""


def _cores(known: Known, _: float) -> str:
    return f"{known.busy:.2f}" if known.row.state == "running" else ""


@dataclass(frozen=True)
class Column:
    """`key`: the letter that sorts by it. `rank`: those with a higher one give way when there is no room. `value`: what is sorted
    by. `text`: a cell."""

    name: str
    title: str
    key: str
    width: int
    rank: int
    meaning: str
    value: Callable[[Known, float], Any]
    text: Callable[[Known, float], str]
    right: bool = True


STATES = {"running": 0, "starting": 1, "queued": 2, "done": 3}

COLUMNS = (
    Column("name", "NAME", "N", 15, 0, "name", lambda k, _: k.row.name.casefold(), lambda k, _: k.row.name, False),
    Column("id", "ID", "I", 13, 12, "id of its job", lambda k, _: k.row.id, lambda k, _: k.row.id, False),
    Column("tenant", "TENANT", "E", 10, 13, "whose it is", lambda k, _: k.row.tenant, lambda k, _: k.row.tenant, False),
    Column(
        "state",
        "STATE",
        "S",
        8,
        1,
        "state, or how it ended",
        lambda k, _: _state_order(k.row),
        lambda k, _: state_of(k.row),
        False,
    ),
    Column(
        "time",
        "TIME",
        "T",
        6,
        2,
        "how long it has run, or waited",
        lambda k, now: seconds_of(k.row, now),
        lambda k, now: words.ago(seconds_of(k.row, now)),
    ),
    Column(
        "cores",
        "CORES",
        "P",
        6,
        3,
        "cores it uses now (equal ones by CPU time)",
        lambda k, _: (k.busy, k.row.cpu_seconds),
        _cores,
    ),
    Column(
        "cpu", "CPU", "U", 6, 9, "CPU time it has used", lambda k, _: k.row.cpu_seconds, lambda k, _: words.ago(k.row.cpu_seconds)
    ),
    Column(
        "memory",
        "MEM",
        "M",
        5,
        4,
        "memory that its VM was given; the host spends less: what it did not write is shared",
        lambda k, _: k.row.memory,
        lambda k, _: _some(words.size, k.row.memory),
    ),
    Column(
        "calls", "CALLS", "L", 6, 5, "model calls", lambda k, _: k.row.model_calls, lambda k, _: words.number(k.row.model_calls)
    ),
    Column(
        "tokens",
        "TOKENS",
        "K",
        6,
        6,
        "tokens, in and out",
        lambda k, _: _tokens(k.row),
        lambda k, _: words.number(_tokens(k.row)),
    ),
    Column(
        "cost",
        "COST",
        "C",
        7,
        7,
        "cost, if prices are known",
        lambda k, _: k.row.cost or 0.0,
        lambda k, _: words.money(k.row.cost),
    ),
    Column(
        "denials", "DENIED", "D", 6, 8, "denials", lambda k, _: k.row.denials, lambda k, _: _some(words.number, k.row.denials)
    ),
    Column(
        "requests", "REQ", "R", 6, 10, "HTTP requests", lambda k, _: k.row.requests, lambda k, _: words.number(k.row.requests)
    ),
    Column(
        "traffic", "BYTES", "B", 6, 11, "bytes, up and down", lambda k, _: _bytes(k.row), lambda k, _: words.size(_bytes(k.row))
    ),
    Column(
        "last",
        "LAST",
        "A",
        20,
        14,
        "when it did something last",
        lambda k, _: k.row.last_at or 0.0,
        lambda k, _: k.row.last,
        False,
    ),
)
BY_KEY = {column.key: column for column in COLUMNS}
BY_NAME = {column.name: column for column in COLUMNS}
FIRST_SMALLEST = {"name", "id", "tenant", "state"}
"""Sorted from the smallest, as people read; the others from the largest."""


class Agents:
    """All that are known."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}
        self.now = 0.0
        """Of the pool's clock."""
        self.since = 0
        """What the pool is asked for next."""
        self.total = 0
        """How many there are, be there more than the pool told of."""

    def forget(self) -> None:
        """Another pool, or one that was begun anew."""
        self.known.clear()
        self.since = 0

    def take(self, table: AgentTable) -> None:
        """What the pool told."""
        self.now = table.time
        self.since = table.since
        if table.whole:
            ids = {row.id for row in table.rows}
            for gone in [id for id in self.known if id not in ids]:
                del self.known[gone]
        for gone in table.gone:
            self.known.pop(gone, None)
        for row in table.rows:
            self._take(row)
        self.total = max(table.total, len(self.known))
        for known in self.known.values():
            if known.busy and (known.row.state != "running" or self.now - known.measured > STALE):
                known.busy = 0.0

    def _take(self, row: AgentRow) -> None:
        known = self.known.get(row.id)
        if known is None:
            self.known[row.id] = Known(row, _haystack(row), measured=self.now)
            return
        spent = row.cpu_seconds - known.row.cpu_seconds
        if spent < 0:  # begun again
            known.busy, known.measured = 0.0, self.now
        elif spent and self.now > known.measured:
            known.busy, known.measured = spent / (self.now - known.measured), self.now
        if row != known.row:
            known.row, known.haystack = row, _haystack(row)

    def ids(self, filter: str = "", sort: str = "cores", reverse: bool = False, ended: bool = False) -> list[str]:
        """Of those that fit, in order. All words of `filter` must be in a row, those with `!` before them must not.
        `ended`: those that have ended, too."""
        wanted, unwanted = _words(filter)
        column = BY_NAME[sort]
        found = [
            known
            for known in self.known.values()
            if (ended or known.row.state != "done")
            and all(word in known.haystack for word in wanted)
            and not any(word in known.haystack for word in unwanted)
        ]
        now = self.now
        found.sort(key=lambda known: known.row.id)  # equal ones stay where they are
        found.sort(key=lambda known: column.value(known, now), reverse=reverse is (sort in FIRST_SMALLEST))
        return [known.row.id for known in found]


def _words(filter: str) -> tuple[list[str], list[str]]:
    texts = filter.casefold().split()
    return [word for word in texts if word[0] != "!"], [word[1:] for word in texts if word[0] == "!" and len(word) > 1]


def _haystack(row: AgentRow) -> str:
    labels = " ".join(f"{name}={value}" for name, value in row.labels.items())
    texts = (row.name[:500], row.id, row.tenant[:100], row.template[:100], row.state, row.how, labels[:1000], row.last[:300])
    return shown(" ".join(texts).casefold(), HAYSTACK)


def fitting(width: int) -> list[tuple[Column, int]]:
    """The columns for which there is room, with their widths: the last one, or the name, takes what is left."""
    chosen = list(COLUMNS)
    while len(chosen) > 1 and sum(column.width for column in chosen) + len(chosen) - 1 > width:
        chosen.remove(max(chosen, key=lambda column: column.rank))
    rest = width - sum(column.width for column in chosen) - (len(chosen) - 1)
    wide = chosen[-1] if chosen[-1].name == "last" else chosen[0]
    # A long name is worth more than a long last word, up to a point.
    more = min(max(rest, 0), 14) if wide.name == "last" else 0
    return [(c, max(c.width + (more if c is chosen[0] else 0) + (rest - more if c is wide else 0), 1)) for c in chosen]
