"""What bodies of the providers' dialects say: counts as the provider has them, however the body is cut or coded."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import count

import msgspec
import pytest
from agentfw_inspect import bodies as module
from agentfw_inspect.bodies import DOCUMENT_MAX, REQUEST_MAX, RequestWatch, ResponseWatch, Room, read_document
from agentfw_inspect.config import PriceConfig
from agentfw_inspect.prices import Prices
from agentfw_inspect.reading import Reading
from hypothesis import given, settings
from hypothesis import strategies as st

from . import bodies as b
from .test_streams import cuts, pieces

EVENTS, JSON = "text/event-stream; charset=utf-8", "application/json"
Case = tuple[str, str, bool, str, bytes]
# provider, operation, array of pieces, content type, body
CASES: dict[str, Case] = {
    "chat": ("openai", "chat", False, JSON, b.CHAT),
    "chat stream": ("openai", "chat", False, EVENTS, b.CHAT_STREAM),
    "response": ("openai", "response", False, JSON, json.dumps(b.RESPONSE).encode()),
    "response stream": ("openai", "response", False, EVENTS, b.RESPONSE_STREAM),
    "message": ("anthropic", "message", False, JSON, json.dumps(b.MESSAGE).encode()),
    "message stream": ("anthropic", "message", False, EVENTS, b.MESSAGE_STREAM),
    "generate": ("gemini", "generate", False, JSON, b.GEMINI),
    "generate stream": ("gemini", "generate", False, EVENTS, b.GEMINI_STREAM),
    "generate array": ("gemini", "generate", True, JSON, b.GEMINI_ARRAY),
}  # fmt: skip


def watch(case: Case, parts: list[bytes], coding: str = "") -> ResponseWatch:
    provider, operation, array, kind, _ = case
    ticks = count()
    made = ResponseWatch(provider, operation, array, Reading(), lambda: float(next(ticks)))
    made.begin(kind, [coding] if coding else [])
    for i, part in enumerate(parts):
        made(part, i == len(parts) - 1)
    return made


def facts(made: ResponseWatch) -> dict[str, object]:
    return {name: getattr(made.reading, name) for name in Reading.__slots__}


@pytest.mark.parametrize("name", CASES)
def test_counts_are_the_providers(name: str) -> None:
    case = CASES[name]
    made = watch(case, [case[-1]])
    reading = made.reading
    assert (reading.input, reading.output, reading.cache_read) == (100, 7, 64)
    assert reading.cache_write == (10 if case[0] == "anthropic" else None)
    assert reading.reasoning == (None if case[0] == "anthropic" else 3)
    assert reading.model in ("gpt-4o-2024", "gpt-5", "claude-x", "gemini-2.5-pro")
    assert reading.complete and not reading.error_type and not made.unreadable
    assert (made.first_token is not None) == made.streamed == ("stream" in name or "array" in name)
    assert reading.content_events > 0


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None)
@given(where=cuts)
def test_counts_are_the_same_however_the_body_is_cut(name: str, where: list[int]) -> None:
    case = CASES[name]
    whole = facts(watch(case, [case[-1]]))
    where = [cut * len(case[-1]) // 200 for cut in where]
    assert facts(watch(case, pieces(case[-1], where))) == whole
    assert facts(watch(case, [*pieces(case[-1], where), b""])) == whole, "the end may come alone"


@pytest.mark.parametrize("name", ["chat", "response", "message", "generate"])
def test_a_document_that_waits_says_the_same(name: str) -> None:
    provider, operation, _, _, data = case = CASES[name]
    reading = Reading()
    assert read_document(provider, operation, data, reading) == 0
    assert {field: getattr(reading, field) for field in Reading.__slots__} == facts(watch(case, [data]))
    assert read_document(provider, operation, data[:-2], Reading()) == 1 == watch(case, [data[:-2]]).unreadable
    assert read_document(provider, operation, b"", Reading()) == 0 == watch(case, [b""]).unreadable


def raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data)[2:-4]


@pytest.mark.parametrize("name", ["chat", "message stream"])
@pytest.mark.parametrize(("coding", "encode"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)])
@settings(max_examples=25, deadline=None)
@given(where=cuts)
def test_compressed_bodies_are_read(name: str, coding: str, encode: Callable[[bytes], bytes], where: list[int]) -> None:
    case = CASES[name]
    assert facts(watch(case, pieces(encode(case[-1]), where), coding)) == facts(watch(case, [case[-1]]))


def test_nothing_behind_a_compressed_bodys_end_is_kept() -> None:
    case = CASES["message stream"]
    made = watch(case, [gzip.compress(case[-1]), *[b"more" * 100] * 100], "gzip")
    assert made.reading.complete and made._inflate is not None and made._inflate._stream is not None
    assert not made._inflate._stream.unused_data


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br"])
def test_other_codings_are_not_read(coding: str) -> None:
    made = watch(CASES["chat"], [b"\x8b\x00..."], coding)
    assert made.unreadable == 1 and made.reading.input is None


def test_a_bomb_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXPANSION", 1 << 16)
    made = watch(CASES["message stream"], [gzip.compress(bytes(1 << 20)), b"more"], "gzip")
    assert made.unreadable == 1 and made.streamed


@pytest.mark.parametrize(
    ("pieces_of_an_array", "kind", "body"),
    [
        (False, "text/event-stream", b"a\n"),
        (False, "text/event-stream", b"\r"),
        (False, "text/event-stream", b"{},"),
        (True, "application/json", b"{},"),
    ],
)
def test_little_that_would_take_long_to_take_apart_is_given_up(pieces_of_an_array: bool, kind: str, body: bytes) -> None:
    """15 KB from a server were 10 to 40 s of all agents' time."""
    made = ResponseWatch("gemini", "generateContent", pieces_of_an_array, Reading(), lambda: 0.0)
    made.begin(kind, ["gzip"])
    made(gzip.compress(b"[" + body * (module.MARKS + 1)), False)
    assert made.unreadable == 1 and made.streamed
    made(b"more", True)
    assert made.unreadable == 1


