"""The book of jobs, the queue, what is kept of output, and whom a job is given: whatever comes, in whatever order."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
from agentfw.pool.book import Book, Entry
from agentfw.pool.config import TenantConfig
from agentfw.pool.jobs import Job, JobResult, Output
from agentfw.pool.kept_output import OVERHEAD, SEGMENT, KeptOutput
from agentfw.pool.sharding import choose, divided
from agentfw.pool.waiting import Waiting
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

ORDER = ["queued", "starting", "running", "done"]


class Books(RuleBasedStateMachine):
    """A small book beside a simple model of it."""

    entries: Bundle[Entry] = Bundle("entries")

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(keep_jobs=3, keep_output=4 * SEGMENT, moment=0)
        self.seen: dict[str, tuple[int, int]] = {}
        self.live: dict[str, Entry] = {}
        self.ended: list[str] = []
        self.written: Counter[str] = Counter()

    @rule(target=entries, tenant=st.sampled_from(["a", "b"]), size=st.integers(0, 50))
    def add(self, tenant: str, size: int) -> Any:
        if len(self.live) >= 6:  # what the router bounds
            return multiple()
        entry = self.book.add(Job(mode="code", target="x" * size, tenant=tenant, labels={"t": tenant}), 2 * SEGMENT)
        self.live[entry.id] = entry
        return entry

    def _tried(self, allowed: bool, what: Callable[[], None]) -> bool:
        if allowed:
            what()
        else:
            with pytest.raises(ValueError):
                what()
        return allowed

    @rule(entry=entries)
    def sent(self, entry: Entry) -> None:
        self._tried(entry.state == "queued", lambda: self.book.sent(entry, 1))

    @rule(entry=entries)
    def started(self, entry: Entry) -> None:
        self._tried(entry.state in ("queued", "starting"), lambda: self.book.started(entry))

    @rule(entry=entries)
    def again(self, entry: Entry) -> None:
        self._tried(entry.state in ("starting", "running"), lambda: self.book.again(entry))

    @rule(entry=entries, stream=st.sampled_from([1, 2]), size=st.integers(1, 3 * SEGMENT))
    def wrote(self, entry: Entry, stream: int, size: int) -> None:
        self._tried(entry.state != "done", lambda: self.book.wrote(entry, cast(Any, stream), bytes(size)))

    @rule(entry=entries, text=st.integers(0, 10_000))
    def done(self, entry: Entry, text: int) -> None:
        if self._tried(entry.state != "done", lambda: self.book.done(entry, JobResult(kind="code", text="x" * text))):
            del self.live[entry.id]
            self.ended.append(entry.id)

    @rule(entry=entries)
    def remove(self, entry: Entry) -> None:
        if self.live.pop(entry.id, None):
            self.book.remove(entry)
            entry.state = "done"  # for this machine: nobody has it

    @rule(jobs=st.integers(0, 4), output=st.sampled_from([0, SEGMENT, 4 * SEGMENT]))
    def keep(self, jobs: int, output: int) -> None:
        self.book.keep(jobs, output)

    @invariant()
    def states_only_go_forward(self) -> None:
        for entry in self.book:
            stands = (entry.attempt, ORDER.index(entry.state))
            assert stands >= self.seen.get(entry.id, (0, 0))
            assert self.seen.get(entry.id, (0, 0))[1] < 3 or stands[1] == 3, "done is for ever"
            self.seen[entry.id] = stands

    @invariant()
    def it_knows_what_it_has(self) -> None:
        book = self.book
        kept = [info.id for info in reversed(book.select("done", None, None, 100))]
        assert sorted(kept) == sorted(self.ended[len(self.ended) - len(kept) :]), "the newest ends"
        assert len(kept) <= book.keep_jobs
        assert {entry.id for entry in book} == set(self.live) | set(kept)
        assert book.counts == {state: sum(entry.state == state for entry in book) for state in ORDER}
        assert book.payload == sum(entry.size for entry in self.live.values())
        assert book.output_bytes == sum(entry.output.cost for entry in book)
        assert book.finished == len(self.ended)

    @invariant()
    def it_is_bounded(self) -> None:
        assert self.book.output_bytes <= max(self.book.keep_output, 0)
        for entry in self.book:
            assert entry.state != "done" or (entry.job.target == "" and not entry.job.files)
            assert entry.result is None or len(entry.result.text) <= 4096


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=SEGMENT * 2)), max_size=12),
    st.integers(0, 4 * SEGMENT),
    st.tuples(st.integers(0, 3000), st.integers(0, 3000)),
)
def test_output_is_what_was_written_but_for_gaps(written: list[tuple[Any, bytes]], limit: int, begin: tuple[int, int]) -> None:
    kept = KeptOutput(limit)
    whole = {1: b"", 2: b""}
    for stream, data in written:
        kept.add(stream, data)
        whole[stream] += data
        assert kept.cost <= max(limit, SEGMENT + OVERHEAD)
    kept.end()

    async def read() -> None:
        at = {1: begin[0], 2: begin[1]}
        count = 0
        async for piece in kept.read(follow=True, stdout=begin[0], stderr=begin[1]):
            assert piece.offset >= at[piece.stream] and 0 < len(piece.data) <= SEGMENT
            assert whole[piece.stream][piece.offset : piece.offset + len(piece.data)] == piece.data
            at[piece.stream] = piece.offset + len(piece.data)
            count += len(piece.data)
        if limit >= sum(map(len, whole.values())) + OVERHEAD * 100:
            assert count == sum(max(0, len(whole[stream]) - begin[stream - 1]) for stream in (1, 2)), "nothing is left out"

    asyncio.run(read())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=SEGMENT * 2)), max_size=12),
    st.integers(0, 4 * SEGMENT),
    st.integers(0, 3 * SEGMENT),
    st.integers(0, 6),
)
def test_the_end_of_output_is_that_of_all(written: list[tuple[Any, bytes]], limit: int, size: int, pieces: int) -> None:
    kept = KeptOutput(limit)
    for stream, data in written:
        kept.add(stream, data)

    async def read() -> list[Output]:
        return [piece async for piece in kept.read(follow=False, stdout=0, stderr=0)]

    whole = asyncio.run(read())
    found, before = kept.last(size, pieces)
    length = sum(len(each.data) for each in found)
    assert length == min(size, sum(len(each.data) for each in whole[max(0, len(whole) - pieces) :]))
    assert len(found) <= pieces and before + length == sum(len(data) for _, data in written)
    for each, of in zip(reversed(found), reversed(whole), strict=False):
        assert (each.stream, each.offset + len(each.data)) == (of.stream, of.offset + len(of.data))
        assert of.data.endswith(each.data)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=9)), max_size=30),
    st.integers(OVERHEAD, 12 * OVERHEAD),
    st.tuples(st.integers(0, 99), st.integers(0, 99)),
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=9)), max_size=3),
)
@example([(1, b"abc")], 12 * OVERHEAD, (3, 0), [(1, b"de")])  # what grows is the piece that was read
def test_output_from_an_offset_is_that_part_of_all(
    written: list[tuple[Any, bytes]], limit: int, begin: tuple[int, int], later: list[tuple[Any, bytes]]
) -> None:
    kept = KeptOutput(limit)
    for stream, data in written:
        kept.add(stream, data)

    async def read(stdout: int, stderr: int, more: list[tuple[Any, bytes]]) -> list[tuple[int, int, bytes]]:
        async def write() -> None:
            for stream, data in more:
                await asyncio.sleep(0)
                kept.limit = 1 << 20
                kept.add(stream, data)
            kept.end()

        writing = asyncio.create_task(write())
        found = [(each.stream, each.offset, each.data) async for each in kept.read(follow=True, stdout=stdout, stderr=stderr)]
        await writing
        return found

    part = asyncio.run(read(*begin, later))
    whole = asyncio.run(read(0, 0, []))
    told, wanted = ([(stream, offset + at, byte) for stream, offset, data in found for at, byte in enumerate(data)]
                    for found in (part, whole))  # fmt: skip
    assert told == [each for each in wanted if each[1] >= begin[each[0] - 1]]


def test_the_end_of_much_output_costs_little() -> None:
    """A job may write a byte to each stream in turn, and somebody may ask for what is new every second."""
    looked = 0

    class Counted(dict[int, Any]):
        def get(self, key: int, default: Any = None) -> Any:
            nonlocal looked
            looked += 1
            return super().get(key, default)

        def __getitem__(self, key: int) -> Any:
            nonlocal looked
            looked += 1
            return super().__getitem__(key)

    kept = KeptOutput(1 << 24)
    for _ in range(5_000):
        kept.add(1, b"o")
        kept.add(2, b"e")
    kept._segments = Counted(kept._segments)

    async def read(stdout: int, stderr: int) -> bytes:
        return b"".join([each.data async for each in kept.read(follow=False, stdout=stdout, stderr=stderr)])

    assert asyncio.run(read(4_990, 4_995)) == b"o" * 5 + b"oe" * 5
    assert looked < 100


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "take", "end", "remove"])), max_size=80))
def test_the_queue_beside_a_model(steps: list[tuple[str, str]]) -> None:
    limits = {"a": TenantConfig(running=1), "b": TenantConfig(share=3.0), "c": TenantConfig(share=0.5, running=2)}
    book, waiting = Book(10, 0), Waiting(limits.__getitem__)
    lines: dict[str, list[Entry]] = {name: [] for name in limits}
    running: dict[str, list[Entry]] = {name: [] for name in limits}
    for name, what in steps:
        if what == "add":
            entry = book.add(Job(mode="code", target="", tenant=name), 0)
            waiting.add(entry)
            lines[name].append(entry)
        elif what == "remove" and lines[name]:
            entry = lines[name].pop()
            assert waiting.remove(entry) and not waiting.remove(entry)
        elif what == "end" and running[name]:
            waiting.ended(running[name].pop())
        elif what == "take":
            may = [each for each in limits if lines[each] and len(running[each]) < (limits[each].running or 99)]
            taken = waiting.take()
            assert (taken is None) == (not may)
            if taken is not None:
                assert taken.job.tenant in may
                assert lines[taken.job.tenant].pop(0) is taken, "first come, first served"
                running[taken.job.tenant].append(taken)
        assert len(waiting) == sum(map(len, lines.values()))
        assert {each: waiting.waiting(each) for each in limits} == {each: len(line) for each, line in lines.items()}
        assert {each: waiting.running(each) for each in limits} == {each: len(line) for each, line in running.items()}
    for name in limits:
        while running[name]:
            waiting.ended(running[name].pop())
        while lines[name]:
            waiting.remove(lines[name].pop())
    assert not waiting._tenants


def test_shares_hold_over_time() -> None:
    shares = {"a": 1.0, "b": 2.0, "c": 5.0}
    book, waiting = Book(10, 0), Waiting(lambda name: TenantConfig(share=shares[name]))
    for name in shares:
        for _ in range(500):
            waiting.add(book.add(Job(mode="code", target="", tenant=name), 0))
    taken = Counter(cast(Entry, waiting.take()).job.tenant for _ in range(400))
    assert all(abs(taken[name] - 50 * share) <= 1 for name, share in shares.items()), taken


class _Place:
    def __init__(self, slots: int, load: int) -> None:
        self.slots, self.load, self.known = slots, load, dict[tuple[str, str], None]()

    @property
    def free(self) -> bool:
        return self.load < self.slots


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=6), st.lists(st.integers(0, 3), max_size=60)
)
def test_a_job_goes_to_somebody_free_and_load_stays_even(places: list[tuple[int, int]], kinds: list[int]) -> None:
    made = [_Place(slots, min(load, slots)) for slots, load in places]
    for kind in kinds:
        before = {id(place): place.load for place in made if place.free}
        found = choose(made, ("tenant", str(kind)))
        assert (found is None) == (not before)
        if found is not None:
            assert before[id(found)] == found.load < found.slots
            least = min((place for place in made if place.free), key=lambda place: place.load / place.slots)
            assert found.load <= least.load + max(1, found.slots // 16)
            found.load += 1


@given(st.integers(0, 1000), st.integers(1, 50))
def test_division(total: int, parts: int) -> None:
    found = divided(total, parts)
    assert sum(found) == total and len(found) == parts and max(found) - min(found) <= 1


@pytest.mark.parametrize("set_by", [-3600.0, 3600.0])
def test_a_clock_that_is_set_changes_no_duration(monkeypatch: pytest.MonkeyPatch, set_by: float) -> None:
    real = time.time
    book = Book(keep_jobs=10, keep_output=SEGMENT)
    entry = book.add(Job(mode="code", target=""), SEGMENT)
    monkeypatch.setattr(time, "time", lambda: real() + set_by)
    book.sent(entry, 0)
    book.again(entry)
    book.sent(entry, 0)
    book.started(entry)
    book.done(entry, JobResult(kind="code"))
    info = entry.info()
    assert info.started is not None and info.ended is not None and info.result is not None
    assert info.submitted <= info.started <= info.ended < info.submitted + 600
    assert 0 <= info.result.usage.queued_seconds < 600
