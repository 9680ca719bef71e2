"""Anthropic's dialect: /v1/messages, /v1/messages/count_tokens and /v1/models."""

from __future__ import annotations

import datetime
import secrets

import msgspec

from .model import Answer, BadRequest, answer
from .options import MockOptions
from .reply import Call, Reply, json_reply
from .usage import Usage

MODELS = ("claude-sonnet-4-5", "claude-opus-4-1", "claude-3-5-haiku-latest")
PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def error(status: int, message: str) -> Reply:
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    request_id = _request_id()
    document = {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
    reply = json_reply(status, document)
    reply.headers["request-id"] = request_id
    return reply


def handle(options: MockOptions, call: Call) -> Reply:
    reply = _handle(options, call)
    _limits(options, call, reply)
    return reply


def failure(options: MockOptions, call: Call, status: int) -> Reply:
    """The error that `fail_every` asks for."""
    reply = error(status, "The mock server was told to fail.")
    if status in (429, 529):
        reply.headers |= {"retry-after": "1", "x-should-retry": "true"}
    _limits(options, call, reply)
    return reply


def _handle(options: MockOptions, call: Call) -> Reply:
    key = call.headers.get(b"x-api-key", b"").decode("latin-1")
    if not key:
        scheme, _, bearer = call.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else ""
    if not key:
        return error(401, "x-api-key header is required")
    if options.keys and key not in options.keys:
        return error(401, "invalid x-api-key")
    if b"anthropic-version" not in call.headers:
        return error(400, "anthropic-version: header is required")
    if call.path == "/v1/models":
        if call.method != "GET":
            return error(405, "Method Not Allowed")
        models = [{"type": "model", "id": name, "display_name": name, "created_at": "2025-01-01T00:00:00Z"} for name in MODELS]
        return json_reply(200, {"data": models, "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]})
    if call.method != "POST":
        return error(405, "Method Not Allowed")
    try:
        return _messages(options, call)
    except BadRequest as trouble:
        return error(400, str(trouble))


def _messages(options: MockOptions, call: Call) -> Reply:
    try:
        request = msgspec.json.decode(call.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The request body is not valid JSON") from None
    if not isinstance(request, dict):
        raise BadRequest("The request body is not a JSON object")
    model = request.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest("model: Field required")
    limit = request.get("max_tokens")
    counts_only = call.path.endswith("/count_tokens")
    if limit is None and not counts_only:
        raise BadRequest("max_tokens: Field required")
    said = answer(options, request.get("messages"), request.get("system"), limit)
    if counts_only:
        return json_reply(200, {"input_tokens": said.input_tokens})
    used = _usage(call, model, request, said)
    usage: dict[str, object] = {
        "input_tokens": used.input_tokens - used.cache_read_tokens - used.cache_write_tokens,
        "cache_creation_input_tokens": used.cache_write_tokens,
        "cache_read_input_tokens": used.cache_read_tokens,
        "output_tokens": used.output_tokens,
        "service_tier": "standard",
    }
    message: dict[str, object] = {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": said.text}],
        "stop_reason": _reason(said),
        "stop_sequence": None,
        "usage": usage,
    }
    reply = _stream(message, said, usage) if request.get("stream") else json_reply(200, message)
    reply.tokens = len(said.tokens)
    reply.model, reply.usage = model, used
    return reply


def _usage(call: Call, model: str, request: dict[str, object], said: Answer) -> Usage:
    """With what stands up to the last `cache_control` read from the cache, or written to it."""
    messages = request["messages"]
    assert isinstance(messages, list)  # answer() saw to it
    system = request.get("system")
    system_tokens = said.input_tokens - sum(said.costs)
    prefix: object = None
    tokens = 0
    if _marked(system):
        prefix, tokens = [model, system], system_tokens
    for index, message in enumerate(messages):
        if _marked(message.get("content")):
            prefix, tokens = [model, system, messages[: index + 1]], system_tokens + sum(said.costs[: index + 1])
    known = None if prefix is None else call.cache.known(prefix, tokens)
    return Usage(
        said.input_tokens,
        len(said.tokens),
        cache_read_tokens=tokens if known is True else 0,
        cache_write_tokens=tokens if known is False else 0,
    )


def _marked(content: object) -> bool:
    """A part of it asks to be cached."""
    return isinstance(content, list) and any(isinstance(part, dict) and part.get("cache_control") for part in content)


def _stream(message: dict[str, object], said: Answer, usage: dict[str, object]) -> Reply:
    def event(kind: str, **more: object) -> bytes:
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode({"type": kind, **more}) + b"\n\n"

    start = message | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    events = [
        (event("message_start", message=start), 0),
        (event("content_block_start", index=0, content_block={"type": "text", "text": ""}), 0),
        (event("ping"), 0),
    ]
    events += [(event("content_block_delta", index=0, delta={"type": "text_delta", "text": token}), 1) for token in said.tokens]
    events += [
        (event("content_block_stop", index=0), 0),
        (
            event(
                "message_delta",
                delta={"stop_reason": _reason(said), "stop_sequence": None},
                usage={"output_tokens": len(said.tokens)},
            ),
            0,
        ),
        (event("message_stop"), 0),
    ]
    headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
    return Reply(200, headers=headers, events=events)


def _reason(said: Answer) -> str:
    return "max_tokens" if said.cut else "end_turn"


def _request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


def _limits(options: MockOptions, call: Call, reply: Reply) -> None:
    limit = options.requests_per_minute
    reset = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    reply.headers.setdefault("request-id", _request_id())
    reply.headers |= {
        "anthropic-organization-id": "mock",
        "anthropic-ratelimit-requests-limit": str(limit),
        "anthropic-ratelimit-requests-remaining": str(limit - call.number % (limit + 1)),
        "anthropic-ratelimit-requests-reset": reset,
        "anthropic-ratelimit-tokens-limit": "2000000",
        "anthropic-ratelimit-tokens-remaining": str(2_000_000 - reply.tokens),
        "anthropic-ratelimit-tokens-reset": reset,
    }