def test_what_a_body_may_become_is_a_multiple_of_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each 15 KB could become 15 MB, over and over."""
    monkeypatch.setattr(module, "EXPANSION", 1 << 16)
    bomb = zlib.compressobj(wbits=31)
    pieces_ = [bomb.compress(bytes(1 << 15)) + bomb.flush(zlib.Z_FULL_FLUSH) for _ in range(16)]
    assert watch(CASES["chat"], pieces_, "gzip").unreadable == 1
    honest = gzip.compress(b'{"a":"' + random.Random(1).randbytes(1 << 18).hex().encode() + b'","usage":{"prompt_tokens":3}}')
    assert watch(CASES["chat"], [honest], "gzip").reading.input == 3


CROWDS = {
    "chat": b'{"choices":[%s],"model":"m","usage":{"prompt_tokens":3,"completion_tokens":2}}',
    "chat stream": b'data: {"choices":[%s],"model":"m","usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
    "generate": b'{"candidates":[%s],"modelVersion":"m","usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2}}',
    "generate stream": b'data: {"candidates":[%s],"modelVersion":"m",'
    b'"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2}}\n\n',
}


@pytest.mark.parametrize("name", CROWDS)
def test_lists_of_very_many_objects_are_passed_over(name: str) -> None:
    """4 MB of them, or 15 KB compressed, were seconds of all agents' time."""
    found = []
    for times in (10, 20_000):
        objects = b",".join([b'{"text":"abc","content":{"parts":["abc"]}}'] * times)
        made = watch(CASES[name], [CROWDS[name] % objects])
        assert (made.reading.model, made.reading.input, made.reading.output, made.unreadable) == ("m", 3, 2, 0)
        found.append(made.reading.content_events)
    assert found == [10, 0]


def test_pieces_of_gemini_that_are_very_many_are_not_read() -> None:
    assert watch(CASES["generate"], [b"[" + b",".join([b"{}"] * 100_000) + b"]"]).unreadable == 1


def test_an_answer_full_of_braces_is_read_as_any_other() -> None:
    body = {"choices": [{"message": {"content": "{" * 5000 + "x" * 400_000}}], "usage": b.USAGE}
    reading = watch(CASES["chat"], [json.dumps(body).encode()]).reading
    assert (reading.input, reading.content_events) == (100, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_thinking_and_caches_of_an_hour(stream: bool) -> None:
    created = {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 6}
    usage = {**b.MESSAGE["usage"], "cache_creation": created}  # type: ignore[dict-item]
    details = {"output_tokens_details": {"thinking_tokens": 5}}
    if stream:
        start = {"type": "message_start", "message": {**b.MESSAGE, "usage": usage}}
        end = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7, "cache_creation_input_tokens": 10, **details}}
        made = watch(CASES["message stream"], [b.sse(start, end)])
    else:
        made = watch(CASES["message"], [json.dumps({**b.MESSAGE, "usage": {**usage, **details}}).encode()])
    reading = made.reading
    assert (reading.cache_write, reading.cache_write_1h, reading.reasoning, reading.input) == (10, 6, 5, 100)


