"""OpenAI's dialect: /v1/chat/completions, /v1/completions and /v1/models; /v1/responses and /v1/embeddings are next door."""

from __future__ import annotations

import secrets
import time

import msgspec

from .model import Answer, BadRequest, answer
from .openai_embeddings import embed
from .openai_responses import respond
from .options import MockOptions
from .reply import Call, Reply, json_reply
from .usage import Usage

MODELS = ("gpt-4o-mini", "gpt-4o", "gpt-4.1", "o4-mini")
CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
PATHS = frozenset({CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, "/v1/models"})


def error(status: int, message: str, kind: str, code: str | None = None, param: str | None = None) -> Reply:
    return json_reply(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})


def handle(options: MockOptions, call: Call) -> Reply:
    reply = _handle(options, call)
    _limits(options, call, reply)
    return reply


def failure(options: MockOptions, call: Call, status: int) -> Reply:
    """The error that `fail_every` asks for."""
    if status == 429:
        reply = error(429, "Rate limit reached for requests.", "requests", "rate_limit_exceeded")
        reply.headers |= {"retry-after": "1", "retry-after-ms": "20"}
    else:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        reply = error(status, "The mock server was told to fail.", kind)
    _limits(options, call, reply)
    return reply


def _handle(options: MockOptions, call: Call) -> Reply:
    refused = _check_key(options, call)
    if refused:
        return refused
    if call.path == "/v1/models":
        if call.method != "GET":
            return _not_allowed(call)
        models = [{"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "mock"} for name in MODELS]
        return json_reply(200, {"object": "list", "data": models})
    if call.method != "POST":
        return _not_allowed(call)
    try:
        return _call(options, call)
    except BadRequest as trouble:
        return error(400, str(trouble), "invalid_request_error")


def _check_key(options: MockOptions, call: Call) -> Reply | None:
    scheme, _, key = call.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        return error(
            401,
            "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
            "(i.e. Authorization: Bearer YOUR_KEY).",
            "invalid_request_error",
        )
    if options.keys and key.strip() not in options.keys:
        # The real one echoes a masked key; this one nothing, so that a search for the key in answers means something.
        return error(401, "Incorrect API key provided.", "invalid_request_error", "invalid_api_key")
    return None


def _not_allowed(call: Call) -> Reply:
    return error(405, f"Not allowed to {call.method} on {call.path}.", "invalid_request_error", "method_not_supported")


def _call(options: MockOptions, call: Call) -> Reply:
    try:
        request = msgspec.json.decode(call.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("We could not parse the JSON body of your request.") from None
    if not isinstance(request, dict):
        raise BadRequest("The body must be a JSON object.")
    model = request.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest("you must provide a model parameter")
    if call.path == RESPONSES:
        return respond(options, call, request, model)
    if call.path == EMBEDDINGS:
        return embed(request, model)
    return _chat(options, call, request, model)


def _chat(options: MockOptions, call: Call, request: dict[str, object], model: str) -> Reply:
    """Also the older completions, of a prompt instead of messages."""
    chat = call.path == CHAT
    messages = request.get("messages") if chat else [{"role": "user", "content": request.get("prompt")}]
    said = answer(options, messages, None, request.get("max_completion_tokens", request.get("max_tokens")))
    assert isinstance(messages, list)  # answer() saw to it
    used = Usage(said.input_tokens, len(said.tokens), cache_read_tokens=call.cache.longest(model, messages, said.costs))
    usage: dict[str, object] = {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.input_tokens + used.output_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cache_read_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
    if request.get("stream"):
        stream_options = request.get("stream_options")
        with_usage = isinstance(stream_options, dict) and bool(stream_options.get("include_usage"))
        reply = (_stream if chat else _stream_text)(head, said, usage if with_usage else None)
    else:
        message: dict[str, object] = {"role": "assistant", "content": said.text, "refusal": None, "annotations": []}
        content = {"message": message} if chat else {"text": said.text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": _reason(said)}
        document = {**head, "object": "chat.completion" if chat else "text_completion", "choices": [choice], "usage": usage}
        reply = json_reply(200, {**document, "service_tier": "default", "system_fingerprint": "fp_mock"})
    reply.tokens = len(said.tokens)
    reply.model, reply.usage = model, used
    return reply


def _stream_text(head: dict[str, object], said: Answer, usage: dict[str, object] | None) -> Reply:
    def chunk(choices: list[object], **more: object) -> bytes:
        return b"data: " + msgspec.json.encode({**head, "object": "text_completion", "choices": choices, **more}) + b"\n\n"

    def text(piece: str, reason: str | None = None) -> bytes:
        return chunk([{"index": 0, "text": piece, "logprobs": None, "finish_reason": reason}])

    events = [(text(token), 1) for token in said.tokens]
    events.append((text("", _reason(said)), 0))
    if usage is not None:
        events.append((chunk([], usage=usage), 0))
    events.append((b"data: [DONE]\n\n", 0))
    return Reply(200, headers={"content-type": "text/event-stream; charset=utf-8"}, events=events)


def _stream(head: dict[str, object], said: Answer, usage: dict[str, object] | None) -> Reply:
    def chunk(choices: list[object], **more: object) -> bytes:
        document = {**head, "object": "chat.completion.chunk", "service_tier": "default", "system_fingerprint": "fp_mock"}
        return b"data: " + msgspec.json.encode({**document, "choices": choices, **more}) + b"\n\n"

    none: dict[str, object] = {} if usage is None else {"usage": None}  # the real one has the field in every chunk once asked for

    def delta(content: dict[str, object], reason: str | None = None) -> bytes:
        return chunk([{"index": 0, "delta": content, "logprobs": None, "finish_reason": reason}], **none)

    events = [(delta({"role": "assistant", "content": "", "refusal": None}), 0)]
    events += [(delta({"content": token}), 1) for token in said.tokens]
    events.append((delta({}, _reason(said)), 0))
    if usage is not None:
        events.append((chunk([], usage=usage), 0))
    events.append((b"data: [DONE]\n\n", 0))
    return Reply(200, headers={"content-type": "text/event-stream; charset=utf-8"}, events=events)


def _reason(said: Answer) -> str:
    return "length" if said.cut else "stop"


def _limits(options: MockOptions, call: Call, reply: Reply) -> None:
    limit = options.requests_per_minute
    reply.headers |= {
        "openai-version": "2020-10-01",
        "openai-organization": "mock",
        "openai-processing-ms": str(int(options.latency * 1000)),
        "x-request-id": f"req_{secrets.token_hex(16)}",
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-limit-tokens": "2000000",
        "x-ratelimit-remaining-requests": str(limit - call.number % (limit + 1)),
        "x-ratelimit-remaining-tokens": str(2_000_000 - reply.tokens),
        "x-ratelimit-reset-requests": "6ms",
        "x-ratelimit-reset-tokens": "0s",
    }
