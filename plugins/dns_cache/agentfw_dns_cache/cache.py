"""The cache: entries by question, finished answers by the bytes of a query, and shares so that no agent flushes the others'.

A hit in the fast path is one slice, one dictionary look-up and one join: the answer of this second for this spelling of the query
is kept ready ("shape"). Everything else (parsing, patching TTLs) happens at most once a second for each shape.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from . import wire

COMMON = ""
"""Owner of what more than one agent asked for, and of what agents that have ended left behind."""
SHAPES = 4
"""Spellings of one question (letter case, EDNS options) that are kept ready at a time."""
UNIT = 512
"""Bytes of reply that count as one entry."""


@dataclass(slots=True, eq=False)
class Shape:
    """The answer to one spelling, without the ID, valid before `until`."""

    name: str
    answer: bytes
    until: float
    entry: Entry


@dataclass(slots=True, eq=False)
class Entry:
    """A reply in the cache. Times are those of the loop's clock, in seconds."""

    key: bytes
    reply: wire.Reply
    stored: float
    expires: float
    prefetch_from: float
    owner: str
    cost: int
    hits: int = 0
    used: bool = False
    shapes: dict[bytes, Shape] = field(default_factory=dict)


@dataclass(slots=True)
class _Share:
    keys: dict[bytes, None] = field(default_factory=dict)
    cost: int = 0


