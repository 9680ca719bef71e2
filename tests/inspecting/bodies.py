"""Bodies of the three dialects, as their servers send them."""

from __future__ import annotations

import json
from typing import Any


def sse(*events: Any, named: bool = False, end: bytes = b"") -> bytes:
    return (
        b"".join(
            (b"event: " + event["type"].encode() + b"\n" if named else b"") + b"data: " + json.dumps(event).encode() + b"\n\n"
            for event in events
        )
        + end
    )


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def chunk(content: str | None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    delta = {"role": "assistant"} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "model": "gpt-4o-2024", "choices": [choice], **more}


DONE = b"data: [DONE]\n\n"
CHAT_CHUNKS = [chunk(None, usage=None), chunk("Hel", usage=None), chunk("lo wörld", usage=None), chunk("", "stop", usage=None)]
LAST_CHUNK = {"id": "c", "model": "gpt-4o-2024", "choices": [], "usage": USAGE}
CHAT_STREAM = sse(*CHAT_CHUNKS, LAST_CHUNK, end=DONE)
CHAT_STREAM_WITHOUT_USAGE = sse(*CHAT_CHUNKS, end=DONE)
CHAT = json.dumps(
    {"model": "gpt-4o-2024", "choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}], "usage": USAGE}
).encode()

RESPONSE = {
    "id": "r",
    "model": "gpt-5",
    "status": "completed",
    "error": None,
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}],
    "usage": {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 64},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 107,
    },
}
RESPONSE_STREAM = sse(
    {"type": "response.created", "response": {**RESPONSE, "usage": None, "status": "in_progress"}},
    {"type": "response.output_text.delta", "delta": "Hello"},
    {"type": "response.completed", "response": RESPONSE},
    named=True,
)

MESSAGE = {
    "type": "message",
    "model": "claude-x",
    "content": [{"type": "text", "text": "Hello"}],
    "usage": {"input_tokens": 26, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 64, "output_tokens": 7},
}
MESSAGE_EVENTS = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "usage": {**MESSAGE["usage"], "output_tokens": 1}}},  # type: ignore[dict-item]
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
    {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 5}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
    {"type": "message_stop"},
]
MESSAGE_STREAM = sse(*MESSAGE_EVENTS, named=True)


def generated(text: str, outputs: int, reason: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
    if reason:
        candidate["finishReason"] = reason
    usage = {"promptTokenCount": 100, "candidatesTokenCount": outputs, "thoughtsTokenCount": 3, "cachedContentTokenCount": 64}
    return {"candidates": [candidate], "modelVersion": "gemini-2.5-pro", "usageMetadata": usage}


GEMINI_PIECES = [generated("Hel", 2), generated('lo [{"}', 4, "STOP")]
GEMINI_STREAM = sse(*GEMINI_PIECES)
GEMINI_ARRAY = json.dumps(GEMINI_PIECES, indent=1).encode()
GEMINI = json.dumps(GEMINI_PIECES[-1]).encode()
