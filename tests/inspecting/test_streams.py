"""Streams taken apart: the same items for every way they are cut into pieces, as a plain reading of the standard has them."""

from __future__ import annotations

import json
import tracemalloc

import agentfw_inspect.sse as sse
import pytest
from agentfw_inspect.sse import ArrayStream, EventStream
from hypothesis import example, given, settings
from hypothesis import strategies as st


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def feed(stream: EventStream | ArrayStream, parts: list[bytes]) -> list[tuple[bytes, bytes]]:
    return [item for i, part in enumerate(parts) for item in stream.feed(part, i == len(parts) - 1)]


def reference(data: bytes) -> list[tuple[bytes, bytes]]:
    """The standard's algorithm, in the plainest way (without `id` and `retry`, which make no difference to data)."""
    data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found, event, lines = [], b"", []
    for line in data.split(b"\n")[:-1]:
        if not line:
            if lines:
                found.append((event, b"\n".join(lines)))
            event, lines = b"", []
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            lines.append(value)
        elif name == b"event":
            event = value[:64]
    return found


line = st.one_of(
    st.just(b""),
    st.sampled_from([b"data", b"data:", b"data: ", b"event: ping", b": comment", b"id: 5", b"data:  two blanks", b"dat"]),
    st.binary(max_size=12).map(lambda data: b"data: " + data.replace(b"\r", b"").replace(b"\n", b"")),
)
stream = st.builds(
    lambda bom, items: bom + b"".join(text + end for text, end in items),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.tuples(line, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=12),
)
cuts = st.lists(st.integers(0, 200), max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.one_of(stream, st.binary(max_size=60)), cuts)
@example(b"data: a\r\n\r\ndata: b\r\r", [7, 8, 9, 10])
def test_events_are_the_same_however_they_are_cut(data: bytes, where: list[int]) -> None:
    assert feed(EventStream(), pieces(data, where)) == feed(EventStream(), [data]) == reference(data)


@settings(max_examples=200, deadline=None)
@given(stream, cuts, st.integers(1, 40))
@example(b"data\ndata\nid: 5\n\ndata\ndata\n\n", [], 8)
def test_too_large_events_are_passed_over_however_they_are_cut(data: bytes, where: list[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "MAX_EVENT", most)
        whole, cut = EventStream(), EventStream()
        items = feed(whole, [data])
        assert feed(cut, pieces(data, where)) == items
        assert cut.oversize == whole.oversize
        left = iter(reference(data))
        assert all(item in left for item in items), "some of them, in their order"
        assert len(items) + whole.oversize >= len(reference(data))


def test_each_event_is_known_with_its_last_byte() -> None:
    data = b"data: one\n\nevent: two\r\ndata: 2\r\n\r\ndata: three\r\r"
    events = EventStream()
    known = [i for i in range(len(data)) if events.feed(data[i : i + 1], False)]
    assert known == [10, 32, 46], "a CR ends its line though a LF may follow"


@pytest.mark.parametrize("prefix", [b"data: ", b": ", b"", b"event: "])
def test_an_endless_line_is_not_kept(prefix: bytes) -> None:
    events = EventStream()
    tracemalloc.start()
    events.feed(prefix, False)
    for _ in range(400):
        events.feed(b"x" * 65536, False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * sse.MAX_EVENT
    assert events.feed(b"\n\ndata: next\n\n", False) == [(b"", b"next")]


def test_a_comment_however_long_is_no_part_of_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    stream = sse.EventStream()
    assert not stream.feed(b"data: x\n:", False)
    for _ in range(9):
        assert not stream.feed(b"c" * 50, False)
    assert stream.feed(b"\ndata: y\n\n", False) == [(b"", b"x\ny")] and not stream.oversize


def test_small_pieces_of_a_large_event_do_not_cost_their_square() -> None:
    events = EventStream()
    body = b"data: " + b"x" * 300_000 + b"\n\n"
    found = [event for i in range(0, len(body), 3) for event in events.feed(body[i : i + 3], False)]
    assert len(found) == 1 and len(found[0][1]) == 300_000


values = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=6), values, max_size=4), max_size=6),
    cuts,
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_elements_are_the_same_however_they_are_cut(
    items: list[object], where: list[int], indent: int | None, plain: bool
) -> None:
    data = json.dumps(items, indent=indent, ensure_ascii=plain).encode("utf-8", "surrogatepass")
    found = feed(ArrayStream(), pieces(data, where))
    assert [json.loads(element.decode("utf-8", "surrogatepass")) for _, element in found] == items


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(b'[]{}"\\,a')).map(bytes), cuts)
def test_nonsense_is_the_same_however_it_is_cut(data: bytes, where: list[int]) -> None:
    assert feed(ArrayStream(), pieces(data, where)) == feed(ArrayStream(), [data])


def test_a_large_element_is_passed_over() -> None:
    array = ArrayStream()
    assert not array.feed(b'[{"a":"', False)
    for _ in range(80):
        assert not array.feed(b"x" * 65536, False)
    assert array.feed(b'"},{"b":1}]', True) == [(b"", b'{"b":1}')] and array.oversize == 1