@pytest.mark.parametrize(
    ("case", "event"),
    [
        ("chat stream", {"choices": [{"delta": {"content": None, "tool_calls": [{"function": {"arguments": "{"}}]}}]}),
        ("chat stream", {"choices": [{"delta": {"reasoning_content": "hm"}}]}),
        ("chat stream", {"choices": [{"delta": {"refusal": "no"}}]}),
        ("chat stream", {"choices": [{"text": "old"}]}),
        ("response stream", {"type": "response.function_call_arguments.delta", "delta": "{"}),
        ("message stream", {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}),
        ("message stream", {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}),
        ("message stream", {"type": "content_block_delta", "delta": {"type": "citations_delta", "citation": {"a": 1}}}),
        ("generate stream", {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f"}}]}}]}),
    ],
)
def test_tools_thoughts_and_refusals_are_content(case: str, event: object) -> None:
    """Of which a stream that is cut has its estimate."""
    made = watch(CASES[case], [b.sse(event)])
    assert made.reading.content_events == 1 and made.reading.content_size > 0 and made.first_token == 0.0


def test_what_a_cache_or_a_tool_adds_to_geminis_prompt_is_in_it() -> None:
    usage = {"promptTokenCount": 100, "toolUsePromptTokenCount": 9, "cachedContentTokenCount": 64}
    reading = watch(CASES["generate"], [json.dumps({"usageMetadata": usage}).encode()]).reading
    assert (reading.input, reading.output, reading.cache_read) == (109, 0, 64)


def test_openais_dialect_of_others() -> None:
    """OpenRouter says what a cache took, DeepSeek what it gave."""
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cache_write_tokens": 9}}
    body = {"choices": [], "usage": {**usage, "prompt_cache_hit_tokens": 64}}
    reading = watch(CASES["chat"], [json.dumps(body).encode()]).reading
    assert (reading.input, reading.cache_read, reading.cache_write) == (100, 64, 9)


def test_of_many_places_that_may_be_the_usage_the_last_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(module, "_object_end", lambda data, at: tried.append(at) or 0)
    made = ResponseWatch("openai", "chat", False, Reading(), lambda: 0.0)
    made.begin("application/json", [])
    made(b'{"usage":{' * (DOCUMENT_MAX // 10), False)
    made(b'{"usage":{', True)
    assert made.unreadable == 1 and len(tried) == module.USAGES and tried == sorted(tried, reverse=True)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.sampled_from(["", "gzip"]))
def test_nothing_that_a_server_sends_raises(name: str, parts: list[bytes], coding: str) -> None:
    watch(CASES[name], parts, coding)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(
        ["usage", "model", "choices", "delta", "content", "error", "type", "message", "response", "prompt_tokens",
         "usageMetadata", "candidates", "input_tokens", "output_tokens"]), inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(CASES)), json_values)
def test_nothing_of_the_wrong_type_raises(name: str, value: object) -> None:
    case = CASES[name]
    text = json.dumps(value).encode()
    made = watch(case, [b"data: " + text + b"\n\n" if case[3] == EVENTS else text])
    for number in (made.reading.input, made.reading.output, made.reading.cache_read):
        assert number is None or 0 <= number <= 3 * 10**12


def test_deep_nesting_is_no_recursion_error() -> None:
    made = watch(CASES["chat"], [b'{"x":' * 100_000 + b"1" + b"}" * 100_000])
    assert made.unreadable == 1


def test_a_stream_without_usage_says_so() -> None:
    made = watch(("openai", "chat", False, EVENTS, b""), [b.CHAT_STREAM_WITHOUT_USAGE])
    assert made.reading.complete and made.reading.input is None and made.reading.content_events == 2


def test_a_compatible_server_without_done_has_ended_with_its_body() -> None:
    body = b.sse(*b.CHAT_CHUNKS, b.LAST_CHUNK)
    assert watch(CASES["chat stream"], [body]).reading.complete
    part = watch(CASES["chat stream"], [b.sse(*b.CHAT_CHUNKS[:-1]), b"data: {"])
    assert not part.reading.complete


def test_anthropic_cut_off_is_not_complete() -> None:
    made = watch(CASES["message stream"], [b.sse(*b.MESSAGE_EVENTS[:-2])])
    assert not made.reading.complete and (made.reading.input, made.reading.output) == (100, 5)


@pytest.mark.parametrize(
    ("case", "body", "kind", "message"),
    [
        ("chat", {"error": {"message": "Too fast", "type": "requests", "code": "rate_limit_exceeded"}}, "requests", "Too fast"),
        ("chat", {"error": "plain"}, "error", "plain"),
        ("message", {"type": "error", "error": {"type": "overloaded_error", "message": "Busy\n"}}, "overloaded_error", "Busy\\n"),
        ("generate", {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "no"}}, "RESOURCE_EXHAUSTED", "no"),
        ("generate array", [{"error": {"code": 400, "status": "BAD", "message": "no"}}], "BAD", "no"),
    ],
)
def test_errors_in_the_providers_words(case: str, body: object, kind: str, message: str) -> None:
    reading = watch(CASES[case], [json.dumps(body).encode()]).reading
    assert (reading.error_type, reading.error) == (kind, message)


