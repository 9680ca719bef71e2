"""What heads say of a call, and that a server's words have bounds."""

from __future__ import annotations

import pytest
from agentfw import Headers
from agentfw_inspect import heads
from agentfw_inspect.heads import MOST_LIMITS, of_request, of_response


@pytest.mark.parametrize(
    ("fields", "json"),
    [
        ({"Content-Type": "application/json"}, True),
        ({"content-type": "application/json; charset=utf-8"}, True),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, False),
        ({"Content-Encoding": "gzip", "Content-Type": "application/json"}, False),
        ({"Content-Type": "text/event-stream"}, False),
        ({"Content-Type": "application/json", "content-type": "text/event-stream"}, False),
        ({"content-type": "text/event-stream", "Content-Type": "application/json"}, False),
        ({}, False),
    ],
)
def test_plain_json_is_one_that_says_so_once(fields: dict[str, str], json: bool) -> None:
    assert of_response(Headers(fields.items())) == (json, {})


def test_limits_are_told_harmless_and_few() -> None:
    told = {
        "X-RateLimit-Remaining-Tokens": "99", "anthropic-ratelimit-requests-reset": "2026-01-01T00:00:00Z",
        "Retry-After": "1", "x-should-retry": "true", "x-request-id": "abc",
    }  # fmt: skip
    assert of_response(Headers(told.items()))[1] == {name.lower(): told[name] for name in told if name != "x-request-id"}
    hostile = {"x-ratelimit-a": "\x85\x9b31m", "x-ratelimit-" + "n" * 100: "v" * 1000}
    limits = of_response(Headers(hostile.items()))[1]
    assert limits == {"x-ratelimit-a": "\\x85\\x9b31m", "x-ratelimit-" + "n" * 52: "v" * 125 + "..."}
    many = of_response(Headers((f"x-ratelimit-{number}", "1") for number in range(100)))[1]
    assert len(many) == MOST_LIMITS


def test_names_that_are_remembered_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_of_response", known := heads._Of())
    for number in range(3 * known.MOST):
        assert of_response(Headers([(f"x-ratelimit-{number}", "1"), (f"x-{number}", "1")]))[1] == {f"x-ratelimit-{number}": "1"}
    assert len(known) == known.MOST


def test_codings_of_requests() -> None:
    assert of_request(Headers()) == (True, ())
    assert of_request(Headers([("Content-Encoding", "Identity"), ("Accept-Encoding", "br"), ("accept-encoding", "gzip")])) == (
        True,
        ("br", "gzip"),
    )
    assert of_request(Headers([("content-encoding", "zstd")])) == (False, ())