class Cache:
    """Holds at most `capacity` entries (one of more than 512 bytes counts as several). One owner other than COMMON has at most
    `share` of them: more of its entries push out its own oldest. Over capacity, the largest owner's oldest goes, and of COMMON's
    those that were used since they were last looked at get a second chance."""

    def __init__(self, capacity: int, share: int) -> None:
        self.capacity = capacity
        self.share = share
        self.shapes: dict[bytes, Shape] = {}
        """Fast path: by the query's bytes behind the ID."""
        self.entries: dict[bytes, Entry] = {}
        self._no_names: dict[bytes, Entry] = {}
        """Entries that say that there is no such name, whatever the type, by `_name_key()`."""
        self.cost = 0
        self.bytes = 0
        """Of replies, and of answers that are ready."""
        self.evicted = 0
        self._shares: dict[str, _Share] = {}
        self._largest: list[tuple[int, str]] = []  # heap of (-cost, owner); stale items are corrected when they surface

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, query: bytes, now: float) -> bytes | None:
        """The whole answer to a query seen before, or None. (The plugin has the same lines in its hook.)"""
        shape = self.shapes.get(query[2:])
        if shape is None or shape.until <= now:
            return None
        shape.entry.hits += 1
        return query[:2] + shape.answer

    def no_name(self, key: bytes) -> Entry | None:
        """The entry by which the question's name does not exist: an NXDOMAIN counts for all types (RFC 2308, 5). It says nothing
        about names below it: RFC 8020 holds for zones that keep to it, which only their signatures could tell."""
        return self._no_names.get(_name_key(key))

    def put(self, entry: Entry) -> None:
        """Store, in place of what had the same key."""
        old = self.entries.get(entry.key)
        if old is not None:
            self._remove(old)
            entry.hits = 0
            if old.owner != entry.owner:
                entry.owner = COMMON
        if entry.cost > self.capacity or (entry.owner != COMMON and entry.cost > self.share):
            return
        self.entries[entry.key] = entry
        if entry.reply.no_name:
            self._no_names[_name_key(entry.key)] = entry
        else:
            self._no_names.pop(_name_key(entry.key), None)
        share = self._add(entry, entry.owner)
        self.cost += entry.cost
        self.bytes += len(entry.reply.wire)
        if entry.owner != COMMON:
            while share.cost > self.share:
                self._evict_from(entry.owner)
        while self.cost > self.capacity:
            self._evict_from(self._largest_owner())

    def discard(self, key: bytes) -> None:
        """What was kept for this question is true no more."""
        entry = self.entries.get(key)
        if entry is not None:
            self._remove(entry)

    def resize(self, capacity: int, share: int) -> None:
        """From now on; what is too much goes at once."""
        self.capacity, self.share = capacity, share
        for owner in list(self._shares):
            while owner != COMMON and owner in self._shares and self._shares[owner].cost > share:
                self._evict_from(owner)
        while self.cost > capacity:
            self._evict_from(self._largest_owner())

    def forget_shapes(self) -> None:
        """Each question is looked at anew."""
        for entry in self.entries.values():
            self._drop_shapes(entry)

    def remember_shape(self, entry: Entry, query: wire.Query, answer: bytes, until: float) -> None:
        """Keep `answer` ready for queries spelt like this one."""
        if self.entries.get(entry.key) is not entry:
            return
        spelling = query.wire[2:]
        if spelling not in entry.shapes and len(entry.shapes) >= SHAPES:
            oldest = next(iter(entry.shapes))
            self.bytes -= len(entry.shapes.pop(oldest).answer)
            del self.shapes[oldest]
        old = entry.shapes.get(spelling)
        self.bytes += len(answer) - 2 - (len(old.answer) if old else 0)
        self.shapes[spelling] = entry.shapes[spelling] = Shape(query.name, answer[2:], until, entry)

    def used_by(self, entry: Entry, owner: str) -> None:
        """`owner` got an answer from it."""
        entry.used = True
        if entry.owner not in (owner, COMMON) and self.entries.get(entry.key) is entry:
            self._move(entry, COMMON)

    def owner_gone(self, owner: str) -> None:
        """What it had stays, as everybody's."""
        share = self._shares.get(owner)
        if share and owner != COMMON:
            for key in list(share.keys):
                self._move(self.entries[key], COMMON)

    def _add(self, entry: Entry, owner: str) -> _Share:
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = _Share()
        share.keys[entry.key] = None
        share.cost += entry.cost
        heapq.heappush(self._largest, (-share.cost, owner))
        if len(self._largest) > 4 * len(self._shares) + 64:
            self._largest = [(-each.cost, name) for name, each in self._shares.items()]
            heapq.heapify(self._largest)
        return share

    def _take(self, entry: Entry) -> None:
        share = self._shares[entry.owner]
        del share.keys[entry.key]
        share.cost -= entry.cost
        if not share.keys:
            del self._shares[entry.owner]

    def _move(self, entry: Entry, owner: str) -> None:
        self._take(entry)
        entry.owner = owner
        self._add(entry, owner)

    def _remove(self, entry: Entry) -> None:
        self._take(entry)
        del self.entries[entry.key]
        if self._no_names.get(_name_key(entry.key)) is entry:
            del self._no_names[_name_key(entry.key)]
        self.cost -= entry.cost
        self.bytes -= len(entry.reply.wire)
        self._drop_shapes(entry)

    def _drop_shapes(self, entry: Entry) -> None:
        for spelling, shape in entry.shapes.items():
            self.bytes -= len(shape.answer)
            del self.shapes[spelling]
        entry.shapes.clear()

    def _evict_from(self, owner: str) -> None:
        keys = self._shares[owner].keys
        for _ in range(8):  # bounded: a share that is all in use loses one all the same
            key = next(iter(keys))
            entry = self.entries[key]
            if not entry.used or owner != COMMON:
                break
            entry.used = False
            del keys[key]
            keys[key] = None
        self._remove(entry)
        self.evicted += 1

    def _largest_owner(self) -> str:
        while True:
            cost, owner = self._largest[0]
            share = self._shares.get(owner)
            if share and share.cost == -cost:
                return owner
            heapq.heappop(self._largest)
            if share:
                heapq.heappush(self._largest, (-share.cost, owner))


def _name_key(key: bytes) -> bytes:
    """A question's key without its type."""
    return key[:-5] + key[-1:]