def test_errors_amid_a_stream() -> None:
    trouble = {"type": "error", "error": {"type": "overloaded_error", "message": "x" * 999}}
    made = watch(CASES["message stream"], [b.sse(*b.MESSAGE_EVENTS[:4], trouble)])
    assert made.reading.error_type == "overloaded_error" and len(made.reading.error) == 200 and not made.reading.complete
    failed = {"type": "response.failed", "response": {**b.RESPONSE, "error": {"code": "server_error", "message": "sorry"}}}
    assert watch(CASES["response stream"], [b.sse(failed)]).reading.error_type == "server_error"


@pytest.mark.parametrize("sizes", [1 << 16, DOCUMENT_MAX * 3])
def test_usage_at_the_end_of_a_large_document(sizes: int) -> None:
    vectors = [{"embedding": "A" * 1000, "text": '\\"usage\\": {"prompt_tokens": 1}'}] * (DOCUMENT_MAX // 900)
    body = json.dumps({"data": vectors, "model": "m", "usage": {"prompt_tokens": 55, "total_tokens": 55}}).encode()
    made = watch(("openai", "embedding", False, JSON, b""), [body[i : i + sizes] for i in range(0, len(body), sizes)])
    assert (made.reading.input, made.reading.output, made.unreadable) == (55, 0, 0)
    assert not made._document


@pytest.mark.parametrize("name", ["chat", "chat stream", "generate array"])
def test_small_pieces_take_no_more_room_than_large_ones(name: str) -> None:
    provider, operation, array, kind, _ = CASES[name]
    made = ResponseWatch(provider, operation, array, Reading(), lambda: 0.0)
    made.begin(kind, [])
    made({"chat": b'{"', "chat stream": b"data: ", "generate array": b'[{"'}[name], False)
    tracemalloc.start()
    for n in range(100_000):
        made(b"%02d" % (n % 100), False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


# ---- requests


def request(parts: list[bytes], readable: bool = True) -> tuple[RequestWatch, list[int]]:
    done: list[int] = []
    made = RequestWatch(readable, lambda: done.append(1))
    for i, part in enumerate(parts):
        assert made(part, i == len(parts) - 1) == part
    return made, done


PROMPT = [{"role": "user", "content": "x" * 400}]
BODY = json.dumps({"stream": True, "messages": PROMPT, "model": "gpt-4o", "max_tokens": 9}).encode()


@settings(max_examples=50, deadline=None)
@given(cuts)
def test_requests_are_read_however_they_are_cut(where: list[int]) -> None:
    made, done = request(pieces(BODY, where))
    assert (made.model, made.streamed, made.max_tokens, done) == ("gpt-4o", True, 9, [1])
    assert 100 <= made.tokens < 115


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1), st.booleans())
def test_no_request_raises(parts: list[bytes], readable: bool) -> None:
    request(parts, readable)


def test_a_batch_of_texts_is_estimated_by_all_of_them() -> None:
    text = {"content": {"parts": [{"text": "x" * 400}]}}
    assert request([json.dumps({"requests": [text] * 3}).encode()])[0].tokens >= 300
    assert request([json.dumps(text).encode()])[0].tokens >= 100


@pytest.mark.parametrize("name", [b"a\xff", b"a\n", b"a\0"])
def test_a_huge_requests_model_is_no_text(name: bytes) -> None:
    made, _ = request([b'{"model":"' + name + b'","messages":"', b"x" * (REQUEST_MAX + 1), b'"}'])
    assert made.model == ""


def test_of_a_huge_request_the_beginning_is_read() -> None:
    rest = b'"messages":"' + b"x" * (2 * REQUEST_MAX)
    for head, model in [
        (b'{"model":"gpt-4o",', "gpt-4o"),
        (b' { "stream" : true, "model" : "gpt-4o" ,', "gpt-4o"),
        (b'{"a":{"model":"evil"},"model":"gpt-4o",', ""),
        (b'{"a":"\\"model\\":\\"evil\\"",', ""),
    ]:
        data = head + rest
        made, done = request([data[i : i + 65536] for i in range(0, len(data), 65536)])
        assert made.model == model and done == [1] and made._kept is None


