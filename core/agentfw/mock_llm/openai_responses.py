"""OpenAI's /v1/responses."""

from __future__ import annotations

import secrets
import time

import msgspec

from .model import Answer, answer
from .options import MockOptions
from .reply import Call, Reply, json_reply
from .usage import Usage


def respond(options: MockOptions, call: Call, request: dict[str, object], model: str) -> Reply:
    given = request.get("input")
    items: object = [{"role": "user", "content": given}] if isinstance(given, str) else given
    said = answer(options, items, request.get("instructions"), request.get("max_output_tokens"))
    assert isinstance(items, list)  # answer() saw to it
    cached = call.cache.longest(f"responses {model}", items, said.costs)
    used = Usage(said.input_tokens, len(said.tokens), cache_read_tokens=cached)
    message: dict[str, object] = {
        "type": "message",
        "id": f"msg_{secrets.token_hex(16)}",
        "status": _status(said),
        "role": "assistant",
        "content": [_part(said.text)],
    }
    document: dict[str, object] = {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": _status(said),
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if said.cut else None,
        "instructions": request.get("instructions"),
        "max_output_tokens": request.get("max_output_tokens"),
        "metadata": {},
        "model": model,
        "output": [message],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": used.input_tokens,
            "input_tokens_details": {"cached_tokens": used.cache_read_tokens},
            "output_tokens": used.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.input_tokens + used.output_tokens,
        },
        "user": None,
    }
    reply = _stream(document, message, said) if request.get("stream") else json_reply(200, document)
    reply.tokens = len(said.tokens)
    reply.model, reply.usage = model, used
    return reply


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _status(said: Answer) -> str:
    return "incomplete" if said.cut else "completed"


def _stream(document: dict[str, object], message: dict[str, object], said: Answer) -> Reply:
    number = 0

    def event(kind: str, **more: object) -> bytes:
        nonlocal number
        data = msgspec.json.encode({"type": kind, "sequence_number": number, **more})
        number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    begun = document | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    where = {"item_id": message["id"], "output_index": 0, "content_index": 0}
    events = [
        (event("response.created", response=begun), 0),
        (event("response.in_progress", response=begun), 0),
        (event("response.output_item.added", output_index=0, item=message | {"status": "in_progress", "content": []}), 0),
        (event("response.content_part.added", **where, part=_part("")), 0),
    ]
    events += [(event("response.output_text.delta", **where, delta=token, logprobs=[]), 1) for token in said.tokens]
    events += [
        (event("response.output_text.done", **where, text=said.text, logprobs=[]), 0),
        (event("response.content_part.done", **where, part=_part(said.text)), 0),
        (event("response.output_item.done", output_index=0, item=message), 0),
        (event(f"response.{_status(said)}", response=document), 0),
    ]
    return Reply(200, headers={"content-type": "text/event-stream; charset=utf-8"}, events=events)
