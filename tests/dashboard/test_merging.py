"""Workers' answers put together: sums of what they counted, however split, lost and begun anew; and nonsense is no answer."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from agentfw_dashboard import merging, wire
from agentfw_dashboard.spread import BUCKETS, Durations, bucket_of, middle_of
from agentfw_dashboard.wire import Histogram, Told, Totals, encode, read_told
from hypothesis import given, settings
from hypothesis import strategies as st

COUNTS = st.integers(0, 1 << 40)
SECONDS = st.floats(0, 1e5)


def histogram(values: list[float]) -> Histogram:
    found = Durations()
    for value in values:
        found.add(value)
    return Histogram(counts=found.counts, most=found.most)


TOTALS = st.builds(
    Totals,
    agents=COUNTS, started=COUNTS, done=COUNTS, failed=COUNTS, questions=COUNTS, requests=COUNTS, connections=COUNTS,
    model_calls=COUNTS, model_calls_failed=COUNTS, input_tokens=COUNTS, output_tokens=COUNTS,
    cost=st.integers(0, 1000).map(float),
    priced=COUNTS, currency=st.sampled_from(["", "USD"]), denials=COUNTS, bytes_up=COUNTS, bytes_down=COUNTS, tls_agents=COUNTS,
    dispatch=st.lists(SECONDS, max_size=20).map(histogram), connect=st.lists(SECONDS, max_size=20).map(histogram),
    first_call=st.lists(SECONDS, max_size=20).map(histogram),
    statistics=st.dictionaries(st.sampled_from(["dns.hits", "tls.held", "x"]), st.integers(0, 1000).map(float)),
)  # fmt: skip


@given(st.lists(TOTALS, max_size=5), st.randoms())
@settings(max_examples=100, deadline=None)
def test_the_sum_does_not_depend_on_how_it_is_made(parts: list[Totals], chance: random.Random) -> None:
    whole = merging.add(parts)
    shuffled = parts[:]
    chance.shuffle(shuffled)
    cut = chance.randint(0, len(parts))
    other = merging.add([merging.add(shuffled[:cut]), merging.add(shuffled[cut:])])
    assert _plain(other) == _plain(whole)
    assert whole.requests == sum(part.requests for part in parts)
    assert sum(whole.connect.counts.values()) == sum(sum(part.connect.counts.values()) for part in parts)


def _plain(totals: Totals) -> dict[str, Any]:
    return msgspec.structs.asdict(totals)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 50)), max_size=30))
@settings(max_examples=100, deadline=None)
def test_nothing_that_was_counted_is_lost_with_a_worker(happenings: list[tuple[int, bool, int]]) -> None:
    """A worker dies (its next word is a new process's), or counts on."""
    workers, epochs, counted, real = merging.Workers(), [0, 0, 0], [0, 0, 0], 0
    for number, dies, more in happenings:
        if dies:
            epochs[number] += 1
            counted[number] = 0
        counted[number] += more
        real += more
        totals = Totals(requests=counted[number], agents=3, connect=histogram([0.001] * counted[number]))
        workers.take(number, Told(epoch=f"{number}.{epochs[number]}", version=1, totals=totals))
        found = workers.totals()
        assert found.requests == real == sum(found.connect.counts.values())
        assert found.agents == 3 * len(workers.latest), "those of the dead are none"


def test_of_a_worker_that_is_lost_what_only_grows_stays() -> None:
    """Whatever it is heard of once more, or its next process."""
    workers = merging.Workers()
    counted = {"tls.held": 4, "dns.hits": 6}
    first = Told(epoch="a", version=1, totals=Totals(requests=5, agents=3, tls_agents=2, statistics=counted))
    workers.take(0, first)
    workers.take(1, Told(epoch="b", version=1, totals=Totals(requests=1, agents=1)))
    for _ in range(2):
        workers.lost(0)
        found = workers.totals()
        assert (found.requests, found.agents, found.tls_agents) == (6, 1, 0) and found.statistics == {"dns.hits": 6}
    workers.take(0, first)
    assert workers.totals().requests == 6 and workers.totals().agents == 4
    workers.lost(0)
    workers.take(0, Told(epoch="c", version=1, totals=Totals(requests=2, agents=1)))
    assert workers.totals().requests == 8 and workers.totals().agents == 2


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.floats(0.01, 1.0), st.integers(1, 199))
@settings(max_examples=200, deadline=None)
def test_percentiles_are_those_of_all(values: list[float], part: float, cut: int) -> None:
    one, two = Durations(), Durations()
    for value in values[:cut]:
        one.add(value)
    for value in values[cut:]:
        two.add(value)
    one.merge(two.counts, two.most)
    exact = sorted(values)[math.ceil(part * len(values)) - 1]
    found = one.quantile(part)
    assert found is not None and one.count == len(values)
    assert abs(found - exact) <= max(exact * 0.017, 2e-6)
    spread = one.spread()
    assert spread.most == max(values) and spread.p50 is not None and spread.p50 <= spread.most  # type: ignore[operator]


def test_buckets_cover_all_durations() -> None:
    before = -1
    for micros in [*range(5000), *(1 << bit for bit in range(13, 60))]:
        bucket = bucket_of(micros / 1e6 + 1e-8)
        assert before <= bucket < BUCKETS
        before = bucket
    assert bucket_of(-1.0) == 0 and middle_of(0) == 0.0
    with pytest.raises(ValueError):
        bucket_of(math.nan)


GOOD = Told(epoch="e", version=1, totals=Totals(cost=1.0), rows=[])


def test_a_good_answer_is_read() -> None:
    assert read_told(encode(GOOD)) == GOOD


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"\xc1", b"\x90", b"\x00" * 100, b"\x91" * 10_000,
        encode(Told(epoch="e" * 201, version=1, totals=Totals())),
        encode(Told(epoch="e", version=-1, totals=Totals())),
        encode(Told(epoch="e", version=1, totals=Totals(requests=-1))),
        encode(Told(epoch="e", version=1, totals=Totals(requests=1 << 63))),
        encode(Told(epoch="e", version=1, totals=Totals(cost=math.nan))),
        encode(Told(epoch="e", version=1, totals=Totals(cost=math.inf))),
        encode(Told(epoch="e", version=1, totals=Totals(statistics={"x": math.nan}))),
        encode(Told(epoch="e", version=1, totals=Totals(statistics={str(n): 1.0 for n in range(200)}))),
        encode(Told(epoch="e", version=1, totals=Totals(dispatch=Histogram(counts={BUCKETS: 1})))),
        encode(Told(epoch="e", version=1, totals=Totals(dispatch=Histogram(counts={-1: 1})))),
        encode(Told(epoch="e", version=1, totals=Totals(), gone=["x" * 500])),
        encode(Told(epoch="e", version=1, totals=Totals(), denials=[
            wire.Refusal(time=math.nan, key="", agent="", destination="", rule="", plugin="", reason="", count=1)])),
        encode(Told(epoch="e", version=1, totals=Totals(), denials=[
            wire.Refusal(time=1.0, key="", agent="", destination="", rule="r" * 5000, plugin="", reason="", count=1)])),
        encode(Told(epoch="e", version=1, totals=Totals(), denials=[
            wire.Refusal(time=1.0, key="", agent="", destination="", rule="", plugin="", reason="", count=1)] * 101)),
    ],
)  # fmt: skip
def test_nonsense_is_no_answer(bad: bytes) -> None:
    assert read_told(bad) is None


@given(st.binary(max_size=200))
def test_bytes_are_no_trouble(data: bytes) -> None:
    read_told(data)
    wire.read_story(data)