def test_what_is_kept_of_an_agents_requests_is_bounded() -> None:
    done: list[int] = []
    room = Room()
    piece = bytes(64 << 10)
    watches = [RequestWatch(True, lambda: done.append(1), room) for _ in range(100)]
    for watch_ in watches:
        for _ in range(10):
            watch_(piece, False)
    assert 0 <= room.left < 10 * len(piece) and len(done) == 75, "of most only the beginning was read"
    for watch_ in watches:
        watch_.release()
        watch_.release()
    assert room.left == module.ROOM
    small = RequestWatch(True, lambda: done.append(1), room)
    for byte in BODY:
        small(bytes([byte]), False)
    assert room.left == module.ROOM - len(BODY)
    small(b"", True)
    assert (small.model, small.max_tokens) == ("gpt-4o", 9) and room.left == module.ROOM


def test_images_count_for_little() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 900_000}}
    made, _ = request([json.dumps({"model": "m", "messages": [{"role": "user", "content": [image]}]}).encode()])
    assert 1000 <= made.tokens < 1100


@pytest.mark.parametrize(
    ("content", "least"),
    [
        (b'{"data":";base64,' + b"A" * 400_000 + b'"}', 0),
        (b'{"data":"data:image/png;base64,' + b"A" * 400_000 + b'"}', 1000),
        (b'"x;base64,' + b"word after word " * 25_000 + b'"', 100_000),
    ],
    ids=["two marks", "both marks", "a prompt"],
)
def test_what_counts_for_little_counts_once(content: bytes, least: int) -> None:
    """An agent's estimate was below zero, and so took from what it had used."""
    made, _ = request([b'{"model":"m","messages":[' + content + b"]}"])
    assert least <= made.tokens < least + 1100


def test_names_are_made_harmless() -> None:
    made, _ = request([msgspec.json.encode({"model": "a\x1b[31m\n" + "x" * 500})])
    assert made.model.startswith("a\\x1b[31m\\n") and len(made.model) == 128


# ---- prices


def test_prices() -> None:
    prices = Prices({
        "gpt-4o": PriceConfig(2.5, 10.0, 1.25),
        "gpt-4o-*": PriceConfig(1.0, 1.0),
        "gpt-*": PriceConfig(9.0, 9.0),
        "claude*": PriceConfig(3.0, 15.0, 0.3, 3.75),
    })  # fmt: skip
    assert prices.cost(("gpt-4o",), 1_000_000, 100_000, 400_000) == pytest.approx(0.6 * 2.5 + 0.4 * 1.25 + 1.0)
    assert prices.cost(("GPT-4o-mini",), 1_000_000, 0) == 1.0 and prices.cost(("gpt-5",), 1_000_000, 0) == 9.0
    assert prices.cost(("claude-x",), 1_000_000, 0, 500_000, 250_000) == pytest.approx(0.25 * 3 + 0.5 * 0.3 + 0.25 * 3.75)
    hour = Prices({"c": PriceConfig(3.0, 15.0, 0.3, 3.75, 6.0)})
    assert hour.cost(("c",), 1_000_000, 0, 0, 500_000, 200_000) == pytest.approx(0.5 * 3 + 0.3 * 3.75 + 0.2 * 6)
    assert prices.cost(("claude-x",), 100_000, 0, 0, 100_000, 50_000) == pytest.approx(0.375), "without a price of its own"
    assert Prices({"g": PriceConfig(2.0)}).cost(("g",), 1_000_000, 0, 300_000, 200_000) == 2.0, "the cache's are as others"
    assert prices.cost(("llama", "gpt-4o"), 0, 100_000) == 1.0, "the name in the request, if the response's has no price"
    assert prices.cost(("llama", ""), 1, 1) is None and not Prices({})


def test_patterns_of_models_have_stars_only_and_take_no_time() -> None:
    price = PriceConfig(1.0)
    assert Prices({"*a" * 12 + "b": price}).of("a" * 128) is None
    for pattern, fits, other in [("m[*]?", "M[1\n2]?", "m1?"), ("[*]", "[x]", "x"), ("a.b", "a.b", "axb"), ("*", "", None)]:
        prices = Prices({pattern: price})
        assert prices.of(fits) is price and (other is None or prices.of(other) is None)
